"""What an engine is made of, as a value that another process can build it from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from ..model.base import Model
from ..model.tokenizer import Tokenizer
from .builtin import BuiltinEngine
from .equal_length_batching import EqualLengthEngine


@dataclass(frozen=True)
class EngineRecipe:
    """The arguments of BuiltinEngine, or of EqualLengthEngine where a model does not support custom attention.

    models  weight group -> model, which belong to the engine from then on; parameters without memory (on the device
            `meta`) begin as zeros, for weights that are delivered
    """

    models: Mapping[str, Model]
    model_roles: Mapping[str, str]
    tokenizer: Tokenizer
    slots: int
    length: int
    device: str
    dtype: torch.dtype
    reserve: int = 0
    heads: Mapping[str, Mapping[str, nn.Linear]] = field(default_factory=dict[str, Mapping[str, nn.Linear]])
    model_heads: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])

    @property
    def groups(self) -> list[str]:
        """Names of the weight groups."""
        return sorted({*self.models, *self.heads})

    @property
    def batched_by_length(self) -> bool:
        """Whether it is for EqualLengthEngine."""
        return not all(model.supports_custom_attention for model in self.models.values())

    def build(self) -> BuiltinEngine | EqualLengthEngine:
        """The engine."""
        models = {group: with_memory(model) for group, model in self.models.items()}
        given = models, self.model_roles, self.tokenizer
        heads = {g: {h: layer.to(self.device) for h, layer in own.items()} for g, own in self.heads.items()}
        if self.batched_by_length:
            return EqualLengthEngine(
                *given,
                slots=self.slots,
                length=self.length,
                device=self.device,
                heads=heads,
                model_heads=self.model_heads,
            )
        return BuiltinEngine(
            *given,
            slots=self.slots,
            length=self.length,
            device=self.device,
            dtype=self.dtype,
            reserve=self.reserve,
            heads=heads,
            model_heads=self.model_heads,
        )


def with_memory(model: Model) -> Model:
    """A model whose parameters without memory are zeros; those that are one stay one."""
    made: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, p in list(module.named_parameters(recurse=False)):
            if p.is_meta:
                new = made.setdefault(id(p), nn.Parameter(torch.zeros(p.shape, dtype=p.dtype), requires_grad=False))
                setattr(module, name, new)
    return model
