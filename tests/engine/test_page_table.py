"""Sequences that stand on the same pages of the native cache: what a fork copies, who may write where, and that it
shows in no bit.
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from selfteach.core.task import Sampling
from selfteach.engine import BuiltinEngine
from selfteach.engine.native_runner import NativeRunner, PackedWeights
from selfteach.engine.page_table import PAGE, PageCopy, PageTable
from selfteach.engine.torch_runner import TorchRunner
from selfteach.kernels import decode
from selfteach.model.tokenizer import train_tokenizer
from selfteach.model.transformer import Config, Transformer

VOCAB, LENGTH = 300, 5 * PAGE
PLAIN = Config(VOCAB, width=32, layers=2, heads=4, kv_heads=2, head_dim=16, hidden=48, max_length=LENGTH)
SHAPES = {
    "grouped": PLAIN,
    "three to a head, windows, caps": Config(
        VOCAB,
        width=24,
        layers=2,
        heads=3,
        kv_heads=1,
        head_dim=10,
        hidden=40,
        max_length=LENGTH,
        score_cap=20.0,
        windows=(70, 0),
    ),
}
needs_compiler = pytest.mark.skipif(
    isinstance(decode.decode_library(), str), reason=f"no kernel: {decode.decode_library()}"
)


def model(shape: str = "grouped") -> Transformer:
    m = Transformer(SHAPES[shape]).initialise(0).eval().requires_grad_(False)
    for p in m.parameters():
        if p.ndim > 1:
            p.mul_(4.0)
    return m


class Fresh:
    """A runner's slots, each beside the bits that a context of its own gives."""

    def __init__(self, shape: str, dtype: torch.dtype, slots: int):
        self.runner = NativeRunner(PackedWeights(model(shape), dtype), slots, LENGTH)
        self.tokens = np.zeros((slots, LENGTH), np.int64)
        self.filled = np.zeros(slots, np.int64)

    @torch.inference_mode()
    def go(self, more: dict[int, list[int]]) -> None:
        """Put tokens into some slots in one step, and compare the rows with those of fresh contexts."""
        slots = np.array(sorted(more))
        take = np.array([len(more[s]) for s in slots])
        for s in slots:
            self.tokens[s, self.filled[s] : self.filled[s] + len(more[s])] = more[s]
        hidden, last = self.runner.forward(self.tokens, slots, self.filled[slots], take)
        self.filled[slots] += take
        for s, z, n in zip(slots, last, take, strict=True):
            alone, _ = self.runner.with_new_cache(1, LENGTH).forward(
                self.tokens[s : s + 1], np.array([0]), np.array([0]), self.filled[s : s + 1]
            )
            assert torch.equal(hidden[z - n + 1 : z + 1], alone[-n:]), f"slot {s} at {self.filled[s] - n}"

    def share_prefix(self, source: int, target: int, count: int) -> int:
        self.tokens[target, :count] = self.tokens[source, :count]
        self.filled[target] = count
        return self.runner.share_prefix(source, target, count)


def held(pages: PageTable) -> None:
    """Holders are what the table says, and no sequence has gaps."""
    counted = np.zeros_like(pages.ref_counts)
    for row in pages.table:
        n = np.flatnonzero(row >= 0)
        assert (np.diff(n) == 1).all() and (not len(n) or n[0] == 0)
        np.add.at(counted, (row[n], n), 1)
    np.testing.assert_array_equal(counted, pages.ref_counts)


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_forks_go_their_own_ways_with_the_bits_of_fresh_contexts(shape: str, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(0)
    some = lambda n: rng.integers(0, VOCAB, n).tolist()  # noqa: E731
    both = Fresh(shape, dtype, 6)
    both.go({0: some(150)})
    assert both.share_prefix(0, 1, 150) == 150 - 2 * PAGE  # two pages are shared, the begun third is copied
    assert both.share_prefix(0, 2, 2 * PAGE) == 0
    assert both.share_prefix(1, 3, 100) == 100 - PAGE
    both.go({s: some(1) for s in range(4)})
    both.go({0: some(20), 1: some(70), 2: some(1), 3: some(1)})
    assert (
        both.share_prefix(0, 0, 40) == 40
    )  # rewound into a page that the others stand on: a copy of what it keeps of it
    assert both.share_prefix(1, 1, PAGE) == 0
    for _ in range(3):
        both.go({s: some(1) for s in range(4)})
    assert both.share_prefix(2, 4, int(both.filled[2])) == both.filled[2] % PAGE
    both.go({s: some(2) for s in range(5)})
    held(both.runner.pages)


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_any_order_of_beginning_forking_going_back_and_shrinking(shape: str, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(4)
    both, copied = Fresh(shape, dtype, 7), []
    for n in range(120):
        slots = len(both.filled)
        kind, a, b = rng.random(), rng.integers(slots), rng.integers(slots)
        if n == 60:
            both.runner.resize(3)
            both.filled, both.tokens = both.filled[:3] * 0, both.tokens[:3]
        elif kind < 0.35:
            copied.append(both.share_prefix(a, b, int(rng.integers(both.filled[a] + 1))))
        elif kind < 0.4:
            both.runner.clear(LENGTH)
            both.filled[:] = 0
        else:
            go = [s for s in range(slots) if rng.random() < 0.6 and both.filled[s] < LENGTH]
            most = rng.choice([1, 1, 100])
            more = {
                s: rng.integers(0, VOCAB, rng.integers(1, 1 + min(most, LENGTH - both.filled[s]))).tolist() for s in go
            }
            if more:
                both.go(more)
        held(both.runner.pages)
    assert 0 < max(copied) < PAGE


@needs_compiler
def test_a_page_that_others_stand_on_is_not_written_by_whoever_is_put_back() -> None:
    """Also without `share`: the step itself begins before the slot's end."""
    rng = np.random.default_rng(1)
    both = Fresh("grouped", torch.float32, 2)
    both.go({0: rng.integers(0, VOCAB, 130).tolist()})
    both.share_prefix(0, 1, 128)
    both.filled[0] = 10
    both.go({0: rng.integers(0, VOCAB, 100).tolist(), 1: [1, 2, 3]})
    held(both.runner.pages)


def test_what_sharing_copies_and_where_pages_lie() -> None:
    pages = PageTable(3, 2)
    at = lambda *x: np.array(x)  # noqa: E731
    assert pages.write(at(0), at(0), at(100)) == [] and pages.table[0].tolist() == [0, 0]
    assert pages.share_prefix(0, 1, 100) == [PageCopy(0, 1, 64, 100)] and pages.table[1].tolist() == [
        0,
        1,
    ]  # its own page in its own part
    assert pages.share_prefix(0, 2, 64) == [] and pages.ref_counts.tolist() == [[3, 1], [0, 1], [0, 0]]
    assert pages.share_prefix(0, 0, 0) == [] and pages.ref_counts.tolist() == [[2, 0], [0, 1], [0, 0]]
    assert pages.write(at(0), at(0), at(3)) == [] and pages.table[0].tolist() == [
        1,
        -1,
    ]  # others still stand in its part
    assert pages.write(at(1, 2), at(30, 64), at(1, 1)) == [
        PageCopy(0, 2, 0, 30)
    ]  # the one who goes back copies what it keeps
    assert pages.table.tolist() == [[1, -1], [2, 1], [0, 2]] and pages.ref_counts.tolist() == [[1, 0], [1, 1], [1, 1]]
    pages.clear()
    assert (pages.table == -1).all() and not pages.ref_counts.any()


MOVES = st.lists(
    st.tuples(st.sampled_from(["fork", "back", "go", "go", "go", "clear"]), *[st.integers(0, 10**6)] * 3), max_size=60
)


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 5), st.integers(1, 3), MOVES)
def test_pages_never_run_out_and_what_a_sequence_holds_stays(slots: int, each: int, moves: list[Any]) -> None:
    """Beside a model in which every slot has a list of its own: the cache is an array of what was written where."""
    pages, cache = PageTable(slots, each), np.full((slots, each * PAGE), -1)
    texts: list[list[int]] = [[] for _ in range(slots)]
    said = 0

    def carry(copies: list[PageCopy]) -> None:
        assert sum(c.stop - c.start for c in copies) < PAGE
        for source, target, start, stop in copies:
            cache[target, start:stop] = cache[source, start:stop]

    for kind, a, b, c in moves:
        slot, other = a % slots, b % slots
        if kind == "clear":
            pages.clear()
            texts = [[] for _ in range(slots)]
        elif kind == "fork":
            count = c % (len(texts[slot]) + 1)
            carry(pages.share_prefix(slot, other, count))
            texts[other] = texts[slot][:count]
        elif kind == "back":
            texts[slot] = texts[slot][: c % (len(texts[slot]) + 1)]  # not told: `write` finds out
        elif len(texts[slot]) < each * PAGE:
            start = len(texts[slot])
            new = 1 + c % min(2 * PAGE, each * PAGE - start)
            carry(pages.write(np.array([slot]), np.array([start]), np.array([new])))
            for position in range(start, start + new):
                said += 1
                cache[pages.table[slot, position // PAGE], position] = said
                texts[slot].append(said)
        for s, text in enumerate(texts):
            where = pages.table[s, np.arange(len(text)) // PAGE]
            assert (where >= 0).all() and cache[where, np.arange(len(text))].tolist() == text
        held(pages)


def engine(slots: int, kernel: str = "auto") -> BuiltinEngine:
    tokenizer = train_tokenizer(["some text to cut into pieces"], (), VOCAB)
    tokenizer.eos_token_ids = (VOCAB,)
    return BuiltinEngine({"w": model()}, {"policy": "w"}, tokenizer, slots=slots, kernel=kernel)  # type: ignore[arg-type]


def asked(e: BuiltinEngine, contexts: list[np.ndarray], new: int) -> list[bytes]:
    async def all_of_them() -> list[Any]:
        return await asyncio.gather(
            *[e.generate("policy", c, Sampling(max_tokens=new), i) for i, c in enumerate(contexts)]
        )

    return [c.ids.tobytes() + c.logp.tobytes() for c in asyncio.run(all_of_them())]


@needs_compiler
def test_the_engine_s_forks_copy_less_than_a_page() -> None:
    rng, forks = np.random.default_rng(2), 8
    trunk = rng.integers(0, VOCAB, 200).astype(np.int32)
    e = engine(12)
    asked(e, [trunk], 1)
    assert e.counts["copied"] == 0
    ends = [np.concatenate([trunk, rng.integers(0, VOCAB, 3).astype(np.int32)]) for _ in range(forks)]
    got = asked(e, ends, 70)
    # The trunk's slot has all 200 tokens in the cache (the one drawn after them is not): 3 pages and 8 tokens. One fork
    # goes on in its place.
    assert e.counts["copied"] == (forks - 1) * (200 - 3 * PAGE)
    assert e.counts["reused"] == forks * 200
    torch_way = engine(12, "torch")
    asked(torch_way, [trunk], 1)
    asked(torch_way, ends, 1)
    assert torch_way.counts["copied"] == (forks - 1) * 200
    again = engine(1)
    assert [asked_alone(again, c, i, 70) for i, c in enumerate(ends)] == got


def asked_alone(e: BuiltinEngine, context: np.ndarray, rng_key: int, new: int) -> bytes:
    done = asyncio.run(e.generate("policy", context, Sampling(max_tokens=new), rng_key))
    return done.ids.tobytes() + done.logp.tobytes()


@needs_compiler
def test_memory_running_out_begins_anew_with_fewer_pages() -> None:
    rng = np.random.default_rng(3)
    trunk = rng.integers(0, VOCAB, 100).astype(np.int32)
    e, right = engine(8), engine(8)
    want = asked(right, [trunk] * 8, 60)
    scheduler, step = e.schedulers["w"], e.schedulers["w"].step
    left = iter([False] * 2 + [True])
    e.warn = lambda line: None

    def fails_once() -> bool:
        if next(left, False):
            raise torch.OutOfMemoryError("no memory")
        return step()

    scheduler.step = fails_once  # type: ignore[method-assign]
    assert asked(e, [trunk] * 8, 60) == want
    assert scheduler.runner.pages.table.shape == (4, LENGTH // PAGE)  # type: ignore[attr-defined]
    held(scheduler.runner.pages)  # type: ignore[attr-defined]


def test_torch_shares_by_copying() -> None:
    runner = TorchRunner(model(), 2, LENGTH)
    assert (
        runner.share_prefix(0, 1, 70) == 70 and runner.share_prefix(1, 1, 30) == 0 and runner.share_prefix(0, 1, 0) == 0
    )
