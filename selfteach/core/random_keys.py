"""RNG keys: every random draw is a function of its key, never of what was drawn before it.

A key is a 64-bit hash of words (seed, purpose, step, task, sample, turn ...). The uniforms of a key are numbered. Array
arithmetic throughout: 65,536 uniforms cost about a millisecond, and no generator object exists per draw.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)


def mix(x: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64 (Steele, Lea & Flood 2014): u64[...] -> u64[...], a bijection that scatters every
    bit.
    """
    with np.errstate(over="ignore"):
        return _mix(np.asarray(x, np.uint64))


def _mix(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint64(30))) * _M1
    x = (x ^ (x >> np.uint64(27))) * _M2
    return x ^ (x >> np.uint64(31))


def key(*words: object) -> int:
    """The 64-bit RNG key of some words, such as `key(seed, "sample", step, request, episode, turn)`.

    Stable across processes.
    """
    text = "\x1f".join(f"{type(w).__name__[0]}:{w}" for w in words)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def uniform(keys: np.ndarray | int, count: np.ndarray | int) -> np.ndarray:
    """Uniforms in [0, 1) with 53 bits: the `count`-th draw of each key. Broadcasts; f64."""
    k = np.asarray(keys, np.uint64)
    c = np.asarray(count, np.uint64)
    with np.errstate(over="ignore"):
        bits = _mix(k + (c + np.uint64(1)) * _GOLDEN)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def uniform_at(key: int, count: int) -> float:
    """`uniform(key, count)` of one key, as a number: in Python's integers, since NumPy's calls cost more than the
    arithmetic of one draw.
    """
    x = (key + (count + 1) * int(_GOLDEN)) % 2**64
    x = (x ^ (x >> 30)) * int(_M1) % 2**64
    x = (x ^ (x >> 27)) * int(_M2) % 2**64
    return ((x ^ (x >> 31)) >> 11) * 2.0**-53


def skipped(key: int, count: int) -> int:
    """The key whose draws are another's after the first `count`: uniform(skipped(k, c), n) == uniform(k, c + n)."""
    return (key + count * int(_GOLDEN)) % 2**64


class _PhiloxKey(ISeedSequence):
    """A key as the seed sequence of Philox: Philox(key=...) makes the same stream, but first asks the system for
    entropy that it then ignores, which takes several times as long.
    """

    def __init__(self, key: int) -> None:
        self.key = key

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray:
        """The two words of a Philox key."""
        assert n_words == 2, n_words
        return np.array([self.key, 0], dtype)


def generator(*words: object) -> np.random.Generator:
    """A NumPy generator at the RNG key of some words, for more than uniforms: a permutation, a choice."""
    return np.random.Generator(np.random.Philox(_PhiloxKey(key(*words))))  # type: ignore[arg-type]
