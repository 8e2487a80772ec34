"""Terms that teach a model to tell right answers from wrong ones, from outcomes alone."""

from __future__ import annotations

import torch

from ..core import Seq, Token, block
from .segments import seq_sum


@block
def outcome_cross_entropy(*, prm_logp: Token, ref_logp: Token, reward: Seq, seq: Token, beta: float = 0.05) -> Seq:
    """Cross-entropy of the outcome under a model whose log-ratio to a reference, summed, is the log-odds (2412.01981; PRIME, eq. 4).

        -(R log sigmoid(S) + (1 - R) log(1 - sigmoid(S))),   S = beta sum_t (prm_logp_t - ref_logp_t)

    Args: prm_logp, ref_logp f[N]; reward f[S] in [0, 1]; seq i64[N]. Returns: l f[S]. Each summand of S then is a reward for its token.
    Scope: seq.

    >>> outcome_cross_entropy(prm_logp=torch.zeros(1), ref_logp=torch.zeros(1), reward=torch.ones(1), seq=torch.tensor([0]))  # log 2
    tensor([0.6931])
    """
    odds = beta * seq_sum(prm_logp - ref_logp, seq, len(reward))
    return torch.nn.functional.softplus(odds) - reward * odds
