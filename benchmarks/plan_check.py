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
GROUPS, ROLLOUTS = 8, 8


def score(text: str) -> float:
    """A reward that differs between answers of a model that was never trained."""
    return (sum(map(ord, text)) % 7) / 7


def a_model(folder: Path, width: int, layers: int) -> Path:
    """A model that was not trained, large enough for its work to be in C++: in a small one the interpreter, which both
    sides share, is what takes time.
    """
    from selfteach.configuration import task_source
    from selfteach.model import files
    from selfteach.model.catalog import build
    from selfteach.model.transformer import Config, Transformer

    tokenizer = build("tiny-s", task_source("digit_sum", {}), 0).tokenizer
    heads = width // 64
    shape = Config(len(tokenizer), width, layers, heads, heads, 64, width * 8 // 3 // 8 * 8, max_length=1024)
    folder.mkdir()
    files.save(folder, Transformer(shape).initialise(0), tokenizer)
    return folder


def decode_seconds(model: Path, slots: int) -> dict[int, float]:
    """Seconds of a step of decoding by the number of sequences, median of three."""
    from selfteach.core.task import Sampling
    from selfteach.loop.assemble import engine_of
    from selfteach.loop.settings import RunSettings
    from selfteach.model.catalog import StartModel
    from selfteach.model.files import load

    made, tokenizer = load(model)
    engine = engine_of(StartModel(made, tokenizer, False, {}), RunSettings(slots=slots, threads=1))
    prompt = tokenizer.encode("question: add 2 9 4 1 ")
    sampling = Sampling(max_tokens=TOKENS, stop=())

    async def once(count: int) -> float:
        started = time.perf_counter()
        asked = (engine.generate("policy", prompt, sampling, key) for key in range(count))
        done = await asyncio.gather(*asked)
        return (time.perf_counter() - started) / max(len(c.ids) for c in done)

    return {n: statistics.median(asyncio.run(once(n)) for _ in range(3)) for n in BATCHES}


def carry_out(model: Path, staleness: int, steps: int, threads: int = 1) -> tuple[Any, list[dict[str, Any]]]:
    """A run of GRPO, and the events of its usual steps."""
    from selfteach import train
    from selfteach.loop.log import read_events

    settings = {"steps": steps, "staleness": staleness, "threads": threads, "max_tokens": TOKENS, "warm_steps": 0}
    settings |= {"eval_every": 0, "final_eval_tasks": 0, "final_eval_k": 0, "device": "cpu", "lr": 1e-5}
    made = train(
        "grpo",
        task="digit_sum",
        model=str(model),
        reward=score,
        args={"groups": GROUPS, "rollouts": ROLLOUTS},
        settings=settings,
        out=model.parent / f"run-{staleness}-{threads}",
    )
    return made, [e for e in read_events(made.folder / "log") if e["event"] == "step"][2:]


def main() -> None:
    """Measure, simulate, run, compare."""
    import torch

    from selfteach.analysis.cluster_plan import recorded_lengths
    from selfteach.analysis.throughput import Timing, Workload, simulate

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    model = a_model(Path(tempfile.mkdtemp()) / "model", given.width, given.layers)
    costs = decode_seconds(model, 64)
    run, steps = carry_out(model, 0, given.steps)
    lengths, prompt = recorded_lengths(run.folder)
    per_token = statistics.median(e["time/learn_s"] / e["tokens/sampled"] for e in steps)
    timing = Timing(
        lambda active, context: float(np.interp(active, list(costs), list(costs.values()))),
        lambda tokens: costs[1],  # a prompt is a step of its own
        lambda tokens: per_token * tokens,
    )
    work = Workload(GROUPS, ROLLOUTS, prompt, lengths, np.zeros(len(lengths)))
    rows: dict[str, dict[str, float]] = {}
    for staleness, usual in ((0, steps), (1, carry_out(model, 1, given.steps)[1])):
        measured = statistics.median(e["time/step_s"] for e in usual)
        foretold = simulate(work, timing, 1, 64, staleness, steps=12).step_seconds
        rows[str(staleness)] = {"measured_s": measured, "foretold_s": foretold, "ratio": foretold / measured}
    both = statistics.median(e["time/step_s"] for e in carry_out(model, 0, given.steps, threads=2)[1])
    found = {
        "machine": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "model": {"width": given.width, "layers": given.layers},
        "decode_s": costs,
        "learn_s_per_token": per_token,
        "mean_length": float(lengths.mean()),
        "steps": rows,
        "synchronous_on_both_cores_s": both,
    }
    given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
