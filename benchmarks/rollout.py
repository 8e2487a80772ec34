"""Tokens per second of the engine, beside a plain loop over a static cache written in torch alone, in one run.

    python benchmarks/rollout.py --sequences 64 --new 128 --repeat 5 --json

The plain loop does the least that can be done: one batch of equal prompts, one softmax, no stops, queue, slots or prefix cache.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F

from selfteach.core.task import Sampling
from selfteach.engine import BuiltinEngine
from selfteach.model.tokenizer import Tokenizer, make
from selfteach.model.transformer import Config, Look, Transformer


@torch.inference_mode()
def plain(model: Transformer, prompts: torch.Tensor, new: int) -> torch.Tensor:
    """prompts i64[B, L] -> i64[B, new], by one preallocated cache and scaled_dot_product_attention."""
    c = model.c
    b, length = prompts.shape
    room = length + new
    k = torch.zeros(c.layers, b, c.kv_heads, room, c.head_dim)
    v = torch.zeros_like(k)
    at = 0

    def attend(look: Look, q: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        t, layer = q.shape[1], look.layer
        k[layer, :, :, at : at + t], v[layer, :, :, at : at + t] = key.transpose(1, 2), value.transpose(1, 2)
        keys, values = k[layer, :, :, : at + t], v[layer, :, :, : at + t]
        return F.scaled_dot_product_attention(q.transpose(1, 2), keys, values, is_causal=t > 1, enable_gqa=True).transpose(1, 2)

    ids, out = prompts, []
    for _ in range(new):
        t = ids.shape[1]
        hidden = model(ids, attend, torch.arange(at, at + t)[None].expand(b, t))[:, -1]
        at += t
        ids = torch.multinomial(model.logits(hidden).softmax(-1), 1)
        out.append(ids)
    return torch.cat(out, 1)


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"sequences": 64, "group": 8, "prompt": 32, "new": 128, "slots": 64, "repeat": 5, "threads": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    for name, value in {"vocab": 512, "width": 256, "layers": 4, "heads": 8, "kv-heads": 2, "head-dim": 32, "hidden": 704}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a line for people")
    a = parser.parse_args()
    torch.set_num_threads(a.threads)

    room = max(256, a.prompt + a.new)
    config = Config(a.vocab, a.width, a.layers, a.heads, a.kv_heads, a.head_dim, a.hidden, max_length=room)
    model = Transformer(config).initialise(0)
    engine = BuiltinEngine({"w": Transformer(config).initialise(0)}, {"policy": "w"}, _never_ending(a.vocab), slots=a.slots)
    rng = np.random.default_rng(0)
    groups = -(-a.sequences // a.group)
    sampling = Sampling(max_tokens=a.new)
    ours: list[float] = []
    theirs: list[float] = []
    drawn = 0
    for turn in range(a.repeat + 1):  # in turns, so that a noisy neighbour hits both; the first turn only warms up
        prompts = rng.integers(1, a.vocab, (groups, a.prompt)).repeat(a.group, 0)[: a.sequences]

        async def roll(prompts: np.ndarray = prompts, turn: int = turn) -> int:
            done = [engine.generate("policy", p, sampling, turn * 100_000 + i) for i, p in enumerate(prompts)]
            return sum(len(c.ids) for c in await asyncio.gather(*done))

        before = engine.counts["generated"]
        own = seconds(lambda roll=roll: asyncio.run(roll()))
        drawn = engine.counts["generated"] - before
        waves = [torch.from_numpy(prompts[i : i + a.slots]) for i in range(0, a.sequences, a.slots)]
        other = seconds(lambda waves=waves: [plain(model, w, a.new) for w in waves])
        if turn:
            ours.append(drawn / own)
            theirs.append(a.sequences * a.new / other)
    ratio = statistics.median(x / y for x, y in zip(ours, theirs, strict=True))
    result = {"engine": statistics.median(ours), "plain": statistics.median(theirs), "ratio": ratio, "exact": engine.exact, "tokens": drawn}
    result |= {"engine_range": [min(ours), max(ours)], "plain_range": [min(theirs), max(theirs)]}
    if a.json:
        print(json.dumps(result))
    else:
        print(f"engine {result['engine']:,.0f} tokens/s, plain loop {result['plain']:,.0f}, ratio {ratio:.2f} (median of {a.repeat}; {drawn} tokens)")


def _never_ending(vocab: int) -> Tokenizer:
    """A tokenizer whose end token lies outside the model's vocabulary, so that every sequence has its full length."""
    tokenizer = make(["some text to cut into pieces"], (), vocab)
    tokenizer.end = vocab
    return tokenizer


if __name__ == "__main__":
    main()
