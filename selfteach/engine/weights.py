"""What every engine of our own holds: one model per weight group, which member speaks with which, and what may be asked of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from ..core.errors import BadValue, unknown
from ..core.registry import quantities
from ..core.task import Sampling
from ..model import files
from ..model.base import Model
from ..model.tokenizer import Tokenizer

GIVEN = frozenset({"logits", "logprobs", "ids", "hidden"})  # what stands ready where a token is drawn


class Weights:
    """The weight groups of an engine and their versions. The models handed in are the engine's own from then on.

    heads    scalar heads, group -> head -> layer; asked: member -> head -> the group that has it, for members who can be asked for theirs
    """

    def __init__(
        self,
        models: Mapping[str, Model],
        members: Mapping[str, str],
        tokenizer: Tokenizer,
        length: int | None = None,
        heads: Mapping[str, Mapping[str, nn.Linear]] | None = None,
        asked: Mapping[str, Mapping[str, str]] | None = None,
    ):
        self.models = dict(models)
        self.members = dict(members)
        self.tokenizer = tokenizer
        self.heads = {group: dict(own) for group, own in (heads or {}).items()}
        self.asked = {member: dict(own) for member, own in (asked or {}).items()}
        self.versions = dict.fromkeys(self.groups, 0)
        self.lengths: dict[str, int] = {}
        for layer in (layer for own in self.heads.values() for layer in own.values()):
            layer.requires_grad_(False)
        for member, group in self.members.items():
            if group not in self.models:
                raise unknown(f"weight group (of the member {member!r})", group, self.models)
        for group, model in self.models.items():
            model.requires_grad_(False).eval()
            if length is not None and length > model.c.max_length:
                raise BadValue(f"engine: length {length} is more than the context of {group!r}, {model.c.max_length}")
            self.lengths[group] = length or model.c.max_length

    @property
    def groups(self) -> list[str]:
        """The weight groups that it holds."""
        return sorted({*self.models, *self.heads})

    def said(self, member: str, hidden: torch.Tensor) -> dict[str, torch.Tensor]:
        """What a member's scalar heads make of hidden states [R, width]: `value` [R] and so on, and the same as `value_after`."""
        out: dict[str, torch.Tensor] = {}
        for head, group in self.asked.get(member, {}).items():
            layer = self.heads[group][head]
            out[head] = out[f"{head}_after"] = layer(hidden.to(layer.weight.dtype)).squeeze(-1).float()
        return out

    def known(self, member: str) -> frozenset[str]:
        """What quantities of given tokens may read of a member."""
        return GIVEN | {f"{head}{end}" for head in self.asked.get(member, {}) for end in ("", "_after")}

    def group(self, member: str) -> str:
        """The weight group that a member speaks with. Raises UnknownName."""
        if member not in self.members:
            raise unknown("member", member, self.members)
        return self.members[member]

    def load(self, group: str, weights: Mapping[str, Any], version: int) -> str:
        """Copy a weight group in place. Returns the fingerprint of what is now held. Raises UnknownName, BadCheckpoint.

        Of weights held in a shorter type, the fingerprint of those given, if what is held is these rounded.
        """
        held = self._held(group)
        files.fill(held, weights, f"weights of {group!r}")
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
        own = self.models[group].names() if group in self.models else {}
        return {**own, **{f"{h}_head.{n}": p for h, head in self.heads.get(group, {}).items() for n, p in head.named_parameters()}}


def beyond(name: str) -> bool:
    """True for a quantity that is read after the token, from the hidden state that the token made."""
    return any(need.endswith("_after") for need in quantities.get(name).needs)


def aligned(told: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Of values at the hidden states before n tokens and after the last, n + 1 in all, those that belong to the tokens."""
    return {name: values[1:] if beyond(name) else values[:-1] for name, values in told.items()}


def check(context: np.ndarray, vocab: int, want: Sequence[str], sampling: Sampling | None = None, known: frozenset[str] = GIVEN) -> np.ndarray:
    """The context as i64[L]. Raises BadValue or UnknownName for what no engine can do."""
    ids = np.asarray(context, np.int64)
    if ids.ndim != 1 or not len(ids):
        raise BadValue("engine: a context needs at least one token, since the first one is drawn after something")
    if ids.min() < 0 or ids.max() >= vocab:
        raise BadValue(f"engine: the context holds the token id {ids[(ids < 0) | (ids >= vocab)][0]}, the model has ids 0 to {vocab - 1}")
    for name in want:
        for need in quantities.get(name).needs - known:
            raise unknown(f"input of the quantity {name} in the engine", need, known)
    if sampling is not None and not isinstance(sampling.temperature, int | float):
        raise BadValue(f"sampling: temperature {sampling.temperature} is still a schedule; an engine takes its value at this step")
    if sampling is not None and "" in sampling.stop:
        raise BadValue("sampling: a stop string must not be empty")
    return ids
