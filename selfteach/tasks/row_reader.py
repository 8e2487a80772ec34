"""What a row says: a prompt as text or messages, an answer, a demonstration or a pair, by the columns that it has."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from ..core.errors import BadValue
from ..core.tagged_text import turns_as_text

QUESTION = "question"  # the column of question-answering sets, beside `golden_answers`
# Columns that a prompt is read from, unless the option `prompt` names one.
PROMPTS = ("prompt", "messages", "chosen", QUESTION)
TURN = "\n\nAssistant:"  # ends the prompt in conversations that are written as one text


class Item(NamedTuple):
    """What a row says.

    prompt      text or messages
    answer      the reference answer; None: there is none
    completion  of a demonstration, or the preferred one of a pair; None: there is none
    rejected    the other one of a pair
    """

    prompt: Any
    answer: Any
    completion: str | None
    rejected: str | None


@dataclass(frozen=True)
class RowReader:
    """How a row is read: the columns of its prompt, answer and completion; "": those of the usual names."""

    name: str
    prompt: str = ""
    answer: str = ""
    completion: str = ""

    def read(self, index: int, row: Mapping[str, Any]) -> Item:
        """What a row says. Raises BadValue, naming the row, for one that says nothing."""
        try:
            row, prompt_name = _with_prompt(row, self.prompt)
            prompt, end = self._prompt(row, prompt_name)
            chosen, rejected = _reply(row.get("chosen"), "chosen"), _reply(row.get("rejected"), "rejected")
            _check_pair(row, chosen, rejected)
            completion = _reply(row.get(self.completion or "completion"), self.completion or "completion")
            return Item(prompt, self._answer(row), completion or chosen or end, rejected)
        except ValueError as error:
            raise BadValue(f"{self.name}, row {index + 1}: {error}") from None

    def _prompt(self, row: Mapping[str, Any], name: str) -> tuple[Any, str | None]:
        """(the prompt, the reply that ends it, where a conversation has one)."""
        name = name or next((n for n in PROMPTS if n in row), "")
        if name not in row:
            there = ", ".join(map(str, row)) or "none"
            wanted = f"column {name!r}" if name else "column prompt, messages or question"
            raise ValueError(
                f"has no {wanted}; its columns are {there}; name it: --set prompt=COLUMN, in Python"
                " task_options={'prompt': 'COLUMN'}"
            )
        value = row[name]
        if isinstance(value, str):
            if not value.strip():
                raise ValueError(f"its {name} is empty")
            return value, None
        messages = _messages(value, name)
        if messages[-1]["role"] != "assistant":
            return messages, None
        if len(messages) == 1:
            raise ValueError(f"its {name} is one reply and no prompt")
        return messages[:-1], turns_as_text(messages[-1:])

    def _answer(self, row: Mapping[str, Any]) -> Any:
        if self.answer:
            if self.answer not in row:
                raise ValueError(f"has no column {self.answer!r}; its columns are {', '.join(row)}")
            return row[self.answer]
        judged = row.get("reward_model")
        if isinstance(judged, Mapping) and "ground_truth" in judged:
            truth: Any = cast("Mapping[str, Any]", judged)["ground_truth"]
            return truth["target"] if isinstance(truth, Mapping) and "target" in truth else truth
        return row["golden_answers"] if row.get("golden_answers") else row.get("answer")


def _with_prompt(row: Mapping[str, Any], name: str) -> tuple[Mapping[str, Any], str]:
    """(the row, its column of the prompt) of a preference pair that has its prompt in both answers: what both begin
    with becomes the prompt, up to the beginning of a word (or of the assistant's turn).
    """
    one, other = row.get("chosen"), row.get("rejected")
    if name or "prompt" in row or "messages" in row or not (isinstance(one, str) and isinstance(other, str)):
        return row, name
    same = "".join(a for a, _ in itertools.takewhile(lambda two: two[0] == two[1], zip(one, other, strict=False)))
    at = same.rfind(TURN) + len(TURN)
    if at < len(TURN):
        at = max((i + 1 for i, c in enumerate(same) if c.isspace()), default=0)
    if not same[:at].strip():
        raise ValueError("has a preference pair as text, no column prompt, and nothing that both begin with")
    return {**row, "prompt": one[:at], "chosen": one[at:], "rejected": other[at:]}, "prompt"


def _check_pair(row: Mapping[str, Any], chosen: str | None, rejected: str | None) -> None:
    """Raise ValueError for half a pair, an empty answer, and answers to different conversations."""
    for name, own, other in (("chosen", chosen, rejected), ("rejected", rejected, chosen)):
        if own is None and other is not None and (name == "chosen" or "rejected" in row):
            raise ValueError(f"has no {name} beside its {'chosen' if name == 'rejected' else 'rejected'}")
        if other is not None and own is not None and not own.strip():
            raise ValueError(f"its {name} is empty")
    one, other = row.get("chosen"), row.get("rejected")
    if isinstance(one, list) and isinstance(other, list) and one[:-1] != other[:-1]:
        raise ValueError("its chosen and rejected are replies to different conversations")


def _messages(value: Any, name: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value:
        what = "empty" if value in ("", [], None) else f"a {type(value).__name__}"
        raise ValueError(f"its {name} is {what}, not text or messages")
    messages = [
        {**m, "content": m.get("content") or ""} if isinstance(m, Mapping) and m.get("tool_calls") else m
        for m in cast("list[Any]", value)
    ]
    for n, message in enumerate(messages, 1):
        if not isinstance(message, Mapping) or not {"role", "content"} <= message.keys():
            raise ValueError(f"message {n} of its {name} is no {{'role': ..., 'content': ...}}")
        if not isinstance(message["content"], str):
            raise ValueError(
                f"the content of message {n} of its {name} is a {type(message['content']).__name__}, not text"
            )
    return cast("list[dict[str, Any]]", messages)


def _reply(value: Any, name: str) -> str | None:
    """The text of a completion: text, or messages of which the last is the reply; with calls of tools and their answers
    before it, where it has these alone.
    """
    if value is None or isinstance(value, str):
        return value
    messages = _messages(value, name)
    if messages[-1]["role"] != "assistant":
        raise ValueError(f"its {name} does not end with a message of the assistant")
    return turns_as_text(messages if all(m["role"] in ("assistant", "tool") for m in messages) else messages[-1:])
