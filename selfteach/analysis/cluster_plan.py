"""A run on many accelerators on paper: memory, seconds of a step, who waits, for every split of the devices.

Work is counted from shapes, and divided by what a device can do at best and the share of it that is reached (a
roofline): decoding reads all weights and every sequence's cache for each token of each, learning multiplies. What is
assumed stands in `Assumptions`; steps are simulated (`throughput.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..core.errors import BadValue, unknown
from ..loop.memory_plan import cache_bytes_per_token, parameter_counts, plan_memory, size_of
from ..model.transformer import Config
from .throughput import Throughput, Timing, Workload, simulate

NODE = 8  # accelerators that share the fast link
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


def shape_of(name: str) -> Config:
    """The shape of a model by its size. Raises UnknownName."""
    if name not in SHAPES:
        raise unknown("size of model", name, SHAPES)
    return SHAPES[name]


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
) -> list[Split]:
    """Every split that fits into memory, the fastest first: devices shared, or so many eighths of them for sampling.

    context: the longest sequence, prompt and answer. Raises BadValue where none fits, naming what is too large.
    """
    every, cache = parameter_counts(shape)[0], cache_bytes_per_token(shape, WEIGHT_BYTES)
    usable, longest = device.memory * at.filled, context
    sizes = [
        n
        for n in (1, 2, 4, 8)
        if WEIGHT_BYTES * every / n <= 0.6 * usable and not shape.kv_heads % min(n, shape.kv_heads)
    ]
    if not sizes:
        raise BadValue(
            f"plan: the weights of this model, {size_of(WEIGHT_BYTES * every)} in bf16, do not fit {NODE} devices of"
            f" {size_of(int(device.memory))}; take larger ones"
        )
    mean = work.prompt + float(work.lengths.mean())
    shares = sorted({round(gpus * k / NODE) for k in range(1, NODE)} - {0, gpus}) if gpus > 1 else []
    found, least = list[Split](), float("inf")
    for sampling, learners, shared in [(gpus, gpus, True), *((n, gpus - n, False) for n in shares)]:
        needed = learner_bytes(shape, learners, context, learning)
        least = min(least, needed)
        if needed > usable:
            continue
        for tensor_parallel in (n for n in sizes if n <= sampling and not sampling % n):
            samplers = sampling // tensor_parallel
            room = usable * tensor_parallel - WEIGHT_BYTES * every - (needed / 8 * tensor_parallel if shared else 0.0)
            most = -(-work.groups * work.rollouts * (max(staleness) + 1) // samplers)
            slots = min(int(room / (cache * mean * 1.25)), most, 512)
            if slots < 1 or cache * longest > room:
                continue
            timing = timing_of(shape, device, tensor_parallel, learners, mean, learning, at)
            held = (WEIGHT_BYTES * every + slots * mean * 1.25 * cache) / tensor_parallel
            for stale in staleness:
                if shared and stale:
                    continue
                outcome = simulate(work, timing, samplers, slots, stale, shared, steps=stale + 4)
                found.append(
                    Split(
                        samplers,
                        tensor_parallel,
                        slots,
                        learners,
                        shared,
                        stale,
                        held,
                        needed,
                        timing,
                        outcome,
                        _bottleneck(outcome, timing, slots, mean),
                    )
                )
    if not found:
        raise BadValue(
            f"plan: {gpus} devices of {size_of(int(device.memory))} do not hold it: the learner alone needs"
            f" {size_of(int(least))} on each; take more devices, a lower --micro-tokens, or adapters (--lora-rank)"
        )
    return sorted(found, key=lambda s: -s.outcome.tokens_per_s)


def _bottleneck(outcome: Throughput, timing: Timing, slots: int, mean: float) -> str:
    """Which part the step waits for, and why."""
    if outcome.learner_idle < outcome.sampler_idle:
        return "learning"
    if outcome.occupancy < 0.5:
        return "sampling: the longest answers, with most slots empty"
    full, few = timing.decode(slots, mean), timing.decode(1, mean)
    return (
        "sampling: reading the cache" if full > 2 * few else "sampling: reading the weights, more slots would be free"
    )


def with_efficiency(at: Assumptions, **change: float) -> Assumptions:
    """The assumptions with some of them changed. Raises BadValue for a share that is none."""
    for name, value in change.items():
        if not 0 < value <= 1 and name in ("decode", "prefill", "learn", "send", "filled"):
            raise BadValue(f"plan: {name} is a share above 0 and at most 1, not {value}")
    return replace(at, **change)
