"""A user's own file in which every kind of callable, and every await of a program, may go wrong.

A fault is armed by `arm(place, fault, phase)`: the callable `place` then does it at its first call in that phase.
`said` is what the run says of itself (an observer), by which the phase is known: "before" (the evaluation before
training), "step 0", "step 1" ..., "after".
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from selfteach.core import (
    Column,
    Method,
    RolloutRequest,
    Score,
    Seq,
    Task,
    TaskSource,
    Term,
    Token,
    block,
    method,
    task,
)
from selfteach.credit.advantages import center
from selfteach.credit.composers import per_trajectory
from selfteach.methods.base import policy_method
from selfteach.objective.policy import policy_gradient

STEPS, HANG = 2, 20.0


@dataclass
class Fault:
    """What is armed, and what has happened."""

    place: str = ""
    fault: str = ""
    in_phase: str = ""
    phase: str = "before"
    happened: int = 0
    events: list[Mapping[str, Any]] = field(default_factory=list)
    nonsense: Any = None
    child: int = 0  # the process that was forked


armed = Fault()


class Unusual(BaseException):
    """An exception that is no Exception."""


RAISES: dict[str, BaseException] = {
    "raises": ValueError("out\nof order"),
    "exits": SystemExit(3),
    "is cancelled": asyncio.CancelledError(),
    "stops": StopIteration(),
    "raises what is no Exception": Unusual("odd"),
}
NONSENSE: dict[str, Any] = {
    "gives nothing": None,
    "gives text": "no",
    "gives NaN": float("nan"),
    "gives an object": object(),
    "gives a list": [[1], "two"],
}
OTHER = ("hangs", "forks", "prints", "changes its arguments")
FAULTS = (*RAISES, *NONSENSE, *OTHER)


def arm(place: str = "", fault: str = "", phase: str = "") -> None:
    """Let a place go wrong once in a phase; without arguments nothing does."""
    armed.__init__(place, fault, phase)


def said(event: Mapping[str, Any]) -> None:
    """The observer of the run: keeps its events, and is a place itself."""
    armed.events.append(event)
    if event["event"] == "step":
        act("observer", {"event": event})
        armed.phase = f"step {event['step'] + 1}" if event["step"] + 1 < STEPS else "after"
    elif event["event"] == "start" and event["step"] == 0:
        armed.phase = "before"
    elif event["event"] == "final_eval" and event["when"] == "start":
        armed.phase = "step 0"


def act(place: str, given: Mapping[str, Any], can_be_left: bool = False) -> bool:
    """Do what is armed for this place now. True where it is to return nonsense: armed.nonsense."""
    if (place, armed.phase) != (armed.place, armed.in_phase) or armed.happened:
        return False
    armed.happened += 1
    fault = armed.fault
    if fault in RAISES:
        raise RAISES[fault]
    if fault in NONSENSE:
        armed.nonsense = NONSENSE[fault]
        return True
    if fault == "hangs":
        if not can_be_left:  # a person presses Ctrl-C, twice
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        time.sleep(HANG)
    elif fault == "forks":
        armed.child = os.fork()
        if not armed.child:
            signal.alarm(30)  # should it live on all the same
    elif fault == "prints":
        print("out of place", flush=True)
        os.write(1, b"out of place\n")
    elif fault == "changes its arguments":
        for value in given.values():
            change(value)
    return False


def change(value: Any) -> None:
    """Change a value in place, as far as it lets one."""
    if isinstance(value, np.ndarray):
        value[...] = 0
    elif isinstance(value, list | dict):
        value.clear()
    elif hasattr(value, "ids"):
        change(value.ids)
    elif hasattr(value, "prompt"):
        value.prompt = "another"
    elif hasattr(value, "episodes"):
        value.episodes.clear()
    elif hasattr(value, "mul_"):
        value.detach().mul_(0)


@task
def faulty_task() -> TaskSource:
    """Questions that are all alike."""

    def one(name: str) -> Task:
        return Task(name, "say", ("a",))

    def train(i: int) -> Any:
        return armed.nonsense if act("task", {}) else one(f"train/{i}")

    return TaskSource(
        name="faulty_task",
        train=train,
        test=[one(f"test/{i}") for i in range(2)],
        words=lambda: ["say ab"],
        tools={"echo": echo(), "echo_async": echo_async()},
        defaults={"max_tokens": 4, "judge": judge()},
    )


@block
def echo() -> Callable[[Any], Any]:
    """A tool that is a function."""

    def tool(query: Any) -> Any:
        return armed.nonsense if act("tool", {"query": query}, can_be_left=True) else "a"

    return tool


@block
def echo_async() -> Callable[[Any], Any]:
    """A tool that is a coroutine function."""

    async def tool(query: Any) -> Any:
        await asyncio.sleep(0)
        return armed.nonsense if act("tool_async", {"query": query}, can_be_left=True) else "b"

    return tool


@block
async def faulty_program(*, request: Any, rollout: Any) -> Any:
    """A turn, both tools, a score and another turn; something may go wrong before each of them, and at the end."""
    given = {"task": request.task}
    act("program.begin", given)
    context = rollout.policy.begin(request.task.prompt)
    act("program.sample", given)
    turn = await context.sample(max_tokens=2)
    act("program.tool", given)
    context.append(await rollout.tool("echo")(turn.text))
    act("program.tool_async", given)
    context.append(await rollout.tool("echo_async")(turn.text))
    act("program.score", given)
    await context.score("ab")
    await asyncio.sleep(0)
    act("program.sample_again", given)
    turn = await context.sample(max_tokens=2)
    context.close()
    return armed.nonsense if act("program.end", given) else turn.text


def evens(path: Any) -> float:
    """The share of even token ids in the response."""
    ids = path.ids[path.prompt :]
    return float((ids % 2 == 0).mean()) if len(ids) else 0.0


@block
def judge(*, path: Any, task: Any) -> Any:
    """The judge of evaluations."""
    value = evens(path)
    return armed.nonsense if act("judge", {"path": path, "task": task}, can_be_left=True) else value


@block
def reward_each(*, path: Any, task: Any) -> Any:
    """A reward of one trajectory."""
    value = evens(path)
    return armed.nonsense if act("reward", {"path": path, "task": task}, can_be_left=True) else value


@block
async def reward_async(*, path: Any, task: Any) -> Any:
    """The same as a coroutine."""
    value = evens(path)
    await asyncio.sleep(0)
    return armed.nonsense if act("reward_async", {"path": path, "task": task}, can_be_left=True) else value


def of_groups(groups: Sequence[Any], context: Any) -> dict[str, Any]:
    """The scores of some groups."""
    leaves = [t.leaf for g in groups for e in g.episodes for t in e.trajectories]
    return {"reward": {leaf: Score(evens(context.path(leaf))) for leaf in leaves}}


@block
def reward_group(*, group: Any, context: Any) -> Any:
    """A reward of a group."""
    value = of_groups([group], context)
    return armed.nonsense if act("reward_group", {"group": group}, can_be_left=True) else value


@block
def reward_step(*, groups: Any, context: Any) -> Any:
    """A reward of a whole step."""
    value = of_groups(groups, context)
    return armed.nonsense if act("reward_step", {"groups": groups}, can_be_left=True) else value


@block
def faulty_select(*, n: int, rollouts: int, finished_rounds: Any, source: Any, step: int) -> Any:
    """Two groups."""
    if finished_rounds:
        return []
    if act("select", {"rounds": finished_rounds}):
        return armed.nonsense
    return [RolloutRequest(source.train(step * n + i), rollouts) for i in range(n)]


@block
def faulty_composer(*, groups: Any) -> Any:
    """One example per trajectory."""
    made = per_trajectory(groups=groups)
    return armed.nonsense if act("composer", {"groups": groups}) else made


@block
def faulty_assigner(*, reward: Seq, group: Seq) -> Any:
    """Advantages over the mean of the group."""
    made = center(reward=reward, group=group, by="leave_one_out")
    if act("assigner", {"reward": reward, "group": group}):
        return {"adv": Column("seq", armed.nonsense)} if armed.nonsense is None else armed.nonsense
    return made


@block
def faulty_loss(*, logp: Token, adv: Token) -> Token:
    """The policy gradient."""
    made = policy_gradient(logp=logp, adv=adv)
    return armed.nonsense if act("loss", {"adv": adv}) else made


@block
def faulty_weights(*, length: Seq) -> Any:
    """The mean over tokens."""
    made = 1.0 / np.maximum(length * len(length), 1)
    return armed.nonsense if act("loss_weights", {"length": length}) else made


REWARDS = {
    "reward": reward_each,
    "reward_async": reward_async,
    "reward_group": reward_group,
    "reward_step": reward_step,
}


@method(family="test", paper="none")
def faulty(groups: int = 2, rollouts: int = 3, scored_by: str = "reward") -> Method:
    """A method made of these."""
    made = policy_method(
        (faulty_composer(), faulty_assigner()),
        Term(faulty_loss(), loss_weights=faulty_weights()),
        groups=groups,
        rollouts=rollouts,
        select=faulty_select(),
    )
    return made.replace(reward=(REWARDS[scored_by](),), programs={"main": faulty_program()})
