"""The sigmoid of accuracy over compute: found again from its own points, bounded, and told from a part of a run."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfteach.analysis import scaling_fit
from selfteach.analysis.learning_curve import curve_figures
from selfteach.analysis.scaling_fit import ScalingFit, fit_scaling, forecast


def points(true: ScalingFit, at: list[float], noise: float = 0.0) -> list[tuple[float, float]]:
    draw = np.random.default_rng(0)
    return [(0.0, true.start), *((c, true(c) + noise * float(draw.standard_normal())) for c in at)]


def test_the_example_of_the_docstring():
    assert not doctest.testmod(scaling_fit).failed


def test_the_formula_by_hand():
    fit = ScalingFit(0.2, 0.8, 10.0, 2.0, 0.0)
    # at the midpoint half of the gain; at twice of it 1 / (1 + 1/4) = 0.8 of it
    assert fit(10.0) == pytest.approx(0.5) and fit(20.0) == pytest.approx(0.2 + 0.6 * 0.8) and fit(0.0) == 0.2


@settings(max_examples=25, deadline=None)
@given(st.floats(0.3, 1.0), st.floats(5, 60), st.floats(0.7, 5.0))
def test_a_curve_that_is_seen_whole_is_found_again(asymptote: float, midpoint: float, exponent: float):
    true = ScalingFit(0.1, asymptote, midpoint, exponent, 0.0)
    at = [float(c) for c in np.geomspace(midpoint / 8, midpoint * 12, 14)]
    fit = fit_scaling(points(true, at))
    assert fit is not None and fit.error < 2e-3
    assert fit.asymptote == pytest.approx(asymptote, abs=0.03)
    assert max(abs(fit(c) - true(c)) for c in at) < 6e-3


def test_half_of_a_run_foretells_its_end_where_it_holds_the_bend():
    true = ScalingFit(0.2, 0.9, 12.0, 2.0, 0.0)
    whole = points(true, [float(c) for c in range(4, 61, 4)], noise=0.005)
    assert forecast(whole) == pytest.approx(whole[-1][1], abs=0.03)
    assert forecast(whole, share=0.1) is None  # one point is no curve


def test_a_fit_keeps_within_what_accuracy_can_be():
    rising = [(0.0, 0.1), *((float(c), 0.1 + 0.08 * c) for c in range(1, 9))]
    fit = fit_scaling(rising)
    assert fit is not None and fit.asymptote <= 1.0 and fit(1e9) <= 1.0
    falling = fit_scaling([(0.0, 0.5), (1.0, 0.4), (2.0, 0.3), (3.0, 0.3)])
    assert falling is not None and falling.asymptote == pytest.approx(0.3, abs=0.02)
    assert fit_scaling([(0.0, 0.1), (1.0, 0.2), (2.0, 0.3)]) is None


def test_figures_of_claims():
    true = ScalingFit(0.2, 0.9, 10.0, 2.0, 0.0)
    events = [{"event": "eval", "step": c, "sampled": r, "greedy": r / 2} for c, r in points(true, [*range(4, 57, 4)])]
    events += [{"event": "final_eval", "step": 60, "figures": {"accuracy": true(60), "greedy": true(60) / 2}}]
    found = curve_figures(events, ["asymptote", "forecast@0.5", "asymptote:greedy"])
    assert found["asymptote"] == pytest.approx(0.9, abs=0.01) and found["asymptote:greedy"] < 0.5
    assert found["forecast@0.5"] == pytest.approx(true(60), abs=0.01)
