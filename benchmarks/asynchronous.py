"""Rollouts that run ahead of learning: what is won in time, and what older data cost.

    python benchmarks/asynchronous.py run --arms grpo:0 grpo:4 areal:4:interrupt --out curves.json
    python benchmarks/asynchronous.py draw curves.json --picture curves.png

Each arm is METHOD:STALENESS[:interrupt][:threads=N], a run in the regime `skill` (GRPO and AReaL with one minibatch a
step) in this process, of 60 steps with an evaluation every six. Without `threads` a synchronous run has all cores, and
one that runs ahead half of them for the engine and half for the learner. Results are added to the file, so that arms
can be run one by one; an arm that is there is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
from pathlib import Path
from typing import Any

FIGURES = ("staleness/mean", "staleness/max", "time/sampler_idle_fraction", "time/learner_idle_fraction")
TIMES = ("time/rollout_s", "time/learn_s", "time/step_s")


def run(arm: str, steps: int, seed: int, model: str) -> dict[str, Any]:
    """The curve of an arm: accuracy by tokens and by seconds of training, and what its steps took."""
    from selfteach import train
    from selfteach.core import registry
    from selfteach.loop.log import read_events

    method, staleness, *more = arm.split(":")
    regime = registry.regimes.get("skill")
    settings = {**regime.settings, "steps": steps, "seed": seed, "staleness": int(staleness), "device": "cpu"}
    settings |= {"interrupt": True} if "interrupt" in more else {}
    settings |= {k: int(v) for k, _, v in (word.partition("=") for word in more) if v}
    out = Path(tempfile.mkdtemp()) / "run"
    train(
        method,
        task=regime.task,
        task_options=regime.task_options,
        model=model or regime.model,
        args={**regime.args, "minibatches": 1},
        settings={**settings, "final_eval_tasks": 0, "final_eval_k": 0},
        out=out,
    )
    events = read_events(out / "log")
    done = [e for e in events if e["event"] == "step"]
    tokens, seconds, points = 0, 0.0, []
    for event in events:
        if event["event"] == "step":
            tokens, seconds = event["tokens/total"], seconds + event["time/step_s"]
        elif event["event"] == "eval":
            point = {"step": event["step"], "tokens": tokens, "seconds": seconds}
            points.append({**point, **{k: event[k] for k in ("greedy", "sampled")}})
    usual = done[len(done) // 6 :]  # without the first, in which nothing waits yet
    names = [n for n in (*TIMES, *FIGURES) if n in usual[-1]]
    return {
        "seed": seed,
        "seconds": seconds,
        "tokens": tokens,
        "median": {n: statistics.median(e[n] for e in usual) for n in names},
        "curve": points,
    }


def draw(results: dict[str, Any], picture: Path) -> None:
    """Sampled accuracy at equal tokens and at equal seconds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(2, 2, figsize=(11, 7), sharey=True, layout="constrained")
    for row, method in zip(panels, ("grpo", "areal"), strict=True):
        arms = {arm: r for arm, r in results["arms"].items() if arm.startswith(method + ":")}
        for axis, x in zip(row, ("tokens", "seconds"), strict=True):
            for n, (arm, r) in enumerate(sorted(arms.items())):
                style = "--" if "interrupt" in arm else "-"
                xs, ys = [p[x] for p in r["curve"]], [p["sampled"] for p in r["curve"]]
                axis.plot(xs, ys, style, label=arm.split(":", 1)[1].replace(":", ", "), color=f"C{n}")
            axis.set_xlabel("sampled tokens" if x == "tokens" else "seconds of training")
            axis.grid(alpha=0.3)
        row[0].set_ylabel(f"{method}: sampled accuracy")
        row[1].legend(title="staleness", fontsize=8)
    figure.savefig(picture, dpi=110)


def main() -> None:
    """Run arms, or draw what there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("--arms", nargs="+", required=True)
    running.add_argument("--steps", type=int, default=60)
    running.add_argument("--seed", type=int, default=0)
    running.add_argument("--model", default="", help="a folder of a warm start that is there already")
    running.add_argument("--out", type=Path, required=True)
    drawing = commands.add_parser("draw")
    drawing.add_argument("results", type=Path)
    drawing.add_argument("--picture", type=Path, required=True)
    given = parser.parse_args()
    if given.command == "draw":
        draw(json.loads(given.results.read_text(encoding="utf-8")), given.picture)
        return
    for arm in given.arms:
        results = json.loads(given.out.read_text(encoding="utf-8")) if given.out.exists() else {"arms": {}}
        if arm in results["arms"]:
            continue
        results |= {
            "machine": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "steps": given.steps,
        }
        results["arms"][arm] = run(arm, given.steps, given.seed, given.model)
        given.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        print(arm, json.dumps(results["arms"][arm]["median"]), flush=True)


if __name__ == "__main__":
    main()
