"""Model quantities: what a forward pass gives for each token; a function's signature is its contract.

A quantity of a token names inputs of its row (N rows, one per token):
    logits      [N, V]  before the token, as the model gives them (float32)
    logprobs    [N, V]  log-softmax of logits / temperature: the distribution that the token was drawn from
    ids         [N]     the tokens themselves
    hidden      [N, D]  the last hidden state before the token; hidden_after: after it
    residuals [N, L, D] the residual stream after each of L layers, before the token (of given tokens, not at a draw)
    value, scalar [N]   the output of a head before the token; value_after, scalar_after: after it
It returns [N] or [N, ...]. Terms, assigners, the engine's `score` and `Sampling.record` may name it. It has the
gradient that its torch operations have.

A quantity of a group names `rows` (GroupRows: all learned rows of a group together) and columns of the batch, each
read at the unit of its annotation. It returns [N], without a gradient: an assigner may name it, a term may not.

A column's name is `[model_]quantity[_view]`: a block that names `ref_entropy` gets the quantity `entropy` of the model
`ref`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

from .blocks import Array, Unit, signature
from .errors import BadValue, unknown
from .registry import quantities

HEADS = ("value", "scalar")  # scalar heads that a model can have besides the vocabulary
INPUTS = (
    "logits",
    "logprobs",
    "ids",
    "hidden",
    "hidden_after",
    "residuals",
    *(h + after for h in HEADS for after in ("", "_after")),
)

F = TypeVar("F", bound=Callable[..., Array])


@dataclass(frozen=True)
class GroupRows:
    """The learned rows of one group under one model.

    hidden   [N, D]  the last hidden state before each token
    ids      [N]     the tokens
    logprobs         a slice of rows -> their log-probabilities [c, V], under the temperature they were drawn at
    step             number of rows in a chunk
    """

    hidden: Array
    ids: Array
    logprobs: Callable[[slice], Array]
    step: int

    def chunks(self) -> Iterator[tuple[slice, Array]]:
        """(which rows, their log-probabilities [c, V]), in order; nothing that wide outlives a chunk."""
        for a in range(0, len(self.ids), self.step):
            at = slice(a, min(a + self.step, len(self.ids)))
            yield at, self.logprobs(at)


@dataclass(frozen=True)
class Quantity:
    """A registered quantity."""

    name: str
    fn: Callable[..., Array]

    @property
    def scope(self) -> Literal["token", "group"]:
        """Whether it is computed for each token by itself, or for all rows of a group together."""
        return "group" if "rows" in signature(self.fn).parameters else "token"

    @property
    def needs(self) -> set[str]:
        """The inputs of a forward pass that it names."""
        return {"logits", "rows"} if self.scope == "group" else set(signature(self.fn).parameters)

    @property
    def columns(self) -> dict[str, Unit]:
        """Column of the batch -> unit, of what a quantity of a group reads besides its rows."""
        named = signature(self.fn).parameters.values() if self.scope == "group" else ()
        return {p.name: getattr(p.annotation, "unit", "token") for p in named if p.name != "rows"}

    @property
    def vocabulary(self) -> bool:
        """Whether it reads logits."""
        return bool(self.needs & {"logits", "logprobs"})


def quantity(fn: F) -> F:
    """Register a function as a model quantity under its own name.

    Raises UnknownName for a quantity of a token that names no input of one, BadValue for arguments that are not named.

        @quantity
        def margin(*, logprobs: Tensor) -> Tensor:
            top = logprobs.topk(2).values
            return top[:, 0] - top[:, 1]
    """
    parameters = inspect.signature(fn).parameters  # unevaluated: an annotation may name a library not yet imported
    for p in parameters.values():
        if p.kind != p.KEYWORD_ONLY or p.default is not p.empty:
            raise BadValue(f"quantity {fn.__name__}: {p.name!r} must be a named argument without a default (after `*`)")
        if "rows" not in parameters and p.name not in INPUTS:
            raise unknown(f"input of the quantity {fn.__name__}", p.name, (*INPUTS, "rows"))
    quantities.add(fn.__name__, Quantity(fn.__name__, fn))
    return fn


class ColumnName(NamedTuple):
    """A parsed column name, `[model_]quantity[_view]`. model_role None: each example's own model."""

    model_role: str | None
    quantity: str
    view: str | None


def parse(column: str, model_roles: Collection[str], views: Collection[str] = ()) -> ColumnName | None:
    """The parsed name of a column that a forward pass gives; None for other columns (recorded or assigned).

    parse("ref_logp", {"ref"}) -> ColumnName("ref", "logp", None)
    """
    stem = column.removeprefix("prox_")
    for view in (None, *views):
        if view is not None and not stem.endswith("_" + view):
            continue
        rest = stem if view is None else stem.removesuffix("_" + view)
        for model_role in (None, *model_roles):
            if model_role is not None and not rest.startswith(model_role + "_"):
                continue
            name = rest if model_role is None else rest.removeprefix(model_role + "_")
            if name in quantities:
                return ColumnName(model_role, name, view)
    return None
