"""The command `selfteach serve-search`: a search engine over a corpus behind HTTP, for many runs and machines."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ..core.errors import BadValue
from ..core.extras import optional
from .arguments import Parser, add_typed
from .common import print_json, print_note
from .serve import ANY_HOST, MOST_CONNECTIONS, answer, checked_address, listening, served_address

ABOUT = """Serve a search engine over a corpus: a folder of text or Markdown files, or JSONL or Parquet files.

Answers Search-R1's retrieval request (POST /retrieve), SearXNG's JSON (GET /search?q=...&format=json), and reads pages
(POST /open). The index is built at the first time, with progress; it goes on where it was stopped, and is kept by the
corpus's content. It is this machine alone that can ask unless --host says otherwise; nothing asks for a key. Needs the
extras selfteach[serve,search], and selfteach[dense] for --retriever dense or fused.
"""
EXAMPLES = """examples:
  selfteach serve-search wiki.jsonl
  selfteach serve-search notes/ --retriever fused --host 0.0.0.0 --port 8001
  selfteach train search_r1 --data nq.jsonl --search-url http://127.0.0.1:8000/retrieve
  curl http://127.0.0.1:8000/retrieve -H 'Content-Type: application/json' -d '{"queries": ["Lyon"], "topk": 2}'

what comes out: the address on stdout, with --json as one line {"url": "http://127.0.0.1:8000/retrieve", "passages":
...}; --port 0 takes a free port. Ctrl-C ends it. docs/search.md has the rest."""


def parser() -> Parser:
    """The options of `serve-search`."""
    made = Parser("serve-search", usage="selfteach serve-search CORPUS [options]", description=ABOUT, epilog=EXAMPLES)
    made.add_argument("corpus", metavar="CORPUS", help="a folder, or a .jsonl, .jsonl.gz, .parquet, .txt or .md file")
    add_typed(made, "retriever", str, "bm25, dense or fused", "bm25")
    add_typed(made, "host", str, "the address to listen at", "127.0.0.1")
    add_typed(made, "port", int, "the port; 0: any that is free", 8000)
    add_typed(made, "at_once", int, "queries that are answered at the same time; others wait", 8)
    made.add_argument("--index-only", action="store_true", help="build the index, say what it holds, and end")
    return made


def run(command: str, words: Sequence[str]) -> int:
    """Carry out `selfteach serve-search`; returns the exit code."""
    given = vars(parser().read(words))
    host, port = checked_address(command, given)
    at_once = given.get("at_once", 8)
    if at_once < 1:
        raise BadValue(f"selfteach serve-search: --at-once must be 1 or more, not {at_once}")
    from ..progress import view_on
    from ..retrieval.engine import open_engine
    from ..retrieval.page_store import described

    uvicorn = optional("uvicorn", "serve", "selfteach serve-search")
    optional("starlette", "serve", "selfteach serve-search")
    view = view_on(sys.stderr, panel=False)
    try:
        engine = open_engine(given["corpus"], given.get("retriever", "bm25"), view.bar)
    finally:
        view.close()
    print_note(described(engine.store.about))
    if given.get("index_only"):
        if given.get("json"):
            print_json({"passages": len(engine), **engine.store.about})
        return 0
    with listening(host, port) as listener:
        from ..serving.search_server import SearchServer

        address, hosts = served_address(listener, host)
        url = f"{address}/retrieve"
        if given.get("json"):
            print_json({"url": url, "passages": len(engine)})
        else:
            print(f"{len(engine):,} passages at {url}", flush=True)
        if hosts == ANY_HOST:
            print_note(f"anyone who reaches {host} can search and read this corpus")
        application = SearchServer(engine, at_once).application(hosts)
        answer(uvicorn, application, listener, limit_concurrency=MOST_CONNECTIONS)
    return 0
