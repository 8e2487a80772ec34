"""Tool calls in a model's text, as the usual chat templates teach them: JSON between tags, after a mark, or alone."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

MARKS = ("<tool_call>", "[TOOL_CALLS]", "<function=", "<|python_tag|>")
# The readers have no patterns that try again: the text may be long, and hostile.
SEARCH = "search/"  # begins what is counted of searches
FENCE = re.compile(r"\A```(?:json)?|```\Z")


class ToolCall(NamedTuple):
    """A call of a function: its name, and its arguments as JSON."""

    name: str
    arguments: str


class FoundCall(NamedTuple):
    """What stands where a call is meant: the function's name and its arguments, or (name "") what is wrong with it."""

    name: str
    arguments: Any
    wrong: str = ""


def asked_nobody(kind: str, names: Sequence[str]) -> str:
    """The reply to a query that names none of those who can be asked.

    >>> asked_nobody("expert", ["scribe", "sage"])
    'there is no such expert; ask one of scribe, sage, as in scribe: query.'
    """
    return f"there is no such {kind}; ask one of {', '.join(names)}, as in {names[0]}: query."


def find_tool_calls(text: str) -> tuple[str, list[FoundCall]]:
    """(the text outside of calls, the calls) of an answer, right or wrong. JSON without any mark is a call where it has
    a name and arguments.

    >>> find_tool_calls('<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>')
    ('', [FoundCall(name='add', arguments={'a': 1}, wrong='')])
    >>> find_tool_calls("<tool_call>add(1)</tool_call>")[1][0].wrong
    'the call is not JSON'
    """
    for read in (_tagged, _named, _listed, _alone):
        rest, found = read(text)
        values = [call for value in found for call in (value if isinstance(value, list) else [value])]
        if read is _alone:
            values = [
                v for v in values if isinstance(v, dict) and "name" in v and {"arguments", "parameters"} & v.keys()
            ]
        if values:
            return rest.strip(), [_found(value) for value in values]
    return text, []


def _found(value: Any) -> FoundCall:
    if not isinstance(value, dict):
        what = "is not JSON" if value is None else "is no object with a name and arguments"
        return FoundCall("", None, f"the call {what}")
    name, arguments = value.get("name"), value.get("arguments", value.get("parameters", {}))
    if not isinstance(name, str) or not name:
        return FoundCall("", None, "the call has no name")
    if isinstance(arguments, str):
        arguments = _json(arguments)
    return FoundCall(name, arguments)


def read_tool_calls(text: str, names: Collection[str]) -> tuple[str, list[ToolCall]]:
    """(the text outside of calls, the calls) of an answer; a call of a function that is not in `names` is text.

    >>> read_tool_calls('Sure. <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>', ["add"])
    ('Sure.', [ToolCall(name='add', arguments='{"a": 1}')])
    >>> read_tool_calls('{"name": "add", "parameters": {}}', ["add"])
    ('', [ToolCall(name='add', arguments='{}')])
    """
    for read in (_tagged, _named, _listed, _alone):
        rest, found = read(text)
        if calls := [call for value in found for call in _calls(value, names)]:
            return rest.strip(), calls
    return text, []


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


def _calls(found: Any, names: Collection[str]) -> Iterator[ToolCall]:
    for call in map(_found, found if isinstance(found, list) else [found]):
        if call.name in names and isinstance(call.arguments, dict):
            yield ToolCall(call.name, json.dumps(call.arguments, ensure_ascii=False))


def _json(text: str) -> Any:
    """The value at the beginning of a text; None where there is none."""
    try:
        return json.JSONDecoder().raw_decode(text.strip())[0]
    except (ValueError, RecursionError):
        return None


class ToolText(str):
    """What a tool answered, as text, with what there is to count of it in the episode: `search/failed` 1, say."""

    counts: Mapping[str, float]

    def __new__(cls, text: str, counts: Mapping[str, float]) -> ToolText:
        """A text with counts."""
        made = super().__new__(cls, text)
        made.counts = counts
        return made
