"""The engine that defines what is right: one sequence at a time, the whole of it through the model for every token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ..core import address as at
from ..core.errors import BadValue
from ..core.protocols import Completion
from ..core.task import Sampling
from ..model import quantities
from ..model.transformer import causal
from .weights import Weights, aligned, check


class ReferenceEngine(Weights):
    """Plain, slow and obvious; every other engine is tested against it."""

    async def generate(self, member: str, context: np.ndarray, sampling: Sampling, address: int) -> Completion:
        group = self.group(member)
        start = len(check(context, self.models[group].c.vocab, sampling.record, sampling))
        ids = [int(i) for i in context]
        logp: list[float] = []
        recorded: dict[str, list[float]] = {name: [] for name in sampling.record}
        status = "limit"
        while len(ids) < self.lengths[group]:
            hidden = self._hidden(group, ids)[-1:]
            logits = self.models[group].logits(hidden).float()
            token, lp = draw(logits[0].double().numpy(), sampling, float(at.uniform(address, len(ids) - start)))
            ids.append(token)
            logp.append(lp)
            for name, value in self._quantities(hidden, logits, np.array([token]), sampling.temperature or 1.0, sampling.record).items():
                recorded[name].append(float(value[0]))
            said = b"".join(self.tokenizer.pieces[i] for i in ids[start:] if i < len(self.tokenizer))
            if token in self.tokenizer.ends or any(s.encode() in said for s in sampling.stop):
                status = "stop"
                break
            if len(ids) - start == sampling.max_tokens:
                status = "length"
                break
        columns = {name: np.array(values, np.float32) for name, values in recorded.items()}
        return Completion(np.array(ids[start:], np.int32), np.array(logp, np.float32), status, self.versions[group], columns)

    async def score(self, member: str, context: np.ndarray, tokens: np.ndarray, want: Sequence[str] = ("logp",)) -> Mapping[str, np.ndarray]:
        group = self.group(member)
        check(np.concatenate([context, tokens]), self.models[group].c.vocab, want, known=self.known(member))
        start = len(check(context, self.models[group].c.vocab, ()))
        if start + len(tokens) > self.lengths[group]:
            raise BadValue(f"engine: {start} + {len(tokens)} tokens to score do not fit the context of {self.lengths[group]}")
        hidden = self._hidden(group, [*context, *tokens])[start - 1 :]
        ids = np.append(np.asarray(tokens, np.int64), 0)  # the last state comes before no token here
        return aligned(self._quantities(hidden, self.models[group].logits(hidden).float(), ids, 1.0, want, self.said(member, hidden)))

    @torch.inference_mode()
    def _hidden(self, group: str, ids: Sequence[int]) -> torch.Tensor:
        return self.models[group](torch.tensor([[int(i) for i in ids]]), causal)[0]

    def _quantities(self, hidden: torch.Tensor, logits: torch.Tensor, ids: np.ndarray, temperature: object, want: Sequence[str], more: Any = None):
        given = {**(more or {}), "hidden": hidden, "logits": logits, "logprobs": quantities.logprobs(logits, float(temperature))}  # type: ignore[arg-type]
        given["ids"] = torch.as_tensor(ids.astype(np.int64))
        return {name: quantities.compute(name, given).float().numpy() for name in want}


def draw(logits: np.ndarray, sampling: Sampling, u: float) -> tuple[int, float]:
    """One token and its log-probability by inverse CDF, in double precision: temperature, then top-k, then top-p of what is left."""
    if sampling.temperature == 0:
        return int(logits.argmax()), 0.0
    z = logits / float(sampling.temperature)  # type: ignore[arg-type]
    p = np.exp(z - z.max())
    p /= p.sum()
    order = np.argsort(-p, kind="stable")
    if sampling.top_k:
        order = order[: sampling.top_k]
    if sampling.top_p < 1:
        before = np.cumsum(p[order]) - p[order]
        order = order[before < sampling.top_p * p[order].sum()]
    kept = np.zeros_like(p)
    kept[order] = p[order]
    kept /= kept.sum()
    token = int(np.searchsorted(np.cumsum(kept), u, side="right"))
    token = min(token, int(kept.nonzero()[0][-1]))
    return token, float(np.log(kept[token]))
