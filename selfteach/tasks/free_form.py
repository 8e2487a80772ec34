"""Questions whose reference answers have forms of their own: no question tells them, and only a reader sees through."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core.answers import gold_answers, same
from ..core.blocks import block
from ..core.errors import BadValue
from ..core.random_keys import key, uniform_at
from ..core.registry import task
from ..core.task import Task, TaskSource
from .factworld import factworld
from .options import check_at_least, check_share

# The forms of an answer: the name alone, which begins with nothing, and sentences.
FORMS = ("", "it is ", "this is ", "we say ")
# Of a small `factworld`, what even the smallest model learns by heart.
BY_HEART: dict[str, Any] = {
    "held_out": 0.4,
    "withheld": 0.15,
    "mix": 0.7,
    "missing": 0.05,
    "conflicts": 0.05,
    "practised": 0.6,
    "malformed": 0.2,
    "apart": True,
}


@task
def free_form(
    referenced: float = 0.5,
    worded: float = 0.5,
    forms: int = 2,
    ways: tuple[float, ...] = (0.1, 0.1, 0.1, 0.1, 0.2, 0.4),
    entities: int = 120,
    relations: int = 6,
    hops: tuple[int, ...] = (1,),
    n_test: int = 400,
    seed: int = 0,
) -> TaskSource:
    """Questions of `factworld` whose reference is a name or a sentence (`it is Ulm`); an answer in either is as right.

    A rule that compares texts accepts only the reference's own form, which nobody can know beforehand, so that whatever
    a model learns to write a share of what is right is rejected. The task's judge strips the form from both.

    referenced  share of the questions, demonstrated ones included, whose reference is a sentence
    worded      chance that a demonstrated answer is a sentence
    forms       how many forms an answer has, 2 to 4: the name alone, and sentences, which are as frequent as each other
    ways        as in `factworld`: shares of the demonstrations that go each way
    entities, relations, hops, n_test, seed    as in `factworld`
    """
    check_share("free_form", "referenced", referenced)
    if check_at_least("free_form", "forms", forms, 2) > len(FORMS):
        raise BadValue(f"task free_form: forms must be at most {len(FORMS)}, not {forms}")
    task_options = dict(locals())
    base = factworld(
        entities=entities,
        relations=relations,
        hops=hops,
        ways=ways,
        worded=worded,
        n_test=n_test,
        seed=seed,
        **BY_HEART,
    )

    def sentence(kind: str, name: str) -> str:
        return FORMS[1 + int(uniform_at(key(seed, kind, name), 1) * (forms - 1))]

    def in_its_form(item: Task) -> Task:
        is_sentence = uniform_at(key(seed, "reference", item.id), 0) < referenced
        begin = sentence("reference", item.id) if is_sentence else ""
        return replace(item, answer=tuple(begin + gold for gold in gold_answers(item)), verifier=same_name())

    def demonstrated(item: Task) -> Task:
        """What `factworld` words as a sentence, in one of the sentences that there are."""
        begin = "<answer> " + sentence("demonstrated", item.id)
        texts = tuple(text.replace("<answer> " + FORMS[1], begin) for text in item.data)
        return replace(in_its_form(item), data=texts)

    demos, practice = base.demos, base.practice
    assert demos is not None
    return replace(
        base,
        name="free_form",
        train=lambda i: in_its_form(base.train(i)),
        test=[in_its_form(item) for item in base.test],
        demos=lambda i: demonstrated(demos(i)),
        practice=practice,
        task_options=task_options,
    )


@block
def same_name(*, answer: Any, task: Task) -> bool:
    """Whether an answer names what a gold answer names, each by the name alone or in a sentence.

    >>> ulm = Task("t", "", ("it is Ulm",))
    >>> same_name(answer="Ulm", task=ulm), same_name(answer="it is Ulm", task=ulm), same_name(answer="Rom", task=ulm)
    (True, True, False)
    """
    return answer is not None and any(same(_named(str(answer)), _named(gold)) for gold in gold_answers(task))


def _named(text: str) -> str:
    """The name in a text."""
    while begin := next((form for form in FORMS[1:] if text.startswith(form)), ""):
        text = text.removeprefix(begin)
    return text
