"""A plain training loop: sequences in a padded tensor, a clipped ratio, gradient clipping, torch's AdamW."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

# variant -> (dtype of the matmuls, whether in micro-batches)
VARIANTS = {
    "padded": ("float32", False),
    "micro": ("float32", True),
    "autocast": ("bfloat16", True),
    "bf16": ("bfloat16", True),
}
Call = Callable[[Tensor], Tensor]


def step_of(
    model: nn.Module, hidden_of: Call, logits_of: Call, workload: Mapping[str, Any]
) -> tuple[Callable[[Any], dict[str, Any]], str]:
    """(run, dtype): forward, backward and AdamW over workload["sequences"], in micro-batches of workload["micro"].

    padded    float32, one batch                micro   float32, in micro-batches
    autocast  float32 weights, matmuls in bf16  bf16    weights and moments in bf16
    """
    variant = workload["variant"]
    dtype, micro_batches = VARIANTS[variant]
    if variant == "bf16":
        model.to(torch.bfloat16)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.0)
    sequences = workload["sequences"]
    longest = max(len(s["prompt"]) + len(s["response"]) for s in sequences)
    ids = torch.zeros(len(sequences), longest, dtype=torch.int64)
    mask, adv = torch.zeros(len(sequences), longest), torch.zeros(len(sequences), longest)
    for n, s in enumerate(sequences):
        row = [*s["prompt"], *s["response"]]
        ids[n, : len(row)] = torch.tensor(row)
        mask[n, len(s["prompt"]) : len(row)] = 1
        adv[n] = s["adv"]
    first = min(len(s["prompt"]) for s in sequences)
    old, total, micro = -math.log(workload["vocab"]), mask.sum(), workload["micro"] if micro_batches else len(sequences)

    def run(_: Any) -> dict[str, Any]:
        start = time.perf_counter()
        for part in torch.arange(len(sequences)).split(micro):
            with torch.autocast("cpu", torch.bfloat16, enabled=variant == "autocast"):
                logits = logits_of(hidden_of(ids[part, :-1])[:, first - 1 :])
            logp = logits.float().log_softmax(-1).gather(-1, ids[part, first:, None]).squeeze(-1)
            r, a, m = (logp - old).exp(), adv[part, first:], mask[part, first:]
            loss = -(torch.minimum(r * a, r.clamp(0.8, 1.2) * a) * m).sum() / total
            loss.backward()
        forward = time.perf_counter() - start
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        seconds = time.perf_counter() - start
        return {
            "seconds": seconds,
            "tokens": workload["tokens"],
            "seconds/forward and backward": forward,
            "seconds/adamw": seconds - forward,
        }

    return run, dtype
