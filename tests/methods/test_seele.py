"""SEELE: the item-response curve by hand, its fit, and the hint rates that follow from it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.curriculum import Metrics, answered, asked
from support.episodes import scripted_context

from selfteach.core import RolloutGroup, RolloutRequest, Task
from selfteach.curriculum.select import first_task_index
from selfteach.loop.episode import play
from selfteach.methods.seele import Curve, fit, prefix, responsive_hints
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
    points = [(rate, truth(rate), 50) for rate in np.linspace(0.0, 1.0, 11)]
    assert fit(points).inverse(0.5) == pytest.approx(truth.inverse(0.5), abs=0.02)


def test_few_points_give_the_direction_of_the_next_rate():
    nothing_right, all_right = fit([(0.2, 0.0, 4)]).inverse(0.5), fit([(0.2, 1.0, 4)]).inverse(0.5)
    assert nothing_right > 0.4 and all_right < 0.1
    assert fit([(0.2, 0.0, 4), (0.6, 1.0, 4)]).inverse(0.5) == pytest.approx(0.4, abs=0.05)


def test_a_prefix_is_cut_between_words():
    text = "<think> 1 + 1 = 2. 2 + 5 = 7.</think><answer> 7</answer>"
    assert (
        prefix(text, 0.0) == ""
        and prefix(text, 0.5) == "<think> 1 + 1 = 2."
        and prefix(text, 1.0) == text.removesuffix(" 7</answer>")
    )


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
    assert rates[0][0] == 0.0 and len(rates[0]) == 4
    assert abs(rates[0][-1] - 0.6) < 0.2 and all(abs(r - 0.6) < 0.25 for r in rates[-1]), rates
    assert rates[1][0] > 0.3, "a visit begins where the last one ended"
    assert metrics[0]["hint"] == pytest.approx(np.mean(rates[0])) and metrics[0]["ends"] == pytest.approx(rates[0][-1])
    assert visits(lambda rate: 1.0, rounds=4, steps=1)[0] == [[0.0] * 4], "no hint where all answers are right"
    assert visits(lambda rate: 0.0, rounds=8, steps=2)[0][-1][-1] == 0.95
    assert visits(lambda rate: 0.0, rounds=8, steps=2, highest=0.4)[0][-1][-1] == 0.4
    # nine of ten are right at 0.6 + log(9) / 12 = 0.78
    assert abs(visits(Curve(12.0, 0.6, 0.0), rounds=4, steps=4, target=0.9)[0][-1][-1] - 0.78) < 0.1
    assert visits(lambda rate: 1.0, rounds=4, steps=2, fixed=0.5)[0] == [[0.5], [0.5]]


def test_a_hint_may_begin_the_answer(letters):
    context = scripted_context(single(), ["12</answer>"], letters)
    (group,) = asyncio.run(play(context, [RolloutRequest(Task("t", "q?"), 1, help={"hint": "<answer> "})]))
    assert group.episodes[0].answer == "12"


def test_a_visit_has_four_rounds_from_no_hint_on_unless_told_otherwise():
    select, state, back = responsive_hints(), {"next": 0, "rates": {}}, []
    sizes = []
    for _ in range(5):
        requests, state, _ = asked(select, back, state, n=1, rollouts=10)
        if not requests:
            break
        sizes.append(requests[0].n)
        back.append([answered(requests[0], [0.0] * requests[0].n, key="k")])
    assert sizes == [3, 3, 2, 2] and back[0][0].request.help["rate"] == 0.0  # ten rollouts in four rounds
    assert state["next"] == 1 and state["rates"] == {back[0][0].request.task.id: 0.95}  # nothing right: the highest
    first = first_task_index(0)
    requests, _, _ = asked(select, [], {"next": 0, "rates": {}}, n=256, rollouts=1)
    assert {r.task.id for r in requests} == {f"t{first + i}" for i in range(256)}
    # the same question again in the next epoch, at the rate that its last visit ended with
    (request,), _, _ = asked(responsive_hints(size=1), [], {"next": 1, "rates": {f"t{first}": 0.25}}, n=1, rollouts=4)
    assert (request.help["rate"], request.n) == (0.25, 1)
