"""REINFORCE with return batch normalisation, of GEM (Liu et al. 2025, arXiv 2510.01051).

In an environment of several turns a turn is an action, with a reward of its own and a discounted return. GRPO compares
whole episodes that began alike, and gives every turn the same credit; here the returns of all turns of a batch are
compared, whatever they began with, so that no groups are needed, and a discount rewards getting there in fewer turns.

    G_t = sum_(k >= t) gamma^(k - t) r_k        of turn t, discounted by turn
    A_t = (G_t - mean G) / (std G + eps)        over all turns of all episodes of the batch
    loss = -mean over turns of A_t log p(turn t | what came before)
"""

from __future__ import annotations

import numpy as np

from ..core import (
    Claim,
    Column,
    Method,
    Seq,
    Term,
    Token,
    block,
    mechanism,
    method,
    outcome,
    premise,
    provides,
)
from ..credit import segments as seg
from ..credit.composers import per_trajectory
from ..credit.returns import reward_to_go
from ..objective.policy import clipped_ratio
from .base import policy_method


@method(family="system", paper="2510.01051", catalogue=309)
def rebn(
    groups: int = 128,
    rollouts: int = 1,
    gamma: float = 0.9,
    normalise: bool = True,
    clip: float = 0.2,
    minibatches: int = 1,
) -> Method:
    """REINFORCE over turns, whose discounted returns are normalised over the batch.

        A_t  = (G_t - mean G) / (std G + 1e-9),   G_t = r_t + gamma G_(t+1)
        loss = -mean over turns of sum over their tokens of min(r A_t, clip(r, 1 - clip, 1 + clip) A_t)

    Liu et al. 2025, section 3; gamma, eps and a std over n - 1 are those of their examples/train_tinker. Their
    train_oat has a gamma of 1 (0.9 in games), a std over n, two passes over a batch and a loss divided by a constant
    length.
    normalise=False is plain REINFORCE. The rewards of turns are those of the environment (`--task`, `--env`); a task
    without turns has one, with its reward, and gamma does nothing there.
    """
    return policy_method(
        credit=(per_trajectory(tokens=("turn_reward",)), turn_returns(gamma=gamma, normalise=normalise)),
        term=Term(clipped_ratio(low=clip, high=clip), loss_weights=turn_mean()),
        groups=groups,
        rollouts=rollouts,
        minibatches=minibatches,
    )


@block
@provides("turns")
def turn_returns(
    *,
    reward: Seq,
    turn_reward: Token,
    step: Token,
    seq: Token,
    batch: Token,
    gamma: float = 0.9,
    normalise: bool = True,
    eps: float = 1e-9,
) -> dict[str, Column]:
    """The discounted return of each turn, normalised over all turns of the batch, at each of its tokens.

        G_t = r_t + gamma G_(t+1)
        A_t = (G_t - mean G) / (std G + eps)        std over n - 1; exactly 0 where all are equal

    Args: reward f64[S], which is the last turn's of a sequence without rewards of turns; turn_reward f64[N], NaN where
    there is none; step, seq i64[N]; batch i64[N], named so that the batch is not split. Returns: adv f64[N]; turns
    f64[S], the number of turns of each sequence. Scope: batch.

    Of two turns with a reward of 1 at the end, and one with 0, the returns are 0.5, 1 and 0.

    >>> rows = {"turn_reward": [0.0, 1.0, 0.0], "step": [0, 1, 2], "seq": [0, 0, 1], "batch": [0, 0, 0]}
    >>> turn_returns(reward=[1.0, 0.0], **rows, gamma=0.5)["adv"].values
    array([ 0.,  1., -1.])
    """
    own, step, seq = np.asarray(turn_reward, np.float64), np.asarray(step), np.asarray(seq)
    _, first, turn = np.unique(step, return_index=True, return_inverse=True)
    owner, count = seq[first], len(first)
    returns = seg.total(np.nan_to_num(own), turn, count)
    whole = np.bincount(seq, weights=np.isfinite(own), minlength=len(reward)) == 0
    last = seg.last(owner, len(reward))
    at_end = whole & (last >= 0)
    returns[last[at_end]] = np.asarray(reward, np.float64)[at_end]
    returns = reward_to_go(returns, owner, gamma)
    if normalise:
        everything = np.zeros(count, np.int64)
        equal = seg.same(returns, everything, 1)[0]
        spread = seg.std(returns, everything, 1)[0] + eps
        returns = np.zeros(count) if equal else (returns - seg.mean(returns, everything, 1)[0]) / spread
    turns = np.bincount(owner, minlength=len(reward)).astype(np.float64)
    return {"adv": Column("token", returns[turn]), "turns": Column("seq", turns)}


@block
def turn_mean(*, turns: Seq) -> Seq:
    """The sum over the tokens of a turn, the mean over all turns: 1 / T.

    Args: turns f64[S], of each sequence. Returns: f64[S], per token.

    >>> turn_mean(turns=np.array([3.0, 1.0]))
    array([0.25, 0.25])
    """
    return np.full(len(turns), 1.0 / turns.sum())


TURNS = "late:rollout/turns_mean"

rebn.claim = Claim(
    (
        premise("accuracy", "grpo", "start", by=0.1, fails_at=0.95),  # there is something to learn
        premise(TURNS, "undiscounted", 4.2, by=0.4, fails_at=4.2),  # and then to be faster: halving needs 4.2
        # a discount hurries
        mechanism(TURNS, "self", "undiscounted", by=0.1, relation="<", scale="ratio", fails_at=1.0),
        outcome(TURNS, "self", "grpo", by=0.1, relation="<", scale="ratio", fails_at=1.0),
        outcome("accuracy", "self", "grpo", by=0.03, relation=">=", fails_at=1.0),
        outcome("auc", "self", "plain", by=0.03, fails_at=0.98),
    ),
    arms={
        "grpo": "grpo",
        "plain": ("rebn", {"normalise": False}),
        "undiscounted": ("rebn", {"gamma": 1.0}),
    },
    regime="guess_number",
    idea=("main.credit", "main.update.0.term.*"),
    because="a turn is compared with all turns of the batch, by a return that is larger the sooner the end is reached",
)
