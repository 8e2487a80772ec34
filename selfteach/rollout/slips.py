"""Lines of a solution with a slip in them, for models that learn to tell right from wrong."""

from __future__ import annotations

import re

import numpy as np


def altered(line: str, draw: np.random.Generator) -> str | None:
    """A line with its last number off by one or two, else with its last two words exchanged; None where neither can be.

    >>> altered(" 3 + 4 = 7.", np.random.default_rng(0)), altered(" swap : a b.", np.random.default_rng(0))
    (' 3 + 4 = 9.', ' swap : b a.')
    """
    if numbers := list(re.finditer(r"\d+", line)):
        last = numbers[-1]
        off = int(draw.choice([-2, -1, 1, 2]))
        value = int(last[0]) + (off if int(last[0]) + off >= 0 else -off)
        return line[: last.start()] + str(value) + line[last.end() :]
    found = re.search(r"(\w+)(\s+)(\w+)(?=\W*(?:</\w+>)?$)", line)
    if found is None or found[1] == found[3]:
        return None
    return line[: found.start()] + found[3] + found[2] + found[1] + line[found.end() :]
