"""What servers read of a request: a body that is bounded, JSON, and errors in OpenAI's form."""

from __future__ import annotations

import json
from typing import Any, cast

MOST_BYTES = 8 << 20  # of a request's body
JSON = "application/json"


class RequestError(Exception):
    """A request that is refused: HTTP status, and what OpenAI's error object says."""

    def __init__(self, message: str, param: str | None = None, status: int = 400, code: str | None = None) -> None:
        super().__init__(message)
        self.message, self.param, self.status, self.code = message, param, status, code

    def body(self) -> dict[str, Any]:
        """The error object."""
        kind = "invalid_request_error" if self.status < 500 and self.status != 429 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


async def read_body(request: Any) -> bytes:
    """The body, as far as it may be long. Raises RequestError."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON:  # what a browser sends without asking whether it may is of another kind
        raise RequestError(f"The content type must be {JSON}, not {kind[:40] or 'missing'}.", status=415)
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BYTES:
            raise RequestError(f"The body is larger than {MOST_BYTES} bytes.", status=413)
    return body


def read_json(body: bytes, halves: bool = False) -> dict[str, Any]:
    r"""The object that a body is. Raises RequestError.

    halves: half a character ("\ud800", which is no text) becomes a question mark; without it, it is refused.
    """

    def refuse(word: str) -> Any:
        raise ValueError(f"{word} is not JSON")

    try:
        data = json.loads(body, parse_constant=refuse)
        text = json.dumps(data, ensure_ascii=False).encode(errors="replace" if halves else "strict")
        data = json.loads(text) if halves else data
    except (ValueError, RecursionError) as error:
        raise RequestError(f"The body is not valid JSON: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(data, dict):
        raise RequestError("The body must be a JSON object.")
    return cast("dict[str, Any]", data)
