"""A decoder-only transformer of the Llama, Mistral, Qwen, SmolLM and Gemma families, for sampling and learning.

Parameters have the names of the Hub's layout (`model.layers.0.self_attn.q_proj.weight` ...). Attention is an argument:
the learner's is causal over whole sequences, the engine's attends to its KV cache; all else is the same code. Families
differ in fields of `Config`; `hf_config.py` maps them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..core.errors import BadValue
from ..kernels import overrides
from .attention import AttentionFn, AttentionSpec, soft_cap
from .base import Model
from .rotary import RopeScaling, rotary_table, rotate

ACTIVATIONS = {"silu": F.silu, "gelu": F.gelu, "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh")}
M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class Config:
    """The shape of a model.

    width             of the residual stream;  hidden: of the gated MLP;  head_dim: of a head of q, k and v
    attention_bias    biases on q, k, v and o;  qkv_bias: on q, k and v alone
    scaling           scaling of rotary positions
    local_theta       rope theta of the layers with a window, without scaling
    unrotated         layers without rotary positions
    windows           each layer's (AttentionSpec), empty where none has one
    score_scale       factor of attention scores (None: head_dim^-1/2);  score_cap, logit_cap: soft-caps
    centred_norms     norms multiply by 1 + weight;  sandwich: norms after attention and MLP too
    scaled_embedding  embeddings are multiplied by sqrt(width)
    kind              the family (model_type) in whose layout it is saved, where that family has all this
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
    scaling: RopeScaling | None = None
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

    def attention_spec(self, layer: int) -> AttentionSpec:
        """How one layer attends."""
        scale = self.head_dim**-0.5 if self.score_scale is None else self.score_scale
        return AttentionSpec(layer, scale, self.windows[layer] if self.windows else 0, self.score_cap)


class Linear(nn.Linear):
    """A linear layer without default weights, which would cost seconds and draw from the global generator."""

    def reset_parameters(self) -> None:
        """Nothing: `initialise` or `assign` gives the weights."""

    def forward(self, input: Tensor) -> Tensor:
        """Outputs [..., out] of inputs [..., in]."""
        if (kernels := overrides.active()) and (out := kernels.linear(input, [self.weight], [self.bias])) is not None:
            return out[0]
        return F.linear(input, self.weight, self.bias)


def linears(x: Tensor, *modules: nn.Module) -> tuple[Tensor, ...]:
    """The outputs of some linear layers for one input, by one kernel where there is one."""
    if (kernels := overrides.active()) and all(type(m) is Linear for m in modules):
        own: tuple[Linear, ...] = modules  # type: ignore[assignment]
        if (out := kernels.linear(x, [m.weight for m in own], [m.bias for m in own])) is not None:
            return out
    return tuple(m(x) for m in modules)


def add_linear(residual: Tensor | None, x: Tensor, module: nn.Module) -> Tensor:
    """The sum residual + module(x), or module(x) where `residual` is None; by a kernel where there is one."""
    if residual is None:
        return module(x)
    if (
        (kernels := overrides.active())
        and type(module) is Linear
        and (out := kernels.linear(x, [module.weight], [module.bias], residual)) is not None
    ):
        return out[0]
    return add(residual, module(x))


class Embedding(nn.Embedding):
    """An embedding without default weights, as Linear."""

    def reset_parameters(self) -> None:
        """Nothing: `initialise` or `assign` gives the weights."""


class RMSNorm(nn.Module):
    """RMSNorm (Zhang & Sennrich 2019): x / rms(x) * weight, computed in float32 at least.

    centred  times 1 + weight
    last     under autocast the output keeps x's type, for the heads; else it has the type of the matmuls after it
    """

    def __init__(self, width: int, c: Config, last: bool = False) -> None:
        super().__init__()
        self.last = last
        self.centred = c.centred_norms
        self.weight = nn.Parameter(torch.zeros(width) if self.centred else torch.ones(width))
        self.eps = c.norm_eps

    def forward(self, x: Tensor) -> Tensor:
        """The norm of x [..., width]."""
        return self.split(x)[0]

    def split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(the norm of x, x as the residual): a kernel then adds the gradients of both in one pass."""
        kind = x.device.type
        to_bf16 = not self.last and torch.is_autocast_enabled(kind)
        if (kernels := overrides.active()) and (
            both := kernels.norm(x, self.weight, self.eps, float(self.centred), to_bf16)
        ) is not None:
            return both
        wide = x if x.dtype == torch.float64 else x.float()
        weight = self.weight.to(wide.dtype)
        out = F.rms_norm(wide, weight.shape, 1 + weight if self.centred else weight, self.eps)
        return out.to(torch.get_autocast_dtype(kind) if to_bf16 else x.dtype), x


def add(x: Tensor, z: Tensor) -> Tensor:
    """The sum x + z, by a kernel where there is one, which takes a float32 residual x with a bf16 z."""
    if (kernels := overrides.active()) and (out := kernels.add(x, z)) is not None:
        return out
    return x + z


class Attention(nn.Module):
    """Grouped-query attention (Ainslie et al. 2023), with norms of q and k heads where the model has them."""

    def __init__(self, c: Config, layer: int) -> None:
        super().__init__()
        self.config = c
        self.spec = c.attention_spec(layer)
        bias = c.attention_bias or c.qkv_bias
        self.q_proj = Linear(c.width, c.heads * c.head_dim, bias=bias)
        self.k_proj = Linear(c.width, c.kv_heads * c.head_dim, bias=bias)
        self.v_proj = Linear(c.width, c.kv_heads * c.head_dim, bias=bias)
        self.o_proj = Linear(c.heads * c.head_dim, c.width, bias=c.attention_bias)
        if c.qk_norm:
            self.q_norm = RMSNorm(c.head_dim, c)
            self.k_norm = RMSNorm(c.head_dim, c)

    def forward(
        self, x: Tensor, rotary: tuple[Tensor, Tensor] | None, attend: AttentionFn, residual: Tensor | None = None
    ) -> Tensor:
        """The output for x [B, T, width], added to `residual` where that is given."""
        b, t, _ = x.shape
        q, k, v = (y.view(b, t, -1, self.config.head_dim) for y in linears(x, self.q_proj, self.k_proj, self.v_proj))
        if self.config.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        out = attend(self.spec, rotate(q, rotary), rotate(k, rotary), v)
        return add_linear(residual, out.reshape(b, t, -1), self.o_proj)


class MLP(nn.Module):
    """A gated MLP: SwiGLU or GeGLU (Shazeer 2020)."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.kind = c.activation
        self.gate_proj = Linear(c.width, c.hidden, bias=c.mlp_bias)
        self.up_proj = Linear(c.width, c.hidden, bias=c.mlp_bias)
        self.down_proj = Linear(c.hidden, c.width, bias=c.mlp_bias)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """The output for x [..., width], added to `residual` where that is given."""
        gate, up = linears(x, self.gate_proj, self.up_proj)
        both = kernels.gated(self.kind, gate, up) if (kernels := overrides.active()) else None
        return add_linear(residual, ACTIVATIONS[self.kind](gate) * up if both is None else both, self.down_proj)


class Layer(nn.Module):
    """Attention and MLP, each on the normed residual; with `sandwich` their outputs are normed too.

    Attributes have the Hub's names.
    """

    def __init__(self, c: Config, layer: int) -> None:
        super().__init__()
        self.self_attn = Attention(c, layer)
        self.mlp = MLP(c)
        self.input_layernorm = RMSNorm(c.width, c)
        self.post_attention_layernorm = RMSNorm(c.width, c)
        self.sandwich = c.sandwich
        if c.sandwich:
            self.pre_feedforward_layernorm = RMSNorm(c.width, c)
            self.post_feedforward_layernorm = RMSNorm(c.width, c)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor] | None, attend: AttentionFn) -> Tensor:
        """The residual stream [B, T, width] after this layer."""
        if self.sandwich:
            x = add(x, self.post_attention_layernorm(self.self_attn(self.input_layernorm(x), rotary, attend)))
            return add(x, self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x))))
        y, x = self.input_layernorm.split(x)
        x = self.self_attn(y, rotary, attend, x)
        y, x = self.post_attention_layernorm.split(x)
        return self.mlp(y, x)


class Trunk(nn.Module):
    """Embedding, layers and last norm, under the Hub's names."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.embed_tokens = Embedding(c.vocab, c.width)
        self.layers = nn.ModuleList(Layer(c, n) for n in range(c.layers))
        self.norm = RMSNorm(c.width, c, last=True)


class Transformer(Model):
    """The model: token ids -> hidden states -> logits."""

    supports_custom_attention = True
    plain_head = True

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.config = c
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
        # Which rotary table each layer uses (a prefix of the buffers' names); None: none.
        self.rotary_tables = [
            None if n in c.unrotated else "local_" if c.local_theta is not None and c.attention_spec(n).window else ""
            for n in range(c.layers)
        ]

    def __deepcopy__(self, memo: dict[int, Any]) -> Transformer:
        return _copied(self, memo)

    @classmethod
    def without_weights(cls, c: Config) -> Transformer:
        """A model without memory for its weights, which `assign` then sets."""
        with torch.device("meta"):
            return cls(c)

    def assign(self, tensors: Iterable[tuple[str, Tensor]]) -> Transformer:
        """Set parameters by name to these tensors, without copying; a tied head stays tied."""
        for name, tensor in tensors:
            module, _, leaf = name.rpartition(".")
            setattr(self.get_submodule(module), leaf, nn.Parameter(tensor))
        if self.config.tied:
            self.lm_head.weight = self.model.embed_tokens.weight
        return self

    def forward(self, ids: Tensor, attend: AttentionFn, positions: Tensor | None = None) -> Tensor:
        """Hidden states [B, T, width], after the last norm, of ids i64[B, T] at positions i64[B, T].

        positions  None: 0..T-1 in each row

        Raises BadValue for a position beyond the model's context.
        """
        if positions is None and ids.shape[1] > self.config.max_length:
            raise BadValue(f"model: {ids.shape[1]} tokens do not fit its context of {self.config.max_length}")
        rotary: dict[str | None, tuple[Tensor, Tensor] | None] = {None: None}
        for name in {table for table in self.rotary_tables if table is not None}:
            cos, sin = self.get_buffer(f"{name}cos"), self.get_buffer(f"{name}sin")
            at = slice(ids.shape[1]) if positions is None else positions
            rotary[name] = (cos[None, at], sin[None, at]) if positions is None else (cos[at], sin[at])
        x = self.model.embed_tokens(ids)
        if self.config.scaled_embedding:
            # The factor is rounded to the weights' type, as the model was trained.
            x = x * torch.tensor(self.config.width**0.5).to(x.dtype)
        for table, layer in zip(self.rotary_tables, self.model.layers, strict=True):
            if self.recompute and torch.is_grad_enabled():
                x = checkpoint(layer, x, rotary[table], attend, use_reentrant=False, preserve_rng_state=False)
            else:
                x = layer(x, rotary[table], attend)
        return self.model.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [..., vocab] of hidden states [..., width]."""
        return soft_cap(self.lm_head(hidden), self.config.logit_cap)

    @torch.no_grad()
    def initialise(self, seed: int) -> Transformer:
        """Set fresh weights from a seed alone: normal(0, 0.02), output projections scaled down by depth.

        Radford et al. 2019.
        """
        from ..core import random_keys

        for name, p in sorted(self.named_parameters()):
            if p.ndim < 2:
                p.fill_(0.0 if name.endswith("bias") or self.config.centred_norms else 1.0)
                continue
            std = (
                0.02 / (2 * self.config.layers) ** 0.5 if name.endswith(("o_proj.weight", "down_proj.weight")) else 0.02
            )
            draw = random_keys.generator(seed, "init", name).standard_normal(tuple(p.shape), dtype="float32")
            p.copy_(torch.from_numpy(draw) * std)
        return self


def _copied(module: M, memo: dict[int, Any]) -> M:
    """A deep copy of a module; `copy.deepcopy` takes most of its time for the empty dictionaries of hooks in each."""
    if id(module) in memo:
        return memo[id(module)]
    made = memo[id(module)] = object.__new__(type(module))
    for name, value in module.__dict__.items():
        if name == "_modules":
            made.__dict__[name] = {n: m if m is None else _copied(m, memo) for n, m in value.items()}
        elif name in ("_parameters", "_buffers"):
            made.__dict__[name] = {n: copy.deepcopy(t, memo) for n, t in value.items()}
        elif isinstance(value, dict | set) and not value:
            made.__dict__[name] = type(value)()
        elif value is None or isinstance(value, bool | int | float | str | Config):  # what cannot change
            made.__dict__[name] = value
        else:
            made.__dict__[name] = copy.deepcopy(value, memo)
    return made
