"""Importance weights for an engine that computes other probabilities than the learner."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.loops import advance, bandit, equal, loop_of, weights_of

from selfteach.core.errors import BadValue
from selfteach.core.protocols import Completion
from selfteach.core.registry import methods
from selfteach.loop.assemble import correction_of
from selfteach.loop.mismatch_correction import PER_SEQUENCE, WEIGHT, MismatchCorrection
from selfteach.loop.settings import RunSettings


@pytest.mark.parametrize(
    ("mode", "right"),
    [
        ("token_truncate", [0.2, 0.5, 1.0, 2.0, 2.0]),  # min(r, 2)
        ("token_mask", [0.0, 0.5, 1.0, 2.0, 0.0]),  # r inside of [0.5, 2]
        ("sequence_truncate", [0.2, 0.5, 1.0, 2.0, 2.0]),
        ("sequence_mask", [0.0, 0.5, 1.0, 2.0, 0.0]),
    ],
)
def test_ratios_are_bounded_as_each_remedy_says(mode: str, right: list[float]) -> None:
    np.testing.assert_array_equal(MismatchCorrection(mode).weights(np.array([0.2, 0.5, 1.0, 2.0, 9.0])), right)


class Off:
    """An engine whose log-probabilities are off by `by` nats per token."""

    def __init__(self, engine: Any, by: float) -> None:
        self.engine, self.by = engine, by

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    async def generate(self, *given: Any, **named: Any) -> Completion:
        done = await self.engine.generate(*given, **named)
        return done._replace(logp=done.logp - np.float32(self.by))


def step(letters: Any, by: float, mode: str | None, name: str = "bandit") -> tuple[Any, dict[str, Any], Any]:
    """(weights after a step, its metrics, what the correction gave)."""
    loop = loop_of(bandit(), letters, max_logprob_mismatch=5.0, **({"mismatch_correction": mode} if mode else {}))
    loop.engine = Off(loop.engine, by)
    seen: list[Any] = []
    if loop.mismatch_correction is not None:
        inner = MismatchCorrection.corrected

        def spied(self: Any, *given: Any) -> Any:
            seen.append(inner(self, *given))
            return seen[-1]

        object.__setattr__(loop.mismatch_correction, "corrected", spied.__get__(loop.mismatch_correction))
    metrics = advance(loop)[0]
    return weights_of(loop), metrics, seen[0][0] if seen else None


def test_an_engine_that_agrees_is_left_alone(letters: Any) -> None:
    plain, corrected = step(letters, 0.0, None), step(letters, 0.0, "token_truncate")
    for name, w in plain[0].items():
        np.testing.assert_allclose(corrected[0][name], w, atol=1e-4)  # a step is 1e-2
    assert corrected[1]["policy/mismatch_ratio_mean"] == pytest.approx(1.0, abs=1e-4)
    assert corrected[1]["policy/mismatch_clipped_fraction"] == 0


@pytest.mark.parametrize("mode", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
def test_weights_are_the_bounded_ratios_of_tokens_or_of_whole_sequences(letters: Any, mode: str) -> None:
    _, metrics, batch = step(letters, 0.3, mode)  # the sampler says e^-0.3 of what it was: ratio e^0.3 per token
    length = batch.lengths()
    ratio = np.full(len(length), math.exp(0.3)) if mode.startswith("token") else np.exp(0.3 * length)
    right = np.minimum(ratio, 2.0) if "truncate" in mode else np.where(ratio <= 2.0, ratio, 0.0)
    np.testing.assert_allclose(batch.get(WEIGHT), right[batch.get("seq")], rtol=1e-4)
    if mode.startswith("sequence"):
        np.testing.assert_allclose(batch.get(PER_SEQUENCE, "seq"), right, rtol=1e-4)
        assert metrics["policy/mismatch_clipped_fraction"] == pytest.approx((ratio > 2).mean())
        assert metrics["policy/mismatch_ratio_mean"] == pytest.approx(ratio.mean(), rel=1e-4)


def test_a_masked_step_moves_nothing_and_a_corrected_one_less_than_it_would(letters: Any) -> None:
    far = step(letters, 1.0, "token_mask")  # e > 2: all is masked
    loop = loop_of(bandit(), letters)
    assert far[1]["policy/mismatch_clipped_fraction"] == 1 and equal(far[0], weights_of(loop))


def test_samples_of_older_weights_are_not_corrected_for_that() -> None:
    settings = RunSettings(mismatch_correction="token_truncate")
    with pytest.raises(BadValue, match="older than the learner's weights"):
        correction_of(methods.get("areal")(), settings)
    assert correction_of(methods.get("areal")(), replace(settings, staleness=0)) is not None
    with pytest.raises(BadValue, match="older than the learner's weights"):
        correction_of(methods.get("grpo")(), replace(settings, staleness=1))


def test_a_method_of_pairs_has_no_such_weights() -> None:
    method = methods.get("per_step_dpo")()
    pairs = any(t.fn.unit == "pair" and not s.data for s in method.stages for u in s.updates for t in u.terms)
    if not pairs:
        pytest.skip("no online method of pairs")
    with pytest.raises(BadValue, match="per pair"):
        MismatchCorrection("token_mask").check(method)
