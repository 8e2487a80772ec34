"""Fewer instructions than this processor has, so that one can see on it what an older one would take."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from .errors import BadValue, SelfteachError

VARIABLE = "SELFTEACH_ISA"


@dataclass(frozen=True)
class InstructionSet:
    """What the compiler and the libraries of matrix products call it."""

    march: str
    aten: str
    onednn: str
    mkl: str


KNOWN = {
    "avx2": InstructionSet("x86-64-v3", "avx2", "AVX2", "AVX2"),
    "avx512": InstructionSet("x86-64-v4", "avx512", "AVX512_CORE", "AVX512"),  # without products of bf16, and AMX
}


def instruction_set() -> InstructionSet | None:
    """What $SELFTEACH_ISA allows, avx2 or avx512 (without bf16 products); None: all that the processor has.

    Raises BadValue for any other value.
    """
    name = os.environ.get(VARIABLE, "")
    if name and name not in KNOWN:
        raise BadValue(f"{VARIABLE}: must be {' or '.join(KNOWN)}, or not set, not {name!r}")
    return KNOWN.get(name)


def mask_libraries() -> None:
    """Tell torch, oneDNN and MKL, of this process and of those that it starts, what they may use.

    Raises SelfteachError where torch is there already, which reads it as it is loaded.
    """
    allowed = instruction_set()
    if allowed is None:
        return
    variables = {
        "ATEN_CPU_CAPABILITY": allowed.aten,
        "DNNL_MAX_CPU_ISA": allowed.onednn,
        "MKL_ENABLE_INSTRUCTIONS": allowed.mkl,
    }
    if "torch" in sys.modules and any(os.environ.get(name) != value for name, value in variables.items()):
        raise SelfteachError(
            f"{VARIABLE}: torch was loaded before selfteach, and uses all instructions; import it after"
        )
    os.environ.update(variables)
