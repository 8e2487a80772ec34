"""Runs whose processes Ray places: the bits of one process with any number of rollout workers, and after each kind of
process is killed or stopped; what a cluster lacks; rewards and tools in processes of their own. One Ray serves all.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.cluster import REWARD, ROLLOUT, Watching, descendants, name_of, running
from support.runs import BANDIT, run_config_of, same_run

from selfteach import api, training
from selfteach.cluster.call_workers import CallWorkers
from selfteach.cluster.engine_host import Draw, EngineHost
from selfteach.cluster.prefix_routes import BLOCK, SLACK, PrefixRoutes
from selfteach.cluster.ray_cluster import Cluster
from selfteach.cluster.resources import Resources, Share, read_settings
from selfteach.configuration import RunConfig, plan
from selfteach.core import BadValue, registry
from selfteach.core.contexts import PathView
from selfteach.core.errors import EngineLost, UserCodeFailed
from selfteach.core.task import Sampling
from selfteach.engine import vllm_server
from selfteach.learner import ranks as ranks_module
from selfteach.loop.log import read_events
from selfteach.loop.settings import RunSettings, group_settings
from selfteach.tools.functions import function_tools

FILE = Path(__file__).parents[1] / "support" / "cluster.py"
HALF: dict[str, Any] = {"cluster": "ray", "cpus_per_worker": 0.5, "learner_cpus": 0.5, "cpus_per_reward_worker": 0.5}
STEPS = 3


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """A Ray of two processors, which all tests of this module join."""
    cluster = Cluster(Resources(), None, 60.0)
    cluster._init(200 << 20)
    yield cluster.ray
    if ranks_module._current is not None:
        ranks_module._current.close()
    cluster.ray.shutdown()


@pytest.fixture(scope="module")
def job(mini_folder: Path) -> RunConfig:
    return run_config_of(mini_folder, steps=STEPS, threads=1)


@pytest.fixture(scope="module")
def alone(job: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run in one process."""
    return api.train(job, tmp_path_factory.mktemp("alone") / "run").folder


def kill(kind: str, number: int = 0, by: signal.Signals = signal.SIGKILL) -> Any:
    return lambda watching: os.kill(watching.processes[kind][number], by)


def accounted(folder: Path) -> None:
    """Every step is in the log once, and of what it sampled all was learned or dropped, by name."""
    steps = [e for e in read_events(folder / "log") if e["event"] == "step"]
    assert [e["step"] for e in steps] == list(range(len(steps)))
    for e in steps:
        dropped = sum(v for n, v in e.items() if n.startswith("dropped/"))
        assert e["tokens/sampled"] == e["tokens/learned"] + dropped, e["step"]
    assert steps[-1]["tokens/total"] == sum(e["tokens/sampled"] for e in steps)


def test_one_rollout_worker_gives_the_bits_of_one_process(ray: Any, job: RunConfig, alone: Path, tmp_path: Path):
    run = training.carry_out(job.override(**HALF), tmp_path / "run")
    assert run.done
    same_run(alone, tmp_path / "run")


def test_killed_and_stopped_workers_are_replaced_and_nothing_changes(
    ray: Any, job: RunConfig, alone: Path, tmp_path: Path
):
    config = job.override(**HALF, rollout_workers=2, reward_workers=1, engine_seconds=4)
    seen = Watching({("rollout", 1): kill(ROLLOUT, 0), ("rollout", 2): kill(ROLLOUT, 1, signal.SIGSTOP)})
    seen.at["learn", 1] = kill(REWARD)
    training.carry_out(config, tmp_path / "run", seen)
    same_run(alone, tmp_path / "run")
    accounted(tmp_path / "run")
    said = " ".join(seen.texts)
    assert "rollout worker 0 (process" in said and "died (killed, crashed, or out of memory)" in said, said
    assert "rollout worker 1 (process" in said and "hung" in said and "requests are asked again" in said, said
    assert "reward worker 0 ended" in said
    for pids in seen.processes.values():
        os.kill(pids[-1], signal.SIGKILL) if running(pids[-1]) else None  # the stopped one


def test_a_killed_rank_is_replaced_and_the_run_goes_on_from_its_checkpoint(ray: Any, job: RunConfig, tmp_path: Path):
    config = job.override(learner="fsdp", world=2, learner_seconds=30)
    assert training.carry_out(config, tmp_path / "whole").done  # by ranks that the run starts itself

    def kill_rank(_: Watching) -> None:
        assert ranks_module._current is not None
        os.kill(ranks_module._current.workers[0].pid, signal.SIGKILL)  # type: ignore[attr-defined]

    seen = Watching({("learn", 1): kill_rank})
    killed = training.carry_out(config.override(**HALF), tmp_path / "killed", seen)
    assert killed.done and seen.steps == [0, 1, 2]
    assert any("rank 1 died" in t and t.endswith("the learner goes on from checkpoint 1") for t in seen.texts)
    same_run(tmp_path / "whole", tmp_path / "killed")
    accounted(tmp_path / "killed")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_killed_driver_leaves_nothing_behind_and_its_run_goes_on(
    ray: Any, job: RunConfig, alone: Path, tmp_path: Path
):
    out, config = tmp_path / "run", tmp_path / "config.json"
    address = ray.get_runtime_context().gcs_address
    config.write_text(json.dumps(job.override(**HALF, cluster_address=address).to_json()))
    words = [sys.executable, "-m", "selfteach", "train", "--config", str(config), "--out", str(out), "--trust"]
    env = {**os.environ, "PYTHONPATH": str(Path(api.__file__).parents[2])}
    process = subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < until and not _steps_of(out):
        time.sleep(0.01)
    below = [pid for pid in descendants(os.getpid()) if "EngineHost" in name_of(pid)]
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(_steps_of(out)) < STEPS and len(below) == 1
    run = training.carry_out(api.load(out).ending(True, rollout_workers=2), out, resume=True)
    assert run.done
    same_run(alone, out)
    accounted(out)
    assert not any(map(running, below))


def _steps_of(out: Path) -> list[Any]:
    return [e for e in read_events(out / "log") if e["event"] == "step"] if (out / "log").is_dir() else []


def test_rollouts_that_run_ahead_are_those_of_one_process(ray: Any, job: RunConfig, tmp_path: Path):
    ahead = job.override(staleness=1)
    training.carry_out(ahead, tmp_path / "alone")
    training.carry_out(ahead.override(**HALF), tmp_path / "run")
    same_run(tmp_path / "alone", tmp_path / "run")
    interrupted = training.carry_out(ahead.override(**HALF, interrupt=True), tmp_path / "interrupted")
    assert interrupted.done
    accounted(tmp_path / "interrupted")


def test_rollout_workers_sleep_while_the_learner_works(ray: Any, job: RunConfig, alone: Path, tmp_path: Path):
    training.carry_out(job.override(**HALF, colocate=True), tmp_path / "run")
    same_run(alone, tmp_path / "run")


def test_a_vllm_in_each_worker_gets_weights_and_is_replaced(ray: Any, job: RunConfig, tmp_path: Path):
    """A stand-in for vLLM that answers as it does; the real one is tried below."""
    pytest.importorskip("httpx2")
    stub, python = FILE.with_name("stub_vllm.py"), tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {stub} "$@"\n')
    python.chmod(0o755)

    def kill_all(_: Watching) -> None:
        for pid in (pid for pid in descendants(os.getpid()) if "VllmHost" in name_of(pid)):
            os.kill(pid, signal.SIGKILL)

    config = job.override(**HALF, engine="vllm", vllm_python=str(python), eval_every=0)
    seen = Watching({("rollout", 1): kill_all})
    run = training.carry_out(config, tmp_path / "run", seen)
    assert run.done and any("died" in t and "it is replaced" in t for t in seen.texts)
    accounted(tmp_path / "run")
    steps = _steps_of(tmp_path / "run")
    assert max(e["policy/logprob_mismatch_mean"] for e in steps) < 1e-4
    with pytest.raises(BadValue, match=r"gpus_per_worker: 2 GPUs for a vLLM of 1; give --vllm-args"):
        training.carry_out(config.override(gpus_per_worker=2), tmp_path / "other")


def test_a_real_vllm_in_each_worker_samples_what_is_learned(ray: Any, tmp_path: Path):
    """Where vLLM is: SELFTEACH_TEST_VLLM_PYTHON names the Python of its environment."""
    pytest.importorskip("httpx2")
    python = os.environ.get("SELFTEACH_TEST_VLLM_PYTHON")
    try:
        vllm_server.installed(python)
    except BadValue as error:
        pytest.skip(str(error))
    small = {"steps": 2, "groups": 2, "rollouts": 2, "warm_steps": 2, "warm_practice_steps": 0, "final_eval_tasks": 2}
    config = plan("grpo", "chain_sum", model="tiny", **small, eval_every=0, final_eval_k=0, threads=1)
    config = config.override(**HALF, engine="vllm", vllm_python=python, rollout_workers=2)
    assert training.carry_out(config, tmp_path / "run").done
    accounted(tmp_path / "run")
    assert max(e["policy/logprob_mismatch_mean"] for e in _steps_of(tmp_path / "run")) < 1e-4


def test_what_is_not_there_is_said_in_a_line(ray: Any, job: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    wrong = {
        r"^cluster: 4 GPUs are asked for \(.*2 rollout workers of 1 CPU and 2 GPUs\), and it has 0 \(1 node": {
            "rollout_workers": 2,
            "gpus_per_worker": 2,
        },
        r"^cluster: 65 CPUs are asked for .*, and it has \d+ \(1 node: .*--cpus-per-worker": {"rollout_workers": 64},
        r"^colocate: 3 rollout workers do not divide over 2 processes": {
            "colocate": True,
            "rollout_workers": 3,
            "learner": "fsdp",
            "world": 2,
        },
        r"^colocate: rollouts that run ahead": {"colocate": True, "staleness": 1},
        r"^world: 2 processes are asked for, and the learner is local": {"world": 2},
        r"^gpus_per_worker: 1.5 GPUs": {"gpus_per_worker": 1.5},
    }
    for said, given in wrong.items():
        with pytest.raises(BadValue, match=said):
            training.carry_out(job.override(cluster="ray", **given), tmp_path / "run")
    with pytest.raises(BadValue, match="rollout_workers: is for processes that Ray places; give --cluster ray"):
        training.carry_out(job.override(rollout_workers=2), tmp_path / "run")
    with pytest.raises(BadValue, match="cluster: the servers of --engine http run already"):
        training.carry_out(job.override(cluster="ray", engine="http"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        BadValue, match=r"^--cluster ray: the package ray is not installed; pip install 'selfteach\[ray\]'"
    ):
        training.carry_out(job.override(cluster="ray"), tmp_path / "run")


def test_an_address_where_nothing_answers(monkeypatch: pytest.MonkeyPatch):
    cluster = Cluster(Resources(), "127.0.0.1:9", 5.0)
    monkeypatch.setattr(cluster.ray, "is_initialized", lambda: False)
    with pytest.raises(
        BadValue, match=r"^cluster_address: nothing answers at 127.0.0.1:9 \(Connection refused\); start"
    ):
        cluster.start()
    with pytest.raises(BadValue, match="is an address for Ray's client"):
        Cluster(Resources(), "ray://127.0.0.1:9", 5.0).start()


def test_what_others_have_is_waited_for_so_long(ray: Any):
    first = Cluster(Resources(rollout_workers=1), None, 30.0)
    first.start()
    try:
        with pytest.raises(
            BadValue, match=r"was not given within \d s; free are 0 CPU of 2 CPUs, others have the rest"
        ):
            Cluster(Resources(), None, 1.0).start()
    finally:
        first.close()


def test_settings_from_a_file(tmp_path: Path):
    for name, text in (("c.yaml", "cluster: ray\nrollout-workers: 4\n"), ("c.json", '{"rollout_workers": 4}')):
        (tmp_path / name).write_text(text)
        given = {"cluster_file": str(tmp_path / name), "cluster": "ray", "reward_workers": 2}
        made = RunSettings(**group_settings(given)["settings"])
        assert (made.rollout_workers, made.reward_workers) == (4, 2)
    (tmp_path / "c.yaml").write_text("- 4\n")
    with pytest.raises(BadValue, match="is no mapping of settings"):
        read_settings(str(tmp_path / "c.yaml"))
    (tmp_path / "c.yaml").write_text("a: [\n")
    with pytest.raises(BadValue, match=r"c.yaml: ParserError"):
        read_settings(str(tmp_path / "c.yaml"))
    with pytest.raises(BadValue, match="cannot be read"):
        read_settings(str(tmp_path / "none.yaml"))


def test_places_of_a_placement():
    apart = Resources(2, Share(2, 1), 2, Share(1, 1), 1)
    assert apart.bundles == [Share(1, 1), Share(1, 1), Share(2, 1), Share(2, 1), Share(1, 0)]
    assert [apart.bundle_of_worker(n) for n in (0, 1)] == [2, 3] and apart.bundle_of_call(0) == 4
    together = Resources(4, Share(1, 0.25), 2, Share(1, 0.5), 1, colocated=True)
    assert together.bundles == [Share(3, 1), Share(3, 1), Share(1, 0)]
    assert [together.bundle_of_worker(n) for n in range(4)] == [0, 1, 0, 1] and together.bundle_of_call(0) == 2
    with pytest.raises(BadValue, match="no node has 4 CPUs for one place"):
        Resources(1, Share(4)).check([("a", Share(3)), ("b", Share(3))])


@pytest.mark.parametrize("said", ["[enforce fail] DefaultCPUAllocator: can't allocate memory", "CUDA out of memory"])
def test_a_worker_without_memory_ends_the_step_in_a_line(said: str):
    host = EngineHost(None, 1)  # type: ignore[arg-type]

    async def fails(*given: Any) -> Any:
        raise RuntimeError(said)

    host.engine = SimpleNamespace(generate=fails)  # type: ignore[assignment]

    async def ask() -> Any:
        await host.submit([(3, Draw("policy", np.arange(3), Sampling(), 1))])
        return await host.answers(5.0)

    ((number, error),) = asyncio.run(ask())
    assert number == 3 and isinstance(error, EngineLost) and "take fewer --slots or a shorter --context" in str(error)


class Busy:
    load = 0


def test_a_context_goes_where_its_beginning_is():
    routes, workers = PrefixRoutes[Busy](), [Busy(), Busy()]
    prompts = [np.arange(n, n + 3 * BLOCK) for n in (0, 1000)]
    first = [routes.choose(p, workers) for p in prompts if setattr(workers[0], "load", int(p[0] > 0)) is None]
    assert first == workers
    workers[0].load = 4
    longer = [np.concatenate([p, np.arange(2 * BLOCK)]) for p in prompts]
    assert [routes.choose(p, workers) for p in longer] == workers, "the busier one has it"
    workers[0].load = SLACK + 1
    assert routes.choose(longer[0], workers) is workers[1], "but is too busy"
    routes.forget()
    workers[0].load = 0
    assert routes.choose(longer[1], workers) is workers[0]


def test_rewards_and_tools_in_processes_of_their_own(ray: Any, tmp_path: Path):
    registry.load_file(FILE)
    cluster = Cluster(Resources(1, Share(0.1), 1, Share(0.1), 2, Share(0.5)), None, 30.0)
    cluster.start()
    calls = CallWorkers(cluster, [str(BANDIT), str(FILE)], 60.0)
    said = list[str]()
    calls.warn = said.append
    flag = tmp_path / "flag"

    async def all_of_it() -> None:
        given = {"path": PathView(np.arange(4), np.ones(4, bool), [], 1, np.zeros(4))}
        make = registry.blocks.get("careless")
        fine = make(flag=str(flag))
        assert calls.takes(fine) and not calls.takes(registry.blocks.get("applicable_sum")())
        want = (await calls.score(fine, given, 30)).value
        flag.touch()
        assert (await calls.score(fine, given, 30)).value == want, "the process ended, and the call was made again"
        flag.touch()
        with pytest.raises(UserCodeFailed, match=r"ValueError: no such answer \(cluster.py:\d+, careless\)"):
            await calls.score(make(flag=str(flag), how="raise"), given, 30)
        flag.touch()
        with pytest.raises(TimeoutError):
            await calls.score(make(flag=str(flag), how="hang"), given, 1)
        many = await asyncio.gather(*(calls.score(fine, given, 30) for _ in range(8)))
        assert [s.value for s in many] == [want] * 8
        tool = calls.tool(function_tools([f"{FILE}:slow_double"])[0]["slow_double"])
        assert tool is not None and await tool({"x": 4}) == 8 and tool.spec.name == "slow_double"

    try:
        asyncio.run(all_of_it())
    finally:
        calls.close()
        cluster.close()
    assert calls.counts["replaced"] == 2 and len(said) == 2
