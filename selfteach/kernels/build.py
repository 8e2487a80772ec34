"""Builds of C++ sources as shared libraries, on first use, with the system's compiler, cached by content."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import re
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

from ..core.cache import cache_folder, remove_left_over
from ..core.errors import SelfteachError

FLAGS = (
    "-O3",
    "-std=c++17",
    "-shared",
    "-fPIC",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
)


@functools.cache
def load_library(source: Path) -> ctypes.CDLL | str:
    """A C++ source as a loaded library, or the reason (a string) why there is none.

    $SELFTEACH_NATIVE=0 turns kernels off, $CXX names the compiler. Nothing compiled is ever shipped: `-march=native` is
    right only for the machine that compiles.
    """
    if os.environ.get("SELFTEACH_NATIVE") == "0":
        return "SELFTEACH_NATIVE is 0"
    compiler = os.environ.get("CXX") or next((c for c in ("c++", "g++", "clang++") if shutil.which(c)), None)
    if compiler is None:
        return "no C++ compiler (c++, g++ or clang++)"
    try:
        return ctypes.CDLL(str(_compiled(source, compiler)))
    except (OSError, SelfteachError, subprocess.SubprocessError) as error:
        lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        reason = next((line for line in lines if "error" in line), lines[0] if lines else error)
        return f"{compiler} did not build {source.name}: {reason}"


def _compiled(source: Path, compiler: str) -> Path:
    """The compiled library in the cache, named by a hash of all that it depends on."""
    texts = source_texts(source)
    flags = compiler_flags(texts)
    key = "\0".join([*texts, compiler, *flags, _target(compiler, flags)])
    file = private_folder("kernels") / f"{source.stem}-{hashlib.blake2b(key.encode(), digest_size=16).hexdigest()}.so"
    if not file.is_file():
        with tempfile.TemporaryDirectory(prefix=".build-", dir=file.parent) as folder:
            made = Path(folder) / file.name
            _run([compiler, *flags, str(source), "-o", str(made)], seconds=300)
            made.replace(file)  # atomic, even where two processes build at once
    return file


def compiler_flags(texts: list[str]) -> list[str]:
    """The flags for a source and its headers; OpenMP, which Apple's compiler lacks, only where it is used."""
    arm_mac = platform.system() == "Darwin" and platform.machine() == "arm64"
    flags = [*FLAGS, "-mcpu=native" if arm_mac else "-march=native"]
    return [*flags, "-fopenmp"] if any("#pragma omp" in text for text in texts) else flags


def source_texts(source: Path) -> list[str]:
    """The text of a C++ file, then those of our headers that it includes, in order."""
    text = source.read_text()
    headers = re.findall(r'^#\s*include "(.+)"', text, re.MULTILINE)
    return [text, *(t for name in headers for t in source_texts(source.parent / name))]


def private_folder(name: str) -> Path:
    """A folder of the cache that only this user can read or write, created where it is missing.

    Raises PermissionError where it belongs to another user, since the libraries in it are loaded and run.
    """
    folder = cache_folder() / name
    folder.mkdir(mode=stat.S_IRWXU, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.geteuid():
        raise PermissionError(f"error: {folder} belongs to another user; set SELFTEACH_CACHE to a folder of your own")
    if stat.S_IMODE(status.st_mode) != stat.S_IRWXU:
        folder.chmod(stat.S_IRWXU)
    remove_left_over(folder)
    return folder


def _target(compiler: str, flags: list[str]) -> str:
    """The macros that compiler and flags define: its version, the instruction set of this CPU."""
    return _run([compiler, *flags, "-dM", "-E", "-x", "c++", os.devnull], seconds=60)


def _run(command: list[str], seconds: int) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=seconds).stdout
