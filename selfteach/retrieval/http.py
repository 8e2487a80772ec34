r"""Search engines behind HTTP: any server that speaks Search-R1's retrieval request, or SearXNG's JSON.

    Search-R1   POST URL {"queries": [q], "topk": n, "return_scores": true}
                -> {"result": [[{"document": {"id": ..., "contents": "\"Title\"\ntext"}, "score": s}, ...]]}
    SearXNG     GET URL?q=...&format=json -> {"results": [{"title": ..., "url": ..., "content": ...}, ...]}

A query is tried some times, each with a time-out for the whole answer, with growing pauses between; calls in flight are
capped; answers are cached on disk. What a server sends is data, checked before it is used.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import sqlite3
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast, get_args
from urllib.parse import urljoin, urlsplit

from ..core.cache import cache_folder
from ..core.errors import BadValue, SelfteachError, describe
from ..core.extras import optional
from ..core.random_keys import key, uniform_at
from ..core.web import AGAIN, is_address
from .bm25 import LONGEST
from .corpus_files import title_and_text, valid_text
from .engine import Answer, Hit, NoAnswer, Reading
from .web_page import is_public, page_text

Protocol = Literal["http", "searxng"]
PROTOCOLS: tuple[str, ...] = get_args(Protocol)
LARGEST = 8 << 20  # bytes of an answer
PAUSE, LONGEST_PAUSE = 0.2, 5.0  # seconds before the second try, doubled for each further one; at most
REDIRECTIONS = 3  # of a web page that are followed
PROBE = "history of a city, its people and a river"  # tells corpora apart
REMEMBERED = 4096  # pages that were found, for reading, where the server has no pages to open


class _Failed(Exception):
    """One try without an answer. again: another may have one; after: seconds that the server asks for."""

    def __init__(self, why: str, again: bool = True, after: float = 0.0) -> None:
        super().__init__(why)
        self.again, self.after = again, after


def check_url(url: str) -> str:
    """A server's address. Raises BadValue for what is none."""
    if is_address(url):
        return url
    raise BadValue(f"search url {url!r}: is no address; give one such as http://127.0.0.1:8000/retrieve")


class HttpEngine:
    """A search engine at an address.

    timeout    seconds of one try, the reading of its answer included
    retries    further tries where one has no answer
    in_flight  calls at once; others wait
    cached     whether answers are kept on disk and given again
    """

    def __init__(
        self,
        url: str,
        protocol: str = "http",
        timeout: float = 6.0,
        retries: int = 2,
        in_flight: int = 16,
        cached: bool = True,
    ) -> None:
        self.url, self.protocol, self.timeout, self.retries = check_url(url), protocol, timeout, retries
        urllib3 = optional("urllib3", "search", "search over http")
        self.errors = urllib3.exceptions.HTTPError
        self.pool = urllib3.PoolManager(maxsize=in_flight, block=False, retries=False)
        self.limit = urllib3.Timeout(connect=timeout, read=timeout)
        self.slots = threading.BoundedSemaphore(in_flight)
        self.cached, self._opening = cached, threading.Lock()
        self._cache: AnswerCache | None = None
        self.found: dict[str, Hit] = {}

    @property
    def patience(self) -> float:
        """Seconds after which a query is given up, whatever happened."""
        return (self.retries + 1) * self.timeout + sum(min(LONGEST_PAUSE, PAUSE * 2**n) for n in range(self.retries))

    def _opened_cache(self) -> AnswerCache | None:
        """The answers on disk, by the server's address and, of one over a corpus, by what it answers to PROBE: another
        corpus behind the same address has others. None where nothing is to be kept, or another query is at this.

        Raises NoAnswer where the server does not answer it.
        """
        if self._cache is None and self.cached and self._opening.acquire(blocking=False):
            try:
                if self._cache is None:
                    of_corpus = self.protocol == "http"
                    seen = self._tried(lambda left: self._search_r1(PROBE, 10, left), PROBE)[0] if of_corpus else []
                    self._cache = AnswerCache(f"{self.protocol} {self.url} {json.dumps([h[:3] for h in seen])}")
            finally:
                self._opening.release()
        return self._cache

    def search(self, query: str, top: int) -> Answer:
        """The best passages for a query, from the cache or the server. Raises NoAnswer."""
        query = _text(query[:LONGEST])
        if self.protocol == "searxng":
            query = " ".join(query.split())
        wanted = f"{top}\n{query}"
        if not query.strip():
            return Answer([], {})
        cache = self._opened_cache()
        if cache and (known := cache.get(wanted)) is not None:
            return self._kept(Answer([Hit(*hit) for hit in json.loads(known)], {"cached": 1}))
        read = self._searxng if self.protocol == "searxng" else self._search_r1
        hits, counts = self._tried(lambda left: read(query, top, left), query)
        hits = hits[:top]
        if cache:
            cache.put(wanted, json.dumps(hits))
        return self._kept(Answer(hits, counts))

    def read(self, name: str, start: int, chars: int) -> Reading | None:
        """Characters of a page: from the server, where it opens pages (`selfteach serve-search` does), else of what was
        found with that id or title; of SearXNG's results the web page itself, where it can be had. Raises NoAnswer.
        """
        if self.protocol == "http":
            body = {"page": _text(name[:LONGEST]), "start": start, "chars": chars}
            opened, _ = self._tried(lambda left: self._open(body, left), name)
            if opened is not None:
                return opened or None
        found = self.found.get(name) or self.found.get(name.casefold().strip())
        text = found.text if found else ""
        if found and self.protocol == "searxng":
            text = self._web_page(found.id) or text
        return found and Reading(found.id, found.title, text[start : start + chars], len(text))

    def _web_page(self, url: str) -> str | None:
        """The text of a page that a search found, kept on disk; None where it cannot be had."""
        cache = self._opened_cache()
        if cache and (known := cache.get(f"page {url}")) is not None:
            return known
        try:
            text, _ = self._tried(lambda left: self._fetched(url, left), url)
        except NoAnswer:
            return None
        if cache and text:
            cache.put(f"page {url}", text)
        return text

    def _fetched(self, url: str, until: float) -> str | None:
        """The text of a public web page; redirections are followed as far as they are to such. Raises _Failed."""
        for _ in range(REDIRECTIONS + 1):
            if not is_public(url):
                raise _Failed(f"{url[:200]}: is not of the public web", again=False)
            status, headers, data = self._sent("GET", url, until, {"Accept": "text/html, text/plain"})
            if status == 200:
                return page_text(data, headers.get("Content-Type", ""))
            if status not in (301, 302, 303, 307, 308):
                raise _Failed(f"status {status}", status in AGAIN)
            url = urljoin(url, headers.get("Location", ""))
        raise _Failed("too many redirections", again=False)

    def _kept(self, answer: Answer) -> Answer:
        for hit in answer.hits:
            for name in (hit.id, hit.title.casefold().strip()):
                if name:
                    self.found[name] = hit
        for name in list(self.found)[:-REMEMBERED]:
            self.found.pop(name, None)
        return answer

    def _tried(self, once: Any, what: str) -> tuple[Any, dict[str, float]]:
        """(what a call returns, what there is to count of it); tried again with growing pauses. Raises NoAnswer."""
        until, why = time.monotonic() + self.patience, "no time left"
        counts: dict[str, float] = {}
        for n in range(self.retries + 1):
            counts = {"retried": n} if n else {}
            left = min(self.timeout, until - time.monotonic())
            if left <= 0 or not self.slots.acquire(timeout=left):
                raise NoAnswer("too many calls in flight", counts)
            after = 0.0
            try:
                return once(time.monotonic() + left), counts
            except _Failed as failed:
                why, after = str(failed), failed.after
                if not failed.again:
                    break
            finally:
                self.slots.release()
            jitter = 0.5 + uniform_at(key("search retry", self.url, what, n), 0)  # so that they do not come all at once
            pause = max(min(LONGEST_PAUSE, PAUSE * 2**n) * jitter, after)
            if n == self.retries or time.monotonic() + pause >= until:
                break
            time.sleep(pause)
        raise NoAnswer(why, counts)

    def _search_r1(self, query: str, top: int, until: float) -> list[Hit]:
        body = {"queries": [query], "topk": top, "return_scores": True}
        answer = self._json("POST", self.url, until, body)
        result = answer.get("result") if isinstance(answer, Mapping) else answer  # some servers send the list alone
        if not isinstance(result, list) or len(result) != 1 or not isinstance(result[0], list):
            raise _Failed("an answer without one result for the query")
        return [_search_r1_hit(one, n) for n, one in enumerate(cast("list[Any]", result[0]))]

    def _searxng(self, query: str, top: int, until: float) -> list[Hit]:
        answer = self._json("GET", self.url, until, fields={"q": query, "format": "json"})
        results = answer.get("results") if isinstance(answer, Mapping) else None
        if not isinstance(results, list):
            raise _Failed("an answer without results")
        out = list[Hit]()
        for one in cast("list[Any]", results)[:top]:
            if not isinstance(one, Mapping):
                raise _Failed("a result that is no object")
            found = cast("Mapping[str, Any]", one)
            url, title, text = (_text(found.get(n)) for n in ("url", "title", "content"))
            out.append(Hit(url, title, text or title, _number(found.get("score"))))
        return out

    def _open(self, body: Mapping[str, Any], until: float) -> Reading | Literal[False] | None:
        """A part of a page; False where the server has no such page, None where it opens none."""
        parts = urlsplit(self.url)
        url = parts._replace(path=f"{parts.path.rpartition('/')[0]}/open", query="").geturl()
        try:
            page = self._json("POST", url, until, body)
        except _Failed as failed:
            if str(failed) in ("status 404", "status 405", "status 422"):
                return None
            raise
        if page == {"page": None}:
            return False
        if not isinstance(page, Mapping) or not isinstance(page.get("length"), int):
            raise _Failed("an answer without a page")
        return Reading(_text(page.get("id")), _text(page.get("title")), _text(page.get("text")), page["length"])

    def _json(
        self, method: str, url: str, until: float, body: Any = None, fields: Mapping[str, str] | None = None
    ) -> Any:
        """The JSON of a server's answer. Raises _Failed."""
        given: dict[str, Any] = {"fields": fields} if body is None else {"json": body}
        headers = {"Accept": "application/json"} | ({} if body is None else {"Content-Type": "application/json"})
        status, said, data = self._sent(method, url, until, headers, **given)
        after = _number(said.get("Retry-After"))
        if status != 200:
            hint = "; its settings.yml must list the format json" if status == 403 and body is None else ""
            raise _Failed(f"status {status}{hint}", status in AGAIN, min(after, LONGEST_PAUSE))
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            kind = "HTML" if data.lstrip()[:1] == b"<" else "no JSON"
            raise _Failed(f"an answer that is {kind}") from None

    def _sent(
        self, method: str, url: str, until: float, headers: Mapping[str, str], **given: Any
    ) -> tuple[int, Mapping[str, str], bytes]:
        """(status, headers, body) of an answer. Raises _Failed."""
        head = {"User-Agent": "selfteach", **headers}
        try:
            response = self.pool.request(
                method, url, headers=head, timeout=self.limit, preload_content=False, redirect=False, **given
            )
            try:
                return response.status, response.headers, self._read(response, until)
            finally:
                response.close()  # what was not read would hold the connection up
        except (self.errors, OSError, ValueError) as error:
            raise _Failed(describe(error, 160)) from None

    def _read(self, response: Any, until: float) -> bytes:
        """The body of an answer, which may be sent slowly or never end."""
        pieces, size = list[bytes](), 0
        while piece := response.read1(1 << 16):
            size += len(piece)
            pieces.append(piece)
            if size > LARGEST:
                raise _Failed(f"an answer above {LARGEST >> 20} MiB", again=False)
            if time.monotonic() > until:
                raise _Failed(f"no whole answer within {self.timeout:g} s")
        return b"".join(pieces)


def _search_r1_hit(one: Any, place: int) -> Hit:
    """A passage of a Search-R1 server: {"document": {...}, "score": ...}, the document alone, or its text alone."""
    scored = cast("Mapping[str, Any]", one) if isinstance(one, Mapping) else {}
    document = scored.get("document", one)
    if isinstance(document, str):
        document = {"contents": document}
    if not isinstance(document, Mapping):
        raise _Failed("a result that is no document")
    found = cast("Mapping[str, Any]", document)
    contents = next((found[n] for n in ("contents", "text", "content") if isinstance(found.get(n), str)), None)
    if contents is None:
        raise _Failed("a document without contents")
    title, text = title_and_text(contents) if "title" not in found else (_text(found["title"]), contents)
    return Hit(_text(found.get("id", place)), _text(title), _text(text), _number(scored.get("score")))


def _text(value: Any) -> str:
    """A value as text that UTF-8 can hold; "" for None."""
    return "" if value is None else valid_text(str(value))


def _number(value: Any) -> float:
    """A score or a time that a server gave; 0 for what is no positive number."""
    number = math.nan
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        number = float(value)
    return number if math.isfinite(number) and number > 0 else 0.0


class AnswerCache:
    """Answers on disk, by what was asked. Where the disk refuses or the file is broken, nothing is kept."""

    def __init__(self, name: str) -> None:
        self.lock, self.database = threading.Lock(), None
        hashed = hashlib.blake2b(name.encode(), digest_size=10).hexdigest()
        try:
            self.file = cache_folder("search-answers") / f"{hashed}.sqlite"
        except SelfteachError:
            return
        for _ in range(2):
            try:
                self.database = self._opened(self.file)
                return
            except sqlite3.DatabaseError:
                self.file.unlink(missing_ok=True)
            except OSError:
                return

    @staticmethod
    def _opened(file: Path) -> sqlite3.Connection:
        database = sqlite3.connect(file, timeout=10, isolation_level=None, check_same_thread=False)
        database.execute("pragma journal_mode=wal")
        database.execute("pragma synchronous=normal")
        database.execute("create table if not exists answers (asked text primary key, answer text)")
        return database

    def get(self, asked: str) -> str | None:
        """The answer to what was asked before."""
        try:
            with self.lock:
                row = (
                    self.database
                    and self.database.execute("select answer from answers where asked = ?", (_text(asked),)).fetchone()
                )
            return row[0] if row else None
        except sqlite3.Error:
            return None

    def put(self, asked: str, answer: str) -> None:
        """Keep an answer."""
        try:
            with self.lock:
                if self.database:
                    self.database.execute("insert or replace into answers values (?, ?)", (_text(asked), answer))
        except sqlite3.Error:
            pass
