"""One decoder-only transformer of the Llama and Qwen kind, used for sampling and for learning alike.

Parameters carry the names of the Hub's layout (`model.layers.0.self_attn.q_proj.weight` ...), so files go in and out unrenamed.
Attention is handed in: the learner gives a causal one over whole sequences, the engine one over its cache. Everything else is the same code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.errors import BadValue

# (layer, q [B, T, H, hd], k [B, T, KV, hd], v [B, T, KV, hd]) -> [B, T, H, hd]; q and k are already rotated
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Config:
    """The shape of a model. `width` is the residual's, `hidden` the SwiGLU's; q, k and v have `head_dim` per head."""

    vocab: int
    width: int = 192
    layers: int = 4
    heads: int = 8
    kv_heads: int = 2
    head_dim: int = 24
    hidden: int = 512
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-6
    tied: bool = True
    attention_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    max_length: int = 1024
    kind: str = "llama"

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise BadValue(f"model: heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")
        if self.head_dim % 2:
            raise BadValue(f"model: head_dim must be even for rotary positions, not {self.head_dim}")


class RMSNorm(nn.Module):
    """x / rms(x) * weight, computed in float32 at least (Zhang & Sennrich 2019)."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x if x.dtype == torch.float64 else x.float()
        return F.rms_norm(wide, self.weight.shape, self.weight.to(wide.dtype), self.eps).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.c = c
        self.q_proj = nn.Linear(c.width, c.heads * c.head_dim, bias=c.attention_bias)
        self.k_proj = nn.Linear(c.width, c.kv_heads * c.head_dim, bias=c.attention_bias)
        self.v_proj = nn.Linear(c.width, c.kv_heads * c.head_dim, bias=c.attention_bias)
        self.o_proj = nn.Linear(c.heads * c.head_dim, c.width, bias=False)
        if c.qk_norm:
            self.q_norm = RMSNorm(c.head_dim, c.norm_eps)
            self.k_norm = RMSNorm(c.head_dim, c.norm_eps)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], layer: int, attend: Attend) -> Tensor:
        b, t, _ = x.shape
        q = self.q_proj(x).view(b, t, self.c.heads, self.c.head_dim)
        k = self.k_proj(x).view(b, t, self.c.kv_heads, self.c.head_dim)
        v = self.v_proj(x).view(b, t, self.c.kv_heads, self.c.head_dim)
        if self.c.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        out = attend(layer, rotate(q, rotary), rotate(k, rotary), v)
        return self.o_proj(out.reshape(b, t, -1))


class MLP(nn.Module):
    """SwiGLU (Shazeer 2020)."""

    def __init__(self, c: Config):
        super().__init__()
        self.gate_proj = nn.Linear(c.width, c.hidden, bias=c.mlp_bias)
        self.up_proj = nn.Linear(c.width, c.hidden, bias=c.mlp_bias)
        self.down_proj = nn.Linear(c.hidden, c.width, bias=c.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.self_attn = Attention(c)
        self.mlp = MLP(c)
        self.input_layernorm = RMSNorm(c.width, c.norm_eps)
        self.post_attention_layernorm = RMSNorm(c.width, c.norm_eps)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], layer: int, attend: Attend) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rotary, layer, attend)
        return x + self.mlp(self.post_attention_layernorm(x))


class Trunk(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab, c.width)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.layers))
        self.norm = RMSNorm(c.width, c.norm_eps)


class Transformer(nn.Module):
    """ids -> hidden states -> logits."""

    cos: Tensor
    sin: Tensor

    def __init__(self, c: Config):
        super().__init__()
        self.c = c
        self.model = Trunk(c)
        self.lm_head = nn.Linear(c.width, c.vocab, bias=False)
        if c.tied:
            self.lm_head.weight = self.model.embed_tokens.weight
        cos, sin = rotary_table(c.head_dim, c.max_length, c.rope_theta)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, ids: Tensor, attend: Attend, positions: Tensor | None = None) -> Tensor:
        """ids i64[B, T], positions i64[B, T] (None: 0..T-1 in each row) -> hidden [B, T, width], after the last norm.

        Raises BadValue for a position beyond the model's context.
        """
        if positions is None:
            if ids.shape[1] > self.c.max_length:
                raise BadValue(f"model: {ids.shape[1]} tokens do not fit its context of {self.c.max_length}")
            rotary = self.cos[None, : ids.shape[1]], self.sin[None, : ids.shape[1]]
        else:
            rotary = self.cos[positions], self.sin[positions]
        x = self.model.embed_tokens(ids)
        for n, layer in enumerate(self.model.layers):
            x = layer(x, rotary, n, attend)
        return self.model.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [..., width] -> logits [..., vocab]."""
        return self.lm_head(hidden)

    def names(self) -> dict[str, Tensor]:
        """Parameter name -> tensor, a tied head once: what is saved, delivered and fingerprinted."""
        return dict(self.named_parameters())

    @torch.no_grad()
    def initialise(self, seed: int) -> Transformer:
        """Fresh weights from a seed alone: normal(0, 0.02), output projections scaled down by depth (Radford et al. 2019)."""
        from ..core import address

        for name, p in sorted(self.named_parameters()):
            if p.ndim < 2:
                p.fill_(0.0 if name.endswith("bias") else 1.0)
                continue
            std = 0.02 / (2 * self.c.layers) ** 0.5 if name.endswith(("o_proj.weight", "down_proj.weight")) else 0.02
            draw = address.generator(seed, "init", name).standard_normal(tuple(p.shape), dtype="float32")
            p.copy_(torch.from_numpy(draw) * std)
        return self


def rotary_table(head_dim: int, length: int, theta: float) -> tuple[Tensor, Tensor]:
    """cos and sin [length, head_dim], halves repeated, as in Llama's rotate-half form (Su et al. 2021)."""
    frequency = theta ** -(torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angle = torch.outer(torch.arange(length, dtype=torch.float32), frequency)
    angle = torch.cat([angle, angle], -1)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Turn x [B, T, H, hd] by its positions' angles ([B or 1, T, hd])."""
    cos, sin = rotary[0][:, :, None].to(x.dtype), rotary[1][:, :, None].to(x.dtype)
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


def causal(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention over whole sequences that start at position 0; padding, if any, stands at the right, where nothing looks."""
    del layer
    out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, enable_gqa=q.shape[2] != k.shape[2])
    return out.transpose(1, 2)
