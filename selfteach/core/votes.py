"""When two answers are the same, and which of many has the most votes."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Literal


def normalise(text: str) -> str:
    """Lower case, without punctuation, articles and doubled spaces (Rajpurkar et al. 2016).

    >>> normalise("The  U.S. Dollar!")
    'us dollar'
    """
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def canonical(answer: Any) -> str | None:
    """One text for all answers that are the same: numbers by value, words normalised, all else but for its spaces. None: no answer.

    >>> [canonical(a) for a in (" 7.0", "-7", "The Nile.", "7 + 5", "", None)]
    ['7', '-7', 'nile', '7+5', None, None]
    """
    text = "" if answer is None else str(answer).strip()
    try:
        number = Decimal(text.replace(",", ""))
    except InvalidOperation:
        number = None
    if number is not None and number.is_finite():
        return f"{number.normalize() + 0:f}"  # + 0: there is one zero
    return (normalise(text) if any(c.isalpha() for c in text) else "".join(text.split())) or None


def majority(answers: Sequence[Any], weights: Sequence[float] | None = None, ties: Literal["first", "none"] = "first") -> tuple[str | None, float]:
    """The canonical answer with the most votes, or the most weight, and its share of all that was cast; (None, 0.0) where there is none.

    An answer that is none has no vote, but counts among those who were asked. ties: of equals the earliest, or none.

    >>> majority(["7", "8", "7.0", None]), majority(["7", "8"], ties="none"), majority(["7", "8"], [0.5, 1.5])
    (('7', 0.5), (None, 0.0), ('8', 0.75))
    """
    cast = [1.0] * len(answers) if weights is None else [float(w) for w in weights]
    votes: dict[str, float] = {}
    for answer, weight in zip(answers, cast, strict=True):
        if (name := canonical(answer)) is not None:
            votes[name] = votes.get(name, 0.0) + weight
    if not votes:
        return None, 0.0
    best = max(votes, key=lambda a: votes[a])
    if ties == "none" and sum(v == votes[best] for v in votes.values()) > 1:
        return None, 0.0
    total = sum(cast)
    return best, votes[best] / total if total else 0.0
