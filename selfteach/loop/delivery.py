"""Weights from the learner to the engine, proven to have arrived."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..core.errors import EngineMismatch, unknown
from ..core.protocols import Engine, InterruptibleEngine, Learner
from ..model import files


def deliver(
    learner: Learner,
    engine: Engine,
    group: str,
    version: int,
    running: bool = False,
    others: Mapping[str, Any] | None = None,
) -> None:
    """Deliver a weight group to the engine, also (running) while it samples; with `others` in place of some weights.

    Raises EngineMismatch where its fingerprint then differs.
    """
    load = engine.load_running if running and isinstance(engine, InterruptibleEngine) else engine.load
    weights = learner.weights(group) if others is None else Overlaid(learner.weights(group), others)
    held = load(group, weights, version)
    ours = learner.fingerprint(group) if others is None else files.fingerprint(weights)
    if held != ours:
        raise EngineMismatch(
            f"weights {group!r}, version {version}: the engine holds {held}, the learner {ours}; the delivery failed"
        )


class Overlaid(Mapping[str, Any]):
    """Weights by name, some of them others; read one at a time, as they are needed."""

    def __init__(self, weights: Mapping[str, Any], others: Mapping[str, Any]) -> None:
        for name in others:
            if name not in weights:
                raise unknown("weight of the sampler", name, weights)
        self.weights, self.others = weights, others

    def __getitem__(self, name: str) -> Any:
        return self.others[name] if name in self.others else self.weights[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.weights)

    def __len__(self) -> int:
        return len(self.weights)
