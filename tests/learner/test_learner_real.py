"""The learner for real models: kernels of its own against torch, recomputed layers, memory that runs out, moments in 8
bits.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.learners import BOTH, CAST, SHAPE, UPDATES, WEIGHTS, collect, gradient, learner, loss_weights, made, model
from support.tensors import noise

from selfteach.core import BadCheckpoint, BadValue, ModelRole, WeightSpec, registry
from selfteach.kernels import fast_paths
from selfteach.kernels.build import load_library
from selfteach.kernels.layer_ops import SOURCE, LayerOps, layer_ops, segments_of
from selfteach.learner import LocalLearner, local, microbatch
from selfteach.learner.microbatch import padded_attention
from selfteach.loop import memory_plan
from selfteach.loop.assemble import RunSettings as RunSettings
from selfteach.loop.assemble import memory as memory_line
from selfteach.model import devices
from selfteach.model.attention import AttentionSpec
from selfteach.model.catalog import StartModel
from selfteach.model.transformer import Config, Transformer


def native() -> LayerOps:
    if isinstance(why := load_library(SOURCE), str):
        pytest.skip(f"no kernels here: {why}")
    found = layer_ops()
    assert found is not None
    return found


def compared(ours, plain, inputs: list[torch.Tensor], tol: float) -> None:
    """Values and gradients of two functions of the same tensors, the second one in float64."""
    a = [x.clone().requires_grad_(True) for x in inputs]
    b = [x.double().requires_grad_(True) for x in inputs]
    y, z = ours(*a), plain(*b)
    g = noise(*y.shape, seed=9).to(y.dtype)
    y.backward(g)
    z.backward(g.double())
    for found, want in [(y, z), *((p.grad, q.grad) for p, q in zip(a, b, strict=True))]:
        assert found is not None and want is not None
        assert float((found.detach().double() - want.detach()).norm() / want.detach().norm()) < tol


# ---- kernels


@pytest.mark.parametrize("kind, tol", [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("width", [24, 32, 50])
def test_kernels_say_what_torch_says(kind: torch.dtype, tol: float, width: int):
    k = native()
    x, z, w = noise(1, 7, width).to(kind), noise(1, 7, width, seed=1).to(kind), noise(width, seed=2)
    for shift in (0.0, 1.0):
        compared(
            lambda x, w, s=shift: k.norm(x, w, 1e-5, s, False)[0],
            lambda x, w, s=shift: x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * (s + w),
            [x, w],
            tol,
        )
    compared(lambda a, b: k.gated("silu", a, b), lambda a, b: torch.nn.functional.silu(a) * b, [5 * x, z], tol)
    turned = x.view(1, 7, 1, width)
    angle = noise(1, 7, width // 2, seed=3).repeat(1, 1, 2)
    cos, sin = angle.cos(), angle.sin()

    def by_hand(x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        return x * cos.double()[:, :, None] + torch.cat([-b, a], -1) * sin.double()[:, :, None]

    compared(lambda x: k.rotate(x, cos, sin), by_hand, [turned], tol)


@pytest.mark.parametrize("kind, tol", [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize(
    "heads, kv, hd, window", [(4, 2, 8, 0), (8, 2, 32, 0), (3, 1, 40, 0), (6, 6, 24, 3), (2, 1, 64, 40)]
)
def test_attention_over_texts_and_branches(kind: torch.dtype, tol: float, heads: int, kv: int, hd: int, window: int):
    """Three texts, the second with three branches and the third with one, uneven and longer than a block of rows."""
    k = native()
    bases, branches = np.array([5, 61, 2]), np.array([1, 33, 7, 4])
    context = np.array([5, 5, 5, 66])
    first = np.array([61, 61, 61, 2])
    spec = AttentionSpec(0, hd**-0.5, window)
    n = int(bases.sum() + branches.sum())
    q, kk, v = (noise(n, h, hd, seed=h + i).to(kind) for i, h in enumerate((heads, kv, kv)))
    plain = padded_attention(bases, branches, first, context, "cpu")
    segments = segments_of(bases, branches, first, context)
    compared(
        lambda q, kk, v: k.attend(segments, q, kk, v, spec.scale, window),
        lambda q, kk, v: plain(spec, q, kk, v),
        [q, kk, v],
        tol,
    )
    reserved_token = torch.cat([q, q[:3]])
    out = k.attend(segments, reserved_token, *(torch.cat([x, x[:3]]) for x in (kk, v)), spec.scale, window)
    assert out is not None and (out[n:] == 0).all()


def test_what_kernels_cannot_do_is_done_by_torch(monkeypatch: pytest.MonkeyPatch):
    k = native()
    x = noise(1, 2, 8)
    assert k.gated("gelu", x, x) is None and k.norm(x.double(), noise(8), 1e-5, 0.0, False) is None
    segments = segments_of(np.array([2]), *[np.zeros(0, np.int64)] * 3)
    assert k.attend(segments, *[x.view(2, 1, 8).double()] * 3, 1.0) is None
    update = UPDATES["value, shared trunk"]
    batch = loss_weights(made(), update)
    for dtype, tol in (("float32", 1e-5), ("bfloat16", 0.05)):
        with_them = gradient(learner(start=model(double=False), dtype=dtype), batch, update)
        with monkeypatch.context() as patch:
            patch.setattr(fast_paths, "layer_ops", lambda: None)
            patch.setattr(microbatch, "layer_ops", lambda: None)
            without = gradient(learner(start=model(double=False), dtype=dtype), batch, update)
        assert all(float((with_them[n] - without[n]).norm()) <= tol * float(without[n].norm()) for n in without)


def test_not_a_number_is_not_hidden():
    k = native()
    q = noise(6, 2, 8)
    segments = segments_of(np.array([6]), *[np.zeros(0, np.int64)] * 3)
    bad = q.clone()
    bad[3, 0, 2] = torch.nan
    out = k.attend(segments, bad, q[:, :1].contiguous(), q[:, :1].contiguous(), 1.0)
    assert out is not None and out[3, 0].isnan().all() and out[:3].isfinite().all() and out[4:].isfinite().all()


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_threads_change_no_bit_of_attention(kind: torch.dtype):
    k = native()
    none = np.zeros(0, np.int64)
    segments = segments_of(np.array([40, 3, 17]), none, none, none)
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        q, kk, v = (noise(60, h, 16, seed=h).to(kind).requires_grad_(True) for h in (4, 2, 2))
        out = k.attend(segments, q, kk, v, 0.25)
        assert out is not None
        out.backward(noise(60, 4, 16, seed=5).to(kind))
        found.append([out, q.grad, kk.grad, v.grad])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))  # type: ignore[arg-type]


# ---- less memory


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["value, shared trunk", "sequence"])
def test_recomputed_layers_give_the_same_bits(dtype: str, name: str):
    update = UPDATES[name]
    batch = loss_weights(made(), update)
    kept, anew = (
        gradient(learner(60, start=model(double=False), dtype=dtype, recompute=r), batch, update) for r in (False, True)
    )
    assert kept.keys() == anew.keys() and all(torch.equal(kept[n], anew[n]) for n in kept)


def test_out_of_memory_halves_the_micro_batch_and_begins_the_gradient_again(monkeypatch: pytest.MonkeyPatch, tmp_path):
    update = UPDATES["token"]
    batch = loss_weights(made(), update)
    want = gradient(learner(), batch, update)
    for name in want:
        want[name] = 2 * want[name] if name != "loss" else want[name]
    run = learner()
    warned: list[str] = []
    run.warn = warned.append
    run.backward(batch, update)  # part of the same step: it is done again too
    whole, calls = local.accumulate_gradients, []

    def full(*given):
        out = whole(*given)  # the gradient is in already, wholly or in part, when memory runs out
        calls.append(given[3])
        if len(calls) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return out

    monkeypatch.setattr(local, "accumulate_gradients", full)
    metrics = run.backward(batch, update)
    assert calls == [4096, 2048, 2048] and warned == [
        "out of memory: micro-batches are of 2048 tokens from here on; this computation is repeated"
    ]
    found = collect(run, update) | {"loss": torch.tensor(metrics["loss"], dtype=torch.float64)}
    assert all(torch.allclose(found[n], want[n], rtol=1e-9, atol=1e-12) for n in want)
    run.save(tmp_path)
    again = LocalLearner(WEIGHTS, CAST, model(), 0, run.settings)
    again.load(tmp_path)
    assert again.tokens == 2048  # so that a resumed run cuts its batches as this one would have

    def never(*given):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(local, "accumulate_gradients", never)
    with pytest.raises(
        BadValue, match=r"out of memory on cpu with one sequence of \d+ tokens at a time; take --recompute"
    ):
        run.backward(batch, update)
    assert local.out_of_memory(
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")
    ) and not local.out_of_memory(RuntimeError("x"))


def test_moments_in_8_bits_are_saved_and_resumed_exactly(tmp_path):
    pytest.importorskip("bitsandbytes", reason="needs the extra selfteach[int8]")
    update = UPDATES["value, shared trunk"]
    batch = loss_weights(made(), update)
    wide = Transformer(Config(**{**vars(SHAPE), "width": 64, "hidden": 128})).initialise(
        0
    )  # matrices of 4096 numbers and more are coded

    def new() -> LocalLearner:
        return LocalLearner(WEIGHTS, CAST, wide, 0, RunSettings(optimiser="adamw8bit", weight_decay=0.1))

    def steps(run: LocalLearner, n: int) -> None:
        for _ in range(n):
            run.backward(batch, update)
            run.step(update, 1e-2)

    one = new()
    steps(one, 2)
    one.save(tmp_path)
    kinds = {k.split("|")[2]: t.dtype for k, t in one.optimisers.tensors().items()}
    assert kinds["absmax1"] == torch.float32 and any(t.dtype == torch.uint8 for t in one.optimisers.tensors().values())
    two = new()
    two.load(tmp_path)
    steps(one, 2)
    steps(two, 2)
    for group in ("policy", "value_head"):
        assert all(torch.equal(p, two.weights(group)[n]) for n, p in one.weights(group).items())
    with pytest.raises(BadCheckpoint, match="is not one of the optimiser adamw"):
        LocalLearner(WEIGHTS, CAST, wide, 0).load(tmp_path)


def test_8_bits_without_the_package_is_one_line(monkeypatch: pytest.MonkeyPatch):
    import sys

    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", None)
    with pytest.raises(BadValue, match=r"needs the package bitsandbytes .*selfteach\[int8\]"):
        learner(optimiser="adamw8bit")


# ---- what a run will hold


def test_memory_by_hand():
    # width 8, 2 heads of 4, 1 kv head of 4, MLP 16, 2 layers, 10 ids, tied:
    # linear: 2 x (8 x (2 x 8 + 2 x 4) + 3 x 8 x 16) = 2 x (192 + 384) = 1152; norms 8 x (1 + 4) = 40; embedding 80.
    # Together 1272.
    c = Config(vocab=10, width=8, layers=2, heads=2, kv_heads=1, head_dim=4, hidden=16, max_length=64)
    assert memory_plan.parameter_counts(c) == (1272, 1152)
    assert sum(p.numel() for p in Transformer(c).parameters()) == 1272
    # A token and layer in float32: 8 x 8 + 4 x (16 + 16 + 8 + 48) = 416, and 8 for its log-sums; 2 layers 848, the way
    # back 416, ends 96.
    assert memory_plan.activation_bytes(c, 1, bf16=False, recompute=False) == 848 + 416 + 96
    # Recomputed: the inputs of two layers 2 x 32, one layer 416, the way back 416, ends 96.
    assert memory_plan.activation_bytes(c, 10, bf16=False, recompute=True) == 10 * (64 + 416 + 416 + 96)
    # In bf16: 64 + 2 x 88 = 240, twice with log-sums 496, the way back 240, ends 96.
    assert memory_plan.activation_bytes(c, 1, bf16=True, recompute=False) == 496 + 240 + 96
    plan = memory_plan.plan_memory(
        c, ["policy", "ref"], [("policy",), ("policy", "value_head")], ["policy"], tokens=100, slots=3, length=40
    )
    assert plan.parts["weights"] == 3 * 1272 * 4  # the start, policy, ref
    assert (
        plan.parts["gradients"] == 1272 * 4 and plan.parts["moments"] == 2 * 8 * 1272
    )  # two updates, each with moments of its own
    assert plan.parts["engine"] == 4 * (1272 + 2 * 2 * 3 * 1 * 64 * 4)  # 40 tokens in rooms of 32
    coded = memory_plan.plan_memory(
        c, ["policy"], [("policy",)], [], tokens=100, slots=1, length=40, moments_8bit=True, bf16=True
    )
    assert coded.parts["moments"] == 2 * 1272 + 8 * 1272 // 256 and coded.parts["weights"] == 2 * 1272 * 4 + 1152 * 4
    # Adapters of rank 2: sides of q 8 + 8, k and v 8 + 4, o 8 + 8, three of the MLP 8 + 16: 128 a layer, 256 in all, so
    # 512 numbers.
    thin = memory_plan.plan_memory(c, ["policy", "ref"], [("policy",)], [], tokens=100, slots=1, length=40, rank=2)
    assert (
        thin.parts["weights"] == 4 * (1272 + 2 * 512)
        and thin.parts["moments"] == 8 * 512
        and thin.parts["gradients"] == 4 * 512
    )
    # On a GPU in bf16 the linear layers of a base have 2 bytes; of a trained model they are copied in 2 bytes besides.
    half = {"tokens": 100, "slots": 1, "length": 40, "bf16": True, "gpu": True}
    thin = memory_plan.plan_memory(c, ["policy"], [("policy",)], [], rank=2, **half)
    whole = memory_plan.plan_memory(c, ["policy"], [("policy",)], [], start=False, **half)
    assert thin.parts["weights"] == 4 * (1272 + 512) - 2 * 1152 and whole.parts["weights"] == 4 * 1272 + 2 * 1152
    long = memory_plan.plan_memory(c, ["policy"], [("policy",)], [], tokens=10, slots=1, length=40)
    assert long.tokens == 40  # a sequence is never cut
    # Over two ranks of a GPU each: half of policy and ref; and whole, with gradients, 120 numbers that are in no linear
    # layer and the 576 of each of two layers.
    parts = memory_plan.plan_memory(
        c, ["policy"], [("policy",)], [], tokens=100, slots=1, length=40, gpu=True, ranks=2
    ).parts
    assert parts["weights"] == 2 * 1272 * 4 // 2 + 2 * 4 * (120 + 2 * 576)
    assert parts["moments"] == 8 * 1272 // 2 and parts["gradients"] == 4 * 1272 // 2
    # Over four, of which two divide each layer: a quarter of its 1152 numbers, and half of the 120 others; half of what
    # is gathered of two layers; and of activations in a layer half of 2 x 8 + 2 x 4 + 3 x 16 numbers.
    parts = memory_plan.plan_memory(
        c, ["policy"], [("policy",)], [], tokens=100, slots=1, length=40, gpu=True, ranks=4, tensor_parallel=2
    ).parts
    assert parts["weights"] == 2 * 4 * (1152 // 4 + 120 // 2) + 2 * 4 * (120 + 576)
    assert parts["moments"] == 8 * (1152 // 4 + 120 // 2) == 2 * parts["gradients"]
    assert parts["activations"] == 100 * (2 * (64 + 4 * (16 + 36) + 8) + 64 + 4 * (16 + 36) + 96)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rank": 16, "slots": 64, "tokens": 8192}, "about 55.7 GB: weights 16.4 GB, gradients 154 MB"),
        ({"rank": 16, "slots": 128, "tokens": 8192}, "69.7 GB"),
        ({"rank": 16, "slots": 16, "tokens": 4096}, "42.2 GB"),
        ({"slots": 64, "tokens": 8192, "moments_8bit": True}, "122.1 GB"),
    ],
)
def test_the_page_of_one_gpu_says_what_the_plan_says(given: dict[str, Any], said: str):
    shape = {"width": 3584, "hidden": 18944, "layers": 28, "heads": 28, "kv_heads": 4, "head_dim": 128}
    c = Config(152064, **shape, tied=False, max_length=32768)
    more = {"length": 4096, "bf16": True, "gpu": True, "recompute": True, "engine_bytes": 2, "engine_weight_bytes": 2}
    plan = memory_plan.plan_memory(c, ["policy"], [("policy",)], ["policy"], start=False, **more, **given)
    page = (Path(__file__).parents[2] / "docs" / "one_gpu.md").read_text()
    assert said in page and said in plan.line(None), plan.line(None)


@pytest.mark.parametrize(
    "device, dtype, size",
    [("cuda", "bfloat16", 65), ("cuda", "float32", 130), ("cpu", "bfloat16", 131), ("cpu", "float32", 196)],
)
def test_an_engine_is_counted_in_the_bytes_of_its_numbers(
    monkeypatch: pytest.MonkeyPatch, device: str, dtype: str, size: int
):
    """Weights: 2^24 of the embedding, 7 x 2^16 linear, 3 x 256 of norms.

    Cache: 2 x 512 slots x 64 positions x 256 = 2^24.

    On a GPU both in the engine's precision: 2 (2^24 + 459,520 + 2^24) bytes are 65 MB, 4 are 130. On a CPU weights are
    there in float32 besides: 6 (2^24 + 459,520) + 2 x 2^24 bytes are 131 MB, and 8 and 4 are 196.
    """
    c = Config(1 << 16, width=256, layers=1, heads=1, kv_heads=1, head_dim=256, hidden=256, max_length=64)
    start = StartModel(Transformer.without_weights(c), None, True, {})  # type: ignore[arg-type]
    settings = RunSettings(device=device, dtype="float32", engine_dtype=dtype, slots=512)  # type: ignore[arg-type]
    monkeypatch.setattr(devices, "resolve_device", lambda name: name)
    monkeypatch.setattr(devices, "free_memory", lambda device: None)
    line = memory_line(registry.methods.get("grpo")(), start, settings)
    assert line is not None and f"engine {size} MB (512 x 64 tokens)" in line


def test_what_does_not_fit_is_refused_with_a_way_out():
    plan = memory_plan.MemoryPlan({"weights": 2 << 30, "activations": 3 << 30, "engine": 1 << 20}, 4096, 64, 1024)
    assert (
        plan.line(8 << 30) == "about 5.0 GB of 8.0 GB free: weights 2.0 GB, activations 3.0 GB (4,096 tokens),"
        " engine 1 MB (64 x 1,024 tokens)"
    )
    plan.check(6 << 30)
    plan.check(None)
    with pytest.raises(
        BadValue,
        match=r"needs about 5\.0 GB and 4\.0 GB are free; most is for activations \(3\.0 GB\): take a lower"
        " --micro-tokens",
    ):
        plan.check(4 << 30)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's malloc is told to keep what is freed")
def test_what_a_run_before_has_freed_counts_as_free():
    says = """
from selfteach.model import devices
devices.keep_freed_memory()
kept = [bytearray(b"x" * (1 << 20)) for _ in range(600)]
del kept
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
before = resident()
devices.free_memory("cpu")
print(before - resident())
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run([sys.executable, "-c", says], capture_output=True, text=True, check=True, env=environment)
    assert int(done.stdout) > 500 << 20


def test_devices_are_named_once():
    assert devices.resolve_device("cpu") == "cpu" and devices.resolve_dtype("bfloat16", "cpu") == "bfloat16"
    assert devices.resolve_dtype("auto", "cpu") == "float32"
    assert (devices.free_memory("cpu") or 0) > 1 << 20
    for wrong in ("gpu", "cpu:1", "cuda:x", "cuda:99"):
        with pytest.raises(BadValue, match="device"):
            devices.resolve_device(wrong)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype, tol", [("float32", 1e-3), ("bfloat16", 0.05)])
def test_a_gpu_gives_the_same_gradient(dtype: str, tol: float):
    update = UPDATES["token"]
    batch = loss_weights(made(), update)
    want = gradient(learner(start=model(double=False)), batch, update)
    run = LocalLearner(
        {"policy": WeightSpec()},
        {"policy": ModelRole()},
        model(double=False),
        0,
        RunSettings(dtype=dtype, device="cuda"),
    )
    run.backward(batch, update)
    found = collect(run, update)
    assert all(float((g.cpu() - want[n]).norm()) <= tol * float(want[n].norm()) for n, g in found.items())
    assert BOTH and found
