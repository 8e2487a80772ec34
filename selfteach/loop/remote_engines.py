"""Engines in other processes: servers at given addresses, or a vLLM that the run starts."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch

from ..core.errors import BadValue
from ..core.method import Method
from ..engine.http import HttpEngine
from ..engine.vllm_server import CAPABILITIES, VllmServer, installed, model_folder
from ..engine.weight_files import AdapterDelivery, FileDelivery
from ..model import devices, files
from ..model.base import Model
from ..model.catalog import StartModel
from .engine_roles import check_engine, engine_model_roles
from .method_on_task import needed
from .settings import RunSettings

LARGEST_CACHE = 4 << 30  # bytes of vLLM's KV cache on a processor


def check_remote(method: Method, start: StartModel, settings: RunSettings, length: int, trains: bool = True) -> None:
    """Check before any work that the engine of the settings is there, and can do what a method needs.

    Raises BadValue.
    """
    if settings.url and settings.engine != "http":
        raise BadValue("url: applies to servers that run already; give --engine http too")
    method = needed(method)
    if all(stage.data for stage in method.stages) or settings.engine == "builtin":
        return
    if settings.engine == "vllm":
        if settings.cluster == "none":  # with a cluster it is the workers that have it
            installed(settings.vllm_python)
        check_engine(method, CAPABILITIES, trains)
        return
    engine = http_engine(method, start, settings, length)
    if engine.delivery is not None:
        engine.delivery.close()
    check_engine(method, engine.capabilities, trains)


def http_engine(method: Method, start: StartModel, settings: RunSettings, length: int) -> HttpEngine:
    """The engine over the servers of the settings."""
    roles = roles_of(method)
    folder = Path(settings.weights_folder) if settings.weights_folder else None
    return HttpEngine(
        settings.url,
        roles,
        start.tokenizer,
        start.model.config.vocab,
        length,
        in_flight=settings.slots,
        timeout=settings.engine_seconds,
        delivery=lambda: FileDelivery(folder, settings.engine_seconds),
    )


class VllmEngine(HttpEngine):
    """An engine over a vLLM server of its own, which `close` ends."""

    def __init__(self, server: VllmServer, *given: object, **named: object) -> None:
        self.server = server
        super().__init__([server.start()], *given, name="vllm", **named)  # type: ignore[arg-type]
        self.endpoints.lost = server.lost

    async def close(self) -> None:
        """Close the connections and end the server."""
        await super().close()
        self.server.stop()


def vllm_engine(
    method: Method,
    start: StartModel,
    model: Model,
    settings: RunSettings,
    length: int,
    folder: Path | None,
    say: Callable[[str], object],
    lora_rank: int | None = None,
) -> VllmEngine:
    """An engine over a vLLM that is started now on a model; its log is in `folder`.

    lora_rank: the model is the base of adapters of this rank, which are delivered alone; None: weights are delivered.
    """
    weights = Path(settings.weights_folder) if settings.weights_folder else None
    log = (folder or Path(tempfile.mkdtemp(prefix="selfteach-vllm-"))) / "vllm.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    served = model_folder(lambda at: files.save(at, model, start.tokenizer))
    options = vllm_options(settings, model, length, devices.resolve_device(settings.device))
    server = VllmServer(served, log=log, say=say, lora_rank=lora_rank, **options)

    def delivery() -> FileDelivery | AdapterDelivery:
        if lora_rank is None:
            return FileDelivery(weights, settings.engine_seconds)
        return AdapterDelivery(model, weights, settings.engine_seconds)

    return VllmEngine(
        server,
        roles_of(method),
        start.tokenizer,
        model.config.vocab,
        length,
        in_flight=settings.slots,
        timeout=settings.engine_seconds,
        delivery=delivery,
    )


def vllm_options(settings: RunSettings, model: Model, length: int, device: str) -> dict[str, Any]:
    """What a VllmServer of a run is started with, on a device."""
    config, dtype = model.config, devices.resolve_dtype(settings.engine_dtype, device)
    size = torch.float32.itemsize if dtype == "float32" else 2
    cache = 2 * config.layers * config.kv_heads * config.head_dim * size * length * settings.slots
    return {
        "python": settings.vllm_python,
        "length": min(length + 1, config.max_length),  # a whole context is scored by drawing one token after it
        "slots": settings.slots,
        "dtype": dtype,
        "cache_bytes": max(64 << 20, min(LARGEST_CACHE, cache)) if device == "cpu" else None,
        "args": shlex.split(settings.vllm_args),
        "seed": settings.seed,
        "threads": settings.threads or None,
        "start_seconds": settings.engine_start_seconds,
    }


def roles_of(method: Method) -> Mapping[str, str]:
    """Model role -> weight group, of the models that are sampled. Raises BadValue where they have several groups."""
    groups = {role: method.models[role].weights for role in engine_model_roles(method)}
    if len({g for own in groups.values() for g in own}) > 1:
        check_engine(method, CAPABILITIES)
    held: Collection[str] = {g for own in groups.values() for g in own}
    if len(held) != 1:
        raise BadValue(f"method {method.name}: a server holds one weight group, not {', '.join(sorted(held))}")
    return {role: own[0] for role, own in groups.items()}
