"""A reward in processes of its own: what hangs or dies costs its own sample, and nothing outlives the run."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.episodes import single_turn_group

from selfteach.core import Task, registry, to_json
from selfteach.core.scoring import score
from selfteach.reward import isolated as isolated_module
from selfteach.reward.answer import exact_match
from selfteach.reward.combine import weighted
from selfteach.reward.isolated import block_modules, isolated, user_files

STUCK = '''
import os
import re
import signal
import time

from selfteach import block


@block
def sticky(*, answer: str, task: object) -> float:
    """Blocks the interpreter at one answer, ends the process at another, prints at a third."""
    if answer == "stuck":
        re.match(r"(a+)+$", "a" * 40 + "b")  # holds the interpreter for ages
    if answer == "sleeps":
        time.sleep(1000)
    if answer == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            pass
    if answer == "where":
        time.sleep(0.5)
        return float(os.getpid())
    if answer == "dead":
        os._exit(3)
    if answer == "chatty":
        print("{not an answer}")
    return float(len(answer))
'''


@pytest.fixture(scope="module")
def sticky(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a reward that is stuck, sleeps, dies ... at some answers."""
    file = tmp_path_factory.mktemp("sticky") / "sticky_reward.py"
    file.write_text(STUCK)
    registry.load_file(file)
    return file


def answered(*answers: str) -> Any:
    group = single_turn_group([(4,)] * len(answers), [None] * len(answers))
    for episode, answer in zip(group.episodes, answers, strict=True):
        episode.answer = answer
    return group


def test_an_isolated_reward_that_hangs_or_dies_costs_its_own_sample(sticky: Path):
    group = answered("ok", "stuck", "fine", "dead", "chatty")
    reward = isolated(reward=registry.blocks.get("sticky")(), seconds=1.0)
    found = asyncio.run(score(reward, [group], context=None))["reward"]  # type: ignore[arg-type]
    values = [found[e.trajectories[-1].leaf] for e in group.episodes]
    assert [s.value for s in values] == [2.0, None, 4.0, None, 6.0]
    assert "within 1 s; its process was killed" in str(values[1].error) and "ended without an answer" in str(
        values[3].error
    )


ORPHAN = """
import asyncio, os, sys
from selfteach.core import registry
from selfteach.core.scoring import score
from selfteach.reward import isolated
from selfteach.core import Episode, Ref, RolloutGroup, RolloutRequest, Task, Trajectory, Tree

started = isolated._start
async def told(reward):
    process = await started(reward)
    print(process.pid, flush=True)
    return process
isolated._start = told
registry.load_file(sys.argv[1])
tree = Tree()
leaf = tree.add(tree.add(-1, [1]), [2], action_mask=True)
episode = Episode("e", tree, [Trajectory(Ref("e", leaf), "policy", "k")], sys.argv[2])
group = RolloutGroup(RolloutRequest(Task("k", "", ""), 1, key="k"), [episode], {}, "k")
reward = isolated.isolated(reward=registry.blocks.get("sticky")(), seconds=float(sys.argv[3]))
asyncio.run(score(reward, [group], context=None))
"""


WITHOUT_PRCTL = """
import ctypes
class Without(ctypes.CDLL):
    def __getattr__(self, name):
        if name == "prctl":
            raise AttributeError(name)
        return super().__getattr__(name)
ctypes.CDLL = Without
"""


def ends_within(pid: int, seconds: float) -> bool:
    """Whether a process that is no child of ours is gone, or dead and not yet collected, within some seconds."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    return False


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is read")
@pytest.mark.parametrize("answer", ["stuck", "sleeps", "deaf"])
@pytest.mark.parametrize("by_system", [True, False], ids=["told by the system", "by the watchdog alone"])
def test_an_isolated_process_dies_with_its_run(answer: str, by_system: bool, sticky: Path, tmp_path: Path):
    """Killed at once, the run cannot end its processes: they end themselves, whatever they are in."""
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), str(Path(__file__).parents[1])]),
    }
    if not by_system:  # as where there is no such call
        (tmp_path / "sitecustomize.py").write_text(WITHOUT_PRCTL)
        env["PYTHONPATH"] = os.pathsep.join([str(tmp_path), env["PYTHONPATH"]])
    run = subprocess.Popen(
        [sys.executable, "-c", ORPHAN, str(sticky), answer, "60" if by_system else "4"],
        env=env,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert run.stdout is not None
    pid = int(run.stdout.readline())
    time.sleep(1.5)  # the call has begun
    run.kill()
    run.wait()
    assert ends_within(pid, 10.0 if by_system else 60.0)


@pytest.mark.parametrize("name", ["exact_match", "search_format", "sticky"])
def test_an_isolated_process_starts_without_torch_and_all_there_is(name: str, sticky: Path):
    """What a process imports is what its reward and its task's verifier are made of."""
    reward = registry.blocks.get(name)()
    task = to_json(Task("t", "p", "4", verifier=registry.blocks.get("makes")()))
    modules = [*block_modules(to_json(reward)), *block_modules(task)]
    code = (
        "import sys, importlib\nimport selfteach.reward.worker\nfrom selfteach.core import from_json, registry\n"
        f"for m in {modules!r}: importlib.import_module(m)\n"
        f"for f in {user_files(reward)!r}: registry.load_file(f)\n"
        f"registry.load_all = lambda *a: sys.exit('all was imported')\nfrom_json({to_json(reward)!r})\n"
        f"from_json({task!r})\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": os.getcwd()})


def test_isolated_processes_work_side_by_side(sticky: Path, monkeypatch: pytest.MonkeyPatch):
    """As many as there may be work at once, and no more; an answer goes to the sample that it is of.

    They end with the loop that they were begun in, not with the interpreter, which may see many.
    """
    monkeypatch.setattr(isolated_module.os, "cpu_count", lambda: 3)
    group = answered(*(["where", "where", "where", "a", "bb", "ccc"]))
    reward = isolated(reward=registry.blocks.get("sticky")(), seconds=60.0)
    found = asyncio.run(score(reward, [group], context=None))["reward"]  # type: ignore[arg-type]
    values = [found[e.trajectories[-1].leaf].value for e in group.episodes]
    assert len(set(values[:3])) == 3 and values[3:] == [1.0, 2.0, 3.0]
    for pid in values[:3]:
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid or 0), 0)


def test_an_isolated_reward_must_be_one_of_single_answers():
    reward = isolated(reward=weighted(parts=((1.0, exact_match()),)))
    found = asyncio.run(score(reward, [answered("ok")], context=None))["reward"]  # type: ignore[arg-type]
    assert all("isolated needs reward=" in str(s.error) for s in found.values())
