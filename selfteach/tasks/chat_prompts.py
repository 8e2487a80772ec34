"""Prompts for chat models: a question in plain English, after few-shot examples of the wanted form where need be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..core.errors import unknown
from ..core.task import Task
from .demos import answer, information, search

# (question, query, search result, answer), about places that no question of the task `atlas` is about.
FEW_SHOT = (
    ("What is the currency of Monaco?", "currency of Monaco", "the currency of Monaco is Euro.", "Euro"),
    ("What is the continent of Tuvalu?", "continent of Tuvalu", "the continent of Tuvalu is Oceania.", "Oceania"),
)
# Of a place that does not exist nobody knows anything.
UNKNOWN = (
    ("What is the capital of Zubrowka?", "capital of Zubrowka", "nothing is known of Zubrowka.", "I don't know"),
    ("What is the currency of Ruritania?", "currency of Ruritania", "nothing is known of Ruritania.", "I don't know"),
)
# What SSRL's instruction asks for (Fan et al. 2025, section 3), in our words.
INSTRUCTION = (
    "Answer the question below. Whenever you begin, and whenever you have learned something, reason first:"
    " <think>your thoughts</think>. If you then lack a fact, ask for it in one line, <search>your query</search>, and"
    " write what a search engine would find yourself, from what you know: <information>your information</information>."
    " Do this as often as you need. Once nothing is lacking, give the answer alone, without explanation:"
    " <answer>your answer</answer>."
)
# What Search-R1's instruction asks for (Jin et al. 2025, table 1), in our words.
ENGINE = (
    "Answer the question below. Whenever you begin, and whenever you have learned something, reason first:"
    " <think>your thoughts</think>. If you then lack a fact, ask a search engine for it in one line, <search>your"
    " query</search>, and wait: what it finds is given to you between <information> and </information>. Search as often"
    " as you need. Once nothing is lacking, give the answer alone, without explanation: <answer>your answer</answer>."
)
NAMED = ("Monaco", "Euro", "Tuvalu", "Oceania", "Zubrowka", "Ruritania")  # every proper name of these examples
STYLES: dict[str, Callable[[str, str, str], str] | None] = {
    "search": lambda query, result, gold: (
        f"<think>I need the {query}.</think> {search(query)} {information(result)} {answer(gold)}"
    ),
    "answer": lambda query, result, gold: answer(gold),
    "plain": None,
    "instruct": None,
    "engine": None,
}
STYLES["instruct_search"] = STYLES["search"]
STYLES["abstain"] = STYLES["answer"]
EXAMPLES = {"abstain": (*FEW_SHOT, *UNKNOWN)}  # of styles that show others than FEW_SHOT


def messages(task: Task, style: str, names: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """The messages of a task's prompt, few-shot examples first. Raises UnknownName for a style that is not in STYLES.

    search  examples that think, search, write the result and answer, in the tags of SSRL with a space between them:
            "><" is one token to a tokenizer made for real text, and a document could not be put inside it
    answer  examples that answer in <answer> tags
    abstain  as `answer`, and two more, of places that do not exist, whose answer is: I don't know
    instruct  an instruction in words to think, search, write the result and answer in these tags, and no examples: what
            the paper's models get, which follow instructions; `instruct_search` has the examples of `search` too
    engine  an instruction in words to think, to ask a search engine that answers, and to answer: Search-R1's
    plain   the question alone (the program `plain` reads the answer): what a small model answers best

    names   name of NAMED -> what the examples say in its place; None: they say that name
    """
    if style not in STYLES:
        raise unknown("prompt style (option ask)", style, STYLES)
    out: list[dict[str, Any]] = []
    write = STYLES[style]
    for example in EXAMPLES.get(style, FEW_SHOT):
        if write is None:
            break
        question, query, result, gold = (_with_names(text, names or {}) for text in example)
        out += [{"role": "user", "content": question}, {"role": "assistant", "content": write(query, result, gold)}]
    question = sentence(task.prompt)
    if style == "engine":
        return [{"role": "user", "content": f"{ENGINE} Question: {question}"}]
    if style.startswith("instruct"):
        out[:1] = [{**m, "content": f"{INSTRUCTION} Question: {m['content']}"} for m in out[:1]]
        question = question if out else f"{INSTRUCTION} Question: {question}"
    return [*out, {"role": "user", "content": question}]


def _with_names(text: str, names: Mapping[str, str]) -> str:
    for name, other in names.items():
        text = text.replace(name, other)
    return text


def sentence(prompt: str) -> str:
    r"""A quiz's prompt as a sentence.

    >>> sentence("question: what is the capital of France?\n")
    'What is the capital of France?'
    """
    text = prompt.strip().removeprefix("question: ")
    return text[:1].upper() + text[1:]
