"""A simulation of samplers and a learner that work on one run: how long its steps take, and who waits for whom.

Time passes from one event to the next: an answer that is done, an update that is done. What a token or an update costs
is given as functions, of a machine that was measured or of one on paper (`cluster_plan.py`).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..core.errors import BadValue
from ..core.random_keys import generator
from ..loop.admission import admit


@dataclass(frozen=True)
class Timing:
    """Seconds of each kind of work.

    decode   (sequences that are sampled at once by one sampler, mean tokens in their contexts) -> of a token of each
    prefill  tokens of a prompt -> of reading them into a sampler's cache
    learn    tokens of a batch -> of the update on them, by the whole learner
    deliver  of giving the new weights to the samplers, which goes on beside sampling where the two are apart
    switch   of handing the devices over, there and back, where samplers and learner share them
    """

    decode: Callable[[int, float], float]
    prefill: Callable[[float], float]
    learn: Callable[[float], float]
    deliver: float = 0.0
    switch: float = 0.0


@dataclass(frozen=True)
class Workload:
    """What a step asks for.

    groups, rollouts  groups that a step learns from, answers in each
    prompt            tokens of a prompt
    lengths           i64[K]: tokens of answers, as they were recorded or are expected; drawn from at random
    waits             f64[K]: seconds from an answer's last token to its reward (tools, judges)
    """

    groups: int
    rollouts: int
    prompt: int
    lengths: np.ndarray
    waits: np.ndarray

    def __post_init__(self) -> None:
        if self.groups < 1 or self.rollouts < 1 or not len(self.lengths) or len(self.lengths) != len(self.waits):
            raise BadValue("workload: needs groups, rollouts, and a length and a wait of at least one answer")


class Throughput(NamedTuple):
    """What came out, after the first steps, in which the queue fills.

    step_seconds      mean seconds from one update to the next
    tokens_per_s      sampled tokens that were learned, a second
    sampler_idle      share of the time in which a sampler had nothing to sample, mean over samplers
    learner_idle      share of the time in which the learner waited for a batch
    occupancy         share of the samplers' slots in use while they sampled
    staleness         mean number of updates between the beginning of a group and its being learned
    longest_staleness the largest
    """

    step_seconds: float
    tokens_per_s: float
    sampler_idle: float
    learner_idle: float
    occupancy: float
    staleness: float
    longest_staleness: int


class _Sampler:
    """The sequences that one sampler has in hand: a row each of tokens left, tokens in its context, group, wait. What
    is known of it is true at `at`; until it gets another sequence or finishes one it goes on at the same pace.
    """

    def __init__(self, timing: Timing) -> None:
        self.timing, self.rows = timing, np.zeros((4, 0))
        self.reading = 0.0  # seconds of prompts that are still to be read
        self.at = self.busy_s = self.slots_s = 0.0
        self.pace, self.number = 0.0, 0  # number: of its plan, so that an old one is known

    def __len__(self) -> int:
        return self.rows.shape[1]

    def advance(self, now: float) -> list[tuple[float, int]]:
        """Go on until now. Returns (wait, group) of the sequences that are done."""
        seconds, self.at = now - self.at, now
        if not len(self) or seconds <= 0:
            return []
        self.busy_s, self.slots_s = self.busy_s + seconds, self.slots_s + seconds * len(self)
        read = min(self.reading, seconds)
        tokens = (seconds - read) / self.pace
        self.reading -= read
        self.rows[0] -= tokens
        self.rows[1] += tokens
        done = self.rows[0] <= 1e-6
        out = [(float(wait), int(group)) for _, _, group, wait in self.rows[:, done].T]
        self.rows = self.rows[:, ~done]
        return out

    def add(self, given: Sequence[tuple[float, float, int, float]], reading: float) -> None:
        """Take (length, prompt, group, wait) sequences, at the time that it is at."""
        rows = [(max(length, 1.0), prompt, group, wait) for length, prompt, group, wait in given]
        self.rows = np.hstack([self.rows, np.array(rows).T])
        self.reading += reading * len(given)

    def planned(self) -> tuple[float, int]:
        """(when its next sequence is done, the number of this plan)."""
        self.number += 1
        if not len(self):
            return np.inf, self.number
        self.pace = self.timing.decode(len(self), float(self.rows[1].mean()))
        return self.at + self.reading + float(self.rows[0].min()) * self.pace, self.number


def simulate(
    work: Workload,
    timing: Timing,
    samplers: int,
    slots: int,
    staleness: int = 0,
    shared: bool = False,
    steps: int = 8,
    seed: int = 0,
) -> Throughput:
    """Simulate so many updates of a run.

    slots      sequences that one sampler samples at once
    staleness  updates that may pass between the beginning of a group and its being learned (loop/admission.py)
    shared     samplers and learner have the same devices, and take turns

    Groups begin in order, as soon as they are admitted and there is room, each sequence at the sampler with the fewest;
    batches are learned in that order. New weights reach the samplers between two tokens.
    """
    if samplers < 1 or slots < 1 or steps < 1 or staleness < 0:
        raise BadValue("simulate: samplers, slots and steps must be at least 1, staleness at least 0")
    if shared and staleness:
        raise BadValue("simulate: devices that are shared take turns, so that nothing runs ahead; staleness must be 0")
    run = _Simulation(work, timing, samplers, slots, staleness, shared, seed)
    while run.version < steps:
        run.advance()
    warm = min(staleness + 1, steps - 1)
    start, end = run.marks[warm], run.marks[-1]
    span, ages = max(end.now - start.now, 1e-12), run.ages[warm * work.groups :]
    return Throughput(
        span / (steps - warm),
        sum(run.tokens[warm * work.groups : steps * work.groups]) / span,
        1 - (end.sampling - start.sampling) / span,
        1 - (end.learning - start.learning) / span,
        (end.slots - start.slots) / max(end.sampling - start.sampling, 1e-12),
        float(np.mean(ages)),
        max(ages),
    )


class _Mark(NamedTuple):
    """Seconds so far, at the end of an update: all; of them learning, sampling (a sampler), slots in use (a slot)."""

    now: float
    learning: float
    sampling: float
    slots: float


class _Simulation:
    """The state of a simulated run, and its next event."""

    def __init__(
        self, work: Workload, timing: Timing, samplers: int, slots: int, staleness: int, shared: bool, seed: int
    ) -> None:
        self.work, self.timing, self.slots, self.staleness, self.shared = work, timing, slots, staleness, shared
        self.draw, self.samplers = generator("throughput", seed), [_Sampler(timing) for _ in range(samplers)]
        self.now, self.version, self.learning_s = 0.0, 0, 0.0
        self.learned_at = np.inf  # when the update under way is done
        self.tokens, self.missing, self.began = list[float](), list[int](), list[int]()  # of each group
        self.waiting = deque[tuple[float, float, int, float]]()  # sequences without a sampler
        self.late = list[tuple[float, int]]()  # (when an answer has its reward, group)
        self.plans = list[tuple[float, int, int]]()  # (when a sequence is done, number of the plan, sampler)
        self.marks, self.ages = [_Mark(0.0, 0.0, 0.0, 0.0)], list[int]()

    def advance(self) -> None:
        """Begin what may begin, and go on to the next event."""
        self._admit()
        batch = slice(self.version * self.work.groups, (self.version + 1) * self.work.groups)
        if self.learned_at == np.inf and len(self.missing) >= batch.stop and not any(self.missing[batch]):
            took = self.timing.learn(sum(self.tokens[batch])) + (self.timing.switch if self.shared else 0.0)
            self.learned_at, self.learning_s = self.now + took, self.learning_s + took
        if not (self.shared and self.learned_at < np.inf):
            self._fill()
        while self.plans and self.plans[0][1] != self.samplers[self.plans[0][2]].number:
            heapq.heappop(self.plans)  # made before its sampler got more
        self.now = min(self.learned_at, *(queue[0][0] if queue else np.inf for queue in (self.late, self.plans)))
        if self.plans and self.plans[0][0] <= self.now:
            hand = heapq.heappop(self.plans)[2]
            self._go_on(hand)
            self._plan(hand)
        while self.late and self.late[0][0] <= self.now:
            self.missing[heapq.heappop(self.late)[1]] -= 1
        if self.learned_at <= self.now:
            self.ages += [self.version - version for version in self.began[batch]]
            self.version, self.learned_at = self.version + 1, np.inf
            self.now += 0.0 if self.staleness else self.timing.deliver
            for hand in range(len(self.samplers)):
                self._go_on(hand)
                self._plan(hand)
            used = [sum(getattr(s, name) for s in self.samplers) / len(self.samplers) for name in ("busy_s", "slots_s")]
            self.marks.append(_Mark(self.now, self.learning_s, used[0], used[1] / self.slots))

    def _admit(self) -> None:
        for _ in range(admit(self.staleness, self.version, self.work.groups, len(self.missing), 0)):
            group, chosen = len(self.missing), self.draw.integers(0, len(self.work.lengths), self.work.rollouts)
            lengths = self.work.lengths[chosen].tolist()
            self.waiting.extend(
                (length, self.work.prompt, group, wait)
                for length, wait in zip(lengths, self.work.waits[chosen].tolist(), strict=True)
            )
            self.missing.append(self.work.rollouts)
            self.tokens.append(float(sum(lengths)))
            self.began.append(self.version)

    def _fill(self) -> None:
        """Give waiting sequences to the samplers with the fewest."""
        if not self.waiting:
            return
        room = [(len(s), i) for i, s in enumerate(self.samplers) if len(s) < self.slots]
        heapq.heapify(room)
        given: dict[int, list[tuple[float, float, int, float]]] = {}
        while self.waiting and room:
            size, hand = heapq.heappop(room)
            given.setdefault(hand, []).append(self.waiting.popleft())
            if size + 1 < self.slots:
                heapq.heappush(room, (size + 1, hand))
        for hand, sequences in given.items():
            self._go_on(hand)
            self.samplers[hand].add(sequences, self.timing.prefill(self.work.prompt) / self.work.rollouts)
            self._plan(hand)

    def _go_on(self, hand: int) -> None:
        """Bring a sampler to now, and its sequences that are done on their way to a reward."""
        for wait, group in self.samplers[hand].advance(self.now):
            heapq.heappush(self.late, (self.now + wait, group))

    def _plan(self, hand: int) -> None:
        when, number = self.samplers[hand].planned()
        if when < np.inf:
            heapq.heappush(self.plans, (when, number, hand))
