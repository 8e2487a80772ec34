"""The process of the reward `isolated`: reads calls as lines of JSON, answers each with a line, ends with its input."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from ..core import Block, Score, from_json, registry, to_json
from ..core.errors import describe


def main() -> None:
    """Serve a reward on standard input and output.

    The first line names the reward and the user's files that it comes from; every other line is the arguments of one
    call.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a reward prints must not be taken for an answer
    first = json.loads(sys.stdin.readline())
    for file in first["files"]:
        registry.load_file(file)
    reward: Block = from_json(first["reward"])
    answers.write("{}\n")
    for line in sys.stdin:
        answers.write(json.dumps(to_json(_score(reward, from_json(json.loads(line))))) + "\n")


def _score(reward: Block, arguments: dict[str, Any]) -> Score:
    try:
        return Score.of(reward(**arguments))
    except BaseException as error:  # one that exits costs its own score, not the process
        return Score(None, error=f"reward {reward.name} raised {describe(error)}")


if __name__ == "__main__":
    main()
