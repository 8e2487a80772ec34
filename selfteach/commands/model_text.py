"""A model's text in a terminal, and the options by which commands load and ask a model.

What a model says, or was asked, is not ours: a terminal gets it without control characters, a pipe as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..core.errors import BadValue
from ..core.task import Sampling
from ..loop.settings import RunSettings
from .arguments import add_fields, add_typed
from .common import add_trust, print_note

if TYPE_CHECKING:
    from ..core.tree import CallRecord
    from ..serving.program_player import ProgramPlayer
    from ..serving.text_model import TextModel

MAX_TOKENS = 256


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


def add_tools(parser: Any) -> None:
    """Add the options by which tools are called."""
    tools = "typed functions with docstrings that the model may call (docs/tools.md), in place of those of its run"
    parser.add_argument("--tools", metavar="FILE.py:NAME", nargs="+", action="extend", help=tools)
    add_typed(parser, "no_tools", bool, "call none: of a run that was trained with tools the model alone")


def player_for(given: Mapping[str, Any], model: TextModel, command: str) -> ProgramPlayer | None:
    """What plays the program of a run with tools, or one with --tools; None where there are none. Raises BadValue."""
    if given.get("no_tools"):
        if "tools" in given:
            raise BadValue(f"selfteach {command}: --tools and --no-tools do not go together; leave one out")
        return None
    from ..serving.program_player import player_of

    player = player_of(given["model"], model, bool(given.get("trust")), given.get("tools", ()))
    if player is not None and given.get("stop"):
        raise BadValue(
            f"selfteach {command}: --stop: the program that calls the tools ends its turns itself; leave it out, or"
            " give --no-tools"
        )
    return player


def shown_call(call: CallRecord) -> str:
    """A call of a tool in a line: which, how long it took, what it raised."""
    took = f"{1000 * call.seconds:.0f} ms" if call.seconds < 1 else f"{call.seconds:.3g} s"
    return f"{call.tool}, {took}" + (f", {call.error}" if call.error else "")


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
