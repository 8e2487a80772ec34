"""Efficiency Steering: the direction between the shortest and longest right answers, and what is sampled along it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.episodes import scripted_context
from support.short_run import short_job

from selfteach import api
from selfteach.core import RolloutGroup, RolloutRequest, Score, Task, block
from selfteach.core.blocks import shared_key
from selfteach.engine import BuiltinEngine
from selfteach.loop.episode import play
from selfteach.methods.efficiency_steering import DIRECTION, efficiency_steering, remember_direction, steered
from selfteach.model.tokenizer import Tokenizer
from selfteach.rollout.single import single


# Layer 0 of the residual stream counts the place of a token in its answer, layer 1 is the answer's number of tokens.
async def told(model_role: str, context: np.ndarray, tokens: np.ndarray, want: Any) -> dict[str, np.ndarray]:
    assert tuple(want) == ("residuals",)
    n = len(tokens)
    place = np.arange(n, dtype=np.float32)
    return {"residuals": np.stack([np.stack([place, 0 * place], 1), np.full((n, 2), n, np.float32)], 1)}


def groups_of(replies: list[list[str]], tags: Tokenizer) -> tuple[list[RolloutGroup], Any]:
    """A group of answers for each list of replies; the right answer is 7."""
    flat = [reply for one in replies for reply in one]
    context = scripted_context(single(), flat, tags)
    requests = [RolloutRequest(Task(f"t{i}", "q", "7"), len(one)) for i, one in enumerate(replies)]
    groups = asyncio.run(play(context, requests))
    context.engine.score = told  # type: ignore[union-attr, method-assign]
    return groups, context


def test_the_direction_is_the_mean_difference_of_the_shortest_and_the_longest_right_answer(tags: Tokenizer) -> None:
    answer = "<answer> 7 </answer>"
    replies = [
        ["a a a a " + answer, answer, "a a " + answer, "<answer> 8 </answer>"],
        ["a " + answer, answer, "a a a a a a a a <answer> 9 </answer>", "<answer> 9 </answer>"],
        [answer, answer, "a <answer> 8 </answer>", "a <answer> 8 </answer>"],  # right ones of one length: nothing
        ["a " + answer, "<answer> 8 </answer>", "<answer> 8 </answer>", "<answer> 8 </answer>"],  # one right: nothing
    ]
    groups, context = groups_of(replies, tags)
    state: dict[str, Any] = {"sum": None, "questions": 0}
    scores, after = asyncio.run(remember_direction()(groups=groups, context=context, deadline=9.0, state=state))
    sizes = {e.trajectories[0].leaf: int(e.cost["tokens"]) for g in groups for e in g.episodes}
    found = [[sizes[e.trajectories[0].leaf] for e in g.episodes] for g in groups]
    long, short, other = found[0][0], found[0][1], found[1][0]
    assert short == found[1][1] < other < long
    # Places 0 to n - 1 have the mean (n - 1) / 2. The sum over both questions that have two lengths of right answers,
    # of the shortest less the longest; the wrong answers, longer and shorter, count for nothing.
    first = (short - long) / 2 + (short - other) / 2
    second = (short - long) + (short - other)
    assert after["questions"] == 2
    np.testing.assert_allclose(after["sum"], [[first, 0.0], [second, second]])
    assert [s.value for s in scores["reward"].values()].count(1.0) == 8

    _, twice = asyncio.run(remember_direction()(groups=groups, context=context, deadline=9.0, state=after))
    assert twice["questions"] == 4
    np.testing.assert_allclose(twice["sum"], 2 * np.asarray(after["sum"]))


@pytest.mark.parametrize(
    ("program", "vector"),
    [
        # the sum over 2 questions is (6, 8) after layer 1, so that v is (3, 4), of length 5
        (steered(scale=2.0, depth=1.0), (6.0, 8.0)),
        (steered(scale=0.5, depth=1.0), (1.5, 2.0)),
        (steered(scale=2.0, depth=1.0, reverse=True), (-6.0, -8.0)),
        (steered(scale=2.0, depth=0.5), (-2.0, 0.0)),  # of layer 0: (-2, 0) / 2
    ],
)
def test_a_turn_is_sampled_with_the_stored_direction(
    program: Any, vector: tuple[float, float], tags: Tokenizer
) -> None:
    stored = {shared_key(DIRECTION): {"sum": np.array([[-2.0, 0.0], [6.0, 8.0]]), "questions": 2}}
    context = scripted_context(program, ["<answer> 7 </answer>"], tags, stored=stored)
    (group,) = asyncio.run(play(context, [RolloutRequest(Task("t", "q", "7"))]))
    steering = context.engine.calls[0][2].steering  # type: ignore[union-attr]
    assert (steering.layer, steering.vector) == (int(program.hyper_parameters["depth"] == 1.0), vector)
    assert group.episodes[0].answer == "7"


def test_the_random_direction_is_as_long_and_the_same_everywhere(tags: Tokenizer) -> None:
    stored = {shared_key(DIRECTION): {"sum": np.array([[0.0, 0.0], [6.0, 8.0]]), "questions": 2}}
    context = scripted_context(steered(scale=2.0, depth=1.0, random=True), ["<answer>"], tags, stored=stored)
    asyncio.run(play(context, [RolloutRequest(Task(name, "q", "7"), 2) for name in "ab"]))
    vectors = {call[2].steering.vector for call in context.engine.calls}  # type: ignore[union-attr]
    assert len(vectors) == 1
    (vector,) = vectors
    assert np.linalg.norm(vector) == pytest.approx(10.0) and abs(np.dot(vector, (0.6, 0.8))) < 9.999


def test_before_there_is_a_direction_a_turn_is_as_any_other(tags: Tokenizer) -> None:
    context = scripted_context(steered(stop=("</answer>",), model_role="policy"), ["<answer> 7 </answer>"], tags)
    asyncio.run(play(context, [RolloutRequest(Task("t", "q", "7"))]))
    assert context.engine.calls[0][2].steering is None  # type: ignore[union-attr]


def test_what_programs_sample_along() -> None:
    made = efficiency_steering(scale=3.0, depth=0.75, tasks=40, groups=2)
    scales = {n: p.hyper_parameters["scale"] for n, p in made.decode.items() if n != "main"}
    assert scales == {"half": 1.5, "shorter": 3.0, "double": 6.0, "longer": 3.0, "random": 3.0}
    assert made.decode["longer"].hyper_parameters["reverse"] and made.decode["random"].hyper_parameters["random"]
    assert {p.hyper_parameters["depth"] for n, p in made.decode.items() if n != "main"} == {0.75}
    measured = made.stages[0]
    assert (measured.groups, measured.until, measured.updates) == (16, 3, ())  # 40 questions, 16 at once


def test_the_direction_is_in_the_checkpoint_and_a_finished_run_is_evaluated_along_it(
    tmp_path: Path, small_start: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    short = short_job("efficiency_steering", small_start)
    # long enough that answers to one question differ in length
    settings = replace(short.settings, max_tokens=48)
    anything = replace(short, method=short.method.with_reward(steering_all_right()), settings=settings)
    run = api.train(anything, tmp_path / "run")
    drawn, generate = list[Any](), BuiltinEngine.generate

    async def counted(self: Any, role: str, context: Any, sampling: Any, key: int, *more: Any) -> Any:
        drawn.append(sampling.steering)
        return await generate(self, role, context, sampling, key, *more)

    monkeypatch.setattr(BuiltinEngine, "generate", counted)
    figures = api.evaluate(run.folder, decoder="shorter")
    assert "length+shorter" in figures
    steered_by = {s for s in drawn if s is not None}
    assert len(steered_by) == 1 and np.any(steered_by.pop().vector)


@block
def steering_all_right(*, answer: Any) -> Score:
    """All is right."""
    return Score(1.0)
