"""Dialogue graphs that experts wrote: a tree of notes, questions, numbers to ask for, and answers.

A system that talks on such a graph may only walk it and say the text of where it stands.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

SAY, SKIP = "say", "skip"  # the actions: say the text of a node; go on along an edge (`skip EDGE`)
Kind = Literal["note", "question", "variable", "answer"]


class Node(NamedTuple):
    """A node: what it is, the label by which it is chosen ("" for a note), its text, and its children by edge.

    Edges of a question are labels; of a note `on`; of a variable `short` and `long`, of which its condition takes one.
    """

    kind: Kind
    label: str
    text: str
    edges: Mapping[str, int] = {}


@dataclass(frozen=True)
class DialogGraph:
    """A tree of nodes, of which 0 is the start. bound: the number above which a variable goes on along `long`."""

    nodes: tuple[Node, ...]
    bound: int = 3

    def below(self, node: int) -> list[int]:
        """The answers at or below a node, in order."""
        own = self.nodes[node]
        return [node] if own.kind == "answer" else [a for child in own.edges.values() for a in self.below(child)]

    def child(self, node: int, edge: str) -> int | None:
        """Where an edge leads; of a variable a number of one digit. None where there is no such edge."""
        own = self.nodes[node]
        if own.kind == "variable":
            return own.edges["long" if int(edge) > self.bound else "short"] if re.fullmatch("[0-9]", edge) else None
        return own.edges.get(edge)

    def labelled(self, label: str) -> list[int]:
        """The uppermost nodes of a label: one, where a graph is unambiguous."""
        found = [i for i, n in enumerate(self.nodes) if n.label == label]
        inner = {child for i in found for child in self.nodes[i].edges.values()}
        return [i for i in found if i not in inner]

    @property
    def labels(self) -> list[str]:
        """What can be sought, each once."""
        return list(dict.fromkeys(n.label for n in self.nodes if n.label))

    def ranked(self, utterance: str, top: int) -> list[str]:
        """The retriever: the `top` labels whose nodes' texts share most words with an utterance, and at least one; of
        equal ones the shortest. top: 0 for all that share one.
        """
        shared = {label: max(self.shared(n, utterance) for n in self.labelled(label)) for label in self.labels}
        order = sorted((lab for lab in shared if shared[lab]), key=lambda lab: (-shared[lab], len(lab.split())))
        return order[:top] if top else order

    def shared(self, node: int, utterance: str) -> int:
        """How many words a node's text shares with an utterance."""
        return len({*utterance.split()} & {*self.nodes[node].text.split()})

    def nearest(self, node: int, reply: str) -> str:
        """The edge of a question whose node's text shares most words with a reply; of equal ones the first."""
        edges = self.nodes[node].edges
        return max(edges, key=lambda edge: self.shared(edges[edge], reply))


def question(labels: Sequence[str]) -> str:
    r"""What a model is asked of some labels: which of them the user means.

    >>> question(["train cost", "train"])
    'train cost, train ?\n'
    """
    return f"{', '.join(labels)} ?\n"
