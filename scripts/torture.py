"""Runs that are killed, whose disks are full, whose files are broken and whose code goes wrong; and any command line.

    make torture                                                    all of it
    .venv/bin/python scripts/torture.py --only kills --kills 50     a part

Prints what happens as it happens, and a table of counts and time at the end. Exits 1 where anything fell. The tests
take a sample of each (tests/loop/test_crashes.py, test_full_disk.py, test_fault_injection.py,
tests/commands/test_command_lines.py).
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
KILLS = {"run": 200, "log": 40, "cache": 20}  # at changes of files below it
DISKS = {"run": 60, "log": 30, "cache": 20}  # places at which it is full
FLIPS = 12  # in each file of a run
SUITES = {  # what is not of disks: tests, in whole
    "faults": ("tests/loop/test_fault_injection.py", "places x faults"),
    "command lines": ("tests/commands/test_command_lines.py", "commands, 3,000 lines each, and by processes"),
}


class Tally:
    """What was done and what fell, by part."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, str, float]] = []
        self.fell = 0

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[collections.Counter[str]]:
        """Count the outcomes of a part; an assertion that does not hold ends it, and is one that fell."""
        found, started = collections.Counter[str](), time.monotonic()
        print(f"-- {name}", flush=True)
        try:
            yield found
        except Exception:
            found["FELL"] += 1
            traceback.print_exc()
        self.fell += found["FELL"]
        counts = ", ".join(f"{n} {what}" for what, n in sorted(found.items()))
        self.rows.append((name, counts, "" if not found["FELL"] else "FELL", time.monotonic() - started))

    def show(self) -> None:
        """Print the table."""
        wide = [max(len(row[i]) for row in self.rows) for i in range(2)]
        print()
        for name, counts, fell, seconds in self.rows:
            print(f"{name:<{wide[0]}}  {counts:<{wide[1]}}  {seconds:6.0f} s  {fell}".rstrip())


def main() -> int:
    """Do the parts that are asked for; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=["kills", "disks", "flips", *SUITES], help="these parts alone")
    parser.add_argument("--kills", type=int, default=KILLS["run"], help="of a run (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    wanted, tally = set(asked.only or ["kills", "disks", "flips", *SUITES]), Tally()
    with tempfile.TemporaryDirectory() as home:
        os.environ["SELFTEACH_CACHE"] = str(Path(home) / "cache")
        os.environ["OMP_NUM_THREADS"] = "1"
        Path(home, "cache", "kernels").mkdir(parents=True)
        if wanted & {"kills", "disks", "flips"}:
            disks(Path(home), wanted, asked.kills, asked.seed, tally)
        for name in SUITES:
            if name in wanted:
                suite(name, tally)
    tally.show()
    return min(tally.fell, 1)


def disks(home: Path, wanted: set[str], kills: int, seed: int, tally: Tally) -> None:
    """Kills, full disks and flipped bits, of a run of three steps."""
    import torch
    from support import torture
    from support.models import mini
    from support.runs import BANDIT, run_config_of

    from selfteach import training
    from selfteach.core import registry
    from selfteach.model import files
    from selfteach.model.tokenizer import train_tokenizer

    torch.set_num_threads(1)
    registry.load_file(BANDIT)
    (home / "mini").mkdir()
    files.save(home / "mini", mini(264), train_tokenizer(["ab"], (), 257))
    config = run_config_of(home / "mini", steps=3)
    for which, count in {**KILLS, "run": kills}.items() if "kills" in wanted else ():
        with tally.part(f"kills: {which}") as found:
            run_config = torture.warm_run() if which == "cache" else config
            for run in torture.kills(run_config, which, home / f"kills-{which}", count, seed):
                if "total" in run:
                    print(f"   {run['total']} changes of files in a run of {run['run_seconds']:.2f} s", flush=True)
                    continue
                found["kills"] += len(run["kills"])
                found["runs seen through to the same bits"] += 1
                found["FELL"] += bool(run["left"])
                left = f", but {', '.join(run['left'])} is left behind" if run["left"] else ""
                print(f"   at {run['kills']}: the same bits{left} ({run['seconds']:.1f} s)", flush=True)
    for which, count in DISKS.items() if "disks" in wanted else ():
        with tally.part(f"full disks: {which}") as found:
            run_config = torture.warm_run() if which == "cache" else config
            for place in torture.full_disks(run_config, which, home / f"disks-{which}", count):
                if "total" not in place:
                    line = place["error"] or "nothing"
                    found["one line, then the same bits"] += "the disk is full" in line and "\n" not in line
                    found["FELL"] += "the disk is full" not in line or "\n" in line
                    print(f"   after {place['at']} bytes: {line}", flush=True)
    if "flips" in wanted:
        with tally.part("flipped bits") as found:
            training.carry_out(config, home / "undisturbed")
            torture.cut_run(config, home / "cut", 2)
            for name in torture.files_of(home / "cut"):
                outcomes = collections.Counter(
                    torture.flipped(home / "cut", home / "undisturbed", name, random.Random(f"{name} {n} {seed}"), home)
                    for n in range(FLIPS)
                )
                found.update(outcomes)
                print(f"   {name}: {dict(outcomes)}", flush=True)


def suite(name: str, tally: Tally) -> None:
    """A test file in whole, in a process of its own."""
    file, what = SUITES[name]
    with tally.part(name) as found:
        command = [sys.executable, "-m", "pytest", "-q", "-s", "--tb=short", file]
        env = {**os.environ, "TORTURE": "1"}
        env.pop("SELFTEACH_CACHE")
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, encoding="utf-8")
        assert process.stdout is not None
        lines = collections.deque[str](maxlen=1)
        for line in process.stdout:
            print("   " + line, end="", flush=True)
            if line.startswith('{"command"'):
                found["command lines"] += json.loads(line)["lines"]
            lines.append(line)
        for piece in lines[0].split(" in ")[0].split(", ") if lines else ():
            number, _, kind = piece.strip().partition(" ")
            if number.isdigit():
                found[f"{what} {kind}" if kind == "passed" else kind] += int(number)
        found["FELL"] += process.wait() != 0


if __name__ == "__main__":
    sys.exit(main())
