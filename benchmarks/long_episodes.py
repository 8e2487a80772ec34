"""What a turn costs in an episode of hundreds of turns: the whole context kept, or rebuilt each round from a report.

    python benchmarks/long_episodes.py --turns 200 --json

One episode of a random model, a turn of 24 sampled tokens and a result of 40, as the programs `search_agent` (the whole
context) and `research_rounds` (question, report, last query and result) go about it. Of each tenth of the episode:
processor milliseconds of a turn, the tokens in its context, those computed anew before it samples (the others stand in
the engine's cache), and the process's memory. What attention must is shown beside: the same 24 tokens sampled after a
context of that length which is in the cache already, without an episode around them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import time
from typing import Any

import numpy as np
import torch

from selfteach.core import Block, RolloutContext, RolloutRequest, Sampling, Task, block
from selfteach.engine.builtin import BuiltinEngine
from selfteach.loop.episode import play
from selfteach.loop.step_context import EpisodeLimits, StepContext
from selfteach.model.tokenizer import Tokenizer, train_tokenizer
from selfteach.model.transformer import Config, Transformer

SAMPLED, RESULT, QUESTION = 24, 40, 30
TENTHS = 10

rows: list[dict[str, float]] = []


def noted(engine: BuiltinEngine, begun: float, before: int, length: int, sampled: int) -> None:
    """Keep what a turn cost."""
    rows.append(
        {
            "sampled": sampled,
            "ms": 1000 * (time.process_time() - begun),
            "context": length,
            "computed": engine.counts["prefilled"] - before,
            "mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }
    )


def program_of(engine: BuiltinEngine, turns: int, whole: bool) -> Block:
    """A program of so many turns, in one context or in one that is rebuilt."""

    @block
    async def long_episode(*, request: RolloutRequest, rollout: RolloutContext) -> None:
        draw = rollout.random("results")
        words = lambda n: draw.integers(20, 280, n).astype(np.int32)  # noqa: E731
        question = words(QUESTION)
        context = rollout.policy.begin(question)
        for _ in range(turns):
            before, generated = engine.counts["prefilled"], engine.counts["generated"]
            begun = time.process_time()
            turn = await context.sample(max_tokens=SAMPLED)
            noted(engine, begun, before, len(context.ids), engine.counts["generated"] - generated)
            if whole:
                context.append(words(RESULT))
            else:
                said = rollout.response_ids(turn.at)[-SAMPLED:]
                context.close(learn=None)
                context = rollout.policy.begin(np.concatenate([question, said, words(RESULT)]))
        context.close()

    return long_episode()


def make_engine(length: int) -> tuple[BuiltinEngine, Tokenizer]:
    """An engine of a random model whose contexts may be so long."""
    tokenizer = train_tokenizer(["the quick brown fox jumps over the lazy dog."] * 3, [], 320)
    config = Config(
        len(tokenizer), width=128, layers=4, heads=4, kv_heads=2, head_dim=32, hidden=384, max_length=length
    )
    model = Transformer(config).initialise(0)
    return BuiltinEngine({"policy": model}, {"policy": "policy"}, tokenizer, slots=2, length=length), tokenizer


async def sampled_after(engine: BuiltinEngine, length: int) -> float:
    """Milliseconds of sampling a turn's tokens after a context that is in the cache, the best of six."""
    ids = np.random.Generator(np.random.Philox(length)).integers(20, 280, length).astype(np.int32)
    best = float("inf")
    for n in range(7):  # the first puts the context into the cache
        begun = time.process_time()
        turn = await engine.generate("policy", ids, Sampling(max_tokens=SAMPLED), n)
        if n and len(turn.ids) == SAMPLED:
            best = min(best, time.process_time() - begun)
    return 1000 * best


def measure(turns: int, whole: bool) -> list[dict[str, Any]]:
    """A row for each tenth of an episode: medians over its turns."""
    length = QUESTION + turns * (SAMPLED + RESULT) + 64
    engine, tokenizer = make_engine(length)
    limits = EpisodeLimits(tokens=turns * SAMPLED + 1, turns=turns, seconds=3600.0)
    program = program_of(engine, turns, whole)
    step = StepContext(
        engine,
        tokenizer,
        programs={"main": program},
        model_roles=("policy",),
        tools={},
        sampling=Sampling(max_tokens=SAMPLED),
        limits=limits,
    )
    rows.clear()
    task = Task("t", np.zeros(1, np.int32))

    async def carried_out() -> list[float]:
        (group,) = await play(step, [RolloutRequest(task, key="t")])
        assert len(rows) == turns, group.episodes[0].why
        each = turns // TENTHS
        ends = [rows[n * each + each // 2]["context"] for n in range(TENTHS)]
        return [await sampled_after(engine, int(end) - SAMPLED) for end in ends]

    must = asyncio.run(carried_out())
    out = list[dict[str, Any]]()
    for n in range(TENTHS):
        whole_part = rows[n * (turns // TENTHS) : (n + 1) * (turns // TENTHS)]
        part = [row for row in whole_part if row["sampled"] == SAMPLED] or whole_part  # few end sooner
        middle = {name: float(np.median([row[name] for row in part])) for name in part[0]}
        out.append({"turns": f"{n * turns // TENTHS + 1} to {(n + 1) * turns // TENTHS}", **middle, "must_ms": must[n]})
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = {name: measure(given.turns, whole) for name, whole in (("rebuilt", False), ("whole", True))}
    if given.json:
        print(json.dumps(found))
        return
    for name, table in found.items():
        print(f"{name}: turns, ms of a turn (of sampling alone), tokens of context, computed anew, MB")
        for row in table:
            must = f"{row['ms']:7.1f} ({row['must_ms']:.1f})"
            print(f"  {row['turns']:>10} {must} {row['context']:7.0f} {row['computed']:5.0f} {row['mb']:6.0f}")


if __name__ == "__main__":
    main()
