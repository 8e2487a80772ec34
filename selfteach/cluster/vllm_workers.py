"""Rollout workers that are a vLLM each: the engine over their servers, weights through Ray's object store."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.disk import OwnFolder
from ..core.errors import EngineLost, describe
from ..engine.endpoints import Endpoint, Failed
from ..engine.http import HttpEngine
from ..engine.vllm_server import VllmServer
from ..engine.weight_files import FileDelivery
from ..model.tokenizer import Tokenizer
from .ray_cluster import HERE, Cluster
from .stored_weights import store, unpacked

PRESENT = 10.0  # seconds in which a worker must say that it is there, before a delivery
START_POLL = 2.0  # seconds that a request waits for a vLLM that starts, before it is another's


class VllmHost:
    """A vLLM on the node of a Ray actor, which restarts it and gives it weights.

    model    the files of the model's folder
    options  of VllmServer
    """

    def __init__(self, model: Mapping[str, bytes], options: Mapping[str, Any], alone: bool) -> None:
        self._own = OwnFolder("selfteach-vllm-")
        folder = self._own.path
        (folder / "model").mkdir()
        for name, content in model.items():
            (folder / "model" / name).write_bytes(content)
        address = HERE
        if not alone:
            import ray

            address = str(ray.util.get_node_ip_address())
        self.server = VllmServer(folder / "model", log=folder / "vllm.log", host=address, **options)
        self.delivery = FileDelivery(None, options["start_seconds"])

    def process(self) -> int:
        """Its process id."""
        return os.getpid()

    def ready(self) -> str:
        """The address of its vLLM, which is started where it does not run."""
        if self.server.lost() is not None:
            self.server.stop()
            self.server.start()
        return self.server.url

    def deliver(self, parts: Sequence[Any], version: int) -> tuple[str, str]:
        """(fingerprint of what the vLLM holds after a delivery, what it was taken of), or ("", why there is none)."""
        import ray

        weights: dict[str, Any] = {}
        for part in parts:
            weights |= unpacked(ray.get(part))
        self.delivery.put(weights, version)
        try:
            return self.delivery.deliver(self.server.url, version), self.delivery.checked
        except Failed as error:
            return "", describe(error)


@dataclass(eq=False)
class Placed:
    """Such an actor as the run sees it."""

    number: int
    actor: Any = None
    url: str = ""
    starting: Any = None  # the reference to the address of a vLLM that starts again


class PlacedEndpoint(Endpoint):
    """A server that may come back as another, at another address, without its weights."""

    def fail(self, error: Failed) -> None:
        """As Endpoint.fail."""
        super().fail(error)
        if error.gone:
            self.version = None


class VllmWorkers(HttpEngine):
    """The engine over a vLLM in each rollout worker; one that ends is started again, and its requests go to others.

    model    the files of the model's folder; options: of each VllmServer
    """

    def __init__(
        self,
        cluster: Cluster,
        model: Mapping[str, bytes],
        options: Mapping[str, Any],
        model_roles: Mapping[str, str],
        tokenizer: Tokenizer,
        vocab: int,
        length: int,
        *,
        in_flight: int,
        timeout: float,
    ) -> None:
        self.cluster, self.start_seconds = cluster, 2 * float(options["start_seconds"])  # it is tried twice
        self._given = cluster.put(dict(model)), dict(options), cluster.alone
        self.warn: Callable[[str], object] = lambda text: None
        self.placed = [Placed(n) for n in range(cluster.resources.rollout_workers)]
        for placed in self.placed:
            self._begin(placed)
        found = cluster.each([p.actor.ready.remote() for p in self.placed], self.start_seconds)
        for placed, url in zip(self.placed, found, strict=True):
            if isinstance(url, BaseException):
                raise EngineLost(f"engine: rollout worker {placed.number}: {cluster.raised(url)}")
            placed.url = url
        super().__init__(
            [p.url for p in self.placed],
            model_roles,
            tokenizer,
            vocab,
            length,
            in_flight=in_flight,
            timeout=timeout,
            patience=self.start_seconds,
            delivery=lambda: StoreDelivery(self),
            name="vllm on Ray",
        )

    def placed_at(self, url: str) -> Placed:
        """The worker whose vLLM has an address."""
        return next(p for p in self.placed if p.url == url)

    def load(self, group: str, weights: Mapping[str, Any], version: int) -> str:
        """As HttpEngine.load, to the vLLMs that run; those of workers that ended are started again, and get it later.

        Where all have ended, the first that answers again is waited for.
        """
        found = self.cluster.each([p.actor.process.remote() for p in self.placed if p.starting is None], PRESENT)
        for placed, process in zip([p for p in self.placed if p.starting is None], found, strict=True):
            if isinstance(process, BaseException) and not isinstance(process, TimeoutError):
                self._replace(placed, self.cluster.ended(process))
        if all(p.starting is not None for p in self.placed):
            self.cluster.ray.wait([p.starting for p in self.placed], timeout=self.start_seconds)
            for endpoint in self.endpoints.every:
                with contextlib.suppress(Failed):
                    self._ready(endpoint)
        return super().load(group, weights, version)

    async def close(self) -> None:
        """Close the connections and end the workers, and their servers with them."""
        await super().close()
        for placed in self.placed:
            self.cluster.end(placed.actor)

    def _found(self, url: str) -> Endpoint:
        found = super()._found(url)
        return PlacedEndpoint(found.url, found.server)

    def _begin(self, placed: Placed) -> None:
        bundle, share = self.cluster.resources.bundle_of_worker(placed.number), self.cluster.resources.worker
        placed.actor = self.cluster.actor(VllmHost, bundle, share, *self._given)

    def _replace(self, placed: Placed, how: str) -> None:
        """Start another actor in the place of one that ended."""
        self.warn(f"rollout worker {placed.number} {how}; it is replaced")
        self.cluster.end(placed.actor)
        self._begin(placed)
        placed.starting = placed.actor.ready.remote()

    def _ready(self, endpoint: Endpoint) -> None:
        """Let an endpoint have the address of its vLLM, which is started where it does not run.

        Raises Failed where it does not answer yet.
        """
        placed = self.placed_at(endpoint.url)
        placed.starting = placed.starting or placed.actor.ready.remote()
        url = self.cluster.each([placed.starting], START_POLL)[0]
        if isinstance(url, TimeoutError):
            raise Failed(f"rollout worker {placed.number} is starting", gone=True, reached=False)
        placed.starting = None
        if isinstance(url, BaseException):
            how = self.cluster.raised(url)
            self._replace(placed, how)
            raise Failed(f"rollout worker {placed.number} {how}", gone=True, reached=False)
        placed.url = endpoint.url = url

    def _deliver_late(self, endpoint: Endpoint) -> None:
        """Give a vLLM the newest weights that runs again. Raises Failed; others are asked meanwhile."""
        self._ready(endpoint)
        super()._deliver_late(endpoint)


class StoreDelivery:
    """Brings weights to vLLMs by their workers (engine.http.Delivery): one copy in the object store."""

    def __init__(self, engine: VllmWorkers) -> None:
        self._engine, self.checked = engine, ""
        self._parts: list[Any] = []

    def put(self, weights: Mapping[str, Any], version: int) -> None:
        """As Delivery.put."""
        self._parts = store(self._engine.cluster, weights)

    def deliver(self, url: str, version: int) -> str:
        """As Delivery.deliver."""
        placed, cluster = self._engine.placed_at(url), self._engine.cluster
        if placed.starting is not None:
            raise Failed(f"rollout worker {placed.number} is starting", gone=True)
        answer = cluster.each([placed.actor.deliver.remote(self._parts, version)], self._engine.timeout)[0]
        if isinstance(answer, BaseException):
            raise Failed(f"{url}: {cluster.raised(answer)}", gone=True)
        held, self.checked = answer
        if not held:
            raise Failed(self.checked, gone=True)
        return held

    def close(self) -> None:
        """As Delivery.close."""
        self._parts = []
