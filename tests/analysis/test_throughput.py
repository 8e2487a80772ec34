"""Samplers and a learner in simulated time, by numbers worked by hand; the plan of a cluster and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfteach.analysis.cluster_plan import (
    ACCELERATORS,
    SHAPES,
    USUAL,
    Learning,
    expected_lengths,
    learner_bytes,
    splits,
    timing_of,
)
from selfteach.analysis.throughput import Timing, Workload, simulate
from selfteach.core.errors import BadValue
from selfteach.loop.memory_plan import parameter_counts


def work(lengths: list[float], groups: int = 1, rollouts: int = 2, wait: float = 0.0, prompt: int = 0) -> Workload:
    return Workload(groups, rollouts, prompt, np.array(lengths), np.full(len(lengths), wait))


def second(learn: float = 5.0, **more: Any) -> Timing:
    """A token a second for each sequence, however many; an update takes `learn`."""
    return Timing(lambda active, context: 1.0, lambda tokens: 0.0, lambda tokens: learn, **more)


def test_in_turns_a_step_is_sampling_and_learning():
    got = simulate(work([10]), second(deliver=1.0), samplers=1, slots=4)
    assert got.step_seconds == pytest.approx(16)  # 10 of sampling, 5 of learning, 1 of delivery
    assert got.tokens_per_s == pytest.approx(20 / 16)  # two answers of ten tokens
    assert got.sampler_idle == pytest.approx(6 / 16) and got.learner_idle == pytest.approx(11 / 16)
    assert got.occupancy == pytest.approx(2 / 4) and got.staleness == got.longest_staleness == 0
    shared = simulate(work([10]), second(deliver=1.0, switch=2.0), samplers=1, slots=4, shared=True)
    assert shared.step_seconds == pytest.approx(18)


def test_ahead_a_step_is_the_longer_of_the_two():
    ahead = simulate(work([10]), second(deliver=1.0), samplers=1, slots=2, staleness=1, steps=12)
    assert ahead.step_seconds == pytest.approx(10) and ahead.learner_idle == pytest.approx(0.5)
    assert ahead.sampler_idle == pytest.approx(0, abs=1e-9) and ahead.longest_staleness == 1
    # with room for two batches, each of which takes 10 + 5 seconds, one is done every 7.5
    wide = simulate(work([10]), second(), samplers=1, slots=4, staleness=1, steps=21)
    assert wide.step_seconds == pytest.approx(7.5, rel=0.03)
    slow = simulate(work([10]), second(learn=40.0), samplers=1, slots=4, staleness=1, steps=12)
    assert slow.step_seconds == pytest.approx(40) and slow.learner_idle == pytest.approx(0, abs=1e-9)


def test_slots_and_samplers():
    one = simulate(work([10]), second(), samplers=1, slots=1)
    assert one.step_seconds == pytest.approx(25) and one.occupancy == pytest.approx(1)  # one after the other
    two = simulate(work([10]), second(), samplers=2, slots=1)
    assert two.step_seconds == pytest.approx(15)
    # twice as many at once take twice as long: nothing is gained by the second slot
    shared = Timing(lambda active, context: float(active), lambda tokens: 0.0, lambda tokens: 5.0)
    assert simulate(work([10]), shared, samplers=1, slots=2).step_seconds == pytest.approx(25)


def test_contexts_prompts_and_waits_take_their_time():
    growing = Timing(lambda active, context: context, lambda tokens: 0.0, lambda tokens: 0.0)
    # a sequence at a time whose context is its prompt's 3 tokens as it begins: its pace is kept until it is done
    assert simulate(work([4], rollouts=1, prompt=3), growing, 1, 1).step_seconds == pytest.approx(12)
    prompts = Timing(lambda active, context: 1.0, lambda tokens: 2.0 * tokens, lambda tokens: 0.0)
    # a prompt of 3 tokens is read once for the group: 6 seconds, then 10 tokens
    assert simulate(work([10], prompt=3), prompts, 1, 4).step_seconds == pytest.approx(16)
    assert simulate(work([10], wait=7.0), second(), 1, 4).step_seconds == pytest.approx(22)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 3), st.integers(1, 3), st.integers(1, 4))
def test_nothing_is_older_than_allowed_and_no_time_is_lost(
    samplers: int, slots: int, staleness: int, groups: int, rollouts: int
):
    lengths = [1.0, 5.0, 9.0, 40.0]
    given_work = work(lengths, groups, rollouts, wait=0.5)
    got = simulate(given_work, second(learn=3.0), samplers, slots, staleness, steps=staleness + 6)
    assert 0 <= got.staleness <= got.longest_staleness <= staleness
    assert -1e-9 <= got.sampler_idle <= 1 and -1e-9 <= got.learner_idle <= 1 and 0 < got.occupancy <= 1 + 1e-9
    most = groups * rollouts * 40.0 / 3.0  # a batch cannot be learned in less than an update takes
    assert 0 < got.tokens_per_s <= most and got.step_seconds >= 3.0 - 1e-9


def test_what_cannot_be_simulated():
    with pytest.raises(BadValue, match="take turns"):
        simulate(work([1]), second(), 1, 1, staleness=1, shared=True)
    with pytest.raises(BadValue, match="at least 1"):
        simulate(work([1]), second(), 0, 1)
    with pytest.raises(BadValue, match="at least one answer"):
        Workload(1, 1, 0, np.zeros(0), np.zeros(0))


# ---- on paper


def test_shapes_have_the_parameters_that_their_names_say():
    counts = {name: parameter_counts(shape)[0] / 1e9 for name, shape in SHAPES.items()}
    published = {"0.5B": 0.49, "1.5B": 1.54, "3B": 3.09, "7B": 7.61, "14B": 14.77, "32B": 32.76, "72B": 72.71}
    assert counts == pytest.approx(published, rel=0.01)


def test_seconds_on_paper_by_hand():
    shape, h100 = SHAPES["7B"], ACCELERATORS["h100"]
    every = parameter_counts(shape)[0]
    timing = timing_of(shape, h100, 1, 8, 1000.0, Learning(recompute=False), USUAL)
    # one sequence without context: all weights are read once, 2 bytes each, at 0.6 of 3.35 TB a second, and 4 ms
    assert timing.decode(1, 0.0) == pytest.approx(2 * every / (0.6 * 3.35e12) + 0.004)
    # 64 sequences of 10,000 tokens: their caches too, 2 x 28 layers x 4 heads x 128 x 2 bytes a token
    cache = 64 * 10_000 * 2 * 28 * 4 * 128 * 2
    assert timing.decode(64, 10_000.0) == pytest.approx((2 * every + cache) / (0.6 * 3.35e12) + 0.004)
    # 6 operations a weight and token, and of attention 6 x 28 layers x 3584 x 1000, on eight at 0.35 of 989 TFLOPS
    operations = 1e6 * (6 * every + 6 * 28 * 3584 * 1000)
    assert timing.learn(1e6) == pytest.approx(operations / (8 * 0.35 * 989e12) + 20 * every / 8 / 3.35e12)
    assert timing.prefill(500) == pytest.approx(2 * every * 500 / (0.5 * 989e12))
    two = timing_of(shape, h100, 2, 8, 1000.0, Learning(), USUAL)
    assert two.decode(1, 0.0) == pytest.approx(every / (0.6 * 3.35e12) + 0.004 + 28 * 15e-6)
    # over more than a node the network carries weights twice and gradients once: 64 rounds of 3 x 2 bytes a weight
    wide = timing_of(shape, h100, 1, 16, 1000.0, Learning(micro_tokens=1000), USUAL)
    sent = 64 * 3 * 2 * every * 15 / 16 / (0.7 * 50e9)
    assert wide.learn(16 * 64 * 1000) == pytest.approx(sent + 20 * every / 16 / 3.35e12)


def test_memory_of_a_learner_is_divided_but_for_activations():
    shape = SHAPES["7B"]
    one, eight = (learner_bytes(shape, n, 4096, Learning()) for n in (1, 8))
    assert 16 * parameter_counts(shape)[0] < one < 22 * parameter_counts(shape)[0]  # 4 + 4 + 8 bytes, and a copy in 2
    assert one / 8 < eight < one / 4


def test_splits_are_sorted_fit_and_say_what_they_wait_for():
    lengths = expected_lengths(200, 0.8, 1000, count=256)
    jobs = Workload(4, 4, 100, lengths, lengths * 0.0)
    seen: list[tuple[int, int]] = []
    found = splits(SHAPES["7B"], ACCELERATORS["h100"], 8, jobs, 1100, (0, 2), progress=lambda *at: seen.append(at))
    assert seen[-1] == (len(found), len(found))
    speeds = [s.outcome.tokens_per_s for s in found]
    assert speeds == sorted(speeds, reverse=True) and {s.staleness for s in found} == {0, 2}
    for s in found:
        used = s.learners if s.shared else s.samplers * s.tensor_parallel + s.learners
        assert used == 8 and s.learner_bytes < 72e9 and s.sampler_bytes < 80e9
    assert found[0].staleness == 2 and found[0].bottleneck
    assert any("one another" in s.bottleneck for s in found if not s.staleness and not s.shared)


def test_what_does_not_fit_is_refused_by_what_is_too_large():
    jobs = Workload(4, 4, 100, np.array([100]), np.zeros(1))
    with pytest.raises(BadValue, match="the learner alone needs"):
        splits(SHAPES["7B"], ACCELERATORS["l40s"], 2, jobs, 1100)
    with pytest.raises(BadValue, match="the weights of this model"):
        splits(SHAPES["72B"], ACCELERATORS["l40s"]._replace(memory=20e9), 8, jobs, 1100)


def test_expected_lengths_have_their_mean_and_their_end():
    lengths = expected_lengths(1000, 0.8, 1_000_000)
    assert lengths.mean() == pytest.approx(1000, rel=0.02) and lengths.dtype == np.int64
    assert np.log(lengths).std() == pytest.approx(0.8, rel=0.02)
    assert np.quantile(lengths, 0.9) == pytest.approx(1900, rel=0.1)
    assert np.quantile(lengths, 0.99) == pytest.approx(4500, rel=0.1)
    cut = expected_lengths(1000, 0.8, 2000)
    assert cut.max() == 2000 and (expected_lengths(500, 0.0, 2000) == 500).all()


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    from selfteach.cli import main

    small = ["plan", "--gpus", "8", "--model", "1.5B", "--groups", "4", "--rollouts", "4", "--answer", "200"]
    assert main([*small, "--staleness", "0,1"]) == 0
    out = capsys.readouterr().out
    assert "tokens/s" in out and "waits for" in out and "assumed: decode 0.6" in out
    for more, said in (
        (["--gpus", "0"], "--gpus must be between 1 and 16384"),
        (["--gpu", "h1000"], "h100"),
        (["--model", "8B"], "neither a size"),
        (["--assume", "speed=2"], "no assumption"),
        (["--assume", "learn=2"], "share above 0"),
        (["--staleness", "-1"], "--staleness must be between 0"),
        (["--lengths", str(tmp_path)], "leave --answer"),
    ):
        assert main([*small, *more]) == 2
        assert said in capsys.readouterr().err
