"""Conversations over an episode's tree: which messages stand up to a place, and where one that was written anew parts
from what stood.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..core.task import Ref
from ..core.tree import Tree

ANEW = (
    "re_rendered"  # the span of what a chat template wrote anew, and how an episode's cost counts it: rewritten/<cause>
)


class Conversation(NamedTuple):
    """A conversation up to the node that ends it: its messages, and the places at which it was written anew
    (Trajectory.before).
    """

    messages: tuple[Mapping[str, Any], ...]
    left: tuple[Ref, ...] = ()


def conversation_at(tree: Tree, at: Ref, conversations: Mapping[int, Conversation]) -> tuple[Conversation | None, int]:
    """The conversation up to the last message before a place, and how many tokens stand up to there; None where it is
    not known.
    """
    path = tree.path(at.node, at.offset)
    for n in reversed(range(len(path))):
        node, upto = path[n]
        if node in conversations:
            whole = upto == tree.size(node)
            return conversations[node] if whole else None, sum(size for _, size in path[: n + 1])
    return None, 0


def parting(tree: Tree, at: Ref, new: np.ndarray) -> tuple[int, int, int]:
    """(n, node, offset): the first n ids of `new` stand on the path to a place, the last of them at this place; node
    -1: none does.
    """
    ids = tree.id[tree.places(at.node, at.offset)]
    short = min(len(ids), len(new))
    same = int(np.argmin([*(ids[:short] == new[:short]), False]))
    node, offset, left = -1, 0, same
    for one, upto in tree.path(at.node, at.offset):
        if left > 0:
            node, offset = one, min(upto, left)
        left -= upto
    return same, node, offset


def rewrites(costs: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """How often chat templates wrote anew what episodes with these costs had said, by cause: rewritten/thinking
    stripped ...
    """
    out: Counter[str] = Counter()
    for cost in costs:
        out.update({k: v for k, v in cost.items() if k.startswith(f"{ANEW}/")})
    return dict(sorted(out.items()))
