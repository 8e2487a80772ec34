"""REC, OPMD and AsymRE: group-relative REINFORCE as an off-policy method."""

from __future__ import annotations

from ...core import Check, Claim, Method, Part, Term, method
from ...credit.baseline import center, lowered, norm, tilted
from ...credit.keep import keep_balanced
from ...objective.bounds import Range, ranged_reinforce
from ...objective.policy import policy_gradient
from ...objective.regression import advantage_regression
from ...objective.weigh import token_mean
from .grpo import late, policy_method


@method(
    family="objective",
    paper="2509.24203",
    catalogue=210,
    claim=Claim(
        (
            Check("accuracy", "self", "importance", by=0.03, relation="~"),
            Check("accuracy", "self", "unclipped", by=0.05),
            Check("mean:reward", "wide", "self", by=0.0),
        ),
        arms={
            "importance": ("rec", {"importance": True}),
            "unclipped": ("rec", {"mask": "none"}),
            "wide": ("rec", {"low": 0.6, "high": 2.0}),
        },
        task="chain_sum",
        steps=40,
        because="group-relative REINFORCE needs no importance weights for samples of anyone: the clip is what keeps it stable, and may be wide",
    ),
)
def rec(
    groups: int = 16,
    rollouts: int = 8,
    mask: Range = "one_side",
    importance: bool = False,
    low: float = 0.2,
    high: float = 0.2,
    far_low: float = 0.6,
    far_high: float = 2.0,
    std: bool = False,
    drop: bool = False,
    temperature: float = 0.0,
    minibatches: int = 4,
    sync: int = 20,
    delay: int = 0,
) -> Method:
    """Group-relative REINFORCE off-policy: centred rewards, and a mask on ratios that are out of range; importance weights are optional.

        loss = -mean over tokens of w M A logp,   A = r - mean(r),   w = pi / pi_old with `importance`, else 1;   M by `mask`

    Yao et al. 2025, section 4: one_side, two_side, ring; "none" is plain REINFORCE; importance=True, std=True is GRPO. RED-Drop:
    drop=True, mask="none". RED-Weight: temperature=1, mask="none". Samples are up to sync - 1 steps old (`sync_interval` there), or
    exactly `delay` (`sync_offset`); a step has four updates here, so that at a tiny model's rate the samples are stale enough to matter.
    """
    weighted = (tilted(temperature=temperature),) if temperature else ()
    return policy_method(
        credit=(late(delay), *((keep_balanced(),) if drop else ()), norm() if std else center(), *weighted),
        term=Term(
            ranged_reinforce(mask=mask, importance=importance, low=low, high=high, far_low=far_low, far_high=far_high),
            weigh=token_mean(),
        ),
        groups=groups,
        rollouts=rollouts,
        minibatches=minibatches,
        sync=sync,
    )


@method(family="objective", paper="2501.12599", catalogue=210)
def opmd(groups: int = 16, rollouts: int = 8, tau: float = 0.1, minibatches: int = 4, sync: int = 20, delay: int = 0) -> Method:
    """Online policy mirror descent: centred rewards, and a squared log-ratio of the whole answer to the policy that drew it.

        loss = mean over answers of -A sum_t logp + tau/2 (sum_t (logp - old_logp))^2

    Kimi k1.5 (2501.12599, equation 3), as in 2509.24203. Written as (tau sum log-ratio - A)^2 / (2 tau), which has its gradient.
    """
    term = Term(advantage_regression(beta=tau).reading(ref_logp="old_logp"), coef=1 / (2 * tau))
    return policy_method((late(delay), center()), term, groups=groups, rollouts=rollouts, minibatches=minibatches, sync=sync)


@method(family="objective", paper="2506.20520", catalogue=210)
def asymre(groups: int = 16, rollouts: int = 8, tau: float = 0.1, minibatches: int = 4, sync: int = 20, delay: int = 0) -> Method:
    """Asymmetric REINFORCE: a baseline below the group's mean by tau, so that on stale samples good answers count for more than bad ones.

        loss = -mean over tokens of (r - mean(r) + tau) logp

    Arnal et al. 2025, as in 2509.24203; there are no ratios and no clip.
    """
    credit: tuple[Part, ...] = (late(delay), center(), lowered(by=tau))
    return policy_method(credit, Term(policy_gradient(), weigh=token_mean()), groups=groups, rollouts=rollouts, minibatches=minibatches, sync=sync)
