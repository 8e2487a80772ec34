"""Measuring a policy on held-out tasks: accuracy greedy and sampled, pass@k, majority vote, length, calls; in all and
by tag.
"""

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
from .conversation import rewrites
from .episode import play
from .step_context import StepContext


@dataclass
class Result:
    """What a program did on some tasks: c of n samples right for each, their answers, lengths and calls."""

    tasks: list[Task]
    right: list[int]
    asked: list[int]
    answers: list[list[Any]]
    score: float = float("nan")  # mean verdict: what a task that is not just right or wrong is measured by
    majority: float = float("nan")  # share of tasks whose most frequent answer (the earliest of equals) is right
    distinct: float = float("nan")  # right answers to a task that differ (core.votes), on average over tasks
    length: float = 0.0
    calls: float = 0.0
    re_rendered: float = 0.0  # how often a chat template wrote a conversation anew, per episode

    @property
    def accuracy(self) -> float:
        """Mean share of right samples; a sample without a verdict is not counted."""
        return (
            float(np.mean([c / n for c, n in zip(self.right, self.asked, strict=True) if n]))
            if any(self.asked)
            else float("nan")
        )

    def error(self) -> float:
        """Standard error of the accuracy over tasks."""
        shares = [c / n for c, n in zip(self.right, self.asked, strict=True) if n]
        return float(np.std(shares, ddof=1) / len(shares) ** 0.5) if len(shares) > 1 else float("nan")

    def pass_at(self, k: int) -> float:
        """The unbiased estimate of at least one right in k, averaged over tasks that have k samples."""
        found = [pass_at(k, n, c) for c, n in zip(self.right, self.asked, strict=True) if n >= k]
        return float(np.mean(found)) if found else float("nan")

    def by(self, tag: str) -> dict[str, float]:
        """Accuracy of the tasks by the value of a tag."""
        found: dict[str, list[float]] = defaultdict(list)
        for task, c, n in zip(self.tasks, self.right, self.asked, strict=True):
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
            "calls": self.calls,
        }
        if self.re_rendered:
            out["re_rendered"] = self.re_rendered
        most = max(self.asked, default=0)
        out |= {f"pass@{k}": self.pass_at(k) for k in ks if k <= most}
        if most > 1:
            out |= {"maj": self.majority, "distinct": self.distinct}
        for tag in tags:
            out |= {f"accuracy/{tag}={v}": a for v, a in self.by(tag).items()}
        return out


def pass_at(k: int, n: int, c: int) -> float:
    """1 - C(n - c, k) / C(n, k): the chance that k of n samples, c of them right, hold a right one (Chen et al. 2021,
    eq. 1).

    >>> pass_at(1, 4, 1), pass_at(2, 4, 1), pass_at(4, 4, 1)
    (0.25, 0.5, 1.0)
    """
    return 1.0 - comb(n - c, k) / comb(n, k)


async def evaluate(
    table: StepContext,
    tasks: Sequence[Task],
    judge: Block,
    k: int = 1,
    wave: int = 16,
    told: Callable[[int, int], None] | None = None,
) -> Result:
    """Play the table's program `main` `k` times on every task and judge the answers; `told(done, all)` hears of
    progress.
    """
    result = Result([], [], [], [])
    cost: Counter[str] = Counter()
    values: list[float] = []
    played = right = distinct = 0
    for at in range(0, len(tasks), wave):
        groups = await play(
            table, [RolloutRequest(t, k, key=f"eval/{at + i}") for i, t in enumerate(tasks[at : at + wave])], round_=at
        )
        for group in groups:
            verdicts = await _judged(judge, group, table)
            known = [(a, v) for a, v in verdicts if v is not None]
            result.tasks.append(group.request.task)
            result.asked.append(len(known))
            values += [v for _, v in known]
            result.right.append(sum(v >= 1.0 for _, v in known))
            result.answers.append([a for a, _ in verdicts])
            distinct += len({canonical(a) for a, v in known if v >= 1.0})
            best, _ = majority([a for a, _ in known])
            if best is not None:
                right += next(v for a, v in known if canonical(a) == best) >= 1.0
            for episode in group.episodes:
                cost.update(episode.cost)
                played += 1
            table.trees.clear()
        if told:
            told(min(at + wave, len(tasks)), len(tasks))
    result.length, result.calls = (cost[c] / max(1, played) for c in ("tokens", "calls"))
    result.re_rendered = sum(rewrites([cost]).values()) / max(1, played)
    result.score = float(np.mean(values)) if values else float("nan")
    result.majority, result.distinct = right / max(1, len(tasks)), distinct / max(1, len(tasks))
    return result


async def _judged(judge: Block, group: RolloutGroup, table: StepContext) -> list[tuple[Any, float | None]]:
    """(answer, verdict) of every episode; an episode that failed gave no answer, which is a wrong one."""
    found = (await score(judge, [group], table)).get("reward", {})
    out: list[tuple[Any, float | None]] = []
    for episode in group.episodes:
        verdict = next((found[t.leaf].value for t in reversed(episode.trajectories) if t.leaf in found), 0.0)
        out.append((episode.answer, verdict))
    return out
