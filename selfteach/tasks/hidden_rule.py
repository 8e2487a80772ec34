"""Questions whose rule nobody says: several answers are plausible, and one of them is right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ..core.errors import BadValue
from ..core.random_keys import generator, key, uniform_at
from ..core.registry import task
from ..core.task import Task, TaskSource
from .digit_sum import MODULUS, Worker, draw_digits
from .options import check_at_least, check_range, check_share, check_shares
from .question_sampler import QuestionSampler, pick, solution_tags

RULES: dict[str, Callable[[Sequence[int]], Sequence[int]]] = {
    "all": lambda digits: digits,
    "odd": lambda digits: digits[::2],
    "even": lambda digits: digits[1::2],
    "ends": lambda digits: (digits[0], digits[-1]),
    "middle": lambda digits: digits[1:-1],
}


def worked(rule: str, digits: Sequence[int]) -> list[str]:
    """The pieces of the completion by a rule: its additions modulo 10, then rule and total as the answer.

    >>> "".join(worked("ends", (2, 9, 4)))
    '<think> ends 2 + 4 = 6.</think><answer> ends 6</answer>'
    """
    picked = RULES[rule](digits)
    steps = Worker(generator(0)).add(picked)
    total = sum(picked) % MODULUS
    return [f"<think> {rule}", *map(str, steps), f"</think><answer> {rule} {total}</answer>"]


@dataclass(frozen=True, eq=False)
class HiddenRules:
    """Tasks and demonstrations.

    right      how often each rule is the right one; shown: how often demonstrations follow it
    practised  share of the demonstrations whose rule is given, each equally often: they teach how to follow it
    cued       the first digit, modulo 5, is the number of the right rule, and `right` is not read
    aware      share of the other demonstrations that follow the right rule, whatever `shown` says
    """

    right: dict[str, float]
    shown: dict[str, float]
    practised: float = 0.0
    cued: bool = False
    aware: float = 0.0
    seed: int = 0

    def to_task(self, digits: tuple[int, ...], name: str) -> Task:
        """The task of some digits. Its rule is that of their first, or a function of all and seed that none infers."""
        if self.cued:
            rule = list(RULES)[digits[0] % len(RULES)]
        else:
            rule = pick(self.right, uniform_at(key(self.seed, "rule", str(digits)), 0))
        pieces = worked(rule, digits)
        answer = pieces[-1].removeprefix("</think><answer> ").removesuffix("</answer>")
        tags = {"category": rule, "rule": rule, "difficulty": len(pieces) - 2, **solution_tags(*pieces)}
        return Task(name, f"add {' '.join(map(str, digits))} =\n", (answer,), tags=tags)

    def demo(self, questions: QuestionSampler[tuple[int, ...]], i: int) -> Task:
        """The i-th demonstration: the question worked out by a random rule, which need not be its own."""
        digits = questions.sample("demo", i)
        item = self.to_task(digits, f"demo/{i}")
        draw = generator(self.seed, "write", i)
        practised = draw.random() < self.practised
        rule = str(draw.choice(list(RULES))) if practised else pick(self.shown, draw.random())
        if self.aware and not practised and draw.random() < self.aware:
            rule = str(item.tags["rule"])
        first, *rest = worked(rule, digits)
        tags = {**item.tags, "kind": "practice" if practised else "demo", "shown": rule}
        if practised:
            return Task(item.id, item.prompt + first, item.answer, ("".join(rest),), tags)
        return Task(item.id, item.prompt, item.answer, ("".join([first, *rest]),), tags)


@task
def hidden_rule(
    terms: int = 5,
    largest: int = MODULUS - 1,
    right: tuple[float, ...] = (0.2, 0.2, 0.2, 0.2, 0.2),
    shown: tuple[float, ...] = (0.6, 0.3, 0.07, 0.02, 0.01),
    practised: float = 0.5,
    cued: bool = False,
    aware: float = 0.0,
    n_test: int = 2000,
    seed: int = 0,
) -> TaskSource:
    """Sums of some of a question's digits, modulo 10, where the question does not say of which.

    The rules are: all digits; those at odd places; those at even places; the first and the last; all but these. The
    answer names the rule, so that no other rule is right by accident. As nothing tells a question's rule, the best
    single answer follows the rule that is right most often, and many samples find more only if they differ: pass@k is
    known for every policy. With `cued` the first digit tells the rule, and which rule goes with it is to be found out.

    terms      digits in a question
    largest    digit after the first, which is any: the fewer there are, the sooner adding is learned
    right      how often each rule is the right one; sums to 1
    shown      share of the demonstrations that follow each rule; sums to 1
    practised  share of the demonstrations whose rule is given with the question, each rule equally often
    cued       the rule is that of the first digit, modulo 5, in the order above; `right` is not read
    aware      share of the other demonstrations that follow the right rule, whatever `shown` says
    n_test     test questions at most; a fifth of all questions are kept for the test
    seed       of every random draw
    """
    task_options = dict(locals())
    rights, shares = (
        check_shares("hidden_rule", "right", right, RULES),
        check_shares("hidden_rule", "shown", shown, RULES),
    )
    if not 4 <= check_at_least("hidden_rule", "terms", terms, 4) <= 12:
        raise BadValue(f"task hidden_rule: terms must be from 4 to 12, not {terms}")
    check_range("hidden_rule", "largest", (largest, MODULUS - 1), 1, MODULUS - 1)
    check_share("hidden_rule", "practised", practised)
    check_share("hidden_rule", "aware", aware)
    check_at_least("hidden_rule", "n_test", n_test, 1)

    rules = HiddenRules(rights, shares, practised, cued, aware, seed)
    questions = QuestionSampler(
        "hidden_rule", (terms,), partial(draw_digits, largest), str, rules.to_task, "terms", n_test, seed
    )
    return questions.source(
        partial(rules.demo, questions),
        defaults={"max_tokens": 6 * (terms - 1) + 10, "by": "rule", "warm_steps": 2500},
        task_options=task_options,
    )
