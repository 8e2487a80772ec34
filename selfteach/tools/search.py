"""A real search engine over the task's documents: BM25 (tantivy), embedded, indexed once per corpus and kept on disk."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from typing import Any

import tantivy

from ..core.address import generator, key, uniform
from ..core.errors import BadValue
from ..core.part import block
from ..core.task import Document, Source
from .index import opened, schema

NOTHING = "nothing found."
LONGEST = 4000  # characters of a query that are read
TERMS = 64  # different words of a query that are asked for
SPARE = 32  # hits fetched beyond those wanted, so that ties at the edge are broken by document number

# Scripts written without spaces are cut into characters; everything else into runs of letters and digits.
_SINGLE = "぀-ヿ㐀-鿿豈-﫿"
_WORD = re.compile(rf"[{_SINGLE}]|[^\W{_SINGLE}]+")
_ACCENTS = re.compile("[̀-ͯ]")
_TAG = re.compile(r"</?(?:think|search|information|answer)>")


def words(text: str) -> list[str]:
    """The words of a text as the index knows them: lower case, without accents, at most 40 characters each."""
    plain = unicodedata.normalize("NFC", _ACCENTS.sub("", unicodedata.normalize("NFKD", text.casefold())))
    return [w[:40] for w in _WORD.findall(plain)]


@block
def search(*, source: Source, top: int = 3, chars: int = 200, title: float = 0.25, noise: float = 0.0) -> Callable[[str], str]:
    """Best documents for a query by BM25, their texts joined by a space; "nothing found." where there is none.

    Answers every query: what is no letter or digit is ignored, and there is no query language. Needs a task with a corpus.

    top    documents in an answer
    chars  longest text taken from each, cut at a word
    title  weight of a match in a document's title against one in its text
    noise  share of the results replaced by other documents, the same ones whenever the query is the same
    """
    if source.corpus is None:
        raise BadValue(f"tool search: task {source.name} has no corpus; use a task with documents, such as atlas")
    if top < 1 or chars < 1:
        raise BadValue(f"tool search: top and chars must be at least 1, not {top} and {chars}")
    if not 0 <= noise <= 1 or title < 0:
        raise BadValue(f"tool search: noise must be from 0 to 1 and title at least 0, not {noise} and {title}")
    documents = source.corpus()
    searcher = opened(documents, words).searcher()

    def ask(query: str) -> str:
        query = _sound(str(query)[:LONGEST])
        found = ranked(searcher, query, top, title, len(documents))
        if noise:
            found = [_instead(n, query, rank, noise, len(documents)) for rank, n in enumerate(found)]
        return " ".join(_snippet(documents[n], chars) for n in found) or NOTHING

    return ask


def ranked(searcher: Any, query: str, top: int, title: float, count: int) -> list[int]:
    """Numbers of the best documents, best first; equal scores in the order of the corpus. Empty where no word of the query occurs."""
    terms = list(dict.fromkeys(words(query[:LONGEST])))[:TERMS]
    if not terms or not count:
        return []
    wanted = [(tantivy.Occur.Should, tantivy.Query.term_query(schema(), "text", t)) for t in terms]
    if title:
        wanted += [(tantivy.Occur.Should, tantivy.Query.boost_query(tantivy.Query.term_query(schema(), "title", t), title)) for t in terms]
    hits = searcher.search(tantivy.Query.boolean_query(wanted), limit=min(top + SPARE, count), count=False).hits
    numbered = [(-score, searcher.doc(at)["number"][0]) for score, at in hits]
    return [number for _, number in sorted(numbered)][:top]


def _instead(number: int, query: str, rank: int, noise: float, count: int) -> int:
    """Another document in place of a result, for the share `noise` of (query, rank) pairs."""
    if count < 2 or float(uniform(key("search noise", query, rank), 0)) >= noise:
        return number
    return (number + 1 + int(generator("search noise", query, rank).integers(count - 1))) % count


def _sound(text: str) -> str:
    """A text that can be encoded: lone surrogates, which a byte-level model can write, become question marks."""
    return text.encode("utf-8", "replace").decode()


def _snippet(document: Document, chars: int) -> str:
    """A document's text on one line, without the tags that programs read, cut at a word."""
    text = " ".join(_TAG.sub(" ", _sound(document.text)).split())
    return text if len(text) <= chars else text[: chars + 1].rsplit(" ", 1)[0][:chars]
