"""Our whole step at the works of `bench step`, through the library's own session: the episodes, credit, learning and
delivery of one step.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from ... import api
from ...core import Task, TaskSource, block, registry
from ...model.catalog import build
from ...rollout.single import plain

Given = Mapping[str, Any]


@block
def bench_hash(*, path: Any) -> float:
    """A reward that differs between any two answers and costs nothing: a hash of the ids."""
    return zlib.crc32(np.asarray(path.ids, np.int32).tobytes()) / 2**32


def prepare(work: Given) -> tuple[dict[str, Any], Callable[[Given], dict[str, Any]]]:
    """work: folder, variant (float32 or bfloat16), texts, prompts, rollouts, new."""
    torch.set_num_threads(work["threads"])
    texts = work["texts"]
    source = TaskSource("bench", train=lambda i: Task(f"bench/{i}", list(asked[i % len(asked)])), test=[])
    start = build(work["folder"], source)
    asked = [start.tokenizer.encode(text).tolist() for text in texts]
    vocab = start.model.c.vocab
    start.tokenizer.ends, start.tokenizer.end = (
        (vocab,),
        vocab,
    )  # an id that is never drawn: all episodes are of one length
    method = registry.methods.get("grpo_trl")(groups=work["prompts"], rollouts=work["rollouts"])
    method = method.replace(programs={"main": plain()}, reward=(bench_hash(),))
    settings = api.RunSettings(
        steps=10**9,
        lr=1e-4,
        dtype=work["variant"],
        max_tokens=work["new"],
        context=work["length"],
        threads=work["threads"],
        slots=work["slots"] or api.RunSettings().slots,
    )
    session = api.make_session(
        api.RunConfig(method, "bench", settings=settings), source, start, None, api.ignore_events
    )
    loop, spent = asyncio.new_event_loop(), dict[str, float]()
    for name, part in {
        "forward": "log-probabilities",
        "gap": "log-probabilities",
        "backward": "backward",
        "step": "adamw",
    }.items():
        watch(session.loop.learner, name, part, spent)

    def run(given: Given) -> dict[str, Any]:
        del given
        spent.clear()
        began = time.perf_counter()
        metrics, _, _ = loop.run_until_complete(session.loop.advance())
        seconds = time.perf_counter() - began
        parts = {"generation": metrics["time/rollout_s"], **spent}
        parts["rest"] = seconds - sum(parts.values())
        return {
            "seconds": seconds,
            "tokens": metrics["tokens/sampled"],
            **{f"seconds/{k}": v for k, v in parts.items()},
        }

    return {"dtype": work["variant"]}, run


def watch(owner: Any, name: str, part: str, spent: dict[str, float]) -> None:
    """Count the seconds that a method takes."""
    inner = getattr(owner, name)

    def timed(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        out = inner(*args, **kwargs)
        spent[part] = spent.get(part, 0.0) + time.perf_counter() - start
        return out

    setattr(owner, name, timed)
