"""Tokens per second of the engine's ways to compute, beside a plain loop over a static cache written in torch alone, in one run.

    python benchmarks/rollout.py                                  # tiny: 64 x 128 tokens after 32
    python benchmarks/rollout.py --sequences 256 --slots 256
    python benchmarks/rollout.py --model smollm2 --sequences 16 --new 64
    python benchmarks/rollout.py --uneven                         # lengths drawn geometrically, mean a third of the limit
    python benchmarks/rollout.py --ways float32,plain --json

Ways: float32, bfloat16 (the native kernel), torch (the engine without it), plain. The plain loop does the least that can be done: one
batch of equal prompts, one softmax, no stops, queue, slots or prefix cache. All take turns; the figures are medians, and ratios are those
within a turn. On a machine with other work, tokens per second of a processor's time, at one thread, say more. With --uneven the plain
loop runs on to the longest of its batch, as a fixed batch must, and only wanted tokens count.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from selfteach.core.task import Sampling
from selfteach.engine import BuiltinEngine
from selfteach.model.tokenizer import Tokenizer, make
from selfteach.model.transformer import Config, Look, Transformer

MODELS = {
    "tiny": Config(512, width=256, layers=4, heads=8, kv_heads=2, head_dim=32, hidden=704, max_length=256),
    "smollm2": Config(49152, width=576, layers=30, heads=9, kv_heads=3, head_dim=64, hidden=1536, max_length=256),
}
WAYS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {"dtype": torch.bfloat16},
    "torch": {"kernel": "torch"},
}


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


def in_waves(model: Transformer, prompts: np.ndarray, lengths: np.ndarray, slots: int) -> None:
    """The plain loop over waves of `slots` sequences, each as long as its longest."""
    for i in range(0, len(prompts), slots):
        plain(model, torch.from_numpy(prompts[i : i + slots]), int(lengths[i : i + slots].max()))


def by_engine(engine: BuiltinEngine, prompts: np.ndarray, lengths: np.ndarray, turn: int) -> None:
    async def roll() -> None:
        every = zip(prompts, lengths, strict=True)
        await asyncio.gather(*[engine.generate("policy", p, Sampling(max_tokens=int(n)), turn * 100_000 + i) for i, (p, n) in enumerate(every)])

    asyncio.run(roll())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"sequences": 64, "group": 8, "prompt": 32, "new": 128, "repeat": 5, "threads": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--slots", type=int, help="default: as many as sequences")
    parser.add_argument("--model", choices=MODELS, default="tiny")
    parser.add_argument("--ways", default=",".join([*WAYS, "plain"]))
    parser.add_argument("--uneven", action="store_true", help="also with lengths drawn geometrically, mean a third of --new, at most --new")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines for people")
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    slots, ways = a.slots or a.sequences, a.ways.split(",")

    config = MODELS[a.model]
    model = Transformer(config).initialise(0)
    engines = {
        w: BuiltinEngine({"w": Transformer(config).initialise(0)}, {"policy": "w"}, _never_ending(config.vocab), slots=slots, **WAYS[w])
        for w in ways
        if w in WAYS
    }
    rng = np.random.default_rng(0)
    rates: dict[str, list[float]] = {}
    worked: dict[str, list[float]] = {}
    for turn in range(a.repeat + 1):  # in turns, so that a noisy neighbour hits all; the first turn only warms up
        prompts = rng.integers(1, config.vocab, (-(-a.sequences // a.group), a.prompt)).repeat(a.group, 0)[: a.sequences]
        lengths = {"": np.full(a.sequences, a.new)}
        if a.uneven:
            lengths[" uneven"] = np.minimum(rng.geometric(3 / a.new, a.sequences), a.new)
        for kind, n in lengths.items():
            for way in ways:
                start, busy = time.perf_counter(), time.process_time()
                if way == "plain":
                    in_waves(model, prompts, n, slots)
                else:
                    by_engine(engines[way], prompts, n, turn)
                if turn:
                    rates.setdefault(way + kind, []).append(float(n.sum()) / (time.perf_counter() - start))
                    worked.setdefault(way + kind, []).append(float(n.sum()) / (time.process_time() - busy))
    peer = rates.get("plain")
    result: dict[str, Any] = {
        way: {
            "tokens/s": statistics.median(r),
            "tokens/cpu s": statistics.median(worked[way]),
            "range": [min(r), max(r)],
            "of plain": statistics.median(x / y for x, y in zip(r, rates["plain"], strict=True)) if peer else None,
        }
        for way, r in rates.items()
    }
    told = {"model": a.model, "sequences": a.sequences, "new": a.new, "threads": a.threads, "exact": {w: e.exact for w, e in engines.items()}}
    if a.json:
        print(json.dumps({**told, "rates": result}))
        return
    print(f"{a.model}, {a.sequences} x {a.new} tokens after {a.prompt}, {slots} slots, {a.threads} threads; medians of {a.repeat}")
    for way, r in result.items():
        ratio = f", {r['of plain']:.2f} x plain" if r["of plain"] else ""
        span = f"{r['range'][0]:,.0f} to {r['range'][1]:,.0f}"
        print(f"  {way:17} {r['tokens/s']:8,.0f} tokens/s ({span}), {r['tokens/cpu s']:,.0f} a second of a processor's time{ratio}")


def _never_ending(vocab: int) -> Tokenizer:
    """A tokenizer whose end token lies outside the model's vocabulary, so that every sequence has its full length."""
    tokenizer = make(["some text to cut into pieces"], (), vocab)
    tokenizer.ends = (vocab,)
    return tokenizer


if __name__ == "__main__":
    main()
