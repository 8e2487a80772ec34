"""Terms that fit a log-probability to a number, instead of following a gradient: squared, so that they know where to stop."""

from __future__ import annotations

from ..core import Seq, Token, block
from .segments import seq_sum


@block
def advantage_regression(*, logp: Token, ref_logp: Token, adv: Seq, seq: Token, beta: float = 1e-3) -> Seq:
    """The scaled log-ratio of a sequence against its advantage: (beta sum_t (logp_t - ref_logp_t) - A)^2.

    Zero at the optimum of E r - beta KL(pi || ref) if A = r - V*, V* = beta log E_ref exp(r / beta) (A*-PO, 2505.20686, eq. 3). Read
    with ref_logp="old_logp", A the reward centred and coefficient 1 / (2 beta), it is OPMD's -A sum logp + beta/2 (sum log-ratio)^2 but
    for a constant (2509.24203). Args: logp, ref_logp f[N]; adv f[S]; seq i64[N]. Returns: l f[S]. Scope: seq.

    >>> import torch
    >>> lp, ref = torch.tensor([-1.0, -1.0]), torch.tensor([-2.0, -3.0])  # beta * 3 = 1.5; (1.5 - 1)^2
    >>> advantage_regression(logp=lp, ref_logp=ref, adv=torch.tensor([1.0]), seq=torch.tensor([0, 0]), beta=0.5)
    tensor([0.2500])
    """
    return (beta * seq_sum(logp - ref_logp, seq, len(adv)) - adv) ** 2


@block
def verdict_regression(*, raw_logp: Token, reward: Token, beta: float = 0.1, base: float = -20.0) -> Token:
    """A token's log-probability, scaled, against the reward: (beta (log pi - base) - r)^2 (LaSeR, 2510.14943, eq. 11).

    With base the reference's log-probability it is the optimum of verifying under a KL penalty, beta log(pi / ref) = r, as the partition
    function of a token that is never said is 1. Args: raw_logp f[N], at temperature 1; reward f[N]. Returns: l f[N].

    >>> import torch
    >>> verdict_regression(raw_logp=torch.tensor([-14.0]), reward=torch.tensor([1.0]), base=-20.0)  # (0.6 - 1)^2
    tensor([0.1600])
    """
    return (beta * (raw_logp - base) - reward) ** 2
