"""Blocks: plain functions whose signature is their contract, and `Block`, a block with its hyper-parameters bound.

a keyword without a default    an input: a column, an index, `state`, `groups`, `history`, `context` ...
a keyword with a default       a hyper-parameter
the annotation of a column     the unit at which it is read (Token when there is none)
the return annotation          the unit of the result
"""

from __future__ import annotations

import functools
import inspect
import os
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from .errors import BadValue, unknown
from .registry import blocks
from .user_code import end_fork

Unit = Literal["token", "step", "seq", "group", "batch", "episode", "pair"]
Array: TypeAlias = Any  # numpy in credit, torch in objective


def _unit(name: str) -> Any:
    return type(name.capitalize(), (), {"unit": name, "__doc__": f"Annotation: an array with one row per {name}."})


if typing.TYPE_CHECKING:
    # To a type checker a column is an array of whatever library the block is written in.
    Token: TypeAlias = Any
    Step: TypeAlias = Any
    Seq: TypeAlias = Any
    Grp: TypeAlias = Any
    Pair: TypeAlias = Any
    Epi: TypeAlias = Any
else:
    Token, Step, Seq, Grp, Pair, Epi = (_unit(u) for u in ("token", "step", "seq", "group", "pair", "episode"))


@functools.cache
def signature(fn: Callable[..., Any]) -> inspect.Signature:
    """The signature with its annotations evaluated; cached, since every step reads it."""
    return inspect.signature(fn, eval_str=True)


@dataclass(frozen=True)
class Block:
    """A block with hyper-parameters bound.

    Prints, compares, and goes to JSON as name, arguments and renamed columns.
    """

    fn: Callable[..., Any]
    args: Mapping[str, Any] = field(default_factory=dict[str, Any])
    reads: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def name(self) -> str:
        """The name under which it is registered."""
        return self.fn.__name__

    @property
    def doc(self) -> str:
        """The first line of the block's docstring."""
        return (inspect.getdoc(self.fn) or "").split("\n", 1)[0]

    def reading(self, **names: str) -> Block:
        """The same block under other columns: `dpo().reading(ref_logp="old_logp")`.

        Raises UnknownName for a column that it does not read.
        """
        for n in names:
            if n not in self.needs:
                raise unknown(f"column of {self.name}", n, self.needs)
        return replace(self, reads={**self.reads, **names})

    def replace(self, **args: Any) -> Block:
        """The same block with other hyper-parameters. Raises UnknownName for one that it does not have."""
        _check(self.fn, args)
        return replace(self, args={**self.args, **args})

    def substitute(self, name: str, other: Block) -> Block:
        """`other` if this block has that name; else this one with `other` for those among its arguments that do.

        An argument called `metric_judge` stays: it is a judge whose verdicts are metrics, never a reward.
        """
        if self.name == name:
            return other

        def within(value: Any) -> Any:
            if isinstance(value, Block):
                return value.substitute(name, other)
            if isinstance(value, tuple):
                return tuple(within(v) for v in typing.cast("tuple[Any, ...]", value))
            return value

        return replace(self, args={n: v if n == "metric_judge" else within(v) for n, v in self.args.items()})

    @property
    def needs(self) -> dict[str, Unit]:
        """Name -> unit of every keyword without a default: its inputs."""
        return _needs(self.fn)

    @property
    def columns(self) -> dict[str, Unit]:
        """Column (by its name in the batch) -> unit, of the inputs of an assigner or a term."""
        return {self.reads.get(n, n): u for n, u in self.needs.items() if n not in ("state", "groups", "history")}

    @property
    def hyper_parameters(self) -> dict[str, Any]:
        """Every hyper-parameter with its value: as bound, else its default."""
        return {**_defaults(self.fn), **self.args}

    @property
    def unit(self) -> Unit:
        """The unit of what it returns, from the return annotation."""
        return getattr(signature(self.fn).return_annotation, "unit", "token")

    @property
    def scope(self) -> Unit:
        """The unit that it needs whole: a block that names an index reads all rows of one index value together."""
        needs = self.needs
        for unit, index in (("batch", "batch"), ("group", "group"), ("episode", "episode"), ("pair", "win")):
            if index in needs:
                return typing.cast(Unit, unit)
        return "seq" if "seq" in needs or self.unit == "seq" else "step" if "step" in needs else "token"

    def __call__(self, **given: Any) -> Any:
        """Call the block on its inputs."""
        process = os.getpid()
        try:
            return self.fn(**given, **self.args)
        finally:
            end_fork(process)

    def __str__(self) -> str:
        inner = ", ".join(
            f"{k}={_show(self.args[k])}" for k in _defaults(self.fn) if k in self.args
        )  # in the signature's order
        renamed = f".reading({', '.join(f'{k}={v!r}' for k, v in self.reads.items())})" if self.reads else ""
        return f"{self.name}({inner}){renamed}"

    __repr__ = __str__


def _show(value: Any) -> str:
    if isinstance(value, tuple):
        items = typing.cast("tuple[Any, ...]", value)
        return "(" + ", ".join(_show(v) for v in items) + ("," if len(items) == 1 else "") + ")"
    return str(value) if isinstance(value, Block) else repr(value)


@functools.cache
def _needs(fn: Callable[..., Any]) -> dict[str, Unit]:
    return {
        p.name: getattr(p.annotation, "unit", "token")
        for p in signature(fn).parameters.values()
        if p.default is p.empty and p.kind != p.VAR_KEYWORD
    }


@functools.cache
def _defaults(fn: Callable[..., Any]) -> Mapping[str, Any]:
    return types.MappingProxyType(
        {p.name: p.default for p in signature(fn).parameters.values() if p.default is not p.empty}
    )


def _check(fn: Callable[..., Any], args: Mapping[str, Any]) -> None:
    known = _defaults(fn)
    for name in args:
        if name not in known:
            raise unknown(f"hyper-parameter of {fn.__name__}", name, known)


def block(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Register a function as a block. Called with hyper-parameters only it gives a Block; called with its inputs,
    the value.

    clipped_ratio(high=0.28)                              -> Block
    clipped_ratio(logp=lp, old_logp=op, adv=a, high=0.28) -> the loss per token
    """
    for p in inspect.signature(fn).parameters.values():
        if p.kind in (p.VAR_POSITIONAL, p.POSITIONAL_ONLY):
            raise BadValue(f"block {fn.__name__}: every argument must be keyword-only, {p.name!r} is not")

    @functools.wraps(fn)
    def call(**given: Any) -> Any:
        if _needs_raw(fn) & given.keys():
            return fn(**given)
        _check(fn, given)
        return Block(
            fn, {k: tuple(typing.cast("list[Any]", v)) if isinstance(v, list) else v for k, v in given.items()}
        )

    blocks.add(fn.__name__, call)
    return call


@functools.cache
def _needs_raw(fn: Callable[..., Any]) -> set[str]:
    return {p.name for p in inspect.signature(fn).parameters.values() if p.default is p.empty}


def stateful(initial: Callable[[], Any], shared: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a block that names `state` its initial state; it returns `(value, state)`. Put it under `@block`.

    State is updated in the order in which blocks are called, and saved in checkpoints: JSON values, NumPy arrays, and
    dicts, lists and tuples of them. Each place of a block in a method has its own, unless it is `shared`: blocks that
    share a name share one state, over slots and stages (values that one stage estimates and the next reads).
    """

    def mark(fn: Callable[..., Any]) -> Callable[..., Any]:
        fn.initial_state = initial  # type: ignore[attr-defined]
        fn.shared_state = shared  # type: ignore[attr-defined]
        return fn

    return mark


def zero_when(column: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare that a term's gradient is exactly zero on rows where `column` is zero, so that the loop may leave them
    out.

    Put it under `@block`.
    """

    def mark(fn: Callable[..., Any]) -> Callable[..., Any]:
        fn.zero_when_column = column  # type: ignore[attr-defined]
        return fn

    return mark


def logged(
    name: str, measure: Callable[..., Any], what: str = ""
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare a metric of a term, so that the term itself can return l alone: its mean is logged as <group>/<name>.

    measure: a function of some of the term's inputs and hyper-parameters, by their names, which gives an array of
    values; one that has a default may be missing. It is called without a gradient. what: what the metric means, in
    place of a docstring of `measure`. Put it under `@block`.
    """
    if what:
        measure.__doc__ = what

    def mark(fn: Callable[..., Any]) -> Callable[..., Any]:
        fn.logged = {**getattr(fn, "logged", {}), name: measure}  # type: ignore[attr-defined]
        return fn

    return mark


def measures(bound: Block, given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the metrics that a term declares by `logged`, from its inputs and its own hyper-parameters."""
    every, out = {**given, **bound.hyper_parameters}, dict[str, Any]()
    for name, measure in getattr(bound.fn, "logged", {}).items():
        asked = inspect.signature(measure).parameters
        out[name] = measure(**{n: every[n] for n, p in asked.items() if n in every or p.default is p.empty})
    return out


def provides(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare the columns that a reward, composer or assigner gives besides the usual ones, or a composer's views.

    The columns that a method's blocks read are checked against these before a run begins (loop/name_checks.py). Put it
    under `@block`.
    """

    def mark(fn: Callable[..., Any]) -> Callable[..., Any]:
        fn.provides = names  # type: ignore[attr-defined]
        return fn

    return mark


def provided(bound: Block) -> tuple[str, ...]:
    """The columns and views that a block declares by `provides`."""
    return getattr(bound.fn, "provides", ())


def reads_items(name: str, why: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare which items of a TaskSource a select reads: `pairs`, say; without it those of a data stage are `demos`.

    A source that has none is refused before a run begins; why: what they are for and how to do without them, in words,
    for the refusal. Put it under `@block`.
    """

    def mark(fn: Callable[..., Any]) -> Callable[..., Any]:
        fn.items_read, fn.why_items = name, why  # type: ignore[attr-defined]
        return fn

    return mark


def items_read(bound: Block) -> str | None:
    """The items of a source that a select declares to read, by `reads_items`."""
    return getattr(bound.fn, "items_read", None)


def why_items_read(bound: Block) -> str:
    """What a select needs these items for, and how to do without them; "" where it does not say."""
    return getattr(bound.fn, "why_items", "")


def reads_last_step(why: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare that a select must know what came of the step before, so that rollouts cannot run ahead of learning.

    why: in words, for the refusal. Put it under `@block`. A select that shares its state with another block need not.
    """

    def mark(fn: Callable[..., Any]) -> Callable[..., Any]:
        fn.last_step_read = why  # type: ignore[attr-defined]
        return fn

    return mark


def last_step_read(bound: Block) -> str | None:
    """Why a select must know what came of the step before; None where it need not."""
    return getattr(bound.fn, "last_step_read", None)


def asks_engine(
    *quantities: str, keyed_samples: bool = False, steering: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare the quantities of given tokens that a program or reward has an engine compute, whether it relies on
    samples that are functions of their RNG keys, and whether it samples with a steering vector.

    An engine that cannot is refused before a run begins (loop/engine_roles.py). Put it under `@block`.
    """

    def mark(fn: Callable[..., Any]) -> Callable[..., Any]:
        fn.engine_quantities = quantities  # type: ignore[attr-defined]
        fn.needs_keyed_samples = keyed_samples  # type: ignore[attr-defined]
        fn.needs_steering = steering  # type: ignore[attr-defined]
        return fn

    return mark


def engine_quantities(bound: Block) -> tuple[str, ...]:
    """The quantities that a block declares by `asks_engine`."""
    return getattr(bound.fn, "engine_quantities", ())


def needs_keyed_samples(bound: Block) -> bool:
    """Whether a block declares by `asks_engine` that samples must be functions of their RNG keys."""
    return getattr(bound.fn, "needs_keyed_samples", False)


def needs_steering(bound: Block) -> bool:
    """Whether a block declares by `asks_engine` that it samples with a steering vector."""
    return getattr(bound.fn, "needs_steering", False)


def delayed_start(hyper_parameter: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare that a composer gives no example for the first steps, as many as this hyper-parameter says, so that the
    run is not stopped for lack of training data.

    Put it under `@block`.
    """

    def mark(fn: Callable[..., Any]) -> Callable[..., Any]:
        fn.delayed_start = hyper_parameter  # type: ignore[attr-defined]
        return fn

    return mark


def start_delay(bound: Block) -> int:
    """The number of first steps in which a block gives nothing."""
    name = getattr(bound.fn, "delayed_start", None)
    return int(bound.hyper_parameters[name]) if name else 0


def shared_state(bound: Block) -> str:
    """The name of the state that a block shares with others; empty where it has one of its own, or none."""
    return getattr(bound.fn, "shared_state", "")


def state_key(bound: Block, place: str) -> str:
    """The key of a block's state in `RunState.blocks`: its place in the method, or the name that it shares."""
    shared = shared_state(bound)
    return shared_key(shared) if shared else place


def shared_key(name: str) -> str:
    """The key of the state that blocks share under a name."""
    return f"shared/{name}"


def initial_state(bound: Block) -> Any:
    """The state of a block before its first call. Raises BadValue where it names `state` but was given none."""
    initial = getattr(bound.fn, "initial_state", None)
    if initial is None:
        raise BadValue(
            f"block {bound.name} names `state` but has no initial one: put @stateful(make_state) under @block"
        )
    return initial()
