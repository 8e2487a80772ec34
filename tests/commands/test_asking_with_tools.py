"""generate and chat of a run that was trained with tools, and of any model with --tools."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.models import mini
from support.templates import TOKENIZERS

from selfteach.cli import main
from selfteach.commands import model_text
from selfteach.core.protocols import Completion
from selfteach.model import files

TOOLS = """
def add(a: int, b: int) -> int:
    \"\"\"Add two numbers.\"\"\"
    if a > 99:
        raise ValueError("too large")
    return a + b
"""


def call(a: Any, b: Any = 3) -> str:
    return f'<tool_call>{{"name": "add", "arguments": {{"a": {a}, "b": {b}}}}}</tool_call>'


ROWS = [
    {
        "prompt": f"{a} + {b} = ",
        "answer": str(a + b),
        "completion": f"{call(a, b)}<tool_response>{a + b}</tool_response>",
    }
    for a in range(4)
    for b in range(4)
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny run with a tool."""
    home = tmp_path_factory.mktemp("run")
    (home / "tools.py").write_text(TOOLS)
    (home / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    words = ["--data", str(home / "rows.jsonl"), "--tools", f"{home}/tools.py:add", "--model", "tiny-s", "--steps", "1"]
    words += ["--warm-steps", "2", "--final-eval-tasks", "1", "--final-eval-k", "0", "--eval-every", "0"]
    words += ["--groups", "2", "--rollouts", "2", "--threads", "1", "--out", str(home / "run")]
    assert main(["train", "grpo", *words]) == 0
    return home / "run"


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a chat template, and a file of tools beside it."""
    folder, tokenizer = tmp_path_factory.mktemp("talker"), TOKENIZERS["chatml"]
    files.save(folder, mini(-(-len(tokenizer) // 8) * 8, max_length=2048), tokenizer)
    (folder / "tools.py").write_text(TOOLS)
    return folder


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function of replies, which the loaded model then gives; returns the list of texts that it was given."""

    def script(*replies: str) -> list[str]:
        asked, left, load = list[str](), list(replies), model_text.load_model

        def loaded(given: Any, slots: int) -> Any:
            model: Any = load(given, slots)

            async def generate(role: str, ids: Any, sampling: Any, key: int, on_tokens: Any = None) -> Completion:
                asked.append(model.tokenizer.decode(ids))
                new = np.append(model.tokenizer.encode(left.pop(0)), model.tokenizer.eos_token_id).astype(np.int32)
                if on_tokens is not None:
                    on_tokens(new[:3])
                    on_tokens(new[3:])
                return Completion(new, np.zeros(len(new), np.float32), "stop", 0, {})

            model.engine.generate = generate
            return model

        for module in ("generate", "chat"):
            monkeypatch.setattr(f"selfteach.commands.{module}.load_model", loaded)
        return asked

    return script


def generated(capsys: Any, *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["generate", *words, "--json", "--seed", "1"]) == 0
    return json.loads(capsys.readouterr().out)["answers"][0]


def test_a_run_with_tools_calls_them_and_shows_what_they_answer(run: Path, scripted: Any, capsys: Any) -> None:
    scripted(call(2), "<answer>5</answer>")
    answer = generated(capsys, str(run), "2 + 3 = ")
    kinds: Sequence[tuple[str, str]] = [(t["kind"], t["text"]) for t in answer["turns"]]
    assert kinds == [("model", call(2)), ("tool", "5"), ("model", "<answer>5</answer>")]
    assert answer["text"] == "<answer>5</answer>" and answer["finish_reason"] == "stop"
    (made,) = answer["calls"]
    assert made["tool"] == "add" and made["error"] == "" and made["seconds"] >= 0
    scripted(call(2), "<answer>5</answer>")
    assert main(["generate", str(run), "2 + 3 = "]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines() == [call(2), "> 5", "<answer>5</answer>"] and "(called add, " in said.err


@pytest.mark.parametrize(
    ("first", "answered", "error"),
    [
        (call(100), "error: ValueError: too large", "ValueError: too large"),
        (call('"x"'), 'error: add: argument a is "x", and must be int', None),
    ],
)
def test_errors_are_answered_as_in_training(
    run: Path, scripted: Any, capsys: Any, first: str, answered: str, error: str | None
) -> None:
    scripted(first, "<answer>none</answer>")
    answer = generated(capsys, str(run), "2 + 3 = ")
    assert answer["turns"][1] == {"kind": "tool", "text": answered}
    assert [c["error"] for c in answer["calls"]] == ([error] if error else [])


def test_a_run_that_searches_a_corpus_asks_it(
    tmp_path: Path, scripted: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run's own engine answers, as in training; a query that finds nothing is answered too."""
    pytest.importorskip("tantivy")
    monkeypatch.setenv("SELFTEACH_CACHE", str(tmp_path / "cache"))
    towns = [{"id": str(i), "contents": f'"Town {i}"\nThe mayor of Town {i} is person {i}.'} for i in range(9)]
    asked = [{"question": f"who is the mayor of Town {i}", "golden_answers": [f"person {i}"]} for i in range(9)]
    for name, rows in (("towns", towns), ("rows", asked)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    words = ["--data", str(tmp_path / "rows.jsonl"), "--corpus", str(tmp_path / "towns.jsonl"), "--model", "tiny-s"]
    words += ["--steps", "1", "--warm-steps", "0", "--final-eval-tasks", "0", "--eval-every", "0", "--max-tokens", "4"]
    words += ["--groups", "2", "--rollouts", "2", "--threads", "1", "--out", str(tmp_path / "run")]
    assert main(["train", "search_r1", *words]) == 0
    given = scripted("<search>mayor of Town 7</search>", "<search>zzz</search>", "<answer>person 7</answer>")
    answer = generated(capsys, str(tmp_path / "run"), "who is the mayor of Town 7?")
    assert [t["kind"] for t in answer["turns"]] == ["model", "tool", "model", "tool", "model"]
    first, second = answer["turns"][1]["text"], answer["turns"][3]["text"]
    assert "The mayor of Town 7 is person 7." in first and "person" not in second
    assert [(c["tool"], c["error"]) for c in answer["calls"]] == [("search", "")] * 2
    assert answer["text"] == "<answer>person 7</answer>" and "person 7" in given[1]


def test_the_model_alone_and_what_does_not_go_together(run: Path, capsys: Any) -> None:
    answer = generated(capsys, str(run), "2 + 3 = ", "--no-tools", "--max-tokens", "4")
    assert "turns" not in answer and answer["tokens"] <= 4
    for words, line in (
        (["--no-tools", "--tools", "x.py:f"], "--tools and --no-tools do not go together"),
        (["--stop", "x"], "ends its turns itself"),
        (["--tools", "nowhere.py:f"], "nowhere.py: no such file"),
    ):
        assert main(["generate", str(run), "2 + 3 = ", *words]) == 2
        error = capsys.readouterr().err
        assert line in error and error.count("\n") == 1


def test_a_chat_keeps_calls_and_their_answers(talker: Path, scripted: Any, capsys: Any, monkeypatch: Any) -> None:
    asked = scripted(call(2), "It is 5.", "As I said.")
    monkeypatch.setattr(sys, "stdin", io.StringIO("2 + 3?\nSure?\n"))
    assert main(["chat", str(talker), "--tools", f"{talker}/tools.py:add"]) == 0
    said = capsys.readouterr()
    assert said.out == f"{call(2)}\nIt is 5.\nAs I said.\n" and "> 5\n" in said.err and "(called add, " in said.err
    assert len(asked) == 3 and asked[2].count("tools:") == 1, "the tools are said once"
    first, second = (asked[2].index(text) for text in ("2 + 3?", "Sure?"))
    between = asked[2][first:second]
    assert between.count(call(2)) == 1 and between.count("It is 5.") == 1 and "5" in between.split(call(2))[1]
    assert asked[2].startswith(asked[1]), "as in training: what was said stays as it was"


def test_a_chat_with_a_run_of_text(run: Path, scripted: Any, capsys: Any, monkeypatch: Any) -> None:
    asked = scripted(call(2), "<answer>5</answer>", "<answer>9</answer>")
    monkeypatch.setattr(sys, "stdin", io.StringIO("2 + 3 = \n4 + 5 = \n"))
    assert main(["chat", str(run), "--json"]) == 0
    one, two = map(json.loads, capsys.readouterr().out.splitlines())
    assert one["calls"][0]["tool"] == "add" and two["calls"] == [] and two["content"] == "<answer>9</answer>"
    assert "<tool_response>5</tool_response><answer>5</answer>" in asked[2]
