"""Settings as dataclasses whose fields carry their own help text and range.

One definition serves the command line's options, the docstring of the dataclass and the checks:

    @settings
    class WarmStart:
        "How a warm start is trained."
        steps: int = setting(300, "supervised steps before RL; 0: none", least=0)
"""

from __future__ import annotations

import functools
import math
import textwrap
import types
from dataclasses import Field, dataclass, field, fields
from functools import cache
from typing import (
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from .errors import BadValue

C = TypeVar("C", bound=type)


class Range(NamedTuple):
    """least, most: the smallest and largest value; above: a bound that it must exceed; None: no such bound."""

    least: float | None = None
    above: float | None = None
    most: float | None = None

    def objection(self, value: float) -> str:
        """What a value has to be and is not; empty: it lies within."""
        if self.least is not None and not value >= self.least:
            return f"at least {self.least}"
        if self.above is not None and not value > self.above:
            return f"above {self.above}"
        if self.most is not None and not value <= self.most:
            return f"at most {self.most}"
        return ""


def setting(
    default: Any, help: str, least: float | None = None, above: float | None = None, most: float | None = None
) -> Any:
    """A field of a `settings` dataclass.

    least, most: the smallest and largest value it may have; above: a bound that it must exceed; of a tuple each value.
    A value of None is not checked against them.
    """
    return field(default=default, metadata={"help": help, "least": least, "above": above, "most": most})


@dataclass_transform(frozen_default=True)
def settings(cls: C) -> C:
    """Class decorator: a frozen dataclass that checks its values and whose docstring lists its fields."""
    if not hasattr(cls, "__post_init__"):
        cls.__post_init__ = check
    made = cast(Any, dataclass(frozen=True)(cls))
    _remember_given(made)
    wide = max(len(f.name) for f in fields(made))
    lines = [f"{f.name:<{wide}}  {described(f)}" for f in fields(made)]
    lines = [textwrap.fill(line, 116, subsequent_indent=" " * (wide + 2)) for line in lines]
    made.__doc__ = "\n".join([(cls.__doc__ or "").strip(), "", *lines])
    return made


def _remember_given(made: Any) -> None:
    """Let instances have `given`, the names of the fields that they were made with, beside their fields."""
    init, names = made.__init__, [f.name for f in fields(made)]

    @functools.wraps(init)
    def remember(self: Any, *values: Any, **named: Any) -> None:
        object.__setattr__(self, "given", (*names[: len(values)], *named))
        init(self, *values, **named)

    made.__init__ = remember


def described(f: Field[Any]) -> str:
    """A field's help text with its default, unless the text says already what that is."""
    text, default = f.metadata["help"], f.default
    if default is None or "(default" in text:
        return text
    shown = ",".join(map(str, cast("tuple[Any, ...]", default))) if isinstance(default, tuple) else default
    return f"{text} (default: {shown})"


def check(values: Any) -> None:
    """Raise BadValue for the first field of a `settings` dataclass whose value is of another kind or out of range.

    Every number has to be finite, whatever its range.
    """
    kinds = _kinds(type(values))
    for f in fields(values):
        value = getattr(values, f.name)
        if not fits(value, kinds[f.name]):
            raise BadValue(f"{f.name}: must be {kind_in_words(kinds[f.name])}, not {value!r}")
        for one in cast("tuple[Any, ...]", value) if isinstance(value, tuple | list) else (value,):
            if isinstance(one, int | float):
                _check_range(f, one)


@cache
def _kinds(cls: type) -> dict[str, Any]:
    """The annotations of a class, resolved: of a settings class they are the same at each of its values."""
    return get_type_hints(cls)


def _check_range(f: Field[Any], value: float) -> None:
    if objection := Range(*(f.metadata[n] for n in ("least", "above", "most"))).objection(value):
        raise BadValue(f"{f.name}: must be {objection}, not {value}")


def fits(value: Any, kind: Any) -> bool:
    """Whether a value is of an annotation's kind: a finite number, a choice of a Literal, one of a union, a tuple.

    >>> fits(3, float), fits(float("nan"), float), fits(True, int), fits((0.9, 0.95), tuple[float, float])
    (True, False, False, True)
    """
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return value in inner
    if origin in (Union, types.UnionType):
        return any(fits(value, k) for k in inner)
    if origin is tuple:
        if not isinstance(value, tuple | list):
            return False
        items = cast("tuple[Any, ...]", value)
        same = (inner[0],) * len(items) if inner[1:] == (...,) else inner
        return len(items) == len(same) and all(fits(v, k) for v, k in zip(items, same, strict=True))
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return value is None if kind is type(None) else isinstance(value, kind)


def kind_in_words(kind: Any) -> str:
    """An annotation as a person would say it.

    >>> kind_in_words(int | None), kind_in_words(tuple[float, float])
    ('a whole number or none', 'a tuple of finite numbers')
    """
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return f"one of {', '.join(map(str, inner))}"
    if origin in (Union, types.UnionType):
        return " or ".join(kind_in_words(k) for k in inner)
    if origin is tuple:
        return f"a tuple of {kind_in_words(inner[0]).removeprefix('a ')}s"
    names = {float: "a finite number", int: "a whole number", bool: "true or false", str: "text", type(None): "none"}
    return names.get(kind, str(kind))
