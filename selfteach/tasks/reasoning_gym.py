"""reasoning-gym's sets: generated questions, their difficulty by its curricula, judged by its own scorers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from typing import Any

from ..core.blocks import Block
from ..core.errors import BadValue, describe, unknown
from ..core.extras import optional
from ..core.random_keys import generator, key
from ..core.registry import task
from ..core.task import Task, TaskSource
from ..reward.reasoning import reasoning_score
from .options import check_at_least, check_share, parse_config

TAGS = ("<answer>", "</answer>")
FORM = "\n\nGive your final answer between <answer> and </answer>."
SIZE = 1_000_000  # items of a set, of which some are drawn
SMALLER = {"acre": 2_000}  # sets that make all items at once
EXCLUDED = {
    "game_of_life_halting": "its scorer takes any text for right",
    "coin_flip": "its scorer takes the beginning of an answer for the whole",
    "codeio": "the same seed gives other questions",
    **dict.fromkeys(
        ("isomorphic_strings", "polynomial_multiplication", "ransom_note", "word_ladder"),
        "its questions depend on the process's hash seed, so that a run which goes on gets others",
    ),
    "boxnet": "its scorer fails on answers that are numbers, and it has no reference answer",
    "composite": "it mixes other sets; give these themselves, as dataset=A,B",
}
ATTEMPTS = 200  # draws for a question that the test does not have
TOKENIZER_DEMOS = 1000


@dataclass(frozen=True, eq=False)
class Questions:
    """Items of some sets as tasks, and their reference answers as demonstrations."""

    sets: Mapping[str, Any]
    judge: Block
    noise: float = 0.5
    n_test: int = 100
    seed: int = 0
    _items: dict[str, Any] = field(default_factory=dict[str, Any])

    @cached_property
    def item(self) -> Any:
        """(set, index) -> the item."""
        return lru_cache(maxsize=20_000)(lambda name, index: self.sets[name][index])

    def draw(self, name: str, *place: object) -> int:
        """The index of a random item."""
        return key(self.seed, "reasoning_gym", name, *place) % SMALLER.get(name, SIZE)

    def make(self, task_id: str, name: str, index: int) -> Task:
        """The task of an item; tags: dataset, category (the same), index."""
        item = self.item(name, index)
        gold = item["answer"]
        tags = {"dataset": name, "category": name, "index": index}
        prompt = str(item["question"]).strip() + "\n"
        return Task(task_id, prompt, () if gold is None else (str(gold).strip(),), tags=tags, verifier=self.judge)

    @cached_property
    def held_out(self) -> tuple[tuple[Task, ...], dict[str, bool], set[bytes]]:
        """(test tasks; whether a set has so few questions that a hash divides them; the test's questions)."""
        names = list(self.sets)
        tasks, few, tested = list[Task](), dict[str, bool](), set[bytes]()
        for n, name in enumerate(names):
            wanted = self.n_test // len(names) + (n < self.n_test % len(names))
            drawn = [self.make(f"test/{name}/{i}", name, self.draw(name, "test", i)) for i in range(wanted)]
            hashes = [digest(t.prompt) for t in drawn]
            few[name] = len(set(hashes)) < len(hashes)
            if few[name]:
                more = (self.make(f"test/{name}/{i}", name, self.draw(name, "test", i)) for i in range(20 * wanted))
                found = {digest(t.prompt): t for t in more if is_test(t.prompt)}
                drawn, hashes = list(found.values())[:wanted], list(found)[:wanted]
            tasks += drawn
            tested |= set(hashes)
        if not tasks:
            raise BadValue(f"task reasoning_gym: {', '.join(names)} gave no test question; take other options")
        return tuple(tasks), few, tested

    @property
    def test(self) -> tuple[Task, ...]:
        """The test tasks, no question twice."""
        return self.held_out[0]

    def train(self, i: int, kind: str = "train") -> Task:
        """The i-th training task, whose question is not in the test."""
        name = list(self.sets)[i % len(self.sets)]
        _, few, tested = self.held_out
        for attempt in range(ATTEMPTS):
            found = self.make(f"{kind}/{i}", name, self.draw(name, kind, i, attempt))
            if not (is_test(found.prompt) if few[name] else digest(found.prompt) in tested):
                return found
        raise BadValue(f"task reasoning_gym: {name} has too few questions with these options; all are in the test")

    def demo(self, i: int) -> Task:
        """The i-th demonstration: a reference answer, or in the share `noise` that of another question.

        tags  those of the task, kind, slip ("answer" where it is another's, else "")
        """
        found, draw = self.train(i, "demo"), generator(self.seed, "write", i)
        other = draw.random() < self.noise
        said = self.train(i + int(draw.integers(1, 50)) * len(self.sets), "demo").answer if other else found.answer
        tags = {**found.tags, "kind": "demo", "slip": "answer" if said != found.answer else ""}
        return replace(found, data=(f"{TAGS[0]} {said[0]}{TAGS[1]}",), tags=tags)

    def words(self) -> Iterator[str]:
        """Text for the tokenizer: numbers, questions and answers."""
        yield " ".join(map(str, range(100)))
        for i in range(TOKENIZER_DEMOS):
            found = self.train(i, "demo")
            yield f"{found.prompt} {' '.join(found.answer)}"


def digest(question: str) -> bytes:
    """A hash of a question's words."""
    return hashlib.blake2b(" ".join(question.split()).encode("utf-8", "replace"), digest_size=12).digest()


def is_test(question: str) -> bool:
    """Whether a question belongs to the test, where these are divided by a hash: a fifth does."""
    return digest(question)[0] % 5 == 0


def options_of(name: str, level: int | None, given: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """The options of a set: its curriculum's at a level, those given over them.

    Raises UnknownName for a set that there is not, BadValue for one that is excluded or that refuses its options.
    """
    factory = optional("reasoning_gym.factory", "reasoning", "task reasoning_gym")
    if name in EXCLUDED:
        raise BadValue(f"task reasoning_gym: {name} is left out, because {EXCLUDED[name]}; take another set")
    if name not in factory.DATASETS:
        raise unknown("set of reasoning-gym", name, [n for n in factory.DATASETS if n not in EXCLUDED])
    _, config_class = factory.DATASETS[name]
    options: dict[str, Any] = {}
    try:
        if level is not None:
            if not factory.has_curriculum(name):
                raise BadValue(f"task reasoning_gym: {name} has no curriculum, so no level; give config instead")
            curriculum = factory.create_curriculum(name)
            for attribute, definition in curriculum.attributes.items():
                curriculum.set_attr_level(attribute, min(level, len(definition.levels) - 1))
            made = curriculum.generate_configuration()
            default = config_class()
            options = {
                f.name: getattr(made, f.name)
                for f in fields(config_class)
                if f.init and getattr(made, f.name) != getattr(default, f.name)
            }
        options |= dict(given) | {"seed": seed % 2**31, "size": SMALLER.get(name, SIZE)}
        options = json.loads(json.dumps(options))
        factory.create_dataset(name, **options)[0]
    except (AssertionError, TypeError, ValueError, LookupError) as error:
        if isinstance(error, BadValue):
            raise
        raise BadValue(f"task reasoning_gym: {name} cannot be made with {options} ({describe(error, 200)})") from None
    return options


@task
def reasoning_gym(
    dataset: tuple[str, ...] = ("leg_counting",),
    level: int | None = None,
    config: str = "",
    partial: bool = False,
    noise: float = 0.5,
    n_test: int = 100,
    seed: int = 0,
) -> TaskSource:
    """Sets of the package reasoning-gym, with their own generators, curricula and scorers.

    dataset  one set or several, in turns: leg_counting, chain_sum, basic_arithmetic ...
    level    of every attribute of a set's curriculum, from 0; none: the set's own defaults
    config   options of the sets, as key=value,key=value or JSON; each goes to the sets that have it
    partial  reward the scorers' partial scores too
    noise    share of the demonstrations with another question's answer
    n_test   test questions
    seed     of every random draw
    """
    task_options = dict(locals())
    names = (dataset,) if isinstance(dataset, str) else tuple(dataset)
    factory = optional("reasoning_gym.factory", "reasoning", "task reasoning_gym")
    if not names or len(set(names)) < len(names):
        raise BadValue(f"task reasoning_gym: dataset must be one or more sets, each once, not {dataset!r}")
    if level is not None:
        check_at_least("reasoning_gym", "level", level, 0)
    check_at_least("reasoning_gym", "n_test", n_test, len(names))
    given = parse_config("reasoning_gym", config)
    known = {n: {f.name for f in fields(factory.DATASETS[n][1])} for n in names if n in factory.DATASETS}
    for option in given:
        if not any(option in own for own in known.values()):
            raise unknown(f"option of {', '.join(names)}", option, set[str]().union(*known.values()))
    options = {n: options_of(n, level, {k: v for k, v in given.items() if k in known.get(n, ())}, seed) for n in names}
    sets = {n: factory.create_dataset(n, **options[n]) for n in names}
    judge = reasoning_score(config=json.dumps(options, sort_keys=True), partial=partial)
    questions = Questions(sets, judge, check_share("reasoning_gym", "noise", noise), n_test, seed)
    with_answers = all(t.answer for t in questions.test)
    longest = max((len(t.answer[0]) for t in questions.test if t.answer), default=100)
    return TaskSource(
        name="reasoning_gym",
        train=questions.train,
        test=questions.test,
        demos=questions.demo if with_answers else None,
        words=questions.words,
        tags=TAGS,
        chat=lambda t: [{"role": "user", "content": str(t.prompt).strip() + FORM}],
        defaults={"max_tokens": min(512, longest + 16), "lr": 3e-4, "warm_steps": 300},
        task_options=task_options,
        about={"sets": list(names), "test questions": len(questions.test)},
    )
