"""Tokens per second of a learning step (forward, backward, AdamW), beside a plain loop in torch alone and the machine's own limit.

    python benchmarks/learning.py --sequences 256 --repeat 5 --json
    python benchmarks/learning.py --model smollm2 --sequences 16 --prompt 208 --skip plain

The plain loop does what one writes first: all sequences padded in one piece, float32, a clipped ratio on the learned tokens, clipping,
torch's AdamW. Rounds alternate, so that all meet the same machine; speeds are those of the fastest, least disturbed ones. Tokens are
those of the sequences, prompts included, however often the learner computes them.

The limit is the time that this machine's matrix products, measured in the same rounds at the model's own sizes and in the arm's precision,
need for what had to be computed (`work`): a shared prompt once, logits of learned tokens alone. On a machine that others use,
--cpu counts processor time instead of the clock's (one thread then).
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import json
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from selfteach.core import Batch, Example, Member, Segment, Seq, Term, Update, Weights, block, gather
from selfteach.learner import LocalLearner, Settings
from selfteach.learner.products import fast
from selfteach.model.transformer import Config, Transformer, causal

SHAPES = {
    "mini": Config(vocab=4096),
    "tiny-l": Config(vocab=512, width=256, layers=4, heads=8, kv_heads=2, head_dim=32, hidden=704),
    "smollm2": Config(vocab=49152, width=576, layers=30, heads=9, kv_heads=3, head_dim=64, hidden=1536),
}


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


def work(c: Config, batch: Batch) -> float:
    """Floating-point operations of a forward and backward that cannot be left out: 6 per token and number of a linear layer, 6 per learned
    token and number of the head, 12 per pair of a query and a key it sees, head and layer and dimension. A context that several sequences
    share counts once."""
    first = np.full(batch.size("seq"), np.iinfo(np.int64).max)
    np.minimum.at(first, batch.get("seq"), batch.get("pos"))
    length = np.diff(batch.start)
    contexts: dict[bytes, int] = {}
    for a, n in zip(batch.start, first, strict=False):
        contexts.setdefault(batch.ids[a : a + n].tobytes(), int(n))
    shared = np.array(list(contexts.values()))
    own = length - first
    tokens = shared.sum() + own.sum()
    pairs = (shared**2 / 2).sum() + (own * first + own**2 / 2).sum()
    q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
    linear = c.layers * (c.width * (2 * q + 2 * kv) + 3 * c.width * c.hidden)
    return float(6 * tokens * linear + 6 * batch.size("token") * c.vocab * c.width + 12 * pairs * q * c.layers)


def rate(c: Config, clock: Callable[[], float], kind: torch.dtype) -> float:
    """Operations a second of this machine's matrix products at the model's widest layer, 1024 rows; the fastest of twenty."""
    a, b = torch.randn(1024, c.width).to(kind), torch.randn(c.hidden, c.width).to(kind)
    best = float("inf")
    with fast():
        for _ in range(20):
            start = clock()
            a @ b.T
            best = min(best, clock() - start)
    return 2 * 1024 * c.width * c.hidden / best


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
    parser.add_argument("--model", choices=SHAPES, default="mini", help="its shape; the weights are random")
    parser.add_argument("--vocab", type=int, help="instead of the model's own")
    parser.add_argument("--tokens", type=int, default=Settings().tokens, help="of a micro-batch")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--skip", nargs="*", default=[], help="arms whose names contain one of these")
    parser.add_argument("--cpu", action="store_true", help="processor time")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1 if args.cpu else args.threads)
    clock = time.process_time if args.cpu else time.perf_counter
    c = SHAPES[args.model]
    c = dataclasses.replace(c, vocab=args.vocab or c.vocab)
    model = Transformer(c).initialise(0)
    single = make(args.sequences, 1, args.prompt, c.vocab)
    shared = make(args.sequences, args.siblings, args.prompt, c.vocab)
    exact, rough = Settings(tokens=args.tokens), Settings(tokens=args.tokens, dtype="bfloat16")
    makers: dict[str, Callable[[], Callable[[], None]]] = {
        "plain": lambda: plain(copy.deepcopy(model), single),
        "own prompts": lambda: ours(model, single, exact),
        "own prompts, bf16": lambda: ours(model, single, rough),
        "shared prompts": lambda: ours(model, shared, exact),
        "shared prompts, bf16": lambda: ours(model, shared, rough),
        "shared prompts, two passes": lambda: ours(model, shared, exact, whole=True),
    }
    arms = {name: make_arm() for name, make_arm in makers.items() if not any(word in name for word in args.skip)}
    times: dict[str, list[float]] = {name: [] for name in arms}
    rates = dict.fromkeys((torch.float32, torch.bfloat16), 0.0)
    for step in arms.values():
        step()
    for _ in range(args.repeat):
        for name, step in arms.items():
            for kind in rates:
                rates[kind] = max(rates[kind], rate(c, clock, kind))
            start = clock()
            step()
            times[name].append(clock() - start)
    best = {name: min(t) for name, t in times.items()}
    batches = {name: shared if name.startswith("shared") else single for name in arms}
    speed = {name: len(batches[name].ids) / best[name] for name in arms}
    found = {
        name: {
            "seconds": statistics.median(times[name]),
            "fastest": best[name],
            "tokens_per_second": speed[name],
            "ratio": speed[name] / speed.get("plain", float("nan")),
            "limit": work(c, batches[name]) / rates[torch.bfloat16 if "bf16" in name else torch.float32] / best[name],
        }
        for name in arms
    }
    if args.json:
        told = {str(k).removeprefix("torch."): r for k, r in rates.items()}
        print(json.dumps({**vars(args), "rates": told, "arms": found}, indent=2))
        return
    about = f"{args.model}: {args.sequences} sequences of {args.prompt} + 32..64 tokens, vocabulary {c.vocab}"
    print(f"{about}, {torch.get_num_threads()} threads, {args.repeat} rounds")
    print("matrix products: " + ", ".join(f"{str(k).removeprefix('torch.')} {r / 1e9:.0f} GFLOP/s" for k, r in rates.items()))
    for name, f in found.items():
        figures = f"{f['seconds']:7.3f} s, fastest {f['fastest']:.3f}: {f['tokens_per_second']:8.0f} tokens/s"
        print(f"{name:<28} {figures}, {f['ratio']:5.2f} x plain, {100 * f['limit']:3.0f} % of the limit")


if __name__ == "__main__":
    main()
