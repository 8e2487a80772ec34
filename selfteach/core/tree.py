"""Episodes: an append-only tree of tokens each, stored as arrays; turns and trajectories are views of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from .errors import BadValue
from .tagged_text import last_between
from .task import Ref, RolloutRequest, Sampling

Note: TypeAlias = "float | tuple[float, ...]"  # what a program stores with a node under a name
_TOKEN_DTYPES = {"id": np.int32, "action_mask": np.bool_, "logp": np.float32, "version": np.int32, "span": np.int16}


class Tree:
    """Tokens and nodes of an episode in flat arrays, append-only. Node k owns the tokens begin[k]:begin[k+1].

    Of T tokens:
    id           i32
    action_mask  bool, True where the model decided the token (sampled or adopted)
    logp         f32, under the distribution that it was sampled from; NaN: unknown
    version      i32, of the weights that sampled it; -1: not sampled
    span         i16, index into `spans`
    recorded     name -> f32, quantities that the engine returned

    Of K nodes:
    parent       index of a node; -1: a root
    cut          the number of the parent's tokens before this node
    begin        the index of its first token
    by           its role, index into `roles`
    sampling     index into `samplings`; -1: not sampled
    origin       node -> the place whose tokens it adopted
    notes        node -> name -> numbers
    """

    __slots__ = (
        "_tokens",
        "_used",
        "recorded",
        "parent",
        "cut",
        "begin",
        "by",
        "sampling",
        "origin",
        "notes",
        "spans",
        "roles",
        "samplings",
    )

    def __init__(self) -> None:
        self._tokens = {name: np.zeros(256, dtype) for name, dtype in _TOKEN_DTYPES.items()}
        self._used = 0
        self.recorded: dict[str, np.ndarray] = {}
        self.parent: list[int] = []
        self.cut: list[int] = []
        self.begin: list[int] = []
        self.by: list[int] = []
        self.sampling: list[int] = []
        self.origin: dict[int, Ref] = {}
        self.notes: dict[int, dict[str, Note]] = {}
        self.spans: list[str] = [""]
        self.roles: list[str] = []
        self.samplings: list[Sampling] = []

    def __len__(self) -> int:
        """Number of tokens."""
        return self._used

    @property
    def id(self) -> np.ndarray:
        """i32[T]."""
        return self._column("id")

    @property
    def action_mask(self) -> np.ndarray:
        """bool[T]: the tokens that a model decided."""
        return self._column("action_mask")

    @property
    def logp(self) -> np.ndarray:
        """f32[T], NaN where unknown."""
        return self._column("logp")

    @property
    def version(self) -> np.ndarray:
        """i32[T]: the version of the weights that sampled the token, -1 for none."""
        return self._column("version")

    @property
    def span(self) -> np.ndarray:
        """i16[T], indices into `spans`."""
        return self._column("span")

    def _column(self, name: str) -> np.ndarray:
        """The values of all tokens, which nobody changes but this tree."""
        values = self._tokens[name][: self._used]
        values.flags.writeable = False  # of the view alone
        return values

    def add(
        self,
        parent: int,
        ids: Sequence[int] | np.ndarray,
        *,
        cut: int | None = None,
        role: str = "policy",
        action_mask: bool = False,
        logp: Sequence[float] | np.ndarray | None = None,
        version: int | np.ndarray = -1,
        span: str = "",
        sampling: Sampling | None = None,
        recorded: Mapping[str, np.ndarray] | None = None,
        origin: Ref | None = None,
    ) -> int:
        """Append a node below `parent` (-1: a new root) and return its number. version: of all, or of each token.

        Raises BadValue for lengths that differ.
        """
        ids = np.asarray(ids, np.int32)
        if logp is not None and len(logp) != len(ids):
            raise BadValue(f"tree: {len(ids)} tokens with {len(logp)} log-probabilities")
        cut = (self.size(parent) if parent >= 0 else 0) if cut is None else cut  # before the parent's end can move
        node, start, stop = len(self.parent), self._used, self._used + len(ids)
        self._grow(stop)
        self._tokens["id"][start:stop] = ids
        self._tokens["action_mask"][start:stop] = action_mask
        self._tokens["logp"][start:stop] = math.nan if logp is None else logp
        self._tokens["version"][start:stop] = version
        self._tokens["span"][start:stop] = self._index(self.spans, span)
        for name, values in (recorded or {}).items():
            column = self.recorded.setdefault(name, np.full(len(self._tokens["id"]), np.nan, np.float32))
            column[start:stop] = values
        self._used = stop
        self.parent.append(parent)
        self.cut.append(cut)
        self.begin.append(start)
        self.by.append(self._index(self.roles, role))
        self.sampling.append(-1 if sampling is None else self._index(self.samplings, sampling))
        if origin is not None:
            self.origin[node] = origin
        return node

    def size(self, node: int) -> int:
        """Number of tokens of a node."""
        return self.stop(node) - self.begin[node]

    def stop(self, node: int) -> int:
        """The index after a node's last token."""
        return self.begin[node + 1] if node + 1 < len(self.begin) else self._used

    def mark(self, node: int, start: int, stop: int, span: str) -> None:
        """Set the span of the tokens start:stop of a node: information, think ..."""
        a = self.begin[node]
        self._tokens["span"][a + start : a + stop] = self._index(self.spans, span)

    def number(self, node: int, name: str) -> float | None:
        """The number stored with a node under that name; None where there is none."""
        value = self.notes.get(node, {}).get(name)
        return None if isinstance(value, tuple) else value

    def numbers(self, node: int, name: str) -> tuple[float, ...] | None:
        """The sequence of numbers stored with a node under that name; None where there is none."""
        value = self.notes.get(node, {}).get(name)
        return value if isinstance(value, tuple) else None

    def path(self, node: int, offset: int = -1) -> list[tuple[int, int]]:
        """(node, number of its tokens on the path) from the root to a place, in order."""
        out: list[tuple[int, int]] = []
        upto = self.size(node) if offset < 0 else offset
        while node >= 0:
            out.append((node, upto))
            upto, node = self.cut[node], self.parent[node]
        return out[::-1]

    def places(self, node: int, offset: int = -1) -> np.ndarray:
        """i64[L]: indices of all tokens from the root to a place, in order."""
        pieces = [np.arange(first, last) for first, last in self._stretches(node, offset)]
        return np.concatenate(pieces) if pieces else np.zeros(0, np.int64)

    def ids_to(self, node: int, offset: int = -1) -> np.ndarray:
        """i32[L]: all tokens from the root to a place, in order."""
        pieces = [self._tokens["id"][first:last] for first, last in self._stretches(node, offset)]
        return np.concatenate(pieces) if pieces else np.zeros(0, np.int32)

    def _stretches(self, node: int, offset: int) -> list[tuple[int, int]]:
        """(first, last + 1) of the tokens from the root to a place; where nothing branches off they are one stretch."""
        out: list[tuple[int, int]] = []
        upto = self.size(node) if offset < 0 else offset
        while node >= 0:
            first = self.begin[node]
            last = out.pop()[1] if out and out[-1][0] == first + upto else first + upto
            out.append((first, last))
            upto, node = self.cut[node], self.parent[node]
        return out[::-1]

    def adopt_arrays(
        self, tokens: Mapping[str, np.ndarray], nodes: Mapping[str, list[int]], recorded: Mapping[str, np.ndarray]
    ) -> None:
        """Fill the tree with what a log holds: token columns, node columns, recorded quantities."""
        self._tokens = {n: np.array(tokens[n], dtype) for n, dtype in _TOKEN_DTYPES.items()}
        self._used = len(self._tokens["id"])
        self.recorded = {n: np.array(v, np.float32) for n, v in recorded.items()}
        self.parent, self.cut, self.begin = nodes["parent"], nodes["cut"], nodes["begin"]
        self.by, self.sampling = nodes["by"], nodes["sampling"]

    def _grow(self, size: int) -> None:
        have = len(self._tokens["id"])
        if size <= have:
            return
        capacity = max(size, 2 * have, 64)
        for name, old in self._tokens.items():
            self._tokens[name] = np.concatenate([old, np.zeros(capacity - have, old.dtype)])
        for name, old in self.recorded.items():
            self.recorded[name] = np.concatenate([old, np.full(capacity - len(old), np.nan, np.float32)])

    @staticmethod
    def _index(values: list[Any], value: Any) -> int:
        try:
            return values.index(value)
        except ValueError:
            values.append(value)
            return len(values) - 1


class Turn(NamedTuple):
    """What `sample` returns: a view of one node.

    status: stop | length | limit | cancelled | error.
    """

    at: Ref
    text: str
    status: str

    def between(self, tag: str) -> str | None:
        """The text inside the last <tag>...</tag> of the turn, stripped; None where there is none."""
        return last_between(self.text, tag, None)


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A path from a root to a leaf that a program closed.

    role    of whose policy it is
    key     the group that it is compared in
    learn   its loss stream; None: logged, never learned (a judge, a vine)
    status  why its last turn ended
    before  the ends of earlier branches, one for each time that a chat template re-rendered the conversation: what was
            sampled up to there is learned there, in the context that it was sampled in
    """

    leaf: Ref
    role: str
    key: str
    learn: str | None = "main"
    status: str = "stop"
    before: tuple[Ref, ...] = ()


class CallRecord(NamedTuple):
    """A call of a tool: its name, the last node of the tree when it was called, seconds, and what it raised or "".

    seconds: from the call to its end, waiting for a free place included; of a clock, so never the same twice.
    """

    tool: str
    node: int
    seconds: float
    error: str = ""


@dataclass(slots=True)
class Episode:
    """One run of a program: its tree, the trajectories it closed, and what it returned.

    status: done | limit | error; `why`: the error. cost: tokens sampled, scored, turns, calls. calls: of tools, for
    people who read the log; nothing else may depend on their times.
    """

    id: str
    tree: Tree
    trajectories: list[Trajectory] = field(default_factory=list)
    answer: Any = None
    status: str = "done"
    why: str = ""
    cost: dict[str, float] = field(default_factory=dict)
    calls: list[CallRecord] = field(default_factory=list[CallRecord])

    @property
    def learned(self) -> list[Trajectory]:
        """The trajectories that are learned: those with a loss stream."""
        return [t for t in self.trajectories if t.learn is not None]


NUMBERS: Any = (bool, int, float, np.bool_, np.integer, np.floating)


@dataclass(frozen=True, slots=True)
class Score:
    """A reward's score. value None: there is none, which is not 0. `parts`: components by name; `why`: a reason in
    words; `error`: what failed.
    """

    value: float | None
    parts: Mapping[str, float] = field(default_factory=dict[str, float])
    why: str = ""
    error: str | None = None

    @staticmethod
    def of(value: Any) -> Score:
        """A Score from what a reward returned: a number, a bool or a Score.

        Anything else is a recorded error, never a 0.
        """
        if isinstance(value, Score):
            odd = next((k for k, v in dict[str, Any](value.parts).items() if not isinstance(v, NUMBERS)), None)
            if odd is not None:
                return Score(
                    None,
                    why=str(value.why),
                    error=f"the reward's part {odd!r} is a {type(value.parts[odd]).__name__}, not a number",
                )
            return value if value.value is None else _finite(value)
        if isinstance(value, NUMBERS):
            return _finite(Score(float(value)))
        if value is None:
            return Score(None, error="the reward returned None: no score")
        return Score(
            None, error=f"the reward returned {type(value).__name__} {str(value)[:60]!r}, not a number or a Score"
        )


def _finite(score: Score) -> Score:
    value: Any = score.value
    if not isinstance(value, NUMBERS):
        return Score(None, score.parts, score.why, f"the reward's value is a {type(value).__name__}, not a number")
    if not math.isfinite(value):
        return Score(None, score.parts, score.why, f"the reward's value is {value}")
    return Score(float(value), score.parts, score.why, score.error)


Scores = dict[str, dict[Ref, Score]]  # column -> place -> score: outcomes at leaves, step scores at step ends


class RolloutGroup(NamedTuple):
    """The episodes of one request, compared with each other. `scores` is filled as soon as the group is in."""

    request: RolloutRequest
    episodes: list[Episode]
    scores: Scores
    key: str

    @property
    def learned(self) -> list[tuple[Episode, Trajectory]]:
        """Each trajectory that is learned, with its episode."""
        return [(episode, t) for episode in self.episodes for t in episode.learned]

    def for_user(self) -> RolloutGroup:
        """The same with lists of its own, for a reward or a composer, which may change what it is given; costs, which
        rewards add to, are shared.
        """
        episodes = [replace(e, trajectories=[*e.trajectories]) for e in self.episodes]
        return self._replace(episodes=episodes, scores={n: {**places} for n, places in self.scores.items()})
