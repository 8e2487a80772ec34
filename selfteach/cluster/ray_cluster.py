"""Ray for one run: joined or started, a placement group of what the run asks for, and the actors in it."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.errors import BadValue, EngineMismatch, SelfteachError, describe
from ..core.extras import optional
from .resources import Resources, Share

LEAST_STORE = 200 << 20  # bytes of the object store of a Ray of the run's own
QUIET = {  # of a Ray that is started here: nothing is sent to its makers, and its log stays in its own files
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
}
HERE = "127.0.0.1"


class Cluster:
    """The cluster of a run. Nothing is started before `start`.

    address  of a Ray that runs (HOST:PORT, or auto); None: a Ray of the run's own on this machine, which ends with it
    seconds  that it may take to give what is asked for

    Raises BadValue where Ray is not installed.
    """

    def __init__(self, resources: Resources, address: str | None, seconds: float) -> None:
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
        self.ray = optional("ray", "ray", "--cluster ray")
        self.resources, self.address, self.seconds = resources, address, seconds
        self.say: Callable[[str], object] = lambda text: None
        self._group: Any = None
        self._joined = False  # whether Ray was there before, and stays
        self._keeper: Any = None
        self._actors: list[Any] = []

    def start(self, store_bytes: int = 0) -> None:
        """Join or start Ray, and wait until what is asked for is given.

        store_bytes  that the object store should hold; of a Ray that runs already it is as it is

        Raises BadValue for an address where none answers, and for more than there is.
        """
        if self._group is not None:
            return
        self._init(max(LEAST_STORE, store_bytes))
        try:
            self._place()
        except BaseException:
            self.close()
            raise

    def _init(self, store_bytes: int) -> None:
        ray, given = self.ray, dict[str, Any]()
        if ray.is_initialized():
            self._joined = True
            return
        logging.getLogger("ray").setLevel(logging.ERROR)
        if self.address is None:
            given = {"include_dashboard": False, "object_store_memory": store_bytes, "address": "local"}
        elif self.address.startswith("ray://"):
            raise BadValue(
                f"cluster_address: {self.address} is an address for Ray's client, and the run has to be on a machine of"
                " the cluster; start it there, with --cluster-address auto"
            )
        else:
            given = {"address": self.address}
            self._check_reachable(self.address)
        try:
            with _quiet_start():
                ray.init(log_to_driver=False, logging_level=logging.ERROR, **given)
        except (ConnectionError, ray.exceptions.RayError, RuntimeError, ValueError, OSError) as error:
            if self.address is None:
                raise BadValue(f"cluster: Ray could not be started here ({describe(error, 200)})") from None
            raise BadValue(
                f"cluster_address: no Ray answers at {self.address} ({describe(error, 200)}); start one by `ray start"
                " --head`, or leave --cluster-address out for one on this machine"
            ) from None
        from ray._private import worker

        if hasattr(worker, "print_to_stdstream"):  # raylet's paragraphs on processes that died, which a run says itself
            worker.print_to_stdstream = lambda *given, **named: None

    def _check_reachable(self, address: str) -> None:
        """Refuse an address where nothing listens: Ray by itself would try for minutes."""
        import socket

        host, _, port = address.rpartition(":")
        if address == "auto" or not port.isdecimal():
            return
        try:
            socket.create_connection((host, int(port)), timeout=min(self.seconds, 10.0)).close()
        except OSError as error:
            raise BadValue(
                f"cluster_address: nothing answers at {address} ({error.strerror or describe(error)}); start Ray there"
                f" by `ray start --head --port {port}`, or leave --cluster-address out for one on this machine"
            ) from None

    def _place(self) -> None:
        from ray.util.placement_group import placement_group

        nodes = [n for n in self.ray.nodes() if n["Alive"]]
        self.resources.check([(n["NodeManagerAddress"], _share(n["Resources"])) for n in nodes])
        self.node = self.ray.util.get_node_ip_address()
        self.alone = len(nodes) == 1
        bundles: list[dict[str, float]] = [{"CPU": b.cpus, "GPU": b.gpus} for b in self.resources.bundles]
        bundles = [{name: x for name, x in b.items() if x} for b in bundles]
        bundles[0][f"node:{self.node}"] = 0.001  # the learner's first process is the run itself
        self._group = placement_group(bundles, strategy="PACK")
        begun = time.monotonic()
        while not self._group.wait(timeout_seconds=min(5.0, self.seconds)):
            if (waited := time.monotonic() - begun) >= self.seconds:
                free = _share(self.ray.available_resources())
                raise BadValue(
                    f"cluster: what is asked for ({self.resources}) was not given within {waited:.0f} s; free are"
                    f" {free} of {_share(self.ray.cluster_resources())}, others have the rest; wait for them, ask for"
                    " less, or raise --cluster-seconds"
                )
            self.say(f"the cluster has not given {self.resources} yet, {waited:.0f} s so far")

    def actor(self, kind: type, bundle: int, share: Share, *given: Any, **options: Any) -> Any:
        """Start an actor in a bundle; its share of a node is this one."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        where = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=bundle)
        made = self.ray.remote(kind).options(
            num_cpus=share.cpus, num_gpus=share.gpus, scheduling_strategy=where, max_restarts=0, **options
        )
        actor = made.remote(*given)
        self._actors.append(actor)
        return actor

    def own_gpu(self) -> int | None:
        """The GPU of this machine that the placement gave to the run itself, held as long as the cluster is."""
        if not self.resources.rank.gpus:
            return None
        if self._keeper is None:
            self._keeper = self.actor(Keeper, 0, Share(0, self.resources.rank.gpus))
        given = str(self.wait([self._keeper.gpu.remote()], self.seconds, "the learner's GPU")[0])
        seen = [n.strip() for n in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if n.strip()]
        return seen.index(given) if given in seen else int(given)

    def put(self, value: Any) -> Any:
        """A reference to a value in the object store."""
        return self.ray.put(value)

    def wait(self, refs: Sequence[Any], seconds: float, what: str) -> list[Any]:
        """The values of references. Raises BadValue where they are not there in time, and what the calls raised."""
        try:
            return self.ray.get(list(refs), timeout=seconds)
        except self.ray.exceptions.GetTimeoutError:
            raise BadValue(f"cluster: {what} did not answer within {seconds:g} s") from None

    def each(self, refs: Iterable[Any], seconds: float) -> list[Any]:
        """Of each reference its value, or the exception of its call; TimeoutError for one that is not there in time."""
        refs, out = list(refs), list[Any]()
        if not refs:
            return out
        self.ray.wait(refs, num_returns=len(refs), timeout=seconds)
        for ref in refs:
            try:
                out.append(self.ray.get(ref, timeout=0))
            except self.ray.exceptions.GetTimeoutError:
                out.append(TimeoutError(f"no answer within {seconds:g} s"))
            except Exception as error:
                out.append(error)
        return out

    def end(self, actor: Any) -> None:
        """End an actor's process."""
        if actor in self._actors:
            self._actors.remove(actor)
        with contextlib.suppress(Exception):  # it may be gone, and Ray too
            self.ray.kill(actor, no_restart=True)

    def end_all(self) -> None:
        """End all actors; the placement stays."""
        for actor in list(self._actors):
            self.end(actor)
        self._keeper = None

    def ended(self, error: BaseException) -> str:
        """How an actor ended, in words."""
        text = str(error)
        if isinstance(error, self.ray.exceptions.OutOfMemoryError) or "low on memory" in text:
            return "was ended by Ray, since its node ran out of memory"
        if isinstance(error, TimeoutError | self.ray.exceptions.GetTimeoutError):
            return "hung: " + (str(error) or "no answer")
        if "creation task" in text and isinstance(error, self.ray.exceptions.RayActorError):
            last = [line for line in text.splitlines() if line.strip()]
            return f"could not begin ({describe(RuntimeError(last[-1]), 200) if last else text})"
        if isinstance(error, self.ray.exceptions.RayActorError):
            return "died (killed, crashed, or out of memory)"
        return describe(error, 200)

    def raised(self, error: BaseException) -> str:
        """What a call raised, in words: an error of our own as it is. Raises EngineMismatch as itself."""
        cause = getattr(error, "cause", None)
        if isinstance(cause, EngineMismatch):
            raise cause
        return str(cause) if isinstance(cause, SelfteachError) else self.ended(error)

    def close(self) -> None:
        """Give back what was placed; a Ray of the run's own ends."""
        group, self._group = self._group, None
        if not self.ray.is_initialized():
            return
        self.end_all()
        if group is not None:
            from ray.util.placement_group import remove_placement_group

            with contextlib.suppress(Exception):
                remove_placement_group(group)
        if not self._joined:
            self.ray.shutdown()


class Keeper:
    """Holds the GPU of the run itself, which is no actor."""

    def gpu(self) -> str:
        """The first GPU that it was given, by Ray's name for it."""
        import ray

        return str(ray.get_gpu_ids()[0])


def _share(resources: Mapping[str, float]) -> Share:
    return Share(resources.get("CPU", 0.0), resources.get("GPU", 0.0))


@contextlib.contextmanager
def _quiet_start() -> Any:
    """Let what is started find this selfteach, whatever folder it is in."""
    before, own = os.environ.get("PYTHONPATH"), str(Path(__file__).parents[2])
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([own, *(before or "").split(os.pathsep)])).rstrip(":")
    try:
        yield
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before
