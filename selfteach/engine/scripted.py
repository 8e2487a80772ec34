"""The scripted engine: a test double with given replies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ..core.protocols import Completion, EngineCapabilities
from ..core.task import Sampling
from ..model import files
from ..model.tokenizer import Tokenizer


class ScriptedEngine:
    """An engine that gives `replies` in turn, cyclically, or those of a function (context text, RNG key) -> text.

    A reply is tokenised and ends with the EOS token, unless a stop string, `max_tokens` or `length` ends it first.
    Every log-probability is `logp`. `calls` holds (model role, context text, sampling, RNG key) of each request,
    `versions` and `weights` what was loaded.
    """

    capabilities = EngineCapabilities("scripted")

    def __init__(
        self,
        replies: Sequence[str] | Callable[[str, int], str],
        tokenizer: Tokenizer,
        *,
        logp: float = 0.0,
        length: int = 1024,
    ) -> None:
        self.replies, self.tokenizer, self.logp, self.length = replies, tokenizer, logp, length
        self.calls: list[tuple[str, str, Sampling, int]] = []
        self.versions: dict[str, int] = {}
        self.weights: dict[str, Mapping[str, Any]] = {}
        self.batch_invariant = True

    async def generate(self, model_role: str, context: np.ndarray, sampling: Sampling, rng_key: int) -> Completion:
        """The next reply, cut at a stop string, `max_tokens` or the engine's length."""
        number = len(self.calls)
        text = self.tokenizer.decode(context)
        self.calls.append((model_role, text, sampling, rng_key))
        await asyncio.sleep(0)
        reply = self.replies(text, rng_key) if callable(self.replies) else self.replies[number % len(self.replies)]
        ids, status = self._end_reply(
            [*self.tokenizer.encode(reply).tolist(), self.tokenizer.eos_token_id], len(context), sampling
        )
        logp = np.full(len(ids), self.logp, np.float32)
        recorded = {name: np.zeros(len(ids), np.float32) for name in sampling.record}
        return Completion(np.array(ids, np.int32), logp, status, max(self.versions.values(), default=0), recorded)

    async def score(
        self, model_role: str, context: np.ndarray, tokens: np.ndarray, want: Sequence[str] = ("logp",)
    ) -> Mapping[str, np.ndarray]:
        """Every quantity of every token is `logp`."""
        await asyncio.sleep(0)
        return {name: np.full(len(tokens), self.logp, np.float32) for name in want}

    def load(self, group: str, weights: Mapping[str, Any], version: int) -> str:
        """Keep a copy of the weights; returns their fingerprint."""
        self.weights[group] = {name: torch.as_tensor(w).detach().clone() for name, w in weights.items()}
        self.versions[group] = version
        return self.fingerprint(group)

    def fingerprint(self, group: str) -> str:
        """A short hash of the weights loaded."""
        return files.fingerprint(self.weights.get(group, {}))

    def _end_reply(self, ids: list[int], start: int, sampling: Sampling) -> tuple[list[int], str]:
        """The ids of a reply up to its end, and the status."""
        text = b""
        for n, i in enumerate(ids):
            if start + n >= self.length:
                return ids[:n], "limit"
            text += self.tokenizer.pieces[i]
            if i in self.tokenizer.eos_token_ids or any(s.encode() in text for s in sampling.stop):
                return ids[: n + 1], "stop"
            if n + 1 == sampling.max_tokens:
                return ids[: n + 1], "length"
        return ids, "stop"
