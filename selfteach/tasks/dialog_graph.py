"""Conversations on expert-written dialogue graphs (`tools/dialog_graph.py`): on one, on it edited, and on others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ..core.dialog_graph import SAY, SKIP, question
from ..core.random_keys import generator
from ..core.registry import task
from ..core.task import Task, TaskSource
from ..tools.dialog_graph import AREAS, TOPICS, WORDS, Dialog, DialogEnv, User, graph_of
from .environment import MOST_TURNS
from .options import check_at_least, check_range, check_share, check_shares
from .played import PlayedTasks

WAYS = ("asker", "skipper", "stray", "chatter")
SPLITS = ("seen", "edited", "unseen")
NEAR, FAR = 3, 4  # labels of an item of practice that share a word with what is meant, and the others, at most
NONE = "none"
OTHERS = 10_000  # the first number of the graphs that only practice has


@dataclass(frozen=True, eq=False)
class DialogTasks(PlayedTasks[DialogEnv]):
    """Conversations as tasks, demonstrations of them on one graph, and practice in all words on other graphs."""

    episode: Callable[[str, int, str], Task]
    practised: float = 0.5

    @cached_property
    def test(self) -> tuple[Task, ...]:
        """The test conversations: one after another on the graph of training, on it edited, and on a new one each."""
        return tuple(self.episode("test", i, SPLITS[i % 3]) for i in range(self.n_test))

    def demo(self, i: int) -> Task:
        """The i-th demonstration: a conversation, or for the share `practised` what was practised before, so that it is
        not forgotten.
        """
        if generator(self.seed, "practised", i).random() < self.practised:
            return self.practice(OTHERS + i)
        return super().demo(i)

    def practice(self, i: int) -> Task:
        """The i-th item of practice: which of some labels of a graph a user means by his first words, if any, and then
        which edge of a question by his reply. As `cts_llm` asks it.
        """
        draw = generator(self.seed, "practice", i)
        task = self.episode("practice", OTHERS + i, "unseen")
        world = DialogEnv()
        world.reset(task)
        meant, graph = meant_by(world.dialog, world.heard), world.graph
        near = [x for x in graph.labels if x != meant and set(x.split()) & set(meant.split())]
        far = [x for x in graph.labels if x != meant and x not in near]
        labels = [*draw.permutation(near)[:NEAR].tolist(), *draw.permutation(far)[: int(draw.integers(FAR))].tolist()]
        labels += [meant] * bool(draw.random() < 0.85)
        labels = [str(x) for x in draw.permutation(labels)]
        prompt, named = f"{world.heard}\n{question(labels)}", meant if meant in labels else NONE
        questions = [n for n in world.dialog.path() if graph.nodes[n].kind == "question"]
        world.at = questions[int(draw.integers(len(questions)))]
        world.step(SAY)
        edges = list(graph.nodes[world.at].edges)
        pieces = (f"{named}\n", f"{world.heard}\n{question(edges)}", f"{world.right_edge()}\n")
        return Task(task.id, prompt, task.answer, pieces, {**task.tags, "kind": "practice"})

    def words(self) -> Iterator[str]:
        """Text for the tokenizer: every word, numbers, conversations and practice."""
        yield " ".join([*WORDS, *(w for more in WORDS.values() for w in more), *map(str, range(10))])
        yield from super().words()
        for i in range(100):
            item = self.practice(i)
            yield item.prompt + "".join(item.data)


def meant_by(dialog: Dialog, heard: str) -> str:
    """The label that a user's first words stand for: as many words as these, of the path to the goal."""
    said = [w for w in heard.split()[1:] if not w.isdigit()]
    labels = [dialog.graph.nodes[n].label for n in dialog.path()]

    def fits(label: str) -> bool:
        parts = label.split()
        return len(parts) == len(said) and all(w in (p, *WORDS[p]) for w, p in zip(said, parts, strict=True))

    return next(label for label in labels if fits(label))


def say(way: str, world: DialogEnv, observation: str, draw: np.random.Generator) -> str:
    """What a way says.

    asker    every text, then on as the user replied
    skipper  nothing that it knows: straight to the answer, for who has said what he seeks; else as the asker
    stray    on by any edge, without a word
    chatter  the text once more, or a text of its own
    """
    node = world.graph.nodes[world.at]
    if node.kind == "answer":
        return SAY
    if way == "stray" and node.kind == "question":
        edges = list(node.edges)
        return f"{SKIP} {edges[int(draw.integers(len(edges)))]}"
    if way == "chatter":
        return SAY if draw.random() < 0.5 else "hello"
    edge = world.right_edge()
    known = way == "skipper" and (node.kind == "note" or world.dialog.user == "specific")
    if node.kind == "variable":
        known = world.heard.split()[-1].isdigit() and world.heard.split()[-1] == edge
    is_answered = observation.startswith("user ") and observation == world.heard
    return f"{SKIP} {edge}" if edge and (known or is_answered) else SAY


@task
def dialog_graph(
    ways: tuple[float, ...] = (0.35, 0.25, 0.25, 0.15),
    change: float = 0.3,
    topics: int = 8,
    edits: int = 4,
    vague: float = 0.5,
    practised: float = 0.5,
    price: float = 0.04,
    max_turns: int = 16,
    n_test: int = 402,
    seed: int = 0,
) -> TaskSource:
    """Conversations on a dialogue graph whose texts experts wrote: lead a user to the answer by what the graph says.

    Trained on one graph. The test has new users of it, of it after edits, and of graphs that were never seen (figures
    by the tags split and user).

    ways       share of the demonstrated turns that go each way: asker, skipper, stray, chatter; sums to 1
    change     chance at each turn that its way is drawn anew; 0: a whole conversation goes one way
    topics     of a graph, dealt to four areas
    edits      topics of the edited graph that were moved or replaced
    vague      share of the users who begin with an area or a topic only
    practised  share of the demonstrations that are no conversations: whether a user means a label, on other graphs
    price      of a text that is said, off the reward of 1
    max_turns  actions of a conversation, at most
    n_test     test conversations
    seed       of every random draw, and of the graphs
    """
    task_options = dict(locals())
    shares = check_shares("dialog_graph", "ways", ways, WAYS)
    for name in ("change", "vague", "practised", "price"):
        check_share("dialog_graph", name, task_options[name])
    check_range("dialog_graph", "topics", (topics, len(TOPICS) - 1), len(AREAS) + 1, len(TOPICS) - 1)
    check_range("dialog_graph", "max_turns", (max_turns, MOST_TURNS), 1, MOST_TURNS)
    check_at_least("dialog_graph", "edits", edits, 1)
    check_at_least("dialog_graph", "n_test", n_test, 1)

    def episode(kind: str, i: int, split: str) -> Task:
        draw = generator(seed, "conversation", kind, i)
        number = 1 + i if split == "unseen" else 0
        graph = graph_of(seed, number, topics, edits if split == "edited" else 0)
        answers = graph.below(0)
        user: User = "vague" if draw.random() < vague else "specific"
        tags: Mapping[str, Any] = {
            "environment": "dialog_graph",
            "world": seed,
            "graph": number,
            "topics": topics,
            "edits": edits if split == "edited" else 0,
            "goal": answers[int(draw.integers(len(answers)))],
            "user": user,
            "price": price,
            "seed": int(draw.integers(2**31)) // 2 * 2 + (kind == "test"),
            "category": user,
            "split": split,
        }
        return Task(f"{kind}/{i}", "play dialog_graph.\n", ("success",), tags=tags)

    def of_training(kind: str, i: int, unseen: bool) -> Task:
        return episode(kind, i, "seen")

    tasks = DialogTasks(DialogEnv, of_training, say, shares, change, max_turns, n_test, seed, episode, practised)
    made = tasks.source("dialog_graph", task_options, {"answers of the graph": len(graph_of(seed, 0, topics).below(0))})
    return replace(made, defaults={**made.defaults, "by": ("split", "user")})
