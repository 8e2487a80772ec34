"""A run on many accelerators on paper: memory, seconds of a step, who waits, for every split of the devices.

Work is counted from shapes, and divided by what a device can do at best and the share of it that is reached (a
roofline): decoding reads all weights and every sequence's cache for each token of each, learning multiplies. What is
assumed stands in `Assumptions`; steps are simulated (`throughput.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from ..core import random_keys
from ..core.errors import BadValue
from ..loop.log import Rollouts, logged_steps
from ..loop.memory_plan import cache_bytes_per_token, parameter_counts, plan_memory, size_of
from ..model.transformer import Config
from .throughput import Throughput, Timing, Workload, simulate

NODE = 8  # accelerators that share the fast link
MOST_SLOTS = 512  # of a sampler
WEIGHT_BYTES = 2  # of a sampler's weights and of what is sent of them


class Accelerator(NamedTuple):
    """A device, from its data sheet: dense bf16 operations a second, bytes, bytes a second of its memory, of its link
    within a node and of its network beyond, each way.
    """

    flops: float
    memory: float
    bandwidth: float
    link: float
    network: float


ACCELERATORS = {
    "a100": Accelerator(312e12, 80e9, 2.04e12, 300e9, 25e9),
    "h100": Accelerator(989e12, 80e9, 3.35e12, 450e9, 50e9),
    "h200": Accelerator(989e12, 141e9, 4.8e12, 450e9, 50e9),
    "b200": Accelerator(2250e12, 180e9, 8.0e12, 900e9, 50e9),
    "l40s": Accelerator(362e12, 48e9, 0.86e12, 32e9, 12.5e9),
}


def _qwen(
    vocab: int, width: int, layers: int, heads: int, kv_heads: int, head_dim: int, hidden: int, tied: bool
) -> Config:
    return Config(
        vocab,
        width,
        layers,
        heads,
        kv_heads,
        head_dim,
        hidden,
        tied=tied,
        max_length=32768,
        kind="qwen2",
        qkv_bias=True,
    )


SHAPES = {  # Qwen2.5's, by their names
    "0.5B": _qwen(151936, 896, 24, 14, 2, 64, 4864, tied=True),
    "1.5B": _qwen(151936, 1536, 28, 12, 2, 128, 8960, tied=True),
    "3B": _qwen(151936, 2048, 36, 16, 2, 128, 11008, tied=True),
    "7B": _qwen(152064, 3584, 28, 28, 4, 128, 18944, tied=False),
    "14B": _qwen(152064, 5120, 48, 40, 8, 128, 13824, tied=False),
    "32B": _qwen(152064, 5120, 64, 40, 8, 128, 27648, tied=False),
    "72B": _qwen(152064, 8192, 80, 64, 8, 128, 29568, tied=False),
}


@dataclass(frozen=True)
class Assumptions:
    """What is reached of a data sheet, and what is the same everywhere."""

    decode: float = 0.6  # share of the memory's bandwidth while decoding
    prefill: float = 0.5  # share of the operations while prompts are read
    learn: float = 0.35  # share of the operations while learning
    send: float = 0.7  # share of a link's bandwidth
    token_seconds: float = 0.004  # of a step of decoding besides: launches, sampling, scheduling
    layer_seconds: float = 15e-6  # of the two exchanges of a layer that is split over devices
    host_bandwidth: float = 25e9  # bytes a second to the host's memory, where a shared device changes hands
    filled: float = 0.9  # share of a device's memory that is used


class Learning(NamedTuple):
    """How a batch is learned. epochs over it; tokens of a micro-batch; activations computed twice; with a reference."""

    epochs: int = 1
    micro_tokens: int = 16384
    recompute: bool = True
    reference: bool = False


PLAIN, USUAL = Learning(), Assumptions()


class Split(NamedTuple):
    """A division of the devices, and what it leads to. sampler_bytes, learner_bytes: in use on a device of each."""

    samplers: int
    tensor_parallel: int
    slots: int
    learners: int
    shared: bool
    staleness: int
    sampler_bytes: float
    learner_bytes: float
    timing: Timing
    outcome: Throughput
    bottleneck: str


def timing_of(
    shape: Config,
    device: Accelerator,
    tensor_parallel: int,
    learners: int,
    context: float,
    learning: Learning,
    at: Assumptions,
) -> Timing:
    """Seconds of each kind of work on paper. context: mean tokens of a sequence, for the learner's attention."""
    every = parameter_counts(shape)[0]
    wide = shape.heads * shape.head_dim
    cache = cache_bytes_per_token(shape, WEIGHT_BYTES)
    bandwidth, flops = tensor_parallel * device.bandwidth * at.decode, tensor_parallel * device.flops
    exchange = shape.layers * at.layer_seconds if tensor_parallel > 1 else 0.0

    def decode(active: int, tokens: float) -> float:
        read = (WEIGHT_BYTES * every + active * tokens * cache) / bandwidth
        return max(read, 2 * every * active / (flops * at.prefill)) + exchange + at.token_seconds

    passes = 6 + 2 * learning.recompute + 2 * learning.reference  # forward 2, backward 4, each again 2
    between = (device.link if learners <= NODE else device.network) * at.send

    def learn(tokens: float) -> float:
        attention = passes * shape.layers * wide * context  # of q k and of the sums of v, over half of the pairs
        computed = tokens * (passes * every + attention) / (learners * device.flops * at.learn)
        rounds = max(1.0, tokens / (learners * learning.micro_tokens))  # weights are gathered twice, gradients added up
        sent = rounds * 3 * WEIGHT_BYTES * every * (learners - 1) / learners / between
        moved = 20 * every / learners / device.bandwidth  # weights, gradients and two moments in float32, read, written
        return learning.epochs * max(computed, sent) + moved

    return Timing(
        decode,
        lambda tokens: 2 * every * tokens / (flops * at.prefill),
        learn,
        deliver=WEIGHT_BYTES * every / tensor_parallel / (device.network * at.send),
        switch=2 * WEIGHT_BYTES * every / learners / at.host_bandwidth,
    )


def learner_bytes(shape: Config, learners: int, context: int, learning: Learning) -> float:
    """Bytes on each of so many devices: weights, gradients and moments are divided, activations are not."""
    models = {"policy", "ref"} if learning.reference else {"policy"}
    plan = plan_memory(
        shape, models, [("policy",)], (), tokens=learning.micro_tokens, slots=0, length=context, bf16=True,
        recompute=learning.recompute, start=False, gpu=True,
    )  # fmt: skip
    divided = plan.parts["weights"] + plan.parts["gradients"] + plan.parts["moments"]
    layer = WEIGHT_BYTES * parameter_counts(shape)[1] / shape.layers
    return divided / learners + plan.parts["activations"] + plan.parts["vocabulary"] + 2 * layer * (learners > 1)


def splits(
    shape: Config,
    device: Accelerator,
    gpus: int,
    work: Workload,
    context: int,
    staleness: Sequence[int] = (0,),
    learning: Learning = PLAIN,
    at: Assumptions = USUAL,
    progress: Callable[[int, int], object] = lambda done, of: None,
) -> list[Split]:
    """Every split that fits into memory, the fastest first: devices shared, or so many eighths of them for sampling.

    context: the longest sequence, prompt and answer; progress is called with (simulated, of how many). Raises BadValue
    where none fits, naming what is too large.
    """
    weights, cache = WEIGHT_BYTES * parameter_counts(shape)[0], cache_bytes_per_token(shape, WEIGHT_BYTES)
    usable = device.memory * at.filled
    sizes = [n for n in (1, 2, 4, 8) if weights / n <= 0.6 * usable]
    if not sizes:
        raise BadValue(
            f"plan: the weights of this model, {size_of(weights)} in bf16, do not fit {NODE} devices of"
            f" {size_of(int(device.memory))}; take larger ones"
        )
    length = work.prompt + float(work.lengths.mean())  # of a sequence that is done
    shares = sorted({round(gpus * k / NODE) for k in range(1, NODE)} - {0, gpus})
    fitting, needs = list[tuple[int, int, int, int, bool, float]](), list[float]()
    for sampling, learners, shared in [(gpus, gpus, True), *((n, gpus - n, False) for n in shares)]:
        needs.append(learner_bytes(shape, learners, context, learning))
        for split in (n for n in sizes if not sampling % n and needs[-1] <= usable):
            samplers, room = sampling // split, usable * split - weights - shared * needs[-1] / 8 * split
            wanted = -(-work.groups * work.rollouts * (max(staleness) + 1) // samplers)
            slots = min(int(room / (cache * length * 1.25)), wanted, MOST_SLOTS)
            if slots >= 1 and cache * context <= room:
                fitting.append((samplers, split, slots, learners, shared, needs[-1]))
    if not fitting:
        raise BadValue(
            f"plan: {gpus} devices of {size_of(int(device.memory))} do not hold it: the learner alone needs"
            f" {size_of(int(min(needs)))} on each; take more devices, a lower --micro-tokens, or adapters (--lora-rank)"
        )
    asked = [(*fit, stale) for fit in fitting for stale in staleness if not (fit[4] and stale)]
    found = list[Split]()
    for samplers, split, slots, learners, shared, needed, stale in asked:
        timing = timing_of(shape, device, split, learners, length, learning, at)
        held = (weights + slots * length * 1.25 * cache) / split
        outcome = simulate(work, timing, samplers, slots, stale, shared, steps=stale + 4)
        waits_for = _bottleneck(outcome, timing, slots, length)
        found.append(Split(samplers, split, slots, learners, shared, stale, held, needed, timing, outcome, waits_for))
        progress(len(found), len(asked))
    return sorted(found, key=lambda s: -s.outcome.tokens_per_s)


def _bottleneck(outcome: Throughput, timing: Timing, slots: int, length: float) -> str:
    """What a step waits for, and what would help."""
    if outcome.learner_idle < 0.1:
        return "learning: more devices for it would be used"
    if outcome.sampler_idle > 0.1:
        return "one another, samplers and learner in turns: let rollouts run ahead (--staleness)"
    if outcome.occupancy < 0.5:
        return "the longest answers, while most slots are empty: fewer and larger samplers, or more answers at once"
    if timing.decode(slots, length) > 2 * timing.decode(1, length):
        return "sampling, which reads the cache of all sequences: more devices for it would be used"
    return "sampling, which reads the weights for few sequences: more slots would be nearly free"


def with_assumptions(at: Assumptions, **change: float) -> Assumptions:
    """The assumptions with some of them changed. Raises BadValue for a share that is none."""
    for name, value in change.items():
        if not 0 < value <= 1 and name in ("decode", "prefill", "learn", "send", "filled"):
            raise BadValue(f"plan: {name} is a share above 0 and at most 1, not {value}")
    return replace(at, **change)


def expected_lengths(mean: float, spread: float, longest: int, count: int = 4096) -> np.ndarray:
    """i64[K]: tokens of answers with this mean before they are cut at `longest`; evenly spaced quantiles, log-normal.

    spread: the standard deviation of their logarithm; 0.8 is usual for reasoning: one in ten is 1.9 times the mean, one
    in a hundred 4.5 times. Their order is random.
    """
    quantiles = [NormalDist().inv_cdf((i + 0.5) / count) for i in range(count)]
    lengths = mean * np.exp(spread * np.array(quantiles) - spread**2 / 2)
    shuffled = random_keys.generator("expected lengths").permutation(lengths)
    return np.clip(np.round(shuffled), 1, longest).astype(np.int64)


def recorded_lengths(run: Path) -> tuple[np.ndarray, int]:
    """(i64[K]: tokens that each episode of a run's log sampled, mean tokens of what stood beside them: its prompt).

    Raises BadValue where the log has no rollouts.
    """
    steps = logged_steps(run / "log")
    lengths, others = list[np.ndarray](), list[np.ndarray]()
    for step in steps:
        arrays = Rollouts(run / "log" / "rollouts" / f"{step:06d}.npz").arrays
        start = arrays["token_start"]
        sampled = np.diff(np.concatenate([[0], np.cumsum(arrays["action_mask"])])[start])
        lengths.append(sampled)
        others.append(np.diff(start) - sampled)
    if not lengths or not np.concatenate(lengths).any():
        raise BadValue(f"{run}: its log has no rollouts, so no lengths of answers; give --answer and --spread")
    return np.concatenate(lengths), round(float(np.concatenate(others).mean()))


def split_summary(split: Split) -> dict[str, Any]:
    """A split as plain values."""
    plain = {n: v for n, v in split._asdict().items() if n not in ("timing", "outcome")}
    return plain | split.outcome._asdict()


def split_lines(shown: Sequence[Split], every: Sequence[Split], at: Assumptions) -> list[str]:
    """The table that `selfteach plan` prints of some splits, and what the first waits for."""
    rows: list[tuple[str, ...]] = [
        ("sampling", "learning", "stale", "GB each", "slots", "s a step", "tokens/s", "idle: sampler", "learner")
    ]
    for s in shown:
        sampling = f"{s.samplers} x {s.tensor_parallel} GPUs" if s.tensor_parallel > 1 else f"{s.samplers} GPUs"
        held = f"{s.sampler_bytes / 1e9:.0f}, {s.learner_bytes / 1e9:.0f}"
        learning = "the same" if s.shared else f"{s.learners} GPUs"
        idle = (f"{100 * max(x, 0):.0f} %" for x in (s.outcome.sampler_idle, s.outcome.learner_idle))
        speed = f"{s.outcome.step_seconds:.1f}", f"{s.outcome.tokens_per_s:,.0f}"
        rows.append((sampling, learning, str(s.staleness), held, str(s.slots), *speed, *idle))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
    best, step = every[0], next((s for s in every if not s.staleness), None)
    lines += ["", f"the fastest of {len(every)} waits for {best.bottleneck}"]
    if step is not None and step is not best:
        gain = best.outcome.tokens_per_s / step.outcome.tokens_per_s
        lines.append(f"{gain:.1f} times the tokens of the fastest without staleness ({step.outcome.tokens_per_s:,.0f})")
    said = ", ".join(f"{name} {value:g}" for name, value in asdict(at).items())
    return [*lines, f"assumed: {said}"]
