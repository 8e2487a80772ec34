"""C++ files of this package as libraries: built at first use with the system's compiler, and kept by content. Without a compiler nobody
is worse off than slower: whatever is built here stands beside the same thing in torch."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from ..core.cache import cache_folder

FLAGS = ("-O3", "-march=native", "-std=c++17", "-shared", "-fPIC", "-fopenmp", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math")


@functools.cache
def library(source: Path) -> ctypes.CDLL | str:
    """A C++ file as a library, or why there is none. $SELFTEACH_NATIVE=0 does without."""
    if os.environ.get("SELFTEACH_NATIVE") == "0":
        return "SELFTEACH_NATIVE is 0"
    compiler = os.environ.get("CXX") or next((c for c in ("c++", "g++", "clang++") if shutil.which(c)), None)
    if compiler is None:
        return "no C++ compiler (c++, g++ or clang++) is here"
    try:
        return ctypes.CDLL(str(_built(source, compiler)))
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        return f"{compiler} did not build {source.name}: {next((line for line in said if 'error' in line), said[0] if said else error)}"


def _built(source: Path, compiler: str) -> Path:
    """The compiled library: from the cache, where it stands under what it was made from and for."""
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True, timeout=60).stdout
    told = "\0".join([*texts(source), compiler, version, *FLAGS, platform.machine(), _processor()])
    file = cache_folder("native") / f"{source.stem}-{hashlib.blake2b(told.encode(), digest_size=8).hexdigest()}.so"
    if not file.is_file():
        with tempfile.TemporaryDirectory(dir=file.parent) as aside:
            made = Path(aside) / file.name
            subprocess.run([compiler, *FLAGS, str(source), "-o", str(made)], capture_output=True, text=True, check=True, timeout=300)
            made.replace(file)  # whole, even where two processes build at once
    return file


def texts(source: Path) -> list[str]:
    """A C++ file, and those of ours that it includes, in their order."""
    text = source.read_text()
    return [text, *(t for name in re.findall(r'^#include "(.+)"', text, re.MULTILINE) for t in texts(source.parent / name))]


def _processor() -> str:
    """What `native` means here: a folder may be shared by machines that can do different things."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "".join(next((line for line in lines if line.startswith(key)), "") for key in ("model name", "flags", "Features"))
