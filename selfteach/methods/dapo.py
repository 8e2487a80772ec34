"""DAPO (2503.14476): decoupled clip and dynamic sampling.

Four changes to GRPO: a higher upper clip (clip-higher), dynamic sampling of groups until their rewards differ, a
token-level loss instead of a mean over sequences, and soft overlong punishment.
"""

from __future__ import annotations

from typing import Literal

from ..core import Claim, Method, Term, method, unsorted
from ..credit.advantages import norm
from ..credit.composers import per_trajectory
from ..credit.keep import drop_zero_variance_groups
from ..credit.shaping import overlong
from ..curriculum.select import refill
from ..objective.policy import clipped_ratio
from .base import policy_method, tokens_over


@method(family="objective", paper="2503.14476")
def dapo(
    groups: int = 16,
    rollouts: int = 8,
    low: float = 0.2,
    high: float = 0.28,
    limit: int = 128,
    cache: int = 32,
    rounds: int = 4,
    epochs: int = 1,
    minibatches: int = 4,
    over: Literal["batch", "group"] = "batch",
) -> Method:
    """GRPO with clip-higher, dynamic sampling, a token-level loss and soft overlong punishment.

        loss = -mean over the tokens of the batch of min(r A, clip(r, 1 - low, 1 + high) A)
        R    = reward + clip((limit - cache - length) / cache, -1, 0)

    Yu et al. 2025, equations 8 to 13. Answers longer than limit - cache are punished, by 1 at the limit. Groups of
    equal rewards are dropped and replaced in up to `rounds` rounds of sampling. A batch is learned in `minibatches`
    updates (16 in the paper): with one, no ratio leaves 1 and no clip acts. over: the mean over tokens is that of
    the batch, as in the released code; "group" is equation 8 as printed, the mean over groups of their token means.
    """
    return policy_method(
        select=refill(rounds=rounds),
        credit=(per_trajectory(), drop_zero_variance_groups(), overlong(limit=limit, cache=cache), norm()),
        term=Term(clipped_ratio(low=low, high=high), loss_weights=tokens_over(over)),
        groups=groups,
        rollouts=rollouts,
        epochs=epochs,
        minibatches=minibatches,
    )


dapo.claim = Claim(
    (unsorted("accuracy", "self", "grpo", by=0.0),),
    arms={"grpo": "grpo"},
    task="chain_sum",
    steps=40,
    equal="tokens",
    because="a higher upper clip keeps exploring, and every group of a batch carries a gradient",
)
