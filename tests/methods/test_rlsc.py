"""RLSC by hand: the probability of a sample as the weight of its likelihood."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.answers import plain_logp
from support.battery import Study, groups_of, of, same_gradient

from selfteach.core import BadValue
from selfteach.methods.rlsc import own_probability


def test_the_weight_of_a_sample_is_its_own_probability():
    study = Study(of("rlsc", smooth=0.25), groups_of())
    trees = {e.id: e.tree for g in groups_of() for e in g.episodes}
    for (name, _), values in study.columns().items():
        tree = trees[name]
        places = tree.places(len(tree.parent) - 1)
        logp = plain_logp(tree.id[places].tolist())[tree.action_mask[places][1:]]
        assert values[0] == pytest.approx(math.exp(logp.sum()) + 0.25)
        assert values[1] == pytest.approx(
            1 / 12
        )  # the log-likelihood is summed over tokens, averaged over the twelve samples
    same_gradient(study, Study(of("rlsc", smooth=0.25), groups_of(shift=3.0)), 0.0)  # no reward is read
    with pytest.raises(BadValue, match="sequence, length or group"):
        own_probability(logp=[-1.0], seq=[0], group=[0], by="prompt")
    # 1/2 times 1/8 is 1/16; a tenth is added unless told otherwise
    rows = {"logp": np.log([0.5, 0.125, 0.75]), "seq": [0, 0, 1], "group": [0, 0]}
    assert own_probability(**rows)["adv"].values == pytest.approx([0.1625, 0.85])
    assert own_probability(**rows, by="length")["adv"].values == pytest.approx([0.35, 0.85])  # sqrt(1/16)
    assert np.isnan(own_probability(logp=[-1.0, np.nan, -1.0], seq=[0, 0, 1], group=[0, 1])["adv"].values).tolist() == [
        True,
        False,
    ]
