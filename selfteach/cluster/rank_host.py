"""The learner's ranks above 0 as actors: Ray places their processes, and all else is `learner/ranks.py`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from .ray_cluster import HERE, Cluster


class RankHost:
    """A rank's process, which Ray gave a GPU or a share of the processors."""

    def process(self) -> int:
        """Its process id."""
        return os.getpid()

    def serve(self, environment: Mapping[str, str], words: Sequence[str]) -> int:
        """Carry out rank 0's orders until it ends; the exit status."""
        import torch

        from ..learner.worker import main  # with FSDP, which takes a second to import

        os.environ.update(environment)
        os.environ["LOCAL_RANK"] = "0"  # it sees its own GPUs alone
        torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))
        return main(words)


class RankActor:
    """A rank above 0 (learner.rank_processes.RankProcess)."""

    def __init__(self, cluster: Cluster, rank: int, environment: Mapping[str, str], words: Sequence[str]) -> None:
        self._cluster = cluster
        self.actor = cluster.actor(RankHost, rank, cluster.resources.rank)
        self._pid = self.actor.process.remote()
        self._end: Any = self.actor.serve.remote(dict(environment), list(words))

    @property
    def pid(self) -> int:
        """Its process id, once it has one."""
        return int(self._cluster.wait([self._pid], self._cluster.seconds, "a rank of the learner")[0])

    def ended(self) -> str | None:
        """As RankProcess.ended."""
        if not self._cluster.ray.wait([self._end], timeout=0)[0]:
            return None
        found = self._cluster.each([self._end], 0.0)[0]
        return self._cluster.ended(found) if isinstance(found, BaseException) else f"ended with exit code {found}"

    def kill(self) -> None:
        """As RankProcess.kill."""
        self._cluster.end(self.actor)

    def wait(self, seconds: float) -> None:
        """As RankProcess.wait."""
        self._cluster.ray.wait([self._end], timeout=seconds)


class RankPlacer:
    """Starts ranks in a cluster's placement group (learner.rank_processes.Placer); the run itself is rank 0."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    @property
    def host(self) -> str:
        """The address of the run itself."""
        return HERE if self._cluster.alone else self._cluster.node

    def place(self, rank: int, environment: Mapping[str, str], words: Sequence[str]) -> RankActor:
        """Start a rank in its bundle."""
        own = {**environment, "OMP_NUM_THREADS": str(self._cluster.resources.rank.threads)}
        return RankActor(self._cluster, rank, own, words)
