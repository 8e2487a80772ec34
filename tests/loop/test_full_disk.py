"""A disk that is full at the n-th byte, in a run's folder or in the cache: one line, and with space all goes on.

TORTURE=100 tries so many places of each.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.caches import own_cache
from support.runs import run_config_of

from selfteach import api
from selfteach.configuration import RunConfig, plan

SUPPORT = Path(__file__).parents[1] / "support"
PLACES = int(os.environ.get("TORTURE", 4))


def places(run_config: RunConfig, which: str, folder: Path) -> list[dict[str, Any]]:
    """What happens on a disk that is full after each of some numbers of bytes; the last line is about all."""
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs a C compiler and Linux")
    library = folder / "full_disk.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(SUPPORT / "full_disk.c"), "-ldl"], check=True)
    (folder / "config.json").write_text(json.dumps(run_config.to_json()))
    env = {
        **os.environ,
        "LD_PRELOAD": str(library),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(SUPPORT.parent), str(SUPPORT.parents[1])]),
    }
    own_cache(folder)
    command = [sys.executable, str(SUPPORT / "full_disk.py"), str(library), str(folder / "config.json"), str(folder)]
    seconds = 60 + 20 * PLACES
    ran = subprocess.run([*command, str(PLACES), which], capture_output=True, text=True, env=env, timeout=seconds)
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


def test_a_full_run_folder_costs_nothing(tmp_path: Path, mini_folder: Path) -> None:
    *found, about = places(run_config_of(mini_folder, steps=3), "run", tmp_path)
    assert about["total"] > 10_000 and len(found) == PLACES
    for place in found:
        assert "the disk is full; free some space and continue with --resume" in place["error"], place
        assert str(tmp_path / "run") in place["error"] and "\n" not in place["error"]


def test_a_full_cache_costs_nothing(tmp_path: Path) -> None:
    run_config = plan("rloo", "chain_sum", {"terms": (2, 2), "n_test": 4}, model="tiny-s", steps=0, warm_steps=1)
    run_config = replace(run_config, final_eval=api.EvalConfig(tasks=0, pass_at_k_tasks=0, k=0, decoder_samples=0))
    *found, about = places(replace(run_config, warm=replace(run_config.warm, batch=2)), "cache", tmp_path)
    assert about["total"] > 10_000 and len(found) == PLACES and about["left"] == []
    for place in found:
        assert "the disk is full; free some space or set SELFTEACH_CACHE" in place["error"], place
        assert str(tmp_path / "cache") in place["error"] and "\n" not in place["error"]
