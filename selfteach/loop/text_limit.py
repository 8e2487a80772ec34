"""A bound on text that tools and tasks put into a context: what cannot fit is cut before a tokenizer reads it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any, cast

from ..core.errors import BadValue

CUT = "cut_text"  # in an episode's cost: the characters left out of what tools said
CHARACTERS_PER_TOKEN = 16  # of a context: far more than any language has, so that text which fits is never cut


def cut(value: Any, limit: int, cost: MutableMapping[str, float]) -> Any:
    """A text, or a message's value with texts in it, without what is beyond `limit` characters in all.

    What is left out is counted in the episode's `cost`.
    """
    left = limit

    def within(value: Any) -> Any:
        nonlocal left
        if isinstance(value, str):
            if len(value) > left:
                cost[CUT] = cost.get(CUT, 0) + len(value) - left
                value = value[:left]
            left -= len(value)
            return value
        if isinstance(value, Mapping):
            return {k: within(v) for k, v in cast("Mapping[Any, Any]", value).items()}
        if isinstance(value, list | tuple):
            return [within(v) for v in cast("list[Any]", value)]
        return value

    return within(value)


def refuse_beyond(value: Any, limit: int, what: str) -> None:
    """Raise BadValue where a text, or messages, have more than `limit` characters: they are to be read whole."""
    counts: dict[str, float] = {}
    cut(value, limit, counts)
    if counts:
        length = limit + int(counts[CUT])
        raise BadValue(
            f"{what}: {length} characters, and no more than {limit} can fit the context; give a shorter one, or a"
            " longer context"
        )


def cut_text(costs: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """{cut_text: characters that were cut} of episodes with these costs; empty where nothing was."""
    total = sum(cost.get(CUT, 0) for cost in costs)
    return {CUT: total} if total else {}


def cut_line(characters: float) -> str:
    """What is said where text was cut."""
    return (
        f"{characters:.0f} characters of what tools said were left out: no context holds them; let the tools say less,"
        " or ask for a longer context"
    )
