"""The prioritized KL penalty by hand: weights by certainty, and the ordinary penalty as its case without them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.battery import of, same
from support.by_hand import token_gradient
from support.episodes import single_turn_group
from support.tensors import f64, slope

from selfteach.core import Term, Update, registry
from selfteach.core.blocks import measures
from selfteach.methods.prioritized_kl import certainty_weight, weighted_kl
from selfteach.objective.kl import kl
from selfteach.objective.loss_weights import sequence_mean


def test_the_penalty_is_weighted_by_a_power_of_the_references_certainty():
    # certainties 1, 1/2, 1/4; d = 2: k2 = 2. kappa 2: 1, 1/4, 1/16. With offset 1: 2 c^2 - 1 = 1, -1/2, -7/8
    given: dict[str, Any] = {"logp": f64(2, 2, 2), "ref_logp": f64(0, 0, 0)}
    sure = f64(1, 0.5, 0.25)
    assert weighted_kl(**given, ref_certainty=sure, kappa=2.0).tolist() == pytest.approx([2, 0.5, 0.125])
    assert certainty_weight(sure, 2.0, 1.0).tolist() == pytest.approx([1, -0.5, -0.875])
    told = measures(weighted_kl(kappa=2.0), {**given, "ref_certainty": sure})
    assert [told[name].tolist() for name in ("kl", "kl_weighted")] == [[2, 2, 2], pytest.approx([2, 0.5, 0.125])]
    for kind in ("k1", "k2", "k3"):
        plain = weighted_kl(**given, ref_certainty=sure, kappa=0.0, kind=kind)
        assert torch.equal(plain, kl(**given, kind=kind))


def test_the_weight_has_no_gradient():
    given = {"logp": f64(1.0), "ref_logp": f64(0.0), "kappa": 3.0}
    assert (
        slope(lambda x: weighted_kl(**{**given, "ref_logp": f64(0.0)}, ref_certainty=x) + 0 * x, f64(0.5)).item() == 0
    )


def test_the_gradient_of_the_method_by_hand():
    # Two wrong answers have no advantage: the pull alone, beta 2, kappa 1, d = 1 and 3, each with the weight 1/2
    group = single_turn_group([(5,), (6,)], [0.0, 0.0])
    given: dict[str, Any] = {"ref_logp": [-2.0, -4.0], "ref_certainty": [0.5, 1.0]}
    got = token_gradient(of("prioritized_kl", beta=2.0, kappa=1.0), [group], [-1.0, -1.0], **given)
    assert got == pytest.approx([2 * 0.5 * 1 / 2, 2 * 3 / 2])


def test_without_priority_it_is_the_ordinary_penalty():
    grpo = of("grpo")
    (update,) = grpo.stage.updates
    ordinary = grpo.replace(
        updates=(Update(("policy",), (*update.terms, Term(kl(kind="k2"), loss_weights=sequence_mean(), coef=0.5))),)
    )
    same(of("prioritized_kl", beta=0.5, kappa=0.0), ordinary)
    same(of("prioritized_kl", beta=0.0), grpo)
    with pytest.raises(AssertionError):
        same(of("prioritized_kl", beta=0.5), ordinary)


def test_certainty_is_what_is_missing_of_the_largest_entropy():
    # of four tokens: two alike are half of log 4; 1/2, 1/4, 1/8, 1/8 have 1.75 bits of 2; all alike and one alone
    rows = f64(0.5, 0.5, 0, 0, 0.5, 0.25, 0.125, 0.125, 0.25, 0.25, 0.25, 0.25, 1, 0, 0, 0).reshape(4, 4)
    logprobs = torch.log(rows.clamp(min=1e-30))
    found = registry.quantities.get("certainty").fn(logprobs=logprobs)
    assert found.tolist() == pytest.approx([0.5, 0.125, 0.0, 1.0])
