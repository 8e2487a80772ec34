"""What of a run Ray places, by its settings: the resources asked for, rollout workers, ranks, reward workers."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..cluster.ray_cluster import Cluster
from ..cluster.resources import Resources, Share
from ..cluster.vllm_workers import VllmWorkers
from ..cluster.worker_engine import WorkerEngine
from ..core.errors import BadValue
from ..core.method import Method
from ..engine.recipe import EngineRecipe
from ..learner.ranks import launched_ranks
from ..model import files
from ..model.base import Model
from ..model.catalog import StartModel
from .method_on_task import needed
from .remote_engines import roles_of, vllm_options
from .settings import RunSettings, not_placed

STORED = 3  # copies of the weights for which the object store has room: two versions, and one that is being read


def resources_of(settings: RunSettings) -> Resources:
    """What a run asks a cluster for. Raises BadValue for settings that do not go together."""
    s = settings
    if launched_ranks() is not None:
        raise BadValue("cluster: torchrun started these processes, and Ray would place them; take one of the two")
    if s.learner == "local" and s.world > 1:
        raise BadValue(f"world: {s.world} processes are asked for, and the learner is local; give --learner fsdp")
    return Resources(
        s.rollout_workers,
        Share(s.cpus_per_worker, s.gpus_per_worker),
        s.world or 1,
        Share(s.learner_cpus, s.learner_gpus),
        s.reward_workers,
        Share(s.cpus_per_reward_worker),
        s.colocate,
    )


def cluster_of(settings: RunSettings) -> Cluster | None:
    """The cluster of a run, not started yet; None for a run without one. Raises BadValue where Ray is not installed."""
    if settings.cluster == "none":
        return None
    return Cluster(resources_of(settings), settings.cluster_address, settings.cluster_seconds)


def check_placed(method: Method, settings: RunSettings) -> None:
    """Check before any work that settings of processes go together, and with a method. Raises BadValue."""
    asked = [n for n, value in not_placed().items() if n != "cluster" and getattr(settings, n) != value]
    if settings.cluster == "none" and asked:
        raise BadValue(f"{asked[0]}: is for processes that Ray places; give --cluster ray too")
    if settings.cluster == "ray" and settings.engine == "http":
        raise BadValue("cluster: the servers of --engine http run already; leave --cluster or --engine out")
    if settings.cluster == "ray" and settings.engine == "vllm":
        if settings.colocate:
            raise BadValue(
                "colocate: is for the built-in engine, which gives its memory up; a vLLM has GPUs of its own"
            )
        found = re.search(r"(?:--tensor-parallel-size|-tp)[= ](\d+)", settings.vllm_args)
        size = int(found[1]) if found else 1
        if settings.gpus_per_worker and size != settings.gpus_per_worker:
            raise BadValue(
                f"gpus_per_worker: {settings.gpus_per_worker:g} GPUs for a vLLM of {size}; give --vllm-args"
                f" '--tensor-parallel-size {settings.gpus_per_worker:g}', or --gpus-per-worker {size}"
            )
    stale = max((s.staleness if settings.staleness is None else settings.staleness) for s in method.stages)
    if settings.colocate and stale:
        raise BadValue(
            "colocate: rollouts that run ahead are played beside the learner, for which the engine would sleep; take"
            " --staleness 0, or leave --colocate out"
        )


def store_bytes(method: Method, start: StartModel) -> int:
    """Bytes that the object store of a Ray of the run's own needs."""
    groups = len(needed(method).weights)
    return STORED * groups * sum(p.numel() * p.element_size() for p in start.model.parameters())


def on_own_gpu(settings: RunSettings, cluster: Cluster) -> RunSettings:
    """The settings of the run's own process: on the GPU that the cluster gave it, or on processors."""
    gpu = cluster.own_gpu()
    return replace(settings, device="cpu" if gpu is None else f"cuda:{gpu}")


def placed_vllm(
    cluster: Cluster, method: Method, start: StartModel, model: Model, settings: RunSettings, length: int
) -> VllmWorkers:
    """The engine over a vLLM in each rollout worker, started now on a model."""
    device = "cuda" if settings.gpus_per_worker else "cpu"
    if settings.engine_dtype == "auto":
        settings = replace(settings, engine_dtype="bfloat16" if settings.gpus_per_worker else "float32")
    with tempfile.TemporaryDirectory() as folder:
        files.save(Path(folder), model, start.tokenizer)
        content = {file.name: file.read_bytes() for file in Path(folder).iterdir()}
    options = {**vllm_options(settings, model, length, device), "threads": cluster.resources.worker.threads}
    more: dict[str, Any] = {"in_flight": settings.slots, "timeout": settings.engine_seconds}
    given = content, options, roles_of(method), start.tokenizer, model.config.vocab, length
    return VllmWorkers(cluster, *given, **more)


def placed_engine(
    cluster: Cluster,
    settings: RunSettings,
    recipe: Callable[[RunSettings, str], EngineRecipe],
) -> WorkerEngine:
    """The engine of rollout workers. recipe: what each builds its own from, by settings and a device."""
    device = "cuda" if settings.gpus_per_worker else "cpu"
    if settings.engine_dtype == "auto":  # a GPU of another machine, which this one cannot ask
        settings = replace(settings, engine_dtype="bfloat16" if settings.gpus_per_worker else "float32")
    threads = cluster.resources.worker.threads
    seconds = settings.engine_seconds, settings.engine_start_seconds
    return WorkerEngine(cluster, recipe(settings, device), threads, *seconds)
