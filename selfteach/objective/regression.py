"""Regression terms: a squared error of the log-ratio, which has a minimum at a finite target."""

from __future__ import annotations

from ..core import Seq, Token, block
from .segments import seq_sum


@block
def advantage_regression(*, logp: Token, ref_logp: Token, adv: Seq, seq: Token, beta: float = 1e-3) -> Seq:
    """Squared error of a sequence's scaled log-ratio against its advantage (A*-PO, 2505.20686, eq. 3).

        l = (beta sum_t (logp_t - ref_logp_t) - A)^2

    Zero at the optimum of E r - beta KL(pi || ref) where

        A = r - V*        V* = beta log E_ref exp(r / beta)

    Reading ref_logp="old_logp", with A the centred reward and coefficient 1 / (2 beta), it is OPMD's loss up to a
    constant (2509.24203):

        -A sum_t logp_t + beta/2 (sum_t (logp_t - old_logp_t))^2

    Args: logp, ref_logp f[N]; adv f[S]; seq i64[N]. Returns: l f[S]. Scope: seq.

    >>> import torch
    >>> lp, ref = torch.tensor([-1.0, -1.0]), torch.tensor([-2.0, -3.0])  # beta * 3 = 1.5; (1.5 - 1)^2
    >>> advantage_regression(logp=lp, ref_logp=ref, adv=torch.tensor([1.0]), seq=torch.tensor([0, 0]), beta=0.5)
    tensor([0.2500])
    """
    return (beta * seq_sum(logp - ref_logp, seq, len(adv)) - adv) ** 2
