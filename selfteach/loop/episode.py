"""Episodes: programs at play. A cast of members and tools, contexts that grow a tree, limits that end with a status."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..core import random_keys
from ..core.errors import BadValue, SelfteachError, unknown
from ..core.protocols import Completion, RolloutContext
from ..core.task import Ref, RolloutRequest, Sampling
from ..core.threads import run_in_thread
from ..core.tree import Episode, RolloutGroup, Trajectory, Tree, Turn
from .conversation import ANEW, Conversation, conversation_at, parting
from .step_context import PathView, StepContext


class EpisodeContext:
    """A program's models, tools and random numbers in one episode (core.protocols.RolloutContext)."""

    def __init__(
        self, table: StepContext, request: RolloutRequest, episode: Episode, place: tuple[object, ...]
    ) -> None:
        self._table, self._request, self._episode, self._place = table, request, episode, place
        self._turns = self._calls = self._refused = self._roots = 0
        self._talks: dict[int, Conversation] = {}  # by the node that ends with the beginning of a reply
        self._end = time.monotonic() + table.limits.seconds

    def __getattr__(self, name: str) -> EpisodeModel:
        if name.startswith("_"):
            raise AttributeError(name)
        return self.model_role(name)

    @property
    def policy(self) -> EpisodeModel:
        """The model that learns."""
        return self.model_role("policy")

    @property
    def model_roles(self) -> tuple[str, ...]:
        """Names of the models on stage."""
        return self._table.model_roles

    def model_role(self, name: str) -> EpisodeModel:
        """A model by name, as `cast.policy` is by attribute. Raises UnknownName."""
        if name not in self._table.model_roles:
            raise unknown("member of the cast", name, self._table.model_roles)
        return EpisodeModel(self, name)

    def tool(self, name: str) -> Callable[[Any], Awaitable[Any]]:
        """A tool by name: an async function of a query, called off the engine's thread with a deadline."""
        if name not in self._table.tools:
            raise unknown("tool", name, self._table.tools)
        tool = self._table.tools[name]

        async def call(query: Any) -> Any:
            self._calls += 1
            self._episode.cost["calls"] = self._calls
            if self._calls > self._table.limits.calls:
                raise BadValue(f"tool {name}: more than {self._table.limits.calls} calls in one episode")
            wait = self._table.limits.tool_seconds
            asked = tool(query) if inspect.iscoroutinefunction(tool) else run_in_thread(tool, query)
            try:
                return await asyncio.wait_for(asked, wait)
            except TimeoutError:
                raise SelfteachError(f"tool {name}: no answer within {wait:g} s") from None

        return call

    @property
    def reserved_token(self) -> int:
        """A token id that no text spells (Tokenizer.spare)."""
        return self._table.tokenizer.reserved_token

    async def once(self, name: str, make: Callable[[], Awaitable[Any]]) -> Any:
        """What all episodes of a table share, such as a figure of the policy as it stands: made by the first that asks,
        awaited by the others.
        """
        made = self._table.made
        if name not in made:
            made[name] = asyncio.ensure_future(make())
        return await asyncio.shield(made[name])

    def random(self, purpose: str) -> np.random.Generator:
        """A generator at this episode's own address."""
        return random_keys.generator(*self._place, purpose)

    @property
    def number(self) -> int:
        """Which of its request's episodes this is, from 0."""
        return int(str(self._place[-1]))

    @property
    def sampling(self) -> Sampling:
        """How members speak here unless a program says otherwise."""
        return self._request.sampling or self._table.sampling

    @property
    def spent(self) -> int:
        """Tokens that the episode has drawn so far."""
        return int(self._episode.cost.get("tokens", 0))

    def shared_rng_key(self, *words: object) -> int:
        """An address of the run's own, for draws that are to be the same in every step that names it."""
        return random_keys.key(self._table.seed, "shared_rng_key", *words)

    def text(self, at: Ref) -> str:
        """The text from after the prompt to a place."""
        return self._table.text(at)

    def path(self, at: Ref) -> PathView:
        """The tokens from a root to a place of this step or, where the run keeps a log, of an earlier one."""
        return self._table.path(at)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Tokens as text."""
        return self._table.tokenizer.decode(ids)

    def said(self, at: Ref) -> np.ndarray:
        """i32[n]: the tokens from after the prompt to a place, of this episode or an earlier round's."""
        path = self._table.path(at)
        return path.ids[path.prompt :]


@dataclass(frozen=True)
class EpisodeModel:
    """One member of the cast."""

    rollout: EpisodeContext
    name: str

    def begin(self, prompt: Any) -> LiveContext:
        """A new context that starts with a prompt: text, messages, or ids."""
        rollout = self.rollout
        ids = rollout._table.tokenizer.render(prompt)
        node = rollout._episode.tree.add(-1, ids, role=self.name)
        rollout._roots += 1
        if isinstance(prompt, list | tuple) and prompt and isinstance(prompt[0], Mapping):
            rollout._talks[node] = Conversation(tuple(prompt))
        return LiveContext(rollout, self.name, node, -1, (rollout._roots - 1,))


class LiveContext:
    """One growing text of one member (core.protocols.ModelContext).

    Holds a place in the episode's tree; tokens live there.
    """

    def __init__(self, rollout: EpisodeContext, model_role: str, node: int, offset: int, line: tuple[int, ...]) -> None:
        self.rollout, self.model_role, self.node, self.offset = rollout, model_role, node, offset
        self._line, self._forks, self._turn = line, 0, 0
        self._status = "stop"

    @property
    def tree(self) -> Tree:
        """The episode's tree."""
        return self.rollout._episode.tree

    @property
    def at(self) -> Ref:
        """The place of its end in the tree."""
        return Ref(self.rollout._episode.id, self.node, self.offset)

    @property
    def conversations(self) -> bool:
        """True where it began with messages, as a model with a chat template is asked."""
        return any(node in self.rollout._talks for node, _ in self.tree.path(self.node, self.offset))

    @property
    def ids(self) -> np.ndarray:
        """i32[L]: everything said so far."""
        return self.tree.id[self.tree.places(self.node, self.offset)]

    async def sample(
        self, sampling: Sampling | None = None, *, shared_rng_key: int | None = None, **change: Any
    ) -> Turn:
        """Let the member speak. A spent limit gives an empty turn with the status `limit`; asked on and on, it ends the
        episode.

        lots: the address that its tokens are drawn at; None: the turn's own place in the run.
        """
        rollout, table = self.rollout, self.rollout._table
        if table.engine is None:
            raise BadValue("this stage only reads data: its programs cannot sample")
        how = sampling or rollout._request.sampling or table.sampling
        how = replace(how, **{k: tuple(v) if isinstance(v, list) else v for k, v in change.items()})
        spent = rollout._episode.cost.get("tokens", 0)
        if rollout._turns >= table.limits.turns or spent >= table.limits.tokens or time.monotonic() > rollout._end:
            rollout._refused += 1
            if rollout._refused > 3:
                raise BadValue("the program goes on sampling after its limit is spent")
            rollout._episode.status = self._status = "limit"
            return Turn(self.at, "", "limit")
        room = int(table.limits.tokens - spent)
        if how.max_tokens is None or how.max_tokens > room:
            how = replace(how, max_tokens=room)
        place = random_keys.key(*rollout._place, *self._line, self._turn) if shared_rng_key is None else shared_rng_key
        done = await table.engine.generate(self.model_role, self.ids, how, place)
        return self._add(done, how)

    def _add(self, done: Completion, how: Sampling) -> Turn:
        rollout = self.rollout
        self.node = self.tree.add(
            self.node,
            done.ids,
            cut=None if self.offset < 0 else self.offset,
            role=self.model_role,
            action_mask=True,
            logp=done.logp,
            version=done.version,
            sampling=how,
            recorded=done.recorded,
        )
        self.offset = -1
        self._turn += 1
        self._status = done.status
        rollout._turns += 1
        rollout._episode.cost["turns"] = rollout._turns
        rollout._episode.cost["tokens"] = rollout._episode.cost.get("tokens", 0) + len(done.ids)
        return Turn(self.at, rollout._table.tokenizer.decode(done.ids), done.status)

    async def score(
        self, tokens: Sequence[int] | np.ndarray | str, want: tuple[str, ...] = ("logp",)
    ) -> Mapping[str, np.ndarray]:
        """Quantities of given tokens as if they came next, at temperature 1: name -> f32[n]."""
        table = self.rollout._table
        if table.engine is None:
            raise BadValue("this stage only reads data: its programs cannot score")
        ids = table.tokenizer.encode(tokens) if isinstance(tokens, str) else np.asarray(tokens, np.int32)
        cost = self.rollout._episode.cost
        cost["scored"] = cost.get("scored", 0) + len(ids)
        return await table.engine.score(self.model_role, self.ids, ids, want)

    def append(self, text: str | Sequence[int] | np.ndarray, span: str = "") -> None:
        """Add what somebody else said: a retrieved document, an observation, a hint."""
        ids = self.rollout._table.tokenizer.encode(text) if isinstance(text, str) else np.asarray(text, np.int32)
        if len(ids):
            self._grow(ids, span=span)

    def say(self, role: str, text: Any, span: str = "", reply: Mapping[str, Any] | None = None) -> None:
        """Add a message (an observation, say) as the model's chat template writes it, and the beginning of the next
        reply.

        reply: what was said since the last message as a message, where that is not its text alone (its tool calls,
        parsed).

        Where the template writes what was said so far otherwise than it stands (thinking left out, spaces trimmed, tool
        calls in its own spelling), the context goes on in a new branch: what is written anew is context, span
        `re_rendered`, and what was sampled stays where it was drawn (Trajectory.before). The cause is counted in the
        episode's cost. Raises BadValue where there is no template, or it refuses the role.
        """
        rollout, ids = self.rollout, self.ids
        tokenizer = rollout._table.tokenizer
        message = {"role": role, "content": text}
        last = int(ids[-1]) if len(ids) else None
        talk, begun = conversation_at(self.tree, self.at, rollout._talks)
        if talk is None:
            self._grow(tokenizer.message_ids(message, last), span=span)
            return
        raw = tokenizer.decode(ids[begun:])
        reply = reply or {"role": "assistant", "content": raw}
        new, own, why = tokenizer.continuation(talk.messages, raw, reply, message, last)
        left = talk.left
        if why is None:
            self._grow(new, span=span)
        else:
            left += (self.at,)
            same, self.node, self.offset = parting(self.tree, self.at, new[: len(new) - own])
            self._grow(new[same : len(new) - own], span=ANEW)
            if own:
                self._grow(new[len(new) - own :], span=span)
            cost = rollout._episode.cost
            cost[f"{ANEW}/{why}"] = cost.get(f"{ANEW}/{why}", 0) + 1
        rollout._talks[self.node] = Conversation((*talk.messages, reply, message), left)

    def adopt(
        self,
        source: Turn | Sequence[int] | np.ndarray | str,
        logp: Sequence[float] | np.ndarray | None = None,
        span: str = "",
        status: str | None = None,
    ) -> None:
        """Add tokens chosen elsewhere, which may be taught: a graft, a draft, a demonstration. logp is unknown unless
        given.

        status: why the turn that they are ended (stop, length), where nothing is sampled after them.
        """
        self._status = status or self._status
        origin = None
        if isinstance(source, Turn):
            tree = self.rollout._table.tree(source.at.episode)
            origin, ids = source.at, tree.id[tree.begin[source.at.node] : tree.stop(source.at.node)]
        elif isinstance(source, str):
            ids = self.rollout._table.tokenizer.encode(source)
        else:
            ids = np.asarray(source, np.int32)
        if len(ids):
            self._grow(ids, action_mask=True, logp=logp, origin=origin, span=span)

    def _grow(self, ids: np.ndarray, **more: Any) -> None:
        cut = None if self.offset < 0 or self.node < 0 else self.offset
        self.node = self.tree.add(self.node, ids, cut=cut, role=self.model_role, **more)
        self.offset = -1

    def finish(self) -> None:
        """Adopt the end of a text, after a demonstration."""
        self.adopt([self.rollout._table.tokenizer.end])

    def mark(self, turn: Turn, tag: str) -> None:
        """Name what stands inside <tag>...</tag> of a turn, tags included, as the span `tag`.

        A tag left open runs to the turn's end.
        """
        tree, node, said = self.tree, turn.at.node, self.pieces(turn)
        ends = np.cumsum([len(s) for s in said])
        text = b"".join(said)
        opening, closing = f"<{tag}>".encode(), f"</{tag}>".encode()
        at = text.find(opening)
        while at >= 0:
            shut = text.find(closing, at)
            stop = len(text) if shut < 0 else shut + len(closing)
            first, last = int(np.searchsorted(ends, at, "right")), int(np.searchsorted(ends, stop, "left"))
            tree.mark(node, first, last + 1, tag)
            at = text.find(opening, stop)

    def pieces(self, turn: Turn) -> list[bytes]:
        """What each token of a turn adds to its text: to find the token that a place in the text falls on
        (core.text.cuts).
        """
        return self.rollout._table.tokenizer.token_bytes(
            self.tree.id[self.tree.begin[turn.at.node] : self.tree.stop(turn.at.node)]
        )

    def fork(self, at: Ref | None = None) -> LiveContext:
        """Another context that shares everything up to here, or up to an earlier place of this episode."""
        at = at or self.at
        self._forks += 1
        return LiveContext(self.rollout, self.model_role, at.node, at.offset, (*self._line, -self._forks))

    def note(self, **values: float | Sequence[float]) -> None:
        """Write numbers, or sequences of numbers, beside the current node: value, visits, marks."""
        notes = self.tree.notes.setdefault(self.node, {})
        notes.update({n: tuple(v) if isinstance(v, Sequence) else v for n, v in values.items()})

    def close(self, key: str | None = None, learn: str | None = "main", role: str | None = None) -> Trajectory:
        """This path is a trajectory: compared within `key` (None: its group), learned as the stream `learn`, of a
        `role` (None: the member).
        """
        own = str(self.rollout._request.key) if key is None else f"{self.rollout._request.key}/{key}"
        talk, _ = conversation_at(self.tree, self.at, self.rollout._talks)
        trajectory = Trajectory(self.at, role or self.model_role, own, learn, self._status, talk.left if talk else ())
        self.rollout._episode.trajectories.append(trajectory)
        return trajectory


async def play(
    table: StepContext,
    requests: Sequence[RolloutRequest],
    round_: int = 0,
    scored: Callable[[RolloutGroup], Awaitable[None]] | None = None,
) -> list[RolloutGroup]:
    """Run the episodes of some requests, all at once; `scored` is awaited for each group as it comes in.

    An episode whose program raises is kept with the status `error`; a mistake that every episode would repeat (an
    unknown member or tool, a bad prompt) is one too, and shows up as errors in every episode. Returns one group per
    request, in order.
    """
    gate = asyncio.Semaphore(table.at_once)

    async def group(number: int, request: RolloutRequest) -> RolloutGroup:
        name = "/".join(str(w) for w in table.where) + f"/{round_}/{number}"
        request = replace(request, key=request.key or name)
        episodes = [Episode(f"{name}/{i}", Tree()) for i in range(request.n)]
        await asyncio.gather(*(one(request, episode, (round_, number, i)) for i, episode in enumerate(episodes)))
        made = RolloutGroup(request, episodes, {}, str(request.key))
        if scored is not None:
            await scored(made)
        return made

    async def one(request: RolloutRequest, episode: Episode, place: tuple[object, ...]) -> None:
        table.trees[episode.id] = episode.tree
        program = table.programs.get(request.program)
        if program is None:
            raise unknown("program of this stage", request.program, table.programs)
        async with gate:
            rollout: RolloutContext = EpisodeContext(table, request, episode, (table.seed, *table.where, *place))
            clock = asyncio.timeout(table.limits.seconds)
            try:
                async with clock:
                    episode.answer = await program(request=request, rollout=rollout)
            except Exception as error:
                if isinstance(error, TimeoutError) and clock.expired():
                    episode.status, episode.why = "limit", f"its {table.limits.seconds:g} seconds are spent"
                else:
                    episode.status, episode.why = "error", f"{type(error).__name__}: {error}"

    return list(await asyncio.gather(*(group(n, r) for n, r in enumerate(requests))))
