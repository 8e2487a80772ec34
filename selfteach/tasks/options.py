"""Checks of a task's options: each returns the value, or raises BadValue in one line that names the option."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from typing import Any

from ..core.errors import BadValue, unknown


def check_number(task: str, name: str, value: Any) -> float:
    """The value, a finite number. Raises BadValue naming the option otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadValue(f"task {task}: {name} must be a number, not {value!r}")
    return value


def check_share(task: str, name: str, value: Any) -> float:
    """The value, a number from 0 to 1. Raises BadValue naming the option otherwise."""
    if not 0 <= check_number(task, name, value) <= 1:
        raise BadValue(f"task {task}: {name} must be a share from 0 to 1, not {value!r}")
    return value


def check_shares(task: str, name: str, value: Any, of: Collection[str]) -> dict[str, float]:
    """The shares by name, one of each in order; they sum to 1. Raises BadValue naming the option otherwise."""
    if not isinstance(value, tuple | list) or len(value) != len(of):
        raise BadValue(f"task {task}: {name} must be {len(of)} shares, not {value!r}")
    for share in value:
        check_share(task, name, share)
    if abs(sum(value) - 1) > 1e-6:
        raise BadValue(f"task {task}: {name} must sum to 1, not {sum(value):g}")
    return dict(zip(of, value, strict=True))


def check_range(task: str, name: str, value: Any, low: int, high: int) -> tuple[int, int]:
    """The value, (fewest, most) within bounds. Raises BadValue naming the option otherwise."""
    if not isinstance(value, tuple | list) or len(value) != 2 or not low <= value[0] <= value[1] <= high:
        raise BadValue(
            f"task {task}: {name} must be (fewest, most) from {low} to {high}, such as ({low}, {min(low + 2, high)}), "
            f"not {value!r}"
        )
    return (value[0], value[1])


def check_at_least(task: str, name: str, value: Any, low: int) -> int:
    """The value, a whole number of at least `low`. Raises BadValue naming the option otherwise."""
    if check_number(task, name, value) < low or not isinstance(value, int):
        raise BadValue(f"task {task}: {name} must be a whole number of at least {low}, not {value!r}")
    return value


def check_names(task: str, name: str, value: Any, known: Collection[str], kind: str) -> tuple[str, ...]:
    """The value as a tuple of names in `known`. Raises BadValue naming the option, or UnknownName, otherwise."""
    if not isinstance(value, tuple | list):
        raise BadValue(f"task {task}: {name} must be names, such as {tuple(known)[:2]}, not {value!r}")
    for one in value:
        if one not in known:
            raise unknown(kind, one, known)
    return tuple(value)


def parse_config(task: str, text: str | Mapping[str, Any]) -> dict[str, Any]:
    """Options of another package: `key=value,key=value` or JSON, as a dict; a value is JSON where it can be read so.

    >>> parse_config("gym", "is_slippery=false,map_name=8x8"), parse_config("gym", '{"n": [1, 2]}')
    ({'is_slippery': False, 'map_name': '8x8'}, {'n': [1, 2]})
    """
    if isinstance(text, Mapping):
        return dict(text)
    if text.strip().startswith("{"):
        try:
            return dict(json.loads(text))
        except ValueError as error:
            raise BadValue(f"task {task}: config is no JSON ({error})") from None
    out: dict[str, Any] = {}
    for word in filter(None, text.split(",")):
        name, equals, value = word.partition("=")
        if not equals:
            raise BadValue(f"task {task}: config must be key=value,key=value or JSON, not {text!r}")
        try:
            out[name.strip()] = json.loads(value)
        except ValueError:
            out[name.strip()] = {"True": True, "False": False, "None": None}.get(value, value)
    return out
