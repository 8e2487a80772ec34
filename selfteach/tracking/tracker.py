"""What a tracker is: something that a run's metrics are given to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class RunAbout:
    """The run that a tracker is told of.

    folder   of the run
    title    method and task
    config   its configuration, as its config.json has it
    resumed  whether the run goes on
    step     its next step
    key      what `start` returned when the tracker was first told of this run; None: it is told for the first time
    """

    folder: Path
    title: str
    config: Mapping[str, Any]
    resumed: bool
    step: int
    key: str | None


class Tracker(Protocol):
    """Where metrics go. Its methods are called one after another in a thread of its own; what they raise ends it alone.

    A step is told of once, also where a run was killed and plays it again; steps rise.
    """

    def start(self, about: RunAbout) -> str:
        """Begin, or go on with the run of `about.key`. Returns a key by which it can be gone on with."""
        ...

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take the metrics of a step, by the names of docs/metrics.md; of an evaluation as eval/NAME."""
        ...

    def table(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Take some rollouts of a step: task, prompt, response, answer, reward, advantage, tokens, status."""
        ...

    def warning(self, step: int, rule: str, text: str) -> None:
        """Take a warning of the run's health."""
        ...

    def finish(self, status: str) -> None:
        """End: the run is done, stopped or failed."""
        ...
