"""KL penalty to a reference, from the policy's samples: three estimators of KL(pi || ref), in value and gradient."""

from __future__ import annotations

from typing import Literal

from ..core import BadValue, Token, block
from ..core.lazy import torch

Kind = Literal["k1", "k2", "k3"]


def _estimate(log_ratio: torch.Tensor, kind: str) -> torch.Tensor:
    if kind == "k1":
        return log_ratio
    if kind == "k2":
        return log_ratio**2 / 2
    if kind == "k3":
        return torch.expm1(-log_ratio) + log_ratio
    raise BadValue(f"kl: kind must be k1, k2 or k3, not {kind!r}")


@block
def kl(*, logp: Token, ref_logp: Token, kind: Kind = "k3", grad: Literal["value", "k1", "k2", "k3"] = "value") -> Token:
    """KL divergence from the reference per token (Schulman 2020, "Approximating KL divergence").

        d  = logp - ref_logp
        k1 = d
        k2 = d^2 / 2
        k3 = exp(-d) - 1 + d

    As values over samples of pi: k1 and k3 are unbiased for KL(pi || ref), k2 is not; k3 is never negative.
    As losses, where the samples are constants (TRL #4638, NeMo-RL #2506):

        kind  gradient per sample         its expectation
        k1    grad logp                   0: it does nothing but add noise
        k2    d grad logp                 grad KL(pi || ref): what is usually meant
        k3    (1 - exp(-d)) grad logp     grad KL(ref || pi): GRPO's (2402.03300, eq. 4)

    The KL of a token is that of the next-token distributions at its prefix; the effect of earlier tokens on later
    prefixes is in none of these gradients (it is in `kl_in_reward`, or if logp and ref_logp are sums over sequences).

    Args: logp, ref_logp f[N]. grad: "value" differentiates the estimator `kind`; the name of an estimator gives the
    gradient of that one, with the value of `kind`.
    Returns: l f[N].

    >>> kl(logp=torch.tensor([-1.0]), ref_logp=torch.tensor([-1.5]), kind="k2")  # 0.5^2 / 2
    tensor([0.1250])
    """
    log_ratio = logp - ref_logp
    value = _estimate(log_ratio, kind)
    if grad == "value":
        return value
    # x - sg(x) is exactly 0 and has the gradient of the other estimator.
    other = _estimate(log_ratio, grad)
    return value.detach() + (other - other.detach())
