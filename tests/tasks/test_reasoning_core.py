"""Reasoning Core's tasks: test and training share no question, levels are as asked, their own scorers judge."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from selfteach.cli import main
from selfteach.configuration import task_source
from selfteach.core import BadValue, Task, UnknownName
from selfteach.reward import reasoning_core as judges
from selfteach.reward.reasoning_core import harmless, reasoning_core_score
from selfteach.tasks import reasoning_core as tasks
from selfteach.tasks.reasoning_core import EXCLUDED, Items, make_items, roster


class Made:
    """In place of a process: items by rule, answers of one letter."""

    def __init__(self, wrong: int = 0) -> None:
        self.wrong, self.asked, self.stopped = wrong, list[dict[str, Any]](), 0

    def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        self.asked.append(request)
        if "names" in request:
            return {"names": '["arithmetics", "planning"]'}
        if "score" in request:
            return {"score": {"half": 0.5, "right": 1.0}.get(request["answer"], 0.0)}
        self.wrong -= 1
        return {"prompt": f"level {request['level']}", "answer": "x", "entry": "{}", "gold": float(self.wrong < 0)}

    def stop(self) -> None:
        self.stopped += 1


def item(level: int, prompt: str) -> dict[str, Any]:
    return {"level": level, "prompt": prompt, "answer": prompt[-1], "entry": "{}", "gold": 1.0, "missed": 0}


def test_an_item_whose_own_answer_is_not_right_is_made_anew(monkeypatch):
    process = Made(wrong=2)
    monkeypatch.setattr(tasks, "new_worker", lambda: process)
    first, second = make_items("arithmetics", [0, 3], [7, 8], 1)
    assert (first["missed"], second["missed"], second["prompt"]) == (2, 0, "level 3") and process.stopped == 1
    assert len({r["seed"] for r in process.asked}) == 4, "another seed each time"
    monkeypatch.setattr(tasks, "new_worker", lambda: Made(wrong=99))
    with pytest.raises(BadValue, match=r"planning cannot be made at level 2 .*gives its own answer 0"):
        make_items("planning", [2], [7], 1)


def test_no_question_of_the_test_is_trained_on_and_tasks_take_turns():
    made = {n: [item(i % 3, f"{n} {i % 9}") for i in range(12)] for n in ("a", "b")}
    source = Items(made, 5, reasoning_core_score(), 0.0).source()
    trained = [source.train(i) for i in range(60)]
    tested = {t.prompt for t in source.test}
    assert len(source.test) == len(tested) == 5 and not tested & {t.prompt for t in trained}
    assert [t.tags["dataset"] for t in trained[:4]] == ["a", "b", "a", "b"] and len({t.id for t in trained}) == 60
    assert Counter(t.tags["dataset"] for t in source.test) == {"a": 3, "b": 2}
    assert source.test[1].tags["difficulty"] == 1 and source.test[1].tags["category"] == "level 1"
    assert source.demos is not None and source.demos(3).data[0] == f"<answer> {trained[3].answer[0]}</answer>"
    noisy = Items(made, 5, reasoning_core_score(), 1.0).source().demos
    assert noisy is not None and {noisy(i).tags["slip"] for i in range(40)} == {"", "answer"}
    assert source.within is not None
    with pytest.raises(BadValue, match="a gave 0 different questions, no more than its 3"):
        source.within(2, len)
    with pytest.raises(BadValue, match="a gave 9 different questions"):
        Items(made, 18, reasoning_core_score(), 0.0).source()


def test_its_own_scorer_judges_and_a_scorer_that_is_late_is_killed(monkeypatch):
    monkeypatch.setattr(judges, "_scorer", process := Made())
    task = Task("t", "?", ("right",), tags={"dataset": "arithmetics", "entry": "{}"})
    got = {a: reasoning_core_score(answer=a, task=task).value for a in (" right\n", "half", "wrong", "", None)}
    assert list(got.values()) == [1.0, 0.0, 0.0, 0.0, 0.0] and process.asked[-1]["seconds"] == 20.0
    assert reasoning_core_score(answer="half", task=task, partial=True).value == 0.5
    assert [reasoning_core_score(answer="right", task=task, seconds=s).value for s in (3.0,)] == [1.0]
    assert process.asked[-1]["seconds"] == 3.0
    assert len(process.asked) == 5, "no answer is asked about nothing"


def test_of_a_scorer_that_evaluates_an_answer_only_plain_values_reach_it():
    for code in (
        "__import__('os')",
        "().__class__",
        "9**9**9",
        "U[n-1].x",
        "lambda: 1",
        "1" * 40,
        "(9**9)**9",
        "9**9 **9",
    ):
        assert not harmless("sequential_induction", code), code
    assert harmless("sequential_induction", "U[n] = 3*U[n - 1] - 2*n**2 + 4") and harmless(
        "planning", "anything (at) all"
    )


def test_tasks_that_are_left_out_are_refused_with_the_reason(monkeypatch):
    monkeypatch.setitem(EXCLUDED, "planning", "it is here for a test")
    process: Any = Made()
    assert roster(process, ()) == ["arithmetics"]
    with pytest.raises(BadValue, match="planning is left out, because it is here for a test"):
        roster(process, ("planning",))
    with pytest.raises(UnknownName, match="did you mean arithmetics"):
        roster(process, ("arithmetic",))


needs_package = pytest.mark.skipif(
    importlib.util.find_spec("reasoning_core") is None,
    reason="the extra selfteach[reasoning-core] is not installed",
)


@needs_package
def test_items_are_of_their_level_and_the_same_in_every_process(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("SELFTEACH_CACHE", str(tmp_path))
    options = {"tasks": ("arithmetics", "planning"), "levels": (0, 2), "items": 6, "n_test": 2, "workers": 2}
    made = tasks.reasoning_core(**options)
    assert len(list((tmp_path / "reasoning_core").glob("*.json"))) == 2
    assert {t.tags["difficulty"] for t in (made.train(i) for i in range(20))} <= {0, 1, 2}
    for one in made.test:
        assert reasoning_core_score(answer=one.answer[0], task=one).value == 1.0
        assert reasoning_core_score(answer="zzz", task=one).value == 0.0
    monkeypatch.setenv("SELFTEACH_CACHE", str(tmp_path / "other"))
    assert tasks.reasoning_core(**{**options, "workers": 1}).content == made.content


@needs_package
@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("tasks=arithmetic", "did you mean arithmetics"),
        ("tasks=arithmetics,arithmetics", "each once"),
        ("levels=(3,1)", "levels must be"),
        ("items=1", "items must be"),
    ],
)
def test_what_is_wrong_with_the_options_is_one_line(words, why, capsys):
    assert main(["train", "grpo", "--task", "reasoning_core", "--set", words]) == 2
    error = capsys.readouterr().err.strip()
    assert why in error and "\n" not in error


def test_a_missing_package_is_named_with_its_extra_by_the_task(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_core", None)
    with pytest.raises(BadValue, match=r"the package reasoning_core is not installed; .*selfteach\[reasoning-core\]"):
        task_source("reasoning_core", {"seed": 3})
