"""Pronounceable names for what does not exist."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

ONSETS = [
    "b",
    "br",
    "d",
    "dr",
    "f",
    "g",
    "gr",
    "h",
    "j",
    "k",
    "kl",
    "l",
    "m",
    "n",
    "p",
    "pr",
    "r",
    "s",
    "st",
    "t",
    "tr",
    "v",
    "z",
]
NUCLEI = ["a", "e", "i", "o", "u"]
CODAS = ["", "", "", "n", "l", "r", "s", "m"]


def fictional_names(draw: np.random.Generator, syllables: int) -> Iterator[str]:
    """Names of so many syllables, all different, without end; whoever takes more than there are waits for ever."""
    seen = set[str]()
    while True:
        parts = [ONSETS[int(draw.integers(len(ONSETS)))] + NUCLEI[int(draw.integers(5))] for _ in range(syllables)]
        name = ("".join(parts) + CODAS[int(draw.integers(len(CODAS)))]).capitalize()
        if name not in seen:
            seen.add(name)
            yield name
