"""Killed in the middle of any change of a file, or with a bit flipped in any file: the same bits, or refused by name.

A sample; `make torture` does the whole.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from support.disk_faults import NoCompiler
from support.runs import run_config_of
from support.torture import cut_run, files_of, flip, flipped, kills, warm_run

from selfteach import api
from selfteach.core.errors import BadCheckpoint
from selfteach.loop.log import Rollouts


@pytest.mark.parametrize(("which", "count"), [("run", 4), ("log", 2), ("cache", 2)])
def test_killed_in_the_middle_of_any_change_and_resumed(
    which: str, count: int, tmp_path: Path, mini_folder: Path
) -> None:
    run_config = warm_run() if which == "cache" else run_config_of(mini_folder, steps=3)
    try:
        *found, about = kills(run_config, which, tmp_path, count)
    except NoCompiler as why:
        pytest.skip(str(why))
    assert sum(len(run["kills"]) for run in found) >= count - 1 and about["total"] > 5
    assert all(run["left"] == [] for run in found), "what a kill cut off is cleared away"


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory, mini_folder: Path) -> tuple[Path, Path]:
    """A run that was lost on its way, and the same one undisturbed."""
    folder = tmp_path_factory.mktemp("cut")
    run_config = run_config_of(mini_folder, steps=4)
    assert api.train(run_config, folder / "undisturbed").done
    cut_run(run_config, folder / "cut", 3)
    return folder / "cut", folder / "undisturbed"


def test_a_flipped_bit_in_any_file_of_a_run(cut: tuple[Path, Path], tmp_path: Path) -> None:
    outcomes = {}
    for name in files_of(cut[0]):
        if "last" in name or name.startswith("checkpoints/000002") or name.endswith("0.npz"):
            continue  # a link, an older checkpoint, and one step's rollouts of many
        for n in range(4 if name in ("config.json", "log/events.jsonl") else 1):
            outcomes[name, n] = flipped(*cut, name, random.Random(f"{name} {n}"), tmp_path)
    newest = {v for (name, _), v in outcomes.items() if name.startswith("checkpoints/000003")}
    assert newest == {"refused"}, outcomes
    assert {"said"} <= {v for (name, _), v in outcomes.items() if name == "log/events.jsonl"} <= {"said", "same"}


def test_a_flipped_bit_in_a_file_of_rollouts(cut: tuple[Path, Path], tmp_path: Path) -> None:
    whole = cut[1] / "log" / "rollouts" / "000001.npz"
    expected, file, found = Rollouts(whole), tmp_path / "000001.npz", 0
    for n in range(300):
        file.write_bytes(whole.read_bytes())
        place = flip(file, random.Random(n))
        try:
            read = Rollouts(file)
        except BadCheckpoint as error:
            assert "000001.npz" in str(error) and "\n" not in str(error)
            found += 1
            continue
        assert read.metadata == expected.metadata and read.arrays.keys() == expected.arrays.keys(), place
        assert all(np.array_equal(read.arrays[n], a, equal_nan=True) for n, a in expected.arrays.items()), place
    assert found > 200
