"""What it costs a run to be followed by the viewer: seconds a sampled token with a page open and without, in one run.

One run is trained in short blocks; in every second one a page asks as the browser does (what is new of the curves every
three seconds, the list of runs every nine), in the others it is stopped, as one that is not seen asks nothing. The
server is up all the time. Reported are the medians over pairs of blocks of the ratio of their seconds, by the clock and
of the training process's own processor time, which other work on the machine disturbs less, each with its quartiles;
and the server's processor time as a share of the time in which it was asked.

    PYTHONPATH=. python benchmarks/following.py --pairs 26 --seconds 4
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selfteach import methods
from selfteach.api import steps

PAGE = """
import json, sys, time, urllib.parse, urllib.request
from http.cookiejar import CookieJar
url = sys.argv[1]
ask = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
ask.open(url).read()
base = url.split("?")[0]
def get(name, **given):
    return json.loads(ask.open(base + "api/" + name + "?" + urllib.parse.urlencode(given)).read())
run = get("home")["runs"][0]["id"]
offset, mark, n = 0, "", 0
while True:
    page = get("curves", run=run, offset=offset, mark=mark)
    offset, mark = page["offset"], page["mark"]
    if n % 3 == 2:
        get("home")
    n += 1
    print(offset, flush=True)
    time.sleep(3)
"""


@contextmanager
def process(*words: str) -> Generator[tuple[subprocess.Popen[str], str]]:
    """A process with the first line that it prints; ended afterwards."""
    made = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True, encoding="utf-8")
    assert made.stdout is not None
    try:
        yield made, made.stdout.readline()
    finally:
        made.kill()
        made.wait(10)


def worked(pid: int) -> float:
    """Processor seconds of a process (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def block(run: Any, seconds: float) -> tuple[float, float]:
    """(clock, processor) seconds a sampled token, of a part of a run of about so many seconds."""
    begun, own, tokens = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - begun < seconds:
        tokens += next(run).metrics["tokens/sampled"]
    return (time.perf_counter() - begun) / tokens, (time.process_time() - own) / tokens


def summary(ratios: Sequence[float]) -> dict[str, float]:
    """Median and quartiles."""
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {"median": round(middle, 4), "low": round(low, 4), "high": round(high, 4)}


def main() -> None:
    """Measure, and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=26)
    parser.add_argument("--seconds", type=float, default=4.0, help="of a block")
    given = parser.parse_args()
    pairs: list[tuple[float, float]] = []
    asked = busy = 0.0
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "runs" / "followed"
        settings: dict[str, Any] = {"steps": 10**6, "warm_steps": 50, "threads": 1, "eval_every": 0}
        settings |= {"final_eval_tasks": 2, "final_eval_k": 0, "checkpoint_every": 10**6}
        made = steps(
            methods.grpo(groups=8, rollouts=8), model="tiny", task="chain_sum", out=out, progress=False, **settings
        )
        run = iter(made)
        for _ in range(3):
            next(run)
        view = ("-m", "selfteach.cli", "view", str(out), "--no-open", "--json")
        with process(*view) as (server, line), process("-c", PAGE, json.loads(line)["url"]) as (page, _):
            for n in range(given.pairs):
                found: dict[bool, tuple[float, float]] = {}
                for followed in (n % 2 == 0, n % 2 == 1):
                    page.send_signal(signal.SIGCONT if followed else signal.SIGSTOP)
                    begun, before = time.perf_counter(), worked(server.pid)
                    found[followed] = block(run, given.seconds)
                    if followed:
                        asked, busy = asked + time.perf_counter() - begun, busy + worked(server.pid) - before
                pairs.append((found[True][0] / found[False][0], found[True][1] / found[False][1]))
                print(f"pair {n + 1}: clock {pairs[-1][0]:.4f}, processor {pairs[-1][1]:.4f}", file=sys.stderr)
        made.close()
    clock, processor = zip(*pairs, strict=True)
    about = {"pairs": len(pairs), "clock": summary(clock), "processor": summary(processor)}
    print(json.dumps({**about, "server_share_of_a_core": round(busy / asked, 4)}))


if __name__ == "__main__":
    main()
