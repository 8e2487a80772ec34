"""A process that answers requests, one at a time, and is killed where an answer does not come in time.

And the score of an answer by another package's scorer in such a process.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core import Score
from ..core.errors import BadValue, SelfteachError

START_SECONDS = 120.0  # that the process may take for its imports


class WorkerProcess:
    """A module of selfteach in a process of its own; calls take turns. Killed where it is late, and begun anew.

    module       its name in selfteach; it reads requests as lines of JSON, of which the first is {}, and answers each
    package      what it needs, for the message where it ends
    environment  variables of its environment besides this process's
    """

    def __init__(self, module: str, package: str, environment: Mapping[str, str] | None = None) -> None:
        self.module, self.package, self.environment = module, package, dict(environment or {})
        self.process: subprocess.Popen[bytes] | None = None
        self.lock = threading.Lock()
        atexit.register(self.stop)

    def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The process's answer to a request. Raises SelfteachError where there is none in time."""
        with self.lock:
            if self.process is None or self.process.poll() is not None:
                self._start()
            return self._exchange(json.dumps(request), seconds)

    def stop(self) -> None:
        """Kill the process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            for pipe in (self.process.stdin, self.process.stdout):
                if pipe is not None:
                    pipe.close()
            self.process = None

    def _start(self) -> None:
        path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, sys.path)])
        self.process = subprocess.Popen(
            [sys.executable, "-m", f"selfteach.{self.module}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **self.environment, "PYTHONPATH": path},
            start_new_session=True,
        )
        self._exchange("{}", START_SECONDS)

    def _exchange(self, line: str, seconds: float) -> dict[str, Any]:
        assert self.process is not None and self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()
            if not select.select([self.process.stdout], [], [], seconds)[0]:
                self.stop()
                raise SelfteachError(f"no answer within {seconds:g} s; the process was killed")
            answer = self.process.stdout.readline()
        except OSError as error:
            self.stop()
            raise SelfteachError(f"the process of {self.package} ended ({error})") from None
        if not answer:
            self.stop()
            raise SelfteachError(f"the process ended without an answer; is {self.package} installed?")
        return json.loads(answer)


def score_apart(
    worker: WorkerProcess, name: str, text: str, harmless: bool, request: dict[str, Any], partial: bool
) -> Score:
    """The score of an answer by the scorer of a set, in its process: 1 or 0 unless partial scores are asked for.

    name      of the set, for messages
    text      the answer, stripped
    harmless  whether the scorer may be given it; if not, it is wrong
    request   that the process understands, with the `seconds` in which it is to answer it
    partial   the scorer's own score where it is below 1; else 0 there

    An answer on which the scorer raises is wrong; one that takes longer has no score. Part: scorer, its own score.
    Raises BadValue where the scorer cannot be had at all.
    """
    if not text:
        return Score(0.0, {"scorer": 0.0}, "no answer")
    if not harmless:
        return Score(0.0, {"scorer": 0.0}, f"{name}: what is no plain value is not evaluated")
    try:
        got = worker.ask(request, request["seconds"])
    except (SelfteachError, OSError) as error:
        return Score(None, error=f"{worker.package} {name}: {error}")
    if "broken" in got:
        raise BadValue(f"{worker.package} {name}: {got['broken']}")
    score = float(got["score"])
    right = score >= 1.0 - 1e-9
    return Score(score if partial and not right else float(right), {"scorer": score}, str(got.get("why", "")))
