"""A reward in a process of its own, for code that may hang: the process is killed, and the sample's reward is unknown.

A new process is started for the next call. This guards against code that hangs, crashes the interpreter or uses up a
processor. It is no sandbox: the reward has the rights of its user.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core import BadValue, Block, RewardContext, RolloutGroup, Score, Scores, Trajectory, block, from_json, to_json
from ..core.scoring import nested

READABLE = ("text", "answer", "task")
START_TIMEOUT = 60.0  # seconds a process may take for its imports


@dataclass
class Worker:
    """One process, and the lock that calls wait for."""

    process: asyncio.subprocess.Process | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


_workers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Worker]] = weakref.WeakKeyDictionary()


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
    first = json.dumps({"reward": to_json(reward), "files": user_files(reward)})
    worker = _workers.setdefault(asyncio.get_running_loop(), {}).setdefault(first, Worker())
    out: dict[Any, Score] = {}
    for episode in group.episodes:
        for trajectory in episode.trajectories:
            if trajectory.learn is not None:
                arguments = {n: _argument(n, group, episode.answer, trajectory, context) for n in reward.needs}
                out[trajectory.leaf] = await _call(worker, first, arguments, seconds or deadline, reward.name)
    return {"reward": out}


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
        str(inspect.getsourcefile(p.fn))
        for p in (reward, *nested(reward))
        if p.fn.__module__.startswith("selfteach_user_")
    }
    return sorted(own)


async def _call(worker: Worker, first: str, arguments: dict[str, Any], seconds: float, name: str) -> Score:
    """The score of one call; calls of a worker run one at a time. A process that does not answer is killed."""
    async with worker.lock:
        try:
            line = json.dumps(to_json(arguments))
            if worker.process is None or worker.process.returncode is not None:
                worker.process = await _start(first)
            return from_json(json.loads(await _request(worker.process, line, seconds)))
        except TimeoutError:
            _kill(worker)
            return Score(None, error=f"reward {name}: no score within {seconds:g} s; its process was killed")
        except (OSError, ValueError) as error:
            _kill(worker)
            return Score(None, error=f"reward {name}: its process ended without an answer ({error})")
        except TypeError as error:
            return Score(None, error=f"reward {name}: {error}")


async def _start(first: str) -> asyncio.subprocess.Process:
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
    await _request(process, first, START_TIMEOUT)
    return process


async def _request(process: asyncio.subprocess.Process, line: str, seconds: float) -> bytes:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(line.encode() + b"\n")
    answer = await asyncio.wait_for(process.stdout.readline(), seconds)
    if not answer:
        raise OSError("it closed its output")
    return answer


def _kill(worker: Worker) -> None:
    if worker.process is not None and worker.process.returncode is None:
        worker.process.kill()
    worker.process = None
