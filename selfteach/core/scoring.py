"""Asking a reward for its scores: the loop does it, and so does a reward made of rewards.

A reward is a block. What it names says when it runs and what it sees:
    text, answer, task, path    once per trajectory; gives a number or a Score
    group                       once per group, as soon as the group is in; gives Scores
    groups                      once per step, when all groups are in; gives Scores
    cast                        beside any of these: a RewardContext
    deadline                    beside one of the last two: it keeps to the deadline (seconds) itself, as one made of
                                others does
"""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections.abc import Sequence
from typing import Any

from .blocks import Block
from .errors import BadValue
from .protocols import RewardContext
from .task import Ref
from .threads import run_in_thread
from .tree import Episode, RolloutGroup, Score, Scores, Trajectory


def whole_step(part: Block) -> bool:
    """True for a reward that waits for all groups: it names `groups`, or is made of one that does."""
    return "groups" in part.needs or any(whole_step(p) for p in nested(part))


def nested(part: Block) -> list[Block]:
    """The Blocks among a Block's arguments, one level down."""
    out: list[Block] = []
    for value in part.args.values():
        items = typing.cast("Sequence[Any]", value) if isinstance(value, tuple | list) else (value,)
        for item in items:
            pair = typing.cast("tuple[Any, ...]", item) if isinstance(item, tuple) else (item,)
            out += [p for p in pair if isinstance(p, Block)]
    return out


async def score(
    part: Block, groups: Sequence[RolloutGroup], context: RewardContext, deadline: float = 60.0, **more: Any
) -> Scores:
    """Scores of some groups by one reward. What raises, hangs past the deadline (seconds) or returns nonsense is a
    Score with an error.

    `more`: the history, and for a reward that remembers (one of the whole step) its `state` in a list of one, where the
    next is put.
    """
    if "groups" in part.needs:
        return await _asked(part, groups, deadline, {"groups": list(groups), "context": context, **more})
    out: Scores = {}
    for group in groups:
        if "group" in part.needs:
            found = await _asked(part, [group], deadline, {"group": group, "context": context, **more})
        else:
            found = {"reward": await _each(part, group, context, deadline)}
        for column, places in found.items():
            out.setdefault(column, {}).update(places)
    return out


def _given(
    part: Block, group: RolloutGroup, episode: Episode, trajectory: Trajectory, context: RewardContext
) -> dict[str, Any]:
    make = {
        "text": lambda: context.text(trajectory.leaf),
        "answer": lambda: episode.answer,
        "task": lambda: group.request.task,
        "path": lambda: context.path(trajectory.leaf),
        "context": lambda: context,
    }
    return {name: make[name]() for name in part.needs}


async def _each(part: Block, group: RolloutGroup, context: RewardContext, deadline: float) -> dict[Ref, Score]:
    """One call per trajectory, in one thread; one that hangs is given up, those after it are asked in another."""
    waiting = list({t.leaf: (e, t) for e in group.episodes for t in e.trajectories if t.learn is not None}.values())
    out: dict[Ref, Score] = {}
    if inspect.iscoroutinefunction(part.fn):
        for episode, trajectory in waiting:
            try:
                value = await asyncio.wait_for(part(**_given(part, group, episode, trajectory, context)), deadline)
                out[trajectory.leaf] = Score.of(value)
            except Exception as error:
                out[trajectory.leaf] = _failed(part, error, deadline)
        return out
    while len(out) < len(waiting):
        out |= await _asked_in_turn(part, group, waiting[len(out) :], context, deadline)
    return out


async def _asked_in_turn(
    part: Block,
    group: RolloutGroup,
    waiting: Sequence[tuple[Episode, Trajectory]],
    context: RewardContext,
    deadline: float,
) -> dict[Ref, Score]:
    """Scores of these trajectories in their order, up to the first that gives none within the deadline, that one
    included.
    """
    found: dict[Ref, Score] = {}  # a thread that is given up goes on writing here, where nobody reads any more

    def ask() -> None:
        for episode, trajectory in waiting:
            found[trajectory.leaf] = _one(part, group, episode, trajectory, context, deadline)

    worker, before = run_in_thread(ask), 0
    while not worker.done():
        await asyncio.wait([worker], timeout=deadline)
        now = dict(found)
        if not worker.done() and len(now) == before:
            return now | {waiting[len(now)][1].leaf: _failed(part, TimeoutError(), deadline)}
        before = len(now)
    return found


def _one(
    part: Block, group: RolloutGroup, episode: Episode, trajectory: Trajectory, context: RewardContext, deadline: float
) -> Score:
    try:
        return Score.of(part(**_given(part, group, episode, trajectory, context)))
    except Exception as error:
        return _failed(part, error, deadline)


async def _asked(part: Block, groups: Sequence[RolloutGroup], deadline: float, given: dict[str, Any]) -> Scores:
    try:
        own = {n: v for n, v in {**given, "deadline": deadline}.items() if n in part.needs}
        if "state" in own:
            own["state"] = given["state"][0]
        asked = part(**own) if inspect.iscoroutinefunction(part.fn) else run_in_thread(part, **own)
        got = await asyncio.wait_for(asked, None if "deadline" in own else deadline)
        if "state" in own:
            got, given["state"][0] = got
        scores = {str(column): {at: Score.of(s) for at, s in places.items()} for column, places in got.items()}
        ours = {e.id for g in groups for e in g.episodes}
        strange = next(
            (at for places in scores.values() for at in places if not isinstance(at, Ref) or at.episode not in ours),
            None,
        )
        if strange is not None:
            raise BadValue(f"it scored {strange!r}, which is no place in these groups")
        return scores
    except Exception as error:
        leaves = [t.leaf for g in groups for e in g.episodes for t in e.trajectories if t.learn is not None]
        return {"reward": {at: _failed(part, error, deadline) for at in leaves}}


def _failed(part: Block, error: Exception, deadline: float) -> Score:
    if isinstance(error, TimeoutError) and not str(error):  # one that says something is the reward's own
        return Score(None, error=f"reward {part.name}: no verdict within {deadline:g} s")
    return Score(None, error=f"reward {part.name} raised {type(error).__name__}: {error}")
