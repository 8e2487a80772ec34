"""RLVRR, a chain of verifiable rewards from a reference (Jiang et al. 2026, arXiv 2601.18533).

An open-ended text has no single answer to verify. From a good reference, key points with literal phrases and checks of
style are extracted once; a text is then paid for the phrases in the reference's order, and for each check that it
passes.

    r = mean over key points of max over their phrase lists K of LCS(y|K, y*|K) / max(|y|K|, |y*|K|)
        + sum of the weights of the checks of style that y passes
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

from ..core import BadValue, Claim, Method, Score, Task, block, mechanism, method, outcome, premise
from ..core.method import Home
from .grpo import grpo


@method(family="reward", paper="2601.18533", catalogue=169, home=Home("report", 40))
def rlvrr(
    groups: int = 16,
    rollouts: int = 8,
    content: Literal["ordered", "bag", "none"] = "ordered",
    style: bool = True,
    length_penalty: float = 0.0,
    beta: float = 0.0,
) -> Method:
    """GRPO on ordered key phrases of a reference (content) plus checks by program (style).

        content  ordered: LCS of the phrases found in text and reference, over the longer of the two lists
                 bag: the share of the reference's phrases that the text has at all, in which neither order nor
                 repetition counts; none: left out
        style    the summed weights of the checks that the text passes; weights sum to 1

    As in the released reward function (YJiangcm/RLVRR): a phrase counts at word boundaries, whatever its case; of a key
    point's alternative lists the best counts; key points count alike; `length_penalty` times |words / the reference's -
    1| outside of [0.9, 1.2] is taken off the content, at least to 0, and is weighted 0 there. Key points and style are
    tags of the task (`key_points`, `style`), where the paper has an LLM write them, with Python for the checks, which
    here are the task's judge `constraint`. Their script has a KL of weight 0.01, off here. Metrics: reward/content,
    reward/style, reward/right by the task's verifier.
    """
    reward = reference_chain(content=content, style=style, length_penalty=length_penalty)
    return grpo(groups=groups, rollouts=rollouts, beta=beta).replace(reward=(reward,))


@block
def reference_chain(
    *,
    answer: Any,
    task: Task,
    content: Literal["ordered", "bag", "none"] = "ordered",
    style: bool = True,
    length_penalty: float = 0.0,
) -> Score:
    """Content and style of a text against the task's `reference`, by its tags `key_points` and `style`.

    Parts: content, style; right, by the task's verifier; repeated, phrases found beyond the reference's, per key point.
    Raises BadValue for a task without these tags.
    """
    if any(name not in task.tags for name in ("key_points", "style", "reference")):
        raise BadValue(f"reference_chain: task {task.id} has no key_points, style and reference among its tags")
    text, reference = str(answer or ""), str(task.tags["reference"])
    points = task.tags["key_points"]
    ratio = len(text.split()) / max(len(reference.split()), 1)
    scored = 0.0
    if content != "none":
        compare = ordered_overlap if content == "ordered" else bag_overlap
        best = [max(compare(found(k, text), found(k, reference)) for k in lists) for lists in points]
        scored = sum(best) / max(len(points), 1)
        scored = max(scored - length_penalty * (0.0 if 0.9 <= ratio <= 1.2 else abs(ratio - 1)), 0.0)
    judge = task.judge("constraint")
    passed = sum(weight for name, weight in task.tags["style"] if judge(text=text, constraint=name) >= 1.0)
    counts = [(Counter(found(lists[-1], text)), Counter(found(lists[-1], reference))) for lists in points]
    extra = sum((own - wanted).total() for own, wanted in counts) / max(len(points), 1)
    right = float(task.verifier(answer=answer, task=task).value >= 1.0) if task.verifier else None
    parts = {"content": scored, "style": passed, "repeated": extra, **({} if right is None else {"right": right})}
    return Score(scored + style * passed, parts)


def found(phrases: Sequence[str], text: str) -> list[str]:
    """The occurrences of any of some phrases in a text, in its order, in lower case.

    >>> found(["lives in Ulm", "red"], "Red, she lives in Ulm. Redder?")
    ['red', 'lives in ulm']
    """
    pattern = rf"(?<!\w)(?:{'|'.join(re.escape(p) for p in phrases)})(?!\w)"
    return [m.lower() for m in re.findall(pattern, text, flags=re.IGNORECASE)]


def ordered_overlap(one: Sequence[str], other: Sequence[str]) -> float:
    """The length of the longest common subsequence over that of the longer list; 0 for two empty ones.

    >>> ordered_overlap("abc", "abc"), ordered_overlap("cab", "abc"), ordered_overlap("aabbcc", "abc")
    (1.0, 0.6666666666666666, 0.5)
    """
    row = [0] * (len(other) + 1)
    for x in one:
        last = row[:]
        for j, y in enumerate(other):
            row[j + 1] = last[j] + 1 if x == y else max(last[j + 1], row[j])
    return row[-1] / max(len(one), len(other), 1)


def bag_overlap(one: Sequence[str], other: Sequence[str]) -> float:
    """The share of the second list's entries that are in the first, in whatever order and however often.

    >>> bag_overlap("cab", "abc"), bag_overlap("aaaa", "abc")
    (1.0, 0.3333333333333333)
    """
    wanted = Counter(other)
    return sum((Counter(one) & wanted).values()) / max(len(other), 1)


rlvrr.claim = Claim(
    (
        # without the order facts stay in the order in which the start tells them
        premise("late:reward/right", "bag", 0.5, relation="<", fails_at=0.9),
        mechanism("late:reward/content", "self", "first:reward/content of self", by=0.1, fails_at=0.95),
        mechanism("late:reward/repeated", "self", "late:reward/repeated of bag", relation="<", by=0.02, fails_at=0.0),
        outcome("accuracy", "self", "bag", by=0.05, fails_at=0.97),
        outcome("accuracy", "self", "unstyled", by=0.05, fails_at=0.97),
        outcome("accuracy", "self", "start", by=0.2, fails_at=0.85),
    ),
    args={"content": "ordered", "style": True},
    arms={
        "bag": ("rlvrr", {"content": "bag", "style": True}),
        "unstyled": ("rlvrr", {"content": "ordered", "style": False}),
    },
    regime="written",
    first_seed=300,
    corrected="on seeds 200 to 207 texts were harder, and of eight runs of plain GRPO one fell to nothing: holds",
    idea=("main.reward",),
    because="phrases in the order of a reference cannot be had by stuffing, and what is not content is checked apart",
)
