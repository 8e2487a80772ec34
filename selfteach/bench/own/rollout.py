"""Selfteach's engine in the workloads of `bench rollout`: equal lengths, uneven ones, multi-turn episodes, forks."""

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

Json = Mapping[str, Any]


def prepare(workload: Json) -> tuple[dict[str, Any], Callable[[Json], dict[str, Any]]]:
    """workload: its name as `workload`, folder, variant (float32 or bfloat16), slots, length of a context ..."""
    torch.set_num_threads(workload["threads"])
    bench = EngineBench(workload)
    run = {
        "fixed": bench.fixed,
        "uneven": bench.uneven,
        "static_batches": bench.static_batches,
        "turns": bench.turns,
        "forks": bench.forks,
    }[workload["workload"]]
    return {"dtype": workload["variant"], "batch_invariant": bench.engine.batch_invariant, "slots": bench.slots}, run


class EngineBench:
    """An engine whose sequences end only by length, and the workloads as methods: inputs -> figures."""

    def __init__(self, workload: Json) -> None:
        self.workload = workload
        folder = Path(workload["folder"])
        tokenizer = Tokenizer.load(folder)
        model = files.load_model(folder)
        tokenizer.eos_token_ids, tokenizer.eos_token_id = (
            (model.config.vocab,),
            model.config.vocab,
        )  # an id that is never sampled
        self.slots = workload["slots"] or min(workload["width"], RunSettings().slots)
        self.engine = BuiltinEngine(
            {"w": model},
            {"policy": "w"},
            tokenizer,
            slots=self.slots,
            length=workload["length"],
            dtype=getattr(torch, workload["variant"]),
        )
        self.next_key = 0
        self.loop = asyncio.new_event_loop()

    async def generate(self, prompts: Sequence[Any], lengths: Sequence[int]) -> list[np.ndarray]:
        """The ids sampled after each prompt, under RNG keys not used before."""
        first, self.next_key = self.next_key, self.next_key + len(prompts)
        completions = [
            self.engine.generate("policy", np.asarray(p, np.int32), Sampling(max_tokens=n), first + i)
            for i, (p, n) in enumerate(zip(prompts, lengths, strict=True))
        ]
        return [c.ids for c in await asyncio.gather(*completions)]

    def timed(self, coroutine: Coroutine[Any, Any, Any]) -> tuple[float, Any]:
        """Seconds of a coroutine, and its result."""
        start = time.perf_counter()
        result = self.loop.run_until_complete(coroutine)
        return time.perf_counter() - start, result

    def fixed(self, inputs: Json) -> dict[str, Any]:
        """Every sequence samples `new` tokens."""
        prompts = inputs["prompts"]
        seconds, sampled = self.timed(self.generate(prompts, [self.workload["new"]] * len(prompts)))
        return {"seconds": seconds, "tokens": sum(map(len, sampled))}

    def uneven(self, inputs: Json) -> dict[str, Any]:
        """Every sequence has a length of its own; a finished one leaves the batch and another enters."""
        seconds, sampled = self.timed(self.generate(inputs["prompts"], inputs["lengths"]))
        return {"seconds": seconds, "tokens": sum(map(len, sampled))}

    def static_batches(self, inputs: Json) -> dict[str, Any]:
        """The same in static batches of `slots`, each of which runs to its longest sequence; only the tokens asked for
        count.
        """
        seconds, n = 0.0, self.slots
        for at in range(0, len(inputs["prompts"]), n):
            part = inputs["prompts"][at : at + n]
            longest = max(inputs["lengths"][at : at + n])
            seconds += self.timed(self.generate(part, [longest] * len(part)))[0]
        return {"seconds": seconds, "tokens": sum(inputs["lengths"])}

    def turns(self, inputs: Json) -> dict[str, Any]:
        """`width` episodes at once, each of `turns` turns: tokens are sampled, then tokens are observed.

        Also the seconds of the first and the last turns, and the tokens computed over those needed.
        """
        w = self.workload
        contexts = [list(p) for p in inputs["prompts"]]
        before = self.engine.counts["prefilled"] + self.engine.counts["generated"]
        episodes, prompt, observed = len(contexts), len(contexts[0]), len(inputs["observations"][0])
        took: list[float] = []
        for turn in range(w["turns"]):
            seconds, sampled = self.timed(self.generate(contexts, [w["new"]] * len(contexts)))
            took.append(seconds)
            for i, context in enumerate(contexts):
                context += [*sampled[i].tolist(), *inputs["observations"][turn]]
        # A token is sampled from the row of the one before it, so the first of a turn needs no row besides
        # those of the observation.
        computed = self.engine.counts["prefilled"] + self.engine.counts["generated"] - before - episodes * w["turns"]
        needed = episodes * (
            prompt + w["turns"] * (w["new"] + observed) - observed - 1
        )  # what follows the last sampled row is never an input
        tenth = max(1, w["turns"] // 10)
        ends = {"seconds/first turns": took[1 : tenth + 1], "seconds/last turns": took[-tenth:]}
        medians = {name: statistics.median(times) for name, times in ends.items()}
        return {
            "seconds": sum(took),
            "tokens": episodes * w["turns"] * w["new"],
            "computed_over_needed": computed / needed,
            **medians,
        }

    def forks(self, inputs: Json) -> dict[str, Any]:
        """One prefix, then `width` forks of it, which sample a token each."""
        prefix = inputs["prompts"][0]
        counts = self.engine.counts
        prefix_seconds, _ = self.timed(self.generate([prefix], [1]))
        copied, prefilled = counts["copied"], counts["prefilled"]
        fork_seconds, _ = self.timed(self.generate([prefix] * self.workload["width"], [1] * self.workload["width"]))
        width = self.workload["width"]
        return {
            "seconds": fork_seconds,
            "tokens": width,
            "seconds/prefix": prefix_seconds,
            "seconds/fork": fork_seconds / width,
            "copied_per_fork": (counts["copied"] - copied) / width,
            "prefilled_per_fork": (counts["prefilled"] - prefilled) / width,
        }
