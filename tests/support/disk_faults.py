"""Runs in a process in which disk_faults.c is preloaded."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SUPPORT = Path(__file__).parent


class NoCompiler(Exception):
    """disk_faults.c cannot be built here: the reason."""


def build(folder: Path) -> Path:
    """The library, compiled into a folder. Raises NoCompiler."""
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        raise NoCompiler("needs a C compiler and Linux")
    library = folder / "disk_faults.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", str(library), str(SUPPORT / "disk_faults.c"), "-ldl"], check=True
    )
    return library


def run_preloaded(module: str, words: list[str], folder: Path, seconds: float) -> Iterator[dict[str, Any]]:
    """What `support/MODULE.py LIBRARY WORDS...` prints, each line of JSON as it comes. Raises NoCompiler."""
    library = build(folder)
    env = {
        **os.environ,
        "LD_PRELOAD": str(library),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(SUPPORT.parent), str(SUPPORT.parents[1])]),
    }
    command = ["timeout", str(int(seconds)), sys.executable, str(SUPPORT / f"{module}.py"), str(library), *words]
    errors = folder / f"{module}.stderr"
    with errors.open("w") as stderr, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, env=env) as ran:
        assert ran.stdout is not None
        for line in ran.stdout:
            yield json.loads(line)
    assert ran.returncode == 0, f"{ran.returncode}: {errors.read_text()}"


def functions(library: str) -> tuple[Any, Any]:
    """(full_disk, kill_at) of the preloaded library."""
    loaded = ctypes.CDLL(library)
    for function in (loaded.full_disk, loaded.kill_at):
        function.argtypes, function.restype = [ctypes.c_char_p, ctypes.c_long], ctypes.c_long
    return loaded.full_disk, loaded.kill_at
