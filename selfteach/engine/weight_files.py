"""Weights to vLLM servers by a safetensors file, in shared memory or in a folder that the servers can read.

A delivery is: requests are aborted and none is begun (/pause), the workers load the file as they load a checkpoint
(/collective_rpc, in_vllm/selfteach_worker.py), the prefix cache is dropped, and requests go on (/resume).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch

from ..core.errors import BadValue, EngineMismatch
from ..model import files
from .endpoints import Failed, ask_now

SHARED_MEMORY = Path("/dev/shm")
DTYPES = {"torch.bfloat16": torch.bfloat16, "torch.float16": torch.float16}
EXTENSION = "selfteach_worker.WeightReceiver"
HOW = (
    "start it with VLLM_SERVER_DEV_MODE=1, PYTHONPATH=<selfteach>/engine/in_vllm and"
    f" --worker-extension-cls {EXTENSION} (docs/engines.md)"
)


class FileDelivery:
    """Delivers weights by a file in a folder of its own.

    folder   where servers can read it; None: shared memory, for servers on this machine
    seconds  that a server may take to load it
    checked  what the last fingerprint was taken of: what the workers' layers hold, or what arrived there
    timing   seconds of the last delivery, and of the part in which the worker loaded
    """

    def __init__(self, folder: Path | None = None, seconds: float = 600.0) -> None:
        parent = folder or (SHARED_MEMORY if SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir()))
        self.folder = Path(tempfile.mkdtemp(prefix="selfteach-weights-", dir=parent))
        self.seconds, self.checked, self.timing = seconds, "", dict[str, float]()
        self._file: Path | None = None
        self._fingerprints: dict[str, str] = {}
        self._end = weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)

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
        ask_now(url, "/pause?mode=abort", {}, self.seconds)
        try:
            body = {"method": "selfteach_load", "args": [str(self._file)], "timeout": self.seconds}
            answers = cast("list[Any]", (ask_now(url, "/collective_rpc", body, self.seconds) or {}).get("results", []))
            cleared = ask_now(url, "/reset_prefix_cache", {}, self.seconds)
        finally:
            ask_now(url, "/resume", {}, self.seconds)
        if not answers or not all(isinstance(a, dict) for a in answers):
            raise EngineMismatch(f"{url}: its workers have no method to load weights; {HOW}")
        if not (cleared or {}).get("success", True):
            raise EngineMismatch(f"{url}: its prefix cache, of older weights, could not be dropped")
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
        self._end()


def takes_weights(url: str) -> bool:
    """Whether a vLLM server has the workers' part of a delivery."""
    answer: Any = None
    with contextlib.suppress(Failed, BadValue):
        answer = ask_now(url, "/collective_rpc", {"method": "selfteach_about"}, 30.0)
    results = cast("list[Any]", (answer or {}).get("results", []))
    return bool(results) and all(isinstance(r, dict) and r.get("selfteach") == 1 for r in results)
