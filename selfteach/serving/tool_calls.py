"""Tool calls in a model's text, as the usual chat templates teach them: JSON between tags, after a mark, or alone."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

MARKS = ("<tool_call>", "[TOOL_CALLS]", "<function=", "<|python_tag|>")
FENCE = re.compile(r"\A```(?:json)?|```\Z")


class ToolCall(NamedTuple):
    """A call of a function: its name, and its arguments as JSON."""

    name: str
    arguments: str


def read_tool_calls(text: str, names: Collection[str]) -> tuple[str, list[ToolCall]]:
    """(the text outside of calls, the calls) of an answer; a call of a function that is not in `names` is text.

    >>> read_tool_calls('Sure. <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>', ["add"])
    ('Sure.', [ToolCall(name='add', arguments='{"a": 1}')])
    >>> read_tool_calls('{"name": "add", "parameters": {}}', ["add"])
    ('', [ToolCall(name='add', arguments='{}')])
    """
    for read in (_tagged, _named, _listed, _alone):  # no patterns that try again: the text may be long, and hostile
        rest, found = read(text)
        if calls := [call for value in found for call in _calls(value, names)]:
            return rest.strip(), calls
    return text, []


def read_any_calls(text: str) -> list[ToolCall]:
    """The calls in a text whatever the functions are called, where tags or marks say that they are calls."""
    if not any(mark in text for mark in MARKS):
        return []
    for read in (_tagged, _named, _listed, _alone):
        if calls := [call for value in read(text)[1] for call in _calls(value)]:
            return calls
    return []


def may_be_call(text: str) -> bool:
    """Whether an answer that begins so may be a call without any mark."""
    return text.lstrip()[:1] in ("{", "[", "`")


def _tagged(text: str) -> tuple[str, list[Any]]:
    """<tool_call>{...}</tool_call>, of Hermes, Qwen and SmolLM3."""
    rest, *parts = text.split("<tool_call>")
    inside = [part.partition("</tool_call>") for part in parts]
    return rest + "".join(after for _, _, after in inside), [_json(own) for own, _, _ in inside]


def _named(text: str) -> tuple[str, list[Any]]:
    """<function=NAME>{...}</function>, of Llama."""
    rest, *parts = text.split("<function=")
    inside = [part.partition("</function>") for part in parts]
    calls = [own.partition(">") for own, _, _ in inside]
    found = [{"name": name, "arguments": _json(arguments)} for name, _, arguments in calls]
    return rest + "".join(after for _, _, after in inside), found


def _listed(text: str) -> tuple[str, list[Any]]:
    """[TOOL_CALLS] [{...}, ...], of Mistral."""
    rest, mark, own = text.partition("[TOOL_CALLS]")
    return rest, [_json(own)] if mark else []


def _alone(text: str) -> tuple[str, list[Any]]:
    """{...} or [{...}] and nothing else, in a fence or not."""
    own = FENCE.sub("", text.strip().removeprefix("<|python_tag|>").strip()).strip()
    return "", [_json(own)] if own[:1] in ("{", "[") and own[-1:] in ("}", "]") else []


def _calls(found: Any, names: Collection[str] | None = None) -> Iterator[ToolCall]:
    for call in found if isinstance(found, list) else [found]:
        name = call.get("name") if isinstance(call, dict) else None
        if not isinstance(name, str) or (names is not None and name not in names):
            continue
        arguments = call.get("arguments", call.get("parameters", {}))
        if isinstance(arguments, str):
            arguments = _json(arguments)
        if isinstance(arguments, dict):
            yield ToolCall(name, json.dumps(arguments, ensure_ascii=False))


def _json(text: str) -> Any:
    """The value at the beginning of a text; None where there is none."""
    try:
        return json.JSONDecoder().raw_decode(text.strip())[0]
    except (ValueError, RecursionError):
        return None
