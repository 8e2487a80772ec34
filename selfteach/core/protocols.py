"""The protocols between packages: what programs and rewards get, what an engine and a learner are."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from .batch import Batch
from .method import Update
from .task import Ref, Sampling
from .tree import Trajectory, Tree, Turn


class Completion(NamedTuple):
    """What an engine gives for one request: ids i32[n] (stop included), their logp f32[n], quantities asked for, and
    why it ended.

    status: stop | length | limit | cancelled | error. version: of the weights that drew it.
    """

    ids: np.ndarray
    logp: np.ndarray
    status: str
    version: int
    recorded: Mapping[str, np.ndarray]


class Engine(Protocol):
    """Turns contexts into tokens.

    A sample is a function of (weights, context, sampling, address), never of its neighbours.
    """

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
        """Quantities of given tokens (i32[n]) after a context: name -> f32[n], at temperature 1; also of a member's
        scalar heads.
        """
        ...

    def load(self, group: str, weights: Mapping[str, Any], version: int) -> str:
        """Take over a weight group; drops what was cached under older ones.

        Returns the fingerprint of what it now holds.
        """
        ...

    def fingerprint(self, group: str) -> str:
        """A short hash of the weights held, comparable with the learner's."""
        ...


class Learner(Protocol):
    """Turns batches into weights."""

    @property
    def models(self) -> Collection[str]:
        """Names of the models whose columns it computes."""
        ...

    def forward(self, batch: Batch, want: Sequence[str]) -> None:
        """Add `[member_]quantity[_view]` columns to the batch, without gradient."""
        ...

    def backward(self, batch: Batch, update: Update) -> Mapping[str, float]:
        """Accumulate the gradient of the update's terms, with their weights in columns w0, w1 ... Returns metrics."""
        ...

    def step(self, update: Update, lr: float) -> Mapping[str, float]:
        """Clip, move `update.params` and clear the gradient; refuses what is not finite. Returns metrics."""
        ...

    def logprob_mismatch(self, batch: Batch) -> Mapping[str, float]:
        """|logp - old_logp| over the rows that know it: mean, p99, max. Before the first step of an update."""
        ...

    def weights(self, group: str) -> Mapping[str, Any]:
        """The parameters of a group by name."""
        ...

    def fingerprint(self, group: str) -> str:
        """A short hash of a group's weights."""
        ...

    def trunk(self, group: str) -> Any:
        """The transformer of a weight group, as it is now."""
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


@runtime_checkable
class Tokenizer(Protocol):
    """Text to token ids and back, as blocks use it."""

    @property
    def end(self) -> int:
        """The id that ends a text."""
        ...

    @property
    def reserved_token(self) -> int:
        """A reserved id, which no text spells."""
        ...

    def encode(self, text: str) -> np.ndarray:
        """i32[n]: the ids of a text; no special token is read out of it."""
        ...

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of some ids."""
        ...

    def token_bytes(self, ids: Sequence[int] | np.ndarray) -> list[bytes]:
        """What each id adds to the text."""
        ...

    def blank_prompt(self, prompt: Any) -> np.ndarray:
        """The ids of a prompt with nothing asked in it."""
        ...


class TokenPath(Protocol):
    """The L tokens from a root to a place."""

    @property
    def ids(self) -> np.ndarray:
        """i32[L]."""
        ...

    @property
    def action_mask(self) -> np.ndarray:
        """bool[L]: the tokens that a model decided."""
        ...

    @property
    def spans(self) -> Sequence[str]:
        """The name of each token's span, "" where it has none."""
        ...

    @property
    def logp(self) -> np.ndarray:
        """f32[L], under the true sampling distribution; NaN where unknown."""
        ...

    @property
    def prompt(self) -> int:
        """How many of the tokens belong to the prompt."""
        ...


@runtime_checkable
class ModelContext(Protocol):
    """One growing text of one model, from `cast.policy.begin(prompt)`."""

    @property
    def at(self) -> Ref:
        """The place where it ends."""
        ...

    @property
    def ids(self) -> np.ndarray:
        """i32[L]: all its tokens."""
        ...

    @property
    def tree(self) -> Tree:
        """The episode's tree, in which it is a path."""
        ...

    @property
    def conversations(self) -> bool:
        """Whether it began with messages, as a model with a chat template is asked."""
        ...

    async def sample(
        self, sampling: Sampling | None = None, *, shared_rng_key: int | None = None, **change: Any
    ) -> Turn:
        """Let the model speak.

        change: other sampling than the stage's: stop=..., max_tokens=..., temperature=...
        lots: the RNG key to draw at
        """
        ...

    async def score(
        self, tokens: Sequence[int] | np.ndarray | str, want: tuple[str, ...] = ("logp",)
    ) -> Mapping[str, np.ndarray]:
        """Quantities of given tokens as if they came next, without adding them: name -> [n]."""
        ...

    def append(self, text: str | Sequence[int] | np.ndarray, span: str = "") -> None:
        """Add what somebody else said: a retrieved document, an observation, a hint."""
        ...

    def say(self, role: str, text: Any, span: str = "", reply: Mapping[str, Any] | None = None) -> None:
        """Add a message as the model's chat template writes it, and the beginning of the next reply; in a new branch
        where the template re-renders what stands there. reply: the last reply as a message, where it is more than its
        text.
        """
        ...

    def adopt(
        self,
        source: Turn | Sequence[int] | np.ndarray | str,
        logp: Sequence[float] | np.ndarray | None = None,
        span: str = "",
        status: str | None = None,
    ) -> None:
        """Add tokens chosen elsewhere (a cached draft, a demonstration), which may be learned; logp unknown unless
        given; status: why they ended.
        """
        ...

    def finish(self) -> None:
        """Adopt the end of a text, after a demonstration."""
        ...

    def mark(self, turn: Turn, tag: str) -> None:
        """Name what stands inside <tag>...</tag> of a turn, tags included, as the span `tag`."""
        ...

    def pieces(self, turn: Turn) -> list[bytes]:
        """What each token of a turn adds to its text."""
        ...

    def fork(self, at: Ref | None = None) -> ModelContext:
        """Another context that shares everything up to here, or up to an earlier place."""
        ...

    def note(self, **values: float | Sequence[float]) -> None:
        """Write numbers, or sequences of numbers, beside the current node: value, visits, marks."""
        ...

    def close(self, key: str | None = None, learn: str | None = "main", role: str | None = None) -> Trajectory:
        """This path is a trajectory: compared within `key`, learned as the stream `learn`, of a `role` where it is not
        the model's name.
        """
        ...


class ModelHandle(Protocol):
    """One model of an episode."""

    @property
    def name(self) -> str:
        """Its role in the method."""
        ...

    def begin(self, prompt: Any) -> ModelContext:
        """A new context that starts with a prompt: text, messages, or ids."""
        ...


@runtime_checkable
class RolloutContext(Protocol):
    """What a program gets as `cast`: models, tools, random numbers, places of this and earlier episodes."""

    @property
    def policy(self) -> ModelHandle:
        """The model that learns."""
        ...

    @property
    def model_roles(self) -> Sequence[str]:
        """Names of the models."""
        ...

    def model_role(self, name: str) -> ModelHandle:
        """A model by name."""
        ...

    def tool(self, name: str) -> Callable[[Any], Awaitable[Any]]:
        """A tool by name: an async function of a query, with a deadline."""
        ...

    async def once(self, name: str, make: Callable[[], Awaitable[Any]]) -> Any:
        """What all episodes of a step share: made by the first that asks, awaited by the others."""
        ...

    def random(self, purpose: str) -> np.random.Generator:
        """A generator at this episode's own RNG key."""
        ...

    def shared_rng_key(self, *words: object) -> int:
        """An RNG key of the run's own, for draws that are to be the same in every step that names it."""
        ...

    @property
    def number(self) -> int:
        """Which of its request's episodes this is, from 0."""
        ...

    @property
    def sampling(self) -> Sampling:
        """How models sample here unless a program says otherwise."""
        ...

    @property
    def spent(self) -> int:
        """Tokens that the episode has drawn so far."""
        ...

    @property
    def reserved_token(self) -> int:
        """A reserved token id, which no text spells."""
        ...

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Tokens as text."""
        ...

    def text(self, at: Ref) -> str:
        """The text from after the prompt to a place."""
        ...

    def path(self, at: Ref) -> TokenPath:
        """The tokens from a root to a place of this step or, where the run keeps a log, of an earlier one."""
        ...

    def said(self, at: Ref) -> np.ndarray:
        """i32[n]: the tokens from after the prompt to a place."""
        ...


@runtime_checkable
class RewardContext(Protocol):
    """What rewards and composers get as `cast`: places as text and tokens, the tokenizer, the engine to score by."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the run."""
        ...

    @property
    def engine(self) -> Engine | None:
        """None in a stage that only reads data."""
        ...

    def text(self, at: Ref) -> str:
        """The text from after the prompt to a place."""
        ...

    def path(self, at: Ref) -> TokenPath:
        """The tokens from a root to a place of this step or, where the run keeps a log, of an earlier one."""
        ...


@dataclass(slots=True)
class History:
    """What has been seen: by task, and every logged number by step.

    tasks[id]: seen (episodes), mean (reward of all), reward (mean of the last visit), adv (mean |advantage| per token
    then), last (its step).
    """

    step: int = 0
    tasks: dict[str, dict[str, float]] = field(default_factory=dict)
    scalars: dict[str, list[float]] = field(default_factory=dict)

    def last(self, name: str, default: float = float("nan")) -> float:
        """The newest value of a logged number."""
        values = self.scalars.get(name)
        return values[-1] if values else default
