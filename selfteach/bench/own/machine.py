"""What this machine gives: the rate of matrix products and how fast memory is read.

Measured in every round, between the contestants.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

SIZES = (512, 1024)  # of square products: the machine's rate is the best of them


def prepare(work: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """work: reads, a list of names as `limits.read_name` gives them."""
    torch.set_num_threads(work["threads"])
    sets = {name: torch.ones(int(name.removeprefix("read/").removesuffix("MB")) * 2**18) for name in work["reads"]}

    def run(given: Mapping[str, Any]) -> dict[str, Any]:
        del given
        found = {
            str(d).removeprefix("torch."): max(product(d, n) for n in SIZES) for d in (torch.float32, torch.bfloat16)
        }
        return {"seconds": 0.0, **found, **{name: read(x) for name, x in sets.items()}}

    return {"torch": torch.__version__}, run


@torch.inference_mode()
def product(dtype: torch.dtype, n: int) -> float:
    """FLOP/s of [n, n] by [n, n]."""
    a, b, out = (torch.ones(n, n, dtype=dtype) for _ in range(3))
    return 2.0 * n**3 / quickest(lambda: torch.mm(a, b.t(), out=out))


@torch.inference_mode()
def read(x: Tensor) -> float:
    """Bytes/s of going over x again and again: the better of a sum and a matrix-vector product (torch threads them
    differently).
    """
    matrix, vector = x.view(-1, 1024), torch.ones(1024)
    size = x.numel() * x.element_size()
    return size / min(quickest(lambda: x.sum()), quickest(lambda: matrix @ vector))


def quickest(call: Callable[[], object], least: float = 0.05) -> float:
    """Seconds of a call: the fastest of those that fit into `least` seconds, three at least; the first warms up."""
    call()
    times: list[float] = []
    while len(times) < 3 or sum(times) < least:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)
