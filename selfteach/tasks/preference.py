"""Short texts to write, judged by a reward that stays hidden: for reward models, pairwise judges, tournaments, and what they are fooled by."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from ..core.address import generator
from ..core.registry import task
from ..core.task import Source, Task
from ..reward.written import MOODS, NOUNS, VERBS, preferred, true_worth
from .drawn import TESTED, Drawn
from .options import least, share

TAGS = ("<answer>", "</answer>")


class Wish(NamedTuple):
    """What a text shall be about, and its mood."""

    subjects: tuple[str, ...]
    mood: str

    @property
    def text(self) -> str:
        return f"write about the {' and the '.join(self.subjects)}. mood: {self.mood}."


def draw_wish(draw: np.random.Generator, subjects: int) -> Wish:
    """A random wish for a text about one or two subjects."""
    chosen = tuple(NOUNS[int(i)] for i in draw.permutation(len(NOUNS))[:subjects])
    return Wish(chosen, list(MOODS)[int(draw.integers(len(MOODS)))])


@dataclass(frozen=True, eq=False)
class Writer:
    """How wishes are put, and texts of any quality written."""

    noise: float = 0.3
    judge: float = 0.15
    seed: int = 0

    def ask(self, wish: Wish, name: str) -> Task:
        """The task of a wish. tags: subjects, mood, category, difficulty (subjects), solution (a text that is worth 1), steps."""
        adjectives = MOODS[wish.mood]
        subjects = wish.subjects if len(wish.subjects) > 1 else (*wish.subjects, next(n for n in NOUNS if n not in wish.subjects))
        clauses = [f"the {a} {s} {v}" for a, s, v in zip(adjectives, subjects, VERBS, strict=False)]
        best = " and ".join(clauses) + "."
        tags = {"subjects": wish.subjects, "mood": wish.mood, "category": wish.mood, "difficulty": len(wish.subjects)}
        pieces = (f"<answer> {clauses[0]}", f" and {clauses[1]}.", "</answer>")
        return Task(name, f"{wish.text}\n", (best,), tags={**tags, "solution": "".join(pieces), "steps": pieces}, verifier=true_worth())

    def write(self, wish: Wish, draw: np.random.Generator) -> str:
        """A text of the language, more or less to the wish: with the chance `noise` each choice of subject, mood or length is made at random."""
        clauses, asked = list[str](), list(wish.subjects)
        length = 2 if draw.random() >= self.noise else int(draw.integers(1, 5))
        for n in range(length):
            noun = asked[n] if n < len(asked) and draw.random() >= self.noise else NOUNS[int(draw.integers(len(NOUNS)))]
            mood = wish.mood if draw.random() >= self.noise else list(MOODS)[int(draw.integers(len(MOODS)))]
            count = 1 if draw.random() >= self.noise else int(draw.integers(3))
            adjectives = [MOODS[mood][int(draw.integers(len(MOODS[mood])))] for _ in range(count)]
            clauses.append(" ".join(["the", *adjectives, noun, VERBS[int(draw.integers(len(VERBS)))]]))
        return " and ".join(clauses) + "."

    def pair(self, drawn: Drawn[Wish], i: int) -> Task:
        """The i-th training task; its data are two texts, the one that the judge prefers first."""
        task, draw = drawn.train(i), generator(self.seed, "pair", i)
        wish = Wish(task.tags["subjects"], task.tags["mood"])
        one, other = self.write(wish, draw), self.write(wish, draw)
        chosen = preferred(first=one, second=other, task=task, address=(self.seed, "pair", i), noise=self.judge)
        pair = (one, other) if chosen else (other, one)
        return Task(task.id, task.prompt, task.answer, tuple(f"<answer> {text}</answer>" for text in pair), task.tags, task.verifier)

    def demo(self, drawn: Drawn[Wish], i: int) -> Task:
        """The i-th demonstration. tags: those of the task, and worth (the true reward)."""
        wish = drawn.pick("demo", i)
        task, text = self.ask(wish, f"demo/{i}"), self.write(wish, generator(self.seed, "write", i))
        worth = true_worth(answer=text, task=task).value
        return Task(task.id, task.prompt, task.answer, (f"<answer> {text}</answer>",), {**task.tags, "kind": "demo", "worth": worth}, task.verifier)


@task
def preference(noise: float = 0.3, judge: float = 0.15, n_test: int = 200, seed: int = 0) -> Source:
    """Write a short text about one or two things in a mood. Its worth is hidden: `true_worth`; methods see a proxy, or a noisy judge of pairs.

    noise   share of a demonstration's choices that are made at random
    judge   noise of the judge of the training tasks' pairs (`data`: preferred, rejected), in units of the true reward
    n_test  test wishes at most; a fifth of all wishes are kept for the test
    seed    of everything drawn
    """
    knobs = dict(locals())
    least("preference", "judge", judge, 0)
    least("preference", "n_test", n_test, 1)
    writer = Writer(share("preference", "noise", noise), judge, seed)
    wishes = Drawn("preference", (1, 2), draw_wish, lambda w: f"{sorted(w.subjects)} {w.mood}", writer.ask, "subjects", n_test, seed)
    demo = partial(writer.demo, wishes)
    listed = [" ".join(row) for row in (NOUNS, VERBS, *MOODS.values())]
    return Source(
        name="preference",
        train=partial(writer.pair, wishes),
        test=wishes.test,
        demos=demo,
        words=lambda: wishes.words(demo, listed),
        tags=TAGS,
        defaults={"max_tokens": 48, "by": "mood", "lr": 1e-4, "warm_steps": 1000, "warm_batch": 16, "warm_lr": 2e-3},
        knobs=knobs,
        about={
            "test wishes": len(wishes.test),
            "words of the language": sum(len(row.split()) for row in listed) + 2,
            "share kept for the test": TESTED,
        },
    )
