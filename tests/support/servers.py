"""A server in a thread of the tests' own process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from selfteach.core.extras import optional
from selfteach.serving.openai_server import Server
from selfteach.serving.text_model import TextModel


@contextmanager
def serving(model: TextModel, key: str | None = None) -> Iterator[str]:
    """The address of a server over a model."""
    uvicorn = optional("uvicorn", "serve", "selfteach serve")
    listener = socket.create_server(("127.0.0.1", 0))
    application = Server(model, key).application(("127.0.0.1",))
    server = uvicorn.Server(uvicorn.Config(application, log_level="error", lifespan="off", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)
        listener.close()
