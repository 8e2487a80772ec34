"""BM25 search over the task's documents (tantivy, embedded), indexed once and cached on disk."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from ..core.blocks import block
from ..core.errors import BadValue
from ..core.random_keys import generator, key, uniform_at
from ..core.tagged_text import without_tags
from ..core.task import TaskSource
from ..core.tool_calls import SEARCH, ToolText
from ..retrieval.bm25 import LONGEST, load_or_build, rank
from ..retrieval.corpus_files import valid_text
from ..rollout.search import with_a_word_less
from .pages import NO_ANSWER, TaskPages

NO_RESULT = "nothing found."
REMEMBERED = 1 << 14  # queries whose results are kept: the episodes of a group mostly ask the same


@block
def search(
    *,
    source: TaskSource,
    top: int = 3,
    chars: int = 200,
    title: float = 0.25,
    noise: float = 0.0,
    some: bool = False,
    failures: float = 0.0,
    latency: float = 0.0,
    perturbed: float = 0.0,
) -> Callable[[str], str]:
    """The best documents for a query by BM25, their texts joined by a space; "nothing found." where there is none.

    Answers every query: what is no letter or digit is ignored, and there is no query language. Needs a task with a
    corpus, else raises BadValue.

    top    documents in an answer
    chars  longest text taken from each, cut at a word
    title  weight of a match in a document's title against one in its text
    noise  share of the results replaced by other documents, the same ones whenever the query is the same
    some   only the first 1 to `top` of the results, as many for the same query always
    failures   share of the queries that get no answer, the same ones always
    latency    seconds that answers are late in the mean, drawn per query (exponential)
    perturbed  share of the queries of which the engine gets all words but one, the same ones always
    """
    if source.corpus is None:
        raise BadValue(f"tool search: task {source.name} has no corpus; use a task with documents, such as atlas")
    if top < 1 or chars < 1:
        raise BadValue(f"tool search: top and chars must be at least 1, not {top} and {chars}")
    if not 0 <= noise <= 1 or title < 0:
        raise BadValue(f"tool search: noise must be from 0 to 1 and title at least 0, not {noise} and {title}")
    for name, share in (("failures", failures), ("perturbed", perturbed)):
        if not 0 <= share <= 1:
            raise BadValue(f"tool search: {name} must be from 0 to 1, not {share}")
    if latency < 0:
        raise BadValue(f"tool search: latency must be at least 0 seconds, not {latency}")
    documents = source.corpus()
    searcher = load_or_build(documents).searcher()

    @lru_cache(REMEMBERED)
    def results(query: str) -> str:
        wanted = some_of(top, generator("search results", query)) if some else top
        numbers = rank(searcher, query, wanted, title, len(documents))
        if noise:
            numbers = [_with_noise(n, query, place, noise, len(documents)) for place, n in enumerate(numbers)]
        return " ".join(one_line(documents[n].text, chars) for n in numbers) or NO_RESULT

    def answer(query: str) -> str:
        query = valid_text(str(query)[:LONGEST])
        be_late(query, latency)
        if fails(query, failures):
            return ToolText(NO_ANSWER, {f"{SEARCH}failed": 1})
        asked = perturbed_query(query, perturbed)
        found = results(asked)
        return found if asked == query else ToolText(found, {f"{SEARCH}perturbed": 1})

    made: Any = answer
    made.pages = TaskPages(documents, answer)
    return made


def some_of(top: int, draw: np.random.Generator) -> int:
    """How many results are given where those are the first 1 to `top`, each number as likely (SSRL's tests: 1 to 3)."""
    return 1 + int(draw.integers(top))


def _with_noise(number: int, query: str, rank: int, noise: float, count: int) -> int:
    """The number of a result, or another document's for the share `noise` of (query, rank) pairs."""
    if count < 2 or uniform_at(key("search noise", query, rank), 0) >= noise:
        return number
    return (number + 1 + int(generator("search noise", query, rank).integers(count - 1))) % count


def be_late(query: str, latency: float) -> None:
    """Wait as long as the answer to a query is late: exponential, `latency` seconds in the mean, at most ten times."""
    if latency:
        time.sleep(min(-math.log1p(-uniform_at(key("search latency", query), 0)), 10.0) * latency)


def fails(query: str, share: float) -> bool:
    """Whether a query is one of the share that gets no answer."""
    return share > 0 and uniform_at(key("search failure", query), 0) < share


def perturbed_query(query: str, share: float) -> str:
    """What the engine gets of a query: of this share of them all words but one (`with_a_word_less`)."""
    if not share or uniform_at(key("search perturbed", query), 0) >= share:
        return query
    return with_a_word_less(query, generator("search perturbed", query))


def replaced_by(query: str, rank: int, noise: float, count: int) -> int | None:
    """The number of the passage in place of a result, for the share `noise` of (query, rank) pairs; else None."""
    if uniform_at(key("search noise", query, rank), 0) >= noise:
        return None
    return int(generator("search noise", query, rank).integers(count))


def one_line(text: str, chars: int) -> str:
    """A text on one line, in valid UTF-8 and without the tags that programs parse, cut at a word.

    Lone surrogates, which a byte-level model can write, become question marks.
    """
    text = " ".join(without_tags(valid_text(text[: 16 * chars + LONGEST]), " ").split())
    return text if len(text) <= chars else text[: chars + 1].rsplit(" ", 1)[0][:chars]
