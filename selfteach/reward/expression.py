"""Rewards for arithmetic expressions: exact rational arithmetic, by a parser of numbers, + - * / and parentheses."""

from __future__ import annotations

import re
from collections import Counter
from fractions import Fraction
from typing import Any

from ..core import Score, block
from ..core.errors import BadValue

MAX_TOKENS = 64  # an expression with more is refused
_TOKEN = re.compile(r"\s*([0-9]{1,9}|[-+*/()])")


def tokens(text: str) -> list[str]:
    """The numbers, operators and parentheses of an expression. Raises BadValue for anything else in it."""
    out: list[str] = []
    at, text = 0, text.strip()
    while at < len(text):
        m = _TOKEN.match(text, at)
        if m is None or len(out) >= MAX_TOKENS:
            raise BadValue(
                f"no arithmetic at {text[at : at + 12]!r}" if m is None else f"more than {MAX_TOKENS} numbers and signs"
            )
        out.append(m.group(1))
        at = m.end()
    return out


def value_of(row: list[str]) -> Fraction:
    """The exact value of an expression given as tokens; `*` and `/` bind tighter, operators associate to the left.

    Raises BadValue where it has none.

    >>> value_of(tokens("(7 - 3) / 8 * 2"))
    Fraction(1, 1)
    """
    value, at = _sum(row, 0)
    if at < len(row):
        raise BadValue(f"{row[at]!r} is one too many")
    return value


def _sum(row: list[str], at: int) -> tuple[Fraction, int]:
    value, at = _product(row, at)
    while at < len(row) and row[at] in "+-":
        other, after = _product(row, at + 1)
        value, at = (value + other if row[at] == "+" else value - other), after
    return value, at


def _product(row: list[str], at: int) -> tuple[Fraction, int]:
    value, at = _atom(row, at)
    while at < len(row) and row[at] in "*/":
        other, after = _atom(row, at + 1)
        if row[at] == "/" and other == 0:
            raise BadValue("a division by zero")
        value, at = (value * other if row[at] == "*" else value / other), after
    return value, at


def _atom(row: list[str], at: int) -> tuple[Fraction, int]:
    if at >= len(row):
        raise BadValue("it ends too early")
    if row[at] == "(":
        value, at = _sum(row, at + 1)
        if at >= len(row) or row[at] != ")":
            raise BadValue("a parenthesis is left open")
        return value, at + 1
    if not row[at].isdigit():
        raise BadValue(f"a number is missing before {row[at]!r}")
    return Fraction(int(row[at])), at + 1


@block
def makes(*, answer: Any, target: int = 0, numbers: tuple[int, ...] = ()) -> Score:
    """1 if the answer is an expression of value `target` that uses each of `numbers` at most once, else 0.

    Parts: `answer`, and `close` = 1 / (1 + |value - target|), 0 where there is no allowed expression: a metric of how
    near it came, not rewarded. (The Countdown game as posed by TinyZero, Pan et al. 2025.)
    """
    try:
        row = tokens("" if answer is None else str(answer))
        not_given = Counter(map(int, filter(str.isdigit, row))) - Counter(numbers)
        if not_given:
            raise BadValue(f"{next(iter(not_given))} is not there to use, or not so often")
        value = value_of(row)
    except BadValue as error:
        return Score(0.0, {"answer": 0.0, "close": 0.0}, str(error))
    right = value == target
    return Score(
        float(right),
        {"answer": float(right), "close": float(1 / (1 + abs(value - target)))},
        "" if right else f"it makes {value}",
    )
