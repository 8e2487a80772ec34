"""What a forward pass can tell about a token, registered once and computed inside the micro-batch: no vocabulary-wide matrix leaves it.

A quantity is a function of what it names (N rows, one per token asked about):
    logits      [N, V]  at the place before the token, as the model gives them (float32)
    logprobs    [N, V]  log-softmax of logits / temperature: the distribution that the token was drawn from
    ids         [N]     the tokens themselves
    hidden      [N, D]  the last hidden state before the token; hidden_after: the one that the token made
    value, scalar ...   [N] a head's output before the token; value_after ...: after it
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..core.errors import unknown
from ..core.part import Unit, signature
from ..core.registry import quantities

HEADS = ("value", "scalar")  # scalar heads that a member can have besides the vocabulary


@dataclass(frozen=True)
class Quantity:
    """A registered quantity. `wide`: its rows are vectors."""

    name: str
    fn: Callable[..., Tensor]
    unit: Unit = "token"

    @property
    def needs(self) -> set[str]:
        return set(signature(self.fn).parameters)

    @property
    def vocabulary(self) -> bool:
        """True where it reads the logits."""
        return bool(self.needs & {"logits", "logprobs"})


def quantity(fn: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Register a function as a quantity under its own name."""
    quantities.add(fn.__name__, Quantity(fn.__name__, fn))
    return fn


@quantity
def logp(*, logprobs: Tensor, ids: Tensor) -> Tensor:
    """Log-probability of the token under the distribution that it was sampled from (its temperature)."""
    return logprobs.gather(-1, ids[:, None]).squeeze(-1)


@quantity
def raw_logp(*, logits: Tensor, ids: Tensor) -> Tensor:
    """Log-probability of the token at temperature 1."""
    return logits.gather(-1, ids[:, None]).squeeze(-1) - logits.logsumexp(-1)


@quantity
def entropy(*, logprobs: Tensor) -> Tensor:
    """Entropy of the distribution that the token was drawn from, in nats."""
    return -(logprobs.exp() * logprobs).sum(-1)


@quantity
def cdf_below(*, logprobs: Tensor, ids: Tensor) -> Tensor:
    """Probability of all ids before the token: a uniform draw u gives this token where cdf_below <= u < cdf_below + exp(logp)."""
    before = torch.arange(logprobs.shape[-1], device=logprobs.device) < ids[:, None]
    return torch.where(before, logprobs, -torch.inf).exp().sum(-1, dtype=torch.float64)


@quantity
def mean_logp(*, logprobs: Tensor) -> Tensor:
    """Mean log-probability over the vocabulary (self-certainty, uniform cross-entropy)."""
    return logprobs.mean(-1)


@quantity
def lse(*, logits: Tensor) -> Tensor:
    """Log of the sum of exp over the logits, at temperature 1."""
    return logits.logsumexp(-1)


@quantity
def last_hidden(*, hidden: Tensor) -> Tensor:
    """The last hidden state before the token, a vector."""
    return hidden


@quantity
def value(*, value: Tensor) -> Tensor:
    """The value head's output before the token: the worth of the state in which it was chosen."""
    return value


@quantity
def scalar_after(*, scalar_after: Tensor) -> Tensor:
    """The scalar head's output after the token (a reward model's)."""
    return scalar_after


class Name(NamedTuple):
    """A column's name taken apart: `[member_]quantity[_view]`. member None: the example's own."""

    member: str | None
    quantity: str
    view: str | None


def parse(column: str, members: Collection[str], views: Collection[str] = ()) -> Name | None:
    """What a column asks of a forward pass; None where it is no quantity of a known member (a recorded or assigned column).

    parse("ref_logp", {"ref"}) -> Name("ref", "logp", None)
    """
    stem = column.removeprefix("prox_")
    for view in (None, *views):
        if view is not None and not stem.endswith("_" + view):
            continue
        rest = stem if view is None else stem.removesuffix("_" + view)
        for member in (None, *members):
            if member is not None and not rest.startswith(member + "_"):
                continue
            name = rest if member is None else rest.removeprefix(member + "_")
            if name in quantities:
                return Name(member, name, view)
    return None


def compute(name: str, given: dict[str, Tensor]) -> Tensor:
    """A quantity from what stands ready in `given`. Raises UnknownName where the model lacks the head it reads."""
    q = quantities.get(name)
    for need in q.needs:
        if need not in given:
            raise unknown(f"input of the quantity {name}", need, given)
    return q.fn(**{n: given[n] for n in q.needs})


def logprobs(logits: Tensor, temperature: Tensor | float) -> Tensor:
    """log-softmax(logits / temperature), rows [N, V], temperature [N] or one number. Sampler and learner share this line.

    In float32, or in float64 where the model is.
    """
    exact = logits if logits.dtype == torch.float64 else logits.float()
    if isinstance(temperature, torch.Tensor):
        return (exact / temperature[:, None]).log_softmax(-1)
    return (exact if temperature == 1 else exact / temperature).log_softmax(-1)  # dividing by 1 changes no bit and costs a pass
