"""The protocols between packages: engine, learner, tokenizer."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np

from .batch import Batch
from .method import Update
from .task import Sampling


class Completion(NamedTuple):
    """The result of one generation request.

    ids       i32[n], the stop included
    logp      f32[n], under the distribution that each token was drawn from
    status    why it ended: stop | length | limit | cancelled | error
    version   of the weights that sampled it; i32[n], of each token, where they changed meanwhile
    recorded  name -> f32[n], of each quantity in `Sampling.record`
    """

    ids: np.ndarray
    logp: np.ndarray
    status: str
    version: int | np.ndarray
    recorded: Mapping[str, np.ndarray]


LogpKind = Literal["sampling", "tempered", "raw", "none"]


@dataclass(frozen=True, slots=True)
class EngineCapabilities:
    """What an engine can do besides drawing tokens; a method that needs more is refused before any work
    (loop/engine_roles.py).

    name           of the engine, for messages
    keyed_samples  a sample is a function of (weights, context, sampling, RNG key), so that two draws at one key are the
                   same draw, whatever else is being sampled
    logp           which log-probabilities it gives: of the distribution that tokens are drawn from (`sampling`), of
                   that before top-p and top-k (`tempered`), at temperature 1 before them (`raw`), or none
    scores         quantities of given tokens that `score` computes; None: all
    records        quantities that can be recorded as tokens are drawn; None: all
    scalar_heads   whether it holds scalar heads
    weight_groups  how many weight groups it can hold; None: any number
    updates        whether weights can be loaded while it runs; where not, why
    remote         it is another process, which can be lost
    steers         whether it can add a vector to hidden states as it samples (`Sampling.steering`)
    """

    name: str = "built-in"
    keyed_samples: bool = True
    logp: LogpKind = "sampling"
    scores: frozenset[str] | None = None
    records: frozenset[str] | None = None
    scalar_heads: bool = True
    weight_groups: int | None = None
    updates: Literal[True] | str = True
    remote: bool = False
    steers: bool = True

    def gives_logp(self, sampling: Sampling) -> bool:
        """Whether its log-probabilities are those of the distribution that these parameters draw from."""
        if self.logp in ("sampling", "none"):
            return self.logp == "sampling"
        return sampling.untruncated and (self.logp == "tempered" or sampling.temperature == 1)


class Engine(Protocol):
    """Samples tokens after contexts, and scores given tokens.

    A sample is a function of (weights, context, sampling, RNG key), never of what else is being sampled, unless
    `capabilities` says otherwise.
    """

    @property
    def capabilities(self) -> EngineCapabilities:
        """What it can do."""
        ...

    @property
    def groups(self) -> Sequence[str]:
        """Names of the weight groups that it holds."""
        ...

    async def generate(self, model_role: str, context: np.ndarray, sampling: Sampling, rng_key: int) -> Completion:
        """Draw tokens after `context` (i32[L]) until a stop, `sampling.max_tokens`, or the engine's context limit."""
        ...

    async def score(
        self, model_role: str, context: np.ndarray, tokens: np.ndarray, want: Sequence[str] = ("logp",)
    ) -> Mapping[str, np.ndarray]:
        """Quantities of given tokens (i32[n]) after a context: name -> f32[n], at temperature 1; also of the model's
        scalar heads.
        """
        ...

    def load(self, group: str, weights: Mapping[str, Any], version: int) -> str:
        """Load a weight group and clear its prefix cache.

        Returns the fingerprint of the weights that it now holds.
        """
        ...

    def fingerprint(self, group: str) -> str:
        """A short hash of the weights held, comparable with the learner's."""
        ...


@runtime_checkable
class InterruptibleEngine(Engine, Protocol):
    """An engine whose weights may change while it samples."""

    def load_running(self, group: str, weights: Mapping[str, Any], version: int) -> str:
        """As `load`, also while requests run, which go on under the new weights (Completion.version is per token)."""
        ...


@runtime_checkable
class MeteredEngine(Engine, Protocol):
    """An engine that says what it took to sample."""

    def meter(self) -> Mapping[str, float]:
        """What it did since this was last asked, by name."""
        ...


@runtime_checkable
class SleepingEngine(Engine, Protocol):
    """An engine that can give up its memory for a while."""

    def sleep(self) -> None:
        """Give up weights and caches until the next delivery or request, when it wakes by itself."""
        ...


@runtime_checkable
class ClosableEngine(Engine, Protocol):
    """An engine of other processes, which holds connections, files or the processes themselves."""

    def about(self) -> str:
        """What it is and cannot do, in a line."""
        ...

    async def close(self) -> None:
        """Let go of what it holds."""
        ...


class Learner(Protocol):
    """Computes columns of batches, accumulates gradients and steps the optimisers."""

    @property
    def models(self) -> Collection[str]:
        """Names of the models whose columns it computes."""
        ...

    def forward(self, batch: Batch, want: Sequence[str]) -> None:
        """Add `[model_]quantity[_view]` columns to the batch, without gradient."""
        ...

    def backward(self, batch: Batch, update: Update) -> Mapping[str, float]:
        """Accumulate the gradient of the update's terms, with their loss weights in columns w0, w1 ... Returns
        metrics.
        """
        ...

    def step(self, update: Update, lr: float) -> Mapping[str, float]:
        """Clip the gradient, step `update.params` and clear it; raises NotFinite. Returns metrics."""
        ...

    def logprob_mismatch(self, batch: Batch) -> Mapping[str, float]:
        """|logp - old_logp| over the rows that have both: mean, p99, max. Before the first step of an update.

        May add the column `logprob_gap` to the batch, old_logp - logp of each token.
        """
        ...

    def weights(self, group: str) -> Mapping[str, Any]:
        """The parameters of a group by name."""
        ...

    def fingerprint(self, group: str) -> str:
        """A short hash of a group's weights."""
        ...

    def trunk(self, group: str) -> Any:
        """The transformer of a weight group, with its current weights."""
        ...

    def structure(self, group: str) -> Any:
        """The transformer of a weight group for its shape alone: its weights may be absent."""
        ...

    def copy(self, target: str, source: str, rate: float = 1.0) -> None:
        """Update a group towards another: target += rate * (source - target)."""
        ...

    def reset_optimisers(self, groups: Sequence[str]) -> None:
        """Let the optimisers of some groups begin anew: their moments and step counts are dropped."""
        ...

    def put(self, group: str, tensors: Mapping[str, Any], where: str = "given weights") -> None:
        """Set a group's weights; `where` names their origin in errors."""
        ...

    def save(self, folder: Any, skip: Collection[str] = ()) -> None:
        """Write weights and optimiser states into a folder, but for the groups in `skip`."""
        ...

    def load(self, folder: Any, skip: Collection[str] = ()) -> None:
        """Read what `save` wrote."""
        ...

    def load_weights(self, folder: Any, skip: Collection[str] = ()) -> None:
        """Of what `save` wrote the weights alone, to measure them."""
        ...


@runtime_checkable
class Tokenizer(Protocol):
    """Text to token ids and back, as blocks use it."""

    @property
    def eos_token_id(self) -> int:
        """The id that is appended to a text to end it."""
        ...

    @property
    def reserved_token(self) -> int:
        """A reserved id, which no text spells."""
        ...

    def encode(self, text: str) -> np.ndarray:
        """i32[n]: the ids of a text; a special token that it spells is ordinary text."""
        ...

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of some ids."""
        ...

    def token_bytes(self, ids: Sequence[int] | np.ndarray) -> list[bytes]:
        """The bytes that each id adds to the text."""
        ...

    def render(self, prompt: Any) -> np.ndarray:
        """The ids of a prompt: text as a text begins, messages, or ids unchanged."""
        ...

    def blank_prompt(self, prompt: Any) -> np.ndarray:
        """The ids of a prompt without content."""
        ...
