"""Where the time of a small run goes: GRPO with `tiny-s` on `digit_sum`, as the runs of claims are.

    python benchmarks/small_run.py --steps 40 --warm-steps 200
    python benchmarks/small_run.py --steps 20 --regime turns     # the same in a regime: here twelve turns an episode

One run in this process, on one thread: imports, the start, the warm start (never from the cache), steps of 16 prompts
with 8 responses each, and evaluations. Each part has its wall-clock time and its processor time, the second of which
other programs disturb less; of steps the median. To compare two versions, run the script in both, by turns.
"""

from __future__ import annotations

import time

BEGUN = time.perf_counter(), time.process_time()  # before the imports, which are part of a run

import argparse  # noqa: E402
import functools  # noqa: E402
import inspect  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import shutil  # noqa: E402
import statistics  # noqa: E402
import tempfile  # noqa: E402
from collections import defaultdict  # noqa: E402
from collections.abc import Callable, Mapping  # noqa: E402
from itertools import pairwise  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

Seconds = tuple[float, float]  # wall-clock, processor

STEP_PARTS = ("rollout", "compose", "learn", "deliver", "log")


def now() -> Seconds:
    """The present, on both clocks."""
    return time.perf_counter(), time.process_time()


def since(begun: Seconds) -> Seconds:
    """The time since then."""
    wall, processor = now()
    return wall - begun[0], processor - begun[1]


class Stopwatch:
    """The times of some methods: name -> seconds of each call."""

    def __init__(self) -> None:
        self.calls: dict[str, list[Seconds]] = defaultdict(list)

    def watch(self, owner: type, method: str, name: str) -> None:
        """Time a method, also an async one: while it waits nothing else of the run is done."""
        inner: Callable[..., Any] = getattr(owner, method)

        @functools.wraps(inner)
        def timed(*args: Any, **named: Any) -> Any:
            begun = now()
            try:
                return inner(*args, **named)
            finally:
                self.calls[name].append(since(begun))

        @functools.wraps(inner)
        async def timed_async(*args: Any, **named: Any) -> Any:
            begun = now()
            try:
                return await inner(*args, **named)
            finally:
                self.calls[name].append(since(begun))

        setattr(owner, method, timed_async if inspect.iscoroutinefunction(inner) else timed)


def median(times: list[Seconds]) -> Seconds:
    """The median of each clock."""
    return statistics.median(wall for wall, _ in times), statistics.median(processor for _, processor in times)


def measured(steps: int, warm_steps: int | None, regime: str | None, out: Path) -> dict[str, Seconds]:
    """Seconds by part: of the start and of evaluations in all, of steps each."""
    import torch

    from selfteach import training
    from selfteach.configuration import plan
    from selfteach.experiments.arms import regime_config
    from selfteach.loop.log import RunLog
    from selfteach.loop.run import Loop
    from selfteach.loop.session import Session
    from selfteach.methods import grpo

    torch.set_num_threads(1)
    parts = {"import": since(BEGUN)}
    clock = Stopwatch()
    for method, name in (
        ("_collect", "rollout"),
        ("_compose", "compose"),
        ("_learn", "learn"),
        ("_deliver", "deliver"),
    ):
        clock.watch(Loop, method, name)
    clock.watch(RunLog, "rollouts", "log")
    clock.watch(Loop, "advance", "step without log")
    clock.watch(Session, "measure_tasks", "evaluation")
    begun, warm_began = now(), list[Seconds]()

    def observe(event: Mapping[str, Any]) -> None:
        kind = event["event"]
        if kind == "warm_step":
            warm_began.append(now())
        elif kind == "start":
            warmed = tuple(z - a for a, z in zip(warm_began[0], warm_began[-1], strict=True))
            parts["start, without warm steps"] = tuple(t - w for t, w in zip(since(begun), warmed, strict=True))  # type: ignore[assignment]
            parts["warm step"] = median([(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(warm_began)])
            clock.calls.clear()

    settings = {"threads": 1, "steps": steps, "eval_every": max(1, steps // 2)}
    if warm_steps is None and regime is None:
        warm_steps = 200
    if warm_steps is not None:
        settings["warm_steps"] = warm_steps
    if regime is None:
        run_config = plan(grpo(groups=16, rollouts=8), task="digit_sum", model="tiny-s", settings=settings)
    else:
        run_config = regime_config(regime, "grpo", settings=settings)
    training.carry_out(run_config, out, observe)
    for name in STEP_PARTS:
        parts[name] = median(clock.calls[name])
    parts["step"] = tuple(a + b for a, b in zip(median(clock.calls["step without log"]), parts["log"], strict=True))  # type: ignore[assignment]
    parts["evaluations"] = tuple(map(sum, zip(*clock.calls["evaluation"], strict=True)))  # type: ignore[assignment]
    parts["all"] = since(BEGUN)
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--warm-steps", type=int, help="default: 200, or as many as the regime has")
    parser.add_argument("--regime", help="GRPO in this regime, with its task, model and batch (default: digit_sum)")
    parser.add_argument("--json", action="store_true")
    a = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        # A cache of its own, so that the warm start is not found; compiled kernels are.
        kernels = Path(os.environ.get("SELFTEACH_CACHE") or "~/.cache/selfteach").expanduser() / "kernels"
        if kernels.is_dir():
            shutil.copytree(kernels, Path(folder, "cache", "kernels"))
        os.environ["SELFTEACH_CACHE"] = str(Path(folder, "cache"))
        parts = measured(a.steps, a.warm_steps, a.regime, Path(folder, "run"))
    if a.json:
        print(json.dumps(parts))
        return
    print(f"{'':28}{'wall ms':>10}{'processor ms':>14}")
    for name, (wall, processor) in parts.items():
        print(f"{name:28}{wall * 1e3:10.1f}{processor * 1e3:14.1f}")


if __name__ == "__main__":
    main()
