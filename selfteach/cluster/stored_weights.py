"""Weights in Ray's object store: one copy a node, which the processes there map."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from .ray_cluster import Cluster

PART = 64 << 20  # bytes of weights in one object


def store(cluster: Cluster, weights: Mapping[str, Any]) -> list[Any]:
    """References to weights, in parts: whole tensors of at most so many bytes together, where that can be.

    One part at a time is in this process's memory.
    """
    refs, part, size = list[Any](), dict[str, torch.Tensor](), 0
    for name in weights:
        t = torch.as_tensor(weights[name])
        if part and size + t.numel() * t.element_size() > PART:
            refs.append(cluster.put(packed(part)))
            part, size = {}, 0
        part[name] = t
        size += t.numel() * t.element_size()
    return [*refs, cluster.put(packed(part))]


def packed(weights: Mapping[str, torch.Tensor]) -> dict[str, tuple[np.ndarray, str]]:
    """Tensors as arrays that the object store maps without a copy; bf16, which NumPy has not, as bits."""
    out: dict[str, tuple[np.ndarray, str]] = {}
    for name, t in weights.items():
        t = t.detach().cpu().contiguous()
        bits = t.view(torch.int16) if t.dtype == torch.bfloat16 else t
        out[name] = bits.numpy(), str(t.dtype).removeprefix("torch.")
    return out


def unpacked(arrays: Mapping[str, tuple[np.ndarray, str]]) -> dict[str, torch.Tensor]:
    """What `packed` was given; read only."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the store's memory must not be written to
        tensors = {name: (torch.from_numpy(array), dtype) for name, (array, dtype) in arrays.items()}
    return {name: t.view(torch.bfloat16) if dtype == "bfloat16" else t for name, (t, dtype) in tensors.items()}
