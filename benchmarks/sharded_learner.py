"""What a sharded learner costs or gains: tokens per second of one process, one rank and several, by turns.

    python benchmarks/sharded_learner.py --ranks 2

One process computes the gradient of a batch and steps (GRPO's clipped ratio, float32), then the ranks do, and so on for
some rounds; other programs disturb both alike, so the ratio of their medians is what to read. Each process has one
thread. With as many cores as ranks the ideal is the number of ranks.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from typing import Any

import numpy as np
import torch

from selfteach.core import Example, ModelRole, Segment, Term, Update, WeightSpec, collate
from selfteach.core.batch import Batch
from selfteach.learner import LearnerSettings, LocalLearner
from selfteach.learner.sharded import ShardedLearner
from selfteach.model.transformer import Config, Transformer
from selfteach.objective.policy import clipped_ratio

SHAPE = Config(vocab=4096, width=384, layers=6, heads=6, kv_heads=2, head_dim=64, hidden=1024, max_length=512)


def batch_of(sequences: int, prompt: int, answer: int) -> Batch:
    """Random sequences whose answers are learned, four after each prompt."""
    rng = np.random.default_rng(0)
    examples = []
    for n in range(sequences):
        asked = np.random.default_rng([1, n // 4]).integers(0, SHAPE.vocab, prompt)
        said = rng.integers(0, SHAPE.vocab, answer)
        parts = (Segment(tuple(asked.tolist()), None), Segment(tuple(said.tolist()), "main"))
        examples.append(Example(parts, "policy", f"g{n // 4}", f"s{n}"))
    batch = collate(examples, lambda _: None)  # type: ignore[arg-type, return-value]
    rows = len(batch.place)
    batch.put("old_logp", "token", np.full(rows, -8.3, np.float32))
    batch.put("adv", "token", rng.standard_normal(rows).astype(np.float32))
    batch.put("w0", "token", np.full(rows, 1 / rows, np.float32))
    return batch


def seconds(learner: LocalLearner, batch: Batch, update: Update) -> float:
    """The time of one gradient and step."""
    begun = time.perf_counter()
    learner.backward(batch, update)
    learner.step(update, 1e-4)
    return time.perf_counter() - begun


def main() -> None:
    """Measure, and print one line of JSON for each number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--micro-tokens", type=int, default=2048)
    given = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    batch, update = batch_of(given.sequences, 64, 128), Update(("policy",), (Term(clipped_ratio(), ("main",)),))
    roles: tuple[Any, Any] = {"policy": WeightSpec()}, {"policy": ModelRole(("policy",))}
    start = Transformer(SHAPE).initialise(0)
    one = LocalLearner(*roles, start, 0, LearnerSettings(micro_tokens=given.micro_tokens))
    tokens = len(batch.ids)
    for world in given.ranks:
        s = LearnerSettings(micro_tokens=given.micro_tokens, learner="fsdp", world=world)
        several = ShardedLearner.started(*roles, start, 0, s)
        times: dict[str, list[float]] = {"one process": [], "ranks": []}
        for number in range(given.rounds + 1):
            for name, learner in (("one process", one), ("ranks", several)):
                took = seconds(learner, batch, update)
                if number:  # the first builds kernels, and FSDP's buffers
                    times[name].append(took)
        local, shared = (statistics.median(t) for t in times.values())
        found = {"ranks": world, "tokens/s of one process": round(tokens / local), "tokens/s": round(tokens / shared)}
        print(json.dumps(found | {"ratio": round(local / shared, 2)}), flush=True)
        several.ranks.close()


if __name__ == "__main__":
    main()
