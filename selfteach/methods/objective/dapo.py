"""DAPO."""

from __future__ import annotations

from ...core import Check, Claim, Method, Term, method
from ...credit.baseline import norm
from ...credit.compose import each
from ...credit.keep import keep_informative
from ...credit.shaping import overlong
from ...curriculum.select import refill
from ...objective.policy import clipped_ratio
from ...objective.weigh import token_mean
from .grpo import policy_method


@method(
    family="objective",
    paper="2503.14476",
    claim=Claim(
        (Check("accuracy", "self", "grpo", by=0.0),),
        arms={"grpo": "grpo"},
        task="chain_sum",
        steps=40,
        equal="tokens",
        because="a higher upper clip keeps exploring, and every group of a batch carries a gradient",
    ),
)
def dapo(groups: int = 16, rollouts: int = 8, low: float = 0.2, high: float = 0.28, limit: int = 128, cache: int = 32, rounds: int = 4) -> Method:
    """Decoupled clip and dynamic sampling: clip higher above than below, refill until groups differ, token mean, soft overlong punishment.

        clip(r, 1 - low, 1 + high)        loss = sum over tokens / their number in the batch

    Yu et al. 2025, equations 8 to 13. Answers longer than limit - cache are punished, by 1 at the limit.
    """
    return policy_method(
        select=refill(rounds=rounds),
        credit=(each(), keep_informative(), overlong(limit=limit, cache=cache), norm()),
        term=Term(clipped_ratio(low=low, high=high), weigh=token_mean()),
        groups=groups,
        rollouts=rollouts,
    )
