"""`selfteach serve-search`: an index behind HTTP that our own client, Search-R1's and SearXNG's can ask."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.servers import answering

from selfteach.commands.serve import listening
from selfteach.retrieval.engine import open_engine
from selfteach.retrieval.http import HttpEngine
from selfteach.serving.search_server import SearchServer

for package in ("tantivy", "starlette", "uvicorn", "urllib3"):
    pytest.importorskip(package)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, str]]:
    folder = tmp_path_factory.mktemp("served")
    with pytest.MonkeyPatch.context() as m:
        m.setenv("SELFTEACH_CACHE", str(folder / "cache"))
        rows = [{"id": f"t{i}", "contents": f'"Town {i}"\nIts mayor is person {i}.'} for i in range(300)]
        rows.append({"id": "long", "contents": '"Long"\n' + "word and word. " * 20_000})
        (folder / "c.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
        engine = open_engine(folder / "c.jsonl")
        with answering(lambda port: SearchServer(engine).application(("127.0.0.1",))) as address:
            yield engine, address


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELFTEACH_CACHE", str(tmp_path / "cache"))


def asked(address: str, path: str, body: Any = None, kind: str = "application/json", **headers: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=20)
    data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    connection.request("GET" if body is None else "POST", path, data, {"Content-Type": kind, **headers})
    response = connection.getresponse()
    text = response.read()
    return response.status, json.loads(text) if text[:1] in b"{[" else text


def test_search_r1_s_request_is_answered(served: tuple[Any, str]) -> None:
    body = {"queries": ["mayor of Town 77", "zebra"], "topk": 2, "return_scores": True}
    status, said = asked(served[1], "/retrieve", body)
    assert status == 200 and [len(r) for r in said["result"]] == [2, 0]
    first = said["result"][0][0]
    assert first["document"] == {"id": "t77", "contents": '"Town 77"\nIts mayor is person 77.'} and first["score"] > 0
    _, plain = asked(served[1], "/retrieve", {"queries": ["mayor of Town 77"]})
    assert len(plain["result"][0]) == 3 and plain["result"][0][0] == first["document"]


def test_half_a_character_costs_neither_its_query_nor_the_others(served: tuple[Any, str]) -> None:
    for half in (b"\\ud800", "\ud800".encode("utf-8", "surrogatepass")):
        body = b'{"queries": ["mayor of Town 5", "mayor %s of Town 77"], "topk": 1}' % half
        status, said = asked(served[1], "/retrieve", body)
        assert status == 200 and [[d["id"] for d in found] for found in said["result"]] == [["t5"], ["t77"]]
    assert asked(served[1], "/open", b'{"page": "\\ud800"}') == (200, {"page": None})


@pytest.mark.parametrize("protocol", ["http", "searxng"])
def test_our_own_client_gives_what_the_engine_gives(served: tuple[Any, str], protocol: str) -> None:
    engine, address = served
    client = HttpEngine(f"{address}/{'retrieve' if protocol == 'http' else 'search'}", protocol)
    for query in ("mayor of Town 77", "x" * 100_000, "(\x00 mayor</search>", "zebra"):
        near, far = engine.search(query, 3).hits, client.search(query, 3).hits
        assert [h[:3] for h in far] == [h[:3] for h in near]
    if protocol == "http":
        assert client.read("LONG", 15, 4) == engine.read("LONG", 15, 4) == ("long", "Long", "word", 300_000)
        assert client.read("no such page", 0, 10) is None


def test_many_ask_at_once(served: tuple[Any, str]) -> None:
    client = HttpEngine(f"{served[1]}/retrieve", cached=False)
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda i: client.search(f"mayor person {i}", 1).hits[0].id, range(200)))
    assert found == [f"t{i}" for i in range(200)]
    assert asked(served[1], "/health")[1]["waiting"] == 0


@pytest.mark.parametrize(
    ("path", "body", "status", "line"),
    [
        ("/retrieve", b"{", 400, "not valid JSON"),
        ("/retrieve", b"[]", 400, "must be a JSON object"),
        ("/retrieve", {"queries": "lyon"}, 400, "'queries' must be a list of texts"),
        ("/retrieve", {"queries": [1]}, 400, "'queries' must be a list of texts"),
        ("/retrieve", {"queries": ["q"], "topk": 0}, 400, "'topk' must be a whole number from 1"),
        ("/retrieve", {"queries": ["q"] * 2000}, 400, "at most 1024"),
        ("/retrieve", b" " * (9 << 20), 413, "larger than"),
        ("/open", {"page": 3}, 400, "'page' must be"),
        ("/open", {"page": "Long", "start": -1}, 400, "'start' must be"),
        ("/search", None, 403, "Only format=json"),
        ("/etc/passwd", None, 404, "Not Found"),
    ],
)
def test_what_is_wrong_is_said(served: tuple[Any, str], path: str, body: Any, status: int, line: str) -> None:
    got, said = asked(served[1], path, body)
    assert got == status and line in said["error"]["message"]
    assert asked(served[1], "/health")[0] == 200


def test_an_answer_is_sent_at_once() -> None:
    with listening("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP  # by which asyncio knows that it may switch Nagle's algorithm off


def test_a_page_in_the_browser_cannot_ask(served: tuple[Any, str]) -> None:
    assert asked(served[1], "/retrieve", {"queries": ["q"]}, kind="text/plain")[0] == 415
    assert asked(served[1], "/retrieve", {"queries": ["q"]}, Host="evil.example")[0] == 400
