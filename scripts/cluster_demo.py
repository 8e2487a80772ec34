"""Runs on Ray on this machine: killed processes and equal bits, gradients on 1, 2 and 4 ranks, throughput.

    make cluster-demo
    .venv/bin/python scripts/cluster_demo.py --only kills --kills 20 --seed 3     more

GRPO and SSRL run on two rollout workers, one reward worker and two FSDP ranks, all on two processors. Each is seen
through once undisturbed, then with a process of each kind killed (SIGKILL) at a random moment: what comes out must be
the same bits, and every step's sampled tokens must be learned or dropped, once. Prints a table; exits 1 where anything
fell.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
os.environ["OMP_NUM_THREADS"] = "1"
PLACED: dict[str, Any] = {
    "cluster": "ray",
    "rollout_workers": 2,
    "cpus_per_worker": 0.5,
    "reward_workers": 1,
    "cpus_per_reward_worker": 0.2,
    "learner_cpus": 0.4,
    "learner": "fsdp",
    "world": 2,
    "learner_seconds": 120,
}
KINDS = {"rollout worker": "EngineHost", "reward worker": "CallHost", "learner rank": "RankHost", "driver": ""}
STEPS = 6
PARTS = ("kills", "gradients", "throughput")


def main() -> int:
    """Do the parts that are asked for; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="these parts alone")
    parser.add_argument("--kills", type=int, default=len(KINDS), help="of each method (default: one of each kind)")
    parser.add_argument("--methods", nargs="+", default=["grpo", "ssrl"])
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    from selfteach.cluster.ray_cluster import Cluster
    from selfteach.cluster.resources import Resources

    begun, fell = time.monotonic(), 0
    with tempfile.TemporaryDirectory() as home:
        os.environ["SELFTEACH_CACHE"] = os.environ.get("SELFTEACH_CACHE", str(Path(home) / "cache"))
        cluster = Cluster(Resources(), None, 60.0)
        cluster._init(200 << 20)
        address = cluster.ray.get_runtime_context().gcs_address
        print(f"Ray {cluster.ray.__version__} on this machine: {cluster.ray.cluster_resources().get('CPU'):g} CPUs")
        try:
            if "kills" in asked.only:
                fell += kills(Path(home), address, asked.methods, asked.kills, random.Random(asked.seed))
            if "gradients" in asked.only:
                fell += gradients()
            if "throughput" in asked.only:
                throughput(Path(home))
        finally:
            cluster.ray.shutdown()
    print(f"\n{time.monotonic() - begun:.0f} s in all; {'nothing fell' if not fell else f'{fell} FELL'}")
    return min(fell, 1)


# ---- kills


def kills(home: Path, address: str, methods: list[str], count: int, draw: random.Random) -> int:
    """Runs of methods, of which a process is killed; how many did not come out the same."""
    from support.runs import BANDIT
    from support.short_run import short_job

    from selfteach.core import registry

    registry.load_file(BANDIT)
    print(f"\n{'method':8} {'killed':16} {'at step':>7} {'bits':>10} {'account':>8} {'again':>6} {'s':>5}")
    fell = 0
    for name in methods:
        job = short_job(name, lambda task, options: small_start(home, task, options))
        job = replace(job, use=(str(BANDIT),))  # its rewards, by which the answers of a group differ
        job = job.override(steps=STEPS, checkpoint_every=1, threads=1, cluster_address=address, **PLACED)
        whole = home / f"{name}-whole"
        row(name, "nothing", "", *see_through(job, whole, whole, lambda out: None))
        for number, kind in enumerate(itertools.islice(itertools.cycle(KINDS), count)):
            at, pause = draw.randrange(STEPS - 1), draw.random() * 0.3
            out = home / f"{name}-{number}"
            found = see_through(job, out, whole, lambda out, k=kind, a=at, p=pause: kill(out, k, a, p))
            fell += found[0] != "the same" or found[1] != "holds"
            row(name, kind, at, *found)
    return fell


def row(name: str, kind: str, at: object, bits: str, account: str, again: int, seconds: float) -> None:
    """Print one run."""
    print(f"{name:8} {kind:16} {at!s:>7} {bits:>10} {account:>8} {again:>6} {seconds:5.0f}", flush=True)


def see_through(
    job: Any, out: Path, whole: Path, disturb: Callable[[subprocess.Popen[bytes]], None]
) -> tuple[str, str, int, float]:
    """(whether the bits are those of the undisturbed run, whether the account holds, times that it was started again,
    seconds) of a run whose process is given to `disturb`.
    """
    from support.runs import same_run

    config, begun, again = out.with_suffix(".json"), time.monotonic(), -1
    config.write_text(json.dumps(job.to_json()), encoding="utf-8")
    words = ["--config", str(config), "--out", str(out), "--trust"]
    while again < 3:
        with (out.with_suffix(".log")).open("ab") as log:
            command = [sys.executable, "-m", "selfteach", "train", *words]
            driver = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT)
        again += 1
        driver.out = out  # type: ignore[attr-defined]
        if again == 0:
            disturb(driver)
        if driver.wait() == 0:
            break
        words = ["--resume", str(out), "--trust"]
    try:
        same_run(whole, out)
        bits = "the same"
    except AssertionError:
        bits = "OTHERS"
    return bits, "holds" if accounted(out) else "BROKEN", again, time.monotonic() - begun


def kill(driver: Any, kind: str, step: int, pause: float) -> None:
    """Kill a process of a kind some time after a step."""
    while driver.poll() is None and len(steps_of(driver.out)) <= step:
        time.sleep(0.02)
    time.sleep(pause)
    found = [driver.pid] if kind == "driver" else [pid for pid, name in processes() if KINDS[kind] in name]
    for pid in found[:1]:
        os.kill(pid, signal.SIGKILL)


def processes() -> list[tuple[int, str]]:
    """(id, name) of the processes of this Ray's actors."""
    from support.cluster import descendants, name_of

    return [(pid, name) for pid in descendants(os.getpid()) if (name := name_of(pid)).startswith("ray::")]


def steps_of(out: Path) -> list[dict[str, Any]]:
    """The events of the steps in a run's log."""
    from selfteach.loop.log import read_events

    return [e for e in read_events(out / "log") if e["event"] == "step"] if (out / "log").is_dir() else []


def accounted(out: Path) -> bool:
    """Whether each step is in the log once, and all that was sampled was learned or dropped by name."""
    steps = steps_of(out)
    once = [e["step"] for e in steps] == list(range(STEPS))
    sums = [e["tokens/learned"] + sum(v for n, v in e.items() if n.startswith("dropped/")) for e in steps]
    return once and all(e["tokens/sampled"] == n for e, n in zip(steps, sums, strict=True))


def small_start(home: Path, task: str, options: dict[str, Any]) -> Path:
    """The folder of a very small untrained model with the tokenizer of a task."""
    from support.models import mini

    from selfteach.core import registry
    from selfteach.model import files
    from selfteach.model.tokenizer import train_tokenizer

    path = home / "starts" / task
    if not path.is_dir():
        path.parent.mkdir(exist_ok=True)
        path.mkdir()
        source = registry.tasks.get(task)(**options)
        tokenizer = train_tokenizer(itertools.islice(source.words(), 300), source.tags, 600)
        files.save(path, mini(-(-len(tokenizer) // 8) * 8, max_length=1024), tokenizer)
    return path


# ---- gradients


def gradients() -> int:
    """One update's gradient in one process, and on ranks that Ray places."""
    from support.learners import CAST, UPDATES, WEIGHTS, loss_weights, made, model

    from selfteach.cluster.rank_host import RankPlacer
    from selfteach.cluster.ray_cluster import Cluster
    from selfteach.cluster.resources import Resources, Share
    from selfteach.learner import LearnerSettings, LocalLearner
    from selfteach.learner.ranks import close_ranks
    from selfteach.learner.sharded import ShardedLearner

    files = [str(ROOT / "tests" / "support" / name) for name in ("learners.py", "sharded.py")]
    update = UPDATES["token"]
    batch = loss_weights(made(), update)
    one = LocalLearner(WEIGHTS, CAST, model(), 0, LearnerSettings(), None, ("ref",))
    one.backward(batch, update)
    want = {
        f"{g}/{n}": p.grad
        for g in update.params
        for n, p in one.groups[g].named_parameters().items()
        if p.grad is not None
    }
    size, fell = max(float(g.abs().max()) for g in want.values()), 0
    print("\nthe gradient of one update in float64, against one process")
    for world in (1, 2, 4):
        cluster = Cluster(Resources(1, Share(0.1), world, Share(0.4)), None, 60.0)
        cluster.start()
        settings = LearnerSettings(learner="fsdp", world=world, learner_seconds=120.0)
        learner = ShardedLearner.started(
            WEIGHTS, CAST, model(), 0, settings, None, ("ref",), files, RankPlacer(cluster)
        )
        learner.backward(batch, update)
        found = learner.gradients(update.params)
        worst = max(float((found[n] - want[n]).abs().max()) for n in want) / size
        print(f"  {world} rank{'s' * (world > 1)}: largest difference {worst:.1e} of the largest number", flush=True)
        fell += not worst < 1e-10
        del learner
        close_ranks()
        cluster.close()
    return fell


# ---- throughput


def throughput(home: Path) -> None:
    """Tokens a second of rollouts, in one process and in rollout workers."""
    import torch
    from support.models import mini
    from support.runs import BANDIT, run_config_of

    from selfteach import training
    from selfteach.core import registry
    from selfteach.model import files
    from selfteach.model.tokenizer import train_tokenizer

    registry.load_file(BANDIT)
    torch.set_num_threads(1)
    shape = {"width": 256, "layers": 6, "heads": 4, "kv_heads": 2, "head_dim": 64, "hidden": 768, "max_length": 256}
    (home / "larger").mkdir()
    files.save(home / "larger", mini(264, **shape), train_tokenizer(["ab"], (), 257))
    method = registry.methods.get("bandit_reinforce")(groups=8, rollouts=8)
    job = run_config_of(home / "larger", method, steps=5, threads=1, max_tokens=96, eval_every=0, checkpoint_every=9)
    ways = {"one process": {}} | {
        f"{n} rollout worker{'s' * (n > 1)}": {"cluster": "ray", "rollout_workers": n, "cpus_per_worker": 0.5,
                                               "learner_cpus": 0.5} for n in (1, 2)
    }  # fmt: skip
    print(
        "\nrollouts of 64 answers of at most 96 tokens, a model of 5 M parameters, one thread each; medians of 4 steps"
    )
    first = None
    for number, (way, settings) in enumerate(ways.items()):
        training.carry_out(job.override(**settings), home / f"throughput-{number}")
        steps = [e for e in steps_of(home / f"throughput-{number}") if e["step"]]
        rate = statistics.median(e["tokens_per_s"] for e in steps)
        step = statistics.median(e["time/step_s"] for e in steps)
        rest = step - statistics.median(e["time/rollout_s"] + e["time/learn_s"] for e in steps)
        first = first or rate
        print(
            f"  {way:18} {rate:7.0f} tokens/s  x {rate / first:.2f}   step {step:.2f} s, delivery and rest {rest:.2f} s"
        )


if __name__ == "__main__":
    sys.exit(main())
