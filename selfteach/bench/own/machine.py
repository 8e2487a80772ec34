"""The rates of this machine: FLOP/s of matrix products, and bytes/s of memory reads; measured in every round."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ...kernels.fast_paths import fast_paths

SIZES = (512, 1024)  # of square products: the machine's rate is the best of them


def prepare(workload: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """workload: bandwidths, a list of names as `roofline.bandwidth_name` gives them."""
    torch.set_num_threads(workload["threads"])
    buffers = {
        name: torch.ones(int(name.removeprefix("read/").removesuffix("MB")) * 2**18) for name in workload["bandwidths"]
    }

    def run(inputs: Mapping[str, Any]) -> dict[str, Any]:
        del inputs
        rates = {str(d).removeprefix("torch."): rate(d) for d in (torch.float32, torch.bfloat16)}
        return {"seconds": 0.0, **rates, **{name: read(x) for name, x in buffers.items()}}

    return {"torch": torch.__version__}, run


def rate(dtype: torch.dtype) -> float:
    """FLOP/s of matrix products by torch as it is, or by oneDNN where that is exact, whichever is faster."""
    plain = max(product(dtype, n) for n in SIZES)
    with fast_paths():
        return max(plain, *(product(dtype, n) for n in SIZES))


@torch.inference_mode()
def product(dtype: torch.dtype, n: int) -> float:
    """FLOP/s of [n, n] by [n, n]."""
    a, b, out = (torch.ones(n, n, dtype=dtype) for _ in range(3))
    return 2.0 * n**3 / fastest_time(lambda: torch.mm(a, b.t(), out=out))


@torch.inference_mode()
def read(x: Tensor) -> float:
    """Bytes/s of reading x again and again, by a sum or a matrix-vector product, whichever is faster."""
    matrix, vector = x.view(-1, 1024), torch.ones(1024)
    size = x.numel() * x.element_size()
    return size / min(fastest_time(lambda: x.sum()), fastest_time(lambda: matrix @ vector))


def fastest_time(call: Callable[[], object], least: float = 0.05) -> float:
    """Seconds of a call: the fastest of those that fit into `least` seconds, three at least; the first warms up."""
    call()
    times: list[float] = []
    while len(times) < 3 or sum(times) < least:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)
