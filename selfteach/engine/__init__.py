"""Inference engines: the sampler, the key-value cache, the scheduler, and the engines made of them.

`BuiltinEngine` does continuous batching, `EqualLengthEngine` serves models that run through transformers,
`ReferenceEngine` is the slow one that the others are tested against, `ScriptedEngine` is a test double.

An engine knows weights, token ids, sampling settings and RNG keys, and nothing of tasks, episodes, rewards, losses or
methods. A sample is a function of (weights, context, sampling, RNG key), never of what else is being sampled.
"""

from .batch_invariance import is_batch_invariant
from .builtin import BuiltinEngine
from .equal_length_batching import EqualLengthEngine
from .reference import ReferenceEngine
from .scripted import ScriptedEngine

__all__ = ["BuiltinEngine", "EqualLengthEngine", "ReferenceEngine", "ScriptedEngine", "is_batch_invariant"]
