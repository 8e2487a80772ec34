"""The sums of `digit_sum`, with demonstrations of which some answer no question."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..core import Task, TaskSource
from ..core.random_keys import generator
from ..core.registry import task
from .digit_sum import digit_sum
from .options import check_share

BLANK = (0,)  # the EOS token of a tokenizer that is made for a task: `Tokenizer.blank_prompt` of every text


def without_question(item: Task) -> Task:
    """A demonstration behind a blank prompt; a way that its prompt gave is part of what is learned."""
    given = item.prompt.partition("\n")[2]
    return replace(item, prompt=BLANK, data=(given + item.data[0],), tags={**item.tags, "kind": "unasked"})


@task
def unasked_sums(
    unasked: float = 0.2,
    slowly: float = 0.15,
    twice: float = 0.75,
    guess: float = 0.1,
    largest: int = 9,
    practised: float = 0.5,
    n_test: int = 2000,
    seed: int = 0,
) -> TaskSource:
    """The last digit of a sum of digits, by a model that has also seen answers without their questions.

    So that it has an opinion of any answer's likelihood where the question is not known, as a model has that was
    pretrained on all kinds of text: of what an answer says, only digits that it takes from the question surprise.

    unasked  share of the demonstrations whose way is not given, and of those that are practised before, that come
             behind a blank prompt (Tokenizer.blank_prompt)
    slowly, twice, guess, largest, practised, n_test, seed  as in `digit_sum`
    """
    task_options = dict(locals())
    check_share("unasked_sums", "unasked", unasked)
    made = digit_sum(
        slowly=slowly,
        quickly=0.0,
        guess=guess,
        twice=twice,
        largest=largest,
        practised=practised,
        n_test=n_test,
        seed=seed,
    )
    demos, practice = made.demos, made.practice
    assert demos and practice

    def some_unasked(name: str, make: Callable[[int], Task], given: bool) -> Callable[[int], Task]:
        def shown(i: int) -> Task:
            item = make(i)
            hidden = generator(seed, "unasked", name, i).random() < unasked
            return without_question(item) if hidden and (given or item.tags["kind"] == "demo") else item

        return shown

    return replace(
        made,
        name="unasked_sums",
        demos=some_unasked("demo", demos, given=False),
        practice=some_unasked("practice", practice, given=True),
        task_options=task_options,
    )
