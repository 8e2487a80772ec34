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

from selfteach import api, evaluation, preparation
from selfteach.api import run
from selfteach.configuration import plan
from selfteach.core import Block, Task, TaskSource, registry
from selfteach.core.errors import BadValue, ScoringFailed
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


async def asks_and_answers_itself(*, request: Any, rollout: Any) -> str:
    """A tool's answer, then a turn whose own <information> is marked as such."""
    context = rollout.policy.begin(request.task.prompt)
    context.append(f"<information>{await rollout.tool('search')('x')}</information>", span="information")
    turn = await context.sample(stop=("</answer>",))
    context.mark(turn, "information")
    context.close()
    return "a"


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
        (
            True,
            True,
            "it is a.",
            {"search/needless": 1.0, "search/missed": 0.0, "search/recall": 1.0}
            | {"search/decision_recall": 0.0, "search/decision_f1": 0.0},
        ),
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


async def evaluated(tasks: list[Task], replies: list[str], found: str = "", program: Any = None, **more: Any) -> Result:
    tools = {"search": lambda query: found}
    context = scripted_context(program or search_agent(), replies, LETTERS, tools=tools, max_concurrent=1)
    return await evaluate(context, tasks, Block(right), **more)


SEARCHES, ANSWERS = "<search>x</search>", "<answer>a</answer>"


def test_the_decision_to_search_is_measured_where_memory_suffices() -> None:
    """Held and not asked, held and asked, not held and not asked, not held and asked twice."""
    tasks = [Task(str(n), "q", "a", tags={"known": n < 2}) for n in range(5)]
    replies = [ANSWERS, SEARCHES, ANSWERS, ANSWERS, *(SEARCHES, ANSWERS) * 2]
    figures = asyncio.run(evaluated(tasks, replies)).figures()
    # 1 of 2 answers without a search is held, 1 of 2 that are held was given without one; 2 * 1 / (2 + 2)
    assert {n: figures[f"search/decision_{n}"] for n in ("precision", "recall", "f1")} == {
        "precision": 0.5,
        "recall": 0.5,
        "f1": 0.5,
    }
    assert figures["search/needless"] == figures["search/missed"] == 0.2


def test_who_always_searches_has_a_decision_f1_of_0_and_no_precision() -> None:
    tasks = [Task(str(n), "q", "a", tags={"known": n < 1}) for n in range(2)]
    searches = asyncio.run(evaluated(tasks, [SEARCHES, ANSWERS] * 2)).searches
    assert {n: v for n, v in searches.items() if "decision" in n} == {
        "search/decision_recall": 0.0,
        "search/decision_f1": 0.0,
    }


@pytest.mark.parametrize(
    "program,replies",
    [
        (search_agent(), ["<search>x</search>", "<information>it is a.</information><answer>a</answer>"]),
        (search_agent(), ["<information>it is a.</information><search>x</search>", "<answer>a</answer>"]),
        (Block(asks_and_answers_itself), ["<information>it is a.</information><answer>a</answer>"]),
    ],
)
@pytest.mark.parametrize("found,recall", [("no.", 0.0), ("it is a.", 1.0)])
def test_what_the_policy_writes_itself_was_not_found(
    program: Any, replies: list[str], found: str, recall: float
) -> None:
    """Whether it writes it in its own turns, or where its program marks what it writes as information."""
    task = Task("0", "q", "a", tags={"chain": ("it is a.",)})
    assert asyncio.run(evaluated([task], replies, found, program)).searches == {"search/recall": recall}


def test_results_that_are_learned_too_were_found() -> None:
    task = Task("0", "q", "a", tags={"chain": ("it is a.",)})
    result = asyncio.run(evaluated([task], [SEARCHES, ANSWERS], "it is a.", search_agent(teach=True)))
    assert result.searches == {"search/recall": 1.0}


def test_citations_are_judged_in_answers_that_cite() -> None:
    """Two pages, of which one stands behind the answer; a page of which nothing was found; none."""
    facts = ("the home of Ann is Ulm.", "the mayor of Ulm is Bob.")
    tasks = [Task(str(n), "q", "a", tags={"chain": facts}) for n in range(3)]
    cites = [f"{c}{ANSWERS}" for c in ("<cite>Ann, Cid</cite>", "<cite>Bob</cite>", "")]
    replies = [reply for c in cites for reply in (SEARCHES, c)]
    assert asyncio.run(evaluated(tasks, replies, facts[0])).searches == {
        "search/citation_precision": 0.25,  # (1/2 + 0) / 2
        "search/recall": 0.5,
    }


def is_the_gold(*, answer: Any, task: Any) -> float:
    return float(answer in task.answer)


def test_answers_by_their_number_of_calls_and_the_words_that_they_share():
    """Asked once and right, asked once and half right, not asked and wrong."""
    tasks = [Task(str(n), "q", ("x y",)) for n in range(3)]
    replies = ["<search>x</search>", "<answer>x y</answer>", "<search>x</search>", "<answer>x c</answer>"]
    context = scripted_context(
        search_agent(), [*replies, "<answer>c</answer>"], LETTERS, tools={"search": lambda query: ""}, max_concurrent=1
    )
    result = asyncio.run(evaluate(context, tasks, Block(is_the_gold), words=True))
    figures = result.figures(by_calls=True)
    by_calls = {"accuracy/calls=0": 0.0, "share/calls=0": 1 / 3, "accuracy/calls=1": 0.5, "share/calls=1": 2 / 3}
    assert {n: v for n, v in figures.items() if "calls=" in n} == by_calls
    # all words, one of two on both sides, none: (1 + 1/2 + 0) / 3
    assert figures["f1"] == pytest.approx(0.5) and not [n for n in result.figures() if "calls=" in n]


@pytest.mark.parametrize("words,answer,f1", [(True, "b", 1.0), (False, "b", None), (True, None, None)])
def test_f1_is_taken_where_answers_are_words_and_there_are_gold_ones(
    words: bool, answer: str | None, f1: float | None
) -> None:
    judge = None if answer is None else Block(right)
    context = scripted_context(search_agent(), ["<answer>b</answer>"], LETTERS)
    result = asyncio.run(evaluate(context, [Task("0", "q", answer)], judge, words=words))
    assert result.figures().get("f1") == f1


FACTS = {"entities": 60, "relations": 4, "hops": (1,), "n_test": 8}
OTHER_FACTS = {**FACTS, "seed": 1}


@pytest.mark.parametrize(
    "model,warm_steps,task,options,says",
    [
        ("tiny-s", 1, None, None, True),
        ("tiny-s", 1, "factworld", FACTS, True),
        ("tiny-s", 1, "factworld", OTHER_FACTS, False),  # whose facts it was never shown
        ("tiny-s", 0, None, None, False),
        ("", 1, None, None, False),  # a model that brings its weights
    ],
)
def test_tasks_say_what_the_policy_holds_only_where_its_warm_start_was_on_their_demonstrations(
    model: str,
    warm_steps: int,
    task: str | None,
    options: Any,
    says: bool,
    small_start: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def tasks_of(session: Any, *_: Any) -> Any:
        source = session.loop.source
        return [t.tags for t in (*source.test, source.train(0))], source.defaults["words"]

    monkeypatch.setattr(evaluation, "_evaluated", tasks_of)
    given = model or str(small_start("factworld", FACTS))
    settings = {"warm_steps": warm_steps, "warm_batch": 2, "threads": 1}
    run_config = plan("search_r1", "factworld", FACTS, model=given, settings=settings)
    tags, words = evaluation.evaluate(run_config, task=task, task_options=options)
    assert {("known" in t, "chain" in t) for t in tags} == {(says, True)} and words


def test_greedy_answers_have_an_f1_too_and_the_task_s_engine_can_be_made_worse(small_start: Any) -> None:
    settings = {"max_tokens": 6, "threads": 1}
    model = str(small_start("factworld", FACTS))
    run_config = plan("search_r1", "factworld", FACTS, model=model, settings=settings)
    config = api.EvalConfig(tasks=2, k=0, decoder_samples=0, pass_at_k_tasks=0)
    figures = evaluation.evaluate(run_config, config, search={"search": {"perturbed": 1.0}})
    assert figures["f1_greedy"] == figures["greedy"] == 0.0 and "f1" not in figures
    with pytest.raises(BadValue, match="timeout is no option of the task's own engine"):
        evaluation.evaluate(run_config, config, search={"search": {"timeout": 1.0}})


def test_a_column_of_rows_is_left_to_them() -> None:
    source = TaskSource("t", lambda i: TASKS[i], [Task("0", "", tags={"known": 1})], columns=("known",))
    assert source.without_tag("known") is source
