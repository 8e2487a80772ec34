"""BM25 search over the task's documents (tantivy, embedded), indexed once and cached on disk."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from typing import Any

from ..core.blocks import block
from ..core.errors import BadValue
from ..core.random_keys import generator, key, uniform_at
from ..core.task import Document, TaskSource
from .index import load_or_build, schema, tantivy

NO_RESULT = "nothing found."
LONGEST = 4000  # characters of a query that are read
TERMS = 64  # different words of a query that are searched for
EXTRA_HITS = 32  # hits fetched beyond those wanted, so that ties at the edge are broken by document number

# Scripts written without spaces are cut into characters; everything else into runs of letters and digits.
_SINGLE = "぀-ヿ㐀-鿿豈-﫿"
_WORD = re.compile(rf"[{_SINGLE}]|[^\W{_SINGLE}]+")
_ACCENTS = re.compile("[̀-ͯ]")
_TAG = re.compile(r"</?(?:think|search|information|answer)>")


def words(text: str) -> list[str]:
    """The terms of a text in the index: lower case, without accents, at most 40 characters each."""
    folded = unicodedata.normalize("NFC", _ACCENTS.sub("", unicodedata.normalize("NFKD", text.casefold())))
    return [w[:40] for w in _WORD.findall(folded)]


@block
def search(
    *,
    source: TaskSource,
    top: int = 3,
    chars: int = 200,
    title: float = 0.25,
    noise: float = 0.0,
    some: bool = False,
) -> Callable[[str], str]:
    """The best documents for a query by BM25, their texts joined by a space; "nothing found." where there is none.

    Answers every query: what is no letter or digit is ignored, and there is no query language. Needs a task with a
    corpus, else raises BadValue.

    top    documents in an answer
    chars  longest text taken from each, cut at a word
    title  weight of a match in a document's title against one in its text
    noise  share of the results replaced by other documents, the same ones whenever the query is the same
    some   only the first 1 to `top` of the results, as many for the same query always
    """
    if source.corpus is None:
        raise BadValue(f"tool search: task {source.name} has no corpus; use a task with documents, such as atlas")
    if top < 1 or chars < 1:
        raise BadValue(f"tool search: top and chars must be at least 1, not {top} and {chars}")
    if not 0 <= noise <= 1 or title < 0:
        raise BadValue(f"tool search: noise must be from 0 to 1 and title at least 0, not {noise} and {title}")
    documents = source.corpus()
    searcher = load_or_build(documents, words).searcher()

    def results(query: str) -> str:
        query = _encodable(str(query)[:LONGEST])
        wanted = 1 + int(generator("search results", query).integers(top)) if some else top
        numbers = rank(searcher, query, wanted, title, len(documents))
        if noise:
            numbers = [_with_noise(n, query, place, noise, len(documents)) for place, n in enumerate(numbers)]
        return " ".join(_snippet(documents[n], chars) for n in numbers) or NO_RESULT

    return results


def rank(searcher: Any, text: str, top: int, title: float, count: int) -> list[int]:
    """Numbers of the `top` documents of `count`, best first; equal scores in the order of the corpus.

    title  weight of a match in the title; empty where no word of the query occurs
    """
    terms = list(dict.fromkeys(words(text[:LONGEST])))[:TERMS]
    if not terms or not count:
        return []
    should, query = tantivy().Occur.Should, tantivy().Query
    clauses = [(should, query.term_query(schema(), "text", t)) for t in terms]
    if title:
        clauses += [(should, query.boost_query(query.term_query(schema(), "title", t), title)) for t in terms]
    hits = searcher.search(query.boolean_query(clauses), limit=min(top + EXTRA_HITS, count), count=False).hits
    numbered = [(-score, searcher.doc(address)["number"][0]) for score, address in hits]
    return [number for _, number in sorted(numbered)][:top]


def _with_noise(number: int, query: str, rank: int, noise: float, count: int) -> int:
    """The number of a result, or another document's for the share `noise` of (query, rank) pairs."""
    if count < 2 or uniform_at(key("search noise", query, rank), 0) >= noise:
        return number
    return (number + 1 + int(generator("search noise", query, rank).integers(count - 1))) % count


def _encodable(text: str) -> str:
    """The text in valid UTF-8: lone surrogates, which a byte-level model can write, become question marks."""
    return text.encode("utf-8", "replace").decode()


def _snippet(document: Document, chars: int) -> str:
    """A document's text on one line, without the tags that programs parse, cut at a word."""
    text = " ".join(_TAG.sub(" ", _encodable(document.text)).split())
    return text if len(text) <= chars else text[: chars + 1].rsplit(" ", 1)[0][:chars]
