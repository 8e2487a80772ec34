"""A command's work goes on whatever becomes of its streams, and with --json stdout holds the results alone."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from selfteach.commands import streams
from selfteach.commands.streams import Stream, command_streams
from selfteach.core.errors import SelfteachError

SOURCE = Path(streams.__file__).parents[1]


class Broken(io.StringIO):
    """A stream of which every write, or every flush, fails."""

    def __init__(self, number: int, at: str) -> None:
        super().__init__()
        self.number, self.at, self.tries = number, at, 0

    def _fail(self, at: str) -> None:
        if at == self.at:
            self.tries += 1
            raise OSError(self.number, os.strerror(self.number))

    def write(self, text: str) -> int:
        self._fail("write")
        return len(text)

    def flush(self) -> None:
        self._fail("flush")


@pytest.mark.parametrize("at", ["write", "flush"])
@pytest.mark.parametrize("number", [errno.EPIPE, errno.EIO, errno.ENOSPC, errno.EFBIG])
@pytest.mark.parametrize("which", ["stdout", "stderr"])
def test_a_stream_that_fails_ends_nothing(which: str, number: int, at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stream, done = Broken(number, at), []
    monkeypatch.setattr(sys, which, stream)

    def work() -> None:
        with command_streams(False):
            for n in range(3):
                print(n, file=getattr(sys, which), flush=True)
                done.append(n)

    if which == "stdout" and number in (errno.ENOSPC, errno.EFBIG):  # results are lost: said, and no success
        with pytest.raises(SelfteachError, match="not all results could be printed"):
            work()
    else:
        work()
    assert done == [0, 1, 2] and stream.tries == 1 and getattr(sys, which) is stream


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_character_that_a_terminal_lacks_is_written_all_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, name, io.TextIOWrapper(raw, encoding="ascii"))
    with command_streams(False):
        print("31.0 → 52.5", file=getattr(sys, name))
    assert raw.getvalue() == b"31.0 \\u2192 52.5\n"


def test_what_is_not_a_stream_of_text_is_left_as_it_is() -> None:
    stream = Stream(io.StringIO())
    assert stream.isatty() is False and stream.write("ab") == 2 and stream.getvalue() == "ab"


PRINTS = """
import ctypes, os, subprocess, sys
from selfteach.commands.common import print_json
from selfteach.commands.streams import command_streams
with command_streams({as_json}):
    print("python")
    os.system("echo child")
    subprocess.run([sys.executable, "-c", "print('own child')"])
    libc = ctypes.CDLL(None)
    libc.puts(b"library")
    libc.fflush(None)
    os.write(1, b"descriptor\\n")
    sys.__stdout__.write("original\\n")
    sys.__stdout__.flush()
    print_json({{"a": 1}})
print("after")
"""
PRINTED = {"python", "child", "own child", "library", "descriptor", "original"}


@pytest.mark.parametrize("as_json", [True, False])
def test_whatever_prints_with_json_stdout_holds_the_results_alone(as_json: bool) -> None:
    env = {**os.environ, "PYTHONPATH": str(SOURCE.parent)}
    ran = subprocess.run(
        [sys.executable, "-c", PRINTS.format(as_json=as_json)], capture_output=True, text=True, env=env, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    everything = PRINTED if not as_json else set()
    assert set(ran.stdout.splitlines()) == {'{"a": 1}', "after"} | everything
    assert set(ran.stderr.splitlines()) == PRINTED - everything


NOISY = """
from selfteach.core import block, method
from selfteach.methods import grpo


@block
def noisy(*, text: str) -> float:
    print("a reward prints \\u2192", flush=True)
    return float(len(text) % 3)


@method(family="test")
def noisy_grpo():
    return grpo(groups=2, rollouts=2).replace(reward=(noisy(),))
"""


def test_a_run_whose_reader_is_gone_goes_on_to_its_end(tmp_path: Path, mini_folder: Path) -> None:
    """`selfteach train ... 2>&1 | head -1`, on a terminal of ASCII, with a reward that prints."""
    (tmp_path / "noisy.py").write_text(NOISY)
    words = ["train", "noisy_grpo", "--use", "noisy.py", "--task", "chain_sum", "--set", "terms=2,2", "n_test=4"]
    words += ["--model", str(mini_folder), "--steps", "2", "--max-tokens", "4", "--threads", "1", "--eval-every", "0"]
    words += ["--final-eval-tasks", "2", "--final-eval-k", "0", "--final-eval-decoder-samples", "0", "--out", "run"]
    env: dict[str, Any] = {**os.environ, "PYTHONPATH": str(SOURCE.parent), "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "selfteach.cli", *words, "--json"]
    process = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stderr is not None and process.stdout is not None and process.stderr.readline()
    process.stderr.close()
    printed = process.stdout.read().decode("ascii")
    process.stdout.close()
    assert process.wait(120) == 0 and printed.count("\n") == 1 and json.loads(printed)["done"] is True
    steps = (tmp_path / "run" / "log" / "events.jsonl").read_text().splitlines()
    taught = [json.loads(line) for line in steps if '"event": "step"' in line]
    assert len(taught) == 2 and all(step["rollout/unscored"] == 0 for step in taught)
    command = [*command[:3], "train", "--resume", "run"]
    process = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None and process.stdout.readline()
    process.stdout.close()
    assert process.wait(120) == 0  # the run is done, whoever read it


def test_every_command_that_is_printed_quotes_its_paths() -> None:
    """A path in a printed command is a word for a shell: `quoted(...)`."""
    command = re.compile(r"(--resume|--config|selfteach (?:eval|train --\w+)) \{(?!quoted\()")
    found = [f"{file.name}: {m[0]}" for file in SOURCE.rglob("*.py") for m in command.finditer(file.read_text())]
    assert found == []
