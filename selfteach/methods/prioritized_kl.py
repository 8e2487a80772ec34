"""The prioritized KL penalty (Vassoyan et al. 2025, arXiv 2502.06533, "Ignore the KL Penalty!").

The penalty of a token is weighted by how certain the reference was of its next token, to a high power. So the policy
stays near the reference where that knows what follows, and is free on the critical tokens where it does not.

    w_t = c_t^kappa,   c_t = 1 - H(ref(. | s_t)) / log V                                          equations 1 and 2
"""

from __future__ import annotations

import math

from ..core import Claim, Method, Term, Token, block, logged, mechanism, method, outcome, premise, quantity
from ..core.lazy import torch
from ..credit.advantages import norm
from ..credit.composers import per_trajectory
from ..objective.kl import Kind, kl
from ..objective.loss_weights import sequence_mean
from ..objective.policy import clipped_ratio
from .base import policy_method


@method(family="objective", paper="2502.06533", catalogue=371)
def prioritized_kl(
    groups: int = 16,
    rollouts: int = 8,
    beta: float = 1.0,
    kappa: float = 10.0,
    offset: float = 0.0,
    kind: Kind = "k2",
    clip: float = 0.2,
) -> Method:
    """GRPO with a KL penalty that is weighted by a power of the reference's certainty, token by token.

        loss = GRPO + beta mean_t w_t kl_t
        w_t  = (1 + offset) c_t^kappa - offset,   c_t = 1 - H(ref(. | s_t)) / log V

    Vassoyan et al. 2025 and the released code, whose estimator is k2, (logp - ref_logp)^2 / 2; beta is 5 there, kappa
    150 of a certainty at a temperature of 4 (10 to 10,000 are tried; from 1,000 on it gets worse), and the code's
    entropy is that of order infinity (1 + log max p / log V). The weight has no gradient and is 1 where the reference
    is certain. kappa=0 is the ordinary penalty. Chosen here: GRPO in place of A2C with a critic and an entropy bonus,
    since the idea is in the penalty alone, and the constants. Metrics: policy/kl, without the weights,
    policy/kl_weight, their mean, and policy/kl_weighted, that of their product.
    """
    penalty = weighted_kl(kappa=kappa, offset=offset, kind=kind)
    return policy_method(
        credit=(per_trajectory(), norm()),
        term=Term(clipped_ratio(low=clip, high=clip), loss_weights=sequence_mean()),
        more=(Term(penalty, loss_weights=sequence_mean(), coef=beta),) if beta else (),
        groups=groups,
        rollouts=rollouts,
    )


@quantity
def certainty(*, logprobs: torch.Tensor) -> torch.Tensor:
    """1 - H / log V of the next-token distribution: 1 for one token, 0 where all are alike (equation 2)."""
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    return 1.0 - entropy / math.log(logprobs.shape[-1])


def certainty_weight(ref_certainty: torch.Tensor, kappa: float, offset: float) -> torch.Tensor:
    """f[N]: (1 + offset) c^kappa - offset."""
    return (1 + offset) * ref_certainty.detach().clamp(min=0.0) ** kappa - offset


def kl_weighted(
    logp: torch.Tensor, ref_logp: torch.Tensor, ref_certainty: torch.Tensor, kappa: float, offset: float
) -> torch.Tensor:
    """f[N]: k2 to the reference, times its weight: small beside `kl` where the policy leaves what is unsure."""
    return certainty_weight(ref_certainty, kappa, offset) * (logp - ref_logp) ** 2 / 2


@block
@logged(
    "kl", lambda logp, ref_logp: (logp - ref_logp) ** 2 / 2, "k2 to the reference, without weights, nats per token."
)
@logged("kl_weight", certainty_weight)
@logged("kl_weighted", kl_weighted)
def weighted_kl(
    *,
    logp: Token,
    ref_logp: Token,
    ref_certainty: Token,
    kappa: float = 10.0,
    offset: float = 0.0,
    kind: Kind = "k2",
) -> Token:
    """KL penalty per token, weighted by a power of the reference's certainty (equation 1).

        l = ((1 + offset) c^kappa - offset) kl(logp, ref_logp)

    Args: logp, ref_logp, ref_certainty f[N]. kind: the estimator, as in `kl`. Returns: l f[N]. Equals: `kl` at
    kappa = 0. Scope: token.

    >>> lp, half = torch.tensor([0.0, 0.0]), torch.tensor([1.0, 0.5])
    >>> weighted_kl(logp=lp, ref_logp=lp - 2, ref_certainty=half, kappa=2.0)  # 2^2 / 2, times 1 and 1/4
    tensor([2.0000, 0.5000])
    """
    return certainty_weight(ref_certainty, kappa, offset) * kl(logp=logp, ref_logp=ref_logp, kind=kind)


prioritized_kl.claim = Claim(
    (
        # as large a penalty, spread evenly, keeps the policy from the way that pays
        premise("accuracy", "ordinary", 0.9, relation="<", by=0.0, fails_at=0.95),
        premise("accuracy", "free", "start", by=0.2, fails_at=0.9),
        # the policy leaves the reference further, and does so where that is unsure
        mechanism("mean:policy/kl", "self", "ordinary", by=0.2, scale="ratio", fails_at=1e6),
        mechanism(
            "mean:policy/kl_weighted",
            "self",
            "mean:policy/kl of self",
            by=0.3,
            relation="<",
            scale="ratio",
            fails_at=0.0,
        ),
        outcome("accuracy", "self", "ordinary", by=0.05, fails_at=0.96),
        outcome("auc", "self", "ordinary", by=0.05, fails_at=0.96),
        outcome("accuracy", "self", "lighter", by=0.03, fails_at=0.98),
        outcome("accuracy", "self", "free", relation=">=", by=0.03, fails_at=1.0),
    ),
    arms={
        "ordinary": ("prioritized_kl", {"kappa": 0.0, "beta": 0.95}),  # the mean weight of a token
        "lighter": ("prioritized_kl", {"kappa": 0.0, "beta": 0.4}),  # that of a nat of KL
        "free": ("prioritized_kl", {"beta": 0.0}),
    },
    regime="skill",
    first_seed=400,
    corrected=(
        "on seeds 200 to 207 certainty was the largest probability: holds; on seeds 300 to 311 it was compared with a "
        "heavier penalty alone, and KLs of the last steps, where few squares are most of a mean: mechanism not shown"
    ),
    idea=("main.update.0.term.1",),
    because="the reference is unsure at the token that chooses the way, so a penalty by certainty leaves that free",
)
