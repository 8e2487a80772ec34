"""Carry a run on in a process of its own, which may be killed or interrupted at any moment."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from selfteach import api


def carry_on(job: str, out: Path, told: Callable[[str], None]) -> None:
    """Begin the run, a Job in JSON, or go on with it; `told` hears the name of every event, and done or stopped at the end."""
    torch.set_num_threads(1)
    hear = lambda event: told(event["event"])  # noqa: E731
    if (out / "config.json").exists():
        run = api.resume(out, hear)
    else:
        run = api.train(api.Job.from_json(json.loads(job)), out, hear)
    told("DONE" if run.done else "STOPPED")


if __name__ == "__main__":
    carry_on(Path(sys.argv[1]).read_text(), Path(sys.argv[2]), lambda word: print(word, flush=True))
