"""The processes of ranks above 0: started on this machine, or placed elsewhere by what has room for them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
LOOPBACK = "127.0.0.1"


class RankProcess(Protocol):
    """The process of a rank above 0, whoever placed it."""

    def ended(self) -> str | None:
        """How it ended ("was killed (SIGKILL)"); None while it runs."""
        ...

    def kill(self) -> None:
        """End it now."""
        ...

    def wait(self, seconds: float) -> None:
        """Wait for its end, at most so long."""
        ...


class Placer(Protocol):
    """What starts ranks above 0 where it has room for them.

    host  the address of rank 0, at which they meet; 127.0.0.1 where all are on this machine
    """

    @property
    def host(self) -> str:
        """The address of rank 0."""
        ...

    def place(self, rank: int, environment: Mapping[str, str], words: Sequence[str]) -> RankProcess:
        """Start a rank: `worker.main(words)` in a process with this environment besides its own."""
        ...


class LocalRank:
    """A rank as a child of this process."""

    def __init__(self, environment: Mapping[str, str], words: Sequence[str]) -> None:
        paths = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [sys.executable, "-m", "selfteach.learner.worker", *words]
        whole = {**os.environ, **environment, "PYTHONPATH": paths}
        self.process = subprocess.Popen(command, env=whole, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def ended(self) -> str | None:
        """As RankProcess.ended."""
        if (code := self.process.poll()) is None:
            return None
        return f"was killed ({signal.Signals(-code).name})" if code < 0 else f"ended with exit code {code}"

    def kill(self) -> None:
        """As RankProcess.kill."""
        with contextlib.suppress(OSError):
            self.process.kill()

    def wait(self, seconds: float) -> None:
        """As RankProcess.wait."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)


def start_rank(
    rank: int,
    world: int,
    device: str,
    seconds: float,
    host: str,
    port: int,
    files: Sequence[str],
    placer: Placer | None,
) -> RankProcess:
    """A process that serves as a rank."""
    more: dict[str, Any] = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank, "MASTER_ADDR": host}
    more |= {"MASTER_PORT": port, "TORCH_CPP_LOG_LEVEL": "ERROR"}  # else a wait that is over is a warning
    if host == LOOPBACK and sys.platform == "linux" and GLOO_INTERFACE not in os.environ:
        more[GLOO_INTERFACE] = "lo"
    more |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "OMP_NUM_THREADS": max(1, torch.get_num_threads() // world)}
    environment = {k: str(v) for k, v in more.items()}
    parent = str(os.getpid()) if placer is None else "0"
    words = [device, str(seconds), parent, *files]
    return LocalRank(environment, words) if placer is None else placer.place(rank, environment, words)
