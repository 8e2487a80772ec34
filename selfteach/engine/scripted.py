"""A test double: an engine that says what it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ..core.protocols import Completion
from ..core.task import Sampling
from ..model import files
from ..model.tokenizer import Tokenizer


class ScriptedEngine:
    """Says `replies` in turn (again from the first after the last), or what a function (context text, address) -> text gives.

    A reply is tokenised and ends with the end token, unless a stop string, `max_tokens` or `length` ends it first. Every log-probability
    is `logp`. `calls` keeps (member, context text, sampling, address) of each request; `versions` what was loaded.
    """

    def __init__(self, replies: Sequence[str] | Callable[[str, int], str], tokenizer: Tokenizer, *, logp: float = 0.0, length: int = 1024):
        self.replies, self.tokenizer, self.logp, self.length = replies, tokenizer, logp, length
        self.calls: list[tuple[str, str, Sampling, int]] = []
        self.versions: dict[str, int] = {}
        self.held: dict[str, Mapping[str, Any]] = {}
        self.exact = True

    async def generate(self, member: str, context: np.ndarray, sampling: Sampling, address: int) -> Completion:
        number = len(self.calls)
        text = self.tokenizer.decode(context)
        self.calls.append((member, text, sampling, address))
        await asyncio.sleep(0)
        reply = self.replies(text, address) if callable(self.replies) else self.replies[number % len(self.replies)]
        ids, status = self._cut([*self.tokenizer.encode(reply).tolist(), self.tokenizer.end], len(context), sampling)
        logp = np.full(len(ids), self.logp, np.float32)
        recorded = {name: np.zeros(len(ids), np.float32) for name in sampling.record}
        return Completion(np.array(ids, np.int32), logp, status, max(self.versions.values(), default=0), recorded)

    async def score(self, member: str, context: np.ndarray, tokens: np.ndarray, want: Sequence[str] = ("logp",)) -> Mapping[str, np.ndarray]:
        await asyncio.sleep(0)
        return {name: np.full(len(tokens), self.logp, np.float32) for name in want}

    def load(self, group: str, weights: Mapping[str, Any], version: int) -> str:
        self.held[group] = {name: torch.as_tensor(w).detach().clone() for name, w in weights.items()}
        self.versions[group] = version
        return self.fingerprint(group)

    def fingerprint(self, group: str) -> str:
        return files.fingerprint(self.held.get(group, {}))

    def _cut(self, ids: list[int], start: int, sampling: Sampling) -> tuple[list[int], str]:
        """The reply up to where it ends, and why."""
        said = b""
        for n, i in enumerate(ids):
            if start + n >= self.length:
                return ids[:n], "limit"
            said += self.tokenizer.pieces[i]
            if i in self.tokenizer.ends or any(s.encode() in said for s in sampling.stop):
                return ids[: n + 1], "stop"
            if n + 1 == sampling.max_tokens:
                return ids[: n + 1], "length"
        return ids, "stop"
