"""The families selfreward and efficiency by hand: TTRL, Co-Reward, RLSC, RLPR, LaSeR, SAR, and the blocks that they stand on."""

from __future__ import annotations

import asyncio
import copy
import doctest
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import said_group, table_of
from test_battery import VOCAB, Study, groups_of, same, same_gradient, start
from test_objective import f64, slope

from selfteach import api
from selfteach.core import BadValue, Episode, Group, History, Method, Ref, Request, Sampling, Score, Task, Trajectory, Tree, registry, votes
from selfteach.core.scoring import score
from selfteach.credit import confidence, keep, own_probability, self_mixed, shaping
from selfteach.credit.keep import keep_spread
from selfteach.credit.views import each_blind, each_probed
from selfteach.curriculum.select import reworded
from selfteach.loop.episode import play
from selfteach.loop.table import Table
from selfteach.model.tokenizer import Tokenizer, make
from selfteach.model.transformer import causal
from selfteach.objective import regression, verdict_regression, weigh
from selfteach.reward import likely
from selfteach.reward.answer import exact_match
from selfteach.reward.likely import probed, reference_probability
from selfteach.reward.vote import cross_vote, majority_vote
from selfteach.rollout.vote import sampled_vote


def of(name: str, **knobs: Any) -> Method:
    return registry.methods.get(name)(**knobs)


@pytest.mark.parametrize("module", [votes, confidence, keep, shaping, weigh, regression, likely])
def test_the_examples_in_the_docstrings_are_true(module):
    found = doctest.testmod(module, extraglobs={"torch": torch})
    assert found.attempted and not found.failed


# ---- votes


def answered(answers: Sequence[Any], gold: str, key: str = "k", **tags: Any) -> Group:
    group = said_group([(5 + i,) for i in range(len(answers))], [None] * len(answers), key)
    for episode, answer in zip(group.episodes, answers, strict=True):
        episode.answer = answer
    task = Task(key, "p", (gold,), tags=tags)
    return group._replace(request=replace(group.request, task=task), scores={})


def paid(part: Any, *groups: Group, cast: Any = None) -> list[Score]:
    found = asyncio.run(score(part, list(groups), cast, 5.0))["reward"]
    return [found[t.leaf] for g in groups for e in g.episodes for t in e.trajectories]


def test_the_majority_stands_in_for_the_label():
    # 7 has two of four votes, however it is spelled; the label is 8. Paid 1 1 0 0 where the truth would pay 0 0 1 0, so one is hit.
    answers = ["7", " 7.0", "8", None]
    scores = paid(majority_vote(judge=exact_match()), answered(answers, "8"))
    assert [s.value for s in scores] == [1, 1, 0, 0]
    assert [s.parts["hit"] for s in scores] == [0, 0, 0, 1] and [s.parts["right"] for s in scores] == [0, 0, 1, 0]
    assert {s.parts["label"] for s in scores} == {0} and {s.parts["share"] for s in scores} == {0.5}
    same_votes = paid(majority_vote(judge=exact_match()), answered(answers, "7"))
    assert [s.value for s in same_votes] == [1, 1, 0, 0] and {s.parts["label"] for s in same_votes} == {1}  # no label is paid for
    assert [s.value for s in paid(majority_vote(ties="none"), answered(["7", "8"], "7"))] == [0, 0]
    assert [s.value for s in paid(majority_vote(), answered([None, ""], "7"))] == [0, 0]


def test_each_wording_is_paid_by_the_vote_on_the_other():
    # x votes 7, x' votes 8: on x only 8 pays, on x' only 7. By their own votes it would be 1 1 0, 1 1 0.
    x, other = answered(["7", "7", "8"], "8", "x"), answered(["8", "8", "7"], "8", "x/reworded", same_as="x")
    alone = answered(["1", "1", "2"], "1", "y")
    scores = paid(cross_vote(judge=exact_match()), x, alone, other)
    assert [s.value for s in scores] == [0, 0, 1, 1, 1, 0, 0, 0, 1]
    assert [s.parts["label"] for s in scores] == [1, 1, 1, 1, 1, 1, 0, 0, 0]  # x is told 8, which is right; x' is told 7
    assert [s.value for s in paid(majority_vote(), x, other)] == [1, 1, 0, 1, 1, 0]
    tied = answered(["8", "7"], "8", "x/reworded", same_as="x")
    assert [s.value for s in paid(cross_vote(), x, tied)] == [0, 0, 0, 0, 1]  # a tie is no label for x; x has one


def test_tasks_are_asked_in_both_wordings():
    source = api.source_of("chain_sum", {})
    given = {"rollouts": 4, "back": [], "source": source, "seed": 3}
    requests, state = reworded(n=5, state=0, **given)
    assert state == 2 and [r.n for r in requests] == [4] * 4
    for first, other in zip(requests[::2], requests[1::2], strict=True):
        assert other.task.tags["same_as"] == first.task.id != other.task.id and other.task.answer == first.task.answer
        assert first.task.prompt.startswith("compute: ") and other.task.prompt == first.task.tags["paraphrase"]
    assert reworded(n=5, state=state, **given)[0][0].task.id not in {r.task.id for r in requests}
    assert reworded(n=5, state=0, **{**given, "back": [[]]})[0] == []
    talk = replace(source, train=lambda i: replace(source.train(i), prompt=[{"role": "user", "content": "?"}]), chat=None)
    assert reworded(n=2, state=0, **{**given, "source": talk})[0][1].task.prompt[0]["content"].startswith("start with ")
    with pytest.raises(BadValue, match="one wording"):
        reworded(n=2, state=0, **{**given, "source": api.source_of("strings", {})})


# ---- TTRL


def test_what_only_votes_is_in_no_baseline():
    # rewards of g0 are 0, 1/2, 1, 3/2; the first two alone: mean 1/4, std sqrt(1/8), so -+ 1/4 / sqrt(1/8) = -+ 0.7071
    study = Study(of("ttrl", keep=2), groups_of())
    adv = {name: v[0] for (name, row), v in study.columns().items() if row == 0 and "/g0/" in name}
    assert list(adv.values()) == pytest.approx([-math.sqrt(0.5), math.sqrt(0.5)], abs=1e-5)
    assert study.dropped["dropped/keep_first"] == sum(int(e.tree.chosen.sum()) for g in groups_of() for e in g.episodes[2:])


def test_ttrl_with_every_vote_kept_and_labels_is_grpo_on_the_test_questions():
    same(of("ttrl", keep=99, labels=True), of("grpo"))
    differ = {place for place, _, _ in of("ttrl", keep=99, labels=True).diff(of("grpo", groups=16, rollouts=16))}
    assert differ == {"select", "credit.1", "credit.2", "sampling"}
    source = api.source_of("chain_sum", {"n_test": 8})
    asked, _ = of("ttrl").stage.select(n=8, rollouts=2, back=[], source=source, seed=0, state=0)
    assert {r.task.id for r in asked} == {t.id for t in source.test}


# ---- RLSC


def plain_logp(ids: Sequence[int]) -> np.ndarray:
    """Log-probability of each token but the first, by a forward pass of its own."""
    tokens = torch.tensor(list(ids))
    with torch.no_grad():
        model = start()
        logp = model.logits(model(tokens[None], causal))[0].log_softmax(-1)
    return logp[torch.arange(len(tokens) - 1), tokens[1:]].numpy()


def test_the_weight_of_a_sample_is_its_own_probability():
    study = Study(of("rlsc", smooth=0.25), groups_of())
    trees = {e.id: e.tree for g in groups_of() for e in g.episodes}
    for (name, _), values in study.columns().items():
        tree = trees[name]
        said = tree.places(len(tree.parent) - 1)
        logp = plain_logp(tree.id[said].tolist())[tree.chosen[said][1:]]
        assert values[0] == pytest.approx(math.exp(logp.mean()) + 0.25)
        assert values[1] == pytest.approx(1 / 12)  # the log-likelihood is summed over tokens, averaged over the twelve samples
    same_gradient(study, Study(of("rlsc", smooth=0.25), groups_of(shift=3.0)), 0.0)  # no reward is read
    with pytest.raises(BadValue, match="length, group or none"):
        own_probability(logp=[-1.0], seq=[0], group=[0], by="prompt")
    assert np.isnan(own_probability(logp=[-1.0, np.nan, -1.0], seq=[0, 0, 1], group=[0, 1])["adv"].values).tolist() == [True, False]


# ---- RLPR


class Knows:
    """An engine that scores: what a function of the context's text says, for each token."""

    def __init__(self, tokenizer: Tokenizer, say: Callable[[str], Sequence[float]]):
        self.tokenizer, self.say, self.asked = tokenizer, say, list[tuple[str, str]]()

    async def score(self, member: str, context: np.ndarray, tokens: np.ndarray, want: Sequence[str]) -> dict[str, np.ndarray]:
        self.asked.append((self.tokenizer.decode(context), self.tokenizer.decode(tokens)))
        return {n: np.asarray(self.say(self.asked[-1][0]), np.float64) for n in want}


def spoken(texts: Sequence[str], gold: str, tokenizer: Tokenizer, say: Any, status: str = "stop") -> tuple[Group, Table, Knows]:
    """A group whose answers are these texts, at a table with an engine that knows."""
    engine = Knows(tokenizer, say)
    table = Table(engine, tokenizer, ("policy",), {}, Sampling(), {})  # type: ignore[arg-type]
    episodes = []
    for n, text in enumerate(texts):
        tree = Tree()
        ids = tokenizer.encode(text)
        leaf = tree.add(tree.add(-1, tokenizer.encode("q?")), ids, chosen=True, logp=np.zeros(len(ids)), version=0, sampling=Sampling())
        table.trees[f"e{n}"] = tree
        answer = text.rsplit("<answer>", 1)[-1].removesuffix("</answer>").strip()
        episodes.append(Episode(f"e{n}", tree, [Trajectory(Ref(f"e{n}", leaf), "policy", "k", status=status)], answer))
    return Group(Request(Task("k", "q?", (gold,)), len(texts), key="k"), episodes, {}, "k"), table, engine


def test_the_reference_is_scored_after_the_thoughts_and_without_them(tags, letters):
    # the reference " 71" is three bytes. After good thoughts .9 .6 .3: mean .6, product .162; without .2 each: .2 and .008
    good, bare = np.log([0.9, 0.6, 0.3]), np.log([0.2, 0.2, 0.2])
    say = lambda text: bare if "think" not in text else good if "a" in text.split("think>")[1] else np.log([0.1, 0.1, 0.1])  # noqa: E731
    texts = ["<think>a</think><answer> 5</answer>", "<think>b</think><answer> 71</answer>", "<think>a</think> 71"]
    for tokenizer in (tags, letters):  # a tag is a token, or many
        group, table, engine = spoken(texts, "71", tokenizer, say)
        scores = paid(reference_probability(judge=exact_match()), group, cast=table)
        assert [s.value for s in scores] == pytest.approx([0.4, 0.0, 0.0])  # .6 - .2; .1 - .2 is held at 0; no place for an answer
        assert engine.asked == [("q?<answer>", " 71"), ("q?<think>a</think><answer>", " 71"), ("q?<think>b</think><answer>", " 71")]
        assert scores[0].parts["probability"] == pytest.approx(0.6) and scores[0].parts["product"] == pytest.approx(0.162)
        assert scores[1].parts["right"] == 1 and scores[0].parts["right"] == 0 and scores[2].parts["auc"] == 0.5  # above one, below one
        assert group.episodes[0].cost["scored"] == 6  # and the three of the group
    by_product = paid(reference_probability(by="product"), group, cast=table)
    assert by_product[0].value == pytest.approx(0.162 - 0.008)
    assert [s.value for s in paid(reference_probability(debias=False), group, cast=table)] == pytest.approx([0.6, 0.1, 0.0])


def test_the_bound_on_the_spread_follows_the_spread():
    # two groups, std sqrt(1/2) and 0: mean s/2. Two warm steps keep all; then the bound is half of that, which the group of equals fails.
    s, rows = math.sqrt(0.5), {"reward": [0, 1, 1, 1], "group": [0, 0, 1, 1], "warm": 2, "rate": 0.75}
    state: dict[str, Any] = {"mean": 0.0, "steps": 0}
    kept = []
    for _ in range(3):
        found, state = keep_spread(**rows, state=state)
        kept.append(found["keep"].values.tolist())
    assert kept == [[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 0, 0]]
    assert state["steps"] == 3 and state["mean"] == pytest.approx(s / 2)
    _, state = keep_spread(reward=[0, 3], group=[0, 0], state=state, warm=2, rate=0.75)  # 3/4 s/2 + 1/4 3 s
    assert state["mean"] == pytest.approx(0.75 * s / 2 + 0.25 * 3 * s)
    found, again = keep_spread(reward=[math.nan, 1, 5], group=[0, 0, 1], state=state, warm=2)  # unknown stays unknown, one alone stays
    assert found["keep"].values.tolist()[2] == 1 and np.isnan(found["keep"].values[:2]).all() and again == state
    assert keep_spread(reward=[], group=[], state=state)[1] == state


# ---- LaSeR


def test_an_id_that_nothing_spells(tags, letters):
    for tokenizer in (tags, letters):
        assert tokenizer.pieces[tokenizer.spare] == b"\xff" and tokenizer.spare not in tokenizer.encode("é ÿ <|end|> \x7f <answer>")
    from tokenizers import AddedToken

    inner = make(["ab"], (), 257).inner
    inner.add_special_tokens([AddedToken(t, special=True) for t in ("<pad>", "<|x|>", "<|reserved_7|>")])
    assert Tokenizer(inner, config={"pad_token": "<pad>"}).spare == inner.token_to_id("<|reserved_7|>")
    inner = make(["ab"], (), 257).inner
    inner.add_special_tokens([AddedToken(t, special=True) for t in ("<pad>", "<|x|>")])
    assert Tokenizer(inner, config={"pad_token": "<pad>"}).spare == inner.token_to_id("<|x|>")


def test_the_policy_s_word_on_its_own_answer(letters):
    # levels -12 after "7" and -19 after "8", base -20, beta 0.1: 0.8 and 0.1. Of "7", right, it accepts; of "8", wrong, it rejects.
    say = lambda text: [-12.0] if "7" in text else [-19.0]  # noqa: E731
    group, table, _ = spoken(["7", "8", "7"], "7", letters, say)
    found = asyncio.run(score(probed(reward=exact_match(), beta=0.1, base=-20.0), [group], table, 5.0))
    assert [s.value for s in found["reward"].values()] == [1, 0, 1] and [s.value for s in found["self_reward"].values()] == pytest.approx(
        [0.8, 0.1, 0.8]
    )
    first, second, _ = found["reward"].values()
    assert first.parts["accepts"] == 1 and "rejects" not in first.parts and second.parts["rejects"] == 1 and second.parts["level"] == -19
    cut, table, engine = spoken(["7"], "7", letters, say, status="length")
    assert asyncio.run(score(probed(reward=exact_match()), [cut], table, 5.0))["self_reward"] == {} and not engine.asked


def test_one_token_more_after_what_ended_by_itself():
    whole, cut = said_group([(5, 6), (7,)], [1.0, 0.0]), said_group([(8,)], [0.0], "c")
    (t,) = cut.episodes[0].trajectories
    cut.episodes[0].trajectories[0] = replace(t, status="length")
    whole.scores["self_reward"] = {whole.episodes[1].trajectories[0].leaf: Score(0.7)}

    class Names:
        spare = 9

    found = each_probed(groups=[whole, cut], cast=type("Cast", (), {"tokenizer": Names}))
    assert [e.parts[-1].source for e in found] == [(9,), (9,), Ref(t.leaf.episode, t.leaf.node)]
    assert [e.parts[-1].learn for e in found] == ["verify", "verify", "main"]
    assert [float(e.given["self_reward"][1]) for e in found][1] == 0.7 and np.isnan(
        [found[0].given["self_reward"][1], found[2].given["self_reward"][1]]
    ).all()


def test_the_verdict_is_regressed_on_the_reward():
    # (0.1 (-14 + 20) - 1)^2 = 0.16; its slope 2 * 0.1 * -0.4
    lp = f64(-14.0, -25.0)
    assert verdict_regression(raw_logp=lp, reward=f64(1, 0), base=-20.0).tolist() == pytest.approx([0.16, 0.25])
    assert slope(lambda x: verdict_regression(raw_logp=x, reward=f64(1, 0), base=-20.0), lp).tolist() == pytest.approx([-0.08, -0.1])


def test_laser_before_its_warm_up_is_grpo_and_after_it_has_the_regression_beside():
    groups = groups_of()
    late, early, plain = (
        Study(of("laser"), groups),
        Study(of("laser", verify_from=0, alpha=0.5, base=-3.0), groups_of()),
        Study(of("grpo"), groups_of()),
    )
    same_gradient(late, plain, 1e-12)
    model = copy.deepcopy(start())
    rewards = [s.value for g in groups for s in g.scores["reward"].values()]
    right = sum(r >= 0.5 for r in rewards)
    loss = torch.zeros((), dtype=torch.float64)
    for e, r in zip([e for g in groups for e in g.episodes], rewards, strict=True):
        ids = torch.tensor(e.tree.id[e.tree.places(e.trajectories[0].leaf.node)].astype(np.int64))
        level = model.logits(model(ids[None], causal))[0, -1].log_softmax(-1)[VOCAB - 1]
        loss = loss + 0.5 * (0.1 * (level + 3.0) - r) ** 2 / (2 * (right if r >= 0.5 else 12 - right))
    loss.backward()
    for name, p in model.names().items():
        assert torch.allclose(early.gradient[f"policy/{name}"] - plain.gradient[f"policy/{name}"], p.grad, atol=1e-9), name


def test_self_reward_enters_the_advantage_where_it_tells_siblings_apart():
    # s = (1, 0 | .5, .5), clipped; the first group's std is .7071: -+ .7071 at a tenth; the second's is none
    rows: dict[str, Any] = {"adv": [1.0, -1.0, 1.0, -1.0], "self_reward": [3.0, math.nan, 0.5, 0.5], "group": [0, 0, 1, 1], "history": History()}
    assert self_mixed(**rows)["adv"].values.tolist() == pytest.approx([0.9 + 0.0707107, -0.9 - 0.0707107, 1.0, -1.0])
    assert self_mixed(**rows, step=1)["adv"].values.tolist() == [1, -1, 1, -1]
    assert self_mixed(**rows, gate=0.8)["adv"].values.tolist() == [1, -1, 1, -1]


def test_a_vote_in_which_each_sample_has_the_weight_of_its_own_word(tags):
    # two say 4 and one says 5; of 5 the policy thinks 0.9, of 4 0.2 each, so 5 wins where words weigh
    replies = ["<answer> 4</answer>", "<answer> 5</answer>", "<answer>4</answer>"]

    def won(**knobs: Any) -> tuple[Any, Episode]:
        table = table_of(sampled_vote(k=3, **knobs), replies, tags)

        async def levels(member: str, context: np.ndarray, tokens: np.ndarray, want: Sequence[str]) -> Any:
            assert tokens.tolist() == [tags.spare]
            return {n: np.array([-11.0 if "5" in tags.decode(context) else -18.0]) for n in want}

        table.engine.score = levels  # type: ignore[union-attr, method-assign]
        (group,) = asyncio.run(play(table, [Request(Task("t", "q", ("5",)))]))
        return group.episodes[0].answer, group.episodes[0]

    assert won()[0] == "4"
    answer, episode = won(weighted=True, base=-20.0)
    assert answer == "5" and [t.learn for t in episode.trajectories] == [None, "main", None]


# ---- SAR


def test_the_question_s_share_of_the_perplexity_by_a_plain_forward_pass():
    groups = groups_of()
    study, total = Study(of("sar", alpha=0.2), groups), {}
    for e, r in zip([e for g in groups for e in g.episodes], [s.value for g in groups for s in g.scores["reward"].values()], strict=True):
        places = e.tree.places(e.trajectories[0].leaf.node)
        said = places[e.tree.chosen[places]]
        blind = plain_logp([0, *e.tree.id[said].tolist()]).mean()
        ppl, ppl_blind = math.exp(-e.tree.logp[said].astype(np.float64).mean()), math.exp(-blind)
        total[e.id] = r + 0.2 * min(max((ppl_blind - ppl) / ppl_blind, -1), 1)
    for key in ("g0", "g1", "g2"):
        mine = np.array([v for n, v in total.items() if f"/{key}/" in n])
        want = (mine - mine.mean()) / mine.std(ddof=1)
        have = [v[0] for (n, row), v in study.columns().items() if row == 0 and f"/{key}/" in n]
        assert have == pytest.approx(want.tolist(), abs=1e-4)
    same(of("sar", alpha=0.0), of("grpo"))


def test_a_view_with_nothing_asked(tags, letters):
    assert letters.blank("compute: 1 + 1").tolist() == [letters.end] == letters.blank((1, 2)).tolist()
    group = said_group([(5,), (6,)], [1.0, 0.0])
    found = each_blind(groups=[group], cast=type("Cast", (), {"tokenizer": tags}))
    assert [e.views for e in found] == [{"blind": (tags.end,)}] * 2
    assert [e.parts for e in found] == [e.parts for e in registry.blocks.get("each")(groups=[group])]
