"""generate, chat and serve by their command lines: what is printed where, and what is refused."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from support.models import mini
from support.templates import TOKENIZERS

from selfteach.cli import main
from selfteach.commands import chat
from selfteach.core import terminal_text
from selfteach.model import files


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model with a chat template."""
    folder = tmp_path_factory.mktemp("talker")
    tokenizer = TOKENIZERS["chatml"]
    files.save(folder, mini(-(-len(tokenizer) // 8) * 8, max_length=256), tokenizer)
    return str(folder)


class Terminal(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


def given(monkeypatch: Any, text: str, terminal: bool = False) -> None:
    monkeypatch.setattr(sys, "stdin", (Terminal if terminal else io.StringIO)(text))


def test_a_terminal_gets_no_control_characters() -> None:
    text = "a\tb\n\x1b[31m\x07\r\x9b\u202eé日🙂\u200d"
    assert terminal_text.escaped(text) == "a\tb\n\\x1b[31m\\x07\\r\\x9b\\u202eé日🙂\u200d"
    assert terminal_text.shown_on(io.StringIO(), text) == text
    assert "\x1b" not in terminal_text.shown_on(Terminal(), text)


def test_generate_prints_answers_and_the_same_with_the_same_seed(mini_folder: Path, capsys: Any) -> None:
    ask = ["generate", str(mini_folder), "abc", "--max-tokens", "8", "--seed", "3"]
    assert main([*ask, "--json"]) == 0
    one = json.loads(capsys.readouterr().out)
    assert main([*ask, "-n", "3", "--json"]) == 0
    three = json.loads(capsys.readouterr().out)
    assert three["answers"][0] == one["answers"][0] and len(three["answers"]) == 3 and one["seed"] == 3
    assert one["prompt"] == "abc" and one["answers"][0]["tokens"] <= 8
    assert main([*ask, "-n", "2"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("--- 1 of 2\n" + three["answers"][0]["text"]) and "--- 2 of 2\n" in said


def test_a_prompt_may_be_piped_in(mini_folder: Path, capsys: Any, monkeypatch: Any) -> None:
    given(monkeypatch, "abc\n")
    assert main(["generate", str(mini_folder), "--max-tokens", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["prompt"] == "abc"


def test_a_prompt_goes_through_the_template_unless_raw(talker: str, capsys: Any, monkeypatch: Any) -> None:
    from selfteach.serving.text_model import TextModel

    seen: list[int] = []
    whole = TextModel.prompt_ids

    def prompt_ids(self: Any, *args: Any, **more: Any) -> Any:
        seen.append(len(ids := whole(self, *args, **more)))
        return ids

    monkeypatch.setattr(TextModel, "prompt_ids", prompt_ids)
    for more in (["--raw"], [], ["--system", "Be brief. " * 9]):
        assert main(["generate", talker, "One?", "--max-tokens", "1", *more]) == 0
    assert seen == sorted(set(seen))
    capsys.readouterr()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["generate", "nothing", "a"], "no model is called 'nothing'"),
        (["generate", "tiny", "a"], "made for a task"),
        (["generate", "{mini}", "a", "-n", "0"], "-n must be between"),
        (["generate", "{mini}", "a", "--temperature", "-1"], "temperature must be"),
        (["generate", "{mini}", "a", "--max-tokens", "0"], "max_tokens must be"),
        (["generate", "{mini}", "a", "--stop", ""], "--stop"),
        (["generate", "{mini}", "a", "--context", "4096"], "the model's context"),
        (["generate", "{mini}", "x" * 300], "leave no room"),
        (["generate", "{mini}", "a", "--system", "s"], "no chat template"),
        (["generate", "{mini}", "a", "--system", "s", "--raw"], "give one"),
        (["generate", "{mini}"], "the prompt is empty"),
        (["chat", "{mini}", "--system", "s"], "no chat template"),
        (["serve", "{mini}", "--port", "70000"], "--port must be"),
        (["serve", "{mini}", "--slots", "0"], "--slots must be"),
        (["serve", "{mini}", "--host", ""], "--host is empty"),
        (["serve", "{mini}", "--host", "192.0.2.1"], "give another --port or --host"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], why: str, mini_folder: Path, capsys: Any, monkeypatch: Any) -> None:
    given(monkeypatch, "")
    assert main([w.replace("{mini}", str(mini_folder)) for w in words]) == 2
    out, err = capsys.readouterr()
    assert why in err and err.count("\n") == 1 and not out


def test_a_conversation_is_carried_on(talker: str, capsys: Any, monkeypatch: Any, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    lines = [
        "One?",
        "",
        "Two?",
        f"/save {file}",
        "/save",
        "/nothing\x1b",
        f"/save {file}",
        "/reset",
        "/system Be brief.",
    ]
    given(monkeypatch, "\n".join([*lines, f"/save {tmp_path / 'second.json'}", "/help"]) + "\n")
    assert main(["chat", talker, "--seed", "1", "--max-tokens", "6"]) == 0
    out, err = capsys.readouterr()
    messages = json.loads(file.read_text())["messages"]
    assert [m["role"] for m in messages] == ["user", "assistant", "user", "assistant"]
    assert messages[1]["content"] in out and messages[3]["content"] in out
    assert json.loads((tmp_path / "second.json").read_text())["messages"] == [
        {"role": "system", "content": "Be brief."}
    ]
    for part in ("is there already", "no such order", "/save: give a file", "a new conversation", "/reset"):
        assert part in err


def test_a_conversation_as_json(mini_folder: Path, capsys: Any, monkeypatch: Any) -> None:
    given(monkeypatch, "a\nb\n")
    assert main(["chat", str(mini_folder), "--json", "--max-tokens", "3", "--seed", "2"]) == 0
    out, err = capsys.readouterr()
    answers = [json.loads(line) for line in out.splitlines()]
    assert [a["role"] for a in answers] == ["assistant"] * 2 and "has no chat template" in err


def test_ctrl_c_ends_the_answer_alone(talker: str, capsys: Any, monkeypatch: Any) -> None:
    lines, whole = iter(["One?", "Two?"]), chat.run_to_end
    calls = []

    def line(_: str = "") -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    def interrupted(work: Any) -> Any:
        calls.append(work)
        if len(calls) == 1:
            work.close()
            raise KeyboardInterrupt
        return whole(work)

    given(monkeypatch, "", terminal=True)
    monkeypatch.setattr("builtins.input", line)
    monkeypatch.setattr(chat, "run_to_end", interrupted)
    assert main(["chat", talker, "--max-tokens", "4"]) == 0
    out, err = capsys.readouterr()
    assert "(stopped)" in err and len(calls) == 2 and out


def test_the_server_says_where_it_is_and_ends_on_ctrl_c(mini_folder: Path) -> None:
    pytest.importorskip("uvicorn", reason="the package uvicorn is not installed; pip install 'selfteach[serve]'")
    words = ["serve", str(mini_folder), "--port", "0", "--name", "small", "--json"]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]),
    }
    with subprocess.Popen(
        [sys.executable, "-m", "selfteach.cli", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
    ) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            about = json.loads(process.stdout.readline())
            assert (
                about["model"] == "small" and about["context"] == 128 and about["url"].startswith("http://127.0.0.1:")
            )
            with urllib.request.urlopen(about["url"] + "/models", timeout=30) as answer:
                assert json.load(answer)["data"][0]["id"] == "small"
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
            assert b"Traceback" not in process.stderr.read()
        finally:
            process.kill()


def test_a_port_that_is_taken_is_a_line(mini_folder: Path, capsys: Any) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code = main(["serve", str(mini_folder), "--port", str(port)])
    err = capsys.readouterr().err
    assert code == 2 and err.count("\n") == 1
    assert f"127.0.0.1:{port}" in err or "selfteach[serve]" in err
