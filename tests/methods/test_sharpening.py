"""Sharpening by hand, and its theory by enumeration: how many samples coverage asks for, and where the loss is zero."""

from __future__ import annotations

import asyncio
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from support.battery import of
from support.episodes import scripted_context, single_turn_group

from selfteach.core import BadValue, RolloutRequest, Sampling, Score, Task, collate
from selfteach.core.scoring import score
from selfteach.loop.episode import play
from selfteach.methods.sharpening import keep_best, likeliest, own_judgement, reward_regression
from selfteach.reward.answer import exact_match

# A base model of four answers; the likeliest has 0.4, so that coverage C = 2.5.
BASE = np.array([0.1, 0.4, 0.3, 0.2])


def learned_by_sft(n: int) -> np.ndarray:
    """What SFT-Sharpening learns of every question: the distribution of the best of n samples of the base model, by
    enumeration of all groups of n, whose best the real block picks.
    """
    out = np.zeros(len(BASE))
    for answers in itertools.product(range(len(BASE)), repeat=n):
        chance = math.prod(BASE[list(answers)])
        weight = keep_best(reward=np.log(BASE[list(answers)]), group=np.zeros(n, int))["adv"].values
        np.add.at(out, list(answers), chance * weight)
    return out


def test_how_many_samples_coverage_asks_for():
    for n in range(1, 7):
        # the likeliest is missed by all n: (1 - 1/C)^n
        assert learned_by_sft(n)[1] == pytest.approx(1 - 0.6**n)
    np.testing.assert_allclose(learned_by_sft(1), BASE)  # a search of one finds nothing
    # delta = 0.1: C log(1 / delta) = 5.76 samples are enough, and 0.6^4 = 0.13 are not yet
    enough = math.ceil(2.5 * math.log(10))
    assert enough == 6 and learned_by_sft(enough)[1] >= 0.9 > learned_by_sft(4)[1]


@pytest.mark.parametrize("beta", [0.5, 1.0])
def test_the_regression_is_zero_at_the_base_model_to_a_power(beta: float):
    """The optimum of E log pi_base - beta KL is pi_base^(1 + 1 / beta): squares for beta = 1, cubes for 1/2."""
    power = {1.0: 2, 0.5: 3}[beta]
    logits = torch.log(torch.tensor(BASE)).requires_grad_()
    base = torch.log(torch.tensor(BASE))
    win, lose = torch.triu_indices(4, 4, 1)
    learn = torch.optim.LBFGS([logits], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        learn.zero_grad()
        rows: dict[str, Any] = {"logp": torch.log_softmax(logits, 0), "ref_logp": base, "seq": torch.arange(4)}
        l = reward_regression(**rows, reward=base, win=win, lose=lose, beta=beta).mean()
        l.backward()
        return l

    learn.step(loss)
    want = BASE**power / (BASE**power).sum()
    assert loss().item() == pytest.approx(0.0, abs=1e-9)
    np.testing.assert_allclose(torch.softmax(logits, 0).detach().numpy(), want, atol=1e-4)


def judged(tokenizer: Any, by: Any, logps: dict[str, float]) -> dict[str, Score]:
    """What the sampler holds of its answers, whose tokens have these log-probabilities each."""
    answers = iter(logps)
    context = scripted_context(of("sharpening").stage.programs["main"], lambda *_: next(answers), tokenizer)
    context.model_roles = ("policy", "ref")
    (group,) = asyncio.run(play(context, [RolloutRequest(Task("t", "q", ("7",)), len(logps))]))
    texts = {e.id: context.text(e.trajectories[0].leaf) for e in group.episodes}
    for e in group.episodes:
        tree, logp = e.tree, logps[texts[e.id]]
        rows = np.flatnonzero(tree.action_mask)
        tree._tokens["logp"][rows] = logp
    found = asyncio.run(score(own_judgement(by=by, metric_judge=exact_match()), [group], context))["reward"]
    return {texts[e.id]: found[e.trajectories[0].leaf] for e in group.episodes}


def test_what_a_model_holds_of_its_answers(letters):
    short, long, wrong = "<answer>7</answer>", "well <answer>7</answer>", "<answer>8</answer>"
    given = {short: -0.5, long: -0.25, wrong: -0.1}
    size = {text: len(letters.encode(text)) for text in given}
    found = judged(letters, "likelihood", given)
    assert {t: s.value for t, s in found.items()} == pytest.approx({t: p * size[t] for t, p in given.items()})
    assert {s.parts["best"] for s in found.values()} == {0.0}, "the likeliest is wrong"
    assert {t: s.value for t, s in judged(letters, "mean", given).items()} == pytest.approx(given)
    # two of three say 7
    assert [judged(letters, "vote", given)[t].value for t in given] == [1.0, 1.0, 0.0]
    assert found[wrong].parts["auc"] == 0.0 and found[wrong].parts["right"] == 0.0
    with pytest.raises(BadValue, match="own_judgement: by must be likelihood, mean or vote"):
        asyncio.run(own_judgement(by="charm")(group=None, context=None, deadline=1.0))


def test_every_pair_of_a_group_is_compared_and_only_the_best_is_shown():
    group = single_turn_group([(5,), (6,), (7,)], [-3.0, -1.0, -2.0])
    trees = {e.id: e.tree for e in group.episodes}
    compose, keep = of("sharpening").stage.credit
    batch = collate(compose(groups=[group]), trees.__getitem__)
    found = keep(reward=batch.get("reward", "seq"), group=batch.get("group", "seq"))
    assert found["keep"].values.tolist() == [0.0, 1.0, 0.0] == found["adv"].values.tolist()
    unknown = keep(reward=np.array([np.nan, -2.0, np.nan]), group=np.array([0, 0, 1]))["adv"].values
    assert unknown.tolist() == [0.0, 1.0, 0.0], "what is unknown is never the best"
    (pairs,) = of("sharpening", by="rlhf").stage.credit
    assert sorted(len(e.preferred_over) for e in pairs(groups=[group])) == [0, 1, 2]
    # two that are held alike are a pair as well: their log-ratios are to be alike
    alike = single_turn_group([(5,), (6,)], [-1.0, -1.0])
    assert sorted(len(e.preferred_over) for e in pairs(groups=[alike])) == [0, 1]


def test_the_best_of_several_by_their_likelihood(letters):
    replies = iter(["<answer>1</answer>", "<answer>22</answer>", "<answer>3</answer>"])
    context = scripted_context(likeliest(votes=3), lambda *_: next(replies), letters, logp=-0.5)
    (group,) = asyncio.run(play(context, [RolloutRequest(Task("t", "q", ("7",)), 1, sampling=Sampling())]))
    # all tokens are as likely, so that the longer answer is the least likely one, and the first of the others is taken
    assert group.episodes[0].answer in ("1", "3")
    assert sorted(t.learn or "" for t in group.episodes[0].trajectories) == ["", "", "main"]
