"""Rewards and tools that end or stop their process once, and the processes of a run that its notes name."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from selfteach.core import Score, block
from selfteach.core.random_keys import key, uniform

ROLLOUT, REWARD = "rollout worker", "reward worker"


@block
def careless(*, path: Any, flag: str = "", how: str = "exit") -> Score:
    """A number made of the response; where the file `flag` is, the process that removes it ends, or stops."""
    try:
        Path(flag).unlink()
    except OSError:
        return Score(float(uniform(key("careless", *path.ids.tolist()), 0)))
    if how == "exit":
        os._exit(7)
    if how == "raise":
        raise ValueError("no such answer")
    time.sleep(600)
    raise AssertionError


def slow_double(x: int) -> int:
    """Twice a number.

    Args:
        x: the number
    """
    return 2 * x


class Watching:
    """An observer that knows a run's processes, and calls functions at events.

    at  (event or phase, step) -> a function of this, called once
    """

    def __init__(self, at: Mapping[tuple[str, int], Callable[[Watching], object]] | None = None) -> None:
        self.at, self.texts, self.steps = dict(at or {}), list[str](), list[int]()
        self.processes: dict[str, list[int]] = {}

    def __call__(self, event: Mapping[str, Any]) -> None:
        text = str(event.get("text", ""))
        self.texts += [text] if text else []
        if found := re.match(r"\d+ (rollout worker|reward worker)s?: processes ([\d, ]+)$", text):
            self.processes[found[1]] = [int(n) for n in found[2].split(", ")]
        kind = event["phase"] if event["event"] == "phase" else event["event"]
        self.steps += [event["step"]] if kind == "step" else []
        if (act := self.at.pop((kind, event.get("step", -1)), None)) is not None:
            act(self)


def descendants(of: int) -> list[int]:
    """The processes below a process (Linux)."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found, new = list[int](), [of]
    while new:
        new = [pid for pid, parent in parents.items() if parent in new]
        found += new
    return found


def name_of(pid: int) -> str:
    """The command line of a process, by which Ray says what it is; empty where it is gone."""
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_text()
    except OSError:
        return ""


def running(pid: int) -> bool:
    """Whether a process runs, and is no zombie."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
