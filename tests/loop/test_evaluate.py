"""Failures in evaluation never become figures: whatever raises, hangs or gives nothing is counted, and bounded."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.episodes import scripted_context
from support.models import TAGS
from support.raised import IDS, RAISED
from support.runs import run_config_of

from selfteach import api, preparation
from selfteach.api import run
from selfteach.core import Block, Task, registry
from selfteach.core.errors import ScoringFailed
from selfteach.loop.evaluate import Result, evaluate
from selfteach.loop.log import read_events
from selfteach.model.tokenizer import train_tokenizer
from selfteach.rollout.search import search_agent

TASKS = [Task(str(n), str(n), "a") for n in range(10)]
LETTERS = train_tokenizer(["ab"], TAGS, 256 + len(TAGS) + 1)


async def asks_a_tool(*, request: Any, rollout: Any) -> str:
    context = rollout.policy.begin(request.task.prompt)
    turn = await context.sample(stop=("</answer>",))
    context.close()
    return await rollout.tool("oracle")((request.task.id, turn.text))


def right(*, answer: Any, task: Task) -> float:
    return float(answer == task.answer[0])


def measured(tool: Callable[[Any], Any] = lambda asked: "a", judge: Callable[..., Any] = right, **more: Any) -> Result:
    context = scripted_context(
        Block(asks_a_tool), lambda text, rng_key: "<answer>a</answer>", LETTERS, tools={"oracle": tool}
    )
    return asyncio.run(evaluate(context, TASKS, Block(judge), **more))


def fails_at(places: set[str], error: BaseException) -> Callable[[str], None]:
    def fail(place: str) -> None:
        if place in places:
            raise error

    return fail


@pytest.mark.parametrize("error", RAISED, ids=IDS)
@pytest.mark.parametrize("where", ["tool", "judge", "async judge", "group judge"])
def test_what_raises_is_counted_and_no_figure(where: str, error: BaseException) -> None:
    """Two of ten raise: accuracy is that of the other eight, and both are counted with their reason."""
    fail = fails_at({"2", "7"}, error)

    def tool(asked: Any) -> str:
        fail(asked[0] if where == "tool" else "")
        return "a"

    def judge(*, answer: Any, task: Task) -> float:
        fail(task.id)
        return right(answer=answer, task=task)

    async def later(*, answer: Any, task: Task) -> float:
        return judge(answer=answer, task=task)

    def of_groups(*, group: Any) -> Any:
        fail(group.request.task.id)
        return {"reward": {t.leaf: 1.0 for e in group.episodes for t in e.trajectories}}

    judges = {"tool": right, "judge": judge, "async judge": later, "group judge": of_groups}
    result = measured(tool, judges[where], max_unscored=0.2)
    assert result.accuracy == 1.0 and sum(result.scored) == 8
    assert (result.failed, result.unscored) == ((2, 0) if where == "tool" else (0, 2))
    assert len(result.failures) == 2 and all(type(error).__name__ in why for why in result.failures)
    figures = result.figures()
    assert figures["failed"] + figures["unscored"] == 2 and result.counts() == "11-1111-11"
    with pytest.raises(ScoringFailed) as caught:
        measured(tool, judges[where], max_unscored=0.19)
    assert "cannot be believed" in str(caught.value) and type(error).__name__ in str(caught.value)


@pytest.mark.parametrize("gives", [None, math.nan, "yes", [1, 2], object()], ids=lambda g: type(g).__name__)
def test_a_judge_that_gives_nonsense_has_no_score(gives: Any) -> None:
    def judge(*, answer: Any) -> Any:
        return gives

    result = measured(judge=judge)
    assert result.unscored == 10 and math.isnan(result.accuracy) and len(result.failures) == 5
    assert all(": " in why for why in result.failures)


def test_a_judge_that_hangs_has_no_score() -> None:
    def judge(*, answer: Any, task: Task) -> float:
        time.sleep(20 if task.id == "3" else 0)
        return 1.0

    started = time.monotonic()
    result = measured(judge=judge, reward_seconds=0.3, max_unscored=0.1)
    assert result.unscored == 1 and "no score within 0.3 s" in result.failures[0] and time.monotonic() - started < 10


def test_it_ends_as_soon_as_it_cannot_be_believed() -> None:
    asked: list[Any] = []

    def tool(query: Any) -> str:
        asked.append(query)
        raise ValueError("no")

    with pytest.raises(ScoringFailed, match="of 10 episodes 2 failed") as caught:
        measured(tool, wave=2, max_unscored=0.1)
    assert len(asked) == 2 and str(caught.value).count("ValueError: no") == 2


@pytest.mark.parametrize("when", ["start", "step 2"])
def test_a_run_stops_where_an_evaluation_cannot_be_believed_and_goes_on_once_it_can(
    when: str, tmp_path: Path, mini_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = [when == "start"]

    def judge(*, answer: Any) -> float:
        if broken[0]:
            raise ValueError("the judge is down")
        return 1.0

    def observe(event: Any) -> None:
        if event["event"] == "step" and event["step"] == 1 and when != "start":
            broken[0] = True

    source = registry.tasks.get("bandit")()
    with_judge = replace(source, defaults={**source.defaults, "judge": Block(judge)})
    monkeypatch.setattr(preparation, "task_source", lambda *_: with_judge)
    run_config = run_config_of(mini_folder, steps=4, eval_every=2, checkpoint_every=1)
    with pytest.raises(ScoringFailed, match="the judge is down"):
        api.train(run_config, tmp_path / "run", observe)
    unwanted = "step" if when == "start" else "eval"
    assert not [e for e in read_events(tmp_path / "run" / "log") if e["event"] == unwanted]
    broken[0] = False
    monkeypatch.setattr(run, "run_config_of", lambda *_: run_config)
    assert api.resume(tmp_path / "run").done
    events = read_events(tmp_path / "run" / "log")
    assert [e["step"] for e in events if e["event"] == "step"] == [0, 1, 2, 3]
    assert [(e["step"], e["failed"], e["unscored"]) for e in events if e["event"] == "eval"] == [(2, 0, 0)]
    figures = json.loads((tmp_path / "run" / "figures.json").read_text())
    assert figures["after"]["failed"] == figures["after"]["unscored"] == 0


@pytest.mark.parametrize(
    "known,asks,found,expected",
    [
        (True, True, "it is a.", {"search/needless": 1.0, "search/missed": 0.0, "search/recall": 1.0}),
        (False, True, "no.", {"search/needless": 0.0, "search/missed": 0.0, "search/recall": 0.0}),
        (False, False, "", {}),  # nobody asked anything
    ],
)
def test_what_searches_were_worth(known: bool, asks: bool, found: str, expected: dict[str, float]) -> None:
    tasks = [Task(str(n), "q", "a", tags={"known": known, "chain": ("it is a.",)}) for n in range(2)]
    replies = ["<search>x</search>", "<answer>a</answer>"] * 2 if asks else ["<answer>a</answer>"] * 2
    context = scripted_context(
        search_agent(), replies, LETTERS, tools={"search": lambda query: found}, max_concurrent=1
    )
    assert asyncio.run(evaluate(context, tasks, Block(right))).searches == expected


def is_the_gold(*, answer: Any, task: Any) -> float:
    return float(answer in task.answer)


def test_answers_by_their_number_of_calls_and_the_words_that_they_share():
    """Asked once and right, asked once and half right, not asked and wrong."""
    tasks = [Task(str(n), "q", ("x y",), tags={"known": True}) for n in range(3)]
    replies = ["<search>x</search>", "<answer>x y</answer>", "<search>x</search>", "<answer>x c</answer>"]
    context = scripted_context(
        search_agent(), [*replies, "<answer>c</answer>"], LETTERS, tools={"search": lambda query: ""}, max_concurrent=1
    )
    result = asyncio.run(evaluate(context, tasks, Block(is_the_gold)))
    figures = result.figures(by_calls=True)
    by_calls = {"accuracy/calls=0": 0.0, "share/calls=0": 1 / 3, "accuracy/calls=1": 0.5, "share/calls=1": 2 / 3}
    assert {n: v for n, v in figures.items() if "calls=" in n} == by_calls
    # all words, one of two on both sides, none: (1 + 1/2 + 0) / 3
    assert figures["f1"] == pytest.approx(0.5) and not [n for n in result.figures() if "calls=" in n]
