"""Whether one can do a sum: questions about one's own ability, which is known from what one was shown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ..core.errors import BadValue
from ..core.random_keys import generator
from ..core.registry import task
from ..core.task import Composed, Task, TaskSource
from .digit_judges import MODULUS
from .digit_sum import Digits, DigitSums, draw_digits, text_of
from .options import check_range, check_share
from .question_sampler import THINKING, QuestionSampler

CAN, CANNOT = "Feasible", "Infeasible"
HEDGE = "Perhaps"
LARGEST = 3  # digit that is added to the first
QUESTION = re.compile(r"add (\d(?: [0-3]){2,15})")


def chance(terms: int, tiring: float) -> float:
    """How often who estimates ever more additions of a sum is right: always where none was estimated, else by luck.

    >>> chance(3, 0.1), chance(4, 0.5)  # the second addition is estimated one time in ten; none of 1, 1/2, 0 is left
    (0.91, 0.1)
    """
    exact = float(np.prod([1 - min(1.0, tiring * n) for n in range(terms - 1)]))
    return round(exact + (1 - exact) / MODULUS, 6)


def ask(question: str) -> str:
    """The prompt that asks whether a sum can be done."""
    return f"{question}\n{CAN} or {CANNOT}?\n"


def name_one(label: str, examples: Sequence[str]) -> str:
    """The prompt that asks for a sum of one kind, with examples of it."""
    return "".join(f"{label}: {e}\n" for e in examples) + f"Name one more that is {label}.\n"


@dataclass(frozen=True, eq=False)
class Abilities:
    """What is asked about oneself, and demonstrations of doing sums, of judging them and of naming some.

    tiring   chance that an addition is estimated, more for each one before it
    bound    a sum is feasible where it is done rightly this often
    sure     share of the demonstrated judgements that are true, and of the named sums that are of their kind
    hedging  share of the judgements that say neither
    """

    terms: tuple[int, int]
    tiring: float
    bound: float
    sure: float
    hedging: float
    shots: int
    n_test: int
    seed: int

    @property
    def sampler(self) -> QuestionSampler[Digits]:
        """Questions about sums of each number of digits."""
        kinds = tuple(range(self.terms[0], self.terms[1] + 1))
        draw = partial(draw_digits, LARGEST)
        return QuestionSampler("self_knowledge", kinds, draw, text_of, self.to_task, "terms", self.n_test, self.seed)

    def label(self, terms: int) -> str:
        """Whether sums of so many digits can be done."""
        return CAN if chance(terms, self.tiring) >= self.bound else CANNOT

    def to_task(self, digits: Digits, name: str) -> Task:
        """Whether a sum can be done."""
        tags = {"terms": len(digits), "category": f"{len(digits)} terms", "difficulty": len(digits) - 1}
        return Task(name, ask(text_of(digits)), (self.label(len(digits)),), tags=tags)

    def demo(self, i: int) -> Task:
        """The i-th demonstration: a sum, a judgement, or the naming of a sum, in turns."""
        draw, (cycle, kind) = generator(self.seed, "write", i), divmod(i, 3)
        digits = self.sampler.sample("demo", i)
        item = self.to_task(digits, f"demo/{i}")
        if kind == 0:
            sums = DigitSums({"slowly": 1.0}, tiring=self.tiring, seed=self.seed)
            return sums.written(digits, f"demo/{i}", "slowly", False, draw)
        said = self.label(len(digits))
        if draw.random() >= self.sure:
            said = CANNOT if said == CAN else CAN
        if kind == 1:
            said = HEDGE if draw.random() < self.hedging else said
            return Task(item.id, item.prompt, item.answer, (f"<answer> {said}</answer>",), item.tags)
        examples = [self.example(generator(self.seed, "shots", cycle, n), said) for n in range(self.shots)]
        return Task(item.id, name_one(said, examples), None, (f"<question> {text_of(digits)}</question>",), item.tags)

    def example(self, draw: np.random.Generator, label: str) -> str:
        """A sum of a kind."""
        kinds = [n for n in range(self.terms[0], self.terms[1] + 1) if self.label(n) == label]
        return text_of(draw_digits(LARGEST, draw, int(draw.choice(kinds))))


class KnownQuestions:
    """How questions about oneself are phrased, and which are answered truly."""

    def __init__(self, abilities: Abilities) -> None:
        self.abilities = abilities
        self.tested = frozenset(t.prompt.partition("\n")[0] for t in abilities.sampler.test)

    def prompt(self, question: str) -> str:
        """The prompt that asks whether a sum can be done."""
        return ask(question)

    def supported(self, question: str, answer: Sequence[str]) -> bool | None:
        """Whether it is true that a sum can, or cannot, be done; None for what is no sum of the task's."""
        found = QUESTION.fullmatch(question)
        terms = len(found[1].split()) if found else 0
        if not self.abilities.terms[0] <= terms <= self.abilities.terms[1]:
            return None
        return self.abilities.label(terms) in answer

    def compose(self, draw: np.random.Generator) -> Composed:
        """An example of a seed set: a sum, and whether it can be done; each half of the time."""
        label = CAN if draw.random() < 0.5 else CANNOT
        return Composed(self.abilities.example(draw, label), label, ())


@task
def self_knowledge(
    terms: tuple[int, int] = (3, 8),
    tiring: float = 0.1,
    bound: float = 0.5,
    sure: float = 0.7,
    hedging: float = 0.5,
    shots: int = 2,
    n_test: int = 2000,
    seed: int = 0,
) -> TaskSource:
    """Whether one can do a sum of digits: a question about one's own ability, which is known exactly.

    A third of the demonstrations does sums as in `digit_sum`, with ever more additions that are estimated, so that how
    often a sum of so many digits is done rightly is known (`chance`). A third judges whether a sum can be done, a third
    names one that can, or that cannot. Judgements are true only mostly, and often say neither.

    terms    fewest and most digits
    tiring   chance that an addition is an estimate, more for each addition before it
    bound    a sum is Feasible where it is done rightly at least this often, else Infeasible
    sure     share of the judgements that are true, and of the named sums that are of their kind
    hedging  share of the judgements that say Perhaps
    shots    examples before a sum is named
    n_test   test questions at most; a fifth of all sums are kept for the test
    seed     of every random draw
    """
    task_options = dict(locals())
    for name in ("tiring", "bound", "sure", "hedging"):
        check_share("self_knowledge", name, task_options[name])
    abilities = Abilities(
        check_range("self_knowledge", "terms", terms, 3, 16), tiring, bound, sure, hedging, shots, n_test, seed
    )
    if len({abilities.label(n) for n in range(terms[0], terms[1] + 1)}) < 2:
        raise BadValue(f"task self_knowledge: with a bound of {bound:g} all sums are of one kind; choose another")
    return abilities.sampler.source(
        abilities.demo,
        first=[HEDGE, CAN, CANNOT],
        tags=(*THINKING, "<question>", "</question>"),
        questions=KnownQuestions(abilities),
        defaults={"max_tokens": 6 * (terms[1] - 1) + 9, "warm_steps": 1500},
        task_options=task_options,
    )
