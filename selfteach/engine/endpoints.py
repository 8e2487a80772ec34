"""Several servers of one model: each request goes to the live one with the fewest in flight.

A server that fails is left alone for a while, longer each time, and then tried again by a single request; its requests
go to the others. No server is given more than `in_flight` requests at once; others wait. Where none has answered for
`patience` seconds, the engine is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar

from ..core.errors import BadValue, EngineLost, EngineMismatch, describe
from ..core.extras import optional
from ..core.random_keys import key, uniform_at
from ..core.web import AGAIN, is_address
from .completion_servers import CompletionServer, Request, WrongAnswer

T = TypeVar("T")
PAUSE, LONGEST_PAUSE = 0.5, 30.0  # seconds that a server is left alone after its first failure, then doubled; at most
FAILURES = 3  # in a row, of requests that reached it, after which a server is left alone
TRIES = 6  # of one request
LARGEST = 256 << 20  # bytes of an answer
CONNECT = 5.0  # seconds that a connection may take
KEY = "SELFTEACH_ENGINE_KEY"  # environment variable of the servers' API key


class Failed(Exception):
    """One try without an answer.

    gone     the server did not answer at all; reached: the request may have reached it, and be what ended it
    after    seconds that it asks for
    """

    def __init__(self, why: str, gone: bool = False, reached: bool = True, after: float = 0.0) -> None:
        super().__init__(why)
        self.gone, self.reached, self.after = gone, reached, after


@dataclass(eq=False)
class Endpoint:
    """One server: its address, how it is spoken to, and how it fares.

    failures    in a row; down: since when it is left alone (time.monotonic), up to again_at
    version     of the weights delivered to it
    """

    url: str
    server: CompletionServer
    in_flight: int = 0
    failures: int = 0
    down: float | None = None
    again_at: float = 0.0
    why: str = ""
    version: int | None = None

    def fail(self, error: Failed) -> None:
        """Count a failure; after one that says that it is gone, or several, leave it alone for a while."""
        self.failures += 1
        self.why = str(error)
        if error.gone or error.after or self.failures >= FAILURES:
            pause = min(LONGEST_PAUSE, PAUSE * 2 ** min(self.failures - 1, 10))
            jitter = 0.5 + uniform_at(key("endpoint", self.url, self.failures), 0)
            now = time.monotonic()
            self.down, self.again_at = self.down or now, now + max(error.after, pause * jitter)

    def answered(self) -> None:
        """Forget its failures."""
        self.failures, self.down, self.again_at, self.why = 0, None, 0.0, ""


@dataclass(eq=False)
class Endpoints:
    """The servers of an engine.

    in_flight  requests that each is given at once
    timeout    seconds that one may take for a request, its answer included
    patience   seconds without a single live server after which EngineLost is raised
    deliver    is called, in a thread, with a server that holds other weights than the newest (`version`), before it is
               asked again
    """

    every: Sequence[Endpoint]
    in_flight: int = 64
    timeout: float = 600.0
    patience: float = 60.0
    version: int | None = None
    deliver: Callable[[Endpoint], None] | None = None
    counts: Counter[str] = field(default_factory=lambda: Counter(requests=0, retried=0))
    lost: Callable[[], str | None] = lambda: None  # gives why no server will come back, where that is known
    _loop: asyncio.AbstractEventLoop | None = None
    _client: Any = None
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def ask(
        self, request: Callable[[CompletionServer], Request], read: Callable[[CompletionServer, Any], T]
    ) -> T:
        """What `read` makes of a server's answer to `request`. Another try is another server's, where there is one.

        Raises BadValue where a server refuses the request, EngineMismatch where every try fails or gives what cannot
        be, EngineLost.
        """
        self._use_running_loop()
        tries, error = 0, Failed("not tried")
        while tries < TRIES:
            async with self._taken() as endpoint:
                self.counts["requests"] += 1
                self.counts["retried"] += tries > 0
                try:
                    if endpoint.version != self.version and self.deliver is not None:
                        await asyncio.to_thread(self.deliver, endpoint)
                    value = read(endpoint.server, await self._answer(endpoint, request(endpoint.server)))
                except WrongAnswer as wrong:
                    error = Failed(f"{endpoint.url} answered wrongly: {wrong}")
                except Failed as failed:
                    error = failed
                else:
                    endpoint.answered()
                    return value
                endpoint.fail(error)
                tries += error.reached
        raise EngineMismatch(f"engine: {error} (the last of {TRIES} tries); look at the server's log")

    @asynccontextmanager
    async def _taken(self) -> AsyncGenerator[Endpoint]:
        """The live server with the fewest requests in flight, one place of which is ours; waits for it."""
        async with self._changed:
            while (endpoint := self._best()) is None:
                self._check_alive()
                now = time.monotonic()
                wait = min([e.again_at - now for e in self.every if e.again_at > now], default=1.0)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(max(wait, 0.01), 1.0)):
                        await self._changed.wait()
            endpoint.in_flight += 1
        try:
            yield endpoint
        finally:
            endpoint.in_flight -= 1
            async with self._changed:
                self._changed.notify()

    def _best(self) -> Endpoint | None:
        """The server to ask now; one that has been left alone for its time comes first, with a single request."""
        now = time.monotonic()
        free = [e for e in self.every if e.in_flight < (self.in_flight if e.down is None else 1) and now >= e.again_at]
        return min(free, key=lambda e: (e.down is None, e.in_flight), default=None)

    def _check_alive(self) -> None:
        """Raise EngineLost where no server has been up for `patience`, or none will be again."""
        since = [e.down for e in self.every if e.down is not None]
        if len(since) < len(self.every):
            return
        if (gone := self.lost()) is not None:
            raise EngineLost(f"engine: {gone}")
        if time.monotonic() - max(since) > self.patience:
            reasons = "; ".join(e.why for e in self.every)
            raise EngineLost(f"engine: no server answers for {self.patience:g} s ({reasons}); start one, then resume")

    async def _answer(self, endpoint: Endpoint, request: Request) -> Any:
        """The JSON of a server's answer. Raises Failed, BadValue."""
        httpx = optional("httpx2", "http", "an engine over HTTP")
        try:
            async with asyncio.timeout(self.timeout):
                response = await self._client.post(endpoint.url + request.path, json=request.body)
        except TimeoutError:
            raise Failed(f"{endpoint.url}: no answer within {self.timeout:g} s", gone=True) from None
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise Failed(f"{endpoint.url}: {describe(error)}", gone=True, reached=False) from None
        except (httpx.TransportError, OSError) as error:
            raise Failed(f"{endpoint.url}: {describe(error)}", gone=True) from None
        except httpx.HTTPError as error:
            raise Failed(f"{endpoint.url}: {describe(error)}") from None
        return checked(endpoint.url + request.path, response)

    def _use_running_loop(self) -> None:
        """Make what belongs to an event loop anew where another one runs now."""
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        httpx = optional("httpx2", "http", "an engine over HTTP")
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=self.in_flight * len(self.every))
        timeout = httpx.Timeout(None, connect=CONNECT)
        self._client = httpx.AsyncClient(limits=limits, timeout=timeout, headers=headers(), trust_env=False)
        self._loop, self._changed = loop, asyncio.Condition()
        for endpoint in self.every:
            endpoint.in_flight = 0

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None and self._loop is asyncio.get_running_loop():
            await self._client.aclose()
        self._client = self._loop = None


def ask_now(url: str, path: str, body: Any = None, timeout: float = 30.0) -> Any:
    """The JSON of an answer to one request, a GET without a body; blocks. Raises Failed, BadValue."""
    return checked(url + path, _response_now(url, path, body, timeout))


def tell_now(url: str, path: str, body: Any, timeout: float = 30.0) -> None:
    """As `ask_now`, where the answer need not be JSON: only its status counts."""
    check_status(url + path, _response_now(url, path, body, timeout))


def _response_now(url: str, path: str, body: Any, timeout: float) -> Any:
    """The answer to one request. Raises Failed where there is none."""
    httpx = optional("httpx2", "http", "an engine over HTTP")
    limit = httpx.Timeout(timeout, connect=CONNECT)
    try:
        client = _blocking_client(os.getpid(), headers().get("authorization"))
        return client.request("GET" if body is None else "POST", url + path, json=body, timeout=limit)
    except httpx.TimeoutException:
        raise Failed(f"{url}: no answer within {timeout:g} s", gone=True) from None
    except (httpx.HTTPError, OSError) as error:
        raise Failed(f"{url}: {describe(error)}", gone=True) from None


@lru_cache(maxsize=1)
def _blocking_client(process: int, key: str | None) -> Any:
    """A client that is kept: to make one takes as long as some requests."""
    return optional("httpx2", "http", "an engine over HTTP").Client(headers=headers(), trust_env=False)


def checked(address: str, response: Any) -> Any:
    """The JSON of a response. Raises Failed where another try may be answered, BadValue where none can."""
    check_status(address, response)
    if len(response.content) > LARGEST:
        raise Failed(f"{address}: an answer of more than {LARGEST >> 20} MiB")
    try:
        return json.loads(response.content) if response.content else None
    except (ValueError, RecursionError):
        raise Failed(f"{address}: answered what is no JSON") from None


def check_status(address: str, response: Any) -> None:
    """Raise Failed for a status after which another try may be answered, BadValue for one after which none can."""
    if response.status_code in AGAIN:
        after = response.headers.get("retry-after", "")
        seconds = min(float(after), LONGEST_PAUSE) if after.isdecimal() else 0.0
        raise Failed(f"{address}: status {response.status_code}: {_message_of(response)}", after=seconds)
    if response.status_code >= 300:
        raise BadValue(f"{address}: status {response.status_code}: {_message_of(response)}")


def headers() -> dict[str, str]:
    """The headers of every request."""
    secret = os.environ.get(KEY)
    return {"authorization": f"Bearer {secret}"} if secret else {}


def check_url(url: str) -> str:
    """A server's address without a path that only repeats the interface's. Raises BadValue for what is none."""
    if is_address(url):
        return url.rstrip("/").removesuffix("/v1")
    raise BadValue(f"url {url!r}: is no address; give one such as http://127.0.0.1:8000")


def _message_of(response: Any) -> str:
    """What an answer says of an error, in at most 200 characters."""
    text = response.text
    try:
        value = json.loads(text)
        for name in ("error", "message", "detail"):
            value = value.get(name, value) if isinstance(value, dict) else value
        text = value if isinstance(value, str) else json.dumps(value)
    except (ValueError, RecursionError):
        pass
    return " ".join(text.split())[:200] or "(nothing more)"
