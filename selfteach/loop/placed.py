"""What of a run Ray places, by its settings: the resources asked for, rollout workers, ranks, reward workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..cluster.ray_cluster import Cluster
from ..cluster.resources import Resources, Share
from ..cluster.worker_engine import WorkerEngine
from ..core.errors import BadValue
from ..core.method import Method
from ..engine.recipe import EngineRecipe
from ..learner.ranks import launched_ranks
from ..model.catalog import StartModel
from .method_on_task import needed
from .settings import RunSettings

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
    """Check before any work that rollouts need not run beside a learner on the same GPU. Raises BadValue."""
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


def placed_engine(
    cluster: Cluster,
    settings: RunSettings,
    recipe: Callable[[RunSettings, str], EngineRecipe],
) -> WorkerEngine:
    """The engine of rollout workers. recipe: what each builds its own from, by settings and a device."""
    device = "cuda" if settings.gpus_per_worker else "cpu"
    if settings.engine_dtype == "auto":  # a GPU of another machine, which this one cannot ask
        settings = replace(settings, engine_dtype="bfloat16" if settings.gpus_per_worker else "float32")
    threads = settings.threads or max(1, int(settings.cpus_per_worker))
    seconds = settings.engine_seconds, settings.engine_start_seconds
    return WorkerEngine(cluster, recipe(settings, device), threads, *seconds)
