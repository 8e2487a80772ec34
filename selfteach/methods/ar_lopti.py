"""AR and Lopti (Yang et al. 2025, arXiv 2505.12929): low-probability tokens are kept from dominating the update.

The gradient of a token's log-probability by the logits is of size 1 - p, so rare tokens move the weights most, and
frequent ones are moved along. Advantage reweighting (AR) scales the rare ones' advantage down; low-probability token
isolation (Lopti) learns them first and the others in an update of their own, which mends what the first has done.

    A_t = (alpha p_t + 1 - alpha) A,   p_t = exp(old_logp_t)
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from ..core import (
    Claim,
    Column,
    Method,
    Seq,
    Term,
    Token,
    Update,
    block,
    logged,
    mechanism,
    method,
    outcome,
    premise,
    provides,
    zero_when,
)
from ..core.lazy import torch
from ..credit.advantages import norm
from ..credit.composers import per_trajectory
from ..objective.loss_weights import token_mean
from ..objective.policy import clipped_ratio, clipped_tokens
from .base import policy_method

Order = Literal["low_first", "high_first", "together"]


@method(family="objective", paper="2505.12929", catalogue=194)
def ar_lopti(
    groups: int = 16,
    rollouts: int = 8,
    alpha: float = 0.3,
    order: Order = "low_first",
    eta: float = 0.5,
    low: float = 0.2,
    high: float = 0.24,
    minibatches: int = 1,
) -> Method:
    """GRPO with advantages scaled by the token's probability, and low-probability tokens learned in an update before.

        A_t    = (alpha p_t + 1 - alpha) A,   p_t = exp(old_logp_t)
        first  -min(r A, clip(r, 1 - low, 1 + high) A) of the tokens with p_t < eta
        then   the same of the others, with the weights that the first has moved

    Yang et al. 2025 and the released code: alpha 0.3, eta 0.5, the mean over all tokens of the batch in both updates.
    alpha=0 is Lopti alone, order="together" AR alone, both GRPO; "high_first" is the order that the paper finds to
    lose the gain. Left out: the KL penalty (1e-3 there). Metric: policy/2/against, the share of the second update's
    tokens whose log-probability the first has moved against their advantage.
    """
    loss = isolated_ratio(low=low, high=high)
    reweigh = (reweight_by_probability(alpha=alpha),) if alpha else ()
    base = policy_method(
        credit=(per_trajectory(), norm(), *reweigh, *((split_by_probability(eta=eta),) if order != "together" else ())),
        term=Term(loss, loss_weights=token_mean()),
        groups=groups,
        rollouts=rollouts,
        minibatches=minibatches,
    )
    if order == "together":
        return base
    columns = ("adv_low", "adv_high") if order == "low_first" else ("adv_high", "adv_low")
    return base.replace(
        updates=tuple(
            Update(("policy",), (Term(loss.reading(adv=name), loss_weights=token_mean()),), minibatches=minibatches)
            for name in columns
        )
    )


@block
def reweight_by_probability(*, adv: Seq, old_logp: Token, seq: Token, alpha: float = 0.3) -> dict[str, Column]:
    """Advantage per token, scaled by how likely the token was: A_t = (alpha p_t + 1 - alpha) A (AR, equation 6).

    Args: adv f64[S]; old_logp f64[N]; seq i64[N]. Returns: adv f64[N].

    >>> reweight_by_probability(adv=[2.0], old_logp=np.log([1.0, 0.5]), seq=[0, 0], alpha=0.5)["adv"].values
    array([2. , 1.5])
    """
    likely = np.exp(np.asarray(old_logp, np.float64))
    return {"adv": Column("token", (alpha * likely + 1 - alpha) * np.asarray(adv, np.float64)[np.asarray(seq)])}


@block
@provides("adv_low", "adv_high")
def split_by_probability(*, adv: Token, old_logp: Token, eta: float = 0.5) -> dict[str, Column]:
    """The advantage in two columns: of tokens less likely than `eta` when they were sampled, and of the others.

    Args: adv, old_logp f64[N]. Returns: adv_low, adv_high f64[N], each 0 where the other is not; their sum is adv.

    >>> both = split_by_probability(adv=[1.0, -1.0], old_logp=np.log([0.9, 0.1]))
    >>> both["adv_low"].values.tolist(), both["adv_high"].values.tolist()
    ([0.0, -1.0], [1.0, 0.0])
    """
    adv, low = np.asarray(adv, np.float64), np.exp(np.asarray(old_logp, np.float64)) < eta
    return {
        "adv_low": Column("token", np.where(low, adv, np.abs(adv) * 0.0)),  # a NaN stays one
        "adv_high": Column("token", np.where(low, np.abs(adv) * 0.0, adv)),
    }


def moved_against(logp: torch.Tensor, old_logp: torch.Tensor, adv: torch.Tensor) -> torch.Tensor:
    """bool: of the tokens with an advantage, whose log-probability has moved against it since they were sampled."""
    return ((logp - old_logp) * adv < 0)[adv != 0]


@block
@zero_when("adv")
@logged("clip_fraction", clipped_tokens)
@logged("against", moved_against)
def isolated_ratio(*, logp: Token, old_logp: Token, adv: Token, low: float = 0.2, high: float = 0.24) -> Token:
    """`clipped_ratio`, which reports the share of its tokens that have moved against their advantage (`against`).

    Args: logp, old_logp, adv f[N]. Returns: l f[N]. Scope: token.
    """
    return clipped_ratio(logp=logp, old_logp=old_logp, adv=adv, low=low, high=high)


ar_lopti.claim = Claim(
    (
        # rare tokens have the larger gradient, and move likely ones along, many of them the wrong way
        premise("mean:policy/grad_norm", "lopti", "mean:policy/2/grad_norm of lopti", scale="ratio", fails_at=1e6),
        premise("mean:policy/2/against", "lopti", 0.25, fails_at=0.2),
        # reweighting makes the rare tokens' gradient smaller beside that of the others
        mechanism("mean:policy/grad_norm", "self", "lopti", by=0.1, relation="<", scale="ratio", fails_at=0.0),
        outcome("auc", "self", "grpo", by=0.03, fails_at=0.98),
        outcome("accuracy", "self", "grpo", by=0.03, fails_at=0.98),
        outcome("auc", "self", "reversed", by=0.02, fails_at=0.99),
    ),
    arms={
        "grpo": ("ar_lopti", {"alpha": 0.0, "order": "together", "minibatches": 2}),
        "lopti": ("ar_lopti", {"alpha": 0.0}),
        "reversed": ("ar_lopti", {"order": "high_first"}, {"lr": 2e-4}),
    },
    regime="ladder",
    settings={"lr": 1e-4},
    first_seed=300,
    corrected="on seeds 200 to 207 its rate was the best for GRPO of one update a batch, twice its own: does not hold "
    "here",
    idea=("main.credit*", "main.update.*"),
    differs={"settings.lr": "each at the rate that is best for it"},
    because="likely tokens are learned better where rare ones, whose gradients are larger, do not drown them",
)
