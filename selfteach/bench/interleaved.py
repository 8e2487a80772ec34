"""Systems measured in turns: one process each, all idle but one; medians over rounds, ratios within a round."""

from __future__ import annotations

import contextlib
import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TIMEOUT = 1800  # seconds that a system may take for one response


@dataclass(frozen=True)
class System:
    """A library in one variant, to be measured.

    `target` is a module of `own/` or a file of `peers/`, run by the interpreter `python`; `extra` is added to its
    workload; `install` says how to get the library.
    """

    name: str
    variant: str
    target: str
    install: str = ""
    python: str = sys.executable
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def title(self) -> str:
        """NAME or NAME:VARIANT."""
        return f"{self.name}:{self.variant}" if self.variant else self.name


@dataclass
class SystemResult:
    """The figures of a system in each counted round, or why there are none: `missing` packages, or an `error`."""

    system: System
    info: dict[str, Any] = field(default_factory=dict)
    rounds: list[dict[str, Any]] = field(default_factory=list)
    missing: str | None = None
    error: str | None = None


class Process:
    """A worker process that answers one line of JSON at a time.

    Its standard error is kept: the last line goes into the error message if it dies.
    """

    def __init__(self, system: System, threads: int) -> None:
        ours = not system.target.endswith(".py")
        env = {
            "OMP_NUM_THREADS": str(threads),
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        if ours:
            root = str(HERE.parent.parent)
            env["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        self.errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115
        self.inner = subprocess.Popen(
            [system.python, str(HERE / "worker.py"), system.target],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            encoding="utf-8",
            env={**os.environ, **env},
        )

    def request(self, seconds: float = TIMEOUT, **message: Any) -> dict[str, Any]:
        """The response to one message; {"error": ...} where the process died or does not answer in `seconds`."""
        assert self.inner.stdin is not None and self.inner.stdout is not None
        try:
            self.inner.stdin.write(json.dumps(message) + "\n")
            self.inner.stdin.flush()
        except (BrokenPipeError, ValueError):
            return {"error": self._exit_message()}
        if not select.select([self.inner.stdout], [], [], seconds)[0]:
            self.stop()
            return {"error": f"no answer in {seconds:.0f} s"}
        response = self.inner.stdout.readline()
        return json.loads(response) if response else {"error": self._exit_message()}

    def _exit_message(self) -> str:
        code = self.inner.wait()
        self.errors.seek(0)
        lines = [w for w in self.errors.read().splitlines() if w.strip()]
        return f"its process ended ({code})" + (f": {lines[-1].strip()[:200]}" if lines else "")

    def stop(self) -> None:
        """End the process: by the end of its input, or, after 5 s, by force."""
        for pipe in (self.inner.stdin, self.inner.stdout):
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()
        try:
            self.inner.wait(5)
        except subprocess.TimeoutExpired:
            self.inner.kill()
            self.inner.wait()
        self.errors.close()


def run_interleaved(
    systems: Sequence[System],
    workload: Mapping[str, Any],
    inputs: Callable[[int], Mapping[str, Any]],
    repeats: int,
    threads: int,
    progress: Callable[[str], None] = lambda text: None,
) -> list[SystemResult]:
    """Run a workload on every system, `repeats` times after a warm-up round; the order rotates from round to round.

    All get `workload` before the first round and `inputs(round)` in each. A system that is missing or fails stays in
    the list with the reason, and the others go on.
    """
    out = [SystemResult(s) for s in systems]
    processes: dict[int, Process] = {}
    try:
        for n, result in enumerate(out):
            progress(f"{result.system.title}: starting")
            try:
                processes[n] = Process(result.system, threads)
            except OSError as error:
                result.error = f"{result.system.python}: cannot be run ({error.strerror})"
                continue
            _prepare(
                result,
                processes[n].request(
                    op="prepare",
                    workload={**workload, **result.system.extra, "variant": result.system.variant, "threads": threads},
                ),
            )
        for number in range(repeats + 1):
            start = number % max(1, len(out))
            for n in [*range(start, len(out)), *range(start)]:
                if n not in processes or out[n].missing or out[n].error:
                    continue
                if number % max(1, repeats // 20) == 0:
                    progress(f"round {number} of {repeats}: {out[n].system.title}")
                figures = processes[n].request(op="run", inputs=inputs(number))
                if "error" in figures:
                    out[n].error, out[n].rounds = figures["error"], []
                elif number:
                    out[n].rounds.append(figures)
    finally:
        for process in processes.values():
            process.stop()
    return out


def _prepare(result: SystemResult, response: Mapping[str, Any]) -> None:
    result.info = response.get("info", {})
    result.missing, result.error = response.get("missing"), response.get("error")


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and range."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def rates(result: SystemResult) -> list[float]:
    """Tokens per second of each round."""
    return [r["tokens"] / r["seconds"] for r in result.rounds]


def best(results: Sequence[SystemResult], name: str = "selfteach") -> SystemResult | None:
    """The variant of a system with the highest median rate; None where it has no rounds."""
    ran = [s for s in results if s.system.name == name and s.rounds]
    return max(ran, key=lambda s: statistics.median(rates(s)), default=None)


def summaries(
    results: Sequence[SystemResult], limits: Mapping[str, Mapping[str, Any]] | None = None
) -> list[dict[str, Any]]:
    """The figures of each system: its rate, the speedup of selfteach's fastest variant over it, its share of the limit.

    A speedup is a ratio of rates within a round; over 1, selfteach is faster.
    """
    fastest = best(results)
    out: list[dict[str, Any]] = []
    for s in results:
        row: dict[str, Any] = {
            "name": s.system.name,
            "variant": s.system.variant,
            **({"info": s.info} if s.info else {}),
        }
        if s.missing or s.error:
            row |= {"missing": s.missing, "install": s.system.install} if s.missing else {"error": s.error}
        elif s.rounds:
            row |= {"tokens_per_second": spread(rates(s)), "seconds": spread([r["seconds"] for r in s.rounds])}
            if fastest is not None:
                row["speedup"] = spread([a / b for a, b in zip(rates(fastest), rates(s), strict=True)])
            limit = (limits or {}).get(s.info.get("dtype", ""))
            if limit:
                row["share_of_limit"] = row["tokens_per_second"]["median"] / limit["tokens_per_second"]
            row["resident_bytes"] = max(r["rss"] for r in s.rounds)
            phases = [k for k in s.rounds[0] if k.startswith("seconds/")]
            row |= {k: statistics.median(r[k] for r in s.rounds) for k in phases}
        out.append(row)
    return out
