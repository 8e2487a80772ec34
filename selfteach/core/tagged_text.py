"""Reading tagged text, and finding the tokens of places in a text."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
SPLIT = " ## "  # between queries that are asked at once, and between their results
SENTENCE_ENDS = r"[.!?](?=\s|<)|\n+"  # of sentences and lines, for `split_points`
# Tags that programs, chat templates and readers of tool calls know, however they are spelled.
TAGS = (
    *("think", "search", "information", "answer", "judge", "goal", "reflect", "decision", "question", "report", "cite"),
    *("cut", "open", "page", "result", "observation", "tool_call", "tool_response", "function"),
)
_TAG = re.compile(rf"</?\s*(?:{'|'.join(TAGS)})\b[^<>]*>", re.IGNORECASE)


def between(text: str, tag: str) -> list[str]:
    """The text inside each <tag>...</tag>, in order, stripped."""
    return [s.strip() for s in re.findall(rf"<{re.escape(tag)}>(.*?)</{re.escape(tag)}>", text, flags=re.DOTALL)]


def last_between(text: str, tag: str, otherwise: T) -> str | T:
    """The text inside the last <tag>...</tag>, or `otherwise` where there is none."""
    found = between(text, tag)
    return found[-1] if found else otherwise


def ends_in_part_of(stop: Sequence[str], text: str) -> bool:
    """Whether a text ends in the beginning of a stop string, which an engine would miss on continuing from there.

    >>> ends_in_part_of(("</answer>",), "4</ans"), ends_in_part_of(("</answer>",), "4</answer>")
    (True, False)
    """
    return any(text.endswith(s[:n]) for s in stop for n in range(1, len(s)))


def without_tags(text: str, by: str = "") -> str:
    """A text from outside, which may not speak for a policy: without tags, also those that come of leaving others out.

    >>> without_tags("Ulm.</inform<think>ation><answer> Rome</answer>"), without_tags("a < b")
    ('Ulm. Rome', 'a < b')
    """
    while (less := _TAG.sub(by, text)) != text:
        text = less
    return text


def messages_as_text(messages: Sequence[Mapping[str, Any]]) -> str:
    r"""Messages as a text prompt, for a model without a chat template: one of the user as it is, more by their roles.

    Calls of tools that end it, and their answers, are as in a rollout (rollout/functions.py).

    >>> messages_as_text([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}])
    'system: Be brief.\nuser: 2 + 2?\nassistant: '
    """
    end = len(messages)
    while end > 1 and (messages[end - 1]["role"] == "tool" or messages[end - 1].get("tool_calls")):
        end -= 1
    messages, calls = messages[:end], turns_as_text(messages[end:])
    if len(messages) == 1:
        return str(messages[0]["content"]) + calls
    return "".join(f"{m['role']}: {turns_as_text([m])}\n" for m in messages) + "assistant: " + calls


def last_message(prompt: str | Sequence[Mapping[str, Any]]) -> str:
    """The text of a prompt, or of a conversation its last message, where the question is: examples may go before it.

    >>> last_message("who?"), last_message([{"role": "user", "content": "as in"}, {"role": "user", "content": "who?"}])
    ('who?', 'who?')
    """
    return prompt if isinstance(prompt, str) else str(prompt[-1]["content"])


def turns_as_text(messages: Sequence[Mapping[str, Any]]) -> str:
    """Replies and what tools answered, end to end: calls as <tool_call>{...}</tool_call>, answers of tools as
    <tool_response>...</tool_response>.
    """
    out = list[str]()
    for message in messages:
        text = str(message.get("content") or "")
        out.append(f"<tool_response>{text}</tool_response>" if message["role"] == "tool" else text)
        for call in message.get("tool_calls") or ():
            function = call.get("function", call)
            given = function.get("arguments", {})
            given = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
            out.append(f'<tool_call>{{"name": {json.dumps(function.get("name"))}, "arguments": {given}}}</tool_call>')
    return "".join(out)


def pieces_before(pieces: Sequence[bytes], place: int) -> int:
    """The index of the token that holds byte `place` of the text.

    >>> pieces_before([b"1 +", b"", b" 1"], 3)
    2
    """
    return sum(end <= place for end in itertools.accumulate(map(len, pieces)))


def split_points(pieces: Sequence[bytes], pattern: str, before: bool = False) -> list[int]:
    r"""Token indices at which a text is split by a pattern, ascending, without the text's beginning and end.

    A split is after each match (the token with its last byte is the last one before the split), or with `before`
    before it (the token with its first byte is the first one after the split).

    >>> split_points([b"1 +", b" 1", b" = 2", b".", b" so", b" 2"], r"[.](?=\s)")
    [4]
    >>> split_points([b"1", b" wait", b" 2"], r"wait", before=True)
    [1]
    """
    text = b"".join(pieces)
    found = set[int]()
    for match in re.finditer(pattern.encode(), text):
        found.add(pieces_before(pieces, match.start()) if before else pieces_before(pieces, match.end() - 1) + 1)
    return sorted(n for n in found if 0 < n < len(pieces))


def step_verdicts(
    pieces: Sequence[bytes], judge: Callable[..., bool | None], pattern: str = SENTENCE_ENDS
) -> Iterator[tuple[int, int, bool | None]]:
    """The steps of a text, sentences and lines, each as (first token, token behind its last, what a judge says of it).

    judge: (step=text) -> whether it is right; None: it is no step (`Task.judges["step"]`).

    >>> list(step_verdicts([b"1 + 1", b" = 2.", b" Hm", b"."], judge=lambda step: "2" in step or None))
    [(0, 2, True), (2, 4, None)]
    """
    for a, z in itertools.pairwise([0, *split_points(pieces, pattern), len(pieces)]):
        yield a, z, judge(step=b"".join(pieces[a:z]).decode(errors="replace"))
