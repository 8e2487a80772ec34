"""Plain torch loops over selfteach's model: a static cache for decoding, the padded loop for learning."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...model import files
from ...model.attention import AttentionSpec, causal_attention
from ...model.transformer import Transformer
from ..peers.loop import step_of

Json = Mapping[str, Any]


def prepare(workload: Json) -> tuple[dict[str, Any], Callable[[Json], dict[str, Any]]]:
    """workload: kind, folder, variant; for rollouts `new` and `wave` (sequences at once); or as `peers.loop`."""
    torch.set_num_threads(workload["threads"])
    model = files.load_model(Path(workload["folder"]))
    assert isinstance(model, Transformer)
    if workload["kind"] == "learn":
        run, dtype = step_of(model, lambda ids: model(ids, causal_attention), model.logits, workload)
        return {"dtype": dtype}, run
    model.to(getattr(torch, workload["variant"]))

    def run_rollout(inputs: Json) -> dict[str, Any]:
        prompts, generator = torch.tensor(inputs["prompts"]), torch.Generator().manual_seed(inputs["round"])
        start = time.perf_counter()
        sampled = [decode(model, wave, workload["new"], generator) for wave in prompts.split(workload["wave"])]
        return {"seconds": time.perf_counter() - start, "tokens": sum(s.numel() for s in sampled)}

    return {"dtype": workload["variant"]}, run_rollout


@torch.inference_mode()
def decode(model: Transformer, prompts: Tensor, new: int, generator: torch.Generator) -> Tensor:
    """prompts i64[B, L] -> i64[B, new]: one batch of equal lengths, without stop strings, scheduler or
    prefix cache.
    """
    c = model.config
    b, length = prompts.shape
    k = torch.zeros(c.layers, b, c.kv_heads, length + new, c.head_dim, dtype=model.lm_head.weight.dtype)
    v = torch.zeros_like(k)
    at = 0

    def attend(spec: AttentionSpec, q: Tensor, key: Tensor, value: Tensor) -> Tensor:  # pyright: ignore[reportUnusedFunction]
        t, layer = q.shape[1], spec.layer
        k[layer, :, :, at : at + t], v[layer, :, :, at : at + t] = key.transpose(1, 2), value.transpose(1, 2)
        keys, values = k[layer, :, :, : at + t], v[layer, :, :, : at + t]
        return F.scaled_dot_product_attention(
            q.transpose(1, 2), keys, values, is_causal=t > 1, enable_gqa=True
        ).transpose(1, 2)

    ids, out = prompts, []
    for _ in range(new):
        t = ids.shape[1]
        hidden = model(ids, attend, torch.arange(at, at + t)[None].expand(b, t))[:, -1]
        at += t
        cumulative = model.logits(hidden).float().softmax(-1).cumsum(-1)
        uniform = torch.empty(b, 1).uniform_(generator=generator) * cumulative[:, -1:]
        ids = torch.searchsorted(cumulative, uniform, right=True).clamp_(max=c.vocab - 1)
        out.append(ids)
    return torch.cat(out, 1)
