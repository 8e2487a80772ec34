"""The processes of a sharded learner: how they start, what they tell each other, and what is said when one is lost.

Rank 0 is the run itself; the others carry out what it asks. It starts them on this machine, or torchrun has (then all
ranks run the same command, and ranks above 0 serve). Orders go by a key in a TCP store, on which an idle rank may wait
for hours, and their contents by gloo; tensors go by gloo on processors and by NCCL on GPUs. Only inside an operation
is there a deadline: each rank notes in the store what it does, and these notes are the error's text.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import socket
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from ..core.errors import BadValue, SelfteachError, describe
from .errors import AgreedOutOfMemory, RankFailed
from .rank_processes import GLOO_INTERFACE, LOOPBACK, Placer, RankProcess, start_rank

T = TypeVar("T")
NOTHING = "waits for work"
START_SECONDS = 300.0  # for all ranks to appear: each imports torch, from a cold disk maybe
IDLE_SECONDS = 3600.0  # of one wait for work, after which a rank waits again
SMALL = 1 << 16  # bytes of an order that goes by the store itself
KEPT_ORDERS = 1000  # of the last ones, of which some rank may not have read the newest
GRACE_SECONDS = 3.0  # for what a lost rank left behind to arrive


def launched_ranks(environment: Mapping[str, str] = os.environ) -> tuple[int, int] | None:
    """(rank, world size) where torchrun or the like started this process; None where it runs by itself."""
    if "RANK" not in environment or "WORLD_SIZE" not in environment:
        return None
    return int(environment["RANK"]), int(environment["WORLD_SIZE"])


def world_size(setting: int) -> int:
    """The number of ranks: the setting, else that of torchrun, else 1.

    Raises BadValue where torchrun started another number.
    """
    launched = launched_ranks()
    if launched is None:
        return setting or 1
    if setting not in (0, launched[1]):
        raise BadValue(
            f"world: {setting} ranks are asked for, and torchrun started {launched[1]} processes; give --nproc-per-node"
            f" {setting}, or leave --world out"
        )
    return launched[1]


class Division:
    """How a learner's ranks divide its work: rank r is number r // T of those that share sequences, and r % T of the T
    that share each layer's matrices, read the same sequences and compute the same columns.

    rank, world  of those that share sequences
    tensor       T
    mesh         over which parameters are sharded;  tensor_mesh: over which layers are cut, None where T is 1
    """

    def __init__(self, ranks: Ranks, tensor: int) -> None:
        self._ranks, self.tensor = ranks, tensor
        self.rank, self.world = ranks.rank // tensor, ranks.world // tensor
        self.mesh: Any = ranks.mesh
        self.tensor_mesh: Any = None
        if tensor > 1:
            from torch.distributed.device_mesh import init_device_mesh

            both = init_device_mesh(ranks.device.split(":")[0], (self.world, tensor), mesh_dim_names=("data", "tensor"))
            self.mesh, self.tensor_mesh = both["data"], both["tensor"]

    @property
    def first(self) -> bool:
        """Whether this rank is the first of those that compute the same."""
        return self._ranks.rank % self.tensor == 0

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks that share sequences, on every rank."""
        return self._ranks.gather(value)[:: self.tensor]

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum of a tensor over the ranks that share sequences, in place."""
        if self.tensor == 1:
            return self._ranks.sum(tensor)
        if self.world > 1:
            dist.all_reduce(tensor, group=self.mesh.get_group())
        return tensor


class Ranks:
    """This process among the ranks of a learner.

    rank, world  its number, and how many there are
    device       of this rank: cpu, or cuda:N of its own
    seconds      the deadline of an exchange inside an operation
    """

    def __init__(
        self,
        rank: int,
        world: int,
        device: str,
        seconds: float,
        store: Any,
        workers: Sequence[RankProcess] = (),
        placer: Placer | None = None,
    ) -> None:
        self.rank, self.world, self.device, self.seconds = rank, world, device, seconds
        self.workers, self.placer = list(workers), placer
        self._store: Any = PrefixStore("selfteach", store)
        self._orders = 0
        self.learners = 0  # made so far
        self.gone: list[int] = []  # of them, those that nobody has any more
        self.broken = False
        backend = "cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo"
        if device.startswith("cuda"):
            torch.cuda.set_device(device)
        self._store.set(f"here/{rank}", b"")
        self._meet([f"here/{n}" for n in range(world)])
        dist.init_process_group(
            backend,
            store=PrefixStore("ranks", store),
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=seconds),
        )
        from torch.distributed.device_mesh import init_device_mesh

        self.mesh = init_device_mesh(device.split(":")[0], (world,))
        self._divisions: dict[int, Division] = {}
        self.note(NOTHING)

    def divided(self, tensor: int) -> Division:
        """The ranks, `tensor` of which share each layer's matrices; all ranks must ask in the same order."""
        if tensor not in self._divisions:
            self._divisions[tensor] = Division(self, tensor)
        return self._divisions[tensor]

    def _meet(self, keys: list[str]) -> None:
        """Wait until all ranks are here. Raises RuntimeError where one that was started here ends, or none comes."""
        until = time.monotonic() + START_SECONDS
        while not self._store.check(keys):
            if time.monotonic() > until or any(w.ended() for w in self.workers):
                missing = [k.removeprefix("here/") for k in keys if not self._store.check([k])]
                raise RuntimeError(f"rank {', '.join(missing)} did not start")
            time.sleep(0.05)

    # ---- orders

    def order(self, name: str, learner: int = -1, given: Sequence[Any] = ()) -> None:
        """Of rank 0: have all other ranks carry out an operation of a learner, by its number."""
        if self.world > 1:
            gone = [self.gone.pop() for _ in range(len(self.gone))]
            sent = pickle.dumps((name, learner, gone, given))
            small = len(sent) <= SMALL
            self._store.set(f"order/{self._orders}", sent if small else pickle.dumps((name, learner, gone, None)))
            with contextlib.suppress(RuntimeError):
                self._store.delete_key(f"order/{self._orders - KEPT_ORDERS}")
            self._orders += 1
            if not small:
                self.broadcast(given)
        self.note(name)

    def next_order(self) -> tuple[str, int, list[int], Sequence[Any]]:
        """Of the others: the next operation, the number of its learner, learners that are gone, and what it is given.

        Waits for it; EOFError where rank 0 is gone.
        """
        self.note(NOTHING)
        key = f"order/{self._orders}"
        while True:
            try:
                self._store.wait([key], timedelta(seconds=IDLE_SECONDS))
                name, learner, gone, given = pickle.loads(self._store.get(key))
                break
            except dist.DistStoreError as error:
                if "imeout" not in str(error) and "imed out" not in str(error):
                    raise EOFError(str(error)) from None
            except dist.DistNetworkError as error:
                raise EOFError(str(error)) from None
        self._orders += 1
        self.note(name)
        return name, learner, gone, self.broadcast(None) if given is None else given

    def note(self, text: str) -> None:
        """Say what this rank does now."""
        with contextlib.suppress(RuntimeError):  # the store is rank 0's, who may be gone
            self._store.set(f"at/{self.rank}", f"{time.time():.1f} {text}")

    def failed(self, error: BaseException) -> None:
        """Leave behind why this rank ends."""
        with contextlib.suppress(RuntimeError):
            self._store.set(f"failed/{self.rank}", describe(error))

    # ---- exchanges, in which every rank takes part

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value, on every rank."""
        if self.world == 1:
            return value
        held = [value]
        dist.broadcast_object_list(held, 0, device=torch.device("cpu"))
        return held[0]

    def from_first(self, make: Callable[[], T], shape: Callable[[T], Any]) -> T:
        """What rank 0 makes; the others get the `shape` of it. Raises on every rank what rank 0 raises."""
        made, error = None, None
        if self.rank == 0:
            try:
                made = make()
            except SelfteachError as raised:
                error = raised
        sent = self.broadcast((error, None if made is None else shape(made)))
        if sent[0] is not None:
            raise sent[0]
        return sent[1] if made is None else made

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, on every rank."""
        if self.world == 1:
            return [value]
        out: list[Any] = [None] * self.world
        dist.all_gather_object(out, value)
        return out

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum of a tensor over ranks, in place."""
        if self.world > 1:
            dist.all_reduce(tensor)
        return tensor

    def agree(self, error: BaseException | None) -> None:
        """Raise on every rank where one has failed in what it did alone: running out of memory as that, else the first
        rank's error.
        """
        bad = self.sum(torch.tensor(int(error is not None)))
        if not bad:
            return
        found = self.gather(None if error is None else (isinstance(error, SelfteachError), str(error), describe(error)))
        texts = [(rank, *f) for rank, f in enumerate(found) if f is not None]
        if any("can't allocate memory" in text or "OutOfMemoryError" in full for _, _, text, full in texts):
            raise AgreedOutOfMemory(f"rank {texts[0][0]}: can't allocate memory")
        if error is not None and all(f is None for f in found[: self.rank]):
            raise error
        rank, ours, text, full = texts[0]
        raise RankFailed(text if ours else f"learner: rank {rank}: {full}")

    # ---- the end

    def explain(self, error: BaseException) -> RankFailed:
        """What became of the ranks, after an exchange of rank 0 failed: who died or failed, else what each waits for.
        The ranks are ended.
        """
        self.broken = True
        until, dead, left = time.monotonic() + GRACE_SECONDS, list[str](), list[str]()
        while time.monotonic() < until and not (dead or left):
            dead = [f"rank {n} {how}" for n, w in enumerate(self.workers, 1) if (how := w.ended())]
            left = [f"rank {n}: {t}" for n in range(1, self.world) if (t := self._read(f"failed/{n}"))]
            time.sleep(0.05)
        notes = "; ".join(f"rank {n}: {self._ago(self._read(f'at/{n}'))}" for n in range(self.world))
        self.kill()
        if left or dead:
            why = f"learner: {(left or dead)[0]} (at that time {notes}); go on with --resume"
            return RankFailed(why, lost=not left)
        return RankFailed(
            f"learner: no answer within {self.seconds:g} s ({notes}): {describe(error, 120)}; raise --learner-seconds"
            " if a step takes longer, then go on with --resume",
            lost=True,
        )

    def _read(self, key: str) -> str:
        with contextlib.suppress(RuntimeError):
            if self._store.check([key]):
                return self._store.get(key).decode()
        return ""

    @staticmethod
    def _ago(note: str) -> str:
        when, _, text = note.partition(" ")
        return f"{text}, for {max(0.0, time.time() - float(when)):.0f} s" if when else "nothing"

    def kill(self) -> None:
        """End the ranks that this process started."""
        for worker in self.workers:
            worker.kill()
        for worker in self.workers:
            worker.wait(10)
        self.workers.clear()

    def close(self) -> None:
        """Of rank 0: send the others home."""
        global _current
        atexit.unregister(self.close)
        if _current is self:
            _current = None
        if not self.broken:
            self.broken = True
            with contextlib.suppress(RuntimeError):
                self.order("end")
        for worker in self.workers:
            worker.wait(10)
        self.kill()
        if dist.is_initialized():
            with contextlib.suppress(RuntimeError):
                dist.destroy_process_group()


_current: Ranks | None = None  # one process group a process


def ranks_of(world: int, device: str, seconds: float, files: Sequence[str] = (), placer: Placer | None = None) -> Ranks:
    """The ranks of this process's learners, of which it is rank 0: those there are, else new ones.

    files   of a user's own that other ranks have to run, since they register what terms are made of
    placer  starts the others; None: this process does, on its machine

    Raises BadValue where they cannot be started.
    """
    global _current
    if _current is not None and any(w.ended() for w in _current.workers):
        _current.broken = True  # they die with the thread that started them
    same = _current is not None and (_current.world, _current.device, _current.placer) == (world, device, placer)
    if _current is not None and same and not _current.broken:
        return _current
    if _current is not None:
        _current.close()
    launched = launched_ranks()
    if launched is not None:
        _current = join(device, seconds)
    else:
        host = LOOPBACK if placer is None else placer.host
        store = _store(host, 0, True)
        workers: list[RankProcess] = []
        try:
            for rank in range(1, world):
                workers.append(start_rank(rank, world, device, seconds, host, store.port, files, placer))
            with _gloo_on_loopback() if host == LOOPBACK else contextlib.nullcontext():
                _current = Ranks(0, world, device_of(device, 0), seconds, store, workers, placer)
        except BaseException as error:
            dead = [f"rank {n} {how}" for n, w in enumerate(workers, 1) if (how := w.ended())]
            for worker in workers:
                worker.kill()
            if isinstance(error, RuntimeError) and not isinstance(error, SelfteachError):
                why = f"learner: {', '.join(dead) or describe(error)} as the ranks started"
                raise RankFailed(why, lost=bool(dead)) from error
            raise
    atexit.register(_current.close)
    return _current


def close_ranks() -> None:
    """Send the ranks of this process's learners home, where there are any."""
    if _current is not None:
        _current.close()


def join(device: str, seconds: float) -> Ranks:
    """This process among the ranks that torchrun started. Raises BadValue where they cannot meet."""
    launched = launched_ranks()
    assert launched is not None
    rank, world = launched
    host, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "29500"))
    hosts = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    local = int(os.environ.get("LOCAL_RANK", rank))
    return Ranks(rank, world, device_of(device, local), seconds, _store(host, port, hosts))


@contextlib.contextmanager
def _gloo_on_loopback() -> Generator[None]:
    """Let gloo listen where this machine alone reaches it: what ranks send is unpickled."""
    before = os.environ.get(GLOO_INTERFACE)
    if sys.platform == "linux" and before is None:
        os.environ[GLOO_INTERFACE] = "lo"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(GLOO_INTERFACE, None)


def _store(host: str, port: int, hosts: bool) -> Any:
    """The store at an address, on this machine's own one out of reach of others; raises BadValue for one that is taken,
    or where nobody answers.
    """
    listening = None
    try:
        if hosts and host == LOOPBACK:  # by itself it listens at every address
            with socket.socket() as made:
                made.bind((host, port))
                made.listen(128)
                port, listening = made.getsockname()[1], made.detach()
        return TCPStore(
            host,
            port,
            is_master=hosts,
            timeout=timedelta(seconds=START_SECONDS),
            wait_for_workers=False,
            master_listen_fd=listening,
        )
    except (OSError, RuntimeError) as error:
        what = "the port is in use: give another MASTER_PORT" if "in use" in str(error) else describe(error, 160)
        raise BadValue(f"learner: the ranks cannot meet at {host}:{port}; {what}") from None


def device_of(device: str, local: int) -> str:
    """The device of a rank, by its number on its machine. Raises BadValue where there are fewer GPUs than ranks."""
    if not device.startswith("cuda"):
        return device
    if local >= torch.cuda.device_count():
        raise BadValue(
            f"world: rank {local} of this machine has no GPU of its own, there are {torch.cuda.device_count()}; ask for"
            " as many ranks as GPUs, or --device cpu"
        )
    return f"cuda:{local}"
