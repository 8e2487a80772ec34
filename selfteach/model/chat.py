"""Chat templates: what a real model wants written around messages.

Turns are appended, never written again, as long as a render of more turns begins with what stands there. That is a property of the
template: `drifts` says beforehand where it does not hold, and `cause` why it did not in a conversation, which then goes on in a branch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from typing import Any

from ..core.errors import BadValue

Message = Mapping[str, Any]
ASK, SAID = {"role": "user", "content": "What is asked?"}, "What-was-replied-7f3a"
TODAY = datetime(2024, 7, 26)  # what a template that asks for the date is told: a prompt must not depend on the day it is written on
THOUGHT = re.compile(r"<think>.*?</think>\s*", re.DOTALL)

# Why a render of more turns does not begin with the tokens of fewer (after the `renderers` package's diagnostics).
REFUSED = "role refused"
NO_CLOSE = "unknown close of a turn"
REWRITTEN = "history rewritten"
THINKING = "thinking stripped"
WHITESPACE = "whitespace drift"
TOOL_CALL = "tool-call re-serialised"
BPE = "BPE drift"


@dataclass(frozen=True)
class Chat:
    """A chat template with the names it may use (bos_token ...). `close`: the text of the special token that ends a turn, if one does."""

    template: str
    names: Mapping[str, str] = field(default_factory=dict)
    close: str | None = None

    @staticmethod
    def of(config: Mapping[str, Any], special: Collection[str] = ()) -> Chat | None:
        """The template of a tokenizer_config.json (of several, the one called default), None where there is none.

        special  the tokenizer's special tokens: the one that stands after a reply ends turns
        """
        template = config.get("chat_template")
        if isinstance(template, list):
            template = {t["name"]: t["template"] for t in template}.get("default")
        if not template:
            return None
        words = {k: v.get("content") if isinstance(v, Mapping) else v for k, v in config.items() if k.endswith("_token")}
        chat = Chat(template, {k: v for k, v in words.items() if isinstance(v, str)})
        try:
            tail = chat.text([ASK, {"role": "assistant", "content": SAID}], reply=False).partition(SAID)[2].lstrip()
        except BadValue:
            return chat
        return replace(chat, close=max((t for t in special if tail.startswith(t)), key=len, default=None))

    def text(self, messages: Sequence[Message], reply: bool = True) -> str:
        """The conversation as text, with the beginning of a reply. Raises BadValue where the template refuses it or is broken."""
        try:
            return compiled(self.template).render(messages=list(messages), add_generation_prompt=reply, tools=None, **self.names)
        except Exception as error:  # whatever a template may do
            raise BadValue(f"chat template: {type(error).__name__}: {' '.join(str(error).split())}") from error

    def after_reply(self, message: Message) -> str:
        """What stands between a reply and the next one when `message` comes between them, from the token that ends the reply on.

        Raises BadValue where the template does not take such a message, or nothing ends a reply.
        """
        _, found, tail = self.text([ASK, {"role": "assistant", "content": SAID}, message]).partition(SAID)
        if not found or self.close is None or not tail.lstrip().startswith(self.close):
            raise BadValue(f"chat template: {NO_CLOSE}: it cannot be told where a reply ends, so no {message.get('role')} message can follow one")
        return tail.lstrip()

    def drifts(self, encode: Callable[[str], Sequence[int]], inside: Callable[[str], Sequence[int]]) -> dict[str, str]:
        """What a render of more turns would say otherwise than the turns as they were appended: a probe's name -> why.

        encode, inside  text -> ids, special tokens read as such: of a whole text, and of one that stands in the middle
        """
        out = {}
        for name, (head, reply, message) in PROBES.items():
            if name == "tool calls" and "tool_calls" not in self.template:
                continue
            try:
                first = self.text(head)
                parts = first, _raw(reply), self.after_reply(message)
                whole = self.text([*head, reply, message])
            except BadValue as error:
                out[name] = NO_CLOSE if NO_CLOSE in str(error) else REFUSED
                continue
            if (why := _why(parts, whole, "tool_calls" in reply, encode, inside)) is not None:
                out[name] = why
        return out


def _why(parts: tuple[str, str, str], whole: str, called: bool, encode: Callable[[str], Any], inside: Callable[[str], Any]) -> str | None:
    """Why a conversation appended in three parts (up to the reply, the reply, from its end on) is not what a render of the whole gives."""
    first, reply, after = parts
    if (grown := first + reply + after) == whole:
        return None if [*encode(whole)] == [*encode(first), *inside(reply), *encode(after)] else BPE
    return cause(grown, whole, called)


def cause(grown: str, whole: str, called: bool = False) -> str:
    """Why a render of a whole conversation is not the text that grew turn by turn. called: its last reply holds parsed tool calls."""
    if called:
        return TOOL_CALL
    bare, anew = ("".join(text.split()) for text in (grown, whole))
    if bare == anew:
        return WHITESPACE
    return THINKING if THOUGHT.sub("", bare) == THOUGHT.sub("", anew) else REWRITTEN


def _raw(reply: Message) -> str:
    """A reply as a model would have written it."""
    calls = [c["function"] for c in reply.get("tool_calls", ())]
    return reply["content"] + "".join("<tool_call>" + json.dumps(c, separators=(",", ":")) + "</tool_call>" for c in calls)


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _said(text: str, **more: Any) -> Message:
    return {"role": "assistant", "content": text, **more}


CALL = {"type": "function", "function": {"name": "look", "arguments": {"sure": True}}}
SYSTEM = {"role": "system", "content": "Be brief."}
# head, reply, the message after it
PROBES: dict[str, tuple[list[Message], Message, Message]] = {
    "user": ([_user("One?")], _said("Two."), _user("Three?")),
    "longer": ([_user("One?"), _said("Two."), _user("Three?")], _said("Four."), _user("Five?")),
    "system": ([SYSTEM, _user("One?")], _said("Two."), _user("Three?")),
    "spaces": ([_user("One?")], _said(" Two.\n"), _user("Three?")),
    "thinking": ([_user("One?")], _said("<think>\nHm.\n</think>\n\nTwo."), _user("Three?")),
    "tool": ([_user("One?")], _said("Two."), {"role": "tool", "name": "look", "content": "Three."}),
    "tool calls": ([_user("One?")], _said("", tool_calls=[CALL]), {"role": "tool", "name": "look", "content": "Three."}),
}


@lru_cache(maxsize=16)
def compiled(template: str) -> Any:
    """A template as the Hub's are written: sandboxed, blocks trimmed, with raise_exception, strftime_now and a tojson that keeps letters.

    Raises what jinja2 raises for one that is not well-formed.
    """
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """{% generation %} ... {% endgeneration %}: written as if it were not there."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    def refuse(message: str) -> None:
        raise BadValue(message)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation])
    env.filters["tojson"] = lambda x, **how: json.dumps(x, ensure_ascii=False, **{k: v for k, v in how.items() if k != "ensure_ascii"})
    env.globals["raise_exception"] = refuse
    env.globals["strftime_now"] = TODAY.strftime
    return env.from_string(template)
