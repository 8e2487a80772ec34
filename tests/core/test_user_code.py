"""Code that is not ours raises, exits, hangs, blocks and lies: each costs its own call, whatever it was called for."""

from __future__ import annotations

import asyncio
import concurrent.futures
import sys
import time
from typing import Any

import pytest
from support.episodes import scripted_context
from support.models import TAGS
from support.scores import ask, group_of

from selfteach.core import BadValue, Block, RolloutRequest, Task
from selfteach.core.errors import UserCodeFailed, describe
from selfteach.core.threads import NOT_CARRIED, BackgroundLoop, guarded, run_in_thread
from selfteach.loop.episode import play
from selfteach.model.tokenizer import train_tokenizer


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


class Bare(BaseException):
    pass


RAISED = [
    ValueError("no"),
    SystemExit("x"),
    SystemExit(0),
    KeyboardInterrupt("k"),
    asyncio.CancelledError(),
    concurrent.futures.CancelledError(),
    GeneratorExit(),
    StopIteration(3),
    StopAsyncIteration(),
    RecursionError(),
    MemoryError(),
    TimeoutError("mine"),
    Unprintable(),
    Bare("b"),
    BaseExceptionGroup("many", [SystemExit(1)]),
]
IDS = [type(e).__name__ + str(i) for i, e in enumerate(RAISED)]
# In a coroutine on the run's own loop KeyboardInterrupt is Ctrl-C, and has to pass.
RAISED_ASYNC = [e for e in RAISED if not isinstance(e, KeyboardInterrupt)]


def third_raises(error: BaseException) -> Any:
    def raises(*, text: str) -> float:
        if text == "2":
            raise error
        return float(text)

    return raises


@pytest.mark.parametrize("error", RAISED, ids=IDS)
def test_a_reward_that_raises_costs_its_own_score(error: BaseException) -> None:
    scores = ask(Block(third_raises(error)))
    assert [s.value for s in scores] == [0, 1, None, 3]
    assert scores[2].error is not None and type(error).__name__ in scores[2].error and "\n" not in scores[2].error


@pytest.mark.parametrize("error", RAISED_ASYNC, ids=lambda e: type(e).__name__)
def test_an_async_reward_that_raises_costs_its_own_score(error: BaseException) -> None:
    async def raises(*, text: str) -> float:
        await asyncio.sleep(0)
        return third_raises(error)(text=text)

    async def with_context(*, text: str, context: Any) -> float:
        return third_raises(error)(text=text)

    for reward in (raises, with_context):
        scores = ask(Block(reward))
        assert [s.value for s in scores] == [0, 1, None, 3]
        assert scores[2].error is not None and type(error).__name__ in scores[2].error


@pytest.mark.parametrize("error", RAISED_ASYNC, ids=lambda e: type(e).__name__)
def test_a_group_reward_that_raises_costs_its_groups_scores(error: BaseException) -> None:
    async def raises(*, group: Any) -> Any:
        raise error

    def blocks(*, group: Any) -> Any:
        raise error

    for reward in (raises, blocks):
        assert [s.value for s in ask(Block(reward))] == [None] * 4


def test_an_async_reward_that_blocks_its_loop_costs_its_own_score_and_no_more_than_its_deadline() -> None:
    async def blocks(*, text: str) -> float:
        if text == "1":
            time.sleep(30)
        return float(text)

    started = time.monotonic()
    scores = ask(Block(blocks), deadline=0.3)
    assert [s.value for s in scores] == [0, None, 2, 3] and "no score within 0.3 s" in (scores[1].error or "")
    assert time.monotonic() - started < 5


def test_what_a_program_raises_costs_its_episode() -> None:
    tokenizer = train_tokenizer(["a b"], TAGS)

    def program(error: BaseException) -> Block:
        async def raises(*, request: Any, rollout: Any) -> str:
            if rollout.number == 1:
                raise error
            context = rollout.policy.begin("a")
            await context.sample()
            context.close()
            return "b"

        return Block(raises)

    for error in RAISED_ASYNC:
        table = scripted_context(program(error), lambda *a: "b", tokenizer)
        (group,) = asyncio.run(play(table, [RolloutRequest(Task("t", "a"), 3)]))
        assert [e.status == "error" for e in group.episodes] == [False, True, False]
        assert type(error).__name__ in group.episodes[1].why
        assert all(e.answer == "b" for i, e in enumerate(group.episodes) if i != 1)


@pytest.mark.parametrize("error", RAISED, ids=IDS)
def test_a_tool_in_a_thread_gives_back_an_exception_that_a_loop_survives(error: BaseException) -> None:
    def raises() -> None:
        raise error

    async def call() -> Any:
        return await run_in_thread(raises)

    with pytest.raises(Exception) as caught:
        asyncio.run(call())
    passes = isinstance(error, Exception) and not isinstance(error, NOT_CARRIED)
    assert isinstance(caught.value, type(error) if passes else UserCodeFailed)


def test_a_cancellation_from_outside_and_ctrl_c_pass() -> None:
    async def deadline() -> None:
        await asyncio.wait_for(guarded(asyncio.sleep(10)), 0.01)

    with pytest.raises(TimeoutError):
        asyncio.run(deadline())

    async def interrupted() -> None:
        async def stop() -> None:
            raise KeyboardInterrupt

        await guarded(stop())

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(interrupted())


def test_where_it_was_raised_is_said() -> None:
    async def leaves() -> None:
        sys.exit(3)

    with pytest.raises(UserCodeFailed, match=r"SystemExit: 3 \(test_user_code.py:\d+, leaves\)"):
        asyncio.run(guarded(leaves()))


def test_a_background_loop_is_shared_until_one_blocks_it() -> None:
    loop = BackgroundLoop()

    async def which() -> int:
        return id(asyncio.get_running_loop())

    async def blocks() -> None:
        time.sleep(3)

    async def slow() -> str:
        await asyncio.sleep(0.2)
        return "done"

    async def main() -> tuple[int, int, int, str]:
        first, second = await loop.run(which), await loop.run(which)
        kept = asyncio.create_task(loop.run(slow))
        with pytest.raises(TimeoutError):
            await loop.run(asyncio.sleep, 5, seconds=0.05)  # waits, and lets others work: the loop stays
        assert await loop.run(which) == first
        assert await kept == "done"
        with pytest.raises(TimeoutError):
            await loop.run(blocks, seconds=0.05)
        return first, second, await loop.run(which), "done"

    first, second, after, _ = asyncio.run(main())
    assert first == second != after


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("a\nb  c"), "ValueError: a b c"),
        (KeyError(), "KeyError"),
        (Unprintable(), "Unprintable: (its message cannot be shown: __str__ raised RuntimeError)"),
        (BadValue("x" * 600), "BadValue: " + "x" * 487 + "..."),
    ],
)
def test_an_exception_in_one_line(error: BaseException, text: str) -> None:
    assert describe(error) == text


def test_the_order_of_scores_is_that_of_the_group_however_many_fail() -> None:
    def raises(*, text: str) -> float:
        raise SystemExit(text)

    scores = ask(Block(raises), group_of(6))
    assert [s.error and s.error[-1] for s in scores] == list("012345")
