"""Checkpoints of a run folder: what is kept, what is found, what is refused."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from selfteach.core import cache
from selfteach.core.errors import BadValue
from selfteach.loop import checkpoint
from selfteach.loop.settings import RunSettings


def steps_in(run: Path) -> list[int]:
    return sorted(int(p.name) for p in (run / "checkpoints").iterdir())


@pytest.mark.parametrize("keep", [-3, -1, 0, 1, 2, 5])
@pytest.mark.parametrize(
    "steps",
    [range(8), (0, 10, 20, 23), (999_998, 999_999, 1_000_000, 1_000_001), (5, 6, 7, 3, 4), (4, 4, 4)],
    ids=["each", "some", "seven digits", "went back", "again"],
)
def test_what_last_names_is_never_dropped(keep: int, steps: tuple[int, ...], tmp_path: Path):
    written = set[int]()
    for step in steps:
        checkpoint.write(tmp_path, step, {"at": step}, lambda folder: None, keep)
        written.add(step)
        found = checkpoint.read(tmp_path)
        assert (
            found is not None and found[1:] == (step, {"at": step}) and int((tmp_path / "last").resolve().name) == step
        )
        earlier = [s for s in steps_in(tmp_path) if s <= step]
        assert earlier == sorted(s for s in written if s <= step)[-max(keep, 1) :]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoints", "last"]


@pytest.mark.parametrize("keep", [-1, 0])
def test_to_keep_none_is_refused(keep: int):
    with pytest.raises(BadValue, match="keep: must be at least 1"):
        RunSettings(keep=keep)


def test_a_checkpoint_that_a_kill_left_aside_is_put_back(tmp_path: Path):
    folder = checkpoint.write(tmp_path, 3, {"at": 3}, lambda folder: None)
    folder.rename(folder.with_name(".000003.old-7"))  # as it is before the new one of that step takes its name
    checkpoint.clear_unfinished(tmp_path)
    found = checkpoint.read(tmp_path)
    assert found is not None and found[2] == {"at": 3} and steps_in(tmp_path) == [3]


def test_what_kills_leave_is_cleared_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "checkpoints" / ".000001.new-7").mkdir(parents=True)
    (tmp_path / ".last-7").symlink_to("checkpoints/000001")
    (tmp_path / ".config.json.7.new").touch()
    checkpoint.write(tmp_path, 2, {}, lambda folder: None)
    assert steps_in(tmp_path) == [2] and not list(tmp_path.glob(".*"))
    monkeypatch.setenv("SELFTEACH_CACHE", str(tmp_path / "cache"))
    for name in ("warm", "gguf", "search"):
        folder = cache.cache_folder(name)
        for left, hours in ((".abc.new-7", 25), (".abc.new-8", 1), ("abc", 99)):
            (folder / left).mkdir()
            os.utime(folder / left, (time.time() - 3600 * hours,) * 2)
        (folder / ".file").touch()
        os.utime(folder / ".file", (0, 0))
        assert sorted(p.name for p in cache.cache_folder(name).iterdir()) == [".abc.new-8", "abc"]
