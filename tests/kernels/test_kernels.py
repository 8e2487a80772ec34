"""The ways in which the engine computes a step: in C++, in torch, and by the fixed shapes that a GPU captures, against
each other.
"""

from __future__ import annotations

import asyncio
import os
import platform
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from selfteach.core import random_keys
from selfteach.core.errors import BadValue
from selfteach.core.task import Sampling
from selfteach.engine import BuiltinEngine, is_batch_invariant, sampler
from selfteach.engine.cuda_graphs import CudaGraphRunner, slots_that_fit
from selfteach.engine.native_runner import NativeRunner, PackedWeights
from selfteach.engine.torch_runner import TorchRunner
from selfteach.kernels import decode
from selfteach.model import files
from selfteach.model.attention import causal_attention
from selfteach.model.rotary import RopeScaling
from selfteach.model.tokenizer import train_tokenizer
from selfteach.model.transformer import Config, Transformer

VOCAB, ROOM = 331, 150
BASE = Config(VOCAB, width=32, layers=2, heads=4, kv_heads=2, head_dim=8, hidden=48, max_length=160)
YARN = RopeScaling("yarn", 4.0, original=32, attention=1.2)
SHAPES = {
    "grouped": BASE,
    "odd sizes": replace(BASE, width=24, layers=1, heads=3, kv_heads=3, hidden=40, tied=False),
    "many heads to one": replace(
        BASE, width=40, heads=7, kv_heads=1, head_dim=10, hidden=56, qk_norm=True, attention_bias=True, mlp_bias=True
    ),
    "gelu, unrotated": replace(
        BASE, head_dim=32, heads=2, activation="gelu", unrotated=(1,), qkv_bias=True, scaling=YARN
    ),
    "gemma": replace(
        BASE,
        width=40,
        heads=6,
        kv_heads=1,
        head_dim=36,
        hidden=50,
        qk_norm=True,
        centred_norms=True,
        sandwich=True,
        scaled_embedding=True,
        activation="gelu_pytorch_tanh",
        score_cap=20.0,
        logit_cap=10.0,
        windows=(17, 0),
        local_theta=100.0,
        score_scale=0.3,
    ),
}
needs_compiler = pytest.mark.skipif(
    isinstance(decode.decode_library(), str), reason=f"no kernel: {decode.decode_library()}"
)


def model(shape: str = "grouped", seed: int = 0) -> Transformer:
    m = Transformer(SHAPES[shape]).initialise(seed).eval().requires_grad_(False)
    draw = torch.Generator().manual_seed(seed)
    for p in m.parameters():
        p.mul_(4.0) if p.ndim > 1 else p.add_(torch.randn(p.shape, generator=draw) * 0.1)
    return m


def in_pieces(runner: Any, tokens: np.ndarray) -> torch.Tensor:
    """Hidden states [sequences, tokens, width] by pieces of odd lengths, some of one token, in slots out of order and
    some left alone.
    """
    n = len(tokens)
    table = np.zeros((n + 3, ROOM), np.int64)
    slots = np.array([4, 0, 6, 3, 2])
    table[slots] = tokens
    out = torch.zeros(n, ROOM, runner.model.config.width)
    start = np.zeros(n, np.int64)
    for stop in [(40, 3, 1, 77, 20), (41, 4, 2, 78, 21), (42, 20, 3, 79, 60), (43, 21, 3, 80, 61), (ROOM,) * 5]:
        take = np.array(stop) - start
        live = np.flatnonzero(take)
        live = live[np.argsort(slots[live])]  # as a scheduler gives them
        hidden, last = runner.forward(table, slots[live], start[live], take[live])
        for i, z in zip(live, last, strict=True):
            out[i, start[i] : stop[i]] = hidden[z - take[i] + 1 : z + 1].float()
        start = np.array(stop)
    return out


MASKED = """
from selfteach.engine import is_batch_invariant
import torch
from selfteach.engine.native_runner import NativeRunner, PackedWeights
from selfteach.model.transformer import Config, Transformer

torch.set_grad_enabled(False)
c = Config(331, width=24, layers=1, heads=3, kv_heads=3, head_dim=8, hidden=40, max_length=160, tied=False)
runner = NativeRunner(PackedWeights(Transformer(c).initialise(0).eval(), torch.float32), 8, 150)
print(torch.backends.cpu.get_cpu_capability(), is_batch_invariant(runner))
"""


@needs_compiler
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the names of instruction sets are of x86 processors")
def test_with_half_the_vector_a_sequence_gives_the_same_bits_in_any_batch() -> None:
    """On an AMD processor gcc, left to itself, fuses products and sums in some loops and not in others."""
    command, environment = [sys.executable, "-c", MASKED], {**os.environ, "SELFTEACH_ISA": "avx2"}
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()
    assert said in (["AVX2", "True"], ["DEFAULT", "True"])


@needs_compiler
@pytest.mark.parametrize("shape", SHAPES)
@torch.inference_mode()
def test_the_native_step_gives_what_the_model_gives(shape: str) -> None:
    m, tokens = model(shape), random_keys.generator("native").integers(0, VOCAB, (5, ROOM))
    want = m(torch.from_numpy(tokens), causal_attention)
    for dtype, far in ((torch.float32, 2e-5), (torch.bfloat16, 0.15)):
        runner = NativeRunner(PackedWeights(m, dtype), 8, ROOM)
        got = in_pieces(runner, tokens)
        assert (got - want).abs().max() < far
        assert (got - want).square().mean() < (far / 4) ** 2
        hidden, wide = runner.logits(got[0].contiguous(), np.array([5, 5, 149]))
        np.testing.assert_allclose(wide, m.logits(hidden), atol=far)
        assert is_batch_invariant(runner)
        threads = torch.get_num_threads()
        try:
            torch.set_num_threads(3)
            assert torch.equal(
                in_pieces(NativeRunner(runner.packed, 8, ROOM), tokens), got
            )  # whatever number of threads
        finally:
            torch.set_num_threads(threads)


@needs_compiler
def test_the_native_draw_is_the_sampler_s() -> None:
    rng = np.random.default_rng(0)
    runner = NativeRunner(PackedWeights(model()), 1, 8)
    for vocab in (9, 331, 3000):
        logits = torch.from_numpy(rng.normal(0, 3, (200, vocab)).astype(np.float32))
        logits[::7, 3] = -torch.inf
        t, k, p = rng.choice([0.0, 0.5, 1.0, 1.3], 200), rng.choice([0, 0, 5], 200), rng.choice([1.0, 1.0, 0.9], 200)
        u = np.where(np.arange(200) % 9 == 0, rng.choice([0.0, 1 - 2.0**-53], 200), rng.random(200))
        got, want = runner.draw(logits, t, k, p, u), sampler.draw(logits, t, k, p, u)
        same = got.ids == want.ids
        assert same[
            torch.from_numpy((u > 0) & (u < 0.9999))
        ].all()  # at the ends of the interval the rounding of sums decides
        np.testing.assert_allclose(got.logp[same], want.logp[same], atol=2e-6)
        assert got.logp.isfinite().all()
        plain = torch.from_numpy((t == 1) & (k == 0) & (p == 1))
        assert torch.equal(runner.logp(logits, got.ids.numpy())[plain], got.logp[plain])
    bad = torch.tensor([[0.0, torch.nan, 1.0], [0.0, torch.inf, 1.0], [-torch.inf] * 3])
    for t in (0.0, 1.0):
        assert not runner.draw(bad, np.full(3, t), np.zeros(3, int), np.ones(3), np.full(3, 0.5)).logp.isfinite().any()


@pytest.mark.parametrize("shape", SHAPES)
@torch.inference_mode()
def test_fixed_shapes_give_what_the_model_gives(shape: str) -> None:
    m, tokens = model(shape), random_keys.generator("graphs").integers(0, VOCAB, (5, ROOM))
    runner = CudaGraphRunner(m, 8, ROOM)
    want = m(torch.from_numpy(tokens), causal_attention)
    assert (in_pieces(runner, tokens) - want).abs().max() < 2e-5
    assert runner.steps.keys() == {(8, 128)}


@torch.inference_mode()
def test_decoding_by_fixed_shapes_leaves_other_slots_as_they_are() -> None:
    m, tokens = model(), random_keys.generator("graphs").integers(0, VOCAB, (8, ROOM))
    runner, plain = CudaGraphRunner(m, 8, ROOM), TorchRunner(m, 8, ROOM)
    for r in (runner, plain):
        r.forward(tokens, np.arange(8), np.zeros(8, np.int64), np.full(8, 30))
        for at in range(30, 140):
            some = np.array([1, 4, 6])
            hidden, last = r.forward(tokens, some, np.full(3, at), np.ones(3, np.int64))
        r.found = hidden[last]
    np.testing.assert_allclose(runner.found, plain.found, atol=2e-5)
    assert torch.equal(runner.cache.k[:, [0, 2, 3, 5, 7]], plain.cache.k[:, [0, 2, 3, 5, 7]])
    assert {keys for _, keys in runner.steps} == {128, 160}


def test_slots_that_fit_the_memory() -> None:
    # 2 layers x 2 heads x 8 x 2 (k and v) x 160 tokens x 2 bytes = 20,480 bytes a slot; 0.9 of what is free, less one
    # spare
    assert slots_that_fit(64, 160, model(), torch.bfloat16, 20_480 * 20, reserve=20_480 * 10) == 8
    assert slots_that_fit(4, 160, model(), torch.bfloat16, 20_480 * 20) == 4
    assert slots_that_fit(64, 160, model(), torch.bfloat16, 0, reserve=10**9) == 1


def test_full_memory_is_answered_by_fewer_slots_and_the_same_tokens() -> None:
    tokenizer = train_tokenizer(["some text to cut into pieces"], (), 300)
    rng, warned = np.random.default_rng(0), []
    prompts = [rng.integers(0, 300, n) for n in (5, 9, 9, 30, 2, 17, 8)]

    async def everyone(engine: BuiltinEngine) -> list[Any]:
        scored = engine.score("policy", prompts[3][:10], prompts[3][10:])
        return await asyncio.gather(
            scored, *[engine.generate("policy", p, Sampling(max_tokens=12), i) for i, p in enumerate(prompts)]
        )

    want = asyncio.run(everyone(BuiltinEngine({"w": model()}, {"policy": "w"}, tokenizer, slots=8, chunk=16)))
    engine = BuiltinEngine({"w": model()}, {"policy": "w"}, tokenizer, slots=8, chunk=16)
    engine.warn = warned.append
    runner, steps = engine.schedulers["w"].runner, [0]
    forward = runner.forward

    def full(*given: Any) -> Any:
        steps[0] += 1
        if steps[0] in (4, 7):
            raise torch.OutOfMemoryError("no memory")
        return forward(*given)

    runner.forward = full  # type: ignore[method-assign]
    got = asyncio.run(everyone(engine))
    assert got[0]["logp"].tobytes() == want[0]["logp"].tobytes()
    for a, b in zip(got[1:], want[1:], strict=True):
        assert a.ids.tolist() == b.ids.tolist() and a.logp.tobytes() == b.logp.tobytes()
    assert len(engine.schedulers["w"].requests) == 2 and [s.split(";")[1].split()[0] for s in warned] == ["4", "2"]

    def never(*given: Any) -> Any:
        raise torch.OutOfMemoryError("no memory")

    runner.forward = never  # type: ignore[method-assign]
    with pytest.raises(BadValue, match="shorter context"):
        asyncio.run(engine.generate("policy", prompts[0], Sampling(max_tokens=3), 1))


def test_weights_held_in_a_shorter_type_are_proved_to_be_those_given() -> None:
    engine = BuiltinEngine(
        {"w": model()}, {"policy": "w"}, train_tokenizer(["text"], (), 300), dtype=torch.bfloat16, kernel="torch"
    )
    new = model(seed=1).named_tensors()
    assert engine.load("w", new, 1) == files.fingerprint(new) != engine.fingerprint("w")
    held = engine.models["w"].named_tensors()
    assert all(torch.equal(held[n], new[n].bfloat16()) for n in new)


def test_a_kernel_that_is_not_to_be_had_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = train_tokenizer(["text"], (), 300)
    with pytest.raises(BadValue, match="fast"):
        BuiltinEngine({"w": model()}, {"policy": "w"}, tokenizer, kernel="fast")  # type: ignore[arg-type]
    monkeypatch.setattr(decode, "decode_library", lambda: "no C++ compiler")
    with pytest.raises(BadValue, match=r"no C\+\+ compiler"):
        BuiltinEngine({"w": model()}, {"policy": "w"}, tokenizer, kernel="native")
    assert BuiltinEngine({"w": model()}, {"policy": "w"}, tokenizer).backend == {"w": "torch (no C++ compiler)"}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_graphs_give_what_the_plain_way_gives() -> None:
    tokenizer, rng = train_tokenizer(["some text to cut into pieces"], (), 300), np.random.default_rng(0)
    prompts = [rng.integers(0, 300, n) for n in (5, 9, 9, 30, 2, 17, 8)]

    async def everyone(engine: BuiltinEngine) -> list[Any]:
        return await asyncio.gather(
            *[engine.generate("policy", p, Sampling(max_tokens=40), i) for i, p in enumerate(prompts)]
        )

    def on(kernel: Any) -> tuple[BuiltinEngine, list[Any]]:
        engine = BuiltinEngine({"w": model()}, {"policy": "w"}, tokenizer, slots=4, device="cuda", kernel=kernel)
        return engine, asyncio.run(everyone(engine))

    (fast, got), (_, want) = on("auto"), on("torch")
    assert fast.backend == {"w": "torch, CUDA graphs"}
    for a, b in zip(got, want, strict=True):
        assert a.ids.tolist() == b.ids.tolist()
        np.testing.assert_allclose(a.logp, b.logp, atol=1e-3)
