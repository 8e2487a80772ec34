"""Runs that are killed, whose disks are full and whose files are broken.

Tests take a sample of them, scripts/torture.py (`make torture`) does the whole.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from selfteach import api
from selfteach.configuration import RunConfig, plan
from selfteach.core.errors import SelfteachError
from support.caches import own_cache
from support.disk_faults import run_preloaded
from support.runs import same_run

NONE = api.EvalConfig(tasks=0, pass_at_k_tasks=0, k=0, decoder_samples=0)


def warm_run() -> RunConfig:
    """A run that is a warm start and nothing else."""
    run_config = plan("rloo", "chain_sum", {"terms": (2, 2), "n_test": 4}, model="tiny-s", steps=0, warm_steps=1)
    return replace(run_config, final_eval=NONE, warm=replace(run_config.warm, batch=2))


def full_disks(run_config: RunConfig, which: str, folder: Path, places: int) -> Iterator[dict[str, Any]]:
    """What happens on a disk that is full after each of some numbers of bytes; the last is about all."""
    return run_preloaded("full_disk", [*_begun(run_config, folder), str(places), which], folder, 120 + 40 * places)


def kills(run_config: RunConfig, which: str, folder: Path, count: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Runs that are killed at a change of a file, and seen through; the last is about all."""
    words = [*_begun(run_config, folder), str(count), which, str(seed)]
    return run_preloaded("kills", words, folder, 120 + 40 * count)


def _begun(run_config: RunConfig, folder: Path) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    own_cache(folder)
    (folder / "config.json").write_text(json.dumps(run_config.to_json()))
    return [str(folder / "config.json"), str(folder)]


class Stop(Exception):
    """A run is to be left where it is."""


def cut_run(run_config: RunConfig, out: Path, step: int) -> None:
    """A run that was lost in the middle of a step."""

    def lose(event: Any) -> None:
        if event["event"] == "step" and event["step"] == step:
            raise Stop

    try:
        api.train(run_config, out, lose)
    except Stop:
        return
    raise AssertionError(f"the run ended before step {step}")


def files_of(run: Path) -> list[str]:
    """Every file of a run by its path in it; those of checkpoints once."""
    return sorted(str(f.relative_to(run)) for f in run.rglob("*") if f.is_file() and f.name != ".lock")


def flip(file: Path, draw: random.Random) -> int:
    """Flip one bit of a file; returns the place of its byte."""
    data = bytearray(file.read_bytes())
    place = draw.randrange(len(data))
    data[place] ^= 1 << draw.randrange(8)
    file.write_bytes(bytes(data))
    return place


def flipped(cut: Path, undisturbed: Path, name: str, draw: random.Random, folder: Path) -> str:
    """What becomes of a run when one bit of one of its files is flipped before it is resumed.

    "same": it ends as the undisturbed one did, bit for bit; "refused": by an error that names the file; "said": it goes
    on, and a notice names the file (what only people read, and a configuration, which people may edit). Raises
    AssertionError for anything else.
    """
    out = folder / "run"
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(cut, out, symlinks=True)
    place, said = flip(out / name, draw), list[str]()
    what, file = f"{name}, a bit of byte {place}", Path(name).name

    def hear(event: Any) -> None:
        if event["event"] == "notice":
            said.append(event["text"])

    try:
        done = api.resume(out, hear).done
    except SelfteachError as error:
        named = file in str(error) or name == "config.json"  # of what it holds a value may be named
        assert named and "\n" not in str(error), f"{what}: {error}"
        return "refused"
    assert done, what
    if any(file in text for text in said):
        if name != "config.json":
            same_weights(undisturbed, out)
        return "said"
    try:
        same_run(undisturbed, out)
    except AssertionError as error:
        raise AssertionError(f"{what}: goes on to other results, and says nothing") from error
    return "same"


def same_weights(one: Path, other: Path) -> None:
    """The same weights, bit for bit."""
    a, b = (load_file(run / "last" / "model.safetensors") for run in (one, other))
    assert a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)
