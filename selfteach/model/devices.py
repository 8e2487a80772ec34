"""Devices, precisions and memory: what `auto` means on this machine."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
from pathlib import Path
from typing import Literal

import torch

from ..core.errors import BadValue


def resolve_device(name: str) -> str:
    """The device of a name, `cpu`, `cuda` or `cuda:N`; `auto` is a GPU where there is one.

    Raises BadValue for one that this machine does not have.
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, number = name.partition(":")
    if kind not in ("cpu", "cuda") or (number and not (kind == "cuda" and number.isdigit())):
        raise BadValue(f"device: must be auto, cpu, cuda or cuda:N, not {name!r}")
    if kind == "cuda" and not torch.cuda.is_available():
        raise BadValue(
            f"device {name}: no GPU that torch {torch.__version__} can use; ask for cpu, or install a CUDA build of "
            "torch"
        )
    if number and int(number) >= torch.cuda.device_count():
        raise BadValue(
            f"device {name}: this machine has {torch.cuda.device_count()} GPUs, counted from cuda:0; use one of them"
        )
    return name


def resolve_dtype(dtype: Literal["auto", "float32", "bfloat16"], device: str) -> Literal["float32", "bfloat16"]:
    """The precision float32 or bfloat16; `auto` is bfloat16 on a GPU that has it, else float32.

    In float32 a run can be resumed bit for bit.
    """
    if dtype != "auto":
        return dtype
    return "bfloat16" if device.startswith("cuda") and torch.cuda.is_bf16_supported() else "float32"


def free_memory(device: str) -> int | None:
    """Free bytes of a GPU, or of this machine within the limit of its control group; None where unknown.

    What a run before this in the same process has freed counts as free.
    """
    if device.startswith("cuda"):
        return int(torch.cuda.mem_get_info(device)[0])
    _give_back_freed_memory()
    limits = [n for n in (_available(), _cgroup_available()) if n is not None]
    return min(limits) if limits else None


TRIM_THRESHOLD, TOP_PAD, MMAP_MAX = -1, -2, -4  # of mallopt(3)


def keep_freed_memory() -> None:
    """Make malloc keep freed memory for the next allocation (glibc).

    By default large blocks go back to the system at once, and each pass over a batch faults its activations in again,
    4 KiB at a time: a sixth of a learning step of SmolLM2. Nothing is changed where the environment sets malloc's
    options, or with another C library.
    """
    if any(name.startswith("MALLOC_") for name in os.environ):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    for option, value in ((TRIM_THRESHOLD, -1), (TOP_PAD, 64 << 20), (MMAP_MAX, 0)):
        mallopt(option, value)


def _give_back_freed_memory() -> None:
    """Return to the system what malloc keeps for the next allocation (glibc; `keep_freed_memory`)."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _available() -> int | None:
    try:
        lines = dict(
            line.split(":", 1) for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines() if ":" in line
        )
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


def _cgroup_available() -> int | None:
    """Free bytes within a container's memory limit; pages of files that can be dropped count as free."""
    for limit, used, stat, word in (
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
    ):
        root = Path("/sys/fs/cgroup")
        try:
            most = (root / limit).read_text(encoding="utf-8").strip()
            if most == "max" or int(most) >= 1 << 60:
                continue
            files = next(
                (
                    int(line.split()[1])
                    for line in (root / stat).read_text(encoding="utf-8").splitlines()
                    if line.startswith(word + " ")
                ),
                0,
            )
            return max(0, int(most) - int((root / used).read_text(encoding="utf-8")) + files)
        except (OSError, ValueError):
            continue
    return None
