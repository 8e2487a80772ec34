r"""The streams of a command: whatever becomes of them, or is printed beside them, the command's work goes on.

a reader that is gone (`| head`, a closed terminal)     what is printed from then on is dropped
a terminal that lacks a character                       it is written as \u2192
--json                                                  stdout holds the results alone: all else goes to stderr,
also what a reward or a library of C prints
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

from ..core.errors import SelfteachError

GONE = (errno.EPIPE, errno.EIO, errno.ENXIO)  # nobody reads any more


class Stream:
    """A text stream in place of another, to which an error of writing does nothing: it is kept in `error`."""

    def __init__(self, stream: Any) -> None:
        self.stream, self.error = stream, cast("OSError | None", None)
        if getattr(stream, "errors", None) == "strict" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Write a text, or drop it where writing has failed."""
        if self.error is None:
            with self._noted():
                self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Pass on what was written."""
        if self.error is None:
            with self._noted():
                self.stream.flush()

    @contextmanager
    def _noted(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            self.error = error
            with contextlib.suppress(OSError, ValueError):  # its buffer is emptied when the interpreter ends
                os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())


_results: list[Any] = []  # where results go, the innermost last


def results() -> Any:
    """The stream of a command's results, to which nothing else is printed with --json."""
    return _results[-1] if _results else sys.stdout


@contextmanager
def command_streams(as_json: bool) -> Generator[None]:
    """Let sys.stdout and sys.stderr be streams as described above, inside the `with`.

    Raises SelfteachError at its end where results could not be written for another reason than that nobody reads.
    """
    before = sys.stdout, sys.stderr
    err = Stream(sys.stderr)
    with _separate_descriptor() if as_json else contextlib.nullcontext() as separate:
        out = Stream(separate or sys.stdout)
        sys.stdout, sys.stderr = cast("tuple[Any, Any]", (err if as_json else out, err))
        _results.append(out)
        try:
            yield
        finally:
            _results.pop()
            sys.stdout, sys.stderr = before
            out.flush()
            err.flush()
    if out.error is not None and out.error.errno not in GONE:
        raise SelfteachError(f"stdout: {out.error.strerror or out.error}; not all results could be printed")


@contextmanager
def _separate_descriptor() -> Generator[Any]:
    """A stream to what is now file descriptor 1, which itself goes to stderr inside the `with`; None where sys.stdout
    is not that descriptor.
    """
    try:
        if sys.stdout.fileno() != 1:
            raise OSError
        sys.stdout.flush()
        saved = os.dup(1)
        os.dup2(2, 1)
    except (OSError, ValueError):
        yield None
        return
    own = os.fdopen(os.dup(saved), "w", encoding=sys.stdout.encoding)
    try:
        yield own
    finally:
        os.dup2(saved, 1)
        os.close(saved)
        with contextlib.suppress(OSError):  # of the last flush, which Stream has seen already
            own.close()
