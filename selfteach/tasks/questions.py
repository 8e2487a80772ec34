"""Questions over a corpus of facts: their wording, their answers, and new ones composed from the corpus."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from ..core.errors import BadValue
from ..core.task import Composed, Document

_FACT = re.compile(r"the (\w+) of (\w+) is (\w+)\.")
_QUESTION = re.compile(r"what is ((?:the \w+ of )+)(\w+)\?")


class FactQuestions:
    """Questions like `what is the mayor of the home of Ann?` over sentences like `the home of Ann is Ulm`.

    Implements `core.task.Questions`.

    name    of the task, for messages
    corpus  the documents; those of another form, or of names of several words, are left out
    tests   prompts of the test questions
    """

    def __init__(self, name: str, corpus: Callable[[], Sequence[Document]], tests: Sequence[str] = ()) -> None:
        self.name = name
        self.corpus = corpus
        self.tested = frozenset(prompt.strip().removeprefix("question: ") for prompt in tests)

    @cached_property
    def facts(self) -> dict[tuple[str, str], str]:
        """(relation, subject) -> object."""
        matches = (_FACT.fullmatch(d.text) for d in self.corpus())
        return {(m[1], m[2]): m[3] for m in matches if m}

    @cached_property
    def subjects(self) -> dict[tuple[str, str], str]:
        """(relation, object) -> the first subject, which is the result of a search for the object.

        Objects that have a fact of the same relation are left out, since a search would return that one.
        """
        out: dict[tuple[str, str], str] = {}
        for (relation, subject), end in self.facts.items():
            if (relation, end) not in self.facts:
                out.setdefault((relation, end), subject)
        return out

    def prompt(self, question: str) -> str:
        """The prompt of a question, in the task's own form."""
        return f"question: {question}\n"

    def supported(self, question: str, answer: Sequence[str]) -> bool | None:
        """Whether a question has this answer by the facts; None for one of another form.

        >>> world = FactQuestions("ulm", lambda: [Document("", t) for t in ("the home of Ann is Ulm.",)])
        >>> world.supported("what is the home of Ann?", ["Ulm"])
        True
        """
        match = _QUESTION.fullmatch(question)
        if match is None:
            return None
        entity: str | None = match[2]
        for relation in re.findall(r"the (\w+) of ", match[1])[::-1]:
            entity = self.facts.get((relation, entity or ""))
        return entity in answer

    def compose(self, draw: np.random.Generator) -> Composed:
        """A question of one or two hops, composed backwards from its answer.

        Raises BadValue for a corpus without facts.
        """
        keys = list(self.subjects)
        if not keys:
            raise BadValue(f"task {self.name}: its corpus has no facts to compose questions of; use the task factworld")
        answer = entity = keys[int(draw.integers(len(keys)))][1]
        phrase, searches = "", list[tuple[str, str]]()
        for _ in range(int(draw.integers(1, 3))):
            relations = [r for r, end in keys if end == entity]
            if not relations:
                break
            relation = relations[int(draw.integers(len(relations)))]
            subject = self.subjects[relation, entity]
            searches.append((f"{relation} is {entity}", f"the {relation} of {subject} is {entity}."))
            phrase, entity = f"{phrase}the {relation} of ", subject
        return Composed(f"what is {phrase}{entity}?", answer, tuple(searches))
