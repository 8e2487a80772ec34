"""The reference engine: one sequence at a time, without a cache, the whole sequence computed for every token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ..core import random_keys
from ..core.errors import BadValue
from ..core.protocols import Completion, EngineCapabilities
from ..core.task import Sampling, Steering
from ..model import quantities
from ..model.attention import causal_attention
from ..model.residual import changed
from .weights import EngineWeights, align_scores, check_request, reads_layers


class ReferenceEngine(EngineWeights):
    """The simplest engine, and the slowest; every other engine is tested against it."""

    capabilities = EngineCapabilities("reference")

    async def generate(self, model_role: str, context: np.ndarray, sampling: Sampling, rng_key: int) -> Completion:
        """As BuiltinEngine.generate."""
        group = self.group_of(model_role)
        start = len(check_request(context, self.models[group].config.vocab, sampling.record, sampling))
        self.check_steering(group, sampling)
        ids = [int(i) for i in context]
        logp: list[float] = []
        recorded: dict[str, list[float]] = {name: [] for name in sampling.record}
        status = "limit"
        temperature: Any = sampling.temperature or 1.0  # a number (check_request)
        while len(ids) < self.lengths[group]:
            hidden = self._hidden(group, ids, sampling.steering, start - 1)[-1:]
            logits = self.models[group].logits(hidden).float()
            token, lp = draw(
                logits[0].double().numpy(), sampling, float(random_keys.uniform(rng_key, len(ids) - start))
            )
            ids.append(token)
            logp.append(lp)
            for name, value in self._quantities(
                hidden, logits, np.array([token]), float(temperature), sampling.record
            ).items():
                recorded[name].append(float(value[0]))
            text = b"".join(self.tokenizer.pieces[i] for i in ids[start:] if i < len(self.tokenizer))
            if token in self.tokenizer.eos_token_ids or any(s.encode() in text for s in sampling.stop):
                status = "stop"
                break
            if len(ids) - start == sampling.max_tokens:
                status = "length"
                break
        columns = {name: np.array(values, np.float32) for name, values in recorded.items()}
        return Completion(
            np.array(ids[start:], np.int32), np.array(logp, np.float32), status, self.versions[group], columns
        )

    async def score(
        self, model_role: str, context: np.ndarray, tokens: np.ndarray, want: Sequence[str] = ("logp",)
    ) -> Mapping[str, np.ndarray]:
        """As BuiltinEngine.score."""
        group = self.group_of(model_role)
        check_request(
            np.concatenate([context, tokens]),
            self.models[group].config.vocab,
            want,
            inputs=self.score_inputs(model_role),
        )
        start = len(check_request(context, self.models[group].config.vocab, ()))
        if start + len(tokens) > self.lengths[group]:
            raise BadValue(
                f"engine: {start} + {len(tokens)} tokens to score do not fit the context of {self.lengths[group]}"
            )
        if reads_layers(want):
            return self.score_by_layers(model_role, np.asarray(context), np.asarray(tokens), want)
        hidden = self._hidden(group, [*context, *tokens])[start - 1 :]
        ids = np.append(np.asarray(tokens, np.int64), 0)  # a dummy token for the state after the last one
        return align_scores(
            self._quantities(
                hidden, self.models[group].logits(hidden).float(), ids, 1.0, want, self.head_values(model_role, hidden)
            )
        )

    @torch.inference_mode()
    def _hidden(self, group: str, ids: Sequence[int], steering: Steering | None = None, first: int = 0) -> torch.Tensor:
        """The hidden states [L, width] of a text, steered from position `first` on."""

        def change(out: torch.Tensor) -> torch.Tensor:
            assert steering is not None
            return torch.cat([out[:, :first], out[:, first:] + torch.tensor(steering.vector).to(out)], 1)

        with changed(self.models[group], {steering.layer: change} if steering else {}):
            return self.models[group](torch.tensor([[int(i) for i in ids]]), causal_attention)[0]

    def _quantities(
        self,
        hidden: torch.Tensor,
        logits: torch.Tensor,
        ids: np.ndarray,
        temperature: float,
        want: Sequence[str],
        heads: Mapping[str, torch.Tensor] | None = None,
    ) -> dict[str, np.ndarray]:
        given = {
            **(heads or {}),
            "hidden": hidden,
            "logits": logits,
            "logprobs": quantities.logprobs(logits, temperature),
        }
        given["ids"] = torch.as_tensor(ids.astype(np.int64))
        return {name: quantities.compute(name, given).float().numpy() for name in want}


def draw(logits: np.ndarray, sampling: Sampling, u: float) -> tuple[int, float]:
    """One token and its log-probability by inverse CDF in float64: temperature, then top-k, then top-p of the rest.

    u: uniform in [0, 1). Temperature 0 takes the greatest logit, with log-probability 0.
    """
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
