"""Expert-written dialogue graphs, a user who seeks one of their answers, and the environment in which they are talked.

A graph is a tree of nodes: notes (information on the way), questions with labelled edges, variables (the user is asked
for a number) with a condition on it, and answers. A system may only walk and say the text of where it stands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

import numpy as np

from ..core.dialog_graph import SAY, SKIP, DialogGraph, Kind, Node
from ..core.env import Env
from ..core.random_keys import generator
from ..core.task import Task
from ..core.tool_calls import SEARCH

# What can be talked about: each with the word that labels it in a graph, one more that texts of nodes have, and one
# that only users say.
AREAS = {
    "travel": ("trip", "journey"),
    "money": ("funds", "cash"),
    "study": ("learning", "school"),
    "leave": ("absence", "off"),
}
TOPICS = {
    "train": ("rail", "tram"),
    "flight": ("plane", "jet"),
    "hotel": ("room", "inn"),
    "taxi": ("cab", "lift"),
    "grant": ("award", "prize"),
    "wage": ("salary", "pay"),
    "loan": ("credit", "debt"),
    "course": ("class", "seminar"),
    "exam": ("test", "quiz"),
    "book": ("volume", "print"),
    "illness": ("sickness", "flu"),
    "holiday": ("vacation", "rest"),
}
ASPECTS = {
    "cost": ("price", "fee"),
    "form": ("paper", "sheet"),
    "limit": ("bound", "most"),
    "contact": ("person", "who"),
}
WORDS = {**AREAS, **TOPICS, **ASPECTS}
REFUSED, OK, UNSURE = "no", "ok", "unsure"

User = Literal["specific", "vague"]


def text_words(label: str) -> list[str]:
    """The words of a label as a node's text has them: each with a second word for it."""
    return [w for word in label.split() for w in (word, *WORDS[word][:1])]


def said_by_user(label: str, draw: np.random.Generator) -> str:
    """A paraphrase of a label: any word of each of its words."""
    return " ".join((word, *WORDS[word])[int(draw.integers(3))] for word in label.split())


Plan = Mapping[str, Mapping[str, Mapping[str, bool]]]  # area -> topic -> aspect -> whether the answer varies with days


def draw_plan(seed: int, number: int, topics: int) -> Plan:
    """What the graph of a number is about: `topics` topics, dealt to the areas, and of each two to four aspects."""
    draw = generator(seed, "dialog graph", number)
    chosen = [str(t) for t in draw.permutation(list(TOPICS))[:topics]]
    areas = [str(a) for a in draw.permutation(list(AREAS))]
    plan: dict[str, dict[str, dict[str, bool]]] = {a: {} for a in areas}
    for n, topic in enumerate(chosen):
        area = areas[n] if n < len(areas) else areas[int(draw.integers(len(areas)))]
        plan[area][topic] = _aspects(draw)
    return plan


def edited_plan(plan: Plan, seed: int, edits: int) -> Plan:
    """A plan after so many edits: a topic is moved to another area, in turn with one that is replaced by a new one."""
    draw, out = generator(seed, "edits"), {area: dict(topics) for area, topics in plan.items()}
    for n in range(edits):
        movable = [(a, t) for a, topics in out.items() for t in topics if len(topics) > 1]
        area, topic = movable[int(draw.integers(len(movable)))]
        aspects = out[area].pop(topic)
        spare = [t for t in TOPICS if all(t not in topics for topics in out.values()) and t != topic]
        if n % 2 and spare:
            out[area][spare[int(draw.integers(len(spare)))]] = _aspects(draw)
        else:
            others = [a for a in out if a != area]
            out[others[int(draw.integers(len(others)))]][topic] = aspects
    return out


def _aspects(draw: np.random.Generator) -> dict[str, bool]:
    chosen = draw.permutation(list(ASPECTS))[: int(draw.integers(2, len(ASPECTS) + 1))]
    return {str(a): bool(draw.random() < 0.3) for a in chosen}


def built(plan: Plan) -> DialogGraph:
    """The graph of a plan: start, areas (after a note), topics, aspects, and answers.

    Raises ValueError for a plan in which a topic stands twice: what asks for it would have two places.
    """
    every = [t for topics in plan.values() for t in topics]
    if len(set(every)) < len(every):
        raise ValueError(f"a topic stands twice in {every}")
    nodes: list[Node] = []

    def add(kind: Kind, label: str, text: str, edges: Mapping[str, int] | None = None) -> int:
        nodes.append(Node(kind, label, text, edges or {}))
        return len(nodes) - 1

    start = add("question", "", "which area ?")
    to_areas: dict[str, int] = {}
    for area, topics in plan.items():
        to_topics: dict[str, int] = {}
        for topic, aspects in topics.items():
            to_aspects: dict[str, int] = {}
            for aspect, varies in aspects.items():
                label = f"{topic} {aspect}"
                about = " ".join(text_words(label))
                if varies:
                    ends = {end: add("answer", label, f"{about} : {end} stay .") for end in ("short", "long")}
                    to_aspects[aspect] = add("variable", label, f"{about} : how many days ?", ends)
                else:
                    to_aspects[aspect] = add("answer", label, f"{about} : this is it .")
            to_topics[topic] = add("question", topic, f"{' '.join(text_words(topic))} : what of it ?", to_aspects)
        question = add("question", area, f"{' '.join(text_words(area))} : which topic ?", to_topics)
        to_areas[area] = add("note", "", f"{' '.join(text_words(area))} : ask early .", {"on": question})
    nodes[start] = nodes[start]._replace(edges=to_areas)
    return DialogGraph(tuple(nodes))


@lru_cache(maxsize=512)
def graph_of(seed: int, number: int, topics: int, edits: int = 0) -> DialogGraph:
    """The graph of a number, after some edits; the same for the same arguments."""
    plan = draw_plan(seed, number, topics)
    return built(edited_plan(plan, seed, edits) if edits else plan)


@dataclass
class Dialog:
    """A user who seeks the answer `goal` of a graph. A vague one begins with an area or a topic, and is guided."""

    graph: DialogGraph
    goal: int
    user: User
    draw: np.random.Generator
    days: int = field(init=False)

    def __post_init__(self) -> None:
        is_long = "long stay" in self.graph.nodes[self.goal].text
        self.days = int(
            self.draw.integers(self.graph.bound + 1, 10) if is_long else self.draw.integers(1, self.graph.bound + 1)
        )

    def path(self) -> list[int]:
        """The nodes from the start to the goal."""
        out = [0]
        while out[-1] != self.goal:
            node = self.graph.nodes[out[-1]]
            out.append(next(child for child in node.edges.values() if self.goal in self.graph.below(child)))
        return out

    def opening(self) -> str:
        """What the user says first: topic and aspect, now and then the days; a vague one the area or the topic."""
        if self.user == "specific":
            said = said_by_user(self.graph.nodes[self.goal].label, self.draw)
            varies = self.graph.nodes[self.path()[-2]].kind == "variable"
            return f"{said} {self.days}" if varies and self.draw.random() < 0.5 else said
        questions = [self.graph.nodes[i].label for i in self.path() if self.graph.nodes[i].kind == "question"]
        return said_by_user(questions[1 + int(self.draw.integers(len(questions) - 1))], self.draw)

    def reply(self, node: int) -> str:
        """What the user says to the text of a node; unsure where it does not lead on."""
        own = self.graph.nodes[node]
        if own.kind == "note":
            return OK
        if own.kind == "variable":
            return str(self.days)
        for label, child in own.edges.items():
            if self.goal in self.graph.below(child):
                return said_by_user(label, self.draw)
        return UNSURE


class DialogEnv(Env):
    """One conversation with a user of a dialogue graph.

    A turn is an action:

        say           the text of the node is said, and the user replies; an answer ends the conversation
        skip EDGE     on to a child: of a question by its label, of a note `skip on`, of a variable `skip DAYS`

    What cannot be done is answered by `no`. Anything else is said to the user as it is: an invented text, which leads
    nowhere. The reward is 1 where the answer that the user seeks is said, less `price` for each text that is said.
    Tags of a task: seed, graph, edits, topics, goal, user, price. Counted: search/said, texts that were said, and
    search/invented, those that are no text of the graph.
    """

    max_turns = 16
    max_tokens = 6
    in_thread = False

    def reset(self, task: Task) -> str:
        """What the user says first, and where the conversation stands."""
        tags = task.tags
        self.graph = graph_of(tags["world"], tags["graph"], tags["topics"], tags["edits"])
        self.dialog = Dialog(self.graph, tags["goal"], tags["user"], generator(tags["seed"], "user"))
        self.price, self.at, self.is_reached = float(tags["price"]), 0, False
        self.last: dict[str, float] = {}
        self.heard = f"user {self.dialog.opening()}"
        return f"{self.heard}\n{self.place()}"

    def place(self) -> str:
        """The node and its edges, as the one who acts sees them."""
        node = self.graph.nodes[self.at]
        edges = {"answer": (), "variable": ("days",)}.get(node.kind, tuple(node.edges))
        return " ".join(["at", *(node.label or ("start" if self.at == 0 else "note")).split(), ":", *edges])

    def step(self, text: str) -> tuple[str, float, bool]:
        """Carry out an action; see the class."""
        verb, _, edge = text.partition(" ")
        node, self.last = self.graph.nodes[self.at], {}
        if verb == SKIP:
            child = self.graph.child(self.at, edge.strip())
            self.last = {"executable": float(child is not None)}
            if child is None:
                return REFUSED, 0.0, False
            self.at = child
            return self.place(), 0.0, False
        is_text = text == SAY
        self.last = {f"{SEARCH}said": 1.0, f"{SEARCH}invented": float(not is_text), "executable": float(is_text)}
        if not is_text:
            return f"user {UNSURE}", -self.price, False
        if node.kind == "answer":
            self.is_reached = self.at == self.dialog.goal
            return "bye", float(self.is_reached) - self.price, True
        self.heard = f"user {self.dialog.reply(self.at)}"
        return self.heard, -self.price, False

    def notes(self) -> Mapping[str, float]:
        """executable, and what is counted of a text that was said."""
        return self.last

    def success(self, rewards: Sequence[float]) -> bool:
        """Whether the answer that the user seeks was said."""
        return self.is_reached

    def right_edge(self) -> str:
        """The edge that leads to the goal, or on from a note; "" where none does."""
        node = self.graph.nodes[self.at]
        if node.kind == "note":
            return "on"
        if node.kind == "variable":
            return str(self.dialog.days)
        return next((e for e, child in node.edges.items() if self.dialog.goal in self.graph.below(child)), "")
