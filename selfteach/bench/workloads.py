"""Workloads: shapes of models, the folder that all systems load, and the prompts and batches that all of them get."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..core import random_keys
from ..core.errors import BadValue
from ..model import catalog, files, gguf, tokenizer
from ..model.transformer import Config, Transformer
from .interleaved import System
from .roofline import Cost

MAX_LENGTH = 4096  # 200 turns fit
SHAPES = {
    "tiny": Config(vocab=512, width=256, layers=4, heads=8, kv_heads=2, head_dim=32, hidden=704, max_length=MAX_LENGTH),
    "smollm2-135m": Config(
        vocab=49152,
        width=576,
        layers=30,
        heads=9,
        kv_heads=3,
        head_dim=64,
        hidden=1536,
        rope_theta=100_000.0,
        norm_eps=1e-5,
        max_length=MAX_LENGTH,
    ),
}


@dataclass(frozen=True)
class Workload:
    """One thing that is measured.

    name, title: its name in `--only`, and a line that describes it
    systems: those measured
    config: what every system gets once, before the first round
    inputs: round number -> what every system gets in that round
    costs: its least cost, by precision; empty where no limit is shown
    repeats: rounds, where not those of the command
    """

    name: str
    title: str
    systems: tuple[System, ...]
    config: Mapping[str, Any]
    inputs: Callable[[int], Mapping[str, Any]] = lambda number: {}
    costs: Mapping[str, Cost] = field(default_factory=dict[str, Cost])
    repeats: int | None = None


@dataclass(frozen=True)
class Options:
    """The options of the command."""

    kind: str
    model: str = "tiny"
    against: tuple[str, ...] | None = None  # NAME or NAME:VARIANT; None: all that do this benchmark
    precisions: tuple[str, ...] | None = None  # of selfteach; None: all
    widths: tuple[int, ...] = ()
    only: tuple[str, ...] = ()
    repeats: int = 5
    threads: int = 1
    slots: int | None = None
    steps: int = 500
    pythons: Mapping[str, str] = field(default_factory=dict[str, str])
    scratch: Path = Path()  # a temporary folder


def model_folder(model: str, scratch: Path) -> tuple[Path, Config]:
    """The folder of a model in the Hub's layout and its shape: a folder as it is, a model inside an installed package,
    or random weights of a named shape, written into `scratch`.

    Raises BadValue for a name that is neither, BadCheckpoint for a folder that holds no model.
    """
    folder = scratch / "model"
    if (file := packaged_gguf(model)) is not None:
        folder = gguf.converted_folder(file)
    elif model in SHAPES:
        folder.mkdir(parents=True)
        trained = tokenizer.train_tokenizer(["some text to cut into pieces"], (), SHAPES[model].vocab)
        files.save(folder, Transformer(SHAPES[model]).initialise(0), trained)
    elif not (folder := Path(model).resolve()).is_dir():
        raise BadValue(
            f"selfteach bench: model {model}: no such shape or folder; there are {', '.join(SHAPES)}, or a folder in "
            "the Hub's layout"
        )
    config = files.read_config(folder / "config.json")
    if isinstance(config, str):
        raise BadValue(
            f"selfteach bench: model {model}: {config} runs through transformers; bench measures the "
            "families that selfteach computes itself"
        )
    return folder, config


def packaged_gguf(model: str) -> Path | None:
    """The GGUF file of a model inside an installed package, or None."""
    try:
        return catalog.packaged_gguf(model) if model in catalog.PACKAGES else None
    except BadValue:
        return None


def prompts(vocab: int, count: int, length: int, *key: object) -> list[list[int]]:
    """`count` prompts of `length` random ids, none of them 0 (the end token of fresh tokenizers); `key`: RNG key."""
    return random_keys.generator("bench", *key).integers(1, vocab, (count, length)).tolist()


def lengths(count: int, limit: int, *key: object) -> list[int]:
    """Lengths of `count` sequences in tokens: geometric with mean limit / 3, truncated at the limit."""
    drawn = random_keys.generator("bench", "lengths", *key).geometric(3 / limit, count)
    return np.minimum(drawn, limit).tolist()


def sequences(vocab: int, groups: int, group_size: int, prompt: int, new: int) -> list[dict[str, Any]]:
    """Sequences to train on: `group_size` responses of `new` tokens to each of `groups` prompts, with advantages."""
    given = prompts(vocab, groups, prompt, "learn", groups, group_size)
    responses = prompts(vocab, groups * group_size, new, "learned", groups, group_size)
    adv = random_keys.generator("bench", "adv").standard_normal(groups * group_size).tolist()
    return [
        {"prompt": given[s // group_size], "response": responses[s], "adv": adv[s], "group": s // group_size}
        for s in range(groups * group_size)
    ]
