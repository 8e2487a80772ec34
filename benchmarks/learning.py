"""Tokens per second of a learning step (forward, backward, AdamW), beside a plain loop in torch alone, in one run.

    python benchmarks/learning.py --sequences 256 --repeat 5 --json

The plain loop does what one writes first: all sequences padded in one piece, float32, a clipped ratio on the learned tokens, clipping,
torch's AdamW. Rounds alternate, so that all meet the same machine; speeds are those of the fastest, least disturbed ones. Tokens are
those of the sequences, prompts included, however often the learner computes them.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from selfteach.core import Batch, Example, Member, Segment, Seq, Term, Update, Weights, block, gather
from selfteach.learner import LocalLearner, Settings
from selfteach.model.transformer import Config, Transformer, causal


@block
def bench_ratio(*, logp, old_logp, adv, low=0.2, high=0.2):
    """The clipped ratio, per token: sequences can be taken one by one."""
    r = (logp - old_logp).exp()
    return -torch.minimum(r * adv, r.clamp(1 - low, 1 + high) * adv)


@block
def bench_sequence(*, logp, old_logp, adv: Seq, seq, batch) -> Seq:
    """The same per sequence, asking for the whole batch: two passes."""
    del batch
    n = torch.zeros_like(adv).index_add(0, seq, torch.ones_like(logp))
    return -(torch.zeros_like(adv).index_add(0, seq, logp - old_logp) / n).exp() * adv


def make(sequences: int, siblings: int, prompt: int, vocab: int) -> Batch:
    """`siblings` sequences to a prompt of `prompt` tokens, with 32 to 64 learned tokens each."""
    rng = np.random.default_rng(0)
    parts = []
    for s in range(sequences):
        if s % siblings == 0:
            context = tuple(rng.integers(0, vocab, prompt).tolist())
        own = tuple(rng.integers(0, vocab, rng.integers(32, 65)).tolist())
        given = {"adv": ("seq", [float(rng.standard_normal())])}
        parts.append(Example((Segment(context, None), Segment(own, "main")), "policy", f"g{s // siblings}", f"s{s}", given=given))  # type: ignore[arg-type]
    batch = gather(parts, lambda _: None)  # type: ignore[arg-type,return-value]
    batch.put("old_logp", "token", np.full(batch.size("token"), -float(np.log(vocab))))
    return batch


def plain(model: Transformer, batch: Batch) -> Callable[[], None]:
    """One step of the loop that one writes first."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.0)
    length = np.diff(batch.start)
    ids = torch.zeros(len(length), int(length.max()), dtype=torch.int64)
    mask = torch.zeros(ids.shape)
    adv = torch.zeros(ids.shape)
    for s, n in enumerate(length):
        ids[s, :n] = torch.from_numpy(batch.ids[batch.start[s] : batch.start[s + 1]].astype(np.int64))
    seq = batch.get("seq")
    mask[seq, batch.get("pos")] = 1
    adv[seq, batch.get("pos")] = torch.from_numpy(batch.get("adv")).float()
    first = int(batch.get("pos").min())
    old = -float(np.log(model.c.vocab))

    def step() -> None:
        hidden = model(ids[:, :-1], causal)[:, first - 1 :]
        logp = model.logits(hidden).log_softmax(-1).gather(-1, ids[:, first:, None]).squeeze(-1)
        r = (logp - old).exp()
        a, m = adv[:, first:], mask[:, first:]
        loss = (-torch.minimum(r * a, r.clamp(0.8, 1.2) * a) * m).sum() / m.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()

    return step


def ours(model: Transformer, batch: Batch, settings: Settings, whole: bool = False) -> Callable[[], None]:
    learner = LocalLearner({"policy": Weights()}, {"policy": Member()}, model, 0, settings)
    term = Term(bench_sequence() if whole else bench_ratio())
    n = batch.size(term.fn.unit)
    batch = copy.copy(batch)
    batch.columns = {**batch.columns}
    batch.put("w0", term.fn.unit, np.full(n, 1 / n))
    update = Update("policy", (term,))

    def step() -> None:
        learner.backward(batch, update)
        learner.step(update, 1e-4)

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=256)
    parser.add_argument("--siblings", type=int, default=8, help="sequences to a prompt where prompts are shared")
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--vocab", type=int, default=4096)
    parser.add_argument("--tokens", type=int, default=Settings().tokens, help="of a micro-batch")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = Transformer(Config(vocab=args.vocab)).initialise(0)
    single = make(args.sequences, 1, args.prompt, args.vocab)
    shared = make(args.sequences, args.siblings, args.prompt, args.vocab)
    exact, rough = Settings(tokens=args.tokens), Settings(tokens=args.tokens, dtype="bfloat16")
    arms = {
        "plain": plain(copy.deepcopy(model), single),
        "own prompts": ours(model, single, exact),
        "own prompts, bf16": ours(model, single, rough),
        "shared prompts": ours(model, shared, exact),
        "shared prompts, bf16": ours(model, shared, rough),
        "shared prompts, two passes": ours(model, shared, exact, whole=True),
    }
    times: dict[str, list[float]] = {name: [] for name in arms}
    for step in arms.values():
        step()
    for _ in range(args.repeat):
        for name, step in arms.items():
            start = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - start)
    best = {name: min(t) for name, t in times.items()}
    count = {name: len((shared if name.startswith("shared") else single).ids) for name in arms}
    speed = {name: count[name] / best[name] for name in arms}
    found = {
        name: {
            "seconds": statistics.median(times[name]),
            "fastest": best[name],
            "tokens_per_second": speed[name],
            "ratio": speed[name] / speed["plain"],
        }
        for name in arms
    }
    if args.json:
        print(json.dumps({**vars(args), "arms": found}, indent=2))
        return
    print(f"{args.sequences} sequences of {args.prompt} + 32..64 tokens, vocabulary {args.vocab}, {args.threads} threads, {args.repeat} rounds")
    for name, f in found.items():
        figures = f"{f['seconds']:7.3f} s, fastest {f['fastest']:.3f}: {f['tokens_per_second']:8.0f} tokens/s, {f['ratio']:5.2f} x plain"
        print(f"{name:<28} {figures}")


if __name__ == "__main__":
    main()
