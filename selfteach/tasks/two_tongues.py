"""The sums of `digit_sum` in two languages, and demonstrations that mix them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from ..core import Task, TaskSource, block
from ..core.random_keys import generator
from ..core.registry import task
from .digit_sum import digit_sum
from .options import check_share

# The words of one language and those of the other; signs and tags are the same in both.
WORDS = {
    "add": "tel",
    "slowly": "langzaam",
    "quickly": "vlug",
    "guess": "gok",
    "twice": "dubbel",
    "looping": "herhaald",
    "skipping": "overslaand",
    "check": "nagaan",
    **dict(
        zip("0123456789", ["nul", "een", "twee", "drie", "vier", "vijf", "zes", "zeven", "acht", "negen"], strict=True)
    ),
}


def translated(text: str) -> str:
    """A text of the first language in the second.

    >>> translated("<think> slowly 2 + 9 = 1.</think><answer> 1</answer>")
    '<think> langzaam twee + negen = een.</think><answer> een</answer>'
    """
    return re.sub(r"[a-z]+|\d", lambda found: WORDS.get(found[0], found[0]), text)


def languages(text: str) -> tuple[int, int]:
    """How many words of each language a text has.

    >>> languages("slowly 2 + negen =")
    (2, 1)
    """
    words = re.findall(r"[a-z]+|\d", text)
    return sum(w in WORDS for w in words), sum(w in WORDS.values() for w in words)


@block
def one_language(*, text: str, task: Task) -> bool:
    """Whether a response is in the language of its question throughout: it has words of it and none of the other."""
    own = languages(task.prompt)[1] > 0
    counts = languages(text)
    return counts[own] > 0 and counts[not own] == 0


def in_language(item: Task, second: bool) -> Task:
    """A task with its prompt in one of the languages; its answer is right in both."""
    judges = {**item.judges, "language": one_language()}
    answer = (*item.answer, *map(translated, item.answer))
    tags = {**item.tags, "language": "second" if second else "first"}
    return replace(
        item, prompt=translated(item.prompt) if second else item.prompt, answer=answer, tags=tags, judges=judges
    )


@task
def two_tongues(
    mixed: float = 0.5,
    slowly: float = 0.3,
    quickly: float = 0.3,
    guess: float = 0.4,
    largest: int = 9,
    practised: float = 0.5,
    n_test: int = 2000,
    seed: int = 0,
) -> TaskSource:
    """The last digit of a sum of digits, asked in one of two languages; demonstrations are often of both.

    The same sum is asked in either language, half of the questions in each, and an answer is right in both: nothing in
    being right says in which to think. The judge `language` says whether a response is in that of its question.

    mixed      share of the demonstrations that change to the other language, at their beginning or after some step
    slowly, quickly, guess, largest, practised, n_test, seed  as in `digit_sum`
    """
    task_options = dict(locals())
    check_share("two_tongues", "mixed", mixed)
    made = digit_sum(
        slowly=slowly, quickly=quickly, guess=guess, largest=largest, practised=practised, n_test=n_test, seed=seed
    )

    def is_second(name: str) -> bool:
        return generator(seed, "language", name).random() < 0.5

    def asked(item: Task) -> Task:
        return in_language(item, is_second(item.id))

    def shown(item: Task, mixed: float) -> Task:
        second, draw = is_second(item.id), generator(seed, "mix", item.id)
        pieces = re.split(r"(?<=\.)", item.data[0])
        change = int(draw.integers(len(pieces))) if draw.random() < mixed else len(pieces)
        said = [translated(piece) if second == (n < change) else piece for n, piece in enumerate(pieces)]
        return replace(in_language(item, second), data=("".join(said),))

    def with_both(make: Callable[[int], Task] | None, mixed: float) -> Callable[[int], Task] | None:
        return None if make is None else lambda i: shown(make(i), mixed)

    def words() -> Iterator[str]:
        for text in made.words() if made.words else ():
            yield text
            yield translated(text)

    return replace(
        made,
        name="two_tongues",
        train=lambda i: asked(made.train(i)),
        test=tuple(asked(item) for item in made.test),
        demos=with_both(made.demos, mixed),
        practice=with_both(made.practice, 0.0),
        words=words,
        defaults={**made.defaults, "by": "language"},
        task_options=task_options,
    )
