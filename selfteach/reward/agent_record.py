"""What rewards read in what a search agent said and was told (core/search_record.py): verdicts, sub-questions, form."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from ..core import Task
from ..core.answers import normalise
from ..core.errors import BadValue
from ..core.search_record import INFORMATION, Piece, own_text
from ..core.tagged_text import last_between


class Verdict(NamedTuple):
    """What an agent said of one search: its goal ("" where it stated none), what was found, whether that is useful."""

    goal: str
    information: str
    accepted: bool


def count_searches(pieces: Sequence[Piece]) -> int:
    """How many results an agent got."""
    return sum(p.kind == INFORMATION for p in pieces)


def keywords_of(task: Task) -> list[list[str]]:
    """For each sub-question of a task the ways of asking it (tag `keywords`). Raises BadValue for a task without."""
    if "keywords" not in task.tags:
        raise BadValue(f"task {task.id}: has no sub-questions (tag keywords); take a task that has, such as factworld")
    return [list(ways) for ways in task.tags["keywords"]]


def sub_question(query: str, task: Task) -> int | None:
    """Which sub-question of its task a query asks, in whatever order of words; None where it is none of them.

    >>> ann = Task("t", "", tags={"keywords": (("home of Ann", "Ann home"), ("mayor of Ulm", "Ulm mayor"))})
    >>> sub_question("home Ann", ann), sub_question("mayor of Ulm", ann), sub_question("river of Ulm", ann)
    (0, 1, None)
    """
    asked = _words(query)
    return next((n for n, ways in enumerate(keywords_of(task)) if any(asked == _words(w) for w in ways)), None)


def _words(query: str) -> set[str]:
    return set(normalise(query).split()) - {"of"}


def verdicts_of(pieces: Sequence[Piece], tag: str, yes: str, no: str) -> list[Verdict | None]:
    """Of each result the verdict that the agent gave before its next search, in a tag; None where it gave none.

    >>> told = Piece("information", "<information>the home of Ann is Ulm.</information>")
    >>> verdicts_of([Piece("own", "<search>home of Ann</search>"), told, Piece("own", "<judge> Yes</judge>")],
    ... "judge", "Yes", "No")[0].accepted
    True
    """
    out, said = list[Verdict | None](), ""
    verdict = re.compile(rf"<{tag}>\s*({yes}|{no})\s*</{tag}>", re.IGNORECASE)
    for n, piece in enumerate(pieces):
        if piece.kind == "own":
            said = piece.text
        if piece.kind != INFORMATION:
            continue
        after = next((p.text for p in pieces[n + 1 :] if p.kind in ("own", INFORMATION)), "")
        match = verdict.search(after.partition("<search>")[0])
        found = piece.text.removeprefix("<information>").removesuffix("</information>").strip()
        goal = last_between(said, "goal", "")
        out.append(Verdict(goal, found, match[1].lower() == yes.lower()) if match else None)
    return out


def fault(pieces: Sequence[Piece]) -> str:
    """The first fault of form in what an agent said: a turn that was neither a query nor an answer, a tag that is not
    closed, no answer or more than one; empty where there is none.

    >>> fault([Piece("own", "<think>so<answer> Ulm</answer>")])
    'think is not closed'
    """
    if any(p.kind == "told" and "neither a query nor an answer" in p.text for p in pieces):
        return "a turn with neither a query nor an answer"
    said = own_text(pieces)
    for tag in dict.fromkeys(re.findall(r"</?(\w+)>", said)):
        if tag != INFORMATION and said.count(f"<{tag}>") != said.count(f"</{tag}>"):
            return f"{tag} is not closed"
    if (answers := said.count("</answer>")) != 1:
        return "no answer" if not answers else "more than one answer"
    return ""
