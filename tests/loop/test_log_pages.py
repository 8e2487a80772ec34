"""Reading a log that grows: page by page, cut back by a resumed run, and too large to be read whole."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

from support.viewed import step_event

from selfteach.loop import run_folder
from selfteach.loop.log import EVENTS, RunLog, last_events, read_events, read_events_after, read_events_between


def log_of(folder: Path, steps: int, padding: int = 0) -> RunLog:
    log = RunLog(folder)
    for step in range(steps):
        log.event("step", **step_event(step), padding="x" * padding)
        if step % 10 == 9:
            log.event("eval", step=step + 1, accuracy=0.5)
    return log


def steps_of(page) -> list[int]:
    return [e["step"] for e in page.events if e["event"] == "step"]


def test_pages_follow_each_other_and_leave_a_line_that_is_not_ended(tmp_path):
    log = log_of(tmp_path, 3)
    one = read_events_after(tmp_path)
    assert steps_of(one) == [0, 1, 2] and one.offset == one.size == log.offset and not one.sampled
    assert not read_events_after(tmp_path, one.offset, one.mark).events
    with log.file.open("a") as f:
        f.write('{"event": "step", "st')
    half = read_events_after(tmp_path, one.offset, one.mark)
    assert not half.events and half.offset == one.offset < half.size and not half.anew
    with log.file.open("a") as f:
        f.write('ep": 3}\n')
    whole = read_events_after(tmp_path, half.offset, half.mark)
    assert steps_of(whole) == [3] and not whole.anew


def test_a_log_that_was_cut_back_is_read_anew(tmp_path):
    log = log_of(tmp_path, 5)
    seen = read_events_after(tmp_path)
    os.truncate(log.file, 600)
    short = read_events_after(tmp_path, seen.offset, seen.mark)
    assert short.anew and steps_of(short) == list(range(len(short.events)))
    # cut back, and grown beyond the old place with other lines
    RunLog(tmp_path, offset=0)
    log_of(tmp_path, 8, padding=3)
    other = read_events_after(tmp_path, seen.offset, seen.mark)
    assert other.anew and steps_of(other) == list(range(8))


def test_a_log_that_is_not_there_or_broken_has_no_events(tmp_path):
    assert read_events_after(tmp_path) == ([], 0, "", 0, False, False) and last_events(tmp_path) == []
    assert read_events_after(tmp_path, 10, "x").anew, "it was there"
    (tmp_path / EVENTS).write_bytes(b'\xff\xfe{"event"}\n[1]\n{"event": "step"}\n{"event": "step", "step": 2}\n')
    assert steps_of(read_events_after(tmp_path)) == [2]


def test_a_large_log_is_sampled_from_end_to_end_without_being_read_whole(tmp_path, monkeypatch):
    log = log_of(tmp_path, 3000, padding=2000)
    read = []

    class Counted:
        def __init__(self, file):
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def __getattr__(self, name):
            return getattr(self.file, name)

        def read(self, size=-1):
            data = self.file.read(size)
            read.append(len(data))
            return data

    opened = Path.open
    monkeypatch.setattr(Path, "open", lambda self, *w, **k: Counted(opened(self, *w, **k)))
    page = read_events_after(tmp_path, most=1 << 20)
    steps = steps_of(page)
    assert page.sampled and sum(read) < 1.3 * (1 << 20) < log.offset / 4
    assert steps == sorted(steps) and steps[0] == 0 and steps[-1] == 2999
    assert max(b - a for a, b in itertools.pairwise(steps)) < 300, "evenly"
    read.clear()
    part = read_events_between(tmp_path, 1234, 1250, most=1 << 20)
    assert steps_of(part) == list(range(1234, 1251)) and not part.sampled and sum(read) < 1 << 22


def test_the_steps_between_two_are_those_that_a_whole_reading_finds(tmp_path):
    log_of(tmp_path, 400, padding=700)
    whole = read_events(tmp_path)
    for first, last in ((0, 0), (0, 5), (7, 31), (200, 201), (390, 999), (398, 398), (500, 600)):
        found = [e["step"] for e in read_events_between(tmp_path, first, last).events if e["event"] == "step"]
        assert found == [e["step"] for e in whole if e["event"] == "step" and first <= e["step"] <= last], (first, last)


def test_runs_are_found_and_where_they_stand(tmp_path):
    for name, config in (("a", {"method": {"name": "m"}, "settings": {"seed": 1}}), ("deep/b", {}), ("model", {})):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    log_of(tmp_path / "deep" / "b" / "log", 3)
    (tmp_path / "deep" / "b" / "checkpoints" / "1").mkdir(parents=True)
    (tmp_path / "deep" / "b" / "checkpoints" / "1" / "config.json").write_text('{"method": 1}')
    found = {f.relative_to(tmp_path).as_posix() for f in run_folder.find_runs(tmp_path)}
    assert found == {"a", "deep/b"}, "a model's folder is no run, nor is a checkpoint"
    live = run_folder.summary_of(tmp_path / "deep" / "b")
    assert (live.state, live.steps, live.method) == ("live", 3, "") and abs((live.reward or 0) - 0.32) < 1e-9
    assert run_folder.summary_of(tmp_path / "a").state == "starting"
    os.utime(tmp_path / "deep" / "b" / "log" / EVENTS, (1, 1))
    assert run_folder.summary_of(tmp_path / "deep" / "b").state == "stopped"


def test_an_arm_is_what_differs_in_the_seed_alone():
    one = {"method": {"name": "m"}, "settings": {"seed": 1, "lr": 1}, "warm": {"seed": 1}}
    assert run_folder.arm_of(one) == run_folder.arm_of({**one, "settings": {"seed": 2, "lr": 1}, "warm": {"seed": 2}})
    assert run_folder.arm_of(one) != run_folder.arm_of({**one, "settings": {"seed": 1, "lr": 2}})
