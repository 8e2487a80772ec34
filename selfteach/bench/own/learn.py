"""Selfteach's learner in `bench learn`: forward, backward and AdamW, with shared prompts or separate ones."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...core import Batch, Example, ModelRole, Segment, Term, Update, WeightSpec, collate
from ...learner import LearnerSettings, LocalLearner
from ...model import files
from ...objective.policy import clipped_ratio

Json = Mapping[str, Any]


def prepare(workload: Json) -> tuple[dict[str, Any], Callable[[Json], dict[str, Any]]]:
    """workload: folder, variant (float32 or bfloat16), sequences, vocab, tokens, separate (a prompt per sequence)."""
    torch.set_num_threads(workload["threads"])
    learner = LocalLearner(
        {"policy": WeightSpec()},
        {"policy": ModelRole()},
        files.load_model(Path(workload["folder"])),
        0,
        LearnerSettings(dtype=workload["variant"]),
    )
    update = Update(("policy",), (Term(clipped_ratio()),))
    batch = batch_of(workload)
    parts = separate_prompts(batch) if workload["separate"] else [batch]
    info: dict[str, Any] = {"dtype": workload["variant"]}
    if workload["separate"]:
        info["gradient_error"] = shared_prefix_error(workload, batch, update)

    def run(inputs: Json) -> dict[str, Any]:
        del inputs
        start = time.perf_counter()
        for part in parts:
            learner.backward(part, update)
        backward = time.perf_counter() - start
        learner.step(update, 1e-4)
        seconds = time.perf_counter() - start
        return {
            "seconds": seconds,
            "tokens": workload["tokens"],
            "seconds/forward and backward": backward,
            "seconds/adamw": seconds - backward,
        }

    return info, run


def batch_of(workload: Json) -> Batch:
    """The sequences as a batch with advantages, old log-probabilities of a uniform policy, and loss weights for the
    mean over tokens.
    """
    examples = [
        Example(
            (Segment(tuple(s["prompt"]), None), Segment(tuple(s["response"]), "main")),
            "policy",
            f"g{s['group']}",
            f"s{n}",
            given={"adv": ("seq", [s["adv"]])},
        )
        for n, s in enumerate(workload["sequences"])
    ]
    batch = collate(examples, lambda _: None)  # type: ignore[arg-type,return-value]
    n = batch.size("token")
    batch.put("old_logp", "token", np.full(n, -math.log(workload["vocab"])))
    batch.put("w0", "token", np.full(n, 1 / n))
    return batch


def separate_prompts(batch: Batch) -> list[Batch]:
    """The batch in parts, none of which holds two sequences of one group: no prompt is shared then, and
    the sum of gradients is the same.
    """
    group = batch.get("group", "seq")
    order = np.argsort(group, kind="stable")
    start = np.flatnonzero(np.r_[True, np.diff(group[order]) != 0])
    rank = np.empty(len(group), np.int64)
    rank[order] = np.arange(len(group)) - np.repeat(start, np.diff(np.r_[start, len(group)]))
    return [batch.take_sequences(np.flatnonzero(rank == r)) for r in range(rank.max() + 1)]


def shared_prefix_error(workload: Json, batch: Batch, update: Update) -> float:
    """The relative error between the gradients of shared and separate prompts in float32, on the first two groups."""
    few = batch.take_sequences(np.flatnonzero(batch.get("group", "seq") < 2))
    learner = LocalLearner(
        {"policy": WeightSpec()}, {"policy": ModelRole()}, files.load_model(Path(workload["folder"]))
    )
    return relative_error(gradient(learner, [few], update), gradient(learner, separate_prompts(few), update))


def gradient(learner: LocalLearner, parts: list[Batch], update: Update) -> list[torch.Tensor]:
    """The sum of the gradients of these batches; the learner is unchanged."""
    params = [p for p in learner.groups["policy"].named_parameters().values() if isinstance(p, torch.nn.Parameter)]
    for part in parts:
        learner.backward(part, update)
    out = [p.grad.clone() for p in params if p.grad is not None]
    for p in params:
        p.grad = None
    return out


def relative_error(a: list[torch.Tensor], b: list[torch.Tensor]) -> float:
    """|a - b| / |b| over all parameters together."""
    squared = sum(float((x.double() - y.double()).square().sum()) for x, y in zip(a, b, strict=True))
    return math.sqrt(squared / sum(float(y.double().square().sum()) for y in b))
