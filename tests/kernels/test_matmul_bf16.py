"""The bf16 matmul kernel against torch in float64: linear layers and their gradients, the output head."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.learners import UPDATES, gradient, learner, loss_weights, made, model
from support.tensors import noise

from selfteach.kernels import fast_paths, layer_ops, matmul_bf16
from selfteach.kernels.build import load_library
from selfteach.learner import columns, microbatch


@pytest.fixture
def own() -> matmul_bf16.Bf16Matmul:
    """Also where torch's are faster: the result is to be right everywhere."""
    if isinstance(lib := load_library(matmul_bf16.SOURCE), str):
        pytest.skip(f"no kernels here: {lib}")
    return matmul_bf16.Bf16Matmul(lib)


def apart(a: torch.Tensor | None, b: torch.Tensor | None) -> float:
    assert a is not None and b is not None
    return float((a.detach().double() - b.detach().double()).norm() / b.detach().double().norm())


# Tokens, inputs, outputs: less than a tile, odd ends everywhere, more than what is met at a time in either direction.
SIZES = [(1, 2, 2), (7, 24, 10), (61, 38, 100), (530, 66, 34), (1100, 34, 18), (13, 1100, 20), (13, 20, 2060)]


@pytest.mark.parametrize("n, k, out", SIZES)
def test_products_and_their_gradients(own: matmul_bf16.Bf16Matmul, n: int, k: int, out: int) -> None:
    x = noise(1, n, k).bfloat16().requires_grad_(True)
    first, second, bias = (noise(*s, seed=i).requires_grad_(True) for i, s in enumerate([(out, k), (6, k), (6,)], 1))
    got = own.linear(x, [first, second], [None, bias])
    assert got is not None
    a, b = (w.detach().bfloat16().double().requires_grad_(True) for w in (first, second))
    x64, bias64 = (t.detach().double().requires_grad_(True) for t in (x, bias))
    want = x64 @ a.T, x64 @ b.T + bias64
    push = [noise(*y.shape, seed=7 + i).bfloat16() for i, y in enumerate(want)]
    torch.autograd.backward(got, push)
    torch.autograd.backward(want, [g.double() for g in push])
    for y, z in [*zip(got, want, strict=True), (x.grad, x64.grad)]:
        assert apart(y, z) < 2**-8  # rounded to bf16 once
    for p, q in [(first.grad, a.grad), (second.grad, b.grad), (bias.grad, bias64.grad)]:
        assert apart(p, q) < 1e-5  # summed in float32, from what is exact in bf16
    again = own.linear(x.detach(), [first], [None])
    assert again is not None
    again[0].backward(push[0])
    assert apart(first.grad, 2 * a.grad) < 1e-5  # onto what is there


def test_onto_a_residual_in_float32(own: matmul_bf16.Bf16Matmul) -> None:
    x, plus, w = (
        noise(2, 9, 8).bfloat16().requires_grad_(True),
        noise(2, 9, 6, seed=1).requires_grad_(True),
        noise(6, 8, seed=2).requires_grad_(True),
    )
    out = own.linear(x, [w], [None], plus)
    assert out is not None and out[0].dtype == torch.float32
    assert apart(out[0], plus.double() + x.double() @ w.detach().bfloat16().double().T) < 1e-6
    push = noise(2, 9, 6, seed=3)
    out[0].backward(push)
    assert torch.equal(plus.grad, push)  # type: ignore[arg-type]
    assert apart(w.grad, push.bfloat16().double().flatten(0, 1).T @ x.double().flatten(0, 1)) < 1e-5
    assert (
        own.linear(x, [noise(3, 8)], [None]) is None and own.linear(x, [noise(4, 8)], [None], plus) is None
    )  # odd, of another size


def test_threads_change_no_bit_of_products(own: matmul_bf16.Bf16Matmul) -> None:
    found = []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        own.clear()
        x, w, h = (
            noise(700, 40).bfloat16().requires_grad_(True),
            noise(130, 40, seed=1).requires_grad_(True),
            noise(600, 40).requires_grad_(True),
        )
        (y,) = own.linear(x, [w], [None])  # type: ignore[misc]
        y.backward(noise(700, 130, seed=2).bfloat16())
        wide = noise(5000, 40, seed=3).requires_grad_(True)
        logp, entropy = own.logp(h, wide, torch.arange(600), None)  # type: ignore[misc]
        (logp * noise(600, seed=4)).sum().backward()
        found.append([y, x.grad, w.grad, logp, entropy, h.grad, wide.grad])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def by_hand(
    hidden: torch.Tensor, weight: torch.Tensor, ids: torch.Tensor, temperature: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    wide = (hidden @ weight.T / (1.0 if temperature is None else temperature[:, None])).log_softmax(-1)
    return wide.gather(-1, ids[:, None]).squeeze(-1), -(wide.exp() * wide).sum(-1)


@pytest.mark.parametrize("held", [0, 1 << 28], ids=["anew", "kept"])
@pytest.mark.parametrize("heated", [False, True])
@pytest.mark.parametrize("mixed", [False, True])
def test_the_head_without_logits(
    own: matmul_bf16.Bf16Matmul, held: int, heated: bool, mixed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matmul_bf16, "MAX_KEPT", held)
    monkeypatch.setattr(matmul_bf16, "CHUNK_ELEMENTS", 1)
    monkeypatch.setattr(matmul_bf16, "MIN_ROWS", 64)
    n, vocab = 150, 2110  # three chunks of rows, two spans of ids, a last panel that is not full
    hidden, weight = noise(n, 32).bfloat16().float(), noise(vocab, 32, seed=1).bfloat16().float().mul(0.5)
    ids, temperature = (
        torch.arange(n) * 14 % vocab,
        0.5 + torch.rand(n, generator=torch.Generator().manual_seed(0)) if heated else None,
    )
    mine, plain = (
        [t.clone().to(d).requires_grad_(True) for t in (hidden, weight)] for d in (torch.float32, torch.float64)
    )
    got = own.logp(*mine, ids, temperature)
    want = by_hand(*plain, ids, None if temperature is None else temperature.double())
    assert got is not None
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(
            a.double(), b, atol=2e-5, rtol=0
        )  # the inputs are exact in bf16: what is left is float32's
    push = [noise(n, seed=2), noise(n, seed=3) * mixed]
    torch.autograd.backward(got, push)
    torch.autograd.backward(want, [g.double() for g in push])
    for a, b in zip(mine, plain, strict=True):
        assert apart(a.grad, b.grad) < 4e-3  # parts are rounded to bf16, each by 2^-9 at most


def test_the_gradient_of_an_id_that_is_nearly_certain_keeps_its_size(own: matmul_bf16.Bf16Matmul) -> None:
    """p = 0.99997: 1 - p, in bf16, would be 0 or 0.004."""
    hidden, weight = (
        torch.full((1, 2), 3.0, requires_grad=True),
        torch.tensor([[2.0, 2.0], [0.25, 0.25]], requires_grad=True),
    )
    logp, _ = own.logp(hidden, weight, torch.tensor([0]), None)  # type: ignore[misc]
    logp.backward()
    # logits 12 and 1.5: 1 - p = 1 / (1 + e^10.5); d logp / d hidden = (1 - p) (w_0 - w_1) = (1 - p) 1.75
    rest = 1 / (1 + np.exp(10.5))
    np.testing.assert_allclose(logp.item(), np.log1p(-rest), rtol=1e-2)
    np.testing.assert_allclose(hidden.grad[0], [1.75 * rest] * 2, rtol=5e-3)  # type: ignore[index]


def test_an_id_far_below_the_greatest_and_what_is_not_a_number(own: matmul_bf16.Bf16Matmul) -> None:
    hidden, weight = (
        torch.tensor([[10.0, 0.0], [0.0, 10.0], [torch.nan, 1.0]], requires_grad=True),
        torch.tensor([[0.0, 1.0], [20.0, 0.0]]),
    )
    logp, entropy = own.logp(hidden, weight, torch.tensor([0, 0, 0]), None)  # type: ignore[misc]
    # Logits (0, 200) and (10, 0): logp = -200, and -log(1 + e^-10).
    np.testing.assert_allclose(logp[:2].detach(), [-200.0, -np.log1p(np.exp(-10))], rtol=1e-5, atol=1e-7)
    assert entropy[0] == 0 and logp[2].isnan()
    logp[0].backward()
    np.testing.assert_allclose(hidden.grad[0], [-20.0, 1.0])  # type: ignore[index]


def test_a_learner_in_bf16_is_as_near_to_float32_as_torch_s_is(
    own: matmul_bf16.Bf16Matmul, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its gradient does not depend on how the batch is cut."""
    update = UPDATES["token"]
    batch = loss_weights(made(), update)

    def far(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
        names = [n for n in a if n != "loss"]
        away, size = (
            sum(float(x.double().square().sum()) for x in y)
            for y in ([a[n] - b[n] for n in names], [b[n] for n in names])
        )
        return float(np.sqrt(away / size))

    exact = gradient(learner(start=model(double=False)), batch, update)
    for module in (layer_ops, columns):
        monkeypatch.setattr(module, "bf16_matmul", lambda: own)
    whole = gradient(learner(start=model(double=False), dtype="bfloat16"), batch, update)
    cut = gradient(learner(60, start=model(double=False), dtype="bfloat16"), batch, update)
    assert own.packed_weights == {}  # nothing outlives the gradient that it was packed for
    with monkeypatch.context() as patch:
        for module in (fast_paths, microbatch):
            patch.setattr(module, "layer_ops", lambda: None)
        plain = gradient(learner(start=model(double=False), dtype="bfloat16"), batch, update)
    assert far(whole, exact) < 1.5 * far(plain, exact) < 0.05
    assert far(cut, whole) < 1e-2
