"""Any command line, of any command: it prints, or would begin what can be done, or is refused by one line at once.

Options and values are drawn from the commands' own declarations. TORTURE=1 tries 3,000 of each command.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.command_lines import command_lines, outcome
from support.runs import run_config_of

from selfteach import api
from selfteach.cli import COMMANDS
from selfteach.configuration import RunConfig

WHOLE = "TORTURE" in os.environ
SECONDS = 2.0


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, mini_folder: Path) -> Path:
    """A folder with a run that was begun, one that is done, a file, and a corpus."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "run").mkdir()
    (folder / "run" / "config.json").write_text(json.dumps(run_config_of(mini_folder).to_json()))
    (folder / "file").write_text("text")
    (folder / "results").mkdir()
    api.train(run_config_of(mini_folder, steps=2), folder / "logged")
    (folder / "notes").mkdir()
    (folder / "notes" / "lyon.txt").write_text("Lyon lies where the Rhone meets the Saone.")
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_line_is_carried_out_or_refused_in_one_line(
    command: str,
    place: Path,
    mini_folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(place)
    slowest: list[tuple[float, list[str]]] = [(0.0, [])]
    counts = Counter[str]()

    @settings(
        max_examples=3000 if WHOLE else 40,
        deadline=None,
        database=None,
        derandomize=not WHOLE,
        suppress_health_check=list(HealthCheck),
    )
    @given(words=command_lines(command, str(mini_folder)))
    def check(words: list[str]) -> None:
        found = outcome(words, capsys.readouterr)
        slowest.append((found.seconds, words))
        assert found.code in (0, 2, -1), words
        assert "Traceback" not in found.err
        if found.code == 2:
            counts["refused"] += 1
            assert found.err.count("\n") == 1 and found.err.startswith("selfteach"), found.err
            assert not found.out
        else:
            counts["planned" if found.code == -1 else "printed"] += 1
        if found.code == -1 and found.run_config is not None:
            again = RunConfig.from_json(json.loads(json.dumps(found.run_config.to_json())))
            assert again == found.run_config, "the configuration comes back from its file as it was"

    check()
    if WHOLE:
        print(json.dumps({"command": command, "lines": len(slowest) - 1, **counts}))
        print("slowest", *max(slowest))
        assert counts["planned"] + counts["printed"], "no line was taken: the fuzz saw refusals alone"
    else:
        assert max(slowest)[0] < 10 * SECONDS


@settings(max_examples=100 if WHOLE else 3, deadline=None, database=None, derandomize=True)
@given(data=st.data())
def test_by_a_process_of_its_own_as_well(data: Any) -> None:
    command = data.draw(
        st.sampled_from(
            sorted(
                {*COMMANDS} - {"bench", "reproduce", "regimes", "compare", "side-by-side", "sweep", "ledger", "view"}
            )
        )
    )
    words = data.draw(command_lines(command, "nowhere"))
    if any("tiny" in word for word in words):  # it would train
        return
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        started = time.monotonic()
        command_line = [sys.executable, "-m", "selfteach.cli", *words]
        ran = subprocess.run(command_line, cwd=folder, env=env, capture_output=True, timeout=120)
        took = time.monotonic() - started
    error = ran.stderr.decode(errors="replace")
    assert ran.returncode in (0, 2) and "Traceback" not in error, (words, error)
    assert ran.returncode == 0 or error.count("\n") == 1, (words, error)
    assert took < 60
