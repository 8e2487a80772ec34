"""SEELE: the item-response curve by hand, its fit, and the hint rates that follow from it."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.answers import plain_logp
from support.battery import KEYS, Study, of, same
from support.curriculum import Metrics, answered, asked
from support.episodes import scripted_context

from selfteach.core import (
    Episode,
    Ref,
    RolloutGroup,
    RolloutRequest,
    Sampling,
    Score,
    Task,
    Trajectory,
    Tree,
    collate,
)
from selfteach.credit.advantages import center
from selfteach.curriculum.select import first_task_index
from selfteach.loop.episode import play
from selfteach.methods.seele import Curve, fit, hints_alone, prefix, responsive_hints
from selfteach.rollout.single import single


def test_the_inverse_of_a_curve_by_hand():
    assert Curve(8.0, 0.5, 0.0).inverse(0.5) == 0.5
    # c = 0.2: (0.5 - 0.2) / 0.8 = 3/8, log(3/5) / 8 = -0.06385
    assert Curve(8.0, 0.5, 0.2).inverse(0.5) == pytest.approx(0.43615, abs=1e-5)
    assert (
        Curve(8.0, 0.5, 0.2)(0.43615) == pytest.approx(0.5, abs=1e-5) and Curve(8.0, 0.5, 0.5).inverse(0.5) == -np.inf
    )


@pytest.mark.parametrize("truth", [Curve(10.0, 0.3, 0.0), Curve(6.0, 0.7, 0.1), Curve(20.0, 0.55, 0.25)])
def test_the_fit_recovers_the_true_curve_from_many_answers(truth):
    points = [(rate, truth(rate)) for rate in np.linspace(0.0, 1.0, 11)]
    assert fit(points).inverse(0.5) == pytest.approx(truth.inverse(0.5), abs=0.02)


def test_the_ends_stand_in_and_a_jump_is_halved():
    # (0, 0) and (1, 1) where there is nothing else; then the middle of the largest rate of 0 and the smallest of 1
    assert fit([]).inverse(0.5) == pytest.approx(0.5, abs=1e-9)
    assert fit([(0.95, 1.0)]).inverse(0.5) == pytest.approx(0.475, abs=1e-9)
    assert fit([(0.95, 1.0), (0.475, 0.0)]).inverse(0.5) == pytest.approx(0.7125, abs=1e-9)
    assert fit([(0.2, 0.0)]).inverse(0.5) == pytest.approx(0.6, abs=1e-9)
    # without a hint all are right: (0, 0) does not stand in
    assert fit([(0.0, 1.0)]).inverse(0.5) < 0 and fit([(0.0, 0.6), (0.5, 1.0)]).inverse(0.5) < 0


def test_accuracies_of_one_rate_are_averaged():
    # half of the answers are right at 0.6, in one round none and in the other all: the curve passes 1/2 there
    for rounds in ([(0.6, 0.5)], [(0.6, 0.0), (0.6, 1.0)]):
        assert fit(rounds)(0.6) == pytest.approx(0.5, abs=1e-3)


def test_a_prefix_is_cut_between_words():
    text = "<think> 1 + 1 = 2. 2 + 5 = 7.</think><answer> 7</answer>"
    assert (
        prefix(text, 0.0) == ""
        and prefix(text, 0.5) == "<think> 1 + 1 = 2."
        and prefix(text, 1.0) == text.removesuffix(" 7</answer>")
    )
    assert prefix("a b c d e f", 0.3) == "a b"  # 1.8 words are two


def visits(
    accuracy: Callable[[float], float], rounds: int, steps: int, **hyper_parameters: Any
) -> tuple[list[list[float]], list[Metrics]]:
    """Hint rates and metrics of visits to the one task of a pool, with the accuracy as a function of the rate."""
    select = responsive_hints(rounds=rounds, size=1, **hyper_parameters)
    state: dict[str, Any] = {"next": 0, "rates": {}}
    out: list[list[float]] = []
    logged: list[Metrics] = []
    for _ in range(steps):
        back: list[list[RolloutGroup]] = []
        while True:
            requests, state, metrics = asked(select, back, state, n=1, rollouts=8)
            if not requests:
                break
            (r,) = requests
            right = round(accuracy(r.help["rate"]) * r.n)
            back.append([answered(r, [1.0] * right + [0.0] * (r.n - right), key="k")])
        assert sum(g.request.n for (g,) in back) == 8 and all(g.request.key == "k" for (g,) in back[1:])
        out.append([g.request.help["rate"] for (g,) in back])
        logged.append(metrics)
    return out, logged


def test_rounds_converge_to_the_rate_of_the_target_accuracy():
    rates, metrics = visits(Curve(12.0, 0.6, 0.0), rounds=4, steps=3)
    assert rates[0][0] == 0.95 and len(rates[0]) == 4  # a first visit begins with the longest hint
    assert abs(rates[0][-1] - 0.6) < 0.2 and all(abs(r - 0.6) < 0.25 for r in rates[-1]), rates
    assert rates[1][0] < 0.8, "a visit begins where the last one ended"
    assert metrics[0]["hint"] == pytest.approx(np.mean(rates[0])) and metrics[0]["ends"] == pytest.approx(rates[0][-1])
    # where all answers are right each rate is half of the last (on a grid of 0.0125), and the next visit goes on
    right = visits(lambda rate: 1.0, rounds=4, steps=2)[0]
    assert [*right[0], right[1][0]] == pytest.approx([0.95, 0.475, 0.2375, 0.11875, 0.059], abs=0.01)
    assert visits(lambda rate: 0.0, rounds=8, steps=2)[0][-1][-1] == 0.95
    assert visits(lambda rate: 0.0, rounds=8, steps=2, highest=0.4)[0][-1][-1] == 0.4
    # nine of ten are right at 0.6 + log(9) / 12 = 0.78
    assert abs(visits(Curve(12.0, 0.6, 0.0), rounds=4, steps=4, target=0.9)[0][-1][-1] - 0.78) < 0.15
    assert visits(lambda rate: 1.0, rounds=4, steps=2, fixed=0.5)[0] == [[0.5], [0.5]]


def test_the_distance_from_the_target_is_of_the_last_round_and_without_the_noise_of_two_answers():
    select, state = responsive_hints(rounds=2), {"next": 0, "rates": {}}
    back: list[list[RolloutGroup]] = []
    for _ in range(2):
        requests, state, _ = asked(select, back, state, n=2, rollouts=4)
        back.append([answered(r, [1.0] * r.n, key=r.task.id) for r in requests])
    one, other = (g.request for g in back[1])
    back[1] = [
        answered(replace(one, help={"hint": "<think>", "rate": 0.1}), [1.0, 0.0], key="a"),
        answered(replace(other, help={"hint": "", "rate": 0.01}), [1.0, 1.0], key="b"),
    ]
    requests, _, metrics = asked(select, back, state, n=2, rollouts=4)
    assert requests == [] and metrics["off"] == pytest.approx((-0.25 + 0.25) / 2)
    # at an accuracy of one half, two answers agree half of the time: on average nothing is left
    back[1] = [answered(one, r, key="a") for r in ([1.0, 1.0], [1.0, 0.0], [0.0, 1.0], [0.0, 0.0])]
    assert asked(select, [back[1]], state, n=2, rollouts=2)[2] == {}  # the first of two rounds says nothing yet
    back[0] = back[1]
    assert asked(select, back, state, n=2, rollouts=4)[2]["off"] == pytest.approx(0.0)


def hinted(tags: Any, hints: Sequence[str]) -> tuple[Any, list[RolloutGroup]]:
    """Groups of two answers `12` each to one question after these hints, of one key."""
    context = scripted_context(single(), ["12</answer>"], tags)
    asks = [RolloutRequest(Task("t", "q?"), 2, key="t", help={"hint": hint, "rate": 0.5}) for hint in hints]
    groups = [g for ask in asks for g in asyncio.run(play(context, [ask]))]
    scores = [{"reward": {t.leaf: Score(1.0) for _, t in g.learned}} for g in groups]
    return context, [g._replace(scores=s) for g, s in zip(groups, scores, strict=True)]


def test_a_hint_is_learned_after_the_bare_question_once_a_round(letters):
    context, groups = hinted(letters, ["<answer> ", "", "x"])
    examples = hints_alone(groups=groups)
    batch = collate(examples, context.tree)
    texts = [letters.decode(batch.ids[a:z]) for a, z in itertools.pairwise(batch.start)]
    learned = [letters.decode(batch.get("id")[batch.get("seq") == i]) for i in range(2)]
    assert (texts, learned) == (["q?<answer> ", "q?x"], ["<answer> ", "x"])
    assert batch.loss_streams == ("hint",) and batch.get("share", "seq").tolist() == pytest.approx([1 / 3, 1 / 3])
    assert center(reward=batch.get("reward", "seq"), group=batch.get("group", "seq"))["adv"].values.tolist() == [
        0.0,
        0.0,
    ]


def test_the_probability_of_a_hint_counts_by_its_share_of_the_rollouts():
    # hints of two tokens of p 1/2 and 1/4, and of one of 1/5; shares 1/2 and 1/4; limit 10, gamma 0.001:
    # loss = -0.001 (1/2 1/8 + 1/4 1/5) / 10, and d p / d logp = p
    imitation = of("seele", limit=10).stage.updates[0].terms[1]
    assert imitation.coef == 0.001 and imitation.on == ("hint",)
    logp = torch.tensor([0.5, 0.25, 0.2], dtype=torch.float64).log().requires_grad_()
    assert imitation.loss_weights is not None
    length = np.array([2, 1])
    w = length * imitation.loss_weights(length=length, share=np.array([0.5, 0.25]))
    loss = imitation.coef * (torch.from_numpy(w) * imitation.fn(logp=logp, seq=torch.tensor([0, 0, 1]))).sum()
    loss.backward()
    assert loss.item() == pytest.approx(-0.001 * (1 / 16 + 1 / 20) / 10)
    assert logp.grad is not None and logp.grad.tolist() == pytest.approx([-6.25e-6, -6.25e-6, -5e-6])


def test_advantages_are_centred_over_a_constant_length_and_without_hints_it_is_dr_grpo():
    same(of("seele"), of("dr_grpo"))
    same(of("seele", gamma=0.0), of("dr_grpo"))
    assert len(of("seele", gamma=0.0).stage.updates[0].terms) == 1


def test_a_hint_moves_the_policy_by_gamma_alone():
    """Two equal rewards: no advantage, so that the gradient is the imitation term's."""
    groups = []
    for n, key in enumerate(KEYS[:2]):
        tree = Tree()
        hint = tree.add(tree.add(-1, (1, 2, 3)), (4, 5 + n), span="hint")
        leaf = tree.add(hint, (7,), action_mask=True, logp=[-3.0], version=0, sampling=Sampling())
        at = Ref(f"train/0/0/{key}/0", leaf)
        episode = Episode(at.episode, tree, [Trajectory(at, "policy", key)])
        groups.append(RolloutGroup(RolloutRequest(Task(key, "p"), 1), [episode], {"reward": {at: Score(1.0)}}, key))
    chances = [math.exp(plain_logp([1, 2, 3, 4, 5 + n])[2:].sum()) for n in range(2)]
    study = Study(of("seele", limit=10, gamma=0.5), groups)
    # shares of 1/2
    assert study.metrics["policy/loss/hint_probability"] == pytest.approx(-0.5 * np.mean(chances) / 10)
    assert study.metrics["policy/hint_probability"] == pytest.approx(np.mean(chances))
    assert max(float(g.abs().max()) for g in study.gradient.values()) > 0


def test_a_hint_may_begin_the_answer(letters):
    context = scripted_context(single(), ["12</answer>"], letters)
    (group,) = asyncio.run(play(context, [RolloutRequest(Task("t", "q?"), 1, help={"hint": "<answer> "})]))
    assert group.episodes[0].answer == "12"


def test_a_visit_has_four_rounds_from_the_longest_hint_on_unless_told_otherwise():
    select, state, back = responsive_hints(), {"next": 0, "rates": {}}, []
    sizes = []
    for _ in range(5):
        requests, state, _ = asked(select, back, state, n=1, rollouts=10)
        if not requests:
            break
        sizes.append(requests[0].n)
        back.append([answered(requests[0], [0.0] * requests[0].n, key="k")])
    assert sizes == [3, 3, 2, 2] and back[0][0].request.help["rate"] == 0.95  # ten rollouts in four rounds
    assert state["next"] == 1 and state["rates"] == {back[0][0].request.task.id: 0.95}  # nothing right: the highest
    first = first_task_index(0)
    requests, _, _ = asked(select, [], {"next": 0, "rates": {}}, n=256, rollouts=1)
    assert {r.task.id for r in requests} == {f"t{first + i}" for i in range(256)}
    # the same question again in the next epoch, at the rate that its last visit ended with
    (request,), _, _ = asked(responsive_hints(size=1), [], {"next": 1, "rates": {f"t{first}": 0.25}}, n=1, rollouts=4)
    assert (request.help["rate"], request.n) == (0.25, 1)
