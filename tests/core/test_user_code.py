"""Code that is not ours raises, exits, hangs, blocks and lies: each costs its own call, whatever it was called for."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
from support.episodes import scripted_context
from support.models import TAGS
from support.raised import IDS, RAISED, Unprintable
from support.scores import Reader, ask, group_of

from selfteach.core import BadValue, Block, RolloutRequest, Task, threads
from selfteach.core.errors import UserCodeFailed, describe
from selfteach.core.scoring import score
from selfteach.core.threads import BackgroundLoop, call_user
from selfteach.core.user_code import NOT_CARRIED, guarded, on_run_loop
from selfteach.loop.episode import play
from selfteach.model.tokenizer import train_tokenizer

# In a program, a coroutine on the run's own loop, KeyboardInterrupt is Ctrl-C, and has to pass.
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


@pytest.mark.parametrize("error", RAISED, ids=IDS)
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


@pytest.mark.parametrize("error", RAISED, ids=IDS)
def test_a_group_reward_that_raises_costs_its_groups_scores(error: BaseException) -> None:
    async def raises(*, group: Any) -> Any:
        raise error

    def blocks(*, group: Any) -> Any:
        raise error

    for reward in (raises, blocks):
        assert [s.value for s in ask(Block(reward))] == [None] * 4


async def blocks_one(*, text: str) -> float:
    if text == "1":
        time.sleep(30)
    return float(text)


async def blocks_one_with_context(*, text: str, context: Any) -> float:
    return await blocks_one(text=text)


async def blocks_for_a_group(*, group: Any) -> Any:
    time.sleep(30)


@pytest.mark.parametrize(
    ("reward", "values"),
    [
        (blocks_one, [0, None, 2, 3]),
        (blocks_one_with_context, [0, None, 2, 3]),
        (blocks_for_a_group, [None] * 4),
    ],
)
def test_an_async_reward_that_blocks_its_loop_costs_its_own_scores_and_no_more_than_its_deadline(
    reward: Any, values: list[float | None]
) -> None:
    started = time.monotonic()
    scores = ask(Block(reward), deadline=0.3)
    assert [s.value for s in scores] == values and "no score within 0.3 s" in (scores[1].error or "")
    assert time.monotonic() - started < 5


def test_an_async_reward_that_asks_the_engine_does_so_on_the_runs_loop() -> None:
    loops: list[Any] = []

    class Engine:
        groups = ("policy",)

        async def score(self, text: str) -> float:
            await asyncio.sleep(0)
            loops.append(asyncio.get_running_loop())
            return float(text)

    class Context(Reader):
        engine = Engine()

    async def likelihood(*, text: str, context: Any) -> float:
        assert context.engine.groups == ("policy",) and asyncio.get_running_loop() not in loops
        return 10 * await context.engine.score(text)

    async def likelihoods(*, group: Any, context: Any) -> Any:
        leaves = [t.leaf for e in group.episodes for t in e.trajectories]
        return {"reward": {leaf: await likelihood(text=context.text(leaf), context=context) for leaf in leaves}}

    async def main(reward: Block) -> list[float | None]:
        scores = await score(reward, [group_of()], Context(), 5.0)
        assert set(loops) == {asyncio.get_running_loop()}
        return [s.value for s in scores["reward"].values()]

    for reward in (likelihood, likelihoods):
        loops.clear()
        assert asyncio.run(main(Block(reward))) == [0, 10, 20, 30]


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
def test_a_tool_gives_back_an_exception_that_a_loop_survives(error: BaseException) -> None:
    def raises() -> None:
        raise error

    async def raises_async() -> None:
        raise error

    @on_run_loop
    def raises_at_once() -> None:
        raise error

    at_once = () if isinstance(error, KeyboardInterrupt) else (raises_at_once,)  # there Ctrl-C passes
    for tool in (raises, raises_async, *at_once):
        with pytest.raises(Exception) as caught:
            asyncio.run(call_user(tool, None))
        passes = isinstance(error, Exception) and not isinstance(error, NOT_CARRIED)
        # RuntimeError is what Python makes of a StopIteration in a coroutine
        assert isinstance(caught.value, type(error) if passes else UserCodeFailed | RuntimeError)


def test_every_call_in_a_thread_comes_back_however_many_end_at_once() -> None:
    def slow(i: int) -> int:
        time.sleep(i % 3 * 0.001)
        return i

    async def caller(i: int) -> list[int]:
        return [await call_user(slow, 10.0, 100 * i + n) for n in range(30)]

    async def all_of_them() -> list[list[int]]:
        return await asyncio.gather(*map(caller, range(40)))

    assert asyncio.run(all_of_them()) == [[100 * i + n for n in range(30)] for i in range(40)]


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
        first, second = await loop.run(which, None), await loop.run(which, None)
        kept = asyncio.create_task(loop.run(slow, None))
        with pytest.raises(TimeoutError):
            await loop.run(asyncio.sleep, 0.05, 5)  # waits, and lets others work: the loop stays
        assert await loop.run(which, None) == first
        assert await kept == "done"
        with pytest.raises(TimeoutError):
            await loop.run(blocks, 0.05)
        return first, second, await loop.run(which, None), "done"

    first, second, after, _ = asyncio.run(main())
    assert first == second != after


def test_threads_of_users_calls_have_ended_when_the_process_does() -> None:
    code = """
import asyncio, atexit, threading
atexit.register(lambda: print([t.name for t in threading.enumerate() if t.daemon]))  # after those registered later
from selfteach.core.threads import background, call_user
async def waits():
    try:
        await asyncio.sleep(600)
    finally:
        print("closed")
async def main():
    for fn in (waits, int):
        try:
            print(await call_user(fn, 0.2))
        except TimeoutError:
            pass
    asyncio.run_coroutine_threadsafe(waits(), background._running().loop)
    await call_user(asyncio.sleep, None, 0)  # that has begun
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.stdout.split() == ["closed", "0", "closed", "[]"] and not done.stderr


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


def test_results_of_threads_that_come_together_wake_the_loop() -> None:
    """A thread can be stopped between leaving its result and looking whether the loop is awake, and another come."""
    returns, wakes, delivered = threads._Returns(), list[Any](), list[str]()
    loop: Any = SimpleNamespace(call_soon_threadsafe=wakes.append)

    class Interrupted(deque[Any]):
        def append(self, settle: Any) -> None:
            super().append(settle)
            if len(self) == 1:
                returns.put(loop, lambda: delivered.append("other"))

    returns.waiting = Interrupted()
    returns.put(loop, lambda: delivered.append("one"))
    for wake in wakes:
        wake()
    assert delivered == ["one", "other"]
    returns.put(loop, lambda: delivered.append("next"))
    assert len(wakes) > 1  # once it has looked, what comes wakes it again
