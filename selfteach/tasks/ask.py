"""How a question is put to a model that talks in messages: in plain English, where need be after examples of the form that is wanted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..core.errors import unknown
from ..core.task import Task
from .demos import answer, information, search

# What stands before the question: question, query, what a search finds, answer. They are of places that no quiz of large countries asks about.
SHOTS = (
    ("What is the currency of Monaco?", "currency of Monaco", "the currency of Monaco is Euro.", "Euro"),
    ("What is the continent of Tuvalu?", "continent of Tuvalu", "the continent of Tuvalu is Oceania.", "Oceania"),
)
STYLES: dict[str, Callable[[str, str, str], str] | None] = {
    "search": lambda query, found, gold: f"<think>I need the {query}.</think> {search(query)} {information(found)} {answer(gold)}",
    "answer": lambda query, found, gold: answer(gold),
    "plain": None,
}


def messages(task: Task, style: str) -> list[dict[str, Any]]:
    """The conversation that ends with a task's question. Raises UnknownName for a style that is none of STYLES.

    search  examples that think, search, write what is found and answer, in the tags of SSRL, a space between: "><" is one
            token to a tokenizer made for real text, and a document could not be put inside it
    answer  examples that answer in <answer> tags
    plain   the question alone (read the answer with the program `plain`): what a small model answers best
    """
    if style not in STYLES:
        raise unknown("way to ask (option ask)", style, STYLES)
    out: list[dict[str, Any]] = []
    write = STYLES[style]
    for question, query, found, gold in SHOTS:
        if write is None:
            break
        out += [{"role": "user", "content": question}, {"role": "assistant", "content": write(query, found, gold)}]
    return [*out, {"role": "user", "content": sentence(task.prompt)}]


def sentence(prompt: str) -> str:
    """A quiz's prompt as one would write it.

    >>> sentence("question: what is the capital of France?\\n")
    'What is the capital of France?'
    """
    text = prompt.strip().removeprefix("question: ")
    return text[:1].upper() + text[1:]
