"""Selfteach's training step in the workloads of `bench step`: the rollouts, credit, update and weight delivery of one
step of its loop.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from ...core import Task, TaskSource, block, registry
from ...loop.assemble import RunSettings
from ...loop.assemble import loop as make_loop
from ...model.catalog import build
from ...rollout.single import plain

Json = Mapping[str, Any]


@block
def bench_hash(*, path: Any) -> float:
    """A reward that differs between any two responses and costs nothing: a hash of the ids."""
    return zlib.crc32(np.asarray(path.ids, np.int32).tobytes()) / 2**32


def prepare(workload: Json) -> tuple[dict[str, Any], Callable[[Json], dict[str, Any]]]:
    """workload: folder, variant (float32 or bfloat16), texts, prompts, rollouts, new."""
    torch.set_num_threads(workload["threads"])
    texts = workload["texts"]
    source = TaskSource("bench", train=lambda i: Task(f"bench/{i}", list(prompts[i % len(prompts)])), test=[])
    start = build(workload["folder"], source)
    prompts = [start.tokenizer.encode(text).tolist() for text in texts]
    vocab = start.model.config.vocab
    # An id that is never sampled, so all episodes are of one length.
    start.tokenizer.eos_token_ids, start.tokenizer.eos_token_id = (vocab,), vocab
    method = registry.methods.get("grpo_trl")(groups=workload["prompts"], rollouts=workload["rollouts"])
    method = method.replace(programs={"main": plain()}, reward=(bench_hash(),))
    settings = RunSettings(
        steps=10**9,
        lr=1e-4,
        dtype=workload["variant"],
        max_tokens=workload["new"],
        context=workload["length"],
        threads=workload["threads"],
        slots=workload["slots"] or RunSettings().slots,
    )
    loop = make_loop(method, source, start, settings, donate_start=True)
    event_loop, spent = asyncio.new_event_loop(), dict[str, float]()
    for name, phase in {
        "forward": "log-probabilities",
        "logprob_mismatch": "log-probabilities",
        "backward": "backward",
        "step": "adamw",
    }.items():
        watch(loop.learner, name, phase, spent)

    def run(inputs: Json) -> dict[str, Any]:
        del inputs
        spent.clear()
        started = time.perf_counter()
        metrics, _, _ = event_loop.run_until_complete(loop.advance())
        seconds = time.perf_counter() - started
        phases = {"generation": metrics["time/rollout_s"], **spent}
        phases["rest"] = seconds - sum(phases.values())
        return {
            "seconds": seconds,
            "tokens": metrics["tokens/sampled"],
            **{f"seconds/{k}": v for k, v in phases.items()},
        }

    return {"dtype": workload["variant"]}, run


def watch(owner: Any, name: str, phase: str, spent: dict[str, float]) -> None:
    """Add the seconds of every call of a method to `spent[phase]`."""
    inner = getattr(owner, name)

    def timed(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        out = inner(*args, **kwargs)
        spent[phase] = spent.get(phase, 0.0) + time.perf_counter() - start
        return out

    setattr(owner, name, timed)
