"""Infinite Sampling (Wang et al. 2025, arXiv 2506.22950): large groups in a small cache.

GRPO compares the answers of a group, and the larger the group, the better; but the key-value cache of all of them does
not fit. So few are sampled at once, and what is learned is the same, since advantages wait for the whole group.

    micro groups         a group in rounds of `places` answers; a round lasts as long as its longest answer
    continuous sampling  an answer that ends gives its place to the next at once, of the same group or another
    length-aware         of each answer a short prefix first, which tells how long it will be; then a plan by length
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np

from ..core import (
    Claim,
    Method,
    RolloutContext,
    RolloutGroup,
    RolloutRequest,
    TaskSource,
    block,
    mechanism,
    method,
    outcome,
    premise,
    random_keys,
    stateful,
)
from ..core.blocks import asks_engine
from ..core.tagged_text import ends_in_part_of, last_between
from ..curriculum.select import next_tasks
from .grpo import grpo

Schedule = Literal["whole", "rounds", "refill", "planned"]
Waiting = tuple[float, asyncio.Future[None]]  # for how long a place is likely needed, and who is told of it


@method(family="system", paper="2506.22950", catalogue=365)
def infinite_sampling(
    groups: int = 16,
    rollouts: int = 16,
    places: int = 32,
    schedule: Schedule = "planned",
    prefix: int = 3,
    error: float = 0.05,
) -> Method:
    """GRPO of whole groups, of whose answers only `places` are sampled at once, in an order by predicted length.

    Wang et al. 2025. schedule: "rounds" is micro groups one after another, "refill" continuous sampling in the order of
    requests, "planned" the length-aware one, "whole" everything at once, as GRPO does. Every answer draws with random
    numbers of its own, so that all four sample the same texts and take the same step, bit for bit; what differs is
    engine/peak_tokens and engine/steps. prefix: tokens of each answer that are sampled first, by which its length is
    predicted (`with_lengths`). error: of the plan, at each of its halvings (`dealt`). The paper's predictor and planner
    are not known in detail; these were chosen here. `places` bounds what is in use; what is allocated is `--slots`.
    """
    return grpo(groups=groups, rollouts=rollouts).replace(
        select=with_lengths(prefix=prefix),
        programs={"main": in_places(places=places, schedule=schedule, prefix=prefix, error=error)},
    )


@block
@stateful(lambda: {"asked": 0, "lengths": {}})
def with_lengths(
    *,
    n: int,
    rollouts: int,
    finished_rounds: list[list[RolloutGroup]],
    source: TaskSource,
    seed: int,
    state: dict[str, Any],
    prefix: int = 3,
    memory: float = 0.05,
) -> tuple[list[RolloutRequest], dict[str, Any]]:
    """The next `n` tasks as in `uniform`; the help of requests holds `lengths`: how long answers were that began so.

    lengths: first tokens, as words, up to `prefix` of them -> [answers, mean tokens]; a mean forgets, as the policy
    changes: it moves by 1 / answers, and by `memory` at least.
    """
    if not finished_rounds:
        tasks = next_tasks(source, seed, state["asked"], n)
        requests = [RolloutRequest(task, rollouts, help={"lengths": state["lengths"]}) for task in tasks]
        return requests, {**state, "asked": state["asked"] + n}
    lengths = {began: list(known) for began, known in state["lengths"].items()}
    for episode in (e for g in finished_rounds[0] for e in g.episodes if e.trajectories):
        ids = episode.tree.id[episode.tree.action_mask]
        for count in range(min(prefix, len(ids)) + 1):
            known = lengths.setdefault(began_with(ids[:count]), [0, 0.0])
            known[0] += 1
            known[1] += (len(ids) - known[1]) * max(1 / known[0], memory)
    return [], {**state, "lengths": lengths}


def began_with(ids: Sequence[int] | np.ndarray) -> str:
    """The key of an answer's first tokens."""
    return " ".join(map(str, ids))


def predicted(lengths: dict[str, list[float]], ids: Sequence[int] | np.ndarray) -> float:
    """Tokens of an answer that begins so: the mean of those that shared most of its beginning; without any, 0.

    >>> predicted({"": [4, 9.0], "7": [1, 20.0]}, [7, 3]), predicted({"": [4, 9.0]}, [5]), predicted({}, [5])
    (20.0, 9.0, 0.0)
    """
    for count in range(len(ids), -1, -1):
        if (known := lengths.get(began_with(ids[:count]))) is not None:
            return float(known[1])
    return 0.0


@block
@asks_engine(keyed_samples=True)
async def in_places(
    *,
    request: RolloutRequest,
    rollout: RolloutContext,
    places: int = 32,
    schedule: Schedule = "planned",
    prefix: int = 3,
    error: float = 0.05,
    stop: tuple[str, ...] = ("</answer>",),
) -> str:
    """One turn as in `single`, sampled when there is a place for it; without `lengths` in the request's help, at once.

    Its random numbers are its own, whatever the schedule: a turn that is sampled in two parts is that of one part.
    """
    context = rollout.policy.begin(request.task.prompt)
    rng_key = int(rollout.random("turn").integers(2**63))
    lengths = request.help.get("lengths")
    first, second = await rollout.once("places", partial(both_parts, places, schedule, error))
    longest, text, drawn, over = rollout.sampling.max_tokens, "", 0, False
    if schedule == "planned" and lengths is not None:
        async with first.one():
            while not over and (not drawn or ends_in_part_of(stop, text)):  # a stop that the rest would not see
                most = prefix if not drawn else 1
                turn = await context.sample(
                    stop=stop,
                    max_tokens=most if longest is None else min(most, longest - drawn),
                    shared_rng_key=random_keys.skipped(rng_key, drawn),
                )
                text, drawn = text + turn.text, len(rollout.response_ids(context.at))
                over = turn.status != "length" or drawn == longest or text.endswith(stop)
    if not over:
        left = predicted(lengths or {}, rollout.response_ids(context.at)[:prefix]) - drawn
        async with nullcontext() if lengths is None or schedule == "whole" else second.one(left):
            turn = await context.sample(
                stop=stop,
                max_tokens=None if longest is None else longest - drawn,
                shared_rng_key=random_keys.skipped(rng_key, drawn),
            )
        text += turn.text
    context.close()
    return last_between(text, "answer", text.strip())


async def both_parts(places: int, schedule: Schedule, error: float) -> tuple[Places, Places]:
    """The places of a step for first tokens, and those for the rest, which waits until all first tokens are there."""
    second = Places(places, schedule, error)
    return Places(places, "refill", then=second), second


@dataclass(eq=False)
class Places:
    """So many sequences at once: who waits, and who is next.

    then  the places of a second part, which is planned when nobody is in this one any more
    """

    count: int
    schedule: Schedule
    error: float = 0.05
    then: Places | None = None
    open: int = 0  # places that are left, of this round where there are rounds
    ready: bool = True  # nobody is in the part before this one
    running: dict[asyncio.Future[None], int] = field(default_factory=dict[asyncio.Future[None], int])  # who is where
    waiting: list[Waiting] = field(default_factory=list[Waiting])
    hands: list[list[Waiting]] = field(default_factory=list[list[Waiting]])  # of each place: who is to have it, planned

    @asynccontextmanager
    async def one(self, length: float = 0.0) -> AsyncGenerator[None]:
        """A place inside the `with`; length: for how long it is likely needed."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append((max(length, 1.0), turn))  # longer than foretold already: likely over soon
        self._tell()
        self.admit()
        try:
            await turn
            yield
        finally:
            self.running.pop(turn, None)
            for own in (self.waiting, *self.hands):
                own[:] = [w for w in own if w[1] is not turn]
            self._tell()
            self.admit()

    def _tell(self) -> None:
        """Tell the second part whether anybody is in this one."""
        if self.then is not None:
            self.then.ready = not (self.waiting or self.running)
            self.then.admit()

    def admit(self) -> None:
        """Let in who is next."""
        if self.schedule == "planned":
            if not self.ready:
                return
            if self.waiting:
                self._plan()
            while any(self.hands) and (free := set(range(self.count)) - set(self.running.values())):
                place = min(free, key=lambda k: (not self.hands[k], k))
                own = self.hands[place] or max(self.hands, key=lambda h: sum(length for length, _ in h))
                self._let_in(own.pop(0)[1], place)
            return
        if self.schedule == "refill" or not self.running:
            self.open = self.count - len(self.running)
        while self.waiting and self.open:
            self.open -= 1
            self._let_in(self.waiting.pop(0)[1], len(self.running))

    def _plan(self) -> None:
        """Deal all who wait to the places so that all are done at about the same time, the shortest first in each."""
        everyone = [*self.waiting, *(w for hand in self.hands for w in hand)]
        self.waiting.clear()
        dealt_to = dealt([length for length, _ in everyone], self.count, self.error)
        self.hands = [sorted((everyone[i] for i in own), key=lambda w: w[0]) for own in dealt_to]

    def _let_in(self, turn: asyncio.Future[None], place: int) -> None:
        self.running[turn] = place
        if not turn.done():
            turn.set_result(None)


def dealt(lengths: Sequence[float], hands: int, error: float = 0.05) -> list[list[int]]:
    """Sequences dealt to hands so that the longest sum of lengths is small: the indices of each hand.

    Halves of the hands get sums as near to half of all as can be, and so on. Which sums a half can have is found by
    dynamic programming over lengths rounded to error / n of their sum (Sahni 1976, for two machines).

    >>> dealt([4, 3, 3, 2, 2, 2], 2)
    [[1, 2, 3], [0, 4, 5]]
    """
    if hands == 1 or not lengths:
        return [list(range(len(lengths))), *([] for _ in range(hands - 1))]
    left = hands // 2
    unit = error * sum(lengths) / len(lengths)
    sizes = [round(length / unit) for length in lengths]
    sums = [1]  # bit t of sums[i]: the first i sizes, some of them, can sum to t
    for size in sizes:
        sums.append(sums[-1] | sums[-1] << size)
    whole = sum(sizes)
    reached = (t for t in range(whole + 1) if sums[-1] >> t & 1)
    rest = min(reached, key=lambda t: max(t / left, (whole - t) / (hands - left)))
    first = list[int]()
    for i in reversed(range(len(sizes))):
        if not sums[i] >> rest & 1:
            first.append(i)
            rest -= sizes[i]
    first.reverse()
    halves = (first, left), ([i for i in range(len(lengths)) if i not in set(first)], hands - left)
    return [[own[i] for i in hand] for own, n in halves for hand in dealt([lengths[i] for i in own], n, error)]


LARGE = {"groups": 4, "rollouts": 32}

infinite_sampling.claim = Claim(
    (
        # lengths differ, so that rounds wait
        premise("sum:engine/steps", "rounds", "whole", scale="ratio", by=0.5, fails_at=1e9),
        mechanism("mean:engine/peak_tokens", "self", "whole", relation="<", scale="ratio", by=0.3, fails_at=0.0),
        mechanism("sum:engine/steps", "refill", "rounds", relation="<", scale="ratio", by=0.25, fails_at=0.0),
        outcome("sum:engine/steps", "self", "rounds", relation="<", scale="ratio", by=0.25, fails_at=0.0),
        outcome("sum:engine/steps", "self", "refill", relation="<", scale="ratio", by=0.02, fails_at=0.0),
        outcome("accuracy", "self", "whole", relation="~", by=0.001, fails_at=0.5),  # the same texts, the same steps
    ),
    arms={name: ("infinite_sampling", {**LARGE, "schedule": name}) for name in ("whole", "rounds", "refill")},
    args=LARGE,
    regime="verbose",
    idea=("main.program.main",),
    because="the answers of a group need not be in the cache at once to be compared, and an early end frees a place",
)
