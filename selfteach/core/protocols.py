"""The small protocols between the rooms: what a program may do, what an engine and a learner are."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from .batch import Batch
from .method import Update
from .task import Ref, Sampling
from .tree import Trajectory, Turn


class Completion(NamedTuple):
    """What an engine gives for one request: ids i32[n] (stop included), their logp f32[n], quantities asked for, and why it ended.

    status: stop | length | limit | cancelled | error. version: of the weights that drew it.
    """

    ids: np.ndarray
    logp: np.ndarray
    status: str
    version: int
    recorded: Mapping[str, np.ndarray]


class Engine(Protocol):
    """Turns contexts into tokens. A sample is a function of (weights, context, sampling, address), never of its neighbours."""

    @property
    def groups(self) -> Sequence[str]:
        """Names of the weight groups that it holds."""
        ...

    async def generate(self, member: str, context: np.ndarray, sampling: Sampling, address: int) -> Completion:
        """Draw tokens after `context` (i32[L]) until a stop, `sampling.max_tokens`, or the engine's context limit."""
        ...

    async def score(self, member: str, context: np.ndarray, tokens: np.ndarray, want: Sequence[str] = ("logp",)) -> Mapping[str, np.ndarray]:
        """Quantities of given tokens (i32[n]) after a context: name -> f32[n], at temperature 1; also of a member's scalar heads."""
        ...

    def load(self, group: str, weights: Mapping[str, Any], version: int) -> str:
        """Take over a weight group; drops what was cached under older ones. Returns the fingerprint of what it now holds."""
        ...

    def fingerprint(self, group: str) -> str:
        """A short hash of the weights held, comparable with the learner's."""
        ...


class Learner(Protocol):
    """Turns batches into weights."""

    def forward(self, batch: Batch, want: Sequence[str]) -> None:
        """Add `[member_]quantity[_view]` columns to the batch, without gradient."""
        ...

    def backward(self, batch: Batch, update: Update) -> Mapping[str, float]:
        """Accumulate the gradient of the update's terms, with their weights in columns w0, w1 ... Returns metrics."""
        ...

    def step(self, update: Update, lr: float) -> Mapping[str, float]:
        """Clip, move `update.params` and clear the gradient; refuses what is not finite. Returns metrics."""
        ...

    def gap(self, batch: Batch) -> Mapping[str, float]:
        """|logp - old_logp| over the rows that know it: mean, p99, max. Before the first step of an update."""
        ...

    def weights(self, group: str) -> Mapping[str, Any]:
        """The parameters of a group by name."""
        ...

    def fingerprint(self, group: str) -> str:
        """A short hash of a group's weights."""
        ...

    def copy(self, target: str, source: str, rate: float = 1.0) -> None:
        """Move a group the share `rate` of the way to another."""
        ...

    def put(self, group: str, tensors: Mapping[str, Any], where: str = "given weights") -> None:
        """Set a group's weights."""
        ...

    def save(self, folder: Any, skip: Collection[str] = ()) -> None:
        """Write weights and optimiser states into a folder, but for the groups in `skip`."""
        ...

    def load(self, folder: Any, skip: Collection[str] = ()) -> None:
        """Read what `save` wrote."""
        ...


class Context(Protocol):
    """One growing text of one member, from `cast.policy.begin(prompt)`."""

    @property
    def at(self) -> Ref: ...

    async def sample(self, sampling: Sampling | None = None, **change: Any) -> Turn:
        """Let the member speak. `change` alters the stage's sampling: stop=..., max_tokens=..., temperature=..."""
        ...

    async def score(self, tokens: Sequence[int] | str, want: tuple[str, ...] = ("logp",)) -> Mapping[str, np.ndarray]:
        """Quantities of given tokens as if they came next, without adding them."""
        ...

    def append(self, text: str | Sequence[int], span: str = "") -> None:
        """Add what somebody else said: a retrieved document, an observation, a hint."""
        ...

    def say(self, role: str, text: Any, span: str = "", reply: Mapping[str, Any] | None = None) -> None:
        """Add a message as the model's chat template writes it, and the beginning of the next reply; in a new branch where the template
        writes what was said so far otherwise than it stands. reply: the last reply as a message, where it is more than its text."""
        ...

    def adopt(self, source: Turn | Sequence[int] | str, logp: Sequence[float] | None = None, span: str = "") -> None:
        """Add tokens chosen elsewhere (a graft, a cached draft); logp unknown unless given, origin kept."""
        ...

    def mark(self, turn: Turn, tag: str) -> None:
        """Name what stands inside <tag>...</tag> of a turn, tags included, as the span `tag`."""
        ...

    def pieces(self, turn: Turn) -> list[bytes]:
        """What each token of a turn adds to its text."""
        ...

    def fork(self, at: Ref | None = None) -> Context:
        """Another context that shares everything up to here, or up to an earlier place."""
        ...

    def note(self, **values: float) -> None:
        """Write numbers beside the current node: value, visits, round."""
        ...

    def close(self, key: str | None = None, learn: str | None = "main", role: str | None = None) -> Trajectory:
        """This path is a trajectory: compared within `key`, learned as the stream `learn`, of a `role` where it is not the member's name."""
        ...


@dataclass(slots=True)
class History:
    """What has been seen: by task, and every logged number by step.

    tasks[id]: seen (episodes), mean (reward of all), reward (mean of the last visit), adv (mean |advantage| per token then), last (its step).
    """

    step: int = 0
    tasks: dict[str, dict[str, float]] = field(default_factory=dict)
    scalars: dict[str, list[float]] = field(default_factory=dict)

    def last(self, name: str, default: float = float("nan")) -> float:
        """The newest value of a logged number."""
        values = self.scalars.get(name)
        return values[-1] if values else default
