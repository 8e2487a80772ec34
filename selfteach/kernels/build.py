"""Builds of C++ sources as shared libraries, on first use, with the system's compiler, cached by content."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

from ..core.cache import private_folder
from ..core.disk import sync
from ..core.errors import SelfteachError
from ..core.processor import instruction_set

FLAGS = (
    "-O3",
    "-std=c++17",
    "-shared",
    "-fPIC",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
)

# Tuned for AMD's processors (and, from version 13 on, for others) gcc leaves products and sums in a chain unfused in
# some loops and not in others. A sum's bits would then depend on the batch that it is computed in.
ALWAYS_FUSED = "--param=avoid-fma-max-bits=0"


used: dict[str, str] = {}  # source -> what it is computed by in this process: its library's key, or why by torch


@functools.cache
def load_library(source: Path) -> ctypes.CDLL | str:
    """A C++ source as a loaded library, or the reason (a string) why there is none.

    $SELFTEACH_NATIVE=0 turns kernels off, $CXX names the compiler, with options if need be (`ccache g++`). Nothing
    compiled is ever shipped: `-march=native` is right only for the machine that compiles.
    """
    found = _load(source)
    if isinstance(found, str):
        used[source.name] = f"torch: {found}"
        return found
    library, file = found
    used[source.name] = file.stem.split("-")[1]
    return library


def _load(source: Path) -> tuple[ctypes.CDLL, Path] | str:
    if os.environ.get("SELFTEACH_NATIVE") == "0":
        return "SELFTEACH_NATIVE is 0"
    try:
        named = shlex.split(os.environ.get("CXX", ""))
    except ValueError as error:
        return f"CXX is no command ({error})"
    compiler = named or [c for c in ("c++", "g++", "clang++") if shutil.which(c)][:1]
    if not compiler:
        return "no C++ compiler (c++, g++ or clang++)"
    try:
        file = _compiled(source, compiler)
        return ctypes.CDLL(str(file)), file
    except (OSError, ValueError, SelfteachError, subprocess.SubprocessError) as error:
        lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        reason = next((line for line in lines if "error" in line), lines[0] if lines else error)
        return f"{' '.join(compiler)} did not build {source.name}: {reason}"


def _compiled(source: Path, compiler: list[str]) -> Path:
    """The compiled library in the cache: SOURCE-KEY-CONTENT.so.

    KEY is a hash of all that it depends on, CONTENT of its bytes: one that is not as it was built, or that anybody else
    may have written, is never loaded but built anew.
    """
    texts = source_texts(source)
    flags = compiler_flags(texts)
    target = _target(compiler, flags)
    if "__x86_64__" in target and "__clang__" not in target:
        flags.append(ALWAYS_FUSED)
    key = "\0".join([*texts, *compiler, *flags, target])
    folder, name = private_folder("kernels"), f"{source.stem}-{_digest(key.encode())}"
    for file in sorted(folder.glob(f"{name}-*.so")):
        if _is_ours(file):
            return file
        shutil.rmtree(file) if file.is_dir() and not file.is_symlink() else file.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix=".build-", dir=folder) as temporary:
        made = Path(temporary) / f"{name}.so"
        _run([*compiler, *flags, str(source), "-o", str(made)], seconds=300)
        made.chmod(stat.S_IRWXU)
        sync(made)
        file = folder / f"{name}-{_digest(made.read_bytes())}.so"
        made.replace(file)  # atomic, even where two processes build at once
    sync(folder)
    return file


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _is_ours(file: Path) -> bool:
    """Whether a library is a file of this user that nobody else can write to, with the content that its name says."""
    with contextlib.suppress(OSError):
        status = file.lstat()
        private = stat.S_ISREG(status.st_mode) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        own = private and status.st_uid == os.geteuid() and status.st_nlink == 1
        return own and _digest(file.read_bytes()) == file.stem.split("-")[-1]
    return False


def compiler_flags(texts: list[str]) -> list[str]:
    """The flags for a source and its headers; OpenMP, which Apple's compiler lacks, only where it is used.

    With $SELFTEACH_ISA only the instructions that it allows.
    """
    arm_mac = platform.system() == "Darwin" and platform.machine() == "arm64"
    if allowed := instruction_set():
        flags = [*FLAGS, f"-march={allowed.march}", "-mtune=native"]
    else:
        flags = [*FLAGS, "-mcpu=native" if arm_mac else "-march=native"]
    return [*flags, "-fopenmp"] if any("#pragma omp" in text for text in texts) else flags


def source_texts(source: Path) -> list[str]:
    """The text of a C++ file, then those of our headers that it includes, in order."""
    text = source.read_text(encoding="utf-8")
    headers = re.findall(r'^#\s*include "(.+)"', text, re.MULTILINE)
    return [text, *(t for name in headers for t in source_texts(source.parent / name))]


def _target(compiler: list[str], flags: list[str]) -> str:
    """The macros that compiler and flags define: its version, the instruction set of this CPU."""
    return _run([*compiler, *flags, "-dM", "-E", "-x", "c++", os.devnull], seconds=60)


def _run(command: list[str], seconds: int) -> str:
    return subprocess.run(
        command, capture_output=True, encoding="utf-8", errors="replace", check=True, timeout=seconds
    ).stdout
