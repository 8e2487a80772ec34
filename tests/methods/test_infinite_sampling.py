"""Infinite Sampling by hand: who gets a place when, how lengths are foretold and dealt, and that the step stays."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import numpy as np
import pytest
from support.battery import of
from support.episodes import single_turn_group
from support.loops import advance, bandit, equal, loop_of, weights_of

from selfteach.core import History
from selfteach.methods.infinite_sampling import Places, both_parts, dealt, in_places, predicted, with_lengths


def played(places: Places, lengths: list[int]) -> list[tuple[int, int]]:
    """When each sequence begins and ends, in steps, where each needs as many as it is long."""
    out, clock = [(0, 0)] * len(lengths), [0]
    left: dict[int, int] = {}

    async def sequence(i: int) -> None:
        async with places.one(float(lengths[i])):
            begun, left[i] = clock[0], lengths[i]
            while left[i]:
                await asyncio.sleep(0)
            out[i] = (begun, clock[0])

    async def go() -> None:
        places.ready = False  # first tokens are still to come
        tasks = [asyncio.ensure_future(sequence(i)) for i in range(len(lengths))]
        await asyncio.sleep(0)
        places.ready = True
        places.admit()
        while not all(t.done() for t in tasks):
            for _ in range(4 * len(lengths)):
                await asyncio.sleep(0)
            assert sum(n > 0 for n in left.values()) <= places.count
            for i in left:
                left[i] -= left[i] > 0
            clock[0] += 1
        await asyncio.gather(*tasks)

    asyncio.run(go())
    return out


def test_rounds_wait_for_their_longest_and_a_refilled_place_does_not():
    lengths = [5, 1, 1, 5, 1, 1]
    # two at a time: rounds of (5, 1), (1, 5), (1, 1) take 5 + 5 + 1
    assert [begun for begun, _ in played(Places(2, "rounds"), lengths)] == [0, 0, 5, 5, 10, 10]
    # refilled: the second place takes 1, 1 and the 5; the first then 1 and 1
    assert [begun for begun, _ in played(Places(2, "refill"), lengths)] == [0, 0, 1, 2, 5, 6]


def test_a_plan_ends_at_the_same_time_everywhere_and_begins_with_what_is_short():
    lengths = [5, 1, 1, 5, 1, 1]
    times = played(Places(2, "planned"), lengths)
    assert max(end for _, end in times) == 7  # each place: 1, 1 and then a 5, which refilling by chance ends no sooner
    assert sorted(begun for begun, _ in times) == [0, 0, 1, 1, 2, 2] and {times[0][0], times[3][0]} == {2}
    # a place whose sequences are over takes from the fullest: foretold 4 each, and one is over at once
    places = Places(2, "planned")
    assert max(end for _, end in played(places, [4, 4, 4, 4])) == 8


def test_answers_that_are_longer_than_foretold_have_their_turn_too():
    async def go() -> None:
        places, done = Places(2, "planned"), list[int]()
        places.ready = False

        async def sequence(i: int) -> None:
            async with places.one(-1.0 - i):  # foretold tokens less those that are there
                await asyncio.sleep(0)
                done.append(i)

        tasks = [asyncio.ensure_future(sequence(i)) for i in range(5)]
        await asyncio.sleep(0)
        places.ready = True
        places.admit()
        async with asyncio.timeout(5):
            await asyncio.gather(*tasks)
        assert sorted(done) == list(range(5))

    asyncio.run(go())


def test_the_rest_is_planned_when_all_first_tokens_are_there():
    order = list[str]()

    async def sequence(name: str, first: Places, second: Places, length: float) -> None:
        async with first.one():
            await asyncio.sleep(0)
            order.append(f"first {name}")
        async with second.one(length):
            order.append(f"rest {name}")
            await asyncio.sleep(0)

    async def go() -> None:
        first, second = await both_parts(1, "planned", 0.05)
        await asyncio.gather(*(sequence(n, first, second, length) for n, length in (("a", 9), ("b", 2), ("c", 5))))

    asyncio.run(go())
    assert order[:3] == ["first a", "first b", "first c"] and order[3:] == ["rest b", "rest c", "rest a"]


def test_who_is_cancelled_gives_the_place_back():
    async def go() -> None:
        places = Places(1, "refill")

        async def hold() -> None:
            async with places.one():
                await asyncio.sleep(60)

        one, two = asyncio.ensure_future(hold()), asyncio.ensure_future(hold())
        await asyncio.sleep(0)
        two.cancel()
        one.cancel()
        await asyncio.gather(one, two, return_exceptions=True)
        async with asyncio.timeout(5), places.one():
            assert len(places.running) == 1 and not places.waiting

    asyncio.run(go())


def test_hands_are_nearly_as_even_as_they_can_be():
    draw = np.random.default_rng(0)
    for _ in range(20):
        lengths = draw.integers(1, 50, 9).tolist()
        best = min(
            max(sum(lengths[i] for i in range(9) if side[i] == k) for k in (0, 1))
            for side in itertools.product((0, 1), repeat=9)
        )
        hands = dealt(lengths, 2, error=0.05)
        assert sorted(i for hand in hands for i in hand) == list(range(9))
        assert max(sum(lengths[i] for i in hand) for hand in hands) <= 1.05 * best + 1e-9
    assert dealt([], 3) == [[], [], []] and sorted(map(len, dealt([1.0] * 7, 3))) == [2, 2, 3]


def test_a_length_is_foretold_by_answers_that_began_so():
    call: dict[str, Any] = {"n": 0, "rollouts": 2, "source": None, "seed": 0, "prefix": 2}
    group = single_turn_group([(7, 1, 1, 1), (7, 2), (8,)], [1.0, 0.0, 0.0])
    _, state = with_lengths(finished_rounds=[[group]], state={"asked": 0, "lengths": {}}, **call)
    lengths = state["lengths"]
    assert lengths["7"] == [2, 3.0] and lengths["7 1"] == [1, 4.0] and lengths["8"] == [1, 1.0]
    assert predicted(lengths, [7, 1]) == 4.0 and predicted(lengths, [7, 9]) == 3.0  # of what it shares most with
    assert predicted(lengths, [9]) == pytest.approx(7 / 3) and predicted({}, [9]) == 0.0
    many = {"asked": 0, "lengths": {"7": [1000, 10.0]}}
    _, later = with_lengths(finished_rounds=[[single_turn_group([(7,)], [1.0])]], state=many, **call)
    assert later["lengths"]["7"][1] == pytest.approx(10 - 0.05 * 9)  # a mean goes on moving


@pytest.mark.parametrize("schedule", ["rounds", "refill", "planned"])
def test_every_schedule_samples_the_same_texts_and_takes_the_same_step(schedule: str, letters: Any):
    prompt = bandit(paid="spread").stage

    def run(name: str) -> tuple[Any, dict[str, Any]]:
        made = of("infinite_sampling", groups=4, rollouts=8, places=4, prefix=2, schedule=name)
        loop = loop_of(made.replace(reward=prompt.reward), letters, max_tokens=12)
        return weights_of(loop), {**advance(loop, 2)[1], "weights": weights_of(loop)}

    (begin, whole), (_, other) = run("whole"), run(schedule)
    assert equal(whole["weights"], other["weights"]) and not equal(begin, whole["weights"])
    assert other["engine/peak_tokens"] < 0.3 * whole["engine/peak_tokens"]  # 4 of 32 at once
    assert other["engine/steps"] > whole["engine/steps"]


def test_evaluations_wait_for_nobody():
    assert of("infinite_sampling").eval_program(of("infinite_sampling").stage).name == in_places().name
    assert History()  # their requests hold no lengths: see in_places
