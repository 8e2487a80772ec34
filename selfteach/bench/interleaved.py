"""Contestants in turns: one process each, all idle but the one whose turn it is; medians over rounds, ratios within a
round.
"""

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
SECONDS = 1800  # the longest that a contestant may take for one answer


@dataclass(frozen=True)
class Contestant:
    """Who takes part: `target` is a module of `own/` or a file of `peers/`, run by the interpreter `python`; `more` is
    what its work has besides.
    """

    name: str
    variant: str
    target: str
    install: str = ""
    python: str = sys.executable
    more: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def title(self) -> str:
        return f"{self.name}:{self.variant}" if self.variant else self.name


@dataclass
class Measured:
    """What came of an entry: figures of every round that counts, or why there are none."""

    entry: Contestant
    about: dict[str, Any] = field(default_factory=dict)
    rounds: list[dict[str, Any]] = field(default_factory=list)
    missing: str | None = None
    error: str | None = None


class Process:
    """A worker process, asked a line at a time.

    What it says on standard error is kept for the line that tells of its failure.
    """

    def __init__(self, entry: Contestant, threads: int):
        own = not entry.target.endswith(".py")
        more = {
            "OMP_NUM_THREADS": str(threads),
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        if own:
            root = str(HERE.parent.parent)
            more["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.inner = subprocess.Popen(
            [entry.python, str(HERE / "worker.py"), entry.target],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env={**os.environ, **more},
        )

    def ask(self, seconds: float = SECONDS, **asked: Any) -> dict[str, Any]:
        """The answer to one line; {"error": ...} where the process died or does not answer in time."""
        assert self.inner.stdin is not None and self.inner.stdout is not None
        try:
            self.inner.stdin.write(json.dumps(asked) + "\n")
            self.inner.stdin.flush()
        except (BrokenPipeError, ValueError):
            return {"error": self._death()}
        if not select.select([self.inner.stdout], [], [], seconds)[0]:
            self.stop()
            return {"error": f"no answer in {seconds:.0f} s"}
        answer = self.inner.stdout.readline()
        return json.loads(answer) if answer else {"error": self._death()}

    def _death(self) -> str:
        code = self.inner.wait()
        self.errors.seek(0)
        said = [w for w in self.errors.read().splitlines() if w.strip()]
        return f"its process ended ({code})" + (f": {said[-1].strip()[:200]}" if said else "")

    def stop(self) -> None:
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
    entries: Sequence[Contestant],
    work: Mapping[str, Any],
    given: Callable[[int], Mapping[str, Any]],
    repeats: int,
    threads: int,
    progress: Callable[[str], None] = lambda text: None,
) -> list[Measured]:
    """`repeats` rounds after one that warms up: everybody once a round, who begins changes. `given(round)` is what all
    are given in it.

    One that is missing or fails stays in the list with the reason, and the others go on.
    """
    out = [Measured(e) for e in entries]
    processes: dict[int, Process] = {}
    try:
        for n, measured in enumerate(out):
            progress(f"{measured.entry.title}: starting")
            try:
                processes[n] = Process(measured.entry, threads)
            except OSError as error:
                measured.error = f"{measured.entry.python}: cannot be run ({error.strerror})"
                continue
            _prepare(
                measured,
                processes[n].ask(
                    do="prepare",
                    work={**work, **measured.entry.more, "variant": measured.entry.variant, "threads": threads},
                ),
            )
        for number in range(repeats + 1):
            start = number % max(1, len(out))
            for n in [*range(start, len(out)), *range(start)]:
                if n not in processes or out[n].missing or out[n].error:
                    continue
                if number % max(1, repeats // 20) == 0:
                    progress(f"round {number} of {repeats}: {out[n].entry.title}")
                found = processes[n].ask(do="run", given=given(number))
                if "error" in found:
                    out[n].error, out[n].rounds = found["error"], []
                elif number:
                    out[n].rounds.append(found)
    finally:
        for process in processes.values():
            process.stop()
    return out


def _prepare(measured: Measured, answer: Mapping[str, Any]) -> None:
    measured.about = answer.get("about", {})
    measured.missing, measured.error = answer.get("missing"), answer.get("error")


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and range."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def rates(measured: Measured) -> list[float]:
    """Tokens per second of each round."""
    return [r["tokens"] / r["seconds"] for r in measured.rounds]


def best(results: Sequence[Measured], name: str = "selfteach") -> Measured | None:
    """The variant of a contestant with the highest median rate; None where it has no rounds."""
    ran = [s for s in results if s.entry.name == name and s.rounds]
    return max(ran, key=lambda s: statistics.median(rates(s)), default=None)


def summaries(
    results: Sequence[Measured], limits: Mapping[str, Mapping[str, Any]] | None = None
) -> list[dict[str, Any]]:
    """A line of figures for each contestant: its rate, our best variant's rate over it round by round, and its share of
    the limit.
    """
    ours = best(results)
    out: list[dict[str, Any]] = []
    for s in results:
        row: dict[str, Any] = {
            "name": s.entry.name,
            "variant": s.entry.variant,
            **({"about": s.about} if s.about else {}),
        }
        if s.missing or s.error:
            row |= {"missing": s.missing, "install": s.entry.install} if s.missing else {"error": s.error}
        elif s.rounds:
            row |= {"tokens_per_second": spread(rates(s)), "seconds": spread([r["seconds"] for r in s.rounds])}
            if ours is not None:
                row["ours_over_it"] = spread([a / b for a, b in zip(rates(ours), rates(s), strict=True)])
            limit = (limits or {}).get(s.about.get("dtype", ""))
            if limit:
                row["share_of_limit"] = row["tokens_per_second"]["median"] / limit["tokens_per_second"]
            row["resident_bytes"] = max(r["rss"] for r in s.rounds)
            parts = [k for k in s.rounds[0] if k.startswith("seconds/")]
            row |= {k: statistics.median(r[k] for r in s.rounds) for k in parts}
        out.append(row)
    return out
