"""The process of reasoning-gym's scorers: reads requests as lines of JSON and answers each with a line."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from ..core.errors import describe
from ..core.extras import optional
from .worker import serve


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


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request; to an empty one nothing, once the package is there."""
    if request:
        return score(request)
    optional("reasoning_gym.factory", "reasoning", "task reasoning_gym")
    return {}


if __name__ == "__main__":
    serve(answer)
