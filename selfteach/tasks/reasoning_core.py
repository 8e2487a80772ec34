"""Reasoning Core's tasks: generated symbolic questions of a continuous level, judged by their own scorers.

Items are made before the run, by several processes at once, and cached: an item is a function of its task, level and
seed. There are as many of each whole level (some generators refuse others). A level between two of them is a mixture of
both, which is how a curriculum asks for it (the tag `difficulty`, which `adaptive_level` reads).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import version
from queue import SimpleQueue
from typing import Any

from ..core.blocks import Block
from ..core.cache import cache_folder
from ..core.errors import BadValue, SelfteachError, unknown
from ..core.extras import optional
from ..core.random_keys import generator, key
from ..core.registry import task
from ..core.task import Task, TaskSource
from ..reward.reasoning_core import made_item, names_of, new_worker, reasoning_core_score
from ..reward.worker_process import WorkerProcess
from .options import check_at_least, check_range, check_share

TAGS = ("<answer>", "</answer>")
FORM = "\n\nGive your final answer between <answer> and </answer>."
EXCLUDED = {
    **dict.fromkeys(("game_best_move", "game_forced_win"), "its generator needs pyggp, which is on no package index"),
    **dict.fromkeys(
        ("metamath_core_select", "metamath_entailment"), "its generator fetches Metamath's library while it runs"
    ),
}
ATTEMPTS = 8  # seeds that are tried for an item
SECONDS = 60.0  # that the generator of an item may take
HIGHEST = 10  # level
TOKENIZER_DEMOS = 1000

Item = dict[str, Any]


def roster(worker: WorkerProcess, names: Sequence[str]) -> list[str]:
    """The named tasks, each checked; all that are not excluded where none is named.

    Raises UnknownName for a task that there is not, BadValue for one that is excluded.
    """
    known = names_of(worker)
    for name in names:
        if name in EXCLUDED:
            raise BadValue(f"task reasoning_core: {name} is left out, because {EXCLUDED[name]}; take another task")
        if name not in known:
            raise unknown("task of Reasoning Core", name, [n for n in known if n not in EXCLUDED])
    return list(names) or [n for n in known if n not in EXCLUDED]


def make_items(name: str, levels: Sequence[int], seeds: Sequence[int], workers: int) -> list[Item]:
    """Items of a task, one of each level, whose reference answer its own scorer takes for right.

    An item that cannot be made in time, or whose answer is not right, is made from another seed. Item: level, prompt,
    answer, entry, missed (seeds whose answer was not right). Raises BadValue where ATTEMPTS seeds give none.
    """
    free: SimpleQueue[WorkerProcess] = SimpleQueue()
    processes = [new_worker() for _ in range(max(1, min(workers, len(levels))))]
    for process in processes:
        free.put(process)

    def make(place: int) -> Item:
        process, missed, why = free.get(), 0, ""
        try:
            for attempt in range(ATTEMPTS):
                try:
                    item = made_item(process, name, levels[place], key(seeds[place], "attempt", attempt), SECONDS)
                except SelfteachError as error:
                    why = str(error)
                    continue
                if item["gold"] >= 1.0 - 1e-9:
                    return {"level": levels[place], "missed": missed, **item}
                missed, why = missed + 1, f"its scorer gives its own answer {item['gold']:g}"
        finally:
            free.put(process)
        raise BadValue(f"task reasoning_core: {name} cannot be made at level {levels[place]} ({why})")

    try:
        with ThreadPoolExecutor(len(processes)) as pool:
            return list(pool.map(make, range(len(levels))))
    finally:
        for process in processes:
            process.stop()


def items_of(name: str, lowest: int, highest: int, count: int, seed: int, workers: int) -> list[Item]:
    """`count` items of a task, of each level of a range in turns, made now or read from the cache."""
    made_from = [version("reasoning-core"), name, lowest, highest, count, seed]
    digest = hashlib.blake2b(json.dumps(made_from).encode(), digest_size=10).hexdigest()
    file = cache_folder("reasoning_core") / f"{name}-{digest}.json"
    if file.is_file():
        return json.loads(file.read_text(encoding="utf-8"))
    seeds = [key(seed, "reasoning_core", name, i) for i in range(count)]
    levels = [lowest + i % (highest - lowest + 1) for i in range(count)]
    items = make_items(name, levels, seeds, workers)
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    temporary.write_text(json.dumps(items), encoding="utf-8")
    os.replace(temporary, file)
    return items


@dataclass(frozen=True, eq=False)
class Items:
    """Items of some tasks as tasks, and their reference answers as demonstrations.

    made  the items of each task, by its name
    """

    made: dict[str, list[Item]]
    n_test: int
    judge: Block
    noise: float = 0.5
    seed: int = 0

    @cached_property
    def divided(self) -> tuple[tuple[Task, ...], dict[str, list[Task]]]:
        """(test tasks, training tasks by name): no prompt twice. Raises BadValue where there are too few."""
        test, train, names = list[Task](), dict[str, list[Task]](), list(self.made)
        for n, name in enumerate(names):
            wanted = self.n_test // len(names) + (n < self.n_test % len(names))
            different = list({item["prompt"]: item for item in self.made[name]}.values())
            if len(different) <= wanted:
                raise BadValue(
                    f"task reasoning_core: {name} gave {len(different)} different questions, no more than its {wanted}"
                    " of the test; take more items or a smaller n_test"
                )
            tasks = [self._task(f"{name}/{i}", name, item) for i, item in enumerate(different)]
            test += [replace(t, id=f"test/{t.id}") for t in tasks[:wanted]]
            train[name] = tasks[wanted:]
        return tuple(test), train

    def _task(self, task_id: str, name: str, item: Item) -> Task:
        """The task of an item; tags: dataset, category and difficulty (the level), entry."""
        level = int(item["level"])
        tags = {"dataset": name, "category": f"level {level}", "difficulty": level, "entry": item["entry"]}
        return Task(task_id, item["prompt"].strip() + "\n", (item["answer"].strip(),), tags=tags, verifier=self.judge)

    def train(self, i: int) -> Task:
        """The i-th training task: the tasks in turns, the items of each again and again."""
        names = list(self.made)
        items = self.divided[1][names[i % len(names)]]
        return replace(items[i // len(names) % len(items)], id=f"train/{i}")

    def demo(self, i: int) -> Task:
        """The i-th demonstration: a reference answer, or in the share `noise` that of another item.

        tags  those of the task, kind, slip ("answer" where it is another's, else "")
        """
        found, draw = self.train(i), generator(self.seed, "write", i)
        other = draw.random() < self.noise
        said = self.train(i + int(draw.integers(1, 50)) * len(self.made)).answer if other else found.answer
        tags = {**found.tags, "kind": "demo", "slip": "answer" if said != found.answer else ""}
        return replace(found, id=f"demo/{i}", data=(f"{TAGS[0]} {said[0]}{TAGS[1]}",), tags=tags)

    def words(self) -> Iterator[str]:
        """Text for the tokenizer: numbers, questions and answers."""
        yield " ".join(map(str, range(100)))
        for i in range(TOKENIZER_DEMOS):
            found = self.train(i)
            yield f"{found.prompt} {' '.join(found.answer)}"

    def source(self, **more: Any) -> TaskSource:
        """The TaskSource of these items."""
        test, _ = self.divided
        longest = max(len(i["answer"]) for items in self.made.values() for i in items)
        missed = sum(i["missed"] for items in self.made.values() for i in items)
        count = sum(map(len, self.made.values()))
        return TaskSource(
            name="reasoning_core",
            train=self.train,
            test=test,
            demos=self.demo,
            words=self.words,
            tags=TAGS,
            chat=lambda t: [{"role": "user", "content": str(t.prompt).strip() + FORM}],
            defaults={"max_tokens": min(512, longest + 16), "lr": 3e-4, "warm_steps": 300, "by": "category"},
            about={
                "tasks": list(self.made),
                "items": count,
                "test questions": len(test),
                "answers that their scorer did not take": missed,
            },
            content=hashlib.blake2b(json.dumps(self.made).encode(), digest_size=10).hexdigest(),
            within=lambda most, tokens: self.within(most, tokens).source(**more),
            **more,
        )

    def within(self, most: int, tokens: Callable[[Any], int]) -> Items:
        """These without items whose prompt has more than `most` tokens."""
        kept = {n: [i for i in items if tokens(i["prompt"]) <= most] for n, items in self.made.items()}
        return replace(self, made=kept)


@task
def reasoning_core(
    tasks: tuple[str, ...] = ("arithmetics",),
    levels: tuple[int, int] = (0, 3),
    items: int = 400,
    partial: bool = False,
    noise: float = 0.5,
    n_test: int = 100,
    workers: int = 0,
    seed: int = 0,
) -> TaskSource:
    """Tasks of Reasoning Core (the package reasoning-core), with their own generators, levels and scorers.

    tasks    one or several, in turns: arithmetics, planning, regex_following ...; "all": every one that is not left out
    levels   of the easiest and the hardest items, of each level as many; curricula choose by the tag difficulty
    items    made of each task before the run, and kept in the cache
    partial  reward the scorers' partial scores too
    noise    share of the demonstrations with another question's answer
    n_test   test questions, of all levels
    workers  processes that make items; 0: one for each processor
    seed     of every random draw
    """
    task_options = dict(locals())
    names = (tasks,) if isinstance(tasks, str) else tuple(tasks)
    optional("reasoning_core", "reasoning-core", "task reasoning_core")
    if not names or len(set(names)) < len(names):
        raise BadValue(f"task reasoning_core: tasks must be one or more tasks, each once, not {tasks!r}")
    lowest, highest = check_range("reasoning_core", "levels", levels, 0, HIGHEST)
    check_at_least("reasoning_core", "items", items, 2)
    check_at_least("reasoning_core", "n_test", n_test, len(names))
    many = check_at_least("reasoning_core", "workers", workers, 0) or len(os.sched_getaffinity(0))
    first = new_worker()
    try:
        names = roster(first, () if names == ("all",) else names)
    finally:
        first.stop()
    made = {n: items_of(n, lowest, highest, items, seed, many) for n in names}
    found = Items(
        made, n_test, reasoning_core_score(partial=partial), check_share("reasoning_core", "noise", noise), seed
    )
    return found.source(task_options=task_options)
