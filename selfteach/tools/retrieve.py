"""The search engine of a user's own corpus or server as tools: `retrieve` finds passages, `open_page` reads pages."""

from __future__ import annotations

import inspect
import math
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ..core.blocks import Block, block
from ..core.errors import BadValue, unknown
from ..core.functions import function_spec
from ..core.random_keys import generator
from ..core.settings import Range, fits, kind_in_words
from ..core.tool_calls import SEARCH, ToolText
from ..retrieval.bm25 import LONGEST
from ..retrieval.corpus_files import valid_text
from ..retrieval.engine import (
    RETRIEVERS,
    Answer,
    Engine,
    Hit,
    LocalEngine,
    NoAnswer,
    check_retriever,
    no_progress,
    open_engine,
)
from ..retrieval.http import PROTOCOLS, HttpEngine, check_url
from ..retrieval.page_store import Progress, described
from .pages import NO_ANSWER, EnginePages
from .search import NO_RESULT, be_late, fails, one_line, perturbed_query, replaced_by, some_of

MOST_ENGINES = 8  # that a process holds
NEAR = 3  # titles that are said where a page is not found
PIECE_NUMBER = re.compile(r"(.+?)[\s,;:#|]+(?:piece\s+)?(\d{1,9})", re.DOTALL)
# What describes the engine, not what is said of its answers: tools that agree in it share one.
OF_ENGINE = ("corpus", "content", "retriever", "url", "timeout", "retries", "in_flight", "cached")


def search_function(query: str) -> str:
    """Search the documents: the passages that fit a query best.

    Args:
        query: what to look for, in a few words
    """
    raise NotImplementedError(query)


def open_function(page: str, piece: int = 1) -> str:
    """Read a page that was found, a piece at a time.

    Args:
        page: its title or its id
        piece: which piece of it, from 1 on
    """
    raise NotImplementedError(page, piece)


@block
def retrieve(
    *,
    corpus: str = "",
    content: str = "",
    retriever: str = "bm25",
    url: str = "",
    top: int = 3,
    chars: int = 1000,
    some: bool = False,
    noise: float = 0.0,
    failures: float = 0.0,
    latency: float = 0.0,
    perturbed: float = 0.0,
    timeout: float = 6.0,
    retries: int = 2,
    in_flight: int = 16,
    cached: bool = True,
    as_function: bool = False,
) -> Callable[[Any], ToolText]:
    """The best passages for a query, a line each: `Doc 1(Title: "Lyon") text`, as Search-R1's policies are shown them.

    Answers every query: "nothing found." where nothing fits, "the search engine did not answer." where it did not.
    Tags that programs read are taken out of what was found. What became of a query is counted (ToolText).

    corpus     the folder or file; content: the hash of what is in it, filled in
    retriever  bm25, dense or fused over a corpus; http (Search-R1's request) or searxng at a url
    url        of a server, in place of a corpus
    top        passages in an answer
    chars      longest text taken from each, cut at a word
    some       only the first 1 to `top` of the results, as many as each call of an episode draws for itself (`draw`)
    noise      share of the results replaced by other passages of the corpus, the same ones for the same query always
    failures   share of the queries that get no answer, the same ones always
    latency    seconds that answers are late in the mean, drawn per query (exponential)
    perturbed  share of the queries of which the engine gets all words but one, the same ones always
    timeout    seconds of one try of a server, of which there are 1 + retries
    in_flight  calls of a server at once
    cached     whether a server's answers are kept on disk
    as_function  the tool is called as a typed function `search(query)`, by call_functions
    """
    ranges = {"top": top, "chars": chars, "in_flight": in_flight, "retries": retries, "noise": noise}
    ranges |= {"failures": failures, "latency": latency, "perturbed": perturbed, "timeout": timeout}
    check_options({**ranges, "url": url})
    if retriever not in (*RETRIEVERS, *PROTOCOLS):
        raise unknown("retriever", retriever, (*RETRIEVERS, *PROTOCOLS))
    engine = engine_of(corpus, content, retriever, url, timeout, retries, in_flight, cached)

    def results(given: Any, draw: np.random.Generator | None = None) -> ToolText:
        query = str(given["query"] if isinstance(given, Mapping) else given)
        counts: dict[str, float] = {}
        if len(query) > LONGEST:
            query, counts = query[:LONGEST], {"cut": 1.0}
        query = valid_text(query)
        be_late(query, latency)
        if fails(query, failures):
            return _said(NO_ANSWER, counts | {"failed": 1})
        asked = perturbed_query(query, perturbed)
        counts |= {} if asked == query else {"perturbed": 1}
        try:
            answer = engine.search(asked, top)
        except NoAnswer as error:
            return _said(NO_ANSWER, counts | error.counts | {"failed": 1})
        if some:
            answer = answer._replace(hits=answer.hits[: some_of(top, draw or generator("search results", query))])
        hits, n_noisy = _with_noise(engine, answer, query, noise)
        counts |= answer.counts | ({"noisy": n_noisy} if n_noisy else {}) | ({} if hits else {"empty": 1})
        return _said("\n".join(_line(n, hit, chars) for n, hit in enumerate(hits, 1)) or NO_RESULT, counts)

    made: Any = results
    made.pages, made.draws = EnginePages(engine, top), some
    if as_function:
        made.spec = replace(function_spec(search_function), name="search")
    return made


@block
def open_page(
    *,
    corpus: str = "",
    content: str = "",
    retriever: str = "bm25",
    url: str = "",
    piece: int = 2000,
    timeout: float = 6.0,
    retries: int = 2,
    in_flight: int = 16,
    cached: bool = True,
    as_function: bool = False,
) -> Callable[[Any], ToolText]:
    """A piece of a page by its title or id: `Lyon` is the first, `Lyon 2` the second one of at most `piece` characters.

    Answers every name: where there is no such page, it says so with the titles nearest to it. The other options are
    those of `retrieve`.
    """
    check_options({"piece": piece})
    engine = engine_of(corpus, content, retriever, url, timeout, retries, in_flight, cached)

    def opened(given: Any) -> ToolText:
        if isinstance(given, Mapping):
            name, number = str(given["page"]), int(given.get("piece", 1))
        else:
            name, number = str(given).strip(), 1
        name = valid_text(name[:LONGEST])
        try:
            page = engine.read(name, (max(number, 1) - 1) * piece, piece)
            numbered = PIECE_NUMBER.fullmatch(name)
            if page is None and numbered:  # a name may end in a number of its own
                name, number = numbered[1], int(numbered[2])
                page = engine.read(name, (max(number, 1) - 1) * piece, piece)
            if page is None:
                near = dict.fromkeys(hit.title or hit.id for hit in engine.search(name, 4 * NEAR).hits)
                names = "; ".join(one_line(n, 100) for n in list(near)[:NEAR])
                return _said(f"there is no such page{f'; near it are: {names}' if names else ''}.", {"no_page": 1})
        except NoAnswer as error:
            return _said(NO_ANSWER, error.counts | {"failed": 1})
        count = max(1, math.ceil(page.length / piece))
        title = one_line(page.title or page.id, 200)
        if not 1 <= number <= count:
            return _said(f"{title} has {count} {'piece' if count == 1 else 'pieces'}.", {"no_page": 1})
        return _said(f"{title} (piece {number} of {count}): {one_line(page.text, piece)}", {"opened": 1})

    made: Any = opened
    if as_function:
        made.spec = replace(function_spec(open_function), name="open")
    return made


def search_tools(given: Mapping[str, Any], as_function: bool) -> dict[str, Block]:
    """The tools `search` and `open` of the options of `retrieve`, and `piece` of `open_page`."""
    own = {n: v for n, v in given.items() if n != "piece"}
    shared = {n: v for n, v in given.items() if n in (*OF_ENGINE, "piece")}
    called = {"as_function": True} if as_function else {}
    return {"search": retrieve(**own, **called), "open": open_page(**shared, **called)}


# The options that a person gives, with their types: those of both blocks.
SEARCH_OPTIONS = {
    name: parameter
    for made in (retrieve(), open_page())
    for name, parameter in inspect.signature(made.fn, eval_str=True).parameters.items()
    if name not in ("content", "as_function")
}


# least, most; what is more is refused before any work
RANGES = {
    **dict.fromkeys(("top", "chars", "in_flight", "piece"), Range(least=1, most=1_000_000)),
    "retries": Range(least=0, most=100),
    **dict.fromkeys(("noise", "failures", "perturbed"), Range(least=0, most=1)),
    "latency": Range(least=0, most=3600),
    "timeout": Range(above=0, most=3600),
}


def check_options(given: Mapping[str, Any]) -> None:
    """Raise BadValue for an option of another kind, or out of range."""
    for name, value in given.items():
        kind = SEARCH_OPTIONS[name].annotation
        if not fits(value, kind):
            raise BadValue(f"search: {name} must be {kind_in_words(kind)}, not {value!r}")
        if objection := RANGES[name].objection(value) if name in RANGES else "":
            raise BadValue(f"search: {name} must be {objection}, not {value}")
    if given.get("noise") and given.get("url"):
        raise BadValue("search: noise replaces results by other passages of a corpus, and a server has none")


def check_engine(given: Mapping[str, Any]) -> None:
    """Raise BadValue or UnknownName for an engine that cannot be had here; nothing is built, nothing is asked."""
    check_options(given)
    if given.get("url"):
        check_url(given["url"])
    else:
        check_retriever(given.get("retriever", "bm25"))


def prepare(tools: Mapping[str, Block], progress: Progress, note: Callable[[str], object]) -> None:
    """Open the engines that tools search, building their indices where these are not in the cache."""
    for tool in tools.values():
        if tool.name == "retrieve":
            engine = engine_behind(tool, progress)
            if isinstance(engine, LocalEngine):
                note(f"corpus {tool.hyper_parameters['corpus']}: {described(engine.store.about)}")


def engine_behind(tool: Block, progress: Progress = no_progress) -> Engine:
    """The engine of a tool that searches one, opened once."""
    return engine_of(*(tool.hyper_parameters[n] for n in OF_ENGINE), progress=progress)


def engine_of(
    corpus: str,
    content: str,
    retriever: str,
    url: str,
    timeout: float,
    retries: int,
    in_flight: int,
    cached: bool,
    progress: Progress = no_progress,
) -> Engine:
    """The engine of these options, opened once. Raises BadValue where neither corpus nor url is given, or both are."""
    if bool(corpus or content) == bool(url):
        raise BadValue("search: give a corpus (a folder, JSONL, Parquet), or the url of a server, and not both")
    if bool(url) == (retriever in RETRIEVERS):
        raise BadValue(
            f"search: retriever {retriever} {'searches a corpus, so leave the url out' if url else 'needs a url'}"
        )
    options = (url, retriever, timeout, retries, in_flight, cached) if url else (corpus, content, retriever)
    with _opening:
        if options not in _engines:
            if url:
                made: Engine = HttpEngine(url, retriever, timeout, retries, in_flight, cached)
            else:
                made = open_engine(corpus, retriever, progress, content)
            while len(_engines) >= MOST_ENGINES:
                _engines.pop(next(iter(_engines)))
            _engines[options] = made
        return _engines[options]


_engines: dict[tuple[Any, ...], Engine] = {}
_opening = threading.Lock()


def _with_noise(engine: Engine, answer: Answer, query: str, noise: float) -> tuple[list[Hit], int]:
    """(the results, some of them replaced, how many)."""
    if not noise or not isinstance(engine, LocalEngine):
        return list(answer.hits), 0
    others = [replaced_by(query, place, noise, len(engine)) for place in range(len(answer.hits))]
    hits = [hit if n is None else engine.hit(n) for hit, n in zip(answer.hits, others, strict=True)]
    return hits, sum(n is not None for n in others)


def _line(number: int, hit: Hit, chars: int) -> str:
    return f'Doc {number}(Title: "{one_line(hit.title or hit.id, 200)}") {one_line(hit.text, chars)}'


def _said(text: str, counts: Mapping[str, float]) -> ToolText:
    return ToolText(text, {f"{SEARCH}{what}": n for what, n in counts.items()})
