"""Attention: its spec per layer, the type of functions that compute it, and causal attention in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class AttentionSpec(NamedTuple):
    """How a layer attends: causally, by softmax over keys of soft_cap(scale * q k, cap).

    window  number of keys that a query attends to, its own included; 0: all
    cap     soft-cap of the scores (Gemma 2); None: none
    """

    layer: int
    scale: float
    window: int = 0
    cap: float | None = None


# (spec, q [B, T, H, hd], k [B, T, KV, hd], v [B, T, KV, hd]) -> [B, T, H, hd]; q and k are rotated
AttentionFn = Callable[[AttentionSpec, Tensor, Tensor, Tensor], Tensor]


def soft_cap(x: Tensor, cap: float | None) -> Tensor:
    """The value cap * tanh(x / cap); x where `cap` is None."""
    return x if cap is None else torch.tanh(x / cap) * cap


def causal_attention(spec: AttentionSpec, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention over sequences from position 0, padded on the right: q [B, T, H, hd] -> [B, T, H, hd]."""
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    t = q.shape[2]
    if spec.cap is None and not 0 < spec.window < t:
        out = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=spec.scale, enable_gqa=q.shape[1] != k.shape[1]
        )
        return out.transpose(1, 2)
    if 0 < 2 * spec.window < t:
        return sliding_window_attention(spec, q, k, v).transpose(1, 2)
    position = torch.arange(t, device=q.device)
    visible = position[:, None] >= position
    if spec.window:
        visible &= position[:, None] - position < spec.window
    return masked_attention(
        spec, q, k, v, torch.zeros(t, t, device=q.device, dtype=q.dtype).masked_fill_(~visible, -torch.inf)
    ).transpose(1, 2)


def sliding_window_attention(spec: AttentionSpec, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Like `causal_attention`, for a short window w, on q, k, v [B, H, T, hd].

    Blocks of w queries attend to their own keys and those of the block before: T x 2w scores instead of T x T.
    """
    b, _, t, _ = q.shape
    w = spec.window
    q, k, v = (F.pad(x, (0, 0, 0, -t % w)).unflatten(2, (-1, w)) for x in (q, k, v))
    blocks = q.shape[2]
    k, v = (torch.cat([F.pad(x, (0, 0, 0, 0, 1, 0))[:, :, :-1], x], 3) for x in (k, v))
    query, key = torch.arange(w, device=q.device)[:, None] + w, torch.arange(2 * w, device=q.device)
    visible = (
        (key <= query) & (query - key < w) & ((torch.arange(blocks, device=q.device) > 0)[:, None, None] | (key >= w))
    )
    mask = torch.zeros(visible.shape, device=q.device, dtype=q.dtype).masked_fill_(~visible, -torch.inf)
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))
    out = masked_attention(spec, q, k, v, mask[:, None].repeat(b, 1, 1, 1))
    return out.unflatten(0, (b, blocks)).transpose(1, 2).flatten(2, 3)[:, :, :t]


def masked_attention(spec: AttentionSpec, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Attention of q [B, H, T, hd] over k, v [B, KV, K, hd]; `mask` (0 or -inf, to [B, H, T, K]) is added to scores."""
    if spec.cap is None:
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, scale=spec.scale, enable_gqa=q.shape[1] != k.shape[1]
        )
    keys, values = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    return (soft_cap(q * spec.scale @ keys.transpose(2, 3), spec.cap) + mask).softmax(-1) @ values
