"""DAPO's clip-higher where there are several right answers and a policy that narrows to one of them.

In the regime of `dapo`'s claim one way is right, and a policy that learns faster has less entropy. Here what is seldom
right is lost to what is right most often, which a higher upper clip is to prevent (Yu et al. 2025, section 3.1).
"""

from __future__ import annotations

from ..core import Claim, mechanism, outcome, premise

OFTEN = {"epochs": 4, "minibatches": 8}

EXPERIMENTS = {
    "clip_higher": Claim(
        (
            premise("mean:policy/clip_fraction", "equal_clip", 0.005, fails_at=0.001),  # clips act at all
            # the policy narrows
            premise("pass@64", "equal_clip", "start", by=0.05, relation="<", fails_at=0.04),
            mechanism("late:policy/entropy_estimate", "self", "equal_clip", by=0.05, scale="ratio", fails_at=10.0),
            outcome("pass@64", "self", "equal_clip", by=0.03, fails_at=0.98),
            outcome("accuracy", "self", "equal_clip", by=0.03, relation=">=", fails_at=1.0),
        ),
        args=OFTEN,
        arms={"equal_clip": ("dapo", {**OFTEN, "high": 0.2})},
        settings={"lr": 3e-5},
        regime="diverse",
        idea=("main.update",),
        because="an upper clip holds back what is unlikely more than what is likely, and a higher one less",
    ),
}
