"""Terms that push up what was better: the policy gradient, and ratios that allow for samples from an older policy.

Every `l` is a loss, to be made small. Advantages and old_logp are constants; logp carries the gradient.
"""

from __future__ import annotations

import math

import torch

from ..core import BadValue, Seq, Token, block, vanishes
from .segments import seq_mean


def _log(x: float) -> float:
    return math.log(x) if x > 0 else -math.inf


def _pessimistic(log_ratio: torch.Tensor, adv: torch.Tensor, low: float, high: float, dual: float | None) -> torch.Tensor:
    """-min(r A, clip(r, 1-low, 1+high) A), and at least dual * A where A < 0. Same shape as log_ratio.

    Where the clip is in force the loss is a constant. Then exp is not asked at all: the gradient through the branch not taken would be
    0 * inf = NaN for a huge ratio. A huge ratio that is in force stays huge.
    """
    if dual is not None and dual <= 1:
        raise BadValue(f"clipped_ratio: dual must be above 1, not {dual}")
    good = adv >= 0
    top = torch.where(good, torch.full_like(log_ratio, 1.0 + high), math.inf if dual is None else dual)
    above = log_ratio > torch.log(top)
    below = ~good & (log_ratio < _log(1.0 - low))
    free = torch.exp(torch.where(above | below, 0.0, log_ratio))
    ratio = torch.where(above, top, torch.where(below, max(1.0 - low, 0.0), free))
    return -ratio * adv


@block
@vanishes("adv")
def policy_gradient(*, logp: Token, adv: Token) -> Token:
    """REINFORCE: -logp A per token; its gradient is -A grad log pi (Williams 1992).

    Args: logp, adv f[N]. Returns: l f[N]. Unbiased for samples of the policy itself; the value means nothing, only the gradient does.

    >>> policy_gradient(logp=torch.tensor([-2.0]), adv=torch.tensor([0.5]))
    tensor([1.])
    """
    return -logp * adv


@block
@vanishes("adv")
def clipped_ratio(*, logp: Token, old_logp: Token, adv: Token, low: float = 0.2, high: float = 0.2, dual: float | None = None) -> Token:
    """PPO's clipped surrogate per token (Schulman et al. 2017, 1707.06347, eq. 7).

        -min(r A, clip(r, 1-low, 1+high) A),  r = exp(logp - old_logp);   dual: at most -dual * A where A < 0

    Args: logp, old_logp, adv f[N]. high > low is DAPO's clip-higher (2503.14476, eq. 10: 0.2, 0.28); dual is Ye et al. 2020
    (1912.09729, eq. 5: 3). high = inf, low = 1 clips nothing. Returns: l f[N]; no gradient where the clip is in force.
    Equals: the gradient of `policy_gradient` at ratio 1. Scope: token.

    >>> r = torch.log(torch.tensor([1.5, 1.5, 0.5]))  # up and good: clipped; up and bad: not; down and good: not
    >>> clipped_ratio(logp=r, old_logp=torch.zeros(3), adv=torch.tensor([1.0, -1.0, 1.0]))
    tensor([-1.2000,  1.5000, -0.5000])
    """
    return _pessimistic(logp - old_logp, adv, low, high, dual)


@block
@vanishes("adv")
def sequence_ratio(*, logp: Token, old_logp: Token, adv: Seq, seq: Token, low: float = 3e-4, high: float = 4e-4) -> Seq:
    """GSPO: PPO's clip on the ratio of a whole sequence, the geometric mean of its tokens' (Zheng et al. 2025, 2507.18071, eq. 5-7).

        -min(s A, clip(s, 1-low, 1+high) A),  s = exp(mean_t (logp_t - old_logp_t))

    Args: logp, old_logp f[N]; adv f[S]; seq i64[N]. low, high: the paper's section 5.1. Returns: l f[S].
    Equals: `clipped_ratio` on one-token sequences. Biased off-policy: s is not the density ratio, by its length. Scope: seq.
    """
    return _pessimistic(seq_mean(logp - old_logp, seq, len(adv)), adv, low, high, None)


@block
@vanishes("adv")
def clipped_importance(*, logp: Token, old_logp: Token, adv: Token, low: float = 1.0, high: float = 4.0) -> Token:
    """CISPO: weigh by the importance ratio, clipped and held constant, so that no token loses its gradient (2506.13585, eq. 4-5).

        -sg(clip(r, 1-low, 1+high)) A logp,  r = exp(logp - old_logp)

    Args: logp, old_logp, adv f[N]. low = 1 sets no lower bound, as in the paper, which does not print its high; 4 (a weight of at most 5)
    is what ScaleRL's users take (2510.13786). Returns: l f[N]. Equals: the importance-weighted policy gradient at high = inf. Scope: token.

    >>> clipped_importance(logp=torch.tensor([-1.0]), old_logp=torch.tensor([-9.0]), adv=torch.tensor([2.0]))  # 5 * 2 * 1
    tensor([10.])
    """
    log_ratio = (logp - old_logp).detach().clamp(_log(1.0 - low), _log(1.0 + high))
    return -torch.exp(log_ratio) * adv * logp
