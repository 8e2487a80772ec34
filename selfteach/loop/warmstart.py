"""The warm start: supervised training on a task's demonstrations, done once and kept by the content of task, model and settings.

The second method on a task starts from it at once. It is the same loop with a data stage; a warm start that is cut off leaves nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ..core.cache import cache_folder
from ..core.errors import BadValue
from ..core.method import Method
from ..core.part import Part
from ..core.task import Source
from ..model import devices, files
from ..model.zoo import Start
from .assemble import Settings, loop
from .session import Session

VERSION = 1  # raise when the training of a warm start changes


@dataclass(frozen=True)
class Warm:
    """How a warm start is trained. steps 0: none."""

    steps: int = 300
    batch: int = 64
    lr: float = 3e-3
    seed: int = 0


def key(source: Source, start: Start, warm: Warm, settings: Settings) -> str:
    """The content that a warm start depends on, as a hash: demonstrations, tokenizer, shape, fresh weights and settings."""
    if source.demos is None:
        raise BadValue(f"task {source.name}: it has no demonstrations to warm-start on; give --model FOLDER")
    shown = [[d.prompt, *map(str, d.data)] for d in map(source.demos, range(512))]
    told = [VERSION, shown, start.tokenizer.fingerprint, files.fingerprint(start.model.names()), asdict(warm), precision(settings), torch.__version__]
    told.append(torch.get_num_threads())  # sums over threads differ in their last bits
    return hashlib.blake2b(json.dumps(told).encode(), digest_size=10).hexdigest()


def precision(settings: Settings) -> str:
    """What the settings' products are computed in, here."""
    return devices.precision_of(settings.dtype, devices.device_of(settings.device))


async def warm_start(
    source: Source, start: Start, method: Method, judge: Part, warm: Warm, settings: Settings, observer: Callable[[Mapping[str, Any]], None]
) -> Path:
    """The folder of the warm-started model, trained now unless it is there. `method` is the supervised one, its batch set."""
    folder = cache_folder() / "warm" / key(source, start, warm, settings)
    if any(folder.glob("model*.safetensors")):
        observer({"event": "warm_found", "folder": str(folder)})
        return folder
    how = Settings(
        seed=warm.seed,
        steps=warm.steps,
        lr=warm.lr,
        decay="cosine",
        warmup=max(1, warm.steps // 20),
        device=settings.device,
        dtype=settings.dtype,
        recompute=settings.recompute,
    )
    made = loop(method, source, start, how, speak=False, given=True)
    session = Session(made, judge, None, rollouts=False, observer=lambda e: observer({**e, "event": "warm_" + str(e["event"])}))
    await session.run()
    if session.stopping:
        raise KeyboardInterrupt
    folder.parent.mkdir(parents=True, exist_ok=True)
    with files.written_aside(folder) as aside:
        files.save(aside, session.model, start.tokenizer)
        about = {"task": source.name, "knobs": dict(source.knobs), "warm": asdict(warm), "loss": made.state.history.last("loss")}
        (aside / "about.json").write_text(json.dumps(about, indent=1, default=str) + "\n")
    return folder
