"""Models sharded over ranks by PyTorch's FSDP2 (Zhao et al. 2023, arXiv 2304.11277): `fully_shard`, layer by layer.

Each rank holds a part of every tensor, by rows. A layer's weights are gathered before its forward and its backward and
given up after it, gradients are summed over ranks and scattered; embedding, last norm and head, which all micro-batches
need first and last, stay gathered during a pass. Sums, not means: loss weights are those of the whole batch.
"""

from __future__ import annotations

import copy
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard  # pyright: ignore[reportPrivateUsage]

from ..model.attention import causal_attention
from ..model.base import Model
from ..model.residual import layers_of
from .ranks import Division, Ranks
from .tensor_parallel import cut, plan_of

M = TypeVar("M", bound=Model)


def skeleton(model: M) -> M:
    """A copy of a model whose parameters have shapes and no memory; its buffers are the model's."""
    memo: dict[int, Any] = {
        id(p): nn.Parameter(torch.empty_like(p, device="meta"), requires_grad=False) for p in model.parameters()
    }
    memo |= {id(b): b for b in model.buffers()}
    return copy.deepcopy(model, memo)


def shard(
    model: M, source: Mapping[str, Tensor], ranks: Ranks, bf16: bool = False, division: Division | None = None
) -> M:
    """A skeleton with its parameters in parts over the ranks, filled from rank 0's tensors, a layer at a time.

    source  on rank 0 the tensors by `named_parameters`; elsewhere unused
    bf16    layers are gathered and computed in bf16, gradients still summed in float32
    division  of the ranks, over some of which layers are cut first (tensor_parallel.py); None: all share sequences
    """
    layers = layers_of(model)
    mesh = ranks.mesh if division is None else division.mesh
    plan: dict[str, str] = {}
    if division is not None and division.tensor > 1:
        plan = plan_of(model)
    names = {id(p): name for name, p in model.named_parameters()}
    made: dict[int, nn.Parameter] = {}
    for buffered in model.modules():
        for name, buffer in buffered.named_buffers(recurse=False):
            setattr(buffered, name, buffer.to(ranks.device))
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    for layer in layers:
        _fill(layer, names, made, source, ranks)
        if plan and division is not None:
            cut(layer, plan, division.tensor_mesh)
        fully_shard(layer, mesh=mesh, mp_policy=policy if bf16 else MixedPrecisionPolicy())
    _fill(model, names, made, source, ranks)
    fully_shard(model, mesh=mesh)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo knows no sum with a factor
            module.set_reduce_scatter_unused_params(True)  # a rank may have no row that reads the head
    # FSDP fixes the types of gradients in the first pass, by what is trainable then; later that changes by update.
    model.requires_grad_(True)
    with torch.no_grad():
        model(torch.zeros(1, 1, dtype=torch.int64, device=ranks.device), causal_attention)
    reshard(model)
    return model.requires_grad_(False)


def reshard(model: nn.Module) -> None:
    """Give up what a pass left gathered, which a backward does by itself."""
    if isinstance(model, FSDPModule):
        model.reshard()


def _fill(
    module: nn.Module,
    names: Mapping[int, str],
    made: dict[int, nn.Parameter],
    source: Mapping[str, Tensor],
    ranks: Ranks,
) -> None:
    """Give the parameters without memory of a module rank 0's values, whole, on every rank."""
    for owner in module.modules():
        for leaf, p in list(owner.named_parameters(recurse=False)):
            if not p.is_meta or isinstance(p, DTensor):
                continue
            if id(p) not in made:
                value = torch.empty(p.shape, dtype=p.dtype, device=ranks.device)
                if ranks.rank == 0:
                    value.copy_(source[names[id(p)]].detach())
                if ranks.world > 1:
                    dist.broadcast(value, 0)
                made[id(p)] = nn.Parameter(value, requires_grad=False)
            setattr(owner, leaf, made[id(p)])


@torch.no_grad()
def whole(tensor: Tensor) -> Tensor:
    """A tensor of which every rank has a part, on every rank."""
    if not isinstance(tensor, DTensor):
        return tensor.detach()
    if tensor.device_mesh.ndim > 1:  # by rows first, then what layers were cut by: in the other order torch warns
        tensor = tensor.redistribute(placements=(Replicate(), tensor.placements[1]))
    return tensor.full_tensor().detach()


def like(part: Tensor, p: Tensor) -> Tensor:
    """A rank's part of something of a parameter's shape (a moment), as a tensor sharded as that is."""
    if not isinstance(p, DTensor) or part.ndim != p.ndim:
        return part
    return DTensor.from_local(part, p.device_mesh, p.placements, run_check=False, shape=p.shape, stride=p.stride())


@torch.no_grad()
def part_of(value: Tensor, p: Tensor) -> Tensor:
    """This rank's part of a whole tensor, cut as a parameter is."""
    if not isinstance(p, DTensor) or value.ndim != p.ndim:
        return value
    if p.device_mesh.ndim > 1:  # cut over the last dimension of the mesh first, then sharded by rows
        data, cut_by = p.placements
        if isinstance(cut_by, Shard):
            value = value.chunk(p.device_mesh.size(1), cut_by.dim)[p.device_mesh.get_local_rank(1)]
        assert isinstance(data, Shard | _StridedShard) and data.dim == 0, data
        parts, mine = value.chunk(p.device_mesh.size(0), 0), p.device_mesh.get_local_rank(0)
        return parts[mine] if mine < len(parts) else value[:0]
    return distribute_tensor(value, p.device_mesh, p.placements, src_data_rank=None).to_local()


def copies(tensor: Tensor, tensor_ranks: int) -> int:
    """On how many of the ranks that share each layer's matrices a rank's part of a tensor is the same."""
    cut_ = (
        isinstance(tensor, DTensor) and tensor.device_mesh.ndim > 1 and not isinstance(tensor.placements[1], Replicate)
    )
    return 1 if cut_ else tensor_ranks


@contextmanager
def gathered_head(model: nn.Module) -> Generator[None]:
    """Hold what stays gathered during a pass (embedding, last norm, head) outside of one."""
    if not isinstance(model, FSDPModule):
        yield
        return
    model.unshard()
    try:
        yield
    finally:
        reshard(model)
