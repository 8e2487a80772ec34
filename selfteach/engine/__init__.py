"""Turning contexts into tokens: the sampler, the key-value cache, the scheduler, and the engines made of them.

`BuiltinEngine` is the fast one, `CohortEngine` that of models which run through transformers, `ReferenceEngine` the plain one that
defines what is right, `ScriptedEngine` a test double.

An engine knows weights, token ids, sampling and addresses. It knows nothing of tasks, episodes, rewards, losses or methods, and
trains nothing. A sample is a function of (weights, context, sampling, address), never of what else is being sampled.
"""

from .builtin import BuiltinEngine
from .cohort import CohortEngine
from .exact import exact
from .reference import ReferenceEngine
from .scripted import ScriptedEngine

__all__ = ["BuiltinEngine", "CohortEngine", "ReferenceEngine", "ScriptedEngine", "exact"]
