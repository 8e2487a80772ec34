"""The command `selfteach serve`: a model behind OpenAI's HTTP interface."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.errors import BadValue
from ..core.extras import optional
from .arguments import Parser, add_typed
from .common import print_json, print_note
from .model_text import add_loading, load_model

ABOUT = """Serve a model by OpenAI's HTTP interface: the newest checkpoint of a run, or any model that --model takes.

/v1/models, /v1/completions and /v1/chat/completions, with streaming, n, temperature, top_p, max_tokens, stop, seed,
logprobs and tools. Many clients at once are batched by one engine; an answer whose client is gone is ended. Whoever
can reach the port can ask: it is this machine alone unless --host says otherwise, and where the environment has
SELFTEACH_API_KEY clients must send it as their API key. Needs the extra selfteach[serve].
"""
EXAMPLES = """examples:
  selfteach serve runs/grpo-1
  selfteach serve smollm2-135m --port 8080 --slots 32 --name small
  curl http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' \\
      -d '{"model": "grpo-1", "prompt": "2 + 2 =", "max_tokens": 8}'

what comes out: the address on stdout, with --json as one line {"url": "http://127.0.0.1:8000/v1", "model": ...,
"context": ...}; --port 0 takes a free port. Ctrl-C ends it. docs/serving.md has the rest."""
CLOSING_SECONDS = 5
MOST_CONNECTIONS = 1024
ANY_HOST = ("*",)


def parser() -> Parser:
    """The options of `serve`."""
    made = Parser("serve", usage="selfteach serve RUN_OR_MODEL [options]", description=ABOUT, epilog=EXAMPLES)
    made.add_argument("model", metavar="RUN_OR_MODEL", help="a run's folder, a model's folder or name, a .gguf file")
    add_typed(made, "host", str, "the address to listen at", "127.0.0.1")
    add_typed(made, "port", int, "the port; 0: any that is free", 8000)
    made.add_argument("--name", metavar="TEXT", help="the model's name for clients (default: that of its folder)")
    add_typed(made, "slots", int, "answers that are made at once; others wait", 16)
    add_loading(made)
    return made


def run(command: str, words: Sequence[str]) -> int:
    """Carry out `selfteach serve`; returns the exit code."""
    given = vars(parser().read(words))
    host, port = checked_address(command, given)
    slots = given.get("slots", 16)
    if slots < 1:
        raise BadValue(f"selfteach serve: --slots must be 1 or more, not {slots}")
    uvicorn = optional("uvicorn", "serve", "selfteach serve")
    optional("starlette", "serve", "selfteach serve")
    with listening(host, port) as listener, load_model(given, slots=slots) as model:
        from ..serving.openai_server import Server

        address, hosts = served_address(listener, host)
        key = os.environ.get("SELFTEACH_API_KEY") or None
        application = Server(model, key).application(hosts)
        url = f"{address}/v1"
        if given.get("json"):
            print_json({"url": url, "model": model.name, "context": model.context})
        else:
            print(f"{model.name}, {model.context} tokens of context, at {url}", flush=True)
        if hosts == ANY_HOST and key is None:
            print_note(f"anyone who reaches {host} can ask this model; SELFTEACH_API_KEY in the environment asks a key")
        answer(uvicorn, application, listener, limit_concurrency=MOST_CONNECTIONS)
    return 0


def checked_address(command: str, given: Mapping[str, Any]) -> tuple[str, int]:
    """The host and the port to listen at. Raises BadValue for what can be neither."""
    host, port = given.get("host", "127.0.0.1"), given.get("port", 8000)
    if not 0 <= port <= 65535:
        raise BadValue(f"selfteach {command}: --port must be between 0 and 65535, not {port}")
    if not host:
        raise BadValue(f"selfteach {command}: --host is empty; give an address of this machine, such as 127.0.0.1")
    return host, port


def served_address(listener: Any, host: str) -> tuple[str, tuple[str, ...]]:
    """(where a listening socket is reached, the names by which a client may call it)."""
    at = listener.getsockname()
    local = ipaddress.ip_address(at[0].partition("%")[0]).is_loopback
    url = f"http://{f'[{at[0]}]' if ':' in at[0] else at[0]}:{at[1]}"
    return url, ("127.0.0.1", "localhost", "::1", "[::1]", host) if local else ANY_HOST


def answer(uvicorn: Any, application: Any, listener: Any, **more: Any) -> None:
    """Answer what comes to a listening socket until Ctrl-C; `more`: of uvicorn's configuration."""
    quiet: dict[str, Any] = {"log_level": "error", "access_log": False, "lifespan": "off", "server_header": False}
    config = uvicorn.Config(application, **quiet, timeout_graceful_shutdown=CLOSING_SECONDS, **more)
    uvicorn.Server(config).run(sockets=[listener])


def listening(host: str, port: int) -> Any:
    """A socket that listens. Raises BadValue where the address is not this machine's, or the port is taken."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        # With its protocol named, asyncio sends at once what it has; else an answer waits 40 ms for an acknowledgement.
        made = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadValue(f"--host {host}: {reason}; give an address of this machine, such as 127.0.0.1") from None
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(128)
    except OSError as error:
        made.close()
        raise BadValue(f"{host}:{port}: {error.strerror or error}; give another --port or --host") from None
    return made
