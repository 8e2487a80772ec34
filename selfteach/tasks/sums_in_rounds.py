"""Sums of digits modulo 10 that are worked out in rounds, of which only an answer is carried into the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ..core.errors import BadValue
from ..core.random_keys import generator
from ..core.registry import task
from ..core.task import Task, TaskSource
from ..rollout.attempts import progress_prompt, workspace_prompt
from .digit_judges import MODULUS
from .digit_sum import CERTAIN, Digits, completion, draw_digits, sum_task, text_of
from .options import check_at_least, check_range, check_share
from .question_sampler import QuestionSampler, pick

WAYS = ("partly", "vaguely", "guess")


@dataclass(frozen=True, eq=False)
class SumsInRounds:
    """Tasks and demonstrations.

    shares  of the ways that a round goes
    rounds  of a sum; the last is announced
    at_once  additions of a round
    drafts  at most, of a round that the next one begins from; 0: a round has one answer
    """

    shares: dict[str, float]
    rounds: int
    at_once: int
    drafts: int = 0
    seed: int = 0

    def to_task(self, digits: Digits, name: str) -> Task:
        """The task of some digits; tags: terms, category, difficulty (additions), solution, steps."""
        return sum_task(digits, name, lambda steps: completion("partly", steps, steps[-1].result))

    def demo(self, questions: QuestionSampler[Digits], i: int) -> Task:
        """The i-th demonstration, a round of any number; tags: of the task, and kind, way, style (the same), round."""
        return self.written(questions.sample("demo", i), f"demo/{i}", generator(self.seed, "write", i), False)

    def practice(self, questions: QuestionSampler[Digits], i: int) -> Task:
        """The i-th question whose way is given, the one that adds; what comes before it went that way too."""
        return self.written(questions.sample("practice", i), f"practice/{i}", generator(self.seed, "practise", i), True)

    def written(self, digits: Digits, name: str, draw: np.random.Generator, given: bool) -> Task:
        """A round as a demonstration; where it is given its prompt names its way, which adds."""
        item, number = self.to_task(digits, name), int(draw.integers(self.rounds))
        prompt, numbers = item.prompt, digits
        for n in range(1, number + 1):
            if self.drafts:
                count = int(draw.integers(1, self.drafts + 1))
                tried = [work(numbers, pick(self.shares, draw.random()), self.at_once, draw)[2] for _ in range(count)]
                numbers = furthest(tried)
                prompt = workspace_prompt(item.prompt, "".join(answer_text(t) for t in tried))
            else:
                way = "partly" if given else pick(self.shares, draw.random())
                numbers = work(numbers, way, self.at_once, draw)[2]
                progress = " ".join(map(str, numbers))
                prompt = progress_prompt(item.prompt, n, progress, last=n == self.rounds - 1)
        way = "partly" if given else pick(self.shares, draw.random())
        way, steps, numbers = work(numbers, way, self.at_once, draw)
        text = "".join((f"<think> {way}", *steps, "</think>", answer_text(numbers)))
        tags = {**item.tags, "kind": "practice" if given else "demo", "way": way, "style": way, "round": number + 1}
        if given:
            beginning = f"<think> {way}"
            return Task(name, prompt + beginning, item.answer, (text.removeprefix(beginning),), tags)
        return Task(name, prompt, item.answer, (text,), tags)


def answer_text(numbers: Sequence[int]) -> str:
    """What a round answers."""
    return f"<answer> {' '.join(map(str, numbers))}</answer>"


def furthest(answers: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Of the answers of a round the one to go on from: which says most of what is left, then which is said most often.

    >>> furthest([(8,), (5, 7), (5, 7), (3,)]), furthest([(8,), (3,), (3,)])
    ((5, 7), (3,))
    """
    return max(answers, key=lambda answer: (len(answer), answers.count(answer)))


def work(
    numbers: Sequence[int], way: str, at_once: int, draw: np.random.Generator
) -> tuple[str, list[str], tuple[int, ...]]:
    """(the way that is gone, its additions, what it answers) in a round that begins with some numbers.

    partly   some additions; the answer is their result and the numbers that are left: a sum that is as good
    vaguely  the same additions; the answer is their result alone
    guess    any digit
    done     one number is its own sum, whatever the way

    >>> work((2, 9, 4, 7), "partly", 2, np.random.default_rng(0))
    ('partly', [' 2 + 9 = 1.', ' 1 + 4 = 5.'], (5, 7))
    """
    if len(numbers) == 1:
        return "done", [], tuple(numbers)
    if way == "guess":
        return way, [], (int(draw.integers(MODULUS)),)
    steps = CERTAIN.add(numbers[: at_once + 1])
    rest = tuple(numbers[at_once + 1 :]) if way == "partly" else ()
    return way, [str(s) for s in steps], (steps[-1].result, *rest)


@task
def sums_in_rounds(
    terms: tuple[int, int] = (6, 7),
    largest: int = 3,
    rounds: int = 3,
    at_once: int = 2,
    drafts: int = 0,
    partly: float = 0.3,
    vaguely: float = 0.3,
    guess: float = 0.4,
    n_test: int = 2000,
    seed: int = 0,
) -> TaskSource:
    """The last digit of a sum of digits, too long for one round; of a round only its answer is carried into the next.

    A round that answers with what it has added and what is left to add can be gone on from; one that leaves that out,
    or guesses, cannot. Of several drafts the next round goes on from the one that says most of what is left.

    terms    fewest and most digits
    largest  digit that is added to the first, which is any
    rounds   of a sum
    at_once  additions of a round; `rounds` of them are enough for every question
    drafts   answers of a round, at most, of which the next one has a workspace; 0: it has one, told as progress
    partly   share of the rounds that add, and answer with the result and the digits that are left
    vaguely  that add, and answer with the result alone
    guess    that guess
    n_test   test questions at most; a fifth of all questions are kept for the test
    seed     of every random draw

    The shares of the three ways sum to 1.
    """
    task_options = dict(locals())
    fewest, most = check_range("sums_in_rounds", "terms", terms, 3, 16)
    check_range("sums_in_rounds", "largest", (largest, MODULUS - 1), 1, MODULUS - 1)
    for name, least in (("rounds", 1), ("at_once", 1), ("drafts", 0), ("n_test", 1), ("seed", 0)):
        check_at_least("sums_in_rounds", name, task_options[name], least)
    shares = {way: check_share("sums_in_rounds", way, task_options[way]) for way in WAYS}
    if abs(sum(shares.values()) - 1) > 1e-6:
        raise BadValue(f"task sums_in_rounds: {', '.join(WAYS)} must sum to 1, not {sum(shares.values()):g}")
    if rounds * at_once < most - 1:
        raise BadValue(
            f"task sums_in_rounds: {rounds} rounds of {at_once} additions are too few for {most} terms; take"
            f" rounds={-(-(most - 1) // at_once)}"
        )
    sums = SumsInRounds({way: share for way, share in shares.items() if share}, rounds, at_once, drafts, seed)
    draw, kinds = partial(draw_digits, largest), tuple(range(fewest, most + 1))
    questions = QuestionSampler("sums_in_rounds", kinds, draw, text_of, sums.to_task, "terms", n_test, seed)
    # The tokenizer does not depend on shares, so that what was practised with it serves all of them.
    evenly = SumsInRounds(dict.fromkeys(WAYS, 1 / len(WAYS)), rounds, at_once, drafts, seed)
    return questions.source(
        partial(sums.demo, questions),
        practice=partial(sums.practice, questions),
        written=partial(evenly.demo, questions),
        defaults={"max_tokens": 6 * at_once + most + 9, "warm_practice_steps": 1000, "warm_steps": 200},
        task_options=task_options,
    )
