"""The state of a run between steps, and calling blocks on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..core.blocks import Block, initial_state, state_key
from ..core.contexts import History
from ..core.user_code import user_code


@dataclass
class RunState:
    """The state of a run between steps, besides weights and optimisers; checkpoints hold it.

    place      index in the sequence of stages; stage_step: steps done in this stage
    version    updates done; delivered: that of the newest delivery; versions: of each group that the engine holds
    accepted   groups collected so far; tokens: sampled so far
    learned    whether any step has had a gradient; starved: steps in a row without one
    blocks     states of stateful blocks, by `state_key`
    """

    step: int = 0
    place: int = 0
    stage_step: int = 0
    version: int = 0
    delivered: int = 0
    versions: dict[str, int] = field(default_factory=dict)
    accepted: int = 0
    tokens: int = 0
    seconds: float = 0.0  # of training, evaluations not counted
    learned: bool = False
    starved: int = 0
    blocks: dict[str, Any] = field(default_factory=dict)
    history: History = field(default_factory=History)

    def call(self, place: str, block: Block, given: Mapping[str, Any]) -> Any:
        """Call a block on its inputs, and return its value; a stateful one gets its state, and the next one is
        stored.
        """
        needs = block.needs
        inputs = {n: given[n] for n in needs if n in given}
        if "history" in needs:
            inputs["history"] = self.history
        with user_code(f"{place} {block.name}"):
            if "state" not in needs:
                return block(**inputs)
            name = state_key(block, place)
            if name not in self.blocks:
                self.blocks[name] = initial_state(block)
            value, self.blocks[name] = block(**inputs, state=self.blocks[name])
            return value

    def scheduled(self, value: float | Block) -> float:
        """A number, or the value of a schedule on the history."""
        if not isinstance(value, Block):
            return float(value)
        with user_code(f"schedule {value.name}"):
            return float(value(history=self.history))
