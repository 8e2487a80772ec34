"""A process of Reasoning Core's generators and scorers: reads requests as lines of JSON, answers each with a line.

Generators keep what they have made in memory, and go on from it; some seed themselves from the system. So an item is
made in a fork of this process, in which only one was made before, the same everywhere, and such seeds are drawn from
Python's generator: it is a function of its task, level and seed.
"""

from __future__ import annotations

import json
import os
import random
import resource
import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from ..core.errors import SelfteachError, describe
from ..core.extras import optional
from .worker import die_with_parent, serve

LATE = 1_000_000  # seconds in which a generator would begin anew by itself: here the parent has the deadline
MOST_WORDS = 2048  # of a prompt
SEED, GENERATOR = random.seed, np.random.default_rng


class Words:
    """Counts words in place of tokens: what is generated must not depend on whether a tokenizer could be downloaded."""

    def encode(self, text: Any) -> list[str]:
        """The words of a text."""
        return str(text).split()


class Seeded(random.Random):
    """A generator that without a seed is seeded by Python's own, not by the system."""

    def __init__(self, x: Any = None) -> None:
        super().__init__(random.getrandbits(64) if x is None else x)


def seed_again(a: Any = None, version: int = 2) -> None:
    """`random.seed`, which without a seed goes on from where the generator is."""
    SEED(random.getrandbits(64) if a is None else a, version)


def seeded_generator(seed: Any = None) -> np.random.Generator:
    """`np.random.default_rng`, seeded likewise."""
    return GENERATOR(random.getrandbits(64) if seed is None else seed)


@lru_cache
def package() -> Any:
    """The package, which counts words and never seeds itself from the system."""
    random.seed, random.Random, np.random.default_rng = seed_again, Seeded, seeded_generator
    found = optional("reasoning_core", "reasoning-core", "task reasoning_core")
    optional("reasoning_core.template", "reasoning-core", "task reasoning_core")._load_tokenizer = Words
    return found


@lru_cache
def warmed(name: str) -> bool:
    """Load all that a task's generator needs, by making an item; whether that could be done."""
    return "broken" not in tried(make, {"make": name, "level": 0, "seed": 0})


def make_apart(request: dict[str, Any]) -> dict[str, Any]:
    """`make` in a fork of this process, which ends with it."""
    warmed(request["make"])
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            die_with_parent()
            seconds = int(request["seconds"]) + 1
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
            with os.fdopen(writing, "w", encoding="utf-8") as out:
                out.write(json.dumps(tried(make, request)))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else {"broken": "its generator ended the process"}


def make(request: dict[str, Any]) -> dict[str, Any]:
    """An item: prompt, answer, entry, and gold, the score of its reference answer."""
    name = request["make"]
    random.seed(request["seed"])
    np.random.seed(request["seed"] % 2**32)  # noqa: NPY002  the generator that the tasks draw from
    example = package().get_task(name).generate_example(level=request["level"], max_tokens=MOST_WORDS, timeout=LATE)
    metadata = {n: v for n, v in dict(example.metadata).items() if n not in ("_time", "_config") and n[:6] != "_gener"}
    entry = json.dumps({"prompt": str(example.prompt), "answer": example.answer, "metadata": metadata, "task": name})
    gold = scored({"score": name, "answer": str(example.answer), "entry": entry})
    return {"prompt": str(example.prompt), "answer": str(example.answer), "entry": entry, "gold": gold["score"]}


def scored(request: dict[str, Any]) -> dict[str, Any]:
    """The score of an answer; 0 where the scorer raises on it."""
    scorer = package().get_score_answer_fn(request["score"])
    entry = optional("easydict", "reasoning-core", "task reasoning_core").EasyDict(json.loads(request["entry"]))
    try:
        return {"score": float(scorer(request["answer"], entry))}
    except Exception as error:
        return {"score": 0.0, "why": f"the scorer raised {describe(error, 200)}"}


def names(request: dict[str, Any]) -> dict[str, Any]:
    """The names of the package's roster; of an empty request nothing, once the package is there."""
    found = package().list_tasks()
    return {"names": json.dumps(found)} if request else {}


def tried(answer: Callable[[dict[str, Any]], dict[str, Any]], request: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request; `broken` says why there is none."""
    try:
        return answer(request)
    except SelfteachError as error:
        return {"broken": str(error)}
    except Exception as error:
        return {"broken": describe(error, 200)}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request, by what it asks for."""
    return tried(make_apart if "make" in request else scored if "score" in request else names, request)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    serve(answer)
