"""The process of reasoning-gym's scorers: reads requests as lines of JSON and answers each with a line."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
from functools import lru_cache
from typing import Any

from ..core.errors import describe
from ..core.extras import optional
from .worker import die_with_parent, watchdog

LONGEST = 300.0  # seconds of a request that names no deadline
MEMORY = 8 << 30  # bytes of address space that a scorer may take


@lru_cache(maxsize=32)
def dataset(name: str, options: str) -> Any:
    """A set of reasoning-gym with its options, given as JSON."""
    return optional("reasoning_gym.factory", "reasoning", "task reasoning_gym").create_dataset(
        name, **json.loads(options)
    )


@lru_cache(maxsize=4096)
def entry(name: str, options: str, index: int) -> Any:
    """An item of a set, as its scorer takes it."""
    return dataset(name, options)[index]


def score(request: dict[str, Any]) -> dict[str, Any]:
    """The score of an answer; 0 where the scorer raises on it, `broken` where the item itself cannot be made."""
    name, options = request["set"], json.dumps(request["options"], sort_keys=True)
    try:
        item = entry(name, options, request["index"])
    except Exception as error:
        return {"broken": describe(error)}
    try:
        return {"score": float(dataset(name, options).score_answer(answer=request["answer"], entry=item))}
    except Exception as error:
        return {"score": 0.0, "why": f"the scorer raised {describe(error, 200)}"}


def main() -> None:
    """Serve scorers on standard input and output."""
    die_with_parent()
    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)  # what a scorer prints must not be taken for an answer
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for line in sys.stdin:
        request = json.loads(line)
        if not request:
            optional("reasoning_gym.factory", "reasoning", "task reasoning_gym")
        with watchdog(request.get("seconds", LONGEST)):
            answers.write(json.dumps(score(request) if request else {}) + "\n")


if __name__ == "__main__":
    main()
