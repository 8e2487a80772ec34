"""Evaluation of a policy on held-out tasks: accuracy, pass@k, majority vote, length, calls; overall and by tag."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import comb
from typing import Any

import numpy as np

from ..core.answers import canonical, majority
from ..core.blocks import Block
from ..core.scoring import score
from ..core.task import RolloutRequest, Task
from ..core.tree import RolloutGroup
from .conversation import re_render_counts
from .episode import play
from .step_context import StepContext

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass
class Result:
    """The results of a program on some tasks: right and scored samples of each, answers, length, calls."""

    tasks: list[Task]
    right: list[int]
    scored: list[int]
    answers: list[list[Any]]
    score: float = float("nan")  # mean score, for tasks whose answers are not just right or wrong
    majority: float = float("nan")  # share of tasks whose most frequent answer (the earliest of equals) is right
    distinct: float = float("nan")  # different right answers to a task (core.answers), mean over tasks
    length: float = 0.0
    length_right: float = float("nan")  # of the samples that are right, and of those that are wrong
    length_wrong: float = float("nan")
    calls: float = 0.0
    re_rendered: float = 0.0  # times that a chat template re-rendered a conversation, per episode

    @property
    def accuracy(self) -> float:
        """Mean share of right samples; a sample without a score is not counted."""
        return (
            float(np.mean([c / n for c, n in zip(self.right, self.scored, strict=True) if n]))
            if any(self.scored)
            else float("nan")
        )

    def error(self) -> float:
        """Standard error of the accuracy over tasks."""
        shares = [c / n for c, n in zip(self.right, self.scored, strict=True) if n]
        return float(np.std(shares, ddof=1) / len(shares) ** 0.5) if len(shares) > 1 else float("nan")

    def pass_at(self, k: int) -> float:
        """The unbiased estimate of at least one right in k, averaged over tasks that have k samples."""
        found = [pass_at(k, n, c) for c, n in zip(self.right, self.scored, strict=True) if n >= k]
        return float(np.mean(found)) if found else float("nan")

    def by(self, tag: str) -> dict[str, float]:
        """Accuracy of the tasks by the value of a tag."""
        found: dict[str, list[float]] = defaultdict(list)
        for task, c, n in zip(self.tasks, self.right, self.scored, strict=True):
            if tag in task.tags and n:
                found[str(task.tags[tag])].append(c / n)
        return {k: float(np.mean(v)) for k, v in sorted(found.items())}

    def figures(self, ks: Sequence[int] = (), tags: Sequence[str] = ("hops",)) -> dict[str, float]:
        """Everything by name: accuracy, stderr, pass@k, maj@n, distinct, length, calls, accuracy/hops=2 ..."""
        out = {
            "accuracy": self.accuracy,
            "stderr": self.error(),
            "score": self.score,
            "length": self.length,
            "length_right": self.length_right,
            "length_wrong": self.length_wrong,
            "calls": self.calls,
        }
        if self.re_rendered:
            out["re_rendered"] = self.re_rendered
        most = max(self.scored, default=0)
        out |= {f"pass@{k}": self.pass_at(k) for k in ks if k <= most}
        if most > 1:
            out |= {"maj": self.majority, "distinct": self.distinct}
        for tag in tags:
            out |= {f"accuracy/{tag}={v}": a for v, a in self.by(tag).items()}
        return out

    def counts(self) -> str:
        """Right samples of each task as one base-36 digit; "-" where there are 36, or one has no score."""
        most = max(self.scored, default=0)
        pairs = zip(self.right, self.scored, strict=True)
        return "".join(DIGITS[c] if n == most and c < len(DIGITS) else "-" for c, n in pairs)


def pass_at(k: int, n: int, c: int) -> float:
    """1 - C(n - c, k) / C(n, k): the chance that k of n samples, c of them right, hold a right one (Chen et al. 2021,
    eq. 1).

    >>> pass_at(1, 4, 1), pass_at(2, 4, 1), pass_at(4, 4, 1)
    (0.25, 0.5, 1.0)
    """
    return 1.0 - comb(n - c, k) / comb(n, k)


async def evaluate(
    context: StepContext,
    tasks: Sequence[Task],
    judge: Block,
    k: int = 1,
    wave: int = 16,
    on_progress: Callable[[int, int], None] | None = None,
) -> Result:
    """Run the program `main` of a context `k` times on every task, `wave` tasks at a time, and score the answers.

    judge: a reward; a score of 1 or more is right. on_progress: called with the tasks done and their number.
    """
    result = Result([], [], [], [])
    cost: Counter[str] = Counter()
    tokens: dict[bool, list[float]] = {True: [], False: []}
    values: list[float] = []
    played = right = distinct = 0
    for at in range(0, len(tasks), wave):
        groups = await play(
            context,
            [RolloutRequest(t, k, key=f"eval/{at + i}") for i, t in enumerate(tasks[at : at + wave])],
            round_=at,
        )
        for group in groups:
            scores = await _scores(judge, group, context)
            known = [(a, v) for a, v in scores if v is not None]
            result.tasks.append(group.request.task)
            result.scored.append(len(known))
            values += [v for _, v in known]
            result.right.append(sum(v >= 1.0 for _, v in known))
            result.answers.append([a for a, _ in scores])
            distinct += len({canonical(a) for a, v in known if v >= 1.0})
            best, _ = majority([a for a, _ in known])
            if best is not None:
                right += next(v for a, v in known if canonical(a) == best) >= 1.0
            for episode, (_, value) in zip(group.episodes, scores, strict=True):
                cost.update(episode.cost)
                played += 1
                if value is not None:
                    tokens[value >= 1.0].append(episode.cost.get("tokens", 0))
            context.trees.clear()
        if on_progress:
            on_progress(min(at + wave, len(tasks)), len(tasks))
    result.length, result.calls = (cost[c] / max(1, played) for c in ("tokens", "calls"))
    result.length_right, result.length_wrong = (float(np.mean(t or [np.nan])) for t in (tokens[True], tokens[False]))
    result.re_rendered = sum(re_render_counts([cost]).values()) / max(1, played)
    result.score = float(np.mean(values)) if values else float("nan")
    result.majority, result.distinct = right / max(1, len(tasks)), distinct / max(1, len(tasks))
    return result


async def _scores(judge: Block, group: RolloutGroup, context: StepContext) -> list[tuple[Any, float | None]]:
    """(answer, score) of every episode; a failed episode has no answer, which is a wrong one."""
    found = (await score(judge, [group], context)).get("reward", {})
    out: list[tuple[Any, float | None]] = []
    for episode in group.episodes:
        value = next((found[t.leaf].value for t in reversed(episode.trajectories) if t.leaf in found), 0.0)
        out.append((episode.answer, value))
    return out
