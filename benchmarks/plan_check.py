"""The simulation of `selfteach plan` beside what two cores really do: seconds of a step at several staleness.

    python benchmarks/plan_check.py --out benchmarks/plan_check.json

Costs are measured one by one: of a step of decoding by the number of sequences, of learning by tokens, both on a core.
Lengths are those of the run. The simulation puts them together, for a sampler and a learner on a core each. Then the
same run is carried out, synchronous on one core and ahead on two, and its median step is compared.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

BATCHES, TOKENS = (1, 4, 16, 32, 64), 48


def decode_seconds(model: str, slots: int) -> dict[int, float]:
    """Seconds of a step of decoding by the number of sequences, median of three, for a model's folder."""
    from selfteach.core.task import Sampling
    from selfteach.loop.assemble import engine_of
    from selfteach.loop.settings import RunSettings
    from selfteach.model.catalog import StartModel
    from selfteach.model.files import load

    shape, tokenizer = load(Path(model))
    engine = engine_of(StartModel(shape, tokenizer, False, {}), RunSettings(slots=slots, threads=1))
    prompt = tokenizer.encode("question: add 2 9 4 1 ")
    sampling = Sampling(max_tokens=TOKENS, stop=())

    async def once(count: int) -> float:
        started = time.perf_counter()
        asked = (engine.generate("policy", prompt, sampling, key) for key in range(count))
        done = await asyncio.gather(*asked)
        return (time.perf_counter() - started) / max(len(c.ids) for c in done)

    return {n: statistics.median(asyncio.run(once(n)) for _ in range(3)) for n in BATCHES}


def carry_out(staleness: int, threads: int, steps: int, interrupt: bool = False) -> tuple[Any, list[dict[str, Any]]]:
    """A run of GRPO in the regime `skill`, and the events of its usual steps."""
    from selfteach import train
    from selfteach.core import registry
    from selfteach.loop.log import read_events

    regime = registry.regimes.get("skill")
    settings = {**regime.settings, "steps": steps, "staleness": staleness, "interrupt": interrupt, "threads": threads}
    settings |= {"eval_every": 0, "final_eval_tasks": 0, "final_eval_k": 0, "device": "cpu"}
    made = train(
        "grpo",
        task=regime.task,
        task_options=regime.task_options,
        model=regime.model,
        args={**regime.args, "minibatches": 1},
        settings=settings,
        out=Path(tempfile.mkdtemp()) / "run",
    )
    done = [e for e in read_events(made.folder / "log") if e["event"] == "step"]
    return made, done[len(done) // 6 :]


def main() -> None:
    """Measure, simulate, run, compare."""
    import torch

    from selfteach.analysis.cluster_plan import recorded_lengths
    from selfteach.analysis.throughput import Timing, Workload, simulate

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    run, steps = carry_out(0, 1, given.steps)
    lengths, prompt = recorded_lengths(run.folder)
    costs = decode_seconds(str(run.folder / "last"), 64)
    per_token = statistics.median(e["time/learn_s"] / e["tokens/sampled"] for e in steps)
    timing = Timing(
        lambda active, context: float(np.interp(active, list(costs), list(costs.values()))),
        lambda tokens: costs[1],  # a prompt is a step of its own
        lambda tokens: per_token * tokens,
    )
    work = Workload(16, 8, prompt, lengths, np.zeros(len(lengths)))
    measured = {"0": statistics.median(e["time/step_s"] for e in steps)}
    for staleness, interrupt in ((1, False), (4, True)):
        _, ahead = carry_out(staleness, 1, given.steps, interrupt)
        measured[f"{staleness}{' interrupt' * interrupt}"] = statistics.median(e["time/step_s"] for e in ahead)
    rows = {}
    for name, seconds in measured.items():
        foretold = simulate(work, timing, 1, 64, int(name.split()[0]), steps=24)
        rows[name] = {"foretold_s": foretold.step_seconds, "measured_s": seconds}
        rows[name]["ratio"] = rows[name]["foretold_s"] / seconds
    found = {
        "machine": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "decode_s": costs,
        "learn_s_per_token": per_token,
        "mean_length": float(lengths.mean()),
        "steps": rows,
    }
    given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
