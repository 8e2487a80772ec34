"""What is worked on: shapes of models, the folder that all contestants load, prompts and batches that all are given."""

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
from .interleaved import Contestant
from .roofline import Need

ROOM = 4096  # positions of a shape's context: two hundred turns fit
SHAPES = {
    "tiny": Config(vocab=512, width=256, layers=4, heads=8, kv_heads=2, head_dim=32, hidden=704, max_length=ROOM),
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
        max_length=ROOM,
    ),
}


@dataclass(frozen=True)
class Work:
    """One thing that is measured: who does it, what all know before, what all are given in a round, and what it needs
    at least, by precision.
    """

    part: str
    title: str
    entries: tuple[Contestant, ...]
    fields: Mapping[str, Any]
    given: Callable[[int], Mapping[str, Any]] = lambda number: {}
    need: Mapping[str, Need] = field(default_factory=dict[str, Need])
    repeats: int | None = None


@dataclass(frozen=True)
class Options:
    """What the command was asked."""

    kind: str
    model: str = "tiny"
    against: tuple[str, ...] | None = None  # NAME or NAME:VARIANT; None: all that know the kind
    ours: tuple[str, ...] | None = None  # our variants; None: all of the kind
    widths: tuple[int, ...] = ()
    only: tuple[str, ...] = ()
    repeats: int = 5
    threads: int = 1
    slots: int | None = None
    steps: int = 500
    pythons: Mapping[str, str] = field(default_factory=dict[str, str])
    aside: Path = Path()  # a folder that goes when all is measured


def folder_of(model: str, aside: Path) -> tuple[Path, Config]:
    """The folder of a model in the Hub's layout and its shape: a folder as it is, what an installed package carries, or
    a shape's name as random weights written into `aside`.

    Raises BadValue for a name that is neither, BadCheckpoint for a folder that holds no model.
    """
    folder = aside / "model"
    if (file := packaged_gguf(model)) is not None:
        folder = gguf.converted_folder(file)
    elif model in SHAPES:
        folder.mkdir(parents=True)
        words = tokenizer.train_tokenizer(["some text to cut into pieces"], (), SHAPES[model].vocab)
        files.save(folder, Transformer(SHAPES[model]).initialise(0), words)
    elif not (folder := Path(model).resolve()).is_dir():
        raise BadValue(
            f"selfteach bench: model {model}: no such shape or folder; there are {', '.join(SHAPES)}, or a folder in "
            "the Hub's layout"
        )
    config = files.read_config(folder / "config.json")
    if isinstance(config, str):
        raise BadValue(
            f"selfteach bench: model {model}: {config} runs through transformers; what is compared here are "
            "selfteach's own families"
        )
    return folder, config


def packaged_gguf(model: str) -> Path | None:
    """The file of a model that an installed package carries."""
    try:
        return catalog.packaged_gguf(model) if model in catalog.PACKAGES else None
    except BadValue:
        return None


def prompts(vocab: int, count: int, length: int, *where: object) -> list[list[int]]:
    """`count` prompts of random ids at an address, the first id never 0 (an end token in fresh tokenizers)."""
    return random_keys.generator("bench", *where).integers(1, vocab, (count, length)).tolist()


def lengths(count: int, limit: int, *where: object) -> list[int]:
    """Lengths of `count` episodes: geometric with mean limit / 3, cut at the limit."""
    drawn = random_keys.generator("bench", "lengths", *where).geometric(3 / limit, count)
    return np.minimum(drawn, limit).tolist()


def sequences(vocab: int, groups: int, siblings: int, prompt: int, new: int) -> list[dict[str, Any]]:
    """Sequences to learn from: `siblings` of each of `groups` prompts, `new` learned tokens and an advantage each."""
    given = prompts(vocab, groups, prompt, "learn", groups, siblings)
    own = prompts(vocab, groups * siblings, new, "learned", groups, siblings)
    adv = random_keys.generator("bench", "adv").standard_normal(groups * siblings).tolist()
    return [
        {"prompt": given[s // siblings], "response": own[s], "adv": adv[s], "group": s // siblings}
        for s in range(groups * siblings)
    ]
