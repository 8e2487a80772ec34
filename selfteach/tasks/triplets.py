"""A hidden symbol to be written three times in a row: known for the prompts of training, and to be tried for others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from ..core import RolloutContext, RolloutRequest, Score, block
from ..core.errors import BadValue
from ..core.random_keys import generator
from ..core.registry import task
from ..core.task import Task, TaskSource
from .options import check_at_least, check_share

LETTERS = "bcdfghjklm"
TOKENIZER_DEMOS = 300


@block
async def until_right(*, request: RolloutRequest, rollout: RolloutContext, model_role: str = "policy") -> str:
    """One sampled turn that ends where it contains an accepted answer of the task; the answer is all that was written.

    So a policy that goes on after it wrote something knows that this was not what is wanted.
    """
    context = rollout.model_role(model_role).begin(request.task.prompt)
    turn = await context.sample(stop=tuple(f" {answer}" for answer in request.task.answer))
    context.close()
    return turn.text.strip()


@block
def holds_answer(*, answer: str, task: Task) -> Score:
    """1 where an accepted answer stands in the text, else 0."""
    right = any(f" {wanted} " in f" {answer} " for wanted in task.answer)
    return Score(float(right), why="" if right else f"wanted {task.answer[0]}")


@dataclass(frozen=True, eq=False)
class Triplets:
    """Prompts, what each of them wants, and sequences without aim.

    again  the chance that a demonstration's next symbol is the last one again
    """

    symbols: int = 3
    length: int = 12
    prompts: int = 16
    again: float = 0.2
    n_test: int = 400
    seed: int = 0

    @property
    def repeated(self) -> tuple[str, ...]:
        """Every symbol three times: what may be wanted."""
        return tuple(" ".join([str(s)] * 3) for s in range(self.symbols))

    @property
    def all(self) -> tuple[str, ...]:
        """Every three symbols."""
        return tuple(" ".join(map(str, triplet)) for triplet in product(range(self.symbols), repeat=3))

    @cached_property
    def names(self) -> list[str]:
        """The prompts' names, in random order: those of training first."""
        every = ["".join(letters) for letters in product(LETTERS, repeat=3)]
        return [every[i] for i in generator(self.seed, "names").permutation(len(every))]

    def to_task(self, kind: str, i: int, name: str) -> Task:
        """The task of a name; no name tells what it wants.

        tags  hypotheses, all_triplets (texts that may be wanted, as far as one knows what is), category
        """
        wanted = self.repeated[int(generator(self.seed, "wanted", name).integers(self.symbols))]
        tags = {"hypotheses": self.repeated, "all_triplets": self.all, "category": wanted[0]}
        return Task(f"{kind}/{i}", f"find {name}\n", (wanted,), tags=tags, verifier=holds_answer())

    def train(self, i: int) -> Task:
        """The i-th training task, of one of `prompts` names."""
        return self.to_task("train", i, self.names[int(generator(self.seed, "train", i).integers(self.prompts))])

    @cached_property
    def test(self) -> tuple[Task, ...]:
        """Names that training never has."""
        return tuple(self.to_task("test", i, self.names[self.prompts + i]) for i in range(self.n_test))

    def demo(self, i: int) -> Task:
        """The i-th demonstration: symbols at random, whatever is wanted."""
        draw = generator(self.seed, "demo", i)
        name = "".join(draw.choice(list(LETTERS), 3))
        written = [int(draw.integers(self.symbols))]
        while len(written) < self.length:
            fresh = draw.random() >= self.again
            written.append(int(draw.integers(self.symbols)) if fresh else written[-1])
        made = self.to_task("demo", i, name)
        return Task(made.id, made.prompt, made.answer, ("".join(f" {s}" for s in written),), made.tags)

    def words(self) -> Iterator[str]:
        """Text for the tokenizer."""
        for i in range(TOKENIZER_DEMOS):
            item = self.demo(i)
            yield item.prompt + item.data[0]
        yield " ".join(self.all)


@task
def triplets(
    symbols: int = 3,
    length: int = 12,
    prompts: int = 16,
    again: float = 0.2,
    n_test: int = 400,
    seed: int = 0,
) -> TaskSource:
    """Which symbol is to be written three times in a row? Nothing says it, and the text ends as soon as it is written.

    The synthetic task of Zhang et al. 2025 (2505.20561), with details chosen here. Training has few prompts, whose
    symbols can be learned by heart; the test has others, where only trying one symbol after another helps.

    symbols  how many there are
    length   of a text, at most; of three symbols nine tokens try them all
    prompts  that training has
    again    chance that a demonstration's next symbol is the last one again
    n_test   test prompts
    seed     of every random draw
    """
    task_options = dict(locals())
    for name, value, low, high in (
        ("symbols", symbols, 2, 9),
        ("prompts", prompts, 1, 500),
        ("n_test", n_test, 1, 500),
    ):
        if check_at_least("triplets", name, value, low) > high:
            raise BadValue(f"task triplets: {name} must be at most {high}, not {value!r}")
    check_at_least("triplets", "length", length, 3)
    check_share("triplets", "again", again)
    made = Triplets(symbols, length, prompts, again, n_test, seed)
    return TaskSource(
        name="triplets",
        train=made.train,
        test=made.test,
        demos=made.demo,
        words=made.words,
        program=until_right(),
        defaults={
            "max_tokens": length,
            "by": "category",
            "lr": 3e-4,
            "warm_steps": 300,
            "warm_batch": 32,
            "warm_lr": 2e-3,
        },
        task_options=task_options,
        about={"prompts of training": prompts, "test questions": n_test},
    )
