"""CISPO (2506.13585): clip the importance weight, not the update.

PPO's clip removes the gradient of every token whose ratio leaves the range. Here the ratio is a constant weight that is
clipped, so that every token keeps its gradient.
"""

from __future__ import annotations

from typing import Literal

from ..core import Claim, Method, Term, mechanism, method, outcome, premise
from ..credit.advantages import norm
from ..credit.composers import per_trajectory
from ..objective.policy import clipped_importance
from .base import policy_method, tokens_over


@method(family="objective", paper="2506.13585")
def cispo(
    groups: int = 16,
    rollouts: int = 8,
    low: float = 1.0,
    high: float = 4.0,
    epochs: int = 1,
    minibatches: int = 4,
    over: Literal["batch", "group"] = "batch",
) -> Method:
    """Clipped importance-sampling policy optimisation: REINFORCE weighted by the clipped ratio, held constant.

        loss = -mean over the tokens of the batch of sg(clip(r, 1 - low, 1 + high)) A logp

    MiniMax 2025 (M1), equations 4 and 5; low = 1 sets no lower bound, as there. over: "group" is the mean over groups
    of their token means, as equation 4 is printed; the mean over all tokens of the batch is what trainers do.
    """
    return policy_method(
        credit=(per_trajectory(), norm()),
        term=Term(clipped_importance(low=low, high=high), loss_weights=tokens_over(over)),
        groups=groups,
        rollouts=rollouts,
        epochs=epochs,
        minibatches=minibatches,
    )


cispo.claim = Claim(
    (
        premise("mean:policy/clip_fraction", "grpo", 0.005, fails_at=0.001),  # tokens lose their gradient
        # nearly no weight is capped, and none of those that are loses its gradient
        mechanism("mean:policy/clip_fraction", "self", "grpo", relation="<", by=0.5, scale="ratio", fails_at=0.0),
        outcome("accuracy", "self", "grpo", by=0.03, fails_at=0.98),
        outcome("auc", "self", "grpo", by=0.02, fails_at=0.99),
        outcome("auc", "self", "dapo", by=0.02, fails_at=0.99),
    ),
    arms={"grpo": "grpo", "dapo": "dapo"},
    regime="reused",
    first_seed=300,
    corrected=(
        "on seeds 200 to 207 the regime had a larger learning rate, at which fewer tokens lost their gradient to the "
        "clip than its premise asks for"
    ),
    idea=("main.update",),
    differs={"main.select": "DAPO's own sampling and shaping", "main.credit": "DAPO's own sampling and shaping"},
    because="no token's gradient is dropped: the weight is clipped, not the update",
)
