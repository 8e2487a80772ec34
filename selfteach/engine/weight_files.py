"""Weights to vLLM servers by a safetensors file, in shared memory or in a folder that the servers can read.

A delivery is: requests are aborted and none is begun (/pause), the workers load the file as they load a checkpoint
(/collective_rpc, in_vllm/selfteach_worker.py), the prefix cache is dropped, and requests go on (/resume). Of adapters
the factors alone are written, and vLLM loads them beside the base that it holds (/v1/load_lora_adapter).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, cast

import torch

from ..core.disk import OwnFolder
from ..core.errors import BadValue, EngineMismatch
from ..model import files, lora, peft_files
from ..model.base import Model
from .endpoints import Failed, ask_now, tell_now

SHARED_MEMORY = Path("/dev/shm")
DTYPES = {"torch.bfloat16": torch.bfloat16, "torch.float16": torch.float16}
EXTENSION = "selfteach_worker.WeightReceiver"
ADAPTER = "adapter"  # the name under which vLLM serves the base with the adapter that was delivered last
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # for which vLLM makes room
HOW = (
    "start it with VLLM_SERVER_DEV_MODE=1, PYTHONPATH=<selfteach>/engine/in_vllm and"
    f" --worker-extension-cls {EXTENSION} (docs/engines.md)"
)


def own_folder(what: str, given: Path | None) -> OwnFolder:
    """A delivery's folder: inside the one that is given, else in shared memory, where there is such."""
    return OwnFolder(f"selfteach-{what}-", given, SHARED_MEMORY if SHARED_MEMORY.is_dir() else None)


class FileDelivery:
    """Delivers weights by a file in a folder of its own.

    folder   where servers can read it; None: shared memory, for servers on this machine
    seconds  that a server may take to load it
    checked  what the last fingerprint was taken of: what the workers' layers hold, or what arrived there
    timing   seconds of the last delivery, and of the part in which the worker loaded
    """

    def __init__(self, folder: Path | None = None, seconds: float = 600.0) -> None:
        self._own = own_folder("weights", folder)
        self.folder = self._own.path
        self.seconds, self.checked, self.timing = seconds, "", dict[str, float]()
        self._file: Path | None = None
        self._fingerprints: dict[str, str] = {}

    def put(self, weights: Mapping[str, Any], version: int) -> None:
        """Write weights to a file, in place of the last one. Raises BadValue where they do not fit."""
        tensors = {n: torch.as_tensor(w).detach().contiguous().cpu() for n, w in weights.items()}
        if self._file is not None:
            self._file.unlink(missing_ok=True)
        size, free = sum(t.numel() * t.element_size() for t in tensors.values()), shutil.disk_usage(self.folder).free
        if size > free:
            raise BadValue(
                f"{self.folder}: {size >> 20} MiB of weights do not fit, {free >> 20} MiB are free; give another folder"
                " by --weights-folder"
            )
        from safetensors.torch import save_file

        self._file = self.folder / f"{version}-{os.getpid()}.safetensors"
        save_file(tensors, self._file)
        self._fingerprints = {"": files.fingerprint(tensors)} | {
            name: files.fingerprint(tensors, dtype=dtype) for name, dtype in DTYPES.items()
        }

    def deliver(self, url: str, version: int) -> str:
        """Have a server load the file; the fingerprint of what it then holds, in the precision of what was put.

        Raises Failed where it does not answer, EngineMismatch where it holds something else.
        """
        begun = time.monotonic()
        with paused(url, self.seconds):
            answers = of_workers(url, "selfteach_load", [str(self._file)], self.seconds)
        ours = self._fingerprints[""]
        for answer in answers:
            if answer["arrived"] != ours:
                raise EngineMismatch(f"{url}: {answer['arrived']} arrived, {ours} was sent; the file was changed")
            held = answer["held"]
            if held is not None and held not in (ours, self._fingerprints.get(answer["dtype"])):
                return str(held)
        self.checked = "what arrived" if any(a["held"] is None for a in answers) else "what the layers hold"
        self.timing = {
            "delivery_s": time.monotonic() - begun,
            "load_s": max(float(answer["seconds"]) for answer in answers),
        }
        return ours

    def close(self) -> None:
        """Remove the file."""
        self._own.close()


class AdapterDelivery:
    """Delivers adapters alone, in peft's files, to vLLMs that were started with `--enable-lora` on their base.

    base     the model whose tensors the servers hold, with or without its adapters
    folder, seconds, checked, timing  as those of FileDelivery
    bytes    of the last adapter
    """

    serves = ADAPTER

    def __init__(self, base: Model, folder: Path | None = None, seconds: float = 600.0) -> None:
        self._own = own_folder("adapter", folder)
        self.folder = self._own.path
        self.seconds, self.checked, self.timing, self.bytes = seconds, "", dict[str, float](), 0
        tensors = lora.base_tensors(base)
        self._shapes = {name: list(t.shape) for name, t in tensors.items()}
        self._bases = {files.fingerprint(tensors, dtype=d) for d in (None, *DTYPES.values())}
        self._adapter: Path | None = None
        self._puts = 0
        self._sent = self._merged = ""

    def put(self, weights: Mapping[str, Any], version: int) -> None:
        """Write the factors to files, in place of the last ones. Raises BadValue for what is not an adapted model."""
        if not isinstance(weights, lora.MergedTensors):
            raise BadValue(
                "engine vllm: what is to be delivered is not a base with an adapter; give --lora-delivery merged"
            )
        if self._adapter is not None:
            shutil.rmtree(self._adapter, ignore_errors=True)
        self._puts += 1
        self._adapter = self.folder / f"{version}-{self._puts}"  # another path each time, as vLLM asks
        peft_files.save(self._adapter, weights.model, "")
        self.bytes = (self._adapter / peft_files.WEIGHTS).stat().st_size
        self._sent = files.fingerprint(peft_files.named_factors(weights.model))
        self._merged = files.fingerprint(weights)

    def deliver(self, url: str, version: int) -> str:
        """Have a server load the adapter; the fingerprint of the base with it, where the server's layers hold both.

        Raises Failed where it does not answer, EngineMismatch where it holds something else.
        """
        begun = time.monotonic()
        with paused(url, self.seconds):
            body = {"lora_name": ADAPTER, "lora_path": str(self._adapter), "load_inplace": True}
            tell_now(url, "/v1/load_lora_adapter", body, self.seconds)
            loaded = time.monotonic() - begun
            answers = of_workers(url, "selfteach_adapter", [str(self._adapter), self._shapes], self.seconds)
        for answer in answers:
            if answer["arrived"] != self._sent:
                raise EngineMismatch(f"{url}: {answer['arrived']} arrived, {self._sent} was sent; the file was changed")
            if answer["wrong"]:
                raise EngineMismatch(f"{url}: its layers do not compute with the adapter ({answer['wrong']})")
            if answer["base"] is not None and answer["base"] not in self._bases:
                raise EngineMismatch(f"{url}: holds another base ({answer['base']}) than the adapter is for")
        whole = all(a["base"] is not None and a["wrong"] is not None for a in answers)
        self.checked = "the base and the adapter that the layers hold" if whole else "what arrived"
        self.timing = {"delivery_s": time.monotonic() - begun, "load_s": loaded}
        return self._merged

    def close(self) -> None:
        """Remove the files."""
        self._own.close()


def room_for(rank: int) -> int:
    """The rank for which vLLM makes room, to hold adapters of a rank. Raises BadValue for one that it cannot hold."""
    if rank > RANKS[-1]:
        raise BadValue(
            f"lora_rank: vLLM holds adapters of rank {RANKS[-1]} at most, not {rank}; give --lora-delivery merged"
        )
    return next(r for r in RANKS if r >= rank)


@contextlib.contextmanager
def paused(url: str, seconds: float) -> Generator[None]:
    """While this lasts a server has no requests; afterwards nothing of its prefix cache is left.

    Raises EngineMismatch where the cache cannot be dropped.
    """
    ask_now(url, "/pause?mode=abort", {}, seconds)
    try:
        yield
        cleared = ask_now(url, "/reset_prefix_cache", {}, seconds)
    finally:
        ask_now(url, "/resume", {}, seconds)
    if not (cleared or {}).get("success", True):
        raise EngineMismatch(f"{url}: its prefix cache, of older weights, could not be dropped")


def of_workers(url: str, method: str, args: list[Any], seconds: float) -> list[Any]:
    """What the workers of a server answer to a method of the extension. Raises EngineMismatch where they have none."""
    body = {"method": method, "args": args, "timeout": seconds}
    answers = cast("list[Any]", (ask_now(url, "/collective_rpc", body, seconds) or {}).get("results", []))
    if not answers or not all(isinstance(a, dict) for a in answers):
        raise EngineMismatch(f"{url}: its workers have no method to load weights; {HOW}")
    return answers


def takes_weights(url: str) -> bool:
    """Whether a vLLM server has the workers' part of a delivery."""
    answer: Any = None
    with contextlib.suppress(Failed, BadValue):
        answer = ask_now(url, "/collective_rpc", {"method": "selfteach_about"}, 30.0)
    results = cast("list[Any]", (answer or {}).get("results", []))
    return bool(results) and all(isinstance(r, dict) and r.get("selfteach") == 1 for r in results)
