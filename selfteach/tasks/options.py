"""Checks of a task's options: each gives the value back, or raises BadValue with one line that names the option."""

from __future__ import annotations

import math
from typing import Any

from ..core.errors import BadValue


def number(task: str, name: str, value: Any) -> float:
    """`value` if it is a finite number. Raises BadValue naming the option otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadValue(f"task {task}: {name} must be a number, not {value!r}")
    return value


def share(task: str, name: str, value: Any) -> float:
    """`value` if it is from 0 to 1. Raises BadValue naming the option otherwise."""
    if not 0 <= number(task, name, value) <= 1:
        raise BadValue(f"task {task}: {name} must be a share from 0 to 1, not {value!r}")
    return value


def span(task: str, name: str, value: Any, low: int, high: int) -> tuple[int, int]:
    """`value` if it is (fewest, most) within bounds. Raises BadValue naming the option otherwise."""
    if not isinstance(value, tuple | list) or len(value) != 2 or not low <= value[0] <= value[1] <= high:
        raise BadValue(f"task {task}: {name} must be (fewest, most) from {low} to {high}, such as ({low}, {min(low + 2, high)}), not {value!r}")
    return (value[0], value[1])


def least(task: str, name: str, value: Any, low: int) -> int:
    """`value` if it is at least `low`. Raises BadValue naming the option otherwise."""
    if number(task, name, value) < low:
        raise BadValue(f"task {task}: {name} must be at least {low}, not {value!r}")
    return value
