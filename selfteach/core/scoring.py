"""Calling rewards: by the loop, and by a reward that combines others.

A reward is a block. Its inputs decide when it is called:
    text, answer, task, path    once per trajectory; gives a number or a Score
    group                       once per group, as soon as the group is in; gives Scores
    groups                      once per step, when all groups are in; gives Scores
    text                        what the policy wrote itself, without what tools, documents or hints put between
    context                     beside any of these: a RewardContext
    deadline                    beside `group` or `groups`: it keeps to the deadline (seconds) itself, as one that
                                combines others does, and never blocks
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from .blocks import Block
from .contexts import RewardContext
from .errors import BadValue, UserCodeFailed, describe
from .task import Ref, Task
from .threads import FromBackground, call_user, run_in_thread
from .tree import Episode, RolloutGroup, Score, Scores, Trajectory
from .user_code import on_run_loop


def answer_score(judge: Block, answer: Any, task: Task, text: str | None = None) -> Score:
    """The score that a reward of one answer, such as `exact_match`, gives.

    text: the response that has the answer; None: the answer in its tags.
    """
    given = {"answer": answer, "task": task, "text": f"<answer> {answer}</answer>" if text is None else text}
    return judge(**{n: given[n] for n in judge.needs})


def accepts(judge: Block, answer: Any, task: Task, text: str | None = None) -> bool:
    """Whether a reward of one answer (`answer_score`) gives 1 or more."""
    return float(answer_score(judge, answer, task, text).value or 0.0) >= 1.0


class Processes(Protocol):
    """Other processes in which some rewards are called (cluster/call_workers.py): `processes` of a RewardContext."""

    def takes(self, reward: Block) -> bool:
        """Whether a reward is called there."""
        ...

    async def score(self, reward: Block, given: Mapping[str, Any], seconds: float) -> Any:
        """What a reward gives for one answer. Raises TimeoutError, and UserCodeFailed for what it raised."""
        ...

    def close(self) -> None:
        """End them."""
        ...


def whole_step(reward: Block) -> bool:
    """True for a reward that needs all groups of a step: it names `groups`, or combines one that does."""
    return any("groups" in b.needs for b in with_nested([reward]))


def nested(block: Block) -> list[Block]:
    """The Blocks among a Block's arguments, and among theirs, at any depth."""
    out: list[Block] = []
    for value in block.args.values():
        items = typing.cast("Sequence[Any]", value) if isinstance(value, tuple | list) else (value,)
        for item in items:
            pair = typing.cast("tuple[Any, ...]", item) if isinstance(item, tuple) else (item,)
            for inner in (p for p in pair if isinstance(p, Block)):
                out += [inner, *nested(inner)]
    return out


def with_nested(blocks: Iterable[Block]) -> list[Block]:
    """Blocks, each followed by those among its arguments at any depth."""
    return [b for block in blocks for b in (block, *nested(block))]


async def score(
    reward: Block, groups: Sequence[RolloutGroup], context: RewardContext, deadline: float = 60.0, **more: Any
) -> Scores:
    """Scores of some groups by one reward. A call that raises, exceeds the deadline (seconds) or returns another type
    gives a Score with an error.

    `more`: the history, and for a stateful reward (one of the whole step) its `state` in a list of one, where the next
    one is put.
    """
    if "groups" in reward.needs:
        return await _call(
            reward, groups, deadline, {"groups": [g.for_user() for g in groups], "context": context, **more}
        )
    out: Scores = {}
    for group in groups:
        if "group" in reward.needs:
            found = await _call(reward, [group], deadline, {"group": group.for_user(), "context": context, **more})
        else:
            found = {"reward": await _score_each(reward, group, context, deadline)}
        for column, places in found.items():
            out.setdefault(column, {}).update(places)
    return out


def _inputs(
    reward: Block, group: RolloutGroup, episode: Episode, trajectory: Trajectory, context: RewardContext
) -> dict[str, Any]:
    make = {
        "text": lambda: context.text(trajectory.leaf),
        "answer": lambda: episode.answer,
        "task": lambda: group.request.task,
        "path": lambda: context.path(trajectory.leaf),
        "context": lambda: context,
    }
    return {name: make[name]() for name in reward.needs}


async def _score_each(reward: Block, group: RolloutGroup, context: RewardContext, deadline: float) -> dict[Ref, Score]:
    """One call per trajectory, in one thread; where one hangs, the rest is called in another thread."""
    waiting = list({t.leaf: (e, t) for e, t in group.learned}.values())
    out: dict[Ref, Score] = {}
    processes: Processes | None = getattr(context, "processes", None)
    if processes is not None and processes.takes(reward):

        async def one(episode: Episode, trajectory: Trajectory) -> Score:
            try:
                return Score.of(
                    await processes.score(reward, _inputs(reward, group, episode, trajectory, context), deadline)
                )
            except Exception as error:
                return _failed(reward, error, deadline)

        scores = await asyncio.gather(*(one(e, t) for e, t in waiting))
        return {t.leaf: found for (_, t), found in zip(waiting, scores, strict=True)}
    if inspect.iscoroutinefunction(reward.fn):
        for episode, trajectory in waiting:
            try:
                inputs = _inputs(reward, group, episode, trajectory, context)
                out[trajectory.leaf] = Score.of(await _ask(reward, inputs, deadline))
            except Exception as error:
                out[trajectory.leaf] = _failed(reward, error, deadline)
        return out
    while len(out) < len(waiting):
        out |= await _score_in_order(reward, group, waiting[len(out) :], context, deadline)
    return out


async def _score_in_order(
    reward: Block,
    group: RolloutGroup,
    waiting: Sequence[tuple[Episode, Trajectory]],
    context: RewardContext,
    deadline: float,
) -> dict[Ref, Score]:
    """Scores of these trajectories in order, up to and including the first whose call exceeds the deadline."""
    found: dict[Ref, Score] = {}  # a thread that hung may still write here after this returns

    def score_all() -> None:
        for episode, trajectory in waiting:
            found[trajectory.leaf] = _score_one(reward, group, episode, trajectory, context, deadline)

    worker, before = run_in_thread(score_all), 0
    while not worker.done():
        await asyncio.wait([worker], timeout=deadline)
        now = dict(found)
        if len(now) == len(waiting):  # nothing hangs, though a process that was stopped for a while may not know it yet
            return now
        if not worker.done() and len(now) == before:
            return now | {waiting[len(now)][1].leaf: _failed(reward, TimeoutError(), deadline)}
        before = len(now)
    return found


def _score_one(
    reward: Block,
    group: RolloutGroup,
    episode: Episode,
    trajectory: Trajectory,
    context: RewardContext,
    deadline: float,
) -> Score:
    try:
        return Score.of(reward(**_inputs(reward, group, episode, trajectory, context)))
    except BaseException as error:  # in a thread of its own: also what exits costs this score only
        return _failed(reward, error, deadline)


async def _call(reward: Block, groups: Sequence[RolloutGroup], deadline: float, given: dict[str, Any]) -> Scores:
    try:
        own = {n: v for n, v in {**given, "deadline": deadline}.items() if n in reward.needs}
        if "state" in own:
            own["state"] = given["state"][0]
        got = await _ask(reward, own, None if "deadline" in own else deadline)
        if "state" in own:
            got, given["state"][0] = got
        scores = {str(column): {at: Score.of(s) for at, s in places.items()} for column, places in got.items()}
        known = {e.id for g in groups for e in g.episodes}
        foreign = next(
            (at for places in scores.values() for at in places if not isinstance(at, Ref) or at.episode not in known),
            None,
        )
        if foreign is not None:
            raise BadValue(f"it scored {foreign!r}, which is no place in these groups")
        return scores
    except Exception as error:
        leaves = [t.leaf for g in groups for _, t in g.learned]
        return {"reward": {at: _failed(reward, error, deadline) for at in leaves}}


async def _ask(reward: Block, inputs: dict[str, Any], seconds: float | None) -> Any:
    """The result of one call of a reward.

    One that names `deadline` awaits others, each with a time limit: it runs on this event loop. Any other coroutine
    function may block, so it runs in the background loop, with a context whose engine still runs on this one.
    """
    call = functools.partial(reward.fn, **reward.args)
    if "deadline" in inputs or hasattr(reward.fn, "on_run_loop"):
        on_run_loop(call)
    elif "context" in inputs and inspect.iscoroutinefunction(reward.fn):
        inputs = {**inputs, "context": FromBackground(inputs["context"], asyncio.get_running_loop(), ("engine",))}
    return await call_user(call, seconds, **inputs)


def _failed(reward: Block, error: BaseException, deadline: float) -> Score:
    if isinstance(error, TimeoutError) and describe(error) == "TimeoutError":  # one with a message is the reward's own
        return Score(None, error=f"reward {reward.name}: no score within {deadline:g} s")
    what = str(error) if isinstance(error, UserCodeFailed) else describe(error)
    return Score(None, error=f"reward {reward.name} raised {what}")
