"""In a process of its own, with disk_faults.c preloaded: runs killed at the n-th change of a file, and resumed.

Arguments: the library, a RunConfig in JSON, a folder to work in, the number of kills, "run", "log" or "cache", a seed.
Each run is a fork of this process, which has imported everything and trains nothing itself. The first are killed once,
evenly over the whole run; then some are killed again and again as they resume. Prints a line of JSON per run that was
seen through: {"kills": [n, ...], "seconds"}; at the end {"total": changes of an undisturbed run, "run_seconds"}.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from selfteach import api
from selfteach.configuration import RunConfig
from selfteach.core import cache, registry  # noqa: F401  (what a run imports is imported once, here)
from selfteach.core.random_keys import key, uniform
from selfteach.loop.log import Rollouts
from support.disk_faults import functions
from support.runs import same_run

AGAIN = 8  # kills of one run


def main(library: str, config: str, home: Path, kills: int, which: str, seed: int) -> None:
    """Run undisturbed and count the changes; then kill at each of some of them, and see the run through."""
    torch.set_num_threads(1)
    _, kill_at = functions(library)
    run_config = RunConfig.from_json(json.loads(config), trust=True)
    out, store = home / "run", home / "cache"
    watched = {"run": out, "log": out / "log", "cache": store / "warm"}[which]
    os.environ["SELFTEACH_CACHE"] = str(store)

    def go_on() -> None:
        if (out / "config.json").exists():
            run = api.resume(out)
        else:
            run = api.train(run_config, out)
        assert run.done

    def attempt(at: int) -> bool:
        """Whether a process that is killed at the change `at` (0: never) comes to the end."""

        def work() -> None:
            kill_at(str(watched).encode(), at)
            go_on()
            changes.write_text(str(kill_at(b"", 0)))

        status = in_fork(work)
        assert status in (0, -signal.SIGKILL), f"killed at {at}: ended with {status}"
        return status == 0

    changes = home / "changes"
    go_on()  # in this process, so that its forks have imported, loaded and compiled everything
    shutil.rmtree(out)
    shutil.rmtree(store / "warm", ignore_errors=True)
    started = time.monotonic()
    attempt(0)
    run_seconds, total = time.monotonic() - started, int(changes.read_text())
    shutil.move(out, home / "undisturbed")
    done = 0
    while done < kills:
        started, killed = time.monotonic(), list[int]()
        shutil.rmtree(store / "warm", ignore_errors=True)
        often = done >= kills // 2  # the second half: killed again and again
        at = 1 + total * done * 2 // kills if not often else draw(total, seed, done)
        while not attempt(at):
            killed.append(at)
            at = (
                draw(total, seed, done, len(killed))
                if often and len(killed) < AGAIN and done + len(killed) < kills
                else 0
            )
        done += max(1, len(killed))
        same_run(home / "undisturbed", out)
        whole_log(out)
        left = [p.name for p in (out / "checkpoints").iterdir() if p.name.startswith(".")]
        left += [p.name for p in out.iterdir() if p.name.startswith(".") and p.name != ".lock"]
        shutil.rmtree(out)
        print(json.dumps({"kills": killed, "left": left, "seconds": time.monotonic() - started}), flush=True)
    print(json.dumps({"total": total, "run_seconds": run_seconds}), flush=True)


def draw(most: int, *words: object) -> int:
    """A number from 1 to `most`."""
    return 1 + int(most * float(uniform(key("kills", *words), 0)))


def in_fork(work: Callable[[], None]) -> int:
    """Do a work in a fork of this process; its exit status, or minus the signal that killed it."""
    child = os.fork()
    if not child:
        status = 1
        try:
            work()
            status = 0
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def whole_log(out: Path) -> None:
    """Every line of the events is JSON, and every step's rollouts can be read, once."""
    lines = (out / "log" / "events.jsonl").read_text().splitlines()
    steps = [e["step"] for e in map(json.loads, lines) if e["event"] == "step"]
    files = sorted((out / "log" / "rollouts").iterdir())
    assert [f.name for f in files] == [f"{n:06d}.npz" for n in steps], [f.name for f in files]
    for file in files:
        Rollouts(file)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]).read_text(), Path(sys.argv[3]), int(sys.argv[4]), sys.argv[5], int(sys.argv[6]))
