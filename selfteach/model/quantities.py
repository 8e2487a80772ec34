"""What a forward pass can tell about a token, registered once and computed inside the micro-batch: no vocabulary-wide matrix leaves it.

A quantity is a function of what it names (N rows, one per token asked about):
    logits      [N, V]  at the place before the token, as the model gives them (float32)
    logprobs    [N, V]  log-softmax of logits / temperature: the distribution that the token was drawn from
    ids         [N]     the tokens themselves
    hidden      [N, D]  the last hidden state before the token; hidden_after: the one that the token made
    value, scalar ...   [N] a head's output before the token; value_after ...: after it

A quantity of scope group looks at all learned rows of a group together. It names `rows` (Rows: their hidden states and ids, and their
log-probabilities a chunk at a time, as often as it likes) and columns of the batch, read at the unit of their annotation. It has no gradient:
an assigner may name it, a term may not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, overload

import torch
from torch import Tensor

from ..core.errors import BadValue, unknown
from ..core.part import Seq, Token, Unit, signature
from ..core.registry import quantities

HEADS = ("value", "scalar")  # scalar heads that a member can have besides the vocabulary


@dataclass(frozen=True)
class Quantity:
    """A registered quantity. `wide`: its rows are vectors."""

    name: str
    fn: Callable[..., Tensor]
    unit: Unit = "token"
    scope: Literal["token", "group"] = "token"

    @property
    def needs(self) -> set[str]:
        """What of a forward pass it reads."""
        return {"logits", "rows"} if self.scope == "group" else set(signature(self.fn).parameters)

    @property
    def columns(self) -> dict[str, Unit]:
        """Column of the batch -> unit, of what a quantity of scope group reads besides its rows."""
        named = signature(self.fn).parameters.values() if self.scope == "group" else ()
        return {p.name: getattr(p.annotation, "unit", "token") for p in named if p.name != "rows"}

    @property
    def vocabulary(self) -> bool:
        """True where it reads the logits."""
        return bool(self.needs & {"logits", "logprobs"})


@dataclass(frozen=True)
class Rows:
    """The learned rows of one group under one model: `hidden` [n, D] before each token, `ids` [n], and log-probabilities by chunks."""

    hidden: Tensor
    ids: Tensor
    logprobs: Callable[[slice], Tensor]
    step: int

    def chunks(self) -> Iterator[tuple[slice, Tensor]]:
        """(which rows, their log-probabilities [c, V]), in order; nothing wider is ever held."""
        for a in range(0, len(self.ids), self.step):
            at = slice(a, min(a + self.step, len(self.ids)))
            yield at, self.logprobs(at)


@overload
def quantity(fn: Callable[..., Tensor]) -> Callable[..., Tensor]: ...
@overload
def quantity(*, scope: Literal["token", "group"]) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]: ...
def quantity(fn: Callable[..., Tensor] | None = None, *, scope: Literal["token", "group"] = "token") -> Any:
    """Register a function as a quantity under its own name."""

    def register(fn: Callable[..., Tensor]) -> Callable[..., Tensor]:
        quantities.add(fn.__name__, Quantity(fn.__name__, fn, scope=scope))
        return fn

    return register if fn is None else register(fn)


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


@quantity(scope="group")
def influence(*, rows: Rows, reward: Seq, seq: Token) -> Tensor:
    """First-order effect of making a token likelier, by the output layer, on the log-likelihood of the group's right answers (2510.03669, eq. 4).

        s_n = sum over tokens m of right answers of <g_m, g_n> <h_m, h_n> = g_n' M h_n,   M = sum_m g_m h_m' [V, D],   g = onehot - softmax

    Right is a reward above the group's mean. Two passes over chunks of rows, in float32 at least.
    """
    hidden = rows.hidden if rows.hidden.dtype == torch.float64 else rows.hidden.float()
    right = (reward > reward.mean())[seq]
    if not right.any():
        return hidden.new_zeros(len(hidden))
    along: Tensor | None = None
    for at, wide in rows.chunks():
        mine = right[at]
        part = _error(wide, rows.ids[at])[mine].to(hidden.dtype).T @ hidden[at][mine]
        along = part if along is None else along.add_(part)
    assert along is not None
    return torch.cat([((_error(wide, rows.ids[at]).to(hidden.dtype) @ along) * hidden[at]).sum(-1) for at, wide in rows.chunks()])


def _error(logprobs: Tensor, ids: Tensor) -> Tensor:
    """onehot - softmax, [n, V]."""
    return logprobs.exp().neg_().scatter_add_(-1, ids[:, None], torch.ones_like(ids[:, None], dtype=logprobs.dtype))


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
    if q.scope == "group":
        raise BadValue(f"quantity {name}: it looks at a whole group and has no gradient; name it in an assigner (credit, or an update's assign)")
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
