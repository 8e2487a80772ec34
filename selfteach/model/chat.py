"""Chat templates: the text that a model expects around messages.

Turns are appended, not re-rendered, as long as a render of more turns begins with the text so far. That is a property
of the template: `drifts` lists beforehand where it fails, and `drift_cause` says why it failed in a conversation, which
then continues in a branch.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ..core.errors import BadValue

Message = Mapping[str, Any]
QUESTION, REPLY = {"role": "user", "content": "What is asked?"}, "What-was-replied-7f3a"
PROBE_TOOL = "probe_7f3a"
THINK_BLOCK = re.compile(r"<think>.*?</think>\s*", re.DOTALL)

# Why a render of more turns does not begin with the tokens of fewer (named as in the package `renderers`).
ROLE_REFUSED = "role refused"
NO_END_OF_TURN = "unknown close of a turn"
HISTORY_REWRITTEN = "history rewritten"
THINKING_STRIPPED = "thinking stripped"
WHITESPACE_DRIFT = "whitespace drift"
TOOL_CALL_CHANGED = "tool-call re-serialised"
BPE_DRIFT = "BPE drift"


@dataclass(frozen=True)
class ChatTemplate:
    """A chat template.

    special_tokens  the tokens that it may use by name (bos_token ...)
    end_of_turn     the text of the special token that ends a turn; None: no single token does
    """

    template: str
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    end_of_turn: str | None = None

    @staticmethod
    def from_config(config: Mapping[str, Any], special: Collection[str] = ()) -> ChatTemplate | None:
        """The template of a tokenizer_config.json (of several, the one called default); None: it has none.

        special  the tokenizer's special tokens: the one after a reply is `end_of_turn`

        Raises BadValue for a template that is no text.
        """
        template = config.get("chat_template")
        if isinstance(template, list):
            rows = [t if isinstance(t, Mapping) else {} for t in template]
            if any(not (isinstance(t.get("name"), str) and isinstance(t.get("template"), str)) for t in rows):
                raise BadValue("chat_template: of several each needs a name and a template, both text; mend the file")
            template = {t["name"]: t["template"] for t in rows}.get("default")
        if not template:
            return None
        if not isinstance(template, str):
            raise BadValue(f"chat_template: is a {type(template).__name__}, and must be text; mend the file")
        tokens = {
            k: v.get("content") if isinstance(v, Mapping) else v for k, v in config.items() if k.endswith("_token")
        }
        chat = ChatTemplate(template, {k: v for k, v in tokens.items() if isinstance(v, str)})
        try:
            tail = (
                chat.render([QUESTION, {"role": "assistant", "content": REPLY}], reply=False)
                .partition(REPLY)[2]
                .lstrip()
            )
        except BadValue:
            return chat
        return replace(chat, end_of_turn=max((t for t in special if tail.startswith(t)), key=len, default=None))

    def render(
        self, messages: Sequence[Message], reply: bool = True, tools: Sequence[Mapping[str, Any]] | None = None
    ) -> str:
        """The messages as text, with `reply` followed by the generation prompt.

        tools  functions that the model may call, in OpenAI's form; not every template says them

        Raises BadValue where the template refuses them or is broken.
        """
        from .template_sandbox import compiled  # with jinja2, which a model without a template does not need

        try:
            return compiled(self.template).render(
                messages=list(messages), add_generation_prompt=reply, tools=tools, **self.special_tokens
            )
        except Exception as error:  # whatever a template may do
            raise BadValue(f"chat template: {type(error).__name__}: {' '.join(str(error).split())}") from error

    @cached_property
    def says_tools(self) -> bool:
        """Whether the template has a place for functions that the model may call."""
        about = {"name": PROBE_TOOL, "description": "None.", "parameters": {"type": "object", "properties": {}}}
        text = ""
        with contextlib.suppress(BadValue):
            text = self.render([QUESTION], tools=[{"type": "function", "function": about}])
        return PROBE_TOOL in text

    def text_after_reply(self, message: Message) -> str:
        """The text from the end of a reply up to the next reply, with `message` between them.

        It begins with the end-of-turn token. Raises BadValue where the template refuses such a message, or has no
        end-of-turn token.
        """
        _, placeholder, tail = self.render([QUESTION, {"role": "assistant", "content": REPLY}, message]).partition(
            REPLY
        )
        if not placeholder or self.end_of_turn is None or not tail.lstrip().startswith(self.end_of_turn):
            raise BadValue(
                f"chat template: {NO_END_OF_TURN}: no token ends a reply, so no {message.get('role')} message "
                "can follow one; use a template with an end-of-turn token"
            )
        return tail.lstrip()

    def drifts(self, encode: Callable[[str], Sequence[int]], inside: Callable[[str], Sequence[int]]) -> dict[str, str]:
        """Where a render of more turns differs from appended turns: a probe's name -> the cause.

        encode, inside  text -> ids, with special tokens: of a whole text, and of one in the middle of a text
        """
        out = {}
        for name, (head, reply, message) in PROBES.items():
            if name == "tool calls" and "tool_calls" not in self.template:
                continue
            try:
                first = self.render(head)
                parts = first, _raw(reply), self.text_after_reply(message)
                whole = self.render([*head, reply, message])
            except BadValue as error:
                out[name] = NO_END_OF_TURN if NO_END_OF_TURN in str(error) else ROLE_REFUSED
                continue
            if (why := _why(parts, whole, "tool_calls" in reply, encode, inside)) is not None:
                out[name] = why
        return out


def _why(
    parts: tuple[str, str, str],
    whole: str,
    has_tool_calls: bool,
    encode: Callable[[str], Any],
    inside: Callable[[str], Any],
) -> str | None:
    """The cause where three parts (up to the reply, the reply, from its end on) differ from a render of the whole."""
    first, reply, after = parts
    if (appended := first + reply + after) == whole:
        return None if [*encode(whole)] == [*encode(first), *inside(reply), *encode(after)] else BPE_DRIFT
    return drift_cause(appended, whole, has_tool_calls)


def drift_cause(appended: str, whole: str, has_tool_calls: bool = False) -> str:
    """The cause by which a render of a whole conversation differs from the text appended turn by turn.

    has_tool_calls  True where its last reply has parsed tool calls
    """
    if has_tool_calls:
        return TOOL_CALL_CHANGED
    bare, rendered = ("".join(text.split()) for text in (appended, whole))
    if bare == rendered:
        return WHITESPACE_DRIFT
    return THINKING_STRIPPED if THINK_BLOCK.sub("", bare) == THINK_BLOCK.sub("", rendered) else HISTORY_REWRITTEN


def _raw(reply: Message) -> str:
    """The text that a model would have generated for a reply."""
    calls = [c["function"] for c in reply.get("tool_calls", ())]
    return reply["content"] + "".join(
        "<tool_call>" + json.dumps(c, separators=(",", ":")) + "</tool_call>" for c in calls
    )


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _assistant(text: str, **more: Any) -> Message:
    return {"role": "assistant", "content": text, **more}


CALL = {"type": "function", "function": {"name": "look", "arguments": {"sure": True}}}
SYSTEM = {"role": "system", "content": "Be brief."}
# head, reply, the message after it
PROBES: dict[str, tuple[list[Message], Message, Message]] = {
    "user": ([_user("One?")], _assistant("Two."), _user("Three?")),
    "longer": ([_user("One?"), _assistant("Two."), _user("Three?")], _assistant("Four."), _user("Five?")),
    "system": ([SYSTEM, _user("One?")], _assistant("Two."), _user("Three?")),
    "spaces": ([_user("One?")], _assistant(" Two.\n"), _user("Three?")),
    "thinking": ([_user("One?")], _assistant("<think>\nHm.\n</think>\n\nTwo."), _user("Three?")),
    "tool": ([_user("One?")], _assistant("Two."), {"role": "tool", "name": "look", "content": "Three."}),
    "tool calls": (
        [_user("One?")],
        _assistant("", tool_calls=[CALL]),
        {"role": "tool", "name": "look", "content": "Three."},
    ),
}
