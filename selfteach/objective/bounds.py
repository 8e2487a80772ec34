"""Policy gradients on stale samples: which tokens may still move the policy, fixed by a range or found from the whole batch.

Each gives (l, kept), or (l, kept, figures): `kept` is False where a row is left out; figures are told in the step's metrics.
"""

from __future__ import annotations

import math
from typing import Literal

import torch

from ..core import BadValue, Token, block, vanishes

Range = Literal["none", "one_side", "two_side", "ring"]


@block
@vanishes("adv")
def ranged_reinforce(
    *,
    logp: Token,
    old_logp: Token,
    adv: Token,
    mask: Range = "one_side",
    importance: bool = False,
    low: float = 0.2,
    high: float = 0.2,
    far_low: float = 0.6,
    far_high: float = 2.0,
) -> tuple[Token, Token]:
    """REINFORCE on the tokens whose ratio is in range (Yao et al. 2025, REC, 2509.24203, section 4).

        -sg(w M) A logp,   r = exp(logp - old_logp),   w = r with `importance`, else 1
        one_side  M = r <= 1 + high where A >= 0, r >= 1 - low where A <= 0: PPO's clip, which with `importance` it equals in gradient
        two_side  M = 1 - low <= r <= 1 + high
        ring      two_side, or r <= 1 - far_low where A >= 0, or r >= 1 + far_high where A <= 0: what lies far off may come back

    Args: logp, old_logp, adv f[N]. Returns: (l f[N], M bool[N]). Scope: token.
    """
    ratio = torch.exp((logp - old_logp).detach())
    good, bad = adv >= 0, adv <= 0
    inside = (ratio >= 1 - low) & (ratio <= 1 + high)
    masks = {
        "none": torch.ones_like(good),
        "one_side": (good & (ratio <= 1 + high)) | (bad & (ratio >= 1 - low)),
        "two_side": inside,
        "ring": inside | (good & (ratio <= 1 - far_low)) | (bad & (ratio >= 1 + far_high)),
    }
    if mask not in masks:
        raise BadValue(f"ranged_reinforce: mask must be one of {', '.join(masks)}, not {mask!r}")
    weight = torch.where(masks[mask], ratio if importance else torch.ones_like(ratio), 0.0)  # what is left out may have any ratio
    return -weight * adv * logp, masks[mask]


@block
@vanishes("adv")
def bounded_moment(
    *,
    logp: Token,
    old_logp: Token,
    adv: Token,
    batch: Token,
    budget: float = 0.04,
    form: Literal["remove", "cap"] = "remove",
    low: float = 0.0,
    high: float = 0.0,
) -> tuple[Token, Token, dict[str, torch.Tensor]]:
    """The importance-weighted policy gradient on a batch whose log-ratios have a bounded second moment (Zheng et al. 2025, M2PO, 2510.01161).

        -r A where kept,   d = log r = logp - old_logp;   at risk: A > 0 and d > 0, or A < 0 and d < 0

    remove  of the tokens at risk, those with the largest d^2 are left out, as few as bring the mean of the others within `budget`
    cap     those are left out whose d^2 must be capped for the mean to come within it (the released code; there low, high = 0.3, 0.5)
    low, high: a ratio in [1 - low, 1 + high] is kept whatever the moment is. A second moment, unlike a mean, does not cancel between signs.
    Args: logp, old_logp, adv f[N]; batch, named so that the batch stays together. Returns: (l f[N], kept bool[N], moment before). Scope: batch.
    """
    if form not in ("remove", "cap"):
        raise BadValue(f"bounded_moment: form must be remove or cap, not {form!r}")
    gap = (logp - old_logp).detach()
    risk = ((adv > 0) & (gap > 0)) | ((adv < 0) & (gap < 0))
    squares = gap**2
    near = (gap <= math.log1p(high)) & (gap >= math.log(max(1.0 - low, 1e-12)))
    kept = ~risk | (squares < cut_of_moment(squares[risk], budget, form)) | near
    ratio = torch.exp(torch.where(kept, logp - old_logp, 0.0))
    return -ratio * adv, kept, {"moment": squares[risk]}


def cut_of_moment(squares: torch.Tensor, budget: float, form: str = "remove") -> float:
    """The value from which squares [n] are too large for their mean to be within `budget`; inf where it is.

    >>> cut_of_moment(torch.tensor([0.01, 0.09, 0.04, 0.5]), 0.05)  # 0.01, 0.04, 0.09 have the mean 0.047
    0.5
    >>> cut_of_moment(torch.tensor([0.25, 0.5, 1.0, 4.0]), 0.75, "cap")  # capped at 0.5: 1.75 / 4 is within; at 1: 2.75 / 4 too; at 4: no
    4.0
    """
    ascending = squares.double().sort().values
    n = len(ascending)
    count = torch.arange(1, n + 1, device=squares.device, dtype=torch.float64)
    sums = torch.cumsum(ascending, 0)
    mean = sums / count if form == "remove" else (sums + ascending * (n - count)) / max(n, 1)
    over = torch.nonzero(mean > budget).flatten()
    return float(ascending[over[0]]) if len(over) else math.inf


@block
@vanishes("adv")
def balanced_clip(
    *,
    logp: Token,
    old_logp: Token,
    adv: Token,
    batch: Token,
    target: float = 0.5,
    low: float = 0.6,
    low_most: float = 0.9,
    high: float = 1.2,
    high_most: float = 3.0,
    step: float = 0.05,
    dual: float = 3.0,
) -> tuple[Token, Token, dict[str, torch.Tensor]]:
    """PPO's clip between bounds searched so that what is good weighs enough against what is bad (Xi et al. 2025, BAPO, 2510.18927).

        -min(r A, clip(r, low, high) A),  and at most -dual A where A < 0
        share = P / (P + N),   P = sum over A > 0 of min(r, high) A,   N = sum over A < 0 of max(r, low) |A|

    While the share is below `target`, `low` is raised by `step` up to `low_most` (unlikely bad tokens lose their gradient; in the share
    they count by `low`, so that this alone never fills it), then `high` up to `high_most` (ever more unlikely good ones count).
    Bounds are ratios; log-ratios end at 20.
    Args: logp, old_logp, adv f[N]; batch, named so that the batch stays together. Returns: (l f[N], kept bool[N], bounds and share);
    kept: where no clip is in force. Equals: `clipped_ratio` in gradient, with these bounds and dual. Scope: batch.
    """
    ratio = torch.exp((logp - old_logp).clamp(-20.0, 20.0))
    fixed = ratio.detach()
    found = balanced_bounds(fixed, adv, target, (low, low_most), (high, high_most), step)
    kept = torch.where(adv >= 0, fixed <= found[1], (fixed >= found[0]) & (fixed <= dual))
    return -ratio * adv, kept, {n: fixed.new_tensor([v]) for n, v in zip(("clip_low", "clip_high", "good_share"), found, strict=True)}


def balanced_bounds(
    ratio: torch.Tensor, adv: torch.Tensor, target: float, lows: tuple[float, float], highs: tuple[float, float], step: float
) -> tuple[float, float, float]:
    """(low, high, share) as `balanced_clip` finds them: low first, then high, each from its first value to its last."""
    if step <= 0:
        raise BadValue(f"balanced_clip: step must be above 0, not {step}")

    def share(low: float, high: float) -> float:
        good = (ratio.clamp(max=high) * adv.clamp(min=0)).sum()
        bad = -(ratio.clamp(min=low) * adv.clamp(max=0)).sum()
        return float(good / (good + bad))

    low, high = lows[0], highs[0]
    found = share(low, high)
    while found < target and low < lows[1]:
        low = min(low + step, lows[1])
        found = share(low, high)
    while found < target and high < highs[1]:
        high = min(high + step, highs[1])
        found = share(low, high)
    return low, high, found
