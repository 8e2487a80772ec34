"""A process of the reward `isolated`: reads calls as lines of JSON, answers each with a line, ends with its input.

It outlives neither its parent nor a call's deadline, whatever the reward does. Code in C may hold the interpreter for
ever (a runaway regular expression), so nothing that guards it is Python: on Linux the system kills it when its parent
dies, and everywhere a watchdog in C (`faulthandler`) ends it a moment after the deadline at which its parent would.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib
import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Generator
from typing import Any, TextIO

PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>
LONGEST = 300.0  # seconds of a request that names no deadline
MEMORY = 8 << 30  # bytes of address space of what answers requests
GRACE = 3.0  # seconds after a deadline in which the parent, if it is there, kills first


def main() -> None:
    """Serve a reward on standard input and output.

    The first line names the reward, the modules and the user's files that it comes from; every other line is the
    arguments of one call, the modules of their blocks, and the deadline.
    """
    die_with_parent()
    with watchdog(60.0):
        first = json.loads(sys.stdin.readline() or "null")
    if first is None or os.getppid() != first["parent"]:
        return  # it died before this process could ask to be told
    answers = answers_alone()
    with watchdog(first["seconds"]):
        from ..core import from_json, registry, to_json

        for module in first["modules"]:
            importlib.import_module(module)
        for file in first["files"]:
            registry.load_file(file)
        reward = from_json(first["reward"])

    def answer(call: dict[str, Any]) -> Any:
        for module in call["modules"]:
            importlib.import_module(module)
        return to_json(_score(reward, from_json(call["arguments"])))

    answers.write("{}\n")
    answer_each(answers, answer)


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer the requests of a `WorkerProcess` on standard input and output, each within its `seconds`.

    What is answered with has 8 GiB of address space, and what it prints goes to standard error.
    """
    die_with_parent()
    answers = answers_alone()
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    answer_each(answers, answer)


def answers_alone() -> TextIO:
    """Standard output, of which only answers are written: what is printed goes to standard error from now on."""
    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    return answers


def answer_each(answers: TextIO, answer: Callable[[dict[str, Any]], Any]) -> None:
    """Answer each request of standard input, a line of JSON, with another, within its `seconds`."""
    for line in sys.stdin:
        request = json.loads(line)
        with watchdog(request.get("seconds", LONGEST)):
            answered = json.dumps(answer(request))
        answers.write(answered + "\n")


def die_with_parent() -> None:
    """Let Linux kill this process when the thread that started it ends; elsewhere `watchdog` alone does."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@contextlib.contextmanager
def watchdog(seconds: float) -> Generator[None]:
    """End the process, without Python's help, where what is inside takes much longer than `seconds`."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        faulthandler.dump_traceback_later(seconds + GRACE, exit=True, file=nowhere)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()


def _score(reward: Any, arguments: dict[str, Any]) -> Any:
    from ..core import Score
    from ..core.errors import describe

    try:
        return Score.of(reward(**arguments))
    except BaseException as error:  # one that exits costs its own score, not the process
        return Score(None, error=f"reward {reward.name} raised {describe(error)}")


if __name__ == "__main__":
    main()
