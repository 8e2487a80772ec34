"""Our learner at the works of `bench learn`: forward, backward and AdamW over a batch; shared prompts computed once, or
each by itself.
"""

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

Given = Mapping[str, Any]


def prepare(work: Given) -> tuple[dict[str, Any], Callable[[Given], dict[str, Any]]]:
    """work: folder, variant (float32 or bfloat16), sequences, vocab, tokens, apart (each sequence with a prompt of its
    own).
    """
    torch.set_num_threads(work["threads"])
    learner = LocalLearner(
        {"policy": WeightSpec()},
        {"policy": ModelRole()},
        files.load_model(Path(work["folder"])),
        0,
        LearnerSettings(dtype=work["variant"]),
    )
    update = Update(("policy",), (Term(clipped_ratio()),))
    batch = batch_of(work)
    parts = apart(batch) if work["apart"] else [batch]
    about: dict[str, Any] = {"dtype": work["variant"]}
    if work["apart"]:
        about["gradient_gap"] = shared_or_apart(work, batch, update)

    def run(given: Given) -> dict[str, Any]:
        del given
        start = time.perf_counter()
        for part in parts:
            learner.backward(part, update)
        backward = time.perf_counter() - start
        learner.step(update, 1e-4)
        seconds = time.perf_counter() - start
        return {
            "seconds": seconds,
            "tokens": work["tokens"],
            "seconds/forward and backward": backward,
            "seconds/adamw": seconds - backward,
        }

    return about, run


def batch_of(work: Given) -> Batch:
    """The sequences as a batch with advantages, old log-probabilities of a uniform policy, and weights for the mean
    over tokens.
    """
    examples = [
        Example(
            (Segment(tuple(s["prompt"]), None), Segment(tuple(s["response"]), "main")),
            "policy",
            f"g{s['group']}",
            f"s{n}",
            given={"adv": ("seq", [s["adv"]])},
        )
        for n, s in enumerate(work["sequences"])
    ]
    batch = collate(examples, lambda _: None)  # type: ignore[arg-type,return-value]
    n = batch.size("token")
    batch.put("old_logp", "token", np.full(n, -math.log(work["vocab"])))
    batch.put("w0", "token", np.full(n, 1 / n))
    return batch


def apart(batch: Batch) -> list[Batch]:
    """The batch in parts, none of which holds two sequences of one group: so no prompt is shared, and the sum of
    gradients is the same.
    """
    group = batch.get("group", "seq")
    order = np.argsort(group, kind="stable")
    start = np.flatnonzero(np.r_[True, np.diff(group[order]) != 0])
    rank = np.empty(len(group), np.int64)
    rank[order] = np.arange(len(group)) - np.repeat(start, np.diff(np.r_[start, len(group)]))
    return [batch.take_sequences(np.flatnonzero(rank == r)) for r in range(rank.max() + 1)]


def shared_or_apart(work: Given, batch: Batch, update: Update) -> float:
    """How far the gradients of shared and separate prompts are apart in float32, on the first two groups."""
    few = batch.take_sequences(np.flatnonzero(batch.get("group", "seq") < 2))
    exact = LocalLearner({"policy": WeightSpec()}, {"policy": ModelRole()}, files.load_model(Path(work["folder"])))
    return gap(gradient(exact, [few], update), gradient(exact, apart(few), update))


def gradient(learner: LocalLearner, parts: list[Batch], update: Update) -> list[torch.Tensor]:
    """The gradient that these parts give together; the learner is left as it was."""
    params = [p for p in learner.groups["policy"].named_parameters().values() if isinstance(p, torch.nn.Parameter)]
    for part in parts:
        learner.backward(part, update)
    out = [p.grad.clone() for p in params if p.grad is not None]
    for p in params:
        p.grad = None
    return out


def gap(a: list[torch.Tensor], b: list[torch.Tensor]) -> float:
    """|a - b| / |b| over all parameters together."""
    away = sum(float((x.double() - y.double()).square().sum()) for x, y in zip(a, b, strict=True))
    return math.sqrt(away / sum(float(y.double().square().sum()) for y in b))
