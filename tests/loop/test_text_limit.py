"""Text of tools and tasks is bounded before a tokenizer reads it, whichever way it comes in."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest
from support.episodes import scripted_context

from selfteach.core import Block, RolloutRequest, Task
from selfteach.loop.episode import play
from selfteach.loop.metrics_history import summary
from selfteach.loop.step_context import EpisodeLimits
from selfteach.loop.text_limit import CUT, cut, cut_text
from selfteach.model.tokenizer import Tokenizer

LIMIT = 1000
FLOOD = "word " * 4_000_000  # 20 MB


def append(context: Any) -> None:
    context.append(FLOOD)


def adopt(context: Any) -> None:
    context.adopt(FLOOD)


def say(context: Any) -> None:
    context.say("tool", FLOOD)


def say_parts(context: Any) -> None:
    context.say("tool", [{"type": "text", "text": FLOOD}, {"type": "text", "text": FLOOD}])


async def begin(context: Any) -> None:
    context.rollout.policy.begin(FLOOD)


async def begin_messages(context: Any) -> None:
    context.rollout.policy.begin([{"role": "user", "content": FLOOD}])


async def score(context: Any) -> None:
    await context.score(FLOOD)


def played(way: Any, tokenizer: Tokenizer) -> tuple[Any, Any, float]:
    async def main(*, request: RolloutRequest, rollout: Any) -> None:
        context = rollout.policy.begin("q")
        found = way(context)
        if asyncio.iscoroutine(found):
            await found
        context.close()

    context = scripted_context(Block(main), [], tokenizer)
    context = replace(context, limits=EpisodeLimits(characters=LIMIT))
    started = time.process_time()
    group = asyncio.run(play(context, [RolloutRequest(Task("t", "q"), key="t")]))[0]
    return group, group.episodes[0], time.process_time() - started


@pytest.mark.parametrize("way", [append, adopt])
def test_what_a_tool_says_beyond_any_context_is_cut_and_counted(way: Any, tags: Tokenizer) -> None:
    group, episode, seconds = played(way, tags)
    assert episode.status != "error", episode.why
    assert episode.cost[CUT] == len(FLOOD) - LIMIT == summary([group])[f"rollout/{CUT}"]
    assert episode.tree.size(1) <= LIMIT and seconds < 5


@pytest.mark.parametrize("way", [begin, begin_messages, score])
def test_what_is_to_be_read_whole_is_refused(way: Any, tags: Tokenizer) -> None:
    _, episode, seconds = played(way, tags)
    assert episode.status == "error" and f"characters, and no more than {LIMIT}" in episode.why
    assert seconds < 5


@pytest.mark.parametrize("way", [say, say_parts])
def test_a_message_is_cut_before_its_template_is_rendered(way: Any, tags: Tokenizer) -> None:
    _, episode, seconds = played(way, tags)  # which has no template
    assert "no chat template" in episode.why and episode.cost[CUT] >= len(FLOOD) - LIMIT and seconds < 5


def test_a_message_of_parts_has_one_limit_and_what_fits_is_untouched() -> None:
    cost: dict[str, float] = {}
    value = [{"text": "a" * 30}, {"text": "b" * 30, "n": 3}]
    assert cut(value, 60, cost) == value and cut_text([cost]) == {}
    assert cut(value, 40, cost) == [{"text": "a" * 30}, {"text": "b" * 10, "n": 3}] and cost[CUT] == 20
