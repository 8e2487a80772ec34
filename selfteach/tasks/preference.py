"""Short texts to write for a hidden true reward: for reward models, pairwise judges, tournaments, over-optimisation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from ..core.errors import BadValue
from ..core.random_keys import generator
from ..core.registry import task
from ..core.task import Task, TaskSource
from .options import check_at_least, check_number, check_share
from .preference_rewards import MOODS, NOUNS, VERBS, coarse_worth, preferred, preferred_by, proxy_worth, true_worth
from .question_sampler import QuestionSampler

TAGS = ("<answer>", "</answer>")


class WritingPrompt(NamedTuple):
    """What a text should be about, and its mood."""

    subjects: tuple[str, ...]
    mood: str

    @property
    def text(self) -> str:
        """The prompt in words."""
        return f"write about the {' and the '.join(self.subjects)}. mood: {self.mood}."


def draw_prompt(draw: np.random.Generator, subjects: int) -> WritingPrompt:
    """A random prompt for a text about so many subjects."""
    nouns = tuple(NOUNS[int(i)] for i in draw.permutation(len(NOUNS))[:subjects])
    return WritingPrompt(nouns, list(MOODS)[int(draw.integers(len(MOODS)))])


@dataclass(frozen=True, eq=False)
class TextWriter:
    """Tasks of prompts, and texts of any quality for them."""

    noise: float = 0.3
    judge: float = 0.15
    seed: int = 0

    def to_task(self, prompt: WritingPrompt, name: str) -> Task:
        """The task of a prompt.

        tags  subjects, mood, category, difficulty (subjects), solution (a text of true reward 1), steps
        """
        adjectives = MOODS[prompt.mood]
        subjects = (
            prompt.subjects
            if len(prompt.subjects) > 1
            else (*prompt.subjects, next(n for n in NOUNS if n not in prompt.subjects))
        )
        clauses = [f"the {a} {s} {v}" for a, s, v in zip(adjectives, subjects, VERBS, strict=False)]
        best = " and ".join(clauses) + "."
        tags = {
            "subjects": prompt.subjects,
            "mood": prompt.mood,
            "category": prompt.mood,
            "difficulty": len(prompt.subjects),
        }
        pieces = (f"<answer> {clauses[0]}", f" and {clauses[1]}.", "</answer>")
        return Task(
            name,
            f"{prompt.text}\n",
            (best,),
            tags={**tags, "solution": "".join(pieces), "steps": pieces},
            verifier=true_worth(),
            judges={
                "proxy": proxy_worth(),
                "coarse": coarse_worth(noise=self.judge),
                "pair": preferred(noise=self.judge),
                "pair_margin": preferred_by(noise=self.judge),
            },
        )

    def write(self, prompt: WritingPrompt, draw: np.random.Generator) -> str:
        """A text of the language; each choice of subject, mood or length is random with probability `noise`."""
        clauses, asked = list[str](), list(prompt.subjects)
        length = 2 if draw.random() >= self.noise else int(draw.integers(1, 5))
        for n in range(length):
            noun = asked[n] if n < len(asked) and draw.random() >= self.noise else NOUNS[int(draw.integers(len(NOUNS)))]
            mood = prompt.mood if draw.random() >= self.noise else list(MOODS)[int(draw.integers(len(MOODS)))]
            count = 1 if draw.random() >= self.noise else int(draw.integers(3))
            adjectives = [MOODS[mood][int(draw.integers(len(MOODS[mood])))] for _ in range(count)]
            clauses.append(" ".join(["the", *adjectives, noun, VERBS[int(draw.integers(len(VERBS)))]]))
        return " and ".join(clauses) + "."

    def pair(self, questions: QuestionSampler[WritingPrompt], i: int) -> Task:
        """The i-th training task; its data are two texts, the one that the judge prefers first."""
        task, draw = questions.train(i), generator(self.seed, "pair", i)
        prompt = WritingPrompt(task.tags["subjects"], task.tags["mood"])
        one, other = self.write(prompt, draw), self.write(prompt, draw)
        first_wins = preferred(first=one, second=other, task=task, rng_key=(self.seed, "pair", i), noise=self.judge)
        pair = (one, other) if first_wins else (other, one)
        return replace(task, data=tuple(f"<answer> {text}</answer>" for text in pair))

    def demo(self, questions: QuestionSampler[WritingPrompt], i: int) -> Task:
        """The i-th demonstration; tags: those of the task, and worth (the true reward)."""
        prompt = questions.sample("demo", i)
        task, text = self.to_task(prompt, f"demo/{i}"), self.write(prompt, generator(self.seed, "write", i))
        worth = true_worth(answer=text, task=task).value
        tags = {**task.tags, "kind": "demo", "worth": worth}
        return replace(task, data=(f"<answer> {text}</answer>",), tags=tags)


@task
def preference(noise: float = 0.3, judge: float = 0.15, n_test: int = 200, seed: int = 0) -> TaskSource:
    """Write a short text about one or two things in a mood, for a hidden true reward (`true_worth`).

    Methods may train on one of the task's judges instead: `proxy` and `coarse`, of single texts; `pair` and
    `pair_margin`, of two.

    noise   share of a demonstration's choices that are random
    judge   noise of the judges and of the training tasks' pairs (`data`: preferred, rejected), in units of the true
            reward
    n_test  test prompts at most; a fifth of all prompts are kept for the test
    seed    of every random draw
    """
    task_options = dict(locals())
    if check_number("preference", "judge", judge) < 0:
        raise BadValue(f"task preference: judge must be 0 or more, not {judge}")
    check_at_least("preference", "n_test", n_test, 1)
    writer = TextWriter(check_share("preference", "noise", noise), judge, seed)
    prompts = QuestionSampler(
        "preference",
        (1, 2),
        draw_prompt,
        lambda w: f"{sorted(w.subjects)} {w.mood}",
        writer.to_task,
        "subjects",
        n_test,
        seed,
    )
    listed = [" ".join(row) for row in (NOUNS, VERBS, *MOODS.values())]
    pair = partial(writer.pair, prompts)
    return prompts.source(
        partial(writer.demo, prompts),
        train=pair,
        first=listed,
        tags=TAGS,
        pairs=pair,
        defaults={"max_tokens": 48, "by": "mood", "lr": 1e-4, "warm_steps": 1000, "warm_batch": 16},
        about={"words of the language": sum(len(row.split()) for row in listed) + 2},
        task_options=task_options,
    )
