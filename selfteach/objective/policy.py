"""Policy-gradient terms: REINFORCE, and importance ratios for samples of an older policy.

Every `l` is a loss, to be minimised. Advantages and old_logp are constants; the gradient is that of logp.
"""

from __future__ import annotations

import math

from ..core import BadValue, Seq, Token, block, logged, zero_when
from ..core.lazy import torch
from .segments import seq_mean


def _log(x: float) -> float:
    return math.log(x) if x > 0 else -math.inf


def clipped_bounds(
    log_ratio: torch.Tensor, adv: torch.Tensor, low: float, high: float, dual: float | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(above, below, top): where the ratio is above its upper bound `top`, or below 1 - low, and so clipped.

    The upper bound is 1 + high where A >= 0 and `dual` where A < 0; the lower one is for A < 0 alone.
    """
    positive = adv >= 0
    top = torch.where(positive, torch.full_like(log_ratio, 1.0 + high), math.inf if dual is None else dual)
    return log_ratio > torch.log(top), ~positive & (log_ratio < _log(1.0 - low)), top


def clipped_tokens(
    logp: torch.Tensor, old_logp: torch.Tensor, adv: torch.Tensor, low: float, high: float, dual: float | None = None
) -> torch.Tensor:
    """bool: of the tokens with an advantage, which lose their gradient to `clipped_ratio`'s clip."""
    above, below, _ = clipped_bounds(logp - old_logp, adv, low, high, dual)
    return (above | below)[adv != 0]


RARE = 0.2  # a probability: DAPO's figure 3a has the tokens that its upper clip stops below it


def clipped_prob(logp: torch.Tensor, old_logp: torch.Tensor, adv: torch.Tensor, high: float) -> torch.Tensor:
    """The probability at which tokens were sampled that the upper clip stops (DAPO, 2503.14476, figure 3a)."""
    return torch.exp(old_logp[(logp - old_logp > _log(1.0 + high)) & (adv > 0)])


def rare_growth(logp: torch.Tensor, old_logp: torch.Tensor, adv: torch.Tensor) -> torch.Tensor:
    """log(p / p_old) of tokens that were sampled at a probability below 0.2 and have an advantage above 0, nats."""
    return (logp - old_logp)[(old_logp < math.log(RARE)) & (adv > 0)]


def clipped_sequences(
    logp: torch.Tensor, old_logp: torch.Tensor, adv: torch.Tensor, seq: torch.Tensor, low: float, high: float
) -> torch.Tensor:
    """bool: of the sequences with an advantage, which lose their gradient to `sequence_ratio`'s clip."""
    above, below, _ = clipped_bounds(seq_mean(logp - old_logp, seq, len(adv)), adv, low, high, None)
    return (above | below)[adv != 0]


def clipped_weights(
    logp: torch.Tensor, old_logp: torch.Tensor, adv: torch.Tensor, low: float, high: float
) -> torch.Tensor:
    """bool: of the tokens with an advantage, those whose weight `clipped_importance` bounds; they keep a gradient."""
    log_ratio = logp - old_logp
    return ((log_ratio > _log(1.0 + high)) | (log_ratio < _log(1.0 - low)))[adv != 0]


def _clipped_surrogate(
    log_ratio: torch.Tensor, adv: torch.Tensor, low: float, high: float, dual: float | None
) -> torch.Tensor:
    """-min(r A, clip(r, 1-low, 1+high) A), and at least dual * A where A < 0. Same shape as log_ratio.

    Where the ratio is clipped the loss is a constant, and the input of exp is replaced: the gradient through the branch
    not taken would be 0 * inf = NaN for a huge ratio. A huge ratio that is not clipped stays huge.
    """
    if dual is not None and dual <= 1:
        raise BadValue(f"clipped_ratio: dual must be above 1, not {dual}")
    above, below, top = clipped_bounds(log_ratio, adv, low, high, dual)
    free = torch.exp(torch.where(above | below, 0.0, log_ratio))
    ratio = torch.where(above, top, torch.where(below, max(1.0 - low, 0.0), free))
    return -ratio * adv


@block
@zero_when("adv")
def policy_gradient(*, logp: Token, adv: Token) -> Token:
    """REINFORCE's term per token (Williams 1992).

        l = -A logp        gradient -A grad log pi

    Args: logp, adv f[N]. Returns: l f[N]. Unbiased for samples of the policy itself; only its gradient has a meaning,
    not its value.

    >>> policy_gradient(logp=torch.tensor([-2.0]), adv=torch.tensor([0.5]))
    tensor([1.])
    """
    return -logp * adv


@block
@zero_when("adv")
@logged("clip_fraction", clipped_tokens)
@logged("clipped_prob", clipped_prob)
@logged("rare_growth", rare_growth)
def clipped_ratio(
    *, logp: Token, old_logp: Token, adv: Token, low: float = 0.2, high: float = 0.2, dual: float | None = None
) -> Token:
    """PPO's clipped surrogate per token (Schulman et al. 2017, 1707.06347, eq. 7).

        r = exp(logp - old_logp)
        l = -min(r A, clip(r, 1-low, 1+high) A)        with `dual`: at most -dual A where A < 0

    Args: logp, old_logp, adv f[N]. high > low is DAPO's clip-higher (2503.14476, eq. 10: 0.2, 0.28); dual is the dual
    clip of Ye et al. 2020 (1912.09729, eq. 5: 3). high = inf, low = 1 clips nothing.
    Returns: l f[N]; no gradient where the ratio is clipped. Equals: the gradient of `policy_gradient` at ratio 1.
    Scope: token.

    >>> r = torch.log(torch.tensor([1.5, 1.5, 0.5]))  # r > 1, A > 0: clipped; r > 1, A < 0: not; r < 1, A > 0: not
    >>> clipped_ratio(logp=r, old_logp=torch.zeros(3), adv=torch.tensor([1.0, -1.0, 1.0]))
    tensor([-1.2000,  1.5000, -0.5000])
    """
    return _clipped_surrogate(logp - old_logp, adv, low, high, dual)


@block
@zero_when("adv")
@logged("clip_fraction", clipped_sequences)
def sequence_ratio(*, logp: Token, old_logp: Token, adv: Seq, seq: Token, low: float = 3e-4, high: float = 4e-4) -> Seq:
    """PPO's clip on the length-normalised ratio of a whole sequence (GSPO, Zheng et al. 2025, 2507.18071, eq. 5-7).

        s = exp(mean_t (logp_t - old_logp_t))        the geometric mean of the tokens' ratios
        l = -min(s A, clip(s, 1-low, 1+high) A)

    Args: logp, old_logp f[N]; adv f[S]; seq i64[N]. low, high: the paper's section 5.1.
    Returns: l f[S]. Equals: `clipped_ratio` on one-token sequences. Biased off-policy: s is the density ratio to the
    power 1 / length. Scope: seq.
    """
    return _clipped_surrogate(seq_mean(logp - old_logp, seq, len(adv)), adv, low, high, None)


@block
@zero_when("adv")
@logged("clip_fraction", clipped_weights)
@logged("rare_growth", rare_growth)
def clipped_importance(*, logp: Token, old_logp: Token, adv: Token, low: float = 1.0, high: float = 4.0) -> Token:
    """REINFORCE weighted by the clipped importance ratio, held constant: no token loses its gradient (2506.13585, 4-5).

        r = exp(logp - old_logp)
        l = -sg(clip(r, 1-low, 1+high)) A logp        CISPO's equations 4 and 5

    Args: logp, old_logp, adv f[N]. low = 1 sets no lower bound, as in the paper, which does not print its high; 4 (a
    weight of at most 5) is common after ScaleRL (2510.13786).
    Returns: l f[N]. Equals: the importance-weighted policy gradient at high = inf. Scope: token.

    The weight is clipped to 5: 5 * 2 * 1.

    >>> clipped_importance(logp=torch.tensor([-1.0]), old_logp=torch.tensor([-9.0]), adv=torch.tensor([2.0]))
    tensor([10.])
    """
    log_ratio = (logp - old_logp).detach().clamp(_log(1.0 - low), _log(1.0 + high))
    return -torch.exp(log_ratio) * adv * logp
