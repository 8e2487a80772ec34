"""Vocabulary-sized work is done by chunks: what comes of it, its gradient, and the memory that it takes."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from selfteach.core.registry import quantities
from selfteach.engine import sampler
from selfteach.learner import columns
from selfteach.model.attention import soft_cap
from selfteach.model.quantities import compute, logprobs
from selfteach.model.transformer import Config, Transformer

NAMES = {"logp", "entropy", "raw_logp", "mean_logp", "lse"}


def head(vocab: int, cap: float | None, dtype: torch.dtype = torch.float64) -> Transformer:
    model = Transformer(
        Config(vocab=vocab, width=16, layers=1, heads=2, kv_heads=1, head_dim=8, hidden=16, tied=False, logit_cap=cap)
    )
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        model.lm_head.weight.copy_(torch.randn(vocab, 16, generator=draw))
    return model.to(dtype)


def rows(n: int, vocab: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    hidden = torch.randn(n, 16, generator=draw, dtype=dtype).requires_grad_(True)
    return hidden, torch.randint(0, vocab, (n,), generator=draw), 0.5 + torch.rand(n, generator=draw, dtype=dtype)


def by_chunks(model: Transformer, names: set[str], hidden: Any, ids: Any, temperature: Any) -> dict[str, torch.Tensor]:
    return columns._logit_quantities(model, {n: quantities.get(n) for n in names}, hidden, ids, temperature)


@pytest.mark.parametrize("held", [0, 1 << 25], ids=["anew", "kept"])
@pytest.mark.parametrize("heated", [False, True])
@pytest.mark.parametrize("cap", [None, 2.0])
@pytest.mark.parametrize(
    "names", [{"logp"}, {"entropy"}, {"logp", "entropy"}, NAMES], ids=["logp", "entropy", "both", "all"]
)
def test_chunks_are_plain_autograd_over_all_logits(
    names: set[str], cap: float | None, heated: bool, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "MAX_KEPT_LOGITS", held)
    monkeypatch.setattr(columns, "CHUNK_LOGITS", 1)
    model, (hidden, ids, temperature) = head(37, cap), rows(150, 37)
    given = temperature if heated else None
    got = by_chunks(model, names, hidden, ids, given)
    logits = soft_cap(hidden @ model.lm_head.weight.T, cap)
    all_of = {"logits": logits, "ids": ids, "logprobs": logprobs(logits, given if given is not None else 1.0)}
    want = {n: compute(n, all_of) for n in names}
    push = {n: torch.cos(torch.arange(150.0) + k) for k, n in enumerate(sorted(names))}
    push["logp"] = push.get("logp", torch.zeros(150)).index_fill(0, torch.arange(0, 150, 7), 0.0)
    inputs = [hidden, model.lm_head.weight]
    grads = [torch.autograd.grad(sum((x[n] * push[n]).sum() for n in names), inputs) for x in (got, want)]  # type: ignore[arg-type]
    for n in names:
        torch.testing.assert_close(got[n], want[n], atol=1e-12, rtol=0)
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, atol=1e-11, rtol=1e-11)


def test_the_way_back_is_that_of_finite_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "MAX_KEPT_LOGITS", 0)
    model, (hidden, ids, temperature) = head(7, 1.5), rows(64, 7)
    weight = model.lm_head.weight.detach().requires_grad_(True)
    call = lambda h, w: columns.TokenLogProb.apply(h, w, ids, temperature, 1.5, 64, True)  # noqa: E731
    assert torch.autograd.gradcheck(call, (hidden, weight), fast_mode=True)


class Watch(TorchDispatchMode):
    """The largest tensor that is made inside, and the most that tensors made inside hold at one time, in numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = self.now = self.most = 0
        self.seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else [out]:
            if not isinstance(x, torch.Tensor):
                continue
            memory = x.untyped_storage()
            if memory._cdata in self.seen:
                continue
            self.seen.add(memory._cdata)
            size = memory.nbytes() // 4
            self.largest, self.now = max(self.largest, size), self.now + size
            self.most = max(self.most, self.now)
            weakref.finalize(memory, self._gone, memory._cdata, size)
        return out

    def _gone(self, memory: int, size: int) -> None:
        self.seen.discard(memory)
        self.now -= size


@pytest.mark.parametrize("names", [{"logp"}, {"logp", "entropy"}, NAMES], ids=["logp", "both", "all"])
@pytest.mark.parametrize("cap", [None, 2.0])
def test_no_matrix_of_all_rows_by_the_vocabulary_is_made(
    names: set[str], cap: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    n, vocab = 2048, 4000
    monkeypatch.setattr(columns, "MAX_KEPT_LOGITS", 0)
    monkeypatch.setattr(columns, "CHUNK_LOGITS", columns.ROW_MULTIPLE * vocab)
    model, (hidden, ids, temperature) = head(vocab, cap, torch.float32), rows(n, vocab, torch.float32)
    chunk = columns.ROW_MULTIPLE * vocab
    with Watch() as watch:
        out = by_chunks(model, names, hidden, ids, temperature)
        torch.autograd.grad(sum(x.sum() for x in out.values()), [hidden, model.lm_head.weight])  # type: ignore[arg-type]
    assert watch.largest == chunk
    assert watch.most < 12 * chunk  # of the 32 that one whole matrix would be, of which autograd would keep several
    with Watch() as watch, torch.no_grad():
        by_chunks(model, names, hidden, ids, temperature)
    assert watch.largest == chunk and watch.most < 5 * chunk
    with Watch() as whole:
        logits = model.logits(hidden)
        logprobs(logits, temperature).exp().sum().backward()
    assert whole.largest == n * vocab and whole.most > 3 * n * vocab  # what the watch says of the plain way


def truncated_by_hand(logp: np.ndarray, k: int, p: float) -> list[int]:
    order = np.argsort(-logp, kind="stable")[: k or None]
    mass = np.exp(logp[order].astype(np.float64))
    return sorted(
        order[np.cumsum(mass) - mass < p * (mass.sum() if k else np.exp(logp.astype(np.float64)).sum())].tolist()
    )


@pytest.mark.parametrize("rough", [False, True])
def test_truncation_keeps_what_a_sort_would_whatever_is_tried_first(rough: bool) -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 3, (24, 700)).astype(np.float32)
    logits = np.round(logits) if rough else logits  # many are equally likely
    logits[3, 50:] = -np.inf
    lp = torch.from_numpy(logits).log_softmax(-1)
    k, p = rng.choice([0, 1, 5, 60, 700, 900], 24), rng.choice([1.0, 0.97, 0.5, 0.02], 24)
    k[3], p[3] = 60, 1.0
    every = [sampler.truncate(lp, torch.from_numpy(k), torch.from_numpy(p), likely) for likely in (2, 16, 128, 700)]
    for kept in every[1:]:
        assert torch.equal(kept, every[0])
    for row in range(24):
        want = truncated_by_hand(lp[row].numpy(), int(k[row]), float(p[row]))
        kept = every[0][row]
        assert torch.nonzero(kept > -torch.inf)[:, 0].tolist() == [i for i in want if np.isfinite(lp[row, i])]
        assert abs(kept.exp().sum().item() - 1) < 1e-5
        np.testing.assert_array_equal(
            kept, sampler.truncate(lp[row : row + 1], torch.tensor([k[row]]), torch.tensor([p[row]]), 16)[0]
        )


@pytest.mark.parametrize("vocab", [5, 256, 257, 3000])
def test_a_token_is_where_the_whole_distribution_passes_the_uniform(vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    logits = torch.from_numpy(rng.normal(0, 4, (300, vocab)).astype(np.float32))
    logits[:, rng.random(vocab) < 0.3] = -torch.inf
    logits[:, rng.integers(vocab)] = 1.0
    u = rng.random(300)
    one = np.ones(300)
    ids = sampler.draw(logits, one, np.zeros(300, int), one, u).ids.numpy()
    cdf = logits.double().softmax(-1).cumsum(-1).numpy()
    low = np.where(ids > 0, np.take_along_axis(cdf, np.maximum(ids - 1, 0)[:, None], 1)[:, 0], 0.0)
    high = np.take_along_axis(cdf, ids[:, None], 1)[:, 0]
    assert (
        (low - 1e-6 <= u).all() and (u <= high + 1e-6).all() and np.isfinite(logits.numpy()[np.arange(300), ids]).all()
    )
    few = sampler.draw(logits[:7], one[:7], np.zeros(7, int), one[:7], u[:7])
    assert few.ids.tolist() == ids[:7].tolist()


def test_a_draw_makes_no_double_and_no_draw_per_id() -> None:
    logits = torch.randn(8, 5120, generator=torch.Generator().manual_seed(0))
    before = torch.random.get_rng_state()
    with Watch() as watch:
        sampler.draw(logits, np.ones(8), np.zeros(8, int), np.ones(8), np.full(8, 0.5))
    assert watch.largest == logits.numel() and watch.most <= 3 * logits.numel() + 8 * 1024
    assert torch.equal(before, torch.random.get_rng_state())
