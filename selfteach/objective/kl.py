"""Terms that hold the policy near a reference, from its own samples: three estimators of KL(pi || ref), in value and in gradient."""

from __future__ import annotations

from typing import Literal

import torch

from ..core import BadValue, Token, block

Kind = Literal["k1", "k2", "k3"]


def _estimate(gap: torch.Tensor, kind: str) -> torch.Tensor:
    if kind == "k1":
        return gap
    if kind == "k2":
        return gap**2 / 2
    if kind == "k3":
        return torch.expm1(-gap) + gap
    raise BadValue(f"kl: kind must be k1, k2 or k3, not {kind!r}")


@block
def kl(*, logp: Token, ref_logp: Token, kind: Kind = "k3", grad: Literal["value", "k1", "k2", "k3"] = "value") -> Token:
    """Divergence from the reference per token, with d = logp - ref_logp (Schulman 2020, "Approximating KL divergence").

        k1 = d      k2 = d^2 / 2      k3 = exp(-d) - 1 + d

    As values over samples of pi: k1 and k3 are unbiased for KL(pi || ref), k2 is not; k3 is never negative.
    As losses, which is another matter, since the samples are held fixed (TRL #4638, NeMo-RL #2506):

        kind  gradient per sample         its expectation
        k1    grad logp                   0: it does nothing but add noise
        k2    d grad logp                 grad KL(pi || ref): what is usually meant
        k3    (1 - exp(-d)) grad logp     grad KL(ref || pi): GRPO's (2402.03300, eq. 4)

    Per token the KL is that of the next-token distributions at the prefixes seen; how earlier tokens move later prefixes is not in any
    of these gradients (it is in `kl_in_reward`, or if logp and ref_logp are sums over sequences).
    Args: logp, ref_logp f[N]. grad: "value" differentiates the kind itself; a kind's name gives that kind's gradient under this
    one's value. Returns: l f[N].

    >>> kl(logp=torch.tensor([-1.0]), ref_logp=torch.tensor([-1.5]), kind="k2")  # 0.5^2 / 2
    tensor([0.1250])
    """
    gap = logp - ref_logp
    value = _estimate(gap, kind)
    if grad == "value":
        return value
    # x - sg(x) is 0 exactly and brings the other estimator's gradient.
    other = _estimate(gap, grad)
    return value.detach() + (other - other.detach())


@block
def kl_where(*, logp: Token, ref_logp: Token, where: Token, kind: Kind = "k2", grad: Literal["value", "k1", "k2", "k3"] = "value") -> Token:
    """`kl` on the rows that a column marks, times the mark; 0 on the others. Args: logp, ref_logp, where f[N]. Returns: l f[N]."""
    return where * kl(logp=logp, ref_logp=ref_logp, kind=kind, grad=grad)
