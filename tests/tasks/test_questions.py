"""Questions over a corpus of facts: which answers it supports, and what is composed from it."""

from __future__ import annotations

import pytest

from selfteach.core import BadValue, Document, random_keys
from selfteach.tasks.questions import FactQuestions


def over(*facts: str) -> FactQuestions:
    return FactQuestions("made", lambda: [Document("", fact) for fact in facts], ["question: what is it?\n"])


def test_the_corpus_supports_an_answer():
    made = over("the home of Ann is Ulm.", "the mayor of Ulm is Bo.", "little is known of Ulm.")
    assert made.supported("what is the mayor of the home of Ann?", ["Bo"]) is True
    assert made.supported("what is the home of Ann?", ["Bo"]) is False
    assert made.supported("what is the home of the mayor of Ann?", ["Ulm"]) is False  # Ann is no town
    assert made.supported("who is Ann?", ["Ulm"]) is None
    assert made.tested == {"what is it?"} and made.prompt("what is it?") == "question: what is it?\n"


def test_questions_are_composed_from_their_answer_back():
    # from Bo: the mayor of Ulm, then the home of Ann; from Ulm: the home of Ann. Nothing leads on from Ann.
    made = over("the home of Ann is Ulm.", "the mayor of Ulm is Bo.")
    home, mayor = ("home is Ulm", "the home of Ann is Ulm."), ("mayor is Bo", "the mayor of Ulm is Bo.")
    assert {made.compose(random_keys.generator("t", i)) for i in range(40)} == {
        ("what is the home of Ann?", "Ulm", (home,)),
        ("what is the mayor of Ulm?", "Bo", (mayor,)),
        ("what is the mayor of the home of Ann?", "Bo", (mayor, home)),
    }


def test_what_a_search_would_not_find_is_not_composed():
    # A search for "friend is Bo" may find Bo's own friend, so nothing is asked whose answer is Bo.
    made = over("the friend of Ann is Bo.", "the friend of Bo is Cid.")
    assert {made.compose(random_keys.generator("t", i)).answer for i in range(20)} == {"Cid"}


def test_a_corpus_without_facts_is_refused():
    with pytest.raises(BadValue, match="task made: its corpus has no facts"):
        over("nothing.").compose(random_keys.generator("t"))
