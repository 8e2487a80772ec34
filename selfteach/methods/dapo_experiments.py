"""DAPO's clip-higher where what is right has to grow from a small probability, and where many ways are right; its loss
and its shaping where answers are long.

In the regime of `dapo`'s claim what is right is sampled often, and a policy that learns it faster has less entropy. In
`sparse` an upper clip holds back what there is to learn (Yu et al. 2025, section 3.1): of a token whose probability is
0.002 one batch makes at most 0.0024, or with clip-higher 0.00256. In `diverse` the way that is right most often
crowds out the others, which is how entropy falls there. In `verbose` two answers in five repeat themselves, some up to
the limit of tokens: a mean over sequences hardly counts that against them (section 3.3), and a soft punishment leads
away from the limit (section 3.4).
"""

from __future__ import annotations

from ..core import Claim, mechanism, outcome, premise

OFTEN = {"epochs": 4, "minibatches": 8}
LIMITED = {"limit": 63, "cache": 21}  # no right answer is cut; from 42 tokens on an answer is punished

EXPERIMENTS = {
    "clip_higher": Claim(
        (
            premise("accuracy", "equal_clip", "start", by=0.1, fails_at=0.95),  # it can be learned
            premise("mean:policy/clip_fraction", "equal_clip", 0.001, fails_at=0.0005),  # clips act
            mechanism("early:reward/mean", "self", "equal_clip", by=0.03, fails_at=0.98),  # what is rare grows faster
            outcome("auc", "self", "equal_clip", by=0.02, fails_at=0.99),
            outcome("mean:policy/entropy_estimate", "self", "equal_clip", by=0.05, scale="ratio", fails_at=10.0),
        ),
        args=OFTEN,
        arms={"equal_clip": ("dapo", {**OFTEN, "high": 0.2})},
        settings={"lr": 2e-5},
        regime="sparse",
        idea=("main.update",),
        because="an upper clip holds back what is unlikely more than what is likely, so that entropy falls",
    ),
    "many_ways": Claim(
        (
            premise("mean:policy/clip_fraction", "equal_clip", 0.001, fails_at=0.0005),  # clips act,
            premise(  # and entropy falls
                "late:policy/entropy_estimate",
                "equal_clip",
                "early:policy/entropy_estimate of equal_clip",
                relation="<",
                by=0.5,
                scale="ratio",
                fails_at=0.0,
            ),
            outcome("mean:policy/entropy_estimate", "self", "equal_clip", by=0.05, scale="ratio", fails_at=10.0),
            outcome("pass@64", "self", "equal_clip", by=0.02, fails_at=0.99),
        ),
        args=OFTEN,
        arms={"equal_clip": ("dapo", {**OFTEN, "high": 0.2})},
        settings={"lr": 2e-5, "steps": 40},
        regime="diverse",
        first_seed=300,
        idea=("main.update",),
        because="an upper clip lets the likely way crowd out the others, so that entropy falls",
    ),
    "long_answers": Claim(
        (
            premise("first:rollout/truncated_fraction", "sequence", 0.02, fails_at=0.005),  # answers are cut,
            premise(  # and a mean over sequences leaves wrong ones longer than right ones
                "length_wrong", "sequence", "length_right of sequence", by=0.1, scale="ratio", fails_at=80.0
            ),
            mechanism(
                "mean:rollout/truncated_fraction", "self", "unshaped", relation="<", by=0.2, scale="ratio", fails_at=0.0
            ),
            mechanism("length_wrong", "self", "sequence", relation="<", scale="ratio", by=0.1, fails_at=0.0),
            outcome("auc", "self", "unshaped", by=0.02, fails_at=0.99),
            outcome("auc", "self", "sequence", by=0.02, fails_at=0.99),
            outcome("accuracy", "self", "unshaped", by=0.02, fails_at=0.99),
            outcome("accuracy", "self", "sequence", by=0.02, fails_at=0.99),
        ),
        args=LIMITED,
        arms={"unshaped": ("dapo", {**LIMITED, "penalty": 0.0}), "sequence": ("dapo", {**LIMITED, "over": "sequence"})},
        settings={"lr": 1e-4, "max_tokens": 63},
        regime="verbose",
        idea=("main.credit", "main.update"),
        because="a mean over tokens counts what is long in full, and a soft punishment leads away from being cut",
    ),
}
