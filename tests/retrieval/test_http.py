"""Search engines behind HTTP that answer slowly, wrongly, with HTML or not at all: every query is answered, or given up
in time, and counted.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.servers import answering

from selfteach.core import BadValue
from selfteach.retrieval import http
from selfteach.retrieval.engine import NoAnswer
from selfteach.retrieval.http import HttpEngine
from selfteach.retrieval.web_page import is_public, page_text

pytest.importorskip("urllib3")
pytest.importorskip("uvicorn")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELFTEACH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(http, "PAUSE", 0.01)


class Fake:
    """A server that answers each request by `reply(number of the request, path, body)`: (status, body, seconds before
    it, headers), and counts what is in flight.
    """

    def __init__(self, reply: Callable[..., tuple[Any, ...]]) -> None:
        self.reply, self.requests, self.now, self.most = reply, list[Any](), 0, 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        self.now += 1
        self.most = max(self.most, self.now)
        self.requests.append((scope["path"], scope["query_string"], json.loads(body) if body else None))
        given = self.reply(len(self.requests) - 1, scope["path"], body)
        status, said, seconds, headers = (*given, *(0.0, {})[len(given) - 2 :])
        await asyncio.sleep(seconds)
        self.now -= 1
        head = [(k.encode(), v.encode()) for k, v in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": head})
        pieces = (
            said
            if isinstance(said, list) and isinstance(said[0], bytes)
            else [said if isinstance(said, bytes) else json.dumps(said).encode()]
        )
        for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            await asyncio.sleep(0.15 if len(pieces) > 1 else 0)
        await send({"type": "http.response.body", "body": b""})


def found(*texts: str) -> dict[str, Any]:
    return {"result": [[{"document": {"id": str(i), "contents": t}, "score": 1.0} for i, t in enumerate(texts)]]}


def asking(reply: Callable[..., tuple[Any, ...]], **options: Any) -> Iterator[tuple[Fake, HttpEngine]]:
    fake = Fake(reply)
    with answering(lambda port: fake) as address:
        yield fake, HttpEngine(f"{address}/retrieve", **{"timeout": 2.0, "cached": False, **options})


def asked(reply: Callable[..., tuple[Any, ...]], query: str = "lyon", **options: Any) -> tuple[Fake, Any]:
    """(the server, the answer or the NoAnswer) of one query."""
    for fake, engine in asking(reply, **options):
        try:
            return fake, engine.search(query, 3)
        except NoAnswer as error:
            return fake, error
    raise AssertionError


def test_search_r1_s_request_and_answer() -> None:
    fake, answer = asked(lambda n, path, body: (200, found('"Lyon"\nA city.', "no title")))
    assert fake.requests == [("/retrieve", b"", {"queries": ["lyon"], "topk": 3, "return_scores": True})]
    assert [tuple(h) for h in answer.hits] == [("0", "Lyon", "A city.", 1.0), ("1", "", "no title", 1.0)]


@pytest.mark.parametrize(
    "result",
    [
        {"result": [[{"id": "0", "contents": '"Lyon"\nA city.'}]]},  # without scores
        [[{"document": {"id": "0", "title": "Lyon", "text": "A city."}, "score": "high"}]],  # a list alone
        {"result": [[{"document": '"Lyon"\nA city.'}]]},
    ],
)
def test_forms_that_such_servers_have(result: Any) -> None:
    _, answer = asked(lambda n, path, body: (200, result))
    assert [h[:3] for h in answer.hits] == [("0", "Lyon", "A city.")]


def test_searxng_s_json() -> None:
    result = {
        "results": [{"title": "Lyon", "url": "http://x/lyon", "content": "A city.", "score": 2.5}, {"title": "b"}]
    }
    fake, answer = asked(lambda n, path, body: (200, result), "lyon\n<b>", protocol="searxng")
    assert fake.requests == [("/retrieve", b"q=lyon+%3Cb%3E&format=json", None)]
    assert [tuple(h) for h in answer.hits] == [("http://x/lyon", "Lyon", "A city.", 2.5), ("", "b", "b", 0.0)]
    _, refused = asked(lambda n, path, body: (403, b"Forbidden"), protocol="searxng", retries=0)
    assert str(refused) == "status 403; its settings.yml must list the format json"


BAD = {
    "an error": ((500, b"oops"), "status 500"),
    "busy": ((429, b""), "status 429"),
    "html": ((200, b"<!doctype html><p>Log in"), "an answer that is HTML"),
    "not json": ((200, b"{'result'"), "an answer that is no JSON"),
    "deep": ((200, b"[" * 100_000), "an answer that is no JSON"),
    "other json": ((200, {"error": "none"}), "an answer without one result"),
    "two results": ((200, {"result": [[], []]}), "an answer without one result"),
    "no document": ((200, {"result": [[7]]}), "a result that is no document"),
    "no contents": ((200, {"result": [[{"document": {"id": 1}}]]}), "a document without contents"),
    "nothing": ((200, b""), "an answer that is no JSON"),
}


@pytest.mark.parametrize(("reply", "why"), BAD.values(), ids=BAD)
def test_a_wrong_answer_is_asked_for_again_and_then_given_up(reply: Any, why: str) -> None:
    fake, error = asked(lambda n, path, body: reply, retries=2)
    assert isinstance(error, NoAnswer) and why in str(error) and error.counts == {"retried": 2}
    assert len(fake.requests) == 3
    fake, answer = asked(lambda n, path, body: reply if n < 2 else (200, found("well")), retries=2)
    assert [h.text for h in answer.hits] == ["well"] and answer.counts == {"retried": 2}


def test_what_will_not_change_is_not_asked_again() -> None:
    fake, error = asked(lambda n, path, body: (404, b""), retries=2)
    assert str(error) == "status 404" and len(fake.requests) == 1
    fake, error = asked(lambda n, path, body: (200, b" " * (http.LARGEST + 1)), retries=2)
    assert str(error) == "an answer above 8 MiB" and len(fake.requests) == 1


@pytest.mark.parametrize("reply", [(200, found("late"), 5.0), (200, [b" "] * 60)], ids=["silent", "in drops"])
def test_a_slow_server_is_given_up_in_time(reply: Any) -> None:
    began = time.monotonic()
    _, error = asked(lambda n, path, body: reply, retries=1, timeout=0.4)
    assert isinstance(error, NoAnswer) and error.counts == {"retried": 1}
    assert time.monotonic() - began < 3


def test_a_server_that_is_not_there_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(NoAnswer, match="NewConnectionError"):
        HttpEngine(f"http://127.0.0.1:{port}/retrieve", retries=1, timeout=1).search("lyon", 3)


def test_a_server_that_says_when_is_asked_then() -> None:
    began = time.monotonic()
    replies = [(503, b"", 0.0, {"Retry-After": "1"}), (200, found("well"))]
    _, answer = asked(lambda n, path, body: replies[n], retries=1)
    assert [h.text for h in answer.hits] == ["well"] and time.monotonic() - began > 1


def test_calls_in_flight_are_capped() -> None:
    for fake, engine in asking(lambda n, path, body: (200, found("x"), 0.05), in_flight=3, cached=False):
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(engine.search, map(str, range(24)), [3] * 24))
        assert fake.most <= 3 and len(fake.requests) == 24


def test_answers_are_cached_on_disk_but_not_failures(tmp_path: Path) -> None:
    down, text = [False], ["first"]

    def reply(n: int, path: str, body: bytes) -> tuple[Any, ...]:
        return (500, b"") if down[0] else (200, found(text[0]))

    for fake, engine in asking(reply, retries=0, cached=True):
        first = engine.search("lyon", 3)
        assert first.counts == {} and len(fake.requests) == 2  # one to tell its corpus
        again = HttpEngine(engine.url).search("lyon", 3)  # as another process would
        assert again.counts == {"cached": 1} and list(again.hits) == list(first.hits) and len(fake.requests) == 3
        engine.search("lyon", 2)
        down[0] = True
        with pytest.raises(NoAnswer):
            engine.search("paris", 3)
        assert engine.search("lyon", 3).counts == {"cached": 1}  # also of a server that is down
        down[0] = False
        assert engine.search("paris", 3).counts == {}
        text[0] = "second"  # another corpus at the same address
        assert HttpEngine(engine.url).search("lyon", 3).hits[0].text == "second"
        assert HttpEngine(engine.url, cached=False).search("lyon", 3).counts == {}
        for file in (tmp_path / "cache" / "search-answers").iterdir():
            file.write_bytes(b"rubbish" * 1000)
        assert HttpEngine(engine.url).search("lyon", 3).hits[0].text == "second"


@pytest.mark.parametrize("query", ["", "\x00\x01", "\ud800", "x" * 100_000, "<search>((", '{"queries": ["'])
def test_every_query_is_sent_as_it_is_or_cut(query: str) -> None:
    fake, answer = asked(lambda n, path, body: (200, found("x")), query)
    if query:
        assert fake.requests[0][2]["queries"] == [query[:4000].replace("\ud800", "?")] and len(answer.hits) == 1
    else:
        assert fake.requests == [] and list(answer.hits) == []


def test_pages_of_a_server_that_opens_none_are_those_that_were_found() -> None:
    def reply(n: int, path: str, body: bytes) -> tuple[Any, ...]:
        return (200, found('"Lyon"\nA city of France.')) if path == "/retrieve" else (404, b"")

    for _, engine in asking(reply):
        assert engine.read("Lyon", 0, 6) is None
        engine.search("lyon", 3)
        assert engine.read("lyon", 2, 4) == ("0", "Lyon", "city", 17)


def test_an_address_that_is_none_is_refused() -> None:
    for url in ("localhost:8000", "ftp://x/y", "http://", ""):
        with pytest.raises(BadValue, match="is no address"):
            HttpEngine(url)


def test_a_server_that_dies_in_the_middle_is_given_up() -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        for _ in range(2):
            connection, _ = listener.accept()
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")
            connection.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    # the rest of the request may still lie unread when the server closes: then the death is a reset, not an end
    with pytest.raises(NoAnswer, match=r"IncompleteRead|no JSON|Connection reset"):
        HttpEngine(f"http://127.0.0.1:{listener.getsockname()[1]}/", retries=1, timeout=1).search("lyon", 3)
    listener.close()


HTML = b"""<html><head><title>Lyon</title><style>p {}</style></head><body><nav>Home</nav><h1>Lyon</h1>
<p>Lyon is a <b>city</b> &amp; a port.<script>steal()</script></p><p>It is old.</p></body></html>"""


def test_a_page_that_searxng_found_is_read_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    at: list[str] = []

    def reply(n: int, path: str, body: bytes) -> tuple[Any, ...]:
        if path == "/lyon":
            return 302, b"", 0.0, {"Location": "/wiki/Lyon"}
        if path == "/wiki/Lyon":
            return 200, HTML, 0.0, {"Content-Type": "text/html; charset=utf-8"}
        if path == "/picture":
            return 200, b"\x89PNG", 0.0, {"Content-Type": "image/png"}
        return 200, {"results": [{"title": n, "url": at[0] + n, "content": "snippet"} for n in ("/lyon", "/picture")]}

    for fake, engine in asking(reply, protocol="searxng", cached=True):
        at.append(engine.url.removesuffix("/retrieve"))
        engine.search("lyon", 3)
        assert engine.read(f"{at[0]}/lyon", 0, 99) == (f"{at[0]}/lyon", "/lyon", "snippet", 7)  # this machine's own
        assert [r[0] for r in fake.requests] == ["/retrieve"]
        monkeypatch.setattr(http, "is_public", lambda url: True)
        text = "Lyon\nLyon is a city & a port.\nIt is old."
        assert engine.read("/lyon", 0, 99) == (f"{at[0]}/lyon", "/lyon", text, len(text))
        assert engine.read("/lyon", 5, 4) == (f"{at[0]}/lyon", "/lyon", "Lyon", len(text))
        assert [r[0] for r in fake.requests] == ["/retrieve", "/lyon", "/wiki/Lyon"]  # then from the disk
        assert engine.read("/picture", 0, 99) == (f"{at[0]}/picture", "/picture", "snippet", 7)
        assert engine.read("http://elsewhere/", 0, 99) is None  # only what was found is opened


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1/x", "http://[::1]:80/", "http://localhost/", "http://169.254.169.254/latest", "file:///etc/passwd",
            "http://10.0.0.1/", "ftp://example.org/", "http://", "http://\udcff/"],
)  # fmt: skip
def test_no_address_of_this_machine_or_one_beside_it_is_asked(url: str) -> None:
    assert not is_public(url)


@pytest.mark.parametrize("body", [b"", b"<", b"<!--", b"<script>never closed <p>text", b"\xff\xfe<p>", b"<" * 10_000])
def test_a_broken_page_has_some_text_or_none(body: bytes) -> None:
    assert isinstance(page_text(body, "text/html"), str)
