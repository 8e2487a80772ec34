"""THR, token hidden reward (2510.03669): weight each token by its influence on the group's right answers.

A step along one token's gradient changes the log-likelihood of the right answers to first order by that token's
influence. Few tokens dominate; p > 0 raises the weight of those that make right answers likelier, p < 0 lowers it.

    s_t = sum over tokens m of right answers of <g_m, g_t> <h_m, h_t>
"""

from __future__ import annotations

import numpy as np

from ..core import (
    Claim,
    Column,
    GroupRows,
    Method,
    Seq,
    Term,
    Token,
    block,
    mechanism,
    method,
    outcome,
    premise,
    quantity,
)
from ..core.lazy import torch
from ..credit import segments as seg
from ..credit.advantages import norm
from ..credit.composers import per_trajectory
from ..objective.loss_weights import sequence_mean
from ..objective.policy import clipped_ratio
from .base import policy_method


@method(family="credit", paper="2510.03669", catalogue=208)
def thr(groups: int = 16, rollouts: int = 8, clip: float = 0.2, p: float = 0.1, threshold: bool = True) -> Method:
    """GRPO on the influential tokens, with a weight 1 + p on those that make the group's right answers likelier.

        s_t = sum over tokens m of right answers of <g_m, g_t> <h_m, h_t>
        g   = onehot - softmax,   h the last hidden state
        T_t = sign(A) s_t
        A_t = 1[|T_t| > tau] (1 + sign(T_t) p) A

    Deng et al. 2025, section 4: p > 0 exploits, p < 0 explores, p = 0 keeps the dominant tokens alone. tau, as in the
    authors' NTHR (2505.18830), is the smallest mean s of a right answer. Chosen here: the whole vocabulary instead of
    the group's own tokens; right is a reward above the group's mean, which for rewards 0 and 1 is the same. Without the
    threshold and p it is GRPO.
    """
    return policy_method(
        credit=(per_trajectory(), norm(), steer_by_influence(p=p, threshold=threshold)),
        term=Term(clipped_ratio(low=clip, high=clip), loss_weights=sequence_mean()),
        groups=groups,
        rollouts=rollouts,
    )


@block
def steer_by_influence(
    *, adv: Seq, influence: Token, reward: Seq, seq: Token, group: Seq, p: float = 0.1, threshold: bool = True
) -> dict[str, Column]:
    """Keep the advantage of the most influential tokens, scaled by 1 + p where they make right answers likelier.

        T_t = sign(A) s_t
        A_t = 1[|T_t| > tau] (1 + sign(T_t) p) A
        tau = the smallest mean s of a right answer

    Args: adv, reward f64[S]; influence s f64[N]; seq i64[N]; group i64[S]. Right is a reward above the group's mean.
    threshold: without it tau is 0 and every token with any influence counts. Returns: adv f64[N]. Scope: group.

    >>> given = {"seq": [0, 0, 1, 1], "group": np.array([0, 0]), "reward": np.array([1.0, 0.0])}
    >>> steer_by_influence(adv=np.array([1.0, -1.0]), influence=[1.0, 3.0, 4.0, -5.0], **given)["adv"].values  # tau = 2
    array([ 0. ,  1.1, -0.9, -1.1])
    """
    reward, seq, group = np.asarray(reward, np.float64), np.asarray(seq), np.asarray(group)
    n, outcome = seg.count(group), np.asarray(adv, np.float64)[seq]
    signed = np.sign(outcome) * np.asarray(influence, np.float64)
    right = reward > seg.mean(reward, group, n)[group]
    mean = seg.mean(influence, seq, len(reward))
    tau = seg.least(np.where(right, mean, np.inf), group, n)[group][seq] if threshold else np.zeros(len(seq))
    return {"adv": Column("token", np.where(np.abs(signed) > tau, (1 + np.sign(signed) * p) * outcome, outcome * 0.0))}


@quantity
def influence(*, rows: GroupRows, reward: Seq, seq: Token) -> torch.Tensor:
    """First-order effect of raising a token's likelihood on that of the group's right answers (equation 4).

        s_n = sum over tokens m of right answers of <g_m, g_n> <h_m, h_n> = g_n' M h_n
        M   = sum_m g_m h_m' [V, D]
        g   = onehot - softmax,   h the hidden state before the token

    The step is along the gradient of the output layer. Right is a reward above the group's mean. Two passes over chunks
    of rows, in float32 at least. Args: reward f[S]; seq i64[N]. Returns: f[N].
    """
    hidden = rows.hidden if rows.hidden.dtype == torch.float64 else rows.hidden.float()
    right = (reward > reward.mean())[seq]
    if not right.any():
        return hidden.new_zeros(len(hidden))
    moment: torch.Tensor | None = None
    for at, logprobs in rows.chunks():
        of_right = right[at]
        part = _error(logprobs, rows.ids[at])[of_right].to(hidden.dtype).T @ hidden[at][of_right]
        moment = part if moment is None else moment.add_(part)
    assert moment is not None
    return torch.cat(
        [((_error(lp, rows.ids[at]).to(hidden.dtype) @ moment) * hidden[at]).sum(-1) for at, lp in rows.chunks()]
    )


def _error(logprobs: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """The gradient of a token's log-probability by its logits, onehot - softmax: f[n, V]."""
    return logprobs.exp().neg_().scatter_add_(-1, ids[:, None], torch.ones_like(ids[:, None], dtype=logprobs.dtype))


thr.claim = Claim(
    (
        premise("pass@64", "grpo", "start", relation="<", by=0.05, fails_at=0.04),  # GRPO forgets what is seldom right
        mechanism("late:policy/entropy_estimate", "self", "exploit", scale="ratio", by=0.1, fails_at=0.0),
        outcome("pass@64", "self", "grpo", by=0.03, fails_at=0.98),
        outcome("accuracy", "self", "grpo", relation="~", by=0.05, fails_at=0.5),
        outcome("accuracy", "dominant", "grpo", relation="~", by=0.05, fails_at=0.5),
    ),
    arms={"grpo": "grpo", "exploit": ("thr", {"p": 0.1}), "dominant": ("thr", {"p": 0.0})},
    args={"p": -0.1},
    regime="diverse",
    settings={"steps": 30},  # half-way: GRPO has lost what it loses, and there is entropy left to compare
    idea=("main.credit",),
    first_seed=300,
    corrected=(
        "on seeds 200 to 207 entropies and pass@64 were compared after 60 steps, where the policy had settled on one "
        "rule in every arm and entropies were a hundredth of a nat: mechanism not shown"
    ),
    because=(
        "a few tokens decide how likely right answers become; less weight on those that make them likelier explores"
    ),
)
