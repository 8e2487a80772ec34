"""Tensor parallelism (Shoeybi et al. 2019, arXiv 1909.08053) by PyTorch's own plan: each layer's matrices over T ranks.

Projections into a block (q, k, v; gate, up) are cut by outputs, those out of it (o; down) by inputs, so that a rank has
some heads and some hidden units, and what ranks add up is a block's output. Norms, embedding and head are whole on each
of the T ranks, which read the same sequences.
"""

from __future__ import annotations

from fnmatch import fnmatch
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from ..core.errors import BadValue
from ..model.base import Model
from ..model.transformer import Transformer

OWN = {
    **dict.fromkeys(("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), "colwise"),
    **dict.fromkeys(("mlp.gate_proj", "mlp.up_proj"), "colwise"),
    **dict.fromkeys(("self_attn.o_proj", "mlp.down_proj"), "rowwise"),
}
STYLES = ("colwise", "rowwise")  # those of transformers' plans that mean the same for any model
HEADS = {"self_attn.q_norm": "heads", "self_attn.k_norm": "heads"}  # norms of single heads, which ranks have some of


def check_tensor_parallel(model: Model, ranks: int, world: int, adapted: bool) -> None:
    """Check before any work that the layers of a model can be cut over so many ranks. Raises BadValue."""
    if ranks == 1:
        return
    says = f"tensor_parallel {ranks}:"
    if world % ranks:
        raise BadValue(f"{says} {world} processes are no multiple of it; give --world {ranks * max(1, world // ranks)}")
    if adapted:
        raise BadValue(f"{says} adapters are small, and not cut; leave --tensor-parallel out, or --lora-rank")
    for name, size in _sizes(model).items():
        if size % ranks:
            raise BadValue(f"{says} the model's {name} ({size}) cannot be divided by it; give a divisor of it")
    plan_of(model)


def _sizes(model: Model) -> dict[str, int]:
    """What ranks divide of a model, by its name in words."""
    if isinstance(model, Transformer):
        c = model.config
        return {"key-value heads": c.kv_heads, "heads": c.heads, "hidden units": c.hidden}
    inner: Any = model.get_submodule("inner")
    shape = inner.config.get_text_config()
    sizes = {
        "key-value heads": getattr(shape, "num_key_value_heads", None),
        "heads": getattr(shape, "num_attention_heads", None),
        "hidden units": getattr(shape, "intermediate_size", None),
    }
    return {name: size for name, size in sizes.items() if isinstance(size, int)}


def plan_of(model: Model) -> dict[str, str]:
    """How each module of a layer is cut, by its name in the layer: our transformer's, or transformers' own plan.

    Raises BadValue for a model that has none, or one of other parts.
    """
    if isinstance(model, Transformer):
        return OWN | (HEADS if model.config.qk_norm else {})
    kind = model.config.kind
    inner: Any = model.get_submodule("inner")
    given: dict[str, str] | None = getattr(inner.config.get_text_config(), "base_model_tp_plan", None)
    if not given:
        raise BadValue(f"tensor_parallel: transformers has no plan for {kind}; leave --tensor-parallel out")
    other = sorted({style for style in given.values() if style not in STYLES})
    if other:
        raise BadValue(
            f"tensor_parallel: transformers' plan for {kind} has {other[0]}, and only {' and '.join(STYLES)} are done"
            " here; leave --tensor-parallel out"
        )
    return {name.removeprefix("layers.*."): style for name, style in given.items()}


def cut(layer: nn.Module, plan: dict[str, str], mesh: DeviceMesh) -> None:
    """Cut a layer's parameters, which are whole on every rank, over the ranks of a mesh."""
    kinds: dict[str, ParallelStyle] = {
        "colwise": ColwiseParallel(),
        "rowwise": RowwiseParallel(),
        "heads": SequenceParallel(sequence_dim=2, use_local_output=True),
    }
    styles = {name: kinds[style] for name, style in plan.items() if _has(layer, name)}
    parallelize_module(layer, mesh, styles, src_data_rank=None)


def _has(layer: nn.Module, name: str) -> bool:
    return any(fnmatch(known, name) for known, _ in layer.named_modules())
