"""The process behind `isolated`: reads what to score as lines of JSON, answers each with a line. It ends when its input does."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from ..core import Part, Score, from_json, registry, to_json


def main() -> None:
    """The first line names the reward and the user's files that it comes from; every other line is what one call is given."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a reward prints must not be taken for an answer
    first = json.loads(sys.stdin.readline())
    for file in first["files"]:
        registry.load_file(file)
    part: Part = from_json(first["reward"])
    answers.write("{}\n")
    for line in sys.stdin:
        answers.write(json.dumps(to_json(_score(part, from_json(json.loads(line))))) + "\n")


def _score(part: Part, given: dict[str, Any]) -> Score:
    try:
        return Score.of(part(**given))
    except Exception as error:
        return Score(None, error=f"reward {part.name} raised {type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
