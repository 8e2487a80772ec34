"""The errors a person can cause, each one line that names the thing, what was wrong and what to do."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable
from pathlib import Path


class SelfteachError(Exception):
    """Base of every error that selfteach raises on purpose; the command line prints its text and no traceback."""


class UnknownName(SelfteachError, LookupError):
    """A method, task, block, option or key that does not exist; says which ones are near."""


class BadValue(SelfteachError, ValueError):
    """A value of the right name but the wrong kind or range."""


class BadCheckpoint(SelfteachError, ValueError):
    """A file that is broken, foreign, or of an older format."""


class ScoringFailed(SelfteachError, RuntimeError):
    """Too many trajectories without a score."""


class NotFinite(SelfteachError, ArithmeticError):
    """A loss or gradient that is not finite; names the trajectories."""


class EngineMismatch(SelfteachError, RuntimeError):
    """Sampler and learner disagree: about the weights they hold, or about the probabilities they compute."""


class EngineLost(SelfteachError, RuntimeError):
    """No server of an engine answers any more; nothing was learned from the step that it happened in."""


class UserCodeFailed(SelfteachError, RuntimeError):
    """A reward, tool, program or other code of a user's raised something that would have ended the process."""


class NoTrainingData(SelfteachError, RuntimeError):
    """A batch that could not be filled: every group was filtered out, or nothing came back."""


class Terminated(KeyboardInterrupt):
    """SIGTERM, by which a scheduler or `kill` asks a process to end; treated as Ctrl-C is."""


def quoted(path: str | Path) -> str:
    """A path as one word of a command that can be pasted into a shell.

    >>> quoted("runs/my run")
    "'runs/my run'"
    """
    return shlex.quote(str(path))


def nearest(name: str, known: Iterable[str]) -> str:
    """`did you mean a, b or c?` for a name that is not known, or the list of what there is.

    Names much less like it than the nearest one are left out.

    >>> nearest("chain_sam", ["chain_sum", "chain_sums", "hesitant_sums"])
    'did you mean chain_sum or chain_sums?'
    """
    name, names = str(name), sorted(known)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if close:
        likeness = [difflib.SequenceMatcher(None, n, name).ratio() for n in close]
        close = [n for n, ratio in zip(close, likeness, strict=True) if ratio > likeness[0] - 0.25]
    close = close or [n for n in names if name and name in n][:3]
    if close:
        return "did you mean " + " or ".join(", ".join(close).rsplit(", ", 1)) + "?"
    return "there are: " + ", ".join(names[:30]) + (", ..." if len(names) > 30 else "")


def unknown(kind: str, name: str, known: Iterable[str]) -> UnknownName:
    """The error for a name that is not registered."""
    return UnknownName(f"no {kind} is called {name!r}; {nearest(name, known)}")


def describe(error: BaseException, limit: int = 500) -> str:
    """`TypeName: message` of any exception in one line of at most `limit` characters.

    Also of one whose own `__str__` raises, and of one without a message.
    """
    try:
        text = " ".join(str(error).split())
    except BaseException as other:
        text = f"(its message cannot be shown: __str__ raised {type(other).__name__})"
    text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text if len(text) <= limit else text[: limit - 3] + "..."
