"""ShiQ (2505.11081): the logits, shifted by the reference's log-partition, are soft Q-values.

At the optimum of the KL-regularised problem they satisfy the soft Bellman equation on any trajectory of any policy.
Summed from each token to the end, it propagates a late reward to every token in one update.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from ..core import (
    BadValue,
    Claim,
    Column,
    Method,
    Seq,
    Step,
    Term,
    Token,
    block,
    logged,
    mechanism,
    method,
    outcome,
    premise,
    provides,
)
from ..core.lazy import torch
from ..credit.composers import per_trajectory
from ..credit.returns import at_last_token
from ..objective.loss_weights import sequence_mean
from ..objective.segments import next_row
from .base import policy_method


@method(family="objective", paper="2505.11081", catalogue=261)
def shiq(
    groups: int = 128,
    rollouts: int = 1,
    beta: float = 0.1,
    steps: Literal["all", "one"] = "all",
    shift: bool = True,
    minibatches: int = 1,
) -> Method:
    """Shifted Q: shifted logits fitted as soft Q-values to the multi-step Bellman equation on single trajectories.

        V(s_t) = sum_{k>=t} (r_k - beta log (pi / ref)(a_k|s_k))
        V(s)   = beta (logsumexp l(s) - logsumexp l_ref(s)),   V = 0 after the end

    Clavier et al. 2025 (multi-step form; steps="one" and shift=False are its ablations). The squared residuals are
    averaged over the tokens of a sequence. Rewards may come at any token (`step_rewards` for those of turns), samples
    from any policy: the paper's are of fixed data sets, here they are the policy's own. There are no groups, pairs,
    ratios or target networks. The paper's beta is 0.01 to 0.3.
    """
    return policy_method(
        credit=(per_trajectory(), terminal_reward()),
        term=Term(soft_bellman(beta=beta, steps=steps, shift=shift), loss_weights=sequence_mean()),
        groups=groups,
        rollouts=rollouts,
        minibatches=minibatches,
    )


@block
@provides("token_reward")
def terminal_reward(*, reward: Seq, seq: Token) -> dict[str, Column]:
    """The outcome as a reward per token: at the last one, 0 before.

    Args: reward f64[S]; seq i64[N]. Returns: token_reward f64[N].

    >>> terminal_reward(reward=[1.0, 3.0], seq=[0, 0, 1])["token_reward"].values
    array([0., 1., 3.])
    """
    return {"token_reward": Column("token", at_last_token(reward, seq))}


@block
@provides("token_reward")
def step_rewards(*, reward: Step, step: Token) -> dict[str, Column]:
    """The rewards of turns per token: each at the last token of its turn; an unknown one is 0.

    For rewards at the ends of turns. Args: reward f64[K]; step i64[N]. Returns: token_reward f64[N].
    """
    return {"token_reward": Column("token", at_last_token(np.nan_to_num(np.asarray(reward, np.float64)), step))}


def value_right(
    *, lse: torch.Tensor, ref_lse: torch.Tensor, token_reward: torch.Tensor, seq: torch.Tensor, beta: float
) -> torch.Tensor:
    """Values V in the first half of answers with a reward above 1/2: where it will be had is not known there."""
    return (beta * (lse - ref_lse))[_first_half(seq) & (_to_go(token_reward, seq) > 0.5)]


def value_wrong(
    *, lse: torch.Tensor, ref_lse: torch.Tensor, token_reward: torch.Tensor, seq: torch.Tensor, beta: float
) -> torch.Tensor:
    """The same of all other answers."""
    return (beta * (lse - ref_lse))[_first_half(seq) & (_to_go(token_reward, seq) <= 0.5)]


@block
@logged("value_right", value_right)
@logged("value_wrong", value_wrong)
def soft_bellman(
    *,
    raw_logp: Token,
    ref_raw_logp: Token,
    lse: Token,
    ref_lse: Token,
    token_reward: Token,
    seq: Token,
    beta: float = 0.1,
    steps: Literal["all", "one"] = "all",
    shift: bool = True,
) -> Token:
    """Squared residual of the soft Bellman equation, with the shifted logits as Q-values.

        steps="all"   (sum_{k>=t} (r_k - beta d_k) - V_t)^2
        steps="one"   (r_t - beta d_t + V_{t+1} - V_t)^2
        d = log (pi / ref) of the token
        V = beta (lse - ref_lse),   V = 0 after the end

    The residual of "all" is the sum of those of "one" from t on, so a late reward reaches every token. It is zero on
    all trajectories only where the softmax of the logits is the optimum of E r - beta KL(pi || ref), so samples may
    come from any policy. The gradient goes through both sides; there is no target network.

    Args: raw_logp, lse and the reference's f[N] at temperature 1; token_reward f[N]; seq i64[N], rows of a sequence in
    order. shift=False: V = beta lse, an ablation. Returns: l f[N]. Raises BadValue for other steps. Scope: seq.
    """
    if steps not in ("all", "one"):
        raise BadValue(f"soft_bellman: steps must be all or one, not {steps!r}")
    value = beta * (lse - ref_lse if shift else lse)
    reward = token_reward - beta * (raw_logp - ref_raw_logp)
    return (reward + next_row(value, seq) - value if steps == "one" else _to_go(reward, seq) - value) ** 2


def _first_half(seq: torch.Tensor) -> torch.Tensor:
    """bool[N]: the rows of a sequence of which more follow than precede.

    >>> _first_half(torch.tensor([0, 0, 0, 1, 1]))
    tensor([ True, False, False,  True, False])
    """
    _, number, lengths = torch.unique_consecutive(seq, return_inverse=True, return_counts=True)
    return 2 * _to_go(torch.ones_like(seq), seq) > lengths[number] + 1


def _to_go(x: torch.Tensor, seq: torch.Tensor) -> torch.Tensor:
    """[N]: the sum of a row and all that follow it in its sequence; summed in double precision.

    >>> _to_go(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0, 0, 1]))
    tensor([3., 2., 4.])
    """
    if not len(x):
        return x
    sums = torch.cumsum(x.double(), 0)
    last = torch.cat([seq[1:] != seq[:-1], seq.new_ones(1, dtype=torch.bool)])
    ends = torch.nonzero(last).flatten()
    end = ends[torch.searchsorted(ends, torch.arange(len(x), device=x.device))]
    return (sums[end] - sums + x.double()).to(x.dtype)


shiq.claim = Claim(
    (
        premise("auc", "one_step", 0.9, relation="<", fails_at=0.95),  # one-step residuals are slow here
        # a late reward reaches the first tokens, which decide the way: they are known to be worth something
        mechanism("mean:policy/value_right", "self", "one_step", by=0.1, fails_at=0.95),
        outcome("accuracy", "self", "one_step", by=0.05, fails_at=0.96),
        outcome("auc", "self", "one_step", by=0.05, fails_at=0.96),
        outcome("accuracy", "self", "unshifted", by=0.05, fails_at=0.96),
    ),
    arms={
        "one_step": ("shiq", {"steps": "one", "groups": 128, "rollouts": 1}),
        "unshifted": ("shiq", {"shift": False, "groups": 128, "rollouts": 1}),
    },
    args={"groups": 128, "rollouts": 1},
    regime="skill",
    first_seed=400,
    corrected=(
        "on seeds 200 to 207 the mechanism was the reward that is trained on, which is an outcome: holds; on 300 to 307"
        " it was asked whether values in the first half of right answers are a tenth above those of wrong ones, which"
        " is no statement of the paper's, and they are by 0.044: mechanism not shown"
    ),
    idea=("main.update",),
    because=(
        "one-step residuals propagate a final reward by one token per update; summed from each token on, it reaches"
        " all of them at once; logits shifted by the reference's log-partition start as the right Q-values of no reward"
    ),
)
