"""The warm start: supervised training of a fresh model on a task's demonstrations, cached by all that it depends on.

It is the same training loop with a data stage. The next method on the task reads it from the cache; an interrupted warm
start is not saved.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from ..core.blocks import Block
from ..core.cache import cache_folder, writable_cache
from ..core.code_hash import code_hash
from ..core.disk import atomic_folder
from ..core.errors import BadValue
from ..core.functions import FunctionSpec
from ..core.method import Method
from ..core.task import TaskSource
from ..model import devices, files
from ..model.catalog import StartModel
from .assemble import loop, tools_for
from .dependencies import source_files
from .session import Session, StopRequest, interruption
from .settings import RunSettings, WarmStartConfig


def cache_key(
    source: TaskSource, start: StartModel, method: Method, warm: WarmStartConfig, settings: RunSettings
) -> str:
    """A hash of all that a warm start depends on: demonstrations, tokenizer, weights, settings, code, libraries."""
    if source.demos is None:
        raise BadValue(
            f"task {source.name}: has no demonstrations to warm-start on; give --model FOLDER, or --warm-steps 0"
        )
    if warm.practice_steps and source.practice is None:
        raise BadValue(
            f"task {source.name}: has nothing to practise before its demonstrations; leave out practice_steps"
        )
    shown = (source.demos, source.practice) if warm.practice_steps and source.practice else (source.demos,)
    demonstrations = [[d.prompt, *map(str, d.data)] for demos in shown for d in map(demos, range(512))]
    device = devices.resolve_device(settings.device)
    depends = {
        "demonstrations": demonstrations,
        "content": source.content,
        "tokenizer": start.tokenizer.fingerprint,
        "weights": files.fingerprint(start.model.named_tensors()),
        "warm": asdict(warm),
        "device": device,
        "dtype": devices.resolve_dtype(settings.dtype, device),
        "recompute": settings.recompute,
        "threads": torch.get_num_threads(),  # sums over threads differ in their last bits
        **({"tools": schemas} if (schemas := _schemas(method, source)) else {}),
        "code": code_hash([Path(__file__), *source_files(method, source.name)]),
    }
    return hashlib.blake2b(json.dumps(depends, sort_keys=True).encode(), digest_size=10).hexdigest()


def _schemas(method: Method, source: TaskSource) -> list[Any]:
    """What the prompts of demonstrations say of typed functions."""
    built = tools_for(method, source).values() if method.tools else ()
    specs = [getattr(tool, "spec", None) for tool in built]
    return [spec.schema for spec in specs if isinstance(spec, FunctionSpec)]


def warm_folder(
    source: TaskSource, start: StartModel, method: Method, warm: WarmStartConfig, settings: RunSettings
) -> Path:
    """The folder of a warm start in the cache, whether it is there already or not.

    Raises SelfteachError where it is not and could not be saved, and BadValue for a task without demonstrations.
    """
    folder = cache_folder("warm") / cache_key(source, start, method, warm, settings)
    if not is_kept(folder):
        writable_cache("warm")
    return folder


def is_kept(folder: Path) -> bool:
    """Whether a warm start is in its folder."""
    return any(folder.glob("model*.safetensors"))


async def warm_start(
    folder: Path,
    source: TaskSource,
    start: StartModel,
    method: Method,
    judge: Block | None,
    warm: WarmStartConfig,
    settings: RunSettings,
    observer: Callable[[Mapping[str, Any]], None],
    stop: StopRequest | None = None,
) -> None:
    """Train a warm start into its folder (`warm_folder`) unless it is there; after its practice, where it has one.

    method  supervised training, with its batch size set. Raises KeyboardInterrupt where the run was stopped
    """
    if is_kept(folder):
        observer({"event": "warm_found", "folder": str(folder)})
        return
    if warm.practice_steps:
        practice = replace(warm, steps=warm.practice_steps, practice_steps=0)
        first = replace(source, demos=source.practice, practice=None)
        practised = warm_folder(first, start, method, practice, settings)
        await warm_start(practised, first, start, method, judge, practice, settings, observer, stop)
        start = replace(start, model=files.load(practised)[0])
    supervised = RunSettings(
        seed=warm.seed,
        steps=warm.steps,
        lr=warm.lr,
        decay="cosine",
        warmup=max(1, warm.steps // 20),
        device=settings.device,
        dtype=settings.dtype,
        recompute=settings.recompute,
    )
    training = loop(method, source, start, supervised, with_engine=False, donate_start=True)
    session = Session(
        training, judge, None, rollouts=False, observer=lambda e: observer({**e, "event": "warm_" + str(e["event"])})
    )
    session.stop = stop or session.stop
    await session.run()
    if session.stopping:
        raise interruption(session.stop.signal)
    with atomic_folder(folder) as temporary:
        files.save(temporary, session.model, start.tokenizer)
        about = {
            "task": source.name,
            "task_options": dict(source.task_options),
            "warm": asdict(warm),
            "loss": training.state.history.last("policy/loss"),
            "seconds": training.state.seconds,
        }
        (temporary / "about.json").write_text(json.dumps(about, indent=1, default=str) + "\n", encoding="utf-8")


def warm_start_seconds(folder: Path | None) -> float | None:
    """How long the training of a warm start took that a folder holds; None for any other folder."""
    if folder is None:
        return None
    try:
        return json.loads((folder / "about.json").read_text(encoding="utf-8")).get("seconds")
    except (OSError, ValueError, AttributeError):
        return None
