"""A disk that is full at the n-th byte, in a run's folder, its log or the cache: one line, and with space all goes on.

`make torture` tries many places of each.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.disk_faults import NoCompiler
from support.runs import run_config_of
from support.torture import full_disks, warm_run

PLACES = 3


@pytest.mark.parametrize("which", ["run", "log", "cache"])
def test_a_full_disk_costs_nothing(which: str, tmp_path: Path, mini_folder: Path) -> None:
    run_config = warm_run() if which == "cache" else run_config_of(mini_folder, steps=3)
    try:
        *found, about = full_disks(run_config, which, tmp_path, PLACES)
    except NoCompiler as why:
        pytest.skip(str(why))
    assert about["total"] > (500 if which == "log" else 10_000) and len(found) == PLACES
    assert which != "cache" or about["left"] == []
    do = "or set SELFTEACH_CACHE" if which == "cache" else "and continue with --resume"
    for place in found:
        assert f"the disk is full; free some space {do}" in place["error"], place
        assert str(tmp_path / ("cache" if which == "cache" else "run")) in place["error"]
        assert "\n" not in place["error"]
