"""What blocks get: the contexts of programs and of rewards, and the history."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from .functions import FunctionSpec
from .protocols import Engine, Tokenizer
from .task import Ref, Sampling
from .tree import Trajectory, Tree, Turn


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


class PathView(NamedTuple):
    """A TokenPath of given arrays."""

    ids: np.ndarray
    action_mask: np.ndarray
    spans: list[str]
    prompt: int
    logp: np.ndarray


def end_to_end(paths: Sequence[TokenPath]) -> PathView:
    """Paths as one: the first, and of each of the others what comes after its prompt."""
    first, *others = paths
    kept = [(first, 0), *((path, path.prompt) for path in others)]
    return PathView(
        np.concatenate([path.ids[begin:] for path, begin in kept]),
        np.concatenate([path.action_mask[begin:] for path, begin in kept]),
        [span for path, begin in kept for span in path.spans[begin:]],
        first.prompt,
        np.concatenate([path.logp[begin:] for path, begin in kept]),
    )


def own_tokens(path: TokenPath) -> np.ndarray:
    """bool[L]: the tokens that the model sampled itself (a verified draft too), of those after the prompt.

    Not those of tools, retrieved documents, hints and other models, adopted or not: their log-probability under the
    policy is unknown. Where nothing was sampled (a demonstration), all that is in the action mask.
    """
    chosen = np.asarray(path.action_mask, bool) & (np.arange(len(path.ids)) >= path.prompt)
    sampled = chosen & ~np.isnan(np.asarray(path.logp, np.float64))
    return sampled if sampled.any() else chosen


@runtime_checkable
class ModelContext(Protocol):
    """One growing text of one model, from `rollout.policy.begin(prompt)`."""

    @property
    def at(self) -> Ref:
        """The place of its end."""
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
    def is_conversation(self) -> bool:
        """Whether its prompt was messages, which a chat template rendered."""
        ...

    async def sample(
        self, sampling: Sampling | None = None, *, shared_rng_key: int | None = None, **change: Any
    ) -> Turn:
        """Sample a turn and append it.

        sampling        None: the request's or the stage's
        shared_rng_key  the RNG key to draw at; None: one of its own for each turn
        change          fields of `sampling` to replace: stop=..., max_tokens=..., temperature=...
        """
        ...

    async def score(
        self, tokens: Sequence[int] | np.ndarray | str, want: tuple[str, ...] = ("logp",)
    ) -> Mapping[str, np.ndarray]:
        """Quantities of given tokens as a continuation, without appending them: name -> f32[n], at temperature 1."""
        ...

    def append(self, text: str | Sequence[int] | np.ndarray, span: str = "") -> None:
        """Append tokens outside the action mask: a retrieved document, an observation, a hint."""
        ...

    def say(self, role: str, text: Any, span: str = "", reply: Mapping[str, Any] | None = None) -> None:
        """Append a message and the generation prompt, as the model's chat template renders them; in a new branch where
        the template re-renders the conversation so far. reply: the last reply as a message, where that is not its text
        alone.
        """
        ...

    def adopt(
        self,
        source: Turn | Sequence[int] | np.ndarray | str,
        logp: Sequence[float] | np.ndarray | None = None,
        span: str = "",
        status: str | None = None,
    ) -> None:
        """Append adopted tokens (a cached draft, a demonstration), which are in the action mask.

        logp: unknown (NaN) unless given. status: why they ended.
        """
        ...

    def finish(self) -> None:
        """Adopt the EOS token, after a demonstration."""
        ...

    def mark(self, turn: Turn, tag: str) -> None:
        """Set the span of what is inside <tag>...</tag> of a turn, tags included, to `tag`."""
        ...

    def pieces(self, turn: Turn) -> list[bytes]:
        """The bytes that each token of a turn adds to its text."""
        ...

    def fork(self, at: Ref | None = None) -> ModelContext:
        """Another context with the same tokens up to here, or up to an earlier place."""
        ...

    def note(self, **values: float | Sequence[float]) -> None:
        """Store numbers, or sequences of numbers, with the current node: value, visits, marks."""
        ...

    def close(self, key: str | None = None, learn: str | None = "main", role: str | None = None) -> Trajectory:
        """Close this path as a trajectory.

        key: the group that it is compared in. learn: its loss stream; None: not learned. role: None is the model's
        name.
        """
        ...


class ModelHandle(Protocol):
    """One model of an episode."""

    @property
    def name(self) -> str:
        """Its role in the method."""
        ...

    def begin(self, prompt: Any, tools: Sequence[FunctionSpec] = ()) -> ModelContext:
        """A new context that starts with a prompt: text, messages, or ids.

        tools: functions that the model may call, said as its chat template says them, else in plain text.
        """
        ...


@runtime_checkable
class RolloutContext(Protocol):
    """What a program gets as `rollout`: models, tools, random numbers, places of this and earlier episodes."""

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

    def function(self, name: str) -> FunctionSpec:
        """What a tool that is a typed function takes (core/functions.py)."""
        ...

    def count(self, what: str) -> None:
        """Add 1 to a count of the episode: wrong_tool_calls, failed_tool_calls."""
        ...

    async def once(self, name: str, make: Callable[[], Awaitable[Any]]) -> Any:
        """A value that all episodes of a step share: computed by the first that asks, awaited by the others."""
        ...

    def stored(self, name: str) -> Any:
        """What blocks have stored under a name that they share, as the step began; None before any has."""
        ...

    def random(self, purpose: str) -> np.random.Generator:
        """A generator at this episode's own RNG key."""
        ...

    def shared_rng_key(self, *words: object) -> int:
        """An RNG key of the run alone, for draws that are the same in every step and episode."""
        ...

    @property
    def number(self) -> int:
        """The index of this episode among those of its request."""
        ...

    @property
    def sampling(self) -> Sampling:
        """How models sample unless a program changes it."""
        ...

    @property
    def spent(self) -> int:
        """Tokens that the episode has sampled so far."""
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

    def response_ids(self, at: Ref) -> np.ndarray:
        """i32[n]: the tokens from after the prompt to a place."""
        ...


@runtime_checkable
class RewardContext(Protocol):
    """What rewards and composers get as `context`: texts and tokens of places, the tokenizer, the engine to score
    with.
    """

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the run."""
        ...

    @property
    def engine(self) -> Engine | None:
        """None in a stage that only reads data."""
        ...

    def text(self, at: Ref) -> str:
        """What the policy itself wrote from after the prompt to a place (`own_tokens`): the `text` of a reward.

        What tools, documents, hints or other models put between is left out, so that nobody but the policy earns a
        reward for it.
        """
        ...

    def path(self, at: Ref) -> TokenPath:
        """The tokens from a root to a place of this step or, where the run keeps a log, of an earlier one."""
        ...


def written_pieces(context: RewardContext, at: Ref) -> list[bytes]:
    """The bytes of each token in the action mask, from a root to a place."""
    path = context.path(at)
    return context.tokenizer.token_bytes(path.ids[np.asarray(path.action_mask, bool)])


@dataclass(slots=True)
class History:
    """Statistics of the run so far.

    step     the step of the loop
    tasks    task id -> seen (scored trajectories), mean (of their rewards), and of its last step: reward (mean), adv
             (mean |advantage| per token), last (which step)
    scalars  metric -> its value at each step
    """

    step: int = 0
    tasks: dict[str, dict[str, float]] = field(default_factory=dict)
    scalars: dict[str, list[float]] = field(default_factory=dict)

    def last(self, name: str, default: float = float("nan")) -> float:
        """The newest value of a metric."""
        values = self.scalars.get(name)
        return values[-1] if values else default
