"""The page behind HTTP, for this machine alone: a token in the address, then a cookie; no file but the page's own."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.errors import BadValue, SelfteachError, describe
from ..core.extras import optional
from ..core.serial import plain
from .run_index import ViewerData

PAGE = Path(__file__).parent / "page"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
HOSTS = ("127.0.0.1", "localhost", "::1", "[::1]")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
REFUSED = "This page needs the whole address that selfteach view printed: its token is missing or is not the right one."


def page_files() -> dict[str, bytes]:
    """The files of the page by name."""
    return {f.name: f.read_bytes() for f in sorted(PAGE.iterdir()) if f.suffix in TYPES}


class ViewerServer:
    """What answers the browser."""

    def __init__(self, data: ViewerData, token: str, port: int = 0) -> None:
        self.data, self.token, self.cookie = data, token, f"selfteach_view_{port}"
        self.files = page_files()

    def application(self) -> Any:
        """The ASGI application."""
        what = "selfteach view"
        applications, routing = (optional(f"starlette.{m}", "view", what) for m in ("applications", "routing"))
        trusted, middleware = (optional(f"starlette.middleware{m}", "view", what) for m in (".trustedhost", ""))
        self._response = optional("starlette.responses", "view", what).Response
        hosts = middleware.Middleware(trusted.TrustedHostMiddleware, allowed_hosts=[*HOSTS], www_redirect=False)
        routes = [
            routing.Route("/", self._page),
            routing.Route("/static/{name}", self._static),
            routing.Route("/api/{name}", self._api),
        ]
        return applications.Starlette(routes=routes, middleware=[hosts])

    def _known(self, request: Any) -> bool:
        return secrets.compare_digest(request.cookies.get(self.cookie, "").encode(), self.token.encode())

    def _answer(self, content: bytes, kind: str, status: int = 200, headers: Mapping[str, str] | None = None) -> Any:
        return self._response(
            content, status, headers={**HEADERS, "Content-Type": f"{kind}; charset=utf-8", **(headers or {})}
        )

    def _page(self, request: Any) -> Any:
        given = request.query_params.get("token")
        if given is not None and secrets.compare_digest(given.encode(), self.token.encode()):
            # no redirect: a link from another page would not bring the cookie along
            cookie = f"{self.cookie}={self.token}; HttpOnly; SameSite=Strict; Path=/"
            return self._answer(self.files["index.html"], "text/html", headers={"Set-Cookie": cookie})
        if given is None and self._known(request):
            return self._answer(self.files["index.html"], "text/html")
        return self._answer(REFUSED.encode(), "text/plain", 403)

    def _static(self, request: Any) -> Any:
        name = request.path_params["name"]
        if not self._known(request):
            return self._answer(REFUSED.encode(), "text/plain", 403)
        if name not in self.files:
            return self._answer(b"There is no such file.", "text/plain", 404)
        return self._answer(self.files[name], TYPES[Path(name).suffix])

    def _api(self, request: Any) -> Any:
        if not self._known(request):
            return self._json({"error": REFUSED}, 403)
        try:
            return self._json(self.data.answer(request.path_params["name"], dict(request.query_params)))
        except BadValue as error:
            return self._json({"error": describe(error)}, 404)
        except (SelfteachError, OSError) as error:
            return self._json({"error": describe(error)}, 422)

    def _json(self, value: Any, status: int = 200) -> Any:
        return self._answer(as_json(value).encode(), "application/json", status)


def as_json(value: Any) -> str:
    """Plain values as compact JSON; what has no JSON is its text, numbers that are not finite are null."""
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=str)
    except ValueError:
        text = json.dumps(plain(value), ensure_ascii=False, separators=(",", ":"), default=str)
    return text.encode("utf-8", "replace").decode()  # half of a surrogate pair, which a log's JSON can hold, is no text
