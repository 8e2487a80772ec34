"""What is asked for text: the newest checkpoint of a run, or any model that a run can start from."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch

from .. import evaluation, preparation
from ..core.errors import BadValue, quoted
from ..core.task import TaskSource
from ..loop import assemble, checkpoint
from ..loop.memory_plan import cache_bytes_per_token
from ..loop.settings import RunSettings
from ..model import catalog, devices
from ..model.catalog import StartModel
from ..model.names import SIZES
from ..model.transformer import Transformer
from .text_model import TextModel

NO_TASK = TaskSource("none", lambda i: None, ())  # type: ignore[arg-type, return-value]
CACHE_SHARE = 0.5  # of the free memory that the engine's cache may take


def is_run(folder: Path) -> bool:
    """Whether a folder is that of a run, whose config.json is not a model's."""
    with suppress(OSError, ValueError):
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return isinstance(config, dict) and {"method", "task"} <= config.keys()
    return False


def start_of(word: str, trust: bool = False) -> StartModel:
    """The model of a run's newest checkpoint, or the one that `--model` takes by this word.

    trust  as in `api.resume`; asked for only where a checkpoint holds adapters alone

    Raises SelfteachError for a run without a checkpoint, a folder that holds neither, a name that is not known.
    """
    folder = Path(word)
    if not is_run(folder):
        if word in SIZES:
            raise BadValue(
                f"model {word}: it is made for a task, with random weights, and has nothing to say; give the folder of"
                " a run, or a model that has learned (selfteach models)"
            )
        if folder.is_dir() and not (folder / "config.json").is_file():
            raise BadValue(
                f"{word}: holds neither a run nor a model (there is no config.json); give the folder that selfteach"
                " train printed"
            )
        return catalog.build(word, NO_TASK)
    last = checkpoint.find(folder)
    if last is None:
        raise BadValue(f"{word}: has no checkpoint yet; continue with selfteach train --resume {quoted(folder)}")
    if (last / "config.json").is_file():
        return catalog.build(str(last), NO_TASK)
    return evaluation.trained_model(folder, trust=trust)


def load(
    word: str,
    *,
    context: int | None = None,
    slots: int = 16,
    threads: int | None = None,
    device: str = "auto",
    trust: bool = False,
    name: str | None = None,
) -> TextModel:
    """A model by word (see `start_of`), with an engine of `slots` sequences of at most `context` tokens.

    name  what clients call it; None: the last part of the word

    Raises SelfteachError, also where one sequence does not fit the memory.
    """
    preparation.set_threads(threads)
    start = start_of(word, trust)
    settings = RunSettings(context=context, slots=slots, device=device)  # type: ignore[call-arg]
    length, place = assemble.context_of(settings, start), devices.resolve_device(device)
    if isinstance(start.model, Transformer):
        dtype = assemble.DTYPES[devices.resolve_dtype(settings.engine_dtype, place)]
        settings = replace(settings, slots=slots_in_memory(start.model, slots, length, place, dtype))
    return TextModel(name or Path(word).name or word, start.tokenizer, assemble.engine_of(start, settings), length)


def slots_in_memory(model: Transformer, slots: int, length: int, device: str, dtype: torch.dtype) -> int:
    """How many sequences of `length` tokens run at once: `slots`, or what half of the free memory holds.

    Raises BadValue where not one fits.
    """
    c, free = model.config, devices.free_memory(device)
    if free is None:
        return slots
    one = length * cache_bytes_per_token(c, dtype.itemsize)
    fits = int(CACHE_SHARE * free) // one
    if not fits:
        raise BadValue(
            f"memory: a sequence of {length} tokens needs {one >> 20} MB, and {free >> 20} MB are free; give a smaller"
            " --context"
        )
    return min(slots, fits)
