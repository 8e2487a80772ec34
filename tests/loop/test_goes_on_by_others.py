"""A run that goes on by other code, other kernels, a shorter log or an edited configuration says so, or is refused."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.runs import BANDIT, run_config_of

from selfteach import api, training
from selfteach.configuration import read_run_config
from selfteach.core.errors import SelfteachError
from selfteach.kernels import build
from selfteach.loop.log import RunLog, read_events


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory, mini_folder: Path) -> Path:
    """A run that died after two of four steps, with a file of the user's own."""
    folder = tmp_path_factory.mktemp("begun")
    (folder / "mine.py").write_text("WORTH = 1.0\n")
    config = replace(run_config_of(mini_folder, steps=4), use=(str(BANDIT), str(folder / "mine.py")))

    class Death(Exception):
        pass

    def die(event: Any) -> None:
        if event["event"] == "step" and event["step"] == 2:
            raise Death

    with pytest.raises(Death):
        api.train(config, folder / "run", die)
    return folder


@pytest.fixture
def run(begun: Path, tmp_path: Path) -> Path:
    shutil.copytree(begun / "run", tmp_path / "run", symlinks=True)
    return tmp_path / "run"


def notices(run: Path, trust: bool = False) -> list[str]:
    events: list[Any] = []
    assert api.resume(run, events.append, trust).done
    assert [e["step"] for e in read_events(run / "log") if e["event"] == "step"][-2:] == [2, 3]
    return [e["text"] for e in events if e["event"] == "notice"]


def test_by_the_same_nothing_is_said(run: Path) -> None:
    assert notices(run) == []


def test_a_users_file_that_was_edited_is_said(begun: Path, run: Path) -> None:
    before = (begun / "mine.py").read_text()
    (begun / "mine.py").write_text(before + "\n# another reward\n")
    try:
        (notice,) = notices(run, trust=True)
    finally:
        (begun / "mine.py").write_text(before)
    assert str(begun / "mine.py") in notice and "was edited since the checkpoint" in notice


def test_a_changed_configuration_is_said(run: Path) -> None:
    config = json.loads((run / "config.json").read_text())
    was = config["settings"]["lr"]
    config["settings"]["lr"], config["settings"]["max_seconds"] = 10 * was, 1e6
    (run / "config.json").write_text(json.dumps(config))
    (notice,) = notices(run)
    assert f"settings.lr was {was}, is {10 * was}" in notice and "settings.max_seconds was None, is 1000000.0" in notice
    assert notice.startswith("config.json: was changed") and "\n" not in notice


def test_other_kernels_are_said(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = json.loads((run / "last" / "state.json").read_text())
    assert '"kernels"' in json.dumps(state["state"]) and "layer_ops.cpp" in json.dumps(state["state"])
    real = training.load_kernels

    def others(*given: Any) -> dict[str, str]:
        assert real(*given).keys() == {"layer_ops.cpp", "decode.cpp"}
        return {"layer_ops.cpp": "torch: no compiler", "decode.cpp": "another"}

    monkeypatch.setattr(training, "load_kernels", others)
    found = notices(run)
    if any(how.startswith("torch") for how in build.used.values()):
        pytest.skip("no compiler here")
    assert len(found) == 2 and "by torch: no compiler now, by another build before" in found[0]


def test_a_log_that_is_shorter_is_said_and_stays_readable(run: Path) -> None:
    file = run / "log" / "events.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    for left in (b"", b"".join(lines[:3]), b"".join(lines[:3]) + b'{"event": "st'):
        copied = run.with_name(f"run{len(left)}")
        shutil.copytree(run, copied, symlinks=True)
        (copied / "log" / "events.jsonl").write_bytes(left)
        (notice,) = notices(copied)
        data = (copied / "log" / "events.jsonl").read_bytes()
        assert "shorter than when the checkpoint was written" in notice and b"\0" not in data
        assert len(data.splitlines()) == len(read_events(copied / "log"))


@pytest.mark.parametrize("size", [0, 1, 17, 40, 10_000])
def test_a_log_never_ends_in_half_a_line(size: int, tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    for step in range(4):
        log.event("step", step=step)
    whole = log.file.read_bytes()
    again = RunLog(tmp_path, size)
    assert again.file.read_bytes() == whole[: whole[:size].rfind(b"\n") + 1] and again.missing >= size - len(whole)


WILD: list[Any] = [None, -1, 0, 1.5, 10**400, "x", "", [], {}, [[]], {"kind": "Moon"}, {"block": "nobody"}, True, "\0"]


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of every value in nested JSON."""
    yield at
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in items:
            yield from places(inner, (*at, key))


def with_value(data: Any, at: tuple[Any, ...], value: Any, drop: bool) -> Any:
    if not at:
        return value
    out = copy.deepcopy(data)
    inner = out
    for key in at[:-1]:
        inner = inner[key]
    if drop:
        del inner[at[-1]]
    else:
        inner[at[-1]] = value
    return out


def test_an_edited_configuration_is_read_or_refused_in_one_line(run: Path, tmp_path: Path) -> None:
    """Every value of config.json in turn left out, and replaced by some of every kind."""
    data, file = json.loads((run / "config.json").read_text()), tmp_path / "config.json"
    tried = refused = 0
    for place, at in enumerate(places(data)):
        for n, value in enumerate([*WILD, "left out"]):
            if (place + n) % 3 and n < len(WILD):
                continue
            file.write_text(json.dumps(with_value(data, at, value, drop=n == len(WILD))))
            tried += 1
            try:
                read_run_config(file)
            except SelfteachError as error:
                refused += 1
                assert "\n" not in str(error), (at, value)
            except BaseException as error:
                raise AssertionError(f"{at} = {value!r}") from error
    for text in ("", "{", "[" * 100_000, '"x"', "\xff\xfe", "null"):
        file.write_bytes(text.encode("latin-1"))
        with pytest.raises(SelfteachError, match=r"config\.json"):
            read_run_config(file)
    assert tried > 500 and refused > tried / 2
