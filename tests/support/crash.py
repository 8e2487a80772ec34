"""Carry a run on in a process of its own, which may be killed or interrupted at any moment."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from selfteach import api
from selfteach.configuration import RunConfig


def carry_on(run_config: str, out: Path, report: Callable[[str], None]) -> None:
    """Begin a run (a RunConfig in JSON) or resume it; every event's name goes to a file, then DONE or STOPPED."""
    torch.set_num_threads(1)
    observer = lambda event: report(event["event"])  # noqa: E731
    if (out / "config.json").exists():
        run = api.resume(out, observer)
    else:
        run = api.train(RunConfig.from_json(json.loads(run_config), trust=True), out, observer)
    report("DONE" if run.done else "STOPPED")


if __name__ == "__main__":
    carry_on(Path(sys.argv[1]).read_text(), Path(sys.argv[2]), lambda word: print(word, flush=True))
