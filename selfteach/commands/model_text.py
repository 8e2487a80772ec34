"""A model's text in a terminal, and the options by which commands load and ask a model.

What a model says, or was asked, is not ours: a terminal gets it without control characters, a pipe as it is.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..core.errors import BadValue
from ..core.task import Sampling
from ..loop.settings import RunSettings
from .arguments import add_fields, add_typed
from .common import add_trust, print_note

if TYPE_CHECKING:
    from ..serving.text_model import TextModel

MAX_TOKENS = 256
# What changes the order in which a terminal shows characters, so that a line reads as another than it is.
DIRECTION = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def escaped(text: str) -> str:
    r"""A text for a terminal: what would move the cursor, change colours or the direction of writing is written out.

    >>> escaped("a\tb\n\x1b[31mred\u202e")
    'a\tb\n\\x1b[31mred\\u202e'
    """
    if text.isprintable():
        return text
    return "".join(c if c in "\n\t" or not _moves(c) else c.encode("unicode_escape").decode() for c in text)


def _moves(c: str) -> bool:
    return unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") or c in DIRECTION


def shown_on(stream: Any, text: str) -> str:
    """A text as it is written to a stream: escaped for a terminal, as it is for a file or a pipe."""
    return escaped(text) if stream.isatty() else text


def add_loading(parser: Any) -> None:
    """Add the options by which a model is loaded."""
    add_fields(parser, RunSettings, only=("threads", "device", "context"))
    add_trust(parser)


def add_sampling_options(parser: Any, max_tokens: int = MAX_TOKENS) -> None:
    """Add the options of sampling."""
    add_typed(parser, "temperature", float, "of sampling; 0 takes the likeliest token each time", 1.0)
    add_typed(parser, "top_p", float, "sample from the likeliest tokens whose probabilities sum to this", 1.0)
    add_typed(parser, "max_tokens", int, "tokens of an answer at most", max_tokens)
    stop = "texts that end an answer, and are no part of it"
    parser.add_argument("--stop", metavar="TEXT", nargs="+", action="extend", help=stop)
    seed = "the same seed, prompt and model give the same answer (default: another each time)"
    add_typed(parser, "seed", int, seed)


def sampling_of(given: Mapping[str, Any]) -> Sampling:
    """The given sampling. Raises BadValue."""
    if "" in given.get("stop", ()):
        raise BadValue("--stop: a stop text is empty; leave it out")
    return Sampling(
        temperature=given.get("temperature", 1.0),
        top_p=given.get("top_p", 1.0),
        max_tokens=given.get("max_tokens", MAX_TOKENS),
    )


def load_model(given: Mapping[str, Any], slots: int) -> TextModel:
    """The model of a command line, loaded."""
    from ..serving.loading import load

    loading = {n: given[n] for n in ("threads", "device", "context", "trust") if n in given}
    return load(given["model"], slots=slots, name=given.get("name"), **loading)


def note_without_template(model: TextModel) -> None:
    """Say how a model without a chat template gets messages."""
    if not model.has_chat_template:
        print_note(f"{model.name} has no chat template: it gets your text as it is, and earlier turns by their roles")
