"""The pages behind a search tool, its attribute `pages`: those of a task's documents, of a user's corpus or server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Protocol

import numpy as np

from ..core.errors import BadValue
from ..core.search_record import documents_of
from ..core.task import Document
from ..core.tool_calls import SEARCH, ToolText
from ..retrieval.engine import Engine, LocalEngine, NoAnswer
from ..retrieval.page_store import split

NO_ANSWER = "the search engine did not answer."
LONGEST = 100_000  # characters of a page that are read


class Pages(Protocol):
    """Pages by name, each in segments."""

    def find(self, query: str) -> Sequence[str] | ToolText:
        """The names of the pages that a query finds, best first; what is said where the engine gives no answer."""
        ...

    def segments(self, name: str) -> Sequence[str]:
        """What a page says, in order; nothing where it does not open."""
        ...

    def drawn(self, draw: np.random.Generator, count: int, but: str = "") -> Sequence[str]:
        """The names of `count` pages drawn with replacement, none of them `but`; none where there is no other."""
        ...

    def sentence(self, name: str) -> str:
        """The first sentence of a page."""
        ...


class TaskPages:
    """The documents of a task by their titles, a document to a segment.

    engine  the tool that finds them
    """

    def __init__(self, documents: Sequence[Document], engine: Callable[[str], str]) -> None:
        self.documents, self.engine = documents, engine

    @cached_property
    def pages(self) -> dict[str, list[str]]:
        """Title -> its documents."""
        made = dict[str, list[str]]()
        for document in self.documents:
            made.setdefault(document.title, []).append(document.text)
        return made

    @cached_property
    def title_of(self) -> dict[str, str]:
        """Document -> its title."""
        return {text: title for title, texts in self.pages.items() for text in texts}

    def find(self, query: str) -> list[str]:
        """The titles of what a query finds."""
        found = documents_of(self.engine(query))
        return list(dict.fromkeys(self.title_of[d] for d in found if d in self.title_of))

    def segments(self, name: str) -> list[str]:
        """The documents of a title."""
        return self.pages[name]

    def drawn(self, draw: np.random.Generator, count: int, but: str = "") -> list[str]:
        """Titles."""
        others = [title for title in self.pages if title != but]
        return [others[int(i)] for i in draw.integers(len(others), size=count)] if others else []

    def sentence(self, name: str) -> str:
        """The first document."""
        return self.pages[name][0]


class EnginePages:
    """The pages of a user's corpus or server by their ids, a passage to a segment.

    top  passages among whose pages are those that a query finds
    """

    def __init__(self, engine: Engine, top: int) -> None:
        self.engine, self.top = engine, top

    def find(self, query: str) -> list[str] | ToolText:
        """The ids of what a query finds."""
        try:
            hits = self.engine.search(query, self.top).hits
        except NoAnswer as error:
            return ToolText(NO_ANSWER, {f"{SEARCH}{n}": v for n, v in {**error.counts, "failed": 1.0}.items()})
        return list(dict.fromkeys(hit.id or hit.title for hit in hits))

    def segments(self, name: str) -> list[str]:
        """The passages of a page, each on a line."""
        try:
            page = self.engine.read(name, 0, LONGEST)
        except NoAnswer:
            return []
        return [line for piece in split(page.text if page else "") if (line := " ".join(piece.split()))]

    def drawn(self, draw: np.random.Generator, count: int, but: str = "") -> list[str]:
        """Ids, each as often as its page has passages. Raises BadValue for a server, whose pages nobody can draw."""
        if not isinstance(self.engine, LocalEngine):
            raise BadValue("search: other pages can be drawn of a corpus, not of a server; leave them out")
        ids = [self.engine.hit(int(n)).id for n in draw.integers(len(self.engine), size=count)]
        return [id for id in ids if id != but]

    def sentence(self, name: str) -> str:
        """The first sentence of the first passage."""
        return next((documents_of(text)[0] for text in self.segments(name)), "")
