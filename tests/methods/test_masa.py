"""MASA by hand: what a forecast says, how well it foresaw, and which questions need not be solved."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from support.answers import answered, answered_group
from support.battery import of
from support.episodes import scripted_context

from selfteach.core import RolloutRequest, Task
from selfteach.core.blocks import initial_state
from selfteach.core.scoring import score
from selfteach.loop.episode import play
from selfteach.methods.masa import aligned_forecasts, alignment, forecast, foresee, foretold, singular, solve_within

SOLUTIONS = [(True, 20, "by sums"), (True, 40, "a sum"), (True, 30, "a list"), (False, 90, "a list of lists")]


def test_what_a_forecast_says():
    whole = '{"pass_rate": 6, "solution_length": 25, "math_notion": "sums, lists"}'
    assert forecast(f"so: {whole}") == {"pass_rate": 6, "solution_length": 25, "math_notion": ["sums", " lists"]}
    assert forecast("6") == {"pass_rate": 6} and forecast(None) == forecast("[6]") == forecast("{6}") == {}
    assert forecast('{"pass_rate": true, "solution_length": -1, "math_notion": [1]}') == {}
    assert [singular(w) for w in ("Sums ", "classes", "matches", "it")] == ["Sum", "classe", "match", "it"]


def test_how_well_it_foresaw():
    # three of four are right: 6 of 8 is exact, 4 of 8 is a quarter off: 0.01^(1/4)
    assert alignment({"pass_rate": 6}, SOLUTIONS, "q", 8)["foreseen"] == 1.0
    assert alignment({"pass_rate": 4}, SOLUTIONS, "q", 8)["foreseen"] == pytest.approx(0.01**0.25)
    assert alignment({"pass_rate": 3}, SOLUTIONS, "q", 4)["foreseen"] == 1.0
    # between the shortest and the longest right one, these left out
    lengths = {n: alignment({"solution_length": n}, SOLUTIONS, "q", 8)["foreseen_length"] for n in (20, 25, 40, 90)}
    assert lengths == {20: 0.0, 25: 1.0, 40: 0.0, 90: 0.0}
    assert alignment({"solution_length": 25}, SOLUTIONS[3:], "q", 8)["foreseen_length"] == 0.0
    # sum is in two right solutions; list in one right and one wrong; what is in the question does not count
    notions = alignment({"math_notion": ["sums", "lists", "add"]}, SOLUTIONS, "add 2 3", 8)["foreseen_notions"]
    assert notions == 0.5
    again = alignment({"math_notion": ["sums", "sum", "Sums", "lists"]}, SOLUTIONS, "q", 8)["foreseen_notions"]
    assert again == pytest.approx(1 / 3), "sum once, in its own case: Sum is in no solution"
    assert alignment({}, SOLUTIONS, "q", 8) == {"foreseen": 0.0, "foreseen_length": 0.0, "foreseen_notions": 0.0}


def test_forecasts_are_rewarded_by_the_solutions_of_their_question(letters):
    texts = ["<answer>7</answer>", *["<answer>5</answer>"] * 3]
    solved, context, _ = answered_group(texts, "7", letters, lambda text: [0.0])
    foreseeing, *_ = answered_group(["<answer>2</answer>", "<answer>4</answer>"], "7", letters, lambda text: [0.0])
    for episode in foreseeing.episodes:
        episode.id = f"f{episode.id}"
        episode.trajectories = [replace(t, leaf=t.leaf._replace(episode=episode.id)) for t in episode.trajectories]
        context.trees[episode.id] = episode.tree
    foreseeing = foreseeing._replace(request=replace(foreseeing.request, program="foresee"), key="f")
    found = asyncio.run(score(aligned_forecasts(attempts=8), [foreseeing, solved], context, 5.0))["reward"]
    of_episode = {at.episode: s for at, s in found.items()}
    assert (of_episode["e0"].value, of_episode["e1"].value) == (1.0, 0.0)
    # one of four is right: 2 of 8 is exact, 4 of 8 is a quarter off
    assert of_episode["fe0"].value == pytest.approx(1 / 3)
    assert of_episode["fe1"].value == pytest.approx(0.01**0.25 / 3)
    assert of_episode["fe0"].parts["foreseen"] == 1.0
    # a question that was not solved says nothing of its forecasts
    alone = asyncio.run(score(aligned_forecasts(), [foreseeing], context, 5.0))["reward"]
    assert [s.value for s in alone.values()] == [0.0, 0.0]


def select(finished: Any, state: Any = None, **how: Any) -> tuple[Any, Any, dict[str, float]]:
    part, metrics = foretold(**how), dict[str, float]()
    source = type("Source", (), {"train": staticmethod(lambda i: Task(f"t{i}", "q", "7"))})
    given = {"n": 3, "rollouts": 5, "finished_rounds": finished, "source": source, "seed": 0}
    requests, after = part(**given, log_metrics=metrics.update, state=state or initial_state(part))
    return requests, after, metrics


def test_what_is_foreseen_to_be_trivial_or_hopeless_is_not_solved():
    requests, state, _ = select([], forecasts=2)
    assert [(r.n, r.program) for r in requests] == [(2, "foresee")] * 3 and state == {"asked": 3, "steps": 0}
    tasks = [r.task for r in requests]
    # of 8: 0 and 0, 8 and 8, 2 and 6; a fourth says nothing
    said = [["0", "0"], ["8", "8"], ["2", "6"], ["x", "y"]]
    groups = [
        group._replace(request=replace(group.request, task=task))
        for group, task in zip([answered(a, "7") for a in said], [*tasks, Task("t9", "q")], strict=True)
    ]
    early, _, metrics = select([groups], state, gate_from=1)
    assert [r.task.id for r in early] == [t.id for t in tasks] + ["t9"] and metrics == {"gated": 0.0, "foreseen": 0.5}
    later, _, metrics = select([groups], {**state, "steps": 1}, gate_from=1)
    assert [r.task.id for r in later] == [tasks[2].id, "t9"] and [r.n for r in later] == [5, 5]
    assert metrics == {"gated": 0.5, "foreseen": 0.5}
    one, _, _ = select([groups[:2]], {**state, "steps": 1}, gate_from=1)
    assert len(one) == 1  # something is solved in every step
    # the bounds: 0 is above -1, and 1/2 is not above 1/2
    wide, _, _ = select([groups[:3]], {**state, "steps": 1}, gate_from=1, gate_low=-1.0, gate_high=0.5)
    assert [r.task.id for r in wide] == [tasks[0].id]
    assert (
        select([groups[1:2]], {**state, "steps": 1}, gate_from=1, attempts=16)[0][0].task.id == tasks[1].id
    )  # 8 of 16
    assert select([groups, []], state)[:2] == ([], {"asked": 3, "steps": 1})


def test_a_solution_is_cut_at_twice_the_foreseen_length(letters):
    group = answered(['{"solution_length": 3}', '{"solution_length": 6}', "no"], "7")
    (request,), _, _ = select([[group]])
    assert request.help == {"limit": 9} and not select([[group]], cutoff=None)[0][0].help
    context = scripted_context(solve_within(), lambda text, key: "<answer>7</answer>", letters)
    episodes = asyncio.run(
        play(context, [RolloutRequest(Task("t", "Q:"), 1, help={"limit": 9}), RolloutRequest(Task("t", "Q:"), 1)])
    )
    lengths = [int(g.episodes[0].tree.action_mask.sum()) for g in episodes]
    assert lengths[0] == 9 < lengths[1]


def test_the_instruction_comes_before_the_question(letters):
    seen = []
    context = scripted_context(
        foresee(instruction="How?"), lambda text, key: seen.append(text) or "<answer> 5</answer>", letters
    )
    (group,) = asyncio.run(play(context, [RolloutRequest(Task("t", "Q:"), 1)]))
    assert seen == ["How?\nQ:"] and group.episodes[0].answer == "5"


def test_without_forecasts_it_is_grpo():
    assert of("masa", forecasts=0, beta=0.1).stage == of("grpo", beta=0.1).stage
    assert of("masa", forecasts=2).stage.select.args["forecasts"] == 2
