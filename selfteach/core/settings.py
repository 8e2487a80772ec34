"""Settings as dataclasses whose fields carry their own help text and range.

One definition serves the command line's options, the docstring of the dataclass and the checks:

    @settings
    class WarmStart:
        "How a warm start is trained."
        steps: int = setting(300, "supervised steps before RL; 0: none", least=0)
"""

from __future__ import annotations

import textwrap
from dataclasses import Field, dataclass, field, fields
from typing import Any, Literal, TypeVar, cast, dataclass_transform, get_args, get_origin, get_type_hints

from .errors import BadValue

C = TypeVar("C", bound=type)


def setting(default: Any, help: str, least: float | None = None, above: float | None = None) -> Any:
    """A field of a `settings` dataclass.

    least: the smallest value it may have; above: a bound that it must exceed. A value of None is not checked.
    """
    return field(default=default, metadata={"help": help, "least": least, "above": above})


@dataclass_transform(frozen_default=True)
def settings(cls: C) -> C:
    """Class decorator: a frozen dataclass that checks its values and whose docstring lists its fields."""
    if not hasattr(cls, "__post_init__"):
        cls.__post_init__ = check
    made = cast(Any, dataclass(frozen=True)(cls))
    wide = max(len(f.name) for f in fields(made))
    lines = [f"{f.name:<{wide}}  {described(f)}" for f in fields(made)]
    lines = [textwrap.fill(line, 116, subsequent_indent=" " * (wide + 2)) for line in lines]
    made.__doc__ = "\n".join([(cls.__doc__ or "").strip(), "", *lines])
    return made


def described(f: Field[Any]) -> str:
    """A field's help text with its default, unless the text says already what that is."""
    text, default = f.metadata["help"], f.default
    if default is None or "(default" in text:
        return text
    shown = ",".join(map(str, cast("tuple[Any, ...]", default))) if isinstance(default, tuple) else default
    return f"{text} (default: {shown})"


def check(values: Any) -> None:
    """Raise BadValue for the first field of a `settings` dataclass whose value is not a choice or out of range."""
    kinds = get_type_hints(cast(Any, type(values)))
    for f in fields(values):
        value, choices = getattr(values, f.name), get_args(kinds[f.name])
        if get_origin(kinds[f.name]) is Literal and value not in choices:
            raise BadValue(f"{f.name}: must be one of {', '.join(map(str, choices))}, not {value!r}")
        least, above = f.metadata["least"], f.metadata["above"]
        if value is not None and least is not None and not value >= least:
            raise BadValue(f"{f.name}: must be at least {least}, not {value}")
        if value is not None and above is not None and not value > above:
            raise BadValue(f"{f.name}: must be above {above}, not {value}")
