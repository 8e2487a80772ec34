"""Dr. GRPO (2503.20783): GRPO without its two biases.

Division by the group's std gives easy and hard prompts more weight, division by the answer's length favours long wrong
answers. Without either the policy gradient is unbiased.
"""

from __future__ import annotations

from ..core import Claim, Method, Term, mechanism, method, outcome, premise
from ..credit.advantages import center, norm
from ..credit.composers import per_trajectory
from ..objective.loss_weights import constant_length
from ..objective.policy import clipped_ratio
from .base import policy_method


@method(family="objective", paper="2503.20783")
def dr_grpo(groups: int = 16, rollouts: int = 8, clip: float = 0.2, limit: int = 128, std: bool = False) -> Method:
    """GRPO done right: no division by the group's std, and none by the answer's length.

        A_i = r_i - mean(r)
        loss = -sum over tokens of min(r A, clip(r, 1 - clip, 1 + clip) A) / (S limit)

    Liu et al. 2025, section 3.2. S is the number of sequences. The objective there has no `limit`, their code has
    (listing 1): a constant that only scales the gradient, there the maximal length of an answer. std=True divides by
    the group's std, and so leaves out the division by length alone.
    """
    return policy_method(
        credit=(per_trajectory(), norm() if std else center(by="group")),
        term=Term(clipped_ratio(low=clip, high=clip), loss_weights=constant_length(limit=limit)),
        groups=groups,
        rollouts=rollouts,
    )


dr_grpo.claim = Claim(
    (
        premise("length_wrong", "grpo", "start", scale="ratio", by=0.1, fails_at=0.0),  # wrong answers grow
        mechanism("length_wrong", "self", "grpo", relation="<", scale="ratio", by=0.1, fails_at=0.0),
        outcome("accuracy", "self", "grpo", relation=">=", by=0.03, fails_at=1.0),
        outcome("length", "self", "grpo", relation="<", scale="ratio", by=0.05, fails_at=0.0),
        outcome("length_wrong", "self", "std", relation="~", scale="ratio", by=0.1, fails_at=0.0),
    ),
    arms={"grpo": "grpo", "std": ("dr_grpo", {"std": True})},  # std: without the division by length alone
    regime="verbose_unsure",
    first_seed=400,
    corrected="on seeds 200 to 207 the arm std summed without the constant, so that the bound on a gradient's "
    "norm acted on gradients 128 times as large: mechanism shown; on seeds 300 to 323, in `verbose`, nearly all "
    "answers were right in the end, so that how long the wrong ones are hardly counted, and to be more "
    "often right than GRPO would have counted against it: does not hold here",
    idea=("main.credit", "main.update"),
    because=(
        "dividing by an answer's length favours long wrong answers; without it accuracy stays and these get no longer"
    ),
)
