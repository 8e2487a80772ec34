"""RLPR."""

from __future__ import annotations

from typing import Literal

from ...core import Check, Claim, Method, Term, method
from ...credit.baseline import norm
from ...credit.compose import each
from ...credit.keep import keep_spread
from ...objective.policy import clipped_ratio
from ...objective.weigh import token_mean
from ...reward.answer import exact_match
from ...reward.likely import reference_probability
from ..objective.grpo import policy_method


@method(
    family="selfreward",
    paper="2506.18254",
    catalogue=188,
    claim=Claim(
        (
            Check("accuracy", "self", "start", by=0.05),
            Check("accuracy", "self", "grpo", by=-0.03),
            Check("accuracy", "self", "likelihood", by=0.0),
            Check("mean:reward/auc", "self", "mean:reward/auc_product of self", by=0.1),
        ),
        arms={"likelihood": ("rlpr", {"by": "product"}), "grpo": "grpo"},
        task="strings",
        steps=40,
        because="thoughts that lead to the answer make its every token likely, whatever words it is put in, so no verifier is needed",
    ),
)
def rlpr(
    groups: int = 16,
    rollouts: int = 8,
    by: Literal["mean", "product"] = "mean",
    debias: bool = True,
    share: float = 0.5,
    rate: float = 0.99,
    warm: int = 6,
    low: float = 0.2,
    high: float = 0.28,
) -> Method:
    """Reference probability reward: what the policy's thoughts add to the mean probability of the reference answer's tokens.

        r = clip(1/|y*| sum_t p(y*_t | x, z) - 1/|y*| sum_t p(y*_t | x), 0, 1);   groups whose std is below share * m are left out

    Yu et al. 2025, equations 2 to 4 and section 3.3; m is a moving average of the groups' mean std. `share`, `rate` and `warm` are the
    released script's (0.5 for Qwen); clip-higher and the mean over tokens are DAPO's. Format: an answer without its tag is paid nothing;
    the script adds a score of form, which a warm-started policy has no need of. What is left out is not refilled. No verifier pays:
    exact match is read for the figures reward/right, reward/auc and reward/auc_product (by="product": the likelihood as reward, VeriFree's).
    """
    return policy_method(
        credit=(each(), keep_spread(share=share, rate=rate, warm=warm), norm()),
        term=Term(clipped_ratio(low=low, high=high), weigh=token_mean()),
        groups=groups,
        rollouts=rollouts,
    ).but(reward=(reference_probability(by=by, debias=debias, judge=exact_match()),))
