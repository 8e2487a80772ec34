"""The weights of an engine: one model per weight group, the group of each model role, and their scalar heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from ..core.errors import BadValue, unknown
from ..core.protocols import EngineCapabilities
from ..core.registry import quantities
from ..core.task import Sampling
from ..model import files
from ..model import quantities as quantities_of_model
from ..model.attention import causal_attention
from ..model.base import Model
from ..model.residual import check_steering, kept
from ..model.tokenizer import Tokenizer

INPUTS_AT_DRAW = frozenset(
    {"logits", "logprobs", "ids", "hidden"}
)  # inputs of quantities that are known when a token is drawn


class EngineWeights:
    """The weight groups of an engine and their versions; the models belong to the engine from then on.

    heads        scalar heads: group -> head -> layer
    model_heads  model role -> head -> the group that has it, for the heads that `score` can compute
    """

    capabilities = EngineCapabilities()

    def __init__(
        self,
        models: Mapping[str, Model],
        model_roles: Mapping[str, str],
        tokenizer: Tokenizer,
        length: int | None = None,
        heads: Mapping[str, Mapping[str, nn.Linear]] | None = None,
        model_heads: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        self.models = dict(models)
        self.model_roles = dict(model_roles)
        self.tokenizer = tokenizer
        self.heads = {group: dict(own) for group, own in (heads or {}).items()}
        self.model_heads = {model_role: dict(own) for model_role, own in (model_heads or {}).items()}
        self.versions = dict.fromkeys(self.groups, 0)
        self.lengths: dict[str, int] = {}
        for layer in (layer for own in self.heads.values() for layer in own.values()):
            layer.requires_grad_(False)
        for model_role, group in self.model_roles.items():
            if group not in self.models:
                raise unknown(f"weight group (of the model {model_role!r})", group, self.models)
        for group, model in self.models.items():
            model.requires_grad_(False).eval()
            if length is not None and length > model.config.max_length:
                raise BadValue(
                    f"engine: length {length} is more than the context of {group!r}, {model.config.max_length}"
                )
            self.lengths[group] = length or model.config.max_length

    @property
    def groups(self) -> list[str]:
        """Names of the weight groups."""
        return sorted({*self.models, *self.heads})

    def head_values(self, model_role: str, hidden: torch.Tensor) -> dict[str, torch.Tensor]:
        """The scalar heads of a model on hidden states [R, width]: `value` [R] ..., also as `value_after` ..."""
        out: dict[str, torch.Tensor] = {}
        for head, group in self.model_heads.get(model_role, {}).items():
            layer = self.heads[group][head]
            out[head] = out[f"{head}_after"] = layer(hidden.to(layer.weight.dtype)).squeeze(-1).float()
        return out

    def score_inputs(self, model_role: str) -> frozenset[str]:
        """The inputs that quantities of given tokens may read of a model."""
        return (
            INPUTS_AT_DRAW
            | {"residuals"}
            | {f"{head}{end}" for head in self.model_heads.get(model_role, {}) for end in ("", "_after")}
        )

    @torch.inference_mode()
    def score_by_layers(
        self, model_role: str, context: np.ndarray, tokens: np.ndarray, want: Sequence[str]
    ) -> Mapping[str, np.ndarray]:
        """Quantities of given tokens by a plain pass over the text, in which layers can be read: name -> [n ...]."""
        model = self.models[self.group_of(model_role)]
        ids = np.concatenate([context, tokens]).astype(np.int64)
        with kept(model) as layers:
            hidden = model(torch.from_numpy(ids[None]).to(model.lm_head.weight.device), causal_attention)[0]
        hidden = hidden[len(context) - 1 :]
        logits = model.logits(hidden).float()
        given = {
            **self.head_values(model_role, hidden),
            "hidden": hidden,
            "residuals": torch.stack([x[0, len(context) - 1 :] for x in layers], 1),
            "logits": logits,
            "logprobs": quantities_of_model.logprobs(logits, 1.0),
            "ids": torch.from_numpy(np.append(ids[len(context) :], 0)).to(hidden.device),
        }
        return align_scores({name: quantities_of_model.compute(name, given).float().cpu().numpy() for name in want})

    def group_of(self, model_role: str) -> str:
        """The weight group of a model role. Raises UnknownName."""
        if model_role not in self.model_roles:
            raise unknown("model", model_role, self.model_roles)
        return self.model_roles[model_role]

    def check_steering(self, group: str, sampling: Sampling) -> None:
        """Raise BadValue for a steering vector that does not fit a group's model."""
        if (s := sampling.steering) is not None:
            check_steering(self.models[group], self.models[group].config.width, s.layer, len(s.vector))

    def load(self, group: str, weights: Mapping[str, Any], version: int) -> str:
        """Copy a weight group in place, and return the fingerprint of the weights now held.

        Where the engine holds 16-bit weights that are those given, rounded, it is the fingerprint of those given.
        Raises UnknownName, BadCheckpoint.
        """
        held = self._held(group)
        files.copy_tensors(held, weights, f"weights of {group!r}")
        self.versions[group] = version
        own, dtype = self.fingerprint(group), next(iter(held.values())).dtype
        if dtype not in (torch.bfloat16, torch.float16) or own != files.fingerprint(weights, dtype=dtype):
            return own
        return files.fingerprint(weights)

    def fingerprint(self, group: str) -> str:
        """A short hash of the weights held, comparable with the learner's."""
        return files.fingerprint(self._held(group))

    def _held(self, group: str) -> dict[str, torch.Tensor]:
        if group not in self.groups:
            raise unknown("weight group", group, self.groups)
        own = self.models[group].named_tensors() if group in self.models else {}
        return {
            **own,
            **{f"{h}_head.{n}": p for h, head in self.heads.get(group, {}).items() for n, p in head.named_parameters()},
        }


def reads_after_token(name: str) -> bool:
    """Whether a quantity reads the hidden state after the token."""
    return any(need.endswith("_after") for need in quantities.get(name).needs)


def reads_layers(want: Sequence[str]) -> bool:
    """Whether one of these quantities reads the residual stream after layers."""
    return any("residuals" in quantities.get(name).needs for name in want)


def align_scores(values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The values of n tokens, from n + 1 values at the states before each token and after the last."""
    return {name: x[1:] if reads_after_token(name) else x[:-1] for name, x in values.items()}


def check_request(
    context: np.ndarray,
    vocab: int,
    want: Sequence[str],
    sampling: Sampling | None = None,
    inputs: frozenset[str] = INPUTS_AT_DRAW,
) -> np.ndarray:
    """The context as i64[L]. Raises BadValue or UnknownName for a request that no engine can serve."""
    ids = np.asarray(context, np.int64)
    if ids.ndim != 1 or not len(ids):
        raise BadValue("engine: the context is empty; give at least one token to draw after")
    if ids.min() < 0 or ids.max() >= vocab:
        raise BadValue(
            f"engine: the context holds the token id {ids[(ids < 0) | (ids >= vocab)][0]}, the model has ids 0 to "
            f"{vocab - 1}"
        )
    for name in want:
        for need in quantities.get(name).needs - inputs:
            raise unknown(f"input of the quantity {name} in the engine", need, inputs)
    if sampling is not None and not isinstance(sampling.temperature, int | float):
        raise BadValue(f"sampling: temperature {sampling.temperature} is still a schedule; give its value at this step")
    if sampling is not None and "" in sampling.stop:
        raise BadValue("sampling: a stop string is empty; leave it out")
    return ids
