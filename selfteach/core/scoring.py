"""Asking a reward for its scores: the loop does it, and so does a reward made of rewards.

A reward is a block. What it names says when it runs and what it sees:
    text, answer, task, path    once per trajectory; gives a number or a Score
    group, cast                 once per group, as soon as the group is in; gives Scores
    groups, cast                once per step, when all groups are in; gives Scores
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from typing import Any, Protocol

from .part import Part
from .task import Ref
from .tree import Episode, Group, Score, Scores, Trajectory

EACH = frozenset({"text", "answer", "task", "path"})


class Reader(Protocol):
    """What turns places back into text: the cast of a step."""

    def text(self, at: Ref) -> str:
        """The text from after the prompt to a place."""
        ...

    def path(self, at: Ref) -> Any:
        """The path to a place, with ids, spans and turns."""
        ...


def whole_step(part: Part) -> bool:
    """True for a reward that waits for all groups: it names `groups`, or is made of one that does."""
    return "groups" in part.needs or any(whole_step(p) for p in nested(part))


def nested(part: Part) -> list[Part]:
    """The Parts among a Part's arguments, one level down."""
    out: list[Part] = []
    for value in part.args.values():
        items = value if isinstance(value, tuple | list) else (value,)
        for item in items:
            out += [p for p in (item if isinstance(item, tuple) else (item,)) if isinstance(p, Part)]
    return out


async def score(part: Part, groups: Sequence[Group], cast: Reader, deadline: float = 60.0, **more: Any) -> Scores:
    """Scores of some groups by one reward. What raises, hangs past the deadline (seconds) or returns nonsense is a Score with an error."""
    if "groups" in part.needs:
        return await _asked(part, groups, deadline, groups=list(groups), cast=cast, **more)
    out: Scores = {}
    for group in groups:
        if "group" in part.needs:
            found = await _asked(part, [group], deadline, group=group, cast=cast, **more)
        else:
            found = {"reward": await _each(part, group, cast, deadline)}
        for column, places in found.items():
            out.setdefault(column, {}).update(places)
    return out


def _given(part: Part, group: Group, episode: Episode, trajectory: Trajectory, cast: Reader) -> dict[str, Any]:
    make = {
        "text": lambda: cast.text(trajectory.leaf),
        "answer": lambda: episode.answer,
        "task": lambda: group.request.task,
        "path": lambda: cast.path(trajectory.leaf),
        "cast": lambda: cast,
    }
    return {name: make[name]() for name in part.needs}


async def _each(part: Part, group: Group, cast: Reader, deadline: float) -> dict[Ref, Score]:
    """One call per trajectory, all in one thread; the one that hangs is given up, those after it are asked in another."""
    waiting = [(e, t) for e in group.episodes for t in e.trajectories if t.learn is not None]
    out: dict[Ref, Score] = {}

    def ask() -> None:
        for episode, trajectory in waiting[len(out) :]:
            out[trajectory.leaf] = _one(part, group, episode, trajectory, cast)

    if inspect.iscoroutinefunction(part.fn):
        for episode, trajectory in waiting:
            try:
                value = await asyncio.wait_for(part(**_given(part, group, episode, trajectory, cast)), deadline)
                out[trajectory.leaf] = Score.of(value)
            except Exception as error:
                out[trajectory.leaf] = _failed(part, error, deadline)
        return out
    while len(out) < len(waiting):
        worker = asyncio.get_running_loop().run_in_executor(None, ask)
        try:
            await asyncio.wait_for(asyncio.shield(worker), deadline)
        except TimeoutError as error:
            hung = waiting[len(out)][1].leaf
            out = {**out, hung: _failed(part, error, deadline)}  # the lost thread goes on writing into the old dict
    return out


def _one(part: Part, group: Group, episode: Episode, trajectory: Trajectory, cast: Reader) -> Score:
    try:
        return Score.of(part(**_given(part, group, episode, trajectory, cast)))
    except Exception as error:
        return _failed(part, error, 0)


async def _asked(part: Part, groups: Sequence[Group], deadline: float, **given: Any) -> Scores:
    try:
        got = part(**{n: v for n, v in given.items() if n in part.needs})
        got = await asyncio.wait_for(got, deadline) if inspect.isawaitable(got) else got
        return {column: {at: Score.of(s) for at, s in places.items()} for column, places in got.items()}
    except Exception as error:
        leaves = [t.leaf for g in groups for e in g.episodes for t in e.trajectories if t.learn is not None]
        return {"reward": {at: _failed(part, error, deadline) for at in leaves}}


def _failed(part: Part, error: Exception, deadline: float) -> Score:
    if isinstance(error, TimeoutError):
        return Score(None, error=f"reward {part.name}: no verdict within {deadline:g} s")
    return Score(None, error=f"reward {part.name} raised {type(error).__name__}: {error}")
