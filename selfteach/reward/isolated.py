"""A reward in a process of its own, for code that may never come back: the process is killed, the sample is unscored, a new one takes over.

It guards against what hangs, crashes the interpreter or eats a processor. It is no sandbox: the reward may do what its user may.
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

from ..core import BadValue, Group, Part, Score, Scores, Trajectory, block, from_json, to_json
from ..core.scoring import nested

EACH = ("text", "answer", "task")
START = 60.0  # seconds that a process may take to import what it needs


@dataclass
class Worker:
    """One process and who waits for it."""

    process: asyncio.subprocess.Process | None = None
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


_workers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Worker]] = weakref.WeakKeyDictionary()


@block
async def isolated(*, group: Group, cast: Any, deadline: float, reward: Part | None = None, seconds: float | None = None) -> Scores:
    """A reward of text, answer or task, asked in a process that is killed where a call takes longer than `seconds` (None: the run's deadline)."""
    if reward is None or not set(reward.needs) <= set(EACH):
        raise BadValue(f"isolated needs reward=, a reward of {', '.join(EACH)}; {reward} reads {', '.join(reward.needs) if reward else 'nothing'}")
    first = json.dumps({"reward": to_json(reward), "files": files(reward)})
    worker = _workers.setdefault(asyncio.get_running_loop(), {}).setdefault(first, Worker())
    out: dict[Any, Score] = {}
    for episode in group.episodes:
        for trajectory in episode.trajectories:
            if trajectory.learn is not None:
                given = {n: _given(n, group, episode.answer, trajectory, cast) for n in reward.needs}
                out[trajectory.leaf] = await _asked(worker, first, given, seconds or deadline, reward.name)
    return {"reward": out}


def _given(name: str, group: Group, answer: Any, trajectory: Trajectory, cast: Any) -> Any:
    return {"text": lambda: cast.text(trajectory.leaf), "answer": lambda: answer, "task": lambda: group.request.task}[name]()


def files(part: Part) -> list[str]:
    """The user's own files that a reward and those inside it were registered from."""
    own = {str(inspect.getsourcefile(p.fn)) for p in (part, *nested(part)) if p.fn.__module__.startswith("selfteach_user_")}
    return sorted(own)


async def _asked(worker: Worker, first: str, given: dict[str, Any], seconds: float, name: str) -> Score:
    """One call, one at a time. A process that does not answer is killed; the next call starts another."""
    async with worker.turn:
        try:
            line = json.dumps(to_json(given))
            if worker.process is None or worker.process.returncode is not None:
                worker.process = await _started(first)
            return from_json(json.loads(await _said(worker.process, line, seconds)))
        except TimeoutError:
            _kill(worker)
            return Score(None, error=f"reward {name}: no verdict within {seconds:g} s; its process was killed")
        except (OSError, ValueError) as error:
            _kill(worker)
            return Score(None, error=f"reward {name}: its process ended without an answer ({error})")
        except TypeError as error:
            return Score(None, error=f"reward {name}: {error}")


async def _started(first: str) -> asyncio.subprocess.Process:
    home = str(Path(__file__).parents[2])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "selfteach.reward.worker", stdin=pipe, stdout=pipe, env=env, limit=1 << 24, start_new_session=True
    )
    await _said(process, first, START)
    return process


async def _said(process: asyncio.subprocess.Process, line: str, seconds: float) -> bytes:
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
