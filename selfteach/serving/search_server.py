r"""A search engine over a corpus behind HTTP, for many runs at once: Search-R1's retrieval request and SearXNG's JSON.

    POST /retrieve  {"queries": [...], "topk": 3, "return_scores": true}
                    -> {"result": [[{"document": {"id": ..., "contents": "\"Title\"\ntext"}, "score": ...}, ...]]}
    POST /open      {"page": title or id, "start": 0, "chars": 2000} -> {"id", "title", "text", "length"}
    GET  /search?q=...&format=json -> {"query": ..., "results": [{"title", "url", "content", "score"}, ...]}
    GET  /health

An ASGI application (starlette). Queries of a request are answered in threads; what a client sends is bounded. A
query of half a character, as byte-level models write them, is answered as with a question mark in its place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

from ..core.extras import optional
from ..retrieval.engine import Hit, LocalEngine
from .requests import RequestError, read_body, read_json

MOST_QUERIES = 1024  # of a request
MOST_WAITING = 4096  # queries that are being answered or wait
MOST_RESULTS = 1000  # of a query
MOST_CHARS = 1 << 20  # of a page at once
TOP = 3  # results where a request does not say


class SearchServer:
    """The application over an engine. at_once: queries that are answered at the same time."""

    def __init__(self, engine: LocalEngine, at_once: int = 8) -> None:
        self.engine, self.n_waiting, self.n_answered = engine, 0, 0
        self.at_once = asyncio.Semaphore(at_once)

    def application(self, hosts: Collection[str] = ("*",)) -> Any:
        """The ASGI application. hosts: names by which clients may call it, `*`: any."""
        what = "selfteach serve-search"
        applications, routing = (optional(f"starlette.{m}", "serve", what) for m in ("applications", "routing"))
        responses, errors = (optional(f"starlette.{m}", "serve", what) for m in ("responses", "exceptions"))
        trusted, middleware = (optional(f"starlette.middleware{m}", "serve", what) for m in (".trustedhost", ""))
        route, self._json = routing.Route, responses.JSONResponse

        def refused(_: Any, error: Any) -> Any:
            if isinstance(error, errors.HTTPException):
                error = RequestError(error.detail, status=error.status_code)
            return self._json(error.body(), error.status)

        return applications.Starlette(
            routes=[
                route("/health", self._health),
                route("/retrieve", self._retrieve, methods=["POST"]),
                route("/open", self._open, methods=["POST"]),
                route("/search", self._search),
            ],
            middleware=[
                middleware.Middleware(trusted.TrustedHostMiddleware, allowed_hosts=[*hosts], www_redirect=False)
            ],
            exception_handlers={RequestError: refused, errors.HTTPException: refused},
        )

    async def _health(self, _: Any) -> Any:
        about = {"status": "ok", "passages": len(self.engine), "waiting": self.n_waiting, "answered": self.n_answered}
        return self._json(about)

    async def _retrieve(self, request: Any) -> Any:
        data = read_json(await read_body(request), halves=True)
        queries, top = data.get("queries"), data.get("topk")
        if not isinstance(queries, list) or not all(isinstance(q, str) for q in queries):
            raise RequestError("'queries' must be a list of texts.", "queries")
        if len(queries) > MOST_QUERIES:
            raise RequestError(
                f"There are {len(queries)} queries, and a request has at most {MOST_QUERIES}.", "queries"
            )
        top = _whole(data, "topk", TOP, 1, MOST_RESULTS)
        scored = data.get("return_scores", False)
        found = await self._answered(queries, top)
        result = [[_scored(h) if scored else _document(h) for h in hits] for hits in found]
        return self._json({"result": result})

    async def _search(self, request: Any) -> Any:
        query = request.query_params.get("q", "")
        if request.query_params.get("format") != "json":
            raise RequestError("Only format=json is served.", "format", status=403)
        (hits,) = await self._answered([query], 10)
        results = [{"title": h.title, "url": h.id, "content": h.text, "score": h.score} for h in hits]
        return self._json({"query": query, "number_of_results": len(results), "results": results})

    async def _open(self, request: Any) -> Any:
        data = read_json(await read_body(request), halves=True)
        if not isinstance(name := data.get("page"), str):
            raise RequestError("'page' must be the title or the id of a page.", "page")
        start, chars = _whole(data, "start", 0, 0, 1 << 40), _whole(data, "chars", 2000, 1, MOST_CHARS)
        async with self.at_once:
            page = await asyncio.to_thread(self.engine.read, name, start, chars)
        return self._json({"page": None} if page is None else page._asdict())

    async def _answered(self, queries: list[str], top: int) -> list[list[Hit]]:
        """The results of each query. Raises RequestError where too many wait."""
        if self.n_waiting + len(queries) > MOST_WAITING:
            raise RequestError(f"{self.n_waiting} queries wait; try again later.", status=429, code="queue_full")

        async def one(query: str) -> list[Hit]:
            async with self.at_once:
                return list((await asyncio.to_thread(self.engine.search, query, top)).hits)

        self.n_waiting += len(queries)
        try:
            return await asyncio.gather(*map(one, queries))
        finally:
            self.n_waiting -= len(queries)
            self.n_answered += len(queries)


def _whole(data: dict[str, Any], name: str, default: int, least: int, most: int) -> int:
    """A whole number of a body. Raises RequestError."""
    value = data.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise RequestError(f"'{name}' must be a whole number from {least} to {most}.", name)
    return value


def _document(hit: Hit) -> dict[str, str]:
    """A passage in the usual form of Wikipedia's dumps."""
    return {"id": hit.id, "contents": f'"{hit.title or hit.id}"\n{hit.text}'}


def _scored(hit: Hit) -> dict[str, Any]:
    return {"document": _document(hit), "score": hit.score}
