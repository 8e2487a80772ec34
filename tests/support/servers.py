"""A server in a thread of the tests' own process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from selfteach.core.extras import optional
from selfteach.serving.openai_server import Server
from selfteach.serving.text_model import TextModel


@contextmanager
def serving(model: TextModel, key: str | None = None) -> Iterator[str]:
    """The address of a server over a model."""
    with answering(lambda port: Server(model, key).application(("127.0.0.1",))) as address:
        yield address


@contextmanager
def answering(application_at: Callable[[int], Any]) -> Iterator[str]:
    """The address of an ASGI application, made for its port, that a thread serves."""
    uvicorn = optional("uvicorn", "serve", "a test of a server")
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    application = application_at(port)
    server = uvicorn.Server(uvicorn.Config(application, log_level="error", lifespan="off", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(20)
        listener.close()
