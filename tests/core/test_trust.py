"""A run folder's own code is run for nobody who has not run it before, or says that it may be; one place runs it."""

from __future__ import annotations

import ast
import importlib.util
import io
import json
import os
import py_compile
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import selfteach
from selfteach import api
from selfteach.cli import main
from selfteach.configuration import RunConfig, plan, read_run_config, run_config_of
from selfteach.core import BadValue, SelfteachError, registry, trust
from selfteach.core.cache import private_folder

ROOT = Path(selfteach.__file__).parent
CODE = "from pathlib import Path\nPath(__file__).with_name('was_run').touch()\n"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A run folder from elsewhere: its config.json names a file that leaves a mark where it is run."""
    monkeypatch.setenv("SELFTEACH_CACHE", str(tmp_path / "cache"))
    before = set(sys.modules)
    folder = tmp_path / "run"
    folder.mkdir()
    file = folder / "theirs.py"
    file.write_text(CODE)
    config = plan("grpo", task="chain_sum").to_json()
    (folder / "config.json").write_text(json.dumps({**config, "model": "./nowhere", "use": [str(file)]}))
    yield folder
    for name in set(sys.modules) - before:
        if name.startswith("selfteach_user_"):
            del sys.modules[name]


def command(*words: str) -> None:
    """The command line, as a BadValue of what it printed where it ended with 2."""
    text, sys.stderr = sys.stderr, io.StringIO()
    try:
        code = main(list(words))
        printed = sys.stderr.getvalue()
    finally:
        sys.stderr = text
    assert "Traceback" not in printed
    if code == 2:
        raise BadValue(printed.strip().splitlines()[-1])


WAYS: dict[str, Callable[[Path, bool], Any]] = {
    "run_config_of": lambda run, trusted: run_config_of(run, trusted),
    "read_run_config": lambda run, trusted: read_run_config(run / "config.json", trusted),
    "from_json": lambda run, trusted: RunConfig.from_json(json.loads((run / "config.json").read_text()), trusted),
    "resume": lambda run, trusted: api.resume(run, trust=trusted),
    "evaluate": lambda run, trusted: api.evaluate(run, trust=trusted),
    "trained_model": lambda run, trusted: api.trained_model(run, trust=trusted),
    "selfteach eval": lambda run, trusted: command("eval", str(run), *["--trust"] * trusted),
    "selfteach eval --json": lambda run, trusted: command("eval", str(run), "--json", *["--trust"] * trusted),
    "selfteach train --resume": lambda run, trusted: command("train", "--resume", str(run), *["--trust"] * trusted),
    "selfteach train --config": lambda run, trusted: command(
        "train", "--config", str(run / "config.json"), "--out", str(run / "out"), *["--trust"] * trusted
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_no_way_to_read_a_run_runs_its_code_unasked(way: str, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)  # nobody is asked
    with pytest.raises(BadValue) as refused:
        WAYS[way](run, False)
    line = str(refused.value)
    assert str(run / "theirs.py") in line and "--trust" in line and "\n" not in line and "config.json" in line
    assert not (run / "was_run").exists()
    with open(os.devnull) as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        try:
            WAYS[way](run, True)
        except (SelfteachError, ValueError, OSError) as error:  # it has no checkpoint, say
            assert "--trust" not in str(error)
    assert (run / "was_run").exists()


def forget(run: Path) -> None:
    sys.modules.pop("selfteach_user_theirs", None)
    (run / "was_run").unlink(missing_ok=True)


def test_what_this_user_has_run_is_run_again_wherever_it_lies(run: Path, tmp_path: Path) -> None:
    mine = tmp_path / "theirs.py"
    mine.write_text(CODE)
    registry.load_file(mine)  # by --use
    forget(run)
    run_config_of(run)
    assert (run / "was_run").exists()
    forget(run)
    (run / "theirs.py").write_text(CODE + "# one byte more\n")
    with pytest.raises(BadValue, match="edited since"):
        run_config_of(run)
    run_config_of(run, trust=True)  # is asked for once
    forget(run)
    run_config_of(run)
    assert (run / "was_run").exists()


def test_what_is_loaded_already_is_not_run_again_and_so_not_asked_for(run: Path) -> None:
    registry.load_file(run / "theirs.py")
    (run / "was_run").unlink()
    (run / "theirs.py").write_text("1 / 0\n")
    run_config_of(run)
    assert not (run / "was_run").exists()


def test_a_trusted_files_bytecode_is_not_what_runs(run: Path, tmp_path: Path) -> None:
    """Bytecode beside a file, of its size and time, would run in its place."""
    file = run / "theirs.py"
    trust.remember(file, file.read_bytes())
    evil = tmp_path / "evil.py"
    evil.write_text("raise SystemExit('bytecode was run')".ljust(len(CODE)))
    status = file.stat()
    os.utime(evil, ns=(status.st_atime_ns, status.st_mtime_ns))
    cached = Path(importlib.util.cache_from_source(str(file)))
    cached.parent.mkdir()
    py_compile.compile(str(evil), cfile=str(cached), dfile=str(file), doraise=True)
    run_config_of(run)
    assert (run / "was_run").exists()


def test_a_record_that_others_could_write_is_none(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = run / "theirs.py"
    trust.remember(file, file.read_bytes())
    folder = private_folder(trust.RECORD)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700 and trust.is_known(file.read_bytes())
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    assert not trust.is_known(file.read_bytes())
    with pytest.raises(BadValue, match="--trust"):
        run_config_of(run)


def test_without_a_cache_nothing_is_known_and_nothing_fails(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELFTEACH_CACHE", str(run / "config.json"))
    registry.load_file(run / "theirs.py")
    assert not trust.is_known(CODE.encode())


@pytest.mark.parametrize(
    "use", [["theirs.py"], ["/dev/zero"], ["/dev/stdin"], ["."], ["nowhere.py"], [3], "x.py", None]
)
def test_what_a_configuration_may_name_is_refused_in_one_line(use: Any, run: Path) -> None:
    data = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**data, "use": use}))
    with pytest.raises(SelfteachError) as refused:
        run_config_of(run)
    assert "\n" not in str(refused.value) and "config.json" in str(refused.value)


RUNS_CODE = {"exec", "eval", "spec_from_file_location", "exec_module", "run_path", "run_module", "SourceFileLoader"}
MAY = {"core/registry.py", "bench/worker.py"}  # load_file; the peers of a benchmark, which are our own files


def test_one_place_runs_a_users_file() -> None:
    found = set()
    for file in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                own = isinstance(node.func, ast.Name) or name not in ("exec", "eval")  # model.eval() runs nothing
                if name in RUNS_CODE and own:
                    found.add(str(file.relative_to(ROOT)))
    assert found <= MAY and "core/registry.py" in found


def test_the_file_of_an_environment_is_asked_for_too(run: Path) -> None:
    data = json.loads((run / "config.json").read_text())
    theirs = run / "theirs.py"
    data |= {"use": [], "task": "environment", "task_options": {"env": f"{theirs}:Lake"}}
    with pytest.raises(BadValue, match="--trust"):
        RunConfig.from_json(data)
    assert not (run / "was_run").exists()
