"""When two answers are the same, and which of many has the most votes."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

from .errors import BadValue
from .task import Task

MINUS = "\N{MINUS SIGN}"
# The punctuation that belongs to a number: the minus before it (and before its currency sign), the point within it.
NUMERAL = re.compile(r"(?<!\w)-(?=[^\w\s]*\d)|(?<=\d)\.(?=\d)")
# What a name or a phrase has, and what formulas and programs have.
LETTERS = re.compile(r"[^\W\d_]{2}")
CODE = re.compile(r"[\\={}<>_^;\n]")


def gold_answers(task: Task) -> list[str]:
    """The accepted answers of a task, as texts; none where it has no answer.

    >>> gold_answers(Task("t", "", ("Ulm", 7))), gold_answers(Task("t", "", "Ulm")), gold_answers(Task("t", ""))
    (['Ulm', '7'], ['Ulm'], [])
    """
    if task.answer is None:
        return []
    if isinstance(task.answer, str) or not isinstance(task.answer, Iterable):
        return [str(task.answer)]
    return [str(a) for a in task.answer]


def reference_answer(task: Task) -> str:
    """The first accepted answer of a task. Raises BadValue where it has none."""
    if not (accepted := gold_answers(task)):
        raise BadValue(f"task {task.id} has no reference answer; take a task that has")
    return accepted[0]


def normalise(text: str) -> str:
    """Lower case, without articles, doubled spaces (Rajpurkar et al. 2016), and punctuation that is no number's.

    >>> normalise("The  U.S. Dollar!"), normalise("-7.5 degrees")
    ('us dollar', '-7.5 degrees')
    """
    text = text.lower().replace(MINUS, "-")
    kept = {m.start() for m in NUMERAL.finditer(text)}
    text = "".join(c for i, c in enumerate(text) if i in kept or c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def f1(answer: str, gold: str) -> float:
    """The F1 of the normalised words of two texts, counted with repeats; 0 where they share none.

    >>> f1("the river Po", "Po")  # of two words one is right: 2 / (2 + 1)
    0.6666666666666666
    """
    said, wanted = Counter(normalise(answer).split()), Counter(normalise(gold).split())
    shared = sum((said & wanted).values())
    return 2.0 * shared / (sum(said.values()) + sum(wanted.values())) if shared else 0.0


def in_words(text: str) -> bool:
    """Whether an answer is words, a name or a phrase: no number, no option's letter, no formula or program.

    >>> [in_words(t) for t in ("Ulm", "the 1990s", "-1,200", "B", "x + y = 2", "{1, 2}", "a = 1; print(a)")]
    [True, True, False, False, False, False, False]
    """
    return number(text) is None and bool(LETTERS.search(text)) and not CODE.search(text)


def number(text: str) -> Decimal | None:
    """The value of a text that is a number, thousands separators allowed; None for any other text.

    >>> number("-1,200.0") == -1200, number("7 apples")
    (True, None)
    """
    text = text.strip().replace(MINUS, "-").replace(",", "")
    try:
        value = Decimal(re.sub(r"^([+-])\s+", r"\1", text))
    except InvalidOperation:
        return None
    return value if value.is_finite() else None


def same(one: str, other: str) -> bool:
    """Whether two answers are the same: numbers by value, all else as normalised text.

    >>> same("7.0", "7"), same("-7", "7"), same("$12", "12"), same("The Nile.", "nile")
    (True, False, True, True)
    """
    left, right = number(one), number(other)
    return normalise(one) == normalise(other) if left is None or right is None else left == right


def canonical(answer: Any) -> str | None:
    """One text for all answers that are the same: numbers by value, words normalised, all else but for its spaces.
    None: no answer.

    >>> [canonical(a) for a in (" 7.0", "-7", "The Nile.", "A", "7 + 5", "", None)]
    ['7', '-7', 'nile', 'a', '7+5', None, None]
    """
    text = "" if answer is None else str(answer).strip()
    if (value := number(text)) is not None:
        value = value.normalize() + 0  # + 0: there is one zero
        return f"{value:f}" if abs(value.adjusted()) < 50 else str(value)  # not a billion digits for 1e999999999
    words = normalise(text) if any(c.isalpha() for c in text) else ""
    return words or "".join(text.lower().split()) or None  # an article alone is an answer: option A


def for_verifier(reference: str, answer: str) -> str:
    r"""What a model that verifies answers reads after the question: the reference answer, and under it the answer.

    >>> for_verifier("Ulm", "it is Ulm")
    '\n Ulm\n it is Ulm\n '
    """
    return f"\n {reference.strip()}\n {answer.strip()}\n "


def majority(
    answers: Sequence[Any], weights: Sequence[float] | None = None, ties: Literal["first", "none"] = "first"
) -> tuple[str | None, float]:
    """The canonical answer with the most votes, or the most weight, and its share of the total weight; (None, 0.0)
    where there is none.

    None has no vote, but its weight counts in the total. ties: of equals "first" takes the earliest, "none" gives
    (None, 0.0).

    >>> majority(["7", "8", "7.0", None]), majority(["7", "8"], ties="none"), majority(["7", "8"], [0.5, 1.5])
    (('7', 0.5), (None, 0.0), ('8', 0.75))
    """
    cast_weights = [1.0] * len(answers) if weights is None else [float(w) for w in weights]
    votes: dict[str, float] = {}
    for answer, weight in zip(answers, cast_weights, strict=True):
        if (name := canonical(answer)) is not None:
            votes[name] = votes.get(name, 0.0) + weight
    if not votes:
        return None, 0.0
    best = max(votes, key=lambda a: votes[a])
    if ties == "none" and sum(v == votes[best] for v in votes.values()) > 1:
        return None, 0.0
    total = sum(cast_weights)
    return best, votes[best] / total if total else 0.0
