"""What a run remembers between steps, and how a block is run on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..core.blocks import Block, first_state, state_key
from ..core.protocols import History


@dataclass
class RunState:
    """Everything a run remembers between steps besides weights and optimisers."""

    step: int = 0
    place: int = 0  # in the sequence of stages
    stage_step: int = 0
    version: int = 0
    delivered: int = 0  # the version of the newest delivery
    versions: dict[str, int] = field(default_factory=dict)  # of each group that the sampler holds
    accepted: int = 0
    tokens: int = 0
    starved: int = 0
    blocks: dict[str, Any] = field(default_factory=dict)
    history: History = field(default_factory=History)

    def call(self, place: str, part: Block, given: Mapping[str, Any]) -> Any:
        """The value of a block on what it names; a stateful one gets its state, and what it returns of it is kept."""
        needs = part.needs
        inputs = {n: given[n] for n in needs if n in given}
        if "history" in needs:
            inputs["history"] = self.history
        if "state" not in needs:
            return part(**inputs)
        name = state_key(part, place)
        if name not in self.blocks:
            self.blocks[name] = first_state(part)
        value, self.blocks[name] = part(**inputs, state=self.blocks[name])
        return value

    def scheduled(self, value: float | Block) -> float:
        """A number, or what a schedule makes of the history."""
        return float(value(history=self.history)) if isinstance(value, Block) else float(value)
