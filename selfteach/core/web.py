"""What all clients of servers hold alike: which addresses there can be, which answers are worth another try."""

from __future__ import annotations

import contextlib
from urllib.parse import urlsplit

AGAIN = (408, 425, 429, 500, 502, 503, 504)  # statuses after which another try may be answered


def is_address(url: str) -> bool:
    """Whether a text is the address of a server: http or https, a host, a port if any."""
    with contextlib.suppress(ValueError):
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    return False
