"""Rollouts that run ahead of learning: the steps that are begun and not learned yet, in the order of their steps.

A step's rollouts are begun under the newest weights, in order, as far as `admission.py` allows, and learned in order.
Without interruption one step is played at a time, and the weights change when all that are begun are over: which
version samples what is a function of the step. With it all are played at once, and the weights change under them.
"""

from __future__ import annotations

import asyncio
import copy
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from ..core.batch import Batch
from ..core.threads import run_in_thread
from ..core.tree import RolloutGroup, Tree
from .state import RunState
from .step_context import StepContext
from .stored_groups import from_stored, to_stored

T = TypeVar("T")


@dataclass
class StepRollouts:
    """The rollouts of one step.

    context  what its episodes share; groups: filled as they come in
    select_metrics  what its select logged
    """

    step: int
    context: StepContext
    groups: list[RolloutGroup] = field(default_factory=list[RolloutGroup])
    select_metrics: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def sampled(self) -> int:
        """The sampled tokens of all turns that are over, also of episodes that are not."""
        return sum(int(tree.action_mask.sum()) for tree in self.context.trees.values())


@dataclass
class PendingStep:
    """A step whose rollouts are begun and not learned.

    work    what fills it; None where a checkpoint had it whole
    before  (key, state) of its select before it was asked, from which it is asked again where it has to be repeated;
            state None: it had none yet
    """

    rollouts: StepRollouts
    work: asyncio.Task[None] | None = None
    before: tuple[str, Any] = ("", None)

    @property
    def over(self) -> bool:
        """Whether nothing of it is played any more."""
        return self.work is None or self.work.done()

    @property
    def finished(self) -> bool:
        """Whether all its groups are in."""
        return self.work is None or (self.over and not self.work.cancelled() and self.work.exception() is None)


class RunAhead:
    """The steps that are begun and not learned, oldest first.

    at_once  whether all are played at once, so that no slot of the engine is idle; otherwise one after another
    """

    def __init__(self, at_once: bool = False) -> None:
        self.at_once = at_once
        self.pending: deque[PendingStep] = deque()
        self._running, self._idle, self._since = 0, 0.0, time.perf_counter()

    def __len__(self) -> int:
        return len(self.pending)

    @property
    def known_tokens(self) -> int:
        """Sampled tokens of the steps that are over."""
        return sum(p.rollouts.sampled for p in self.pending if p.finished)

    def tree(self, episode: str) -> Tree | None:
        """The tree of an episode that waits to be learned."""
        trees = (p.rollouts.context.trees for p in self.pending)
        return next((own[episode] for own in trees if episode in own), None)

    def begin(
        self, rollouts: StepRollouts, collect: Callable[[], Awaitable[None]], select: str, blocks: Mapping[str, Any]
    ) -> None:
        """Begin a step: `collect` fills its groups. select: the key of its select's state among those of blocks."""
        last = self.pending[-1].work if self.pending and not self.at_once else None

        async def play() -> None:
            if last is not None:
                await asyncio.wait([last])
            pending.before = select, copy.deepcopy(blocks.get(select))
            self._count(1)
            try:
                await collect()
            finally:
                self._count(-1)

        pending = PendingStep(rollouts, asyncio.create_task(play(), name=f"step {rollouts.step}"))
        assert pending.work is not None
        pending.work.add_done_callback(lambda work: work.cancelled() or work.exception())  # raised when it is its turn
        self.pending.append(pending)

    async def next(self) -> StepRollouts:
        """The oldest step's rollouts, once all are in. Raises what its play raised."""
        if (work := self.pending[0].work) is not None:
            await work
        return self.pending.popleft().rollouts

    async def all_over(self) -> None:
        """Wait until nothing is played."""
        if works := [p.work for p in self.pending if p.work is not None and not p.over]:
            await asyncio.wait(works)

    async def drop(self) -> int:
        """End everything, and return how many tokens it had sampled."""
        self.cancel()
        await self.all_over()
        sampled = sum(p.rollouts.sampled for p in self.pending)
        self.pending.clear()
        return sampled

    def cancel(self) -> None:
        """Ask everything that is played to end."""
        for pending in self.pending:
            if pending.work is not None and not pending.over and not pending.work.get_loop().is_closed():
                pending.work.cancel()

    # ---- checkpoints

    def stored(self, blocks: Mapping[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """What a checkpoint holds: the steps that are over, up to the first that is not, and the states of blocks
        before that one was begun. It and those after it are played again, from the same random numbers.

        Raises BadValue for what no checkpoint can hold.
        """
        kept: list[dict[str, Any]] = []
        for pending in self.pending:
            if not pending.finished:
                key, before = pending.before
                others = {k: v for k, v in blocks.items() if k != key}
                return kept, others if before is None else {**others, key: before}
            r = pending.rollouts
            kept.append({"step": r.step, "select_metrics": r.select_metrics, **to_stored(r.groups)})
        return kept, dict(blocks)

    def restore(self, stored: Sequence[Mapping[str, Any]], context_of: Callable[[int], StepContext]) -> None:
        """Take over what `stored` gave."""
        for s in stored:
            context, groups = context_of(s["step"]), from_stored(s)
            context.trees.update({e.id: e.tree for g in groups for e in g.episodes})
            self.pending.append(PendingStep(StepRollouts(s["step"], context, groups, dict(s["select_metrics"]))))

    # ---- figures

    def start_clock(self) -> None:
        """Count idle time from now on."""
        self._idle, self._since = 0.0, time.perf_counter()

    def _count(self, change: int) -> None:
        if not self._running:
            self._idle += time.perf_counter() - self._since
        self._running, self._since = self._running + change, time.perf_counter()

    def figures(self, batch: Batch, version: int, step_s: float, learn_s: float) -> dict[str, float]:
        """The metrics of a step that ran beside rollouts (loop/metrics.py). version: of the learner as it began."""
        idle = self._idle + (0.0 if self._running else time.perf_counter() - self._since)
        queued = [len(p.rollouts.groups) for p in self.pending if p.finished]
        return {
            "rollout/queued_groups": sum(queued),
            "rollout/queued_steps": len(queued),
            "time/sampler_idle_fraction": min(1.0, idle / step_s),
            "time/learner_idle_fraction": max(0.0, 1 - learn_s / step_s),
            **staleness(batch, version),
        }


def staleness(batch: Batch, version: int) -> dict[str, float]:
    """How many updates before `version` the learned tokens were sampled: mean, max, and the share of each age.

    Adopted tokens, which no weights of this run sampled, are left out.
    """
    of_token = batch.get("version") if batch.size("token") else np.zeros(0, np.int64)
    ages, counts = np.unique(version - of_token[of_token >= 0], return_counts=True)
    if not len(ages):
        return {}
    shares = counts / counts.sum()
    named = {f"staleness/share_{age}": float(share) for age, share in zip(ages, shares, strict=True)}
    return {"staleness/mean": float(ages @ shares), "staleness/max": float(ages.max()), **named}


async def beside(work: Callable[[], T]) -> T:
    """The result of a work in a thread, while this event loop goes on.

    Where the waiting task is cancelled, the work is waited for all the same: nobody else may use what it changes.
    """
    ended = threading.Event()

    def call() -> T:
        try:
            return work()
        finally:
            ended.set()

    future = run_in_thread(call)
    try:
        return await future
    except asyncio.CancelledError:
        ended.wait()
        raise


def view_of(state: RunState) -> RunState:
    """The state as rollouts that are begun now see it: its blocks' states are those of the run, its history stays as it
    is while others learn.
    """
    history = replace(
        state.history,
        tasks={task: dict(seen) for task, seen in state.history.tasks.items()},
        scalars={name: list(values) for name, values in state.history.scalars.items()},
    )
    return replace(state, history=history)
