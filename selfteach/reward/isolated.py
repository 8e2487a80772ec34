"""A reward in processes of its own, for code that may hang: the process is killed, and the sample's reward is unknown.

Several processes score side by side, and one that was killed is replaced at the next call. This guards against code
that hangs, crashes the interpreter or uses up a processor. It is no sandbox: the reward has the rights of its user.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, cast

from ..core import (
    BadValue,
    Block,
    RewardContext,
    RolloutGroup,
    Score,
    Scores,
    Trajectory,
    block,
    from_json,
    registry,
    to_json,
)
from ..core.scoring import with_nested

READABLE = ("text", "answer", "task")
START_TIMEOUT = 60.0  # seconds a process may take for its imports
MOST_PROCESSES = 4  # of one reward


class Workers:
    """The processes of one reward, and how many of them may work at once. Each takes one call after another."""

    def __init__(self, reward: Block) -> None:
        self.reward = {"reward": to_json(reward), "files": user_files(reward)}
        self.idle: list[asyncio.subprocess.Process] = []
        self.started: list[asyncio.subprocess.Process] = []
        self.free = asyncio.Semaphore(max(1, min(MOST_PROCESSES, os.cpu_count() or 1)))

    async def call(self, arguments: dict[str, Any], seconds: float, name: str) -> Score:
        """The score of one call. A process that does not answer in time is killed, and the score unknown."""
        async with self.free:
            process = None
            try:
                given = to_json(arguments)
                process = await self._process()
                line = {"arguments": given, "modules": block_modules(given), "seconds": seconds}
                score = from_json(json.loads(await _request(process, line, seconds)))
                self.idle.append(process)
                process = None
                return score
            except TimeoutError:
                when = f"no score within {seconds:g} s" if process else f"not started within {START_TIMEOUT:g} s"
                return Score(None, error=f"reward {name}: {when}; its process was killed")
            except (OSError, ValueError) as error:
                return Score(None, error=f"reward {name}: its process ended without an answer ({error})")
            except TypeError as error:
                return Score(None, error=f"reward {name}: {error}")
            finally:  # also where the caller is cancelled: the next call must not read this one's answer
                _kill(process)

    async def end(self) -> None:
        """End the processes, those that wait for a call and those that were just killed."""
        for process in self.started:
            _kill(process)
            await process.wait()

    async def _process(self) -> asyncio.subprocess.Process:
        while self.idle:
            if (process := self.idle.pop()).returncode is None:
                return process
        process = await _start(self.reward)
        self.started = [p for p in (*self.started, process) if p.returncode is None]
        return process


_workers: dict[asyncio.AbstractEventLoop, tuple[dict[str, Workers], AsyncGenerator[None]]] = {}


async def _workers_of_loop() -> dict[str, Workers]:
    """Reward -> its processes, which belong to the running loop and end with it.

    A loop closes, before it ends, the generators that were begun in it.
    """
    loop = asyncio.get_running_loop()
    if loop not in _workers:
        workers = dict[str, Workers]()
        _workers[loop] = workers, _ended(loop, workers)
        await anext(_workers[loop][1])
    return _workers[loop][0]


async def _ended(loop: asyncio.AbstractEventLoop, workers: dict[str, Workers]) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        del _workers[loop]
        for of_reward in workers.values():
            await of_reward.end()


@block
async def isolated(
    *,
    group: RolloutGroup,
    context: RewardContext,
    deadline: float,
    reward: Block | None = None,
    seconds: float | None = None,
) -> Scores:
    """A reward of text, answer or task, computed in a process that is killed after `seconds` without a result.

    seconds: the time limit of one call; None: the run's deadline. Raises BadValue for a reward that reads anything
    else.
    """
    if reward is None or not set(reward.needs) <= set(READABLE):
        raise BadValue(
            f"isolated needs reward=, a reward of {', '.join(READABLE)}; "
            f"{reward} reads {', '.join(reward.needs) if reward else 'nothing'}"
        )
    key = json.dumps(to_json(reward))
    workers = await _workers_of_loop()
    if key not in workers:
        workers[key] = Workers(reward)
    calls = {
        t.leaf: workers[key].call(
            {n: _argument(n, group, e.answer, t, context) for n in reward.needs}, seconds or deadline, reward.name
        )
        for e, t in group.learned
    }
    return {"reward": dict(zip(calls, await asyncio.gather(*calls.values()), strict=True))}


def _argument(name: str, group: RolloutGroup, answer: Any, trajectory: Trajectory, context: RewardContext) -> Any:
    """What a reward names, for one trajectory."""
    return {
        "text": lambda: context.text(trajectory.leaf),
        "answer": lambda: answer,
        "task": lambda: group.request.task,
    }[name]()


def user_files(reward: Block) -> list[str]:
    """The user's own files that a reward, and the rewards it is composed of, were registered from."""
    own = {
        str(inspect.getsourcefile(p.fn)) for p in with_nested([reward]) if p.fn.__module__.startswith("selfteach_user_")
    }
    return sorted(own)


def block_modules(data: Any) -> list[str]:
    """The modules that register the blocks in some JSON, so that a process imports these and not all there are."""
    if isinstance(data, list):
        return sorted({m for v in cast("list[Any]", data) for m in block_modules(v)})
    if not isinstance(data, dict):
        return []
    data = cast("dict[str, Any]", data)
    own = {inspect.unwrap(registry.blocks.get(data["block"])).__module__} if "block" in data else set[str]()
    inner = {m for v in data.values() for m in block_modules(v)}
    return sorted(m for m in own | inner if m != "__main__" and not m.startswith("selfteach_user_"))


async def _start(reward: dict[str, Any]) -> asyncio.subprocess.Process:
    home = str(Path(__file__).parents[2])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "selfteach.reward.worker",
        stdin=pipe,
        stdout=pipe,
        env=env,
        limit=1 << 24,
        start_new_session=True,
    )
    try:
        more = {"modules": block_modules(reward["reward"]), "parent": os.getpid(), "seconds": START_TIMEOUT}
        await _request(process, {**reward, **more}, START_TIMEOUT)
    except BaseException:
        _kill(process)
        raise
    return process


async def _request(process: asyncio.subprocess.Process, request: dict[str, Any], seconds: float) -> bytes:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps(request).encode() + b"\n")
    answer = await asyncio.wait_for(process.stdout.readline(), seconds)
    if not answer:
        raise OSError("it closed its output")
    return answer


def _kill(process: asyncio.subprocess.Process | None) -> None:
    if process is not None and process.returncode is None:
        process.kill()
