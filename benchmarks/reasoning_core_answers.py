"""What Reasoning Core's own scorers say of its own answers: for each task of its roster the share that they take for
right, the seconds and characters of an item, and whether another process makes the same item of the same seed.

    python benchmarks/reasoning_core_answers.py [--items 30] [--seconds 6] [TASK ...]

Of each of the levels 0, 1, 2 and 3 `items` are made, or as many as are made in `seconds`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from selfteach.core.errors import SelfteachError
from selfteach.core.random_keys import key
from selfteach.reward.reasoning_core import made_item, names_of, new_worker

LEVELS = (0, 1, 2, 3)


def measured(name: str, items: int, seconds: float, workers: tuple[Any, Any]) -> dict[str, Any]:
    """The figures of a task."""
    first, second = workers
    made, right, failed, characters, took = 0, 0, 0, 0, 0.0
    why, same = "", list[bool]()
    for level in LEVELS:
        begun = time.monotonic()
        for i in range(items):
            if time.monotonic() - begun > seconds and i:
                break
            seed, at = key(0, "measured", name, level, i), time.monotonic()
            try:
                item = made_item(first, name, level, seed, 60.0)
            except SelfteachError as error:
                failed, why = failed + 1, str(error)[:160]
                if failed > 5 and not made:
                    return {"task": name, "made": 0, "failed": failed, "why": why}
                continue
            took += time.monotonic() - at
            made += 1
            right += item["gold"] >= 1.0 - 1e-9
            if item["gold"] < 1.0 - 1e-9:
                why = why or f"level {level}: {item['gold']:g} for {item['answer'][:60]!r}"
            characters += len(item["prompt"])
            if i == 0:
                try:
                    same.append(made_item(second, name, level, seed, 60.0)["prompt"] == item["prompt"])
                except SelfteachError:
                    same.append(False)
    figures = {"task": name, "made": made, "right": right, "failed": failed, "same": all(same)}
    return figures | {"seconds": round(took / max(made, 1), 3), "characters": characters // max(made, 1), "why": why}


def main() -> None:
    """Measure, and print a line of JSON for each task."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*")
    parser.add_argument("--items", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=6.0)
    given = parser.parse_args()
    workers = new_worker(), new_worker()
    for name in given.tasks or names_of(workers[0]):
        print(json.dumps(measured(name, given.items, given.seconds, workers)), flush=True)
    sys.exit()


if __name__ == "__main__":
    main()
