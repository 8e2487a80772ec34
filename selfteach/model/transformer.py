"""One decoder-only transformer of the Llama, Mistral, Qwen, SmolLM and Gemma kinds, used for sampling and for learning alike.

Parameters carry the names of the Hub's layout (`model.layers.0.self_attn.q_proj.weight` ...), so files go in and out unrenamed.
Attention is handed in: the learner gives a causal one over whole sequences, the engine one over its cache. Everything else is the same code.
What families differ in are fields of `Config`; `hub.py` says which family has which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..core.errors import BadValue
from . import lending
from .base import Model
from .rotary import Scaling, rotary_table, rotate

ACTIVATIONS = {"silu": F.silu, "gelu": F.gelu, "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh")}


class Look(NamedTuple):
    """How a layer attends: softmax over keys of cap(scale * q k), where a query sees `window` keys up to its own (0: all before it).

    cap(s) = cap * tanh(s / cap), or s where cap is None (soft-capping: Gemma 2).
    """

    layer: int
    scale: float
    window: int = 0
    cap: float | None = None


# (look, q [B, T, H, hd], k [B, T, KV, hd], v [B, T, KV, hd]) -> [B, T, H, hd]; q and k are already rotated
Attend = Callable[[Look, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Config:
    """The shape of a model. `width` is the residual's, `hidden` the gated MLP's; q, k and v have `head_dim` per head.

    attention_bias   biases on q, k, v and o; qkv_bias: on q, k and v alone
    scaling          how rotary positions were stretched; local_theta: layers with a window turn by this theta, unstretched
    unrotated        layers without rotary positions;  windows: each layer's (see Look), empty where none has one
    score_scale      what attention scores are multiplied by (None: head_dim^-1/2);  score_cap, logit_cap: soft-caps
    centred_norms    norms multiply by 1 + weight;  sandwich: norms after attention and MLP too
    scaled_embedding embeddings are multiplied by sqrt(width)
    kind             the family in whose layout it is saved, where that family has all this
    """

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
    qkv_bias: bool = False
    scaling: Scaling | None = None
    local_theta: float | None = None
    unrotated: tuple[int, ...] = ()
    windows: tuple[int, ...] = ()
    score_scale: float | None = None
    score_cap: float | None = None
    logit_cap: float | None = None
    activation: str = "silu"
    centred_norms: bool = False
    sandwich: bool = False
    scaled_embedding: bool = False

    def __post_init__(self) -> None:
        if self.windows and len(self.windows) != self.layers:
            raise BadValue(f"model: windows are given for {len(self.windows)} layers, it has {self.layers}")
        if self.activation not in ACTIVATIONS:
            raise BadValue(f"model: activation {self.activation!r} is not known; there are: {', '.join(ACTIVATIONS)}")
        if self.heads % self.kv_heads:
            raise BadValue(f"model: heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")
        if self.head_dim % 2:
            raise BadValue(f"model: head_dim must be even for rotary positions, not {self.head_dim}")

    def look(self, layer: int) -> Look:
        """How one layer attends."""
        scale = self.head_dim**-0.5 if self.score_scale is None else self.score_scale
        return Look(layer, scale, self.windows[layer] if self.windows else 0, self.score_cap)


class Linear(nn.Linear):
    """A linear layer that waits for its weights: a default beginning would cost seconds, and draw from the global generator."""

    def reset_parameters(self) -> None:
        """Nothing: `initialise` or `hold` gives the weights."""

    def forward(self, input: Tensor) -> Tensor:
        if lending.lent and (out := lending.lent.linear(input, [self.weight], [self.bias])) is not None:
            return out[0]
        return F.linear(input, self.weight, self.bias)


def together(x: Tensor, *modules: nn.Module) -> tuple[Tensor, ...]:
    """What some linear layers make of one input, or the way lent."""
    if lending.lent and all(type(m) is Linear for m in modules):
        own: tuple[Linear, ...] = modules  # type: ignore[assignment]
        if (out := lending.lent.linear(x, [m.weight for m in own], [m.bias for m in own])) is not None:
            return out
    return tuple(m(x) for m in modules)


def onto(plus: Tensor | None, x: Tensor, module: nn.Module) -> Tensor:
    """plus + module(x), or the way lent; module(x) where there is nothing to add it to."""
    if plus is None:
        return module(x)
    if lending.lent and type(module) is Linear and (out := lending.lent.linear(x, [module.weight], [module.bias], plus)) is not None:
        return out[0]
    return add(plus, module(x))


class Embedding(nn.Embedding):
    """An embedding that waits for its weights, as Linear does."""

    def reset_parameters(self) -> None:
        """Nothing: `initialise` or `hold` gives the weights."""


class RMSNorm(nn.Module):
    """x / rms(x) * weight, computed in float32 at least (Zhang & Sennrich 2019); `centred`: times 1 + weight.

    Under autocast it gives what the products after it take; the `last` one, which heads read, keeps all its bits.
    """

    def __init__(self, width: int, c: Config, last: bool = False):
        super().__init__()
        self.last = last
        self.centred = c.centred_norms
        self.weight = nn.Parameter(torch.zeros(width) if self.centred else torch.ones(width))
        self.eps = c.norm_eps

    def forward(self, x: Tensor) -> Tensor:
        return self.split(x)[0]

    def split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The norm of x, and x to go on with: its gradients by both ways are then one pass where the way is lent."""
        kind = x.device.type
        narrow = not self.last and torch.is_autocast_enabled(kind)
        if lending.lent and (both := lending.lent.norm(x, self.weight, self.eps, float(self.centred), narrow)) is not None:
            return both
        wide = x if x.dtype == torch.float64 else x.float()
        weight = self.weight.to(wide.dtype)
        out = F.rms_norm(wide, weight.shape, 1 + weight if self.centred else weight, self.eps)
        return out.to(torch.get_autocast_dtype(kind) if narrow else x.dtype), x


def add(x: Tensor, z: Tensor) -> Tensor:
    """x + z, or the way lent: the residual is float32 where what is added to it is bf16."""
    if lending.lent and (out := lending.lent.add(x, z)) is not None:
        return out
    return x + z


class Attention(nn.Module):
    """Grouped-query attention (Ainslie et al. 2023), with norms on the heads of q and k where the model has them."""

    def __init__(self, c: Config, layer: int):
        super().__init__()
        self.c = c
        self.look = c.look(layer)
        bias = c.attention_bias or c.qkv_bias
        self.q_proj = Linear(c.width, c.heads * c.head_dim, bias=bias)
        self.k_proj = Linear(c.width, c.kv_heads * c.head_dim, bias=bias)
        self.v_proj = Linear(c.width, c.kv_heads * c.head_dim, bias=bias)
        self.o_proj = Linear(c.heads * c.head_dim, c.width, bias=c.attention_bias)
        if c.qk_norm:
            self.q_norm = RMSNorm(c.head_dim, c)
            self.k_norm = RMSNorm(c.head_dim, c)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor] | None, attend: Attend, plus: Tensor | None = None) -> Tensor:
        """With `plus`, the residual: onto that."""
        b, t, _ = x.shape
        q, k, v = (y.view(b, t, -1, self.c.head_dim) for y in together(x, self.q_proj, self.k_proj, self.v_proj))
        if self.c.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        out = attend(self.look, rotate(q, rotary), rotate(k, rotary), v)
        return onto(plus, out.reshape(b, t, -1), self.o_proj)


class MLP(nn.Module):
    """A gated MLP: SwiGLU or GeGLU (Shazeer 2020)."""

    def __init__(self, c: Config):
        super().__init__()
        self.kind = c.activation
        self.gate_proj = Linear(c.width, c.hidden, bias=c.mlp_bias)
        self.up_proj = Linear(c.width, c.hidden, bias=c.mlp_bias)
        self.down_proj = Linear(c.hidden, c.width, bias=c.mlp_bias)

    def forward(self, x: Tensor, plus: Tensor | None = None) -> Tensor:
        """With `plus`, the residual: onto that."""
        gate, up = together(x, self.gate_proj, self.up_proj)
        both = lending.lent.gated(self.kind, gate, up) if lending.lent else None
        return onto(plus, ACTIVATIONS[self.kind](gate) * up if both is None else both, self.down_proj)


class Layer(nn.Module):
    """Attention and MLP, each on the normed residual; in a sandwich what they give is normed too. Names are the Hub's."""

    def __init__(self, c: Config, layer: int):
        super().__init__()
        self.self_attn = Attention(c, layer)
        self.mlp = MLP(c)
        self.input_layernorm = RMSNorm(c.width, c)
        self.post_attention_layernorm = RMSNorm(c.width, c)
        self.sandwich = c.sandwich
        if c.sandwich:
            self.pre_feedforward_layernorm = RMSNorm(c.width, c)
            self.post_feedforward_layernorm = RMSNorm(c.width, c)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor] | None, attend: Attend) -> Tensor:
        if self.sandwich:
            x = add(x, self.post_attention_layernorm(self.self_attn(self.input_layernorm(x), rotary, attend)))
            return add(x, self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x))))
        y, x = self.input_layernorm.split(x)
        x = self.self_attn(y, rotary, attend, x)
        y, x = self.post_attention_layernorm.split(x)
        return self.mlp(y, x)


class Trunk(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.embed_tokens = Embedding(c.vocab, c.width)
        self.layers = nn.ModuleList(Layer(c, n) for n in range(c.layers))
        self.norm = RMSNorm(c.width, c, last=True)


class Transformer(Model):
    """ids -> hidden states -> logits."""

    pluggable = True
    plain_head = True

    def __init__(self, c: Config):
        super().__init__()
        self.c = c
        self.model = Trunk(c)
        self.lm_head = Linear(c.width, c.vocab, bias=False)
        if c.tied:
            self.lm_head.weight = self.model.embed_tokens.weight
        tables = {"": rotary_table(c.head_dim, c.max_length, c.rope_theta, c.scaling)}
        if c.local_theta is not None:
            tables["local_"] = rotary_table(c.head_dim, c.max_length, c.local_theta)
        for name, (cos, sin) in tables.items():
            self.register_buffer(f"{name}cos", cos, persistent=False)
            self.register_buffer(f"{name}sin", sin, persistent=False)
        # Which table turns each layer's q and k; None: neither.
        self.turned = [None if n in c.unrotated else "local_" if c.local_theta is not None and c.look(n).window else "" for n in range(c.layers)]

    @classmethod
    def bare(cls, c: Config) -> Transformer:
        """A model without memory for its weights, which `hold` then gives it."""
        with torch.device("meta"):
            return cls(c)

    def hold(self, tensors: Iterable[tuple[str, Tensor]]) -> Transformer:
        """Take tensors as the parameters of their names, without copying; the head stays tied if it is."""
        for name, tensor in tensors:
            module, _, leaf = name.rpartition(".")
            setattr(self.get_submodule(module), leaf, nn.Parameter(tensor))
        if self.c.tied:
            self.lm_head.weight = self.model.embed_tokens.weight
        return self

    def forward(self, ids: Tensor, attend: Attend, positions: Tensor | None = None) -> Tensor:
        """ids i64[B, T], positions i64[B, T] (None: 0..T-1 in each row) -> hidden [B, T, width], after the last norm.

        Raises BadValue for a position beyond the model's context.
        """
        if positions is None and ids.shape[1] > self.c.max_length:
            raise BadValue(f"model: {ids.shape[1]} tokens do not fit its context of {self.c.max_length}")
        rotary: dict[str | None, tuple[Tensor, Tensor] | None] = {None: None}
        for name in {turn for turn in self.turned if turn is not None}:
            cos, sin = self.get_buffer(f"{name}cos"), self.get_buffer(f"{name}sin")
            at = slice(ids.shape[1]) if positions is None else positions
            rotary[name] = (cos[None, at], sin[None, at]) if positions is None else (cos[at], sin[at])
        x = self.model.embed_tokens(ids)
        if self.c.scaled_embedding:
            x = x * torch.tensor(self.c.width**0.5).to(x.dtype)  # rounded to the weights' type, as the model was trained
        for turn, layer in zip(self.turned, self.model.layers, strict=True):
            if self.recompute and torch.is_grad_enabled():
                x = checkpoint(layer, x, rotary[turn], attend, use_reentrant=False, preserve_rng_state=False)
            else:
                x = layer(x, rotary[turn], attend)
        return self.model.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [..., width] -> logits [..., vocab]."""
        return capped(self.lm_head(hidden), self.c.logit_cap)

    @torch.no_grad()
    def initialise(self, seed: int) -> Transformer:
        """Fresh weights from a seed alone: normal(0, 0.02), output projections scaled down by depth (Radford et al. 2019)."""
        from ..core import address

        for name, p in sorted(self.named_parameters()):
            if p.ndim < 2:
                p.fill_(0.0 if name.endswith("bias") or self.c.centred_norms else 1.0)
                continue
            std = 0.02 / (2 * self.c.layers) ** 0.5 if name.endswith(("o_proj.weight", "down_proj.weight")) else 0.02
            draw = address.generator(seed, "init", name).standard_normal(tuple(p.shape), dtype="float32")
            p.copy_(torch.from_numpy(draw) * std)
        return self


def capped(x: Tensor, cap: float | None) -> Tensor:
    """cap * tanh(x / cap); x where there is no cap."""
    return x if cap is None else torch.tanh(x / cap) * cap


def causal(look: Look, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention over whole sequences that start at position 0; padding, if any, stands at the right, where nothing looks."""
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    t = q.shape[2]
    if look.cap is None and not 0 < look.window < t:
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=look.scale, enable_gqa=q.shape[1] != k.shape[1])
        return out.transpose(1, 2)
    if 0 < 2 * look.window < t:
        return banded(look, q, k, v).transpose(1, 2)
    at = torch.arange(t, device=q.device)
    sees = at[:, None] >= at
    if look.window:
        sees &= at[:, None] - at < look.window
    return masked(look, q, k, v, torch.zeros(t, t, device=q.device, dtype=q.dtype).masked_fill_(~sees, -torch.inf)).transpose(1, 2)


def banded(look: Look, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`causal` where the window w is short: blocks of w queries, each over its own keys and those of the block before. [B, H, T, hd].

    T x 2w scores are made instead of T x T.
    """
    b, _, t, _ = q.shape
    w = look.window
    q, k, v = (F.pad(x, (0, 0, 0, -t % w)).unflatten(2, (-1, w)) for x in (q, k, v))
    blocks = q.shape[2]
    k, v = (torch.cat([F.pad(x, (0, 0, 0, 0, 1, 0))[:, :, :-1], x], 3) for x in (k, v))
    query, key = torch.arange(w, device=q.device)[:, None] + w, torch.arange(2 * w, device=q.device)
    sees = (key <= query) & (query - key < w) & ((torch.arange(blocks, device=q.device) > 0)[:, None, None] | (key >= w))
    mask = torch.zeros(sees.shape, device=q.device, dtype=q.dtype).masked_fill_(~sees, -torch.inf)
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))
    out = masked(look, q, k, v, mask[:, None].repeat(b, 1, 1, 1))
    return out.unflatten(0, (b, blocks)).transpose(1, 2).flatten(2, 3)[:, :, :t]


def masked(look: Look, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """q [B, H, T, hd] over k, v [B, KV, K, hd] with `mask` (0 or -inf, to [B, H, T, K]) added to the scores -> [B, H, T, hd]."""
    if look.cap is None:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=look.scale, enable_gqa=q.shape[1] != k.shape[1])
    near, seen = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    return (capped(q * look.scale @ near.transpose(2, 3), look.cap) + mask).softmax(-1) @ seen
