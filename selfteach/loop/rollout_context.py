"""What a program gets in one episode: models, tools, random numbers, and contexts that grow the episode's tree."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..core import random_keys
from ..core.blocks import shared_key
from ..core.contexts import PathView
from ..core.env import EnvStep
from ..core.errors import BadValue, SelfteachError, describe, unknown
from ..core.functions import FunctionSpec
from ..core.protocols import Completion
from ..core.task import Ref, RolloutRequest, Sampling
from ..core.threads import call_user
from ..core.tool_calls import ToolText
from ..core.tree import CallRecord, Episode, Trajectory, Tree, Turn
from ..core.user_code import end_fork
from .conversation import RE_RENDERED, Conversation, common_prefix, conversation_at, with_tools
from .step_context import StepContext
from .text_limit import cut, refuse_beyond

EMPTY_TURNS = 64  # after a limit of the episode: as many as a program may sample at once, and end


class EpisodeContext:
    """A program's models, tools and random numbers in one episode (core.contexts.RolloutContext)."""

    def __init__(
        self, step_context: StepContext, request: RolloutRequest, episode: Episode, place: tuple[object, ...]
    ) -> None:
        self._step_context, self._request, self._episode, self._place = step_context, request, episode, place
        self._turns = self._calls = self._refused = self._roots = 0
        self._conversations: dict[int, Conversation] = {}  # by the node that ends with a generation prompt
        self._end = time.monotonic() + step_context.limits.seconds
        self._process = os.getpid()

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
        """Names of the models."""
        return self._step_context.model_roles

    def model_role(self, name: str) -> EpisodeModel:
        """A model by name, as `rollout.policy` is by attribute. Raises UnknownName."""
        if name not in self._step_context.model_roles:
            raise unknown("model of the method", name, self._step_context.model_roles)
        return EpisodeModel(self, name)

    def tool(self, name: str) -> Callable[[Any], Awaitable[Any]]:
        """A tool by name: an async function of a query, called in a thread of its own, with a deadline."""
        if name not in self._step_context.tools:
            raise unknown("tool", name, self._step_context.tools)
        tool = self._step_context.tools[name]

        async def call(query: Any) -> Any:
            end_fork(self._process)
            self._calls += 1
            self._episode.cost["calls"] = self._calls
            if self._calls > self._step_context.limits.calls:
                raise BadValue(f"tool {name}: more than {self._step_context.limits.calls} calls in one episode")
            deadline = self._step_context.limits.tool_seconds
            node, begun, wrong = len(self._episode.tree.parent) - 1, time.monotonic(), ""
            try:
                draw = {"draw": self.random(f"tool {name} {self._calls}")} if getattr(tool, "draws", False) else {}
                found = await call_user(tool, deadline, query, **draw)
            except TimeoutError as error:
                wrong = f"no answer within {deadline:g} s"
                if describe(error) != "TimeoutError":  # one with a message is the tool's own
                    wrong = describe(error, 160)
                    raise
                raise SelfteachError(f"tool {name}: {wrong}") from None
            except Exception as error:
                wrong = describe(error, 160)
                raise
            finally:
                self._episode.calls.append(CallRecord(name, node, round(time.monotonic() - begun, 4), wrong))
            for what, n in found.counts.items() if isinstance(found, ToolText | EnvStep) else ():
                self._episode.cost[what] = self._episode.cost.get(what, 0) + n
            return found

        return call

    def function(self, name: str) -> FunctionSpec:
        """What a tool that is a typed function takes. Raises UnknownName, and BadValue for another kind of tool."""
        if name not in self._step_context.tools:
            raise unknown("tool", name, self._step_context.tools)
        spec = getattr(self._step_context.tools[name], "spec", None)
        if not isinstance(spec, FunctionSpec):
            raise BadValue(f"tool {name}: is no typed function, so it has no schema; call it by rollout.tool")
        return spec

    def count(self, what: str) -> None:
        """Add 1 to a count of the episode (its cost)."""
        self._episode.cost[what] = self._episode.cost.get(what, 0) + 1

    @property
    def reserved_token(self) -> int:
        """A token id that no text spells (Tokenizer.reserved_token)."""
        return self._step_context.tokenizer.reserved_token

    async def once(self, name: str, make: Callable[[], Awaitable[Any]]) -> Any:
        """A value that all episodes of a step share, such as a statistic of the policy: computed by the first that
        asks, awaited by the others.
        """
        shared = self._step_context.shared
        if name not in shared:
            shared[name] = asyncio.ensure_future(make())
        return await asyncio.shield(shared[name])

    def stored(self, name: str) -> Any:
        """What blocks have stored under a name that they share (`@stateful(..., shared=name)`), as the step began; None
        before any has.
        """
        return self._step_context.stored.get(shared_key(name))

    def random(self, purpose: str) -> np.random.Generator:
        """A generator at this episode's own RNG key."""
        return random_keys.generator(*self._place, purpose)

    @property
    def number(self) -> int:
        """The index of this episode among those of its request."""
        return int(str(self._place[-1]))

    @property
    def sampling(self) -> Sampling:
        """How models sample unless a program changes it."""
        return self._request.sampling or self._step_context.sampling

    @property
    def spent(self) -> int:
        """Tokens that the episode has sampled so far."""
        return int(self._episode.cost.get("tokens", 0))

    def shared_rng_key(self, *words: object) -> int:
        """An RNG key of the run alone, for draws that are the same in every step and episode."""
        return random_keys.key(self._step_context.seed, "shared_rng_key", *words)

    def text(self, at: Ref) -> str:
        """The text from after the prompt to a place."""
        return self._step_context.whole_text(at)

    def path(self, at: Ref) -> PathView:
        """The tokens from a root to a place of this step or, where the run keeps a log, of an earlier one."""
        return self._step_context.path(at)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Tokens as text."""
        return self._step_context.tokenizer.decode(ids)

    def messages_after_prompt(self, at: Ref) -> list[Mapping[str, Any]] | None:
        """What was said from after the prompt to a place, as messages; None where the prompt was not messages."""
        tree = self._episode.tree
        conversation, begun = conversation_at(tree, at, self._conversations)
        root = self._conversations.get(tree.path(at.node, at.offset)[0][0])
        if conversation is None or root is None:
            return None
        last = {"role": "assistant", "content": self.decode(tree.ids_to(at.node, at.offset)[begun:])}
        return [*conversation.messages[len(root.messages) :], last]

    def response_ids(self, at: Ref) -> np.ndarray:
        """i32[n]: the tokens from after the prompt to a place, of this episode or an earlier round's."""
        path = self._step_context.path(at)
        return path.ids[path.prompt :]


@dataclass(frozen=True)
class EpisodeModel:
    """One model of an episode (core.contexts.ModelHandle)."""

    rollout: EpisodeContext
    name: str

    def begin(self, prompt: Any, tools: Sequence[FunctionSpec] = ()) -> LiveContext:
        """A new context that starts with a prompt: text, messages, or ids.

        tools: functions that the model may call, said as its chat template says them, else in plain text.
        """
        rollout = self.rollout
        refuse_beyond(prompt, rollout._step_context.limits.characters, "prompt")
        prompt, schemas = with_tools(prompt, tools, rollout._step_context.tokenizer)
        ids = rollout._step_context.tokenizer.render(prompt, schemas)
        node = rollout._episode.tree.add(-1, ids, role=self.name)
        rollout._roots += 1
        if isinstance(prompt, list | tuple) and prompt and isinstance(prompt[0], Mapping):
            rollout._conversations[node] = Conversation(tuple(prompt), tools=schemas)
        return LiveContext(rollout, self.name, node, -1, (rollout._roots - 1,))


class LiveContext:
    """One growing text of one model (core.contexts.ModelContext): a place in the episode's tree, which holds its
    tokens.
    """

    def __init__(
        self, rollout: EpisodeContext, model_role: str, node: int, offset: int, branch: tuple[int, ...]
    ) -> None:
        self.rollout, self.model_role, self.node, self.offset = rollout, model_role, node, offset
        self._branch, self._forks, self._turn = branch, 0, 0
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
    def is_conversation(self) -> bool:
        """Whether its prompt was messages, which a chat template rendered."""
        conversations = self.rollout._conversations
        return bool(conversations) and any(n in conversations for n, _ in self.tree.path(self.node, self.offset))

    @property
    def ids(self) -> np.ndarray:
        """i32[L]: all its tokens."""
        return self.tree.ids_to(self.node, self.offset)

    async def sample(
        self, sampling: Sampling | None = None, *, shared_rng_key: int | None = None, **change: Any
    ) -> Turn:
        """Sample a turn and append it. Where a limit of the episode is reached the turn is empty, with the status
        `limit`; after 64 of these, of all contexts together, the episode ends with an error.

        shared_rng_key: the RNG key to draw at; None: one of its own, of the turn's place in the run.
        """
        rollout, step_context = self.rollout, self.rollout._step_context
        end_fork(rollout._process)
        if step_context.engine is None:
            raise BadValue("this stage only reads data: its programs cannot sample")
        used = sampling or rollout._request.sampling or step_context.sampling
        used = replace(used, **{k: tuple(v) if isinstance(v, list) else v for k, v in change.items()})
        spent = rollout._episode.cost.get("tokens", 0)
        if (
            rollout._turns >= step_context.limits.turns
            or spent >= step_context.limits.tokens
            or time.monotonic() > rollout._end
        ):
            rollout._refused += 1
            if rollout._refused > EMPTY_TURNS:
                raise BadValue("the program continues to sample after its limit is reached")
            rollout._episode.status = self._status = "limit"
            return Turn(self.at, "", "limit")
        left = int(step_context.limits.tokens - spent)
        if used.max_tokens is None or used.max_tokens > left:
            used = replace(used, max_tokens=left)
        rng_key = (
            random_keys.key(*rollout._place, *self._branch, self._turn) if shared_rng_key is None else shared_rng_key
        )
        completion = await step_context.engine.generate(self.model_role, self.ids, used, rng_key)
        return self._add(completion, used)

    def _add(self, completion: Completion, sampling: Sampling) -> Turn:
        rollout = self.rollout
        self.node = self.tree.add(
            self.node,
            completion.ids,
            cut=None if self.offset < 0 else self.offset,
            role=self.model_role,
            action_mask=True,
            logp=completion.logp,
            version=completion.version,
            sampling=sampling,
            recorded=completion.recorded,
        )
        self.offset = -1
        self._turn += 1
        self._status = completion.status
        rollout._turns += 1
        rollout._episode.cost["turns"] = rollout._turns
        rollout._episode.cost["tokens"] = rollout._episode.cost.get("tokens", 0) + len(completion.ids)
        return Turn(self.at, rollout._step_context.tokenizer.decode(completion.ids), completion.status)

    async def score(
        self, tokens: Sequence[int] | np.ndarray | str, want: tuple[str, ...] = ("logp",)
    ) -> Mapping[str, np.ndarray]:
        """Quantities of given tokens as a continuation, without appending them: name -> f32[n], at temperature 1."""
        step_context = self.rollout._step_context
        end_fork(self.rollout._process)
        if step_context.engine is None:
            raise BadValue("this stage only reads data: its programs cannot score")
        refuse_beyond(tokens, step_context.limits.characters, "text to score")
        ids = step_context.tokenizer.encode(tokens) if isinstance(tokens, str) else np.asarray(tokens, np.int32)
        cost = self.rollout._episode.cost
        cost["scored"] = cost.get("scored", 0) + len(ids)
        return await step_context.engine.score(self.model_role, self.ids, ids, want)

    def append(self, text: str | Sequence[int] | np.ndarray, span: str = "") -> None:
        """Append tokens outside the action mask: a retrieved document, an observation, a hint."""
        if not len(text):
            return
        ids = self._encode(text) if isinstance(text, str) else np.asarray(text, np.int32)
        if len(ids):
            self._grow(ids, span=span)

    def say(self, role: str, text: Any, span: str = "", reply: Mapping[str, Any] | None = None) -> None:
        """Append a message (an observation, say) and the generation prompt, as the model's chat template renders them.

        reply: the tokens since the last message as a message, where that is not their text alone (parsed tool calls).

        Where the template renders the conversation so far otherwise than it is in the tree (thinking left out, spaces
        trimmed, tool calls in its own spelling), the context continues in a new branch: the re-rendered tokens are
        context, span `re_rendered`, and sampled tokens are learned in the branch where they were sampled
        (Trajectory.before). The cause is counted in the episode's cost. Raises BadValue where there is no template, or
        it refuses the role.
        """
        rollout, ids = self.rollout, self.ids
        tokenizer = rollout._step_context.tokenizer
        message = {"role": role, "content": self._cut(text)}
        last = int(ids[-1]) if len(ids) else None
        conversation, begun = conversation_at(self.tree, self.at, rollout._conversations)
        if conversation is None:
            self._grow(tokenizer.message_ids(message, last), span=span)
            return
        raw = tokenizer.decode(ids[begun:])
        reply = reply or {"role": "assistant", "content": raw}
        new, n_message, cause = tokenizer.continuation(
            conversation.messages, raw, reply, message, last, conversation.tools
        )
        re_rendered_at = conversation.re_rendered_at
        if cause is None:
            self._grow(new, span=span)
        else:
            re_rendered_at += (self.at,)
            same, self.node, self.offset = common_prefix(self.tree, self.at, new[: len(new) - n_message])
            self._grow(new[same : len(new) - n_message], span=RE_RENDERED)
            if n_message:
                self._grow(new[len(new) - n_message :], span=span)
            cost = rollout._episode.cost
            cost[f"{RE_RENDERED}/{cause}"] = cost.get(f"{RE_RENDERED}/{cause}", 0) + 1
        messages = (*conversation.messages, reply, message)
        rollout._conversations[self.node] = Conversation(messages, re_rendered_at, conversation.tools)

    def adopt(
        self,
        source: Turn | Sequence[int] | np.ndarray | str,
        logp: Sequence[float] | np.ndarray | None = None,
        span: str = "",
        status: str | None = None,
    ) -> None:
        """Append adopted tokens, which are in the action mask: a draft, a demonstration, tokens of another trajectory.

        logp: unknown (NaN) unless given. status: why the turn that they are ended (stop, length), where nothing is
        sampled after them.
        """
        self._status = status or self._status
        origin = None
        if isinstance(source, Turn):
            tree = self.rollout._step_context.tree(source.at.episode)
            origin, ids = source.at, tree.id[tree.begin[source.at.node] : tree.stop(source.at.node)]
        elif isinstance(source, str):
            ids = self._encode(source)
        else:
            ids = np.asarray(source, np.int32)
        if len(ids):
            self._grow(ids, action_mask=True, logp=logp, origin=origin, span=span)

    def _cut(self, text: Any) -> Any:
        """A text of a tool or a task without what no context can hold; every such text passes here."""
        return cut(text, self.rollout._step_context.limits.characters, self.rollout._episode.cost)

    def _encode(self, text: str) -> np.ndarray:
        return self.rollout._step_context.tokenizer.encode(self._cut(text))

    def _grow(self, ids: np.ndarray, **more: Any) -> None:
        cut = None if self.offset < 0 or self.node < 0 else self.offset
        self.node = self.tree.add(self.node, ids, cut=cut, role=self.model_role, **more)
        self.offset = -1

    def finish(self) -> None:
        """Adopt the EOS token, after a demonstration."""
        self.adopt([self.rollout._step_context.tokenizer.eos_token_id])

    def mark(self, turn: Turn, tag: str) -> None:
        """Set the span of what is inside <tag>...</tag> of a turn, tags included, to `tag`.

        A tag that is left open begins no span.
        """
        tree, node, pieces = self.tree, turn.at.node, self.pieces(turn)
        ends = np.cumsum([len(piece) for piece in pieces])
        text = b"".join(pieces)
        opening, closing = f"<{tag}>".encode(), f"</{tag}>".encode()
        at = text.find(opening)
        while at >= 0 and (shut := text.find(closing, at)) >= 0:
            stop = shut + len(closing)
            first, last = int(np.searchsorted(ends, at, "right")), int(np.searchsorted(ends, stop, "left"))
            tree.mark(node, first, last + 1, tag)
            at = text.find(opening, stop)

    def pieces(self, turn: Turn) -> list[bytes]:
        """The bytes that each token of a turn adds to its text, to find the token at a place in the text
        (core.tagged_text.split_points).
        """
        return self.rollout._step_context.tokenizer.token_bytes(
            self.tree.id[self.tree.begin[turn.at.node] : self.tree.stop(turn.at.node)]
        )

    def fork(self, at: Ref | None = None) -> LiveContext:
        """Another context with the same tokens up to here, or up to an earlier place of this episode."""
        at = at or self.at
        self._forks += 1
        return LiveContext(self.rollout, self.model_role, at.node, at.offset, (*self._branch, -self._forks))

    def note(self, **values: float | Sequence[float]) -> None:
        """Store numbers, or sequences of numbers, with the current node: value, visits, marks."""
        notes = self.tree.notes.setdefault(self.node, {})
        notes.update({n: tuple(v) if isinstance(v, Sequence) else v for n, v in values.items()})

    def close(self, key: str | None = None, learn: str | None = "main", role: str | None = None) -> Trajectory:
        """Close this path as a trajectory.

        key: the group that it is compared in; None: the request's. learn: its loss stream; None: not learned. role:
        None is the model's name.
        """
        own = str(self.rollout._request.key) if key is None else f"{self.rollout._request.key}/{key}"
        conversation, _ = conversation_at(self.tree, self.at, self.rollout._conversations)
        trajectory = Trajectory(
            self.at,
            role or self.model_role,
            own,
            learn,
            self._status,
            conversation.re_rendered_at if conversation else (),
        )
        self.rollout._episode.trajectories.append(trajectory)
        return trajectory
