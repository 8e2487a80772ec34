"""What each call of a search agent was for: a new query or one in vain, a page read for the first time or once more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..core.answers import normalise
from ..core.search_record import Search, documents_of

ALIKE = 0.5  # share of the words of two queries that are in both, from which on they are alike
NOTHING = "nothing found."  # what an engine says that found no page


class Calls(NamedTuple):
    """How many calls of an episode were of each kind: queries unique or repeated; pages explored, verified or idle."""

    unique: int
    repeated: int
    explored: int
    verified: int
    idle: int

    @property
    def share(self) -> float:
        """The share of the calls that are redundant; 0 where there are none."""
        return (self.repeated + self.idle) / max(2 * (self.unique + self.repeated), 1)


def calls_of(searches: Sequence[Search], verifications: int = 1) -> Calls:
    """The calls of an episode's searches, labelled one after the other. What finds nothing reads no page.

    A query is repeated where it has the words of an earlier one, or half of them and finds what that found. Reading
    explores where pages are new and the query is like none before, verifies where they are new and it is like one, up
    to `verifications` times for each.

    >>> from selfteach.core import Ref
    >>> asked = [("home of Ann", "it is Ulm."), ("Ann home", "it is Ulm."), ("Ann home now", "Ann lives in Ulm.")]
    >>> calls_of([Search("", query, found, Ref("e", 0)) for query, found in asked])  # the third is new, and like both
    Calls(unique=2, repeated=1, explored=1, verified=1, idle=1)
    """
    before, read = list[tuple[frozenset[str], frozenset[str]]](), set[str]()
    checked = dict[int, int]()  # which earlier query -> how often what it found was verified
    repeated = explored = verified = 0
    for search in searches:
        words = frozenset(normalise(search.query).split())
        pages = frozenset(documents_of(search.found)) - {NOTHING}
        alike = [n for n, (said, _) in enumerate(before) if len(words & said) >= ALIKE * max(len(words | said), 1)]
        repeated += any(before[n][0] == words or before[n][1] & pages for n in alike)
        if pages - read and not alike:
            explored += 1
        elif pages - read and checked.get(alike[0], 0) < verifications:
            verified += 1
            checked[alike[0]] = checked.get(alike[0], 0) + 1
        before.append((words, pages))
        read |= pages
    n = len(searches)
    return Calls(n - repeated, repeated, explored, verified, n - explored - verified)
