"""Fewer instructions than the processor has: what is allowed is said once, and libraries and compiler keep to it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from selfteach.core.errors import BadValue, SelfteachError
from selfteach.core.processor import VARIABLE, instruction_set, mask_libraries
from selfteach.kernels.build import compiler_flags

TOLD = {"ATEN_CPU_CAPABILITY": "avx2", "DNNL_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}


def test_all_that_there_is_may_be_used_unless_fewer_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert instruction_set() is None and "-march=native" in compiler_flags([""])
    monkeypatch.setenv(VARIABLE, "avx512")
    assert "-march=x86-64-v4" in compiler_flags([""]) and "-march=native" not in compiler_flags([""])
    monkeypatch.setenv(VARIABLE, "avx")
    with pytest.raises(BadValue, match="SELFTEACH_ISA: must be avx2 or avx512, or not set, not 'avx'"):
        mask_libraries()


def test_torch_that_is_there_already_cannot_be_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {k: v for k, v in os.environ.items() if k not in TOLD} | {VARIABLE: "avx2"})
    monkeypatch.setitem(sys.modules, "torch", sys)
    with pytest.raises(SelfteachError, match="torch was loaded before selfteach"):
        mask_libraries()
    monkeypatch.delitem(sys.modules, "torch")
    mask_libraries()
    assert {name: os.environ[name] for name in TOLD} == TOLD
    monkeypatch.setitem(sys.modules, "torch", sys)
    mask_libraries()  # told before torch was loaded


def test_torch_and_its_libraries_keep_to_what_is_allowed() -> None:
    if platform.machine() != "x86_64":
        pytest.skip("the names are of x86 processors")
    code = "import selfteach, torch; print(torch.backends.cpu.get_cpu_capability())"
    environment = {k: v for k, v in os.environ.items() if k not in TOLD} | {VARIABLE: "avx2"}
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.strip() in ("AVX2", "DEFAULT"), "DEFAULT: a processor without AVX2"
