"""Values of the lines of a search tree, inferred from which of its leaves are right, and the examples that teach them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..core import Column, Episode, Example, Group, Ref, Segment, Seq, block
from ..core.part import Array


def inferred_values(parent: Sequence[int], right: Sequence[bool | None]) -> Array:
    """f64[K]: what each node of a tree is worth, from the verdicts on its leaves (Zhang et al. 2024, ReST-MCTS*, 2406.03816, eq. 1 to 3).

        v_root = 0;  v = max(0, v_parent + (1 - v_parent) r / m),   r = 1 where a right leaf is below, -1 where none is

    m is 1 at a right leaf and one more than the least of its children above; below a wrong turn it is that of the nearest ancestor which
    has one. So a path of n steps to a right answer rises by 1/n a step, and a wrong turn falls. (m is the paper's m_k + 1.)

    Args: parent: of each node, -1 for the root, which comes first; every node comes after its parent. right: of leaves that ended, else None.
    Returns: NaN where nothing that ended is below (not known to be wrong), and for a whole tree without a right leaf.

    >>> inferred_values([-1, 0, 1, 1, 0], [None, None, True, False, False])  # 1/2; 1/2 + 1/2; 1/2 - 1/2 * 1/2; max(0, -1/3)
    array([0.  , 0.5 , 1.  , 0.25, 0.  ])
    """
    n = len(parent)
    steps, ended = np.full(n, np.inf), np.zeros(n, bool)
    for i in range(n - 1, -1, -1):
        ended[i] |= right[i] is not None
        if right[i]:
            steps[i] = 1
        if parent[i] >= 0:
            steps[parent[i]] = min(steps[parent[i]], steps[i] + 1)
            ended[parent[i]] |= ended[i]
    value = np.full(n, np.nan)
    if not n or np.isinf(steps[0]):
        return value
    value[0] = 0.0
    for i in range(1, n):
        before = value[parent[i]]
        if ended[i]:
            sign = 1 if np.isfinite(steps[i]) else -1
            steps[i] = steps[i] if sign > 0 else steps[parent[i]]
            value[i] = max(0.0, before + (1 - before) * sign / steps[i])
    return value


@block
def line_values(*, groups: Sequence[Group], member: str = "policy", stream: str = "value", above: float = 0.5) -> list[Example]:
    """One example per line of the searched trees whose value can be inferred: the text up to its end, whose last token is the row.

    Each line counts once, however many answers pass through it. Column `target` per seq. above: the reward of a right answer.
    """
    out: list[Example] = []
    for group in groups:
        for episode in group.episodes:
            lines, parent, right = _tree(group, episode, above)
            for node, value in list(zip(lines, inferred_values(parent, right), strict=True))[1:]:
                if np.isnan(value):
                    continue
                *before, (last, size) = episode.tree.path(node)
                parts = [Segment(Ref(episode.id, at), None, 0, upto) for at, upto in before]
                parts += [Segment(Ref(episode.id, last), None, 0, size - 1)] * (size > 1) + [Segment(Ref(episode.id, last), stream, size - 1, size)]
                out.append(
                    Example(tuple(parts), member, f"{group.key}/{stream}", f"{episode.id}:{stream}{node}", given={"target": ("seq", float(value))},
                            labels={"task": group.request.task.id, "category": str(group.request.task.tags.get("category", "")), "role": member})
                )  # fmt: skip
    return out


def _tree(group: Group, episode: Episode, above: float) -> tuple[list[int], list[int], list[bool | None]]:
    """The nodes that a search noted, the root first: their numbers, parents among them, and the verdicts of those that ended."""
    tree, notes = episode.tree, episode.tree.notes
    verdicts = {at.node: s.value for at, s in group.scores.get("reward", {}).items() if at.episode == episode.id}
    lines, parent, right = [-1], [-1], list[bool | None]([None])
    for node in sorted(n for n, told in notes.items() if "ended" in told and tree.size(n)):
        up = next((n for n, _ in tree.path(node)[-2::-1] if n in lines), -1)
        value = verdicts.get(node) if notes[node]["ended"] else None
        lines.append(node)
        parent.append(lines.index(up))
        right.append(None if value is None else value > above)
    return lines, parent, right


@block
def right_only(*, reward: Seq, above: float = 0.5) -> dict[str, Column]:
    """Keep what is right, to be imitated: keep = 0 where the reward is known and not above a bound; adv = 1 for what is right, else 0.

    Rows without a reward stay and are imitated by nobody (adv 0): they teach something else, such as `line_values`.
    (ReST-EM, Singh et al. 2023, 2312.06585, section 3.)
    """
    reward = np.asarray(reward, np.float64)
    right = reward > above
    return {"adv": Column("seq", right.astype(np.float64)), "keep": Column("seq", (right | np.isnan(reward)).astype(np.float64))}
