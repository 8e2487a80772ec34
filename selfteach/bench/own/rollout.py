"""Our engine at the works of `bench rollout`: equal lengths, uneven ones, episodes of many turns, forks."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...core.task import Sampling
from ...engine import BuiltinEngine
from ...loop.assemble import RunSettings
from ...model import files
from ...model.tokenizer import Tokenizer

Given = Mapping[str, Any]


def prepare(work: Given) -> tuple[dict[str, Any], Callable[[Given], dict[str, Any]]]:
    """work: part, folder, variant (float32 or bfloat16), slots, length of a context, and what its part reads."""
    torch.set_num_threads(work["threads"])
    side = Side(work)
    run = {
        "fixed": side.fixed,
        "uneven": side.uneven,
        "batches": side.batches,
        "turns": side.turns,
        "forks": side.forks,
    }[work["part"]]
    return {"dtype": work["variant"], "batch_invariant": side.engine.batch_invariant, "slots": side.slots}, run


class Side:
    """An engine whose sequences never end by themselves, and the works it does."""

    def __init__(self, work: Given):
        self.work = work
        folder = Path(work["folder"])
        tokenizer = Tokenizer.load(folder)
        model = files.load_model(folder)
        tokenizer.ends, tokenizer.end = (model.c.vocab,), model.c.vocab  # an id that is never drawn
        self.slots = work["slots"] or min(work["width"], RunSettings().slots)
        self.engine = BuiltinEngine(
            {"w": model},
            {"policy": "w"},
            tokenizer,
            slots=self.slots,
            length=work["length"],
            dtype=getattr(torch, work["variant"]),
        )
        self.asked = 0
        self.loop = asyncio.new_event_loop()

    async def all(self, prompts: Sequence[Any], lengths: Sequence[int]) -> list[np.ndarray]:
        """The ids drawn after each prompt, at addresses never used before."""
        first, self.asked = self.asked, self.asked + len(prompts)
        asked = [
            self.engine.generate("policy", np.asarray(p, np.int32), Sampling(max_tokens=n), first + i)
            for i, (p, n) in enumerate(zip(prompts, lengths, strict=True))
        ]
        return [c.ids for c in await asyncio.gather(*asked)]

    def timed(self, work: Coroutine[Any, Any, Any]) -> tuple[float, Any]:
        start = time.perf_counter()
        found = self.loop.run_until_complete(work)
        return time.perf_counter() - start, found

    def fixed(self, given: Given) -> dict[str, Any]:
        """Every sequence draws `new` tokens."""
        prompts = given["prompts"]
        seconds, drawn = self.timed(self.all(prompts, [self.work["new"]] * len(prompts)))
        return {"seconds": seconds, "tokens": sum(map(len, drawn))}

    def uneven(self, given: Given) -> dict[str, Any]:
        """Every sequence as long as it happens to be; who is finished leaves and another begins."""
        seconds, drawn = self.timed(self.all(given["prompts"], given["lengths"]))
        return {"seconds": seconds, "tokens": sum(map(len, drawn))}

    def batches(self, given: Given) -> dict[str, Any]:
        """The same in fixed batches of `slots`, each of which runs to its longest sequence; only the tokens that are
        wanted count.
        """
        seconds, n = 0.0, self.slots
        for at in range(0, len(given["prompts"]), n):
            part = given["prompts"][at : at + n]
            longest = max(given["lengths"][at : at + n])
            seconds += self.timed(self.all(part, [longest] * len(part)))[0]
        return {"seconds": seconds, "tokens": sum(given["lengths"])}

    def turns(self, given: Given) -> dict[str, Any]:
        """`width` episodes side by side, each of `turns` turns: some tokens come from outside, some are drawn.

        Cost of every turn.
        """
        w = self.work
        contexts = [list(p) for p in given["prompts"]]
        before = self.engine.counts["prefilled"] + self.engine.counts["generated"]
        episodes, prompt, seen = len(contexts), len(contexts[0]), len(given["seen"][0])
        took: list[float] = []
        for turn in range(w["turns"]):
            seconds, drawn = self.timed(self.all(contexts, [w["new"]] * len(contexts)))
            took.append(seconds)
            for i, context in enumerate(contexts):
                context += [*drawn[i].tolist(), *given["seen"][turn]]
        # A token is drawn from the row of the one before it, so the first of a turn needs no row besides those of what
        # came in.
        computed = self.engine.counts["prefilled"] + self.engine.counts["generated"] - before - episodes * w["turns"]
        needed = episodes * (
            prompt + w["turns"] * (w["new"] + seen) - seen - 1
        )  # what stands after the last row is never read
        tenth = max(1, w["turns"] // 10)
        ends = {"seconds/first turns": took[1 : tenth + 1], "seconds/last turns": took[-tenth:]}
        told = {name: statistics.median(times) for name, times in ends.items()}
        return {
            "seconds": sum(took),
            "tokens": episodes * w["turns"] * w["new"],
            "computed_over_needed": computed / needed,
            **told,
        }

    def forks(self, given: Given) -> dict[str, Any]:
        """One trunk, then `width` continuations of it by one token, and by one token each of a fresh trunk for
        comparison.
        """
        trunk = given["prompts"][0]
        counts = self.engine.counts
        alone, _ = self.timed(self.all([trunk], [1]))
        copied, prefilled = counts["copied"], counts["prefilled"]
        together, _ = self.timed(self.all([trunk] * self.work["width"], [1] * self.work["width"]))
        width = self.work["width"]
        return {
            "seconds": together,
            "tokens": width,
            "seconds/trunk": alone,
            "seconds/fork": together / width,
            "copied_per_fork": (counts["copied"] - copied) / width,
            "prefilled_per_fork": (counts["prefilled"] - prefilled) / width,
        }
