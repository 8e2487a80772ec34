"""BAPO (2510.18927): PPO's clip with bounds adapted in every minibatch.

On stale samples negative advantages outweigh positive ones, and a fixed clip drops the low-probability tokens of good
answers. The upper bound is raised, and then the lower, until positive advantages have their share of the loss,

    P / (P + N) >= target

The released code (WooooDyy/BAPO, recipe/bapo/policy_loss.py) raises the lower bound first.
"""

from __future__ import annotations

from typing import Literal

from ..core import BadValue, Claim, Method, Term, Token, block, mechanism, method, outcome, premise, zero_when
from ..core.lazy import torch
from ..credit.advantages import norm
from ..objective.loss_weights import token_mean
from .base import delayed_trajectories, policy_method


@method(family="objective", paper="2510.18927", catalogue=281)
def bapo(
    groups: int = 16,
    rollouts: int = 8,
    target: float = 0.4,
    low: float = 0.6,
    low_max: float = 0.9,
    high: float = 1.2,
    high_max: float = 3.0,
    step: float = 0.05,
    first: Literal["high", "low"] = "high",
    minibatches: int = 4,
    sync: int = 20,
    delay: int = 0,
) -> Method:
    """Balanced policy optimisation: clip bounds adapted per minibatch so that positive advantages keep their share.

        P / (P + N) >= target        `high` is raised, and where that is not enough `low`
        loss = -min(r A, clip(r, low, high) A)        at most -3 A where A < 0

    Xi et al. 2025, algorithm 1 and section 5.1: a share of 0.4, bounds within [0.6, 0.9] and [1.2, 3.0], `high` in
    steps of 0.05. `low` goes to its end at once: their steps of 0.02 lead there too, since raising it never helps the
    share. The dual clip at 3 and tokens that all weigh the same are the released code's: algorithm 1 has no dual clip,
    and equation 8 as printed weighs a token by its probability under the sampler. first="low" is the code's order; it
    compares P / N, with 1 in its configuration (a share of 1/2) and 0.5 in its example script (1/3). Samples are up to
    `sync` - 1 steps old, each of `minibatches` updates, or `delay` steps.
    """
    return policy_method(
        credit=(delayed_trajectories(delay), norm()),
        term=Term(
            balanced_clip(
                target=target, low=low, low_max=low_max, high=high, high_max=high_max, step=step, first=first
            ),
            loss_weights=token_mean(),
        ),
        groups=groups,
        rollouts=rollouts,
        minibatches=minibatches,
        sync=sync,
    )


@block
@zero_when("adv")
def balanced_clip(
    *,
    logp: Token,
    old_logp: Token,
    adv: Token,
    batch: Token,
    target: float = 0.4,
    low: float = 0.6,
    low_max: float = 0.9,
    high: float = 1.2,
    high_max: float = 3.0,
    step: float = 0.05,
    first: Literal["high", "low"] = "high",
    dual: float = 3.0,
) -> tuple[Token, Token, dict[str, torch.Tensor]]:
    """PPO's clip with bounds adapted so that positive advantages have a given share of the loss.

        l = -min(r A, clip(r, low, high) A)        at most -dual A where A < 0
        share = P / (P + N)
        P = sum over A > 0 of min(r, high) A
        N = sum over A < 0 of max(r, low) |A|

    While the share is below `target`, `high` is raised by `step` up to `high_max` (tokens with A > 0 count up to a
    larger ratio); where that is not enough, `low` is `low_max` (tokens with A < 0 and a ratio below `low` lose their
    gradient; in the share they count with `low`, so that this never helps it). first="low" has `low` at `low_max`
    before `high` is raised. Bounds are ratios; log-ratios are clamped to [-20, 20].

    Args: logp, old_logp, adv f[N]; batch, named so that the batch is not split.
    Returns: (l f[N], kept bool[N], metrics: bounds, good_share, and kept_share, `share_kept` with these bounds and with
    the first ones); kept: where the ratio is not clipped. Raises BadValue for another `first`.
    Equals: `clipped_ratio` in gradient, with these bounds and dual. Scope: batch.
    """
    ratio = torch.exp((logp - old_logp).clamp(-20.0, 20.0))
    fixed = ratio.detach()
    bounds = balanced_bounds(fixed, adv, target, (low, low_max), (high, high_max), step, first)
    kept, at_first = (within_bounds(fixed, adv, a, b, dual) for a, b in (bounds[:2], (low, high)))
    return (
        -ratio * adv,
        kept,
        {
            **{n: fixed.new_tensor([v]) for n, v in zip(("clip_low", "clip_high", "good_share"), bounds, strict=True)},
            "kept_share": fixed.new_tensor([share_kept(fixed, adv, kept)]),
            "kept_share_initial": fixed.new_tensor([share_kept(fixed, adv, at_first)]),
            "clip_fraction": ~kept[adv != 0],
        },
    )


def within_bounds(ratio: torch.Tensor, adv: torch.Tensor, low: float, high: float, dual: float) -> torch.Tensor:
    """bool[N]: the tokens that keep their gradient."""
    return torch.where(adv >= 0, ratio <= high, (ratio >= low) & (ratio <= dual))


def share_kept(ratio: torch.Tensor, adv: torch.Tensor, kept: torch.Tensor) -> float:
    """The share that positive advantages have of r |A| over the tokens that keep their gradient; NaN without any.

    That of `balanced_bounds` counts tokens whose gradient is clipped too: a higher lower bound can only lower it.
    """
    weight = ratio * adv.abs() * kept
    return float(weight[adv > 0].sum() / weight.sum())


def balanced_bounds(
    ratio: torch.Tensor,
    adv: torch.Tensor,
    target: float,
    lows: tuple[float, float],
    highs: tuple[float, float],
    step: float,
    first: str = "high",
) -> tuple[float, float, float]:
    """(low, high, share) of `balanced_clip`: `high` is raised step by step, `low` from its first value to its last."""
    if step <= 0:
        raise BadValue(f"balanced_clip: step must be above 0, not {step}")
    if first not in ("high", "low"):
        raise BadValue(f"balanced_clip: first must be high or low, not {first!r}")

    gains, losses = adv.clamp(min=0), adv.clamp(max=0)

    def share(low: float, high: float) -> float:
        positive = (ratio.clamp(max=high) * gains).sum()
        negative = -(ratio.clamp(min=low) * losses).sum()
        return float((positive / (positive + negative)).detach())

    low, high = lows[0], highs[0]
    if first == "low" and share(low, high) < target:
        low = lows[1]
    while (current := share(low, high)) < target and high < highs[1]:
        high = min(high + step, highs[1])
    if current < target:
        low = lows[1]
    return low, high, share(low, high)


bapo.claim = Claim(
    (
        premise("accuracy", "grpo", "fresh_grpo", by=0.05, relation="<", fails_at=0.04),  # stale samples do harm
        # what is wrong has more of the loss than what is right, which has less than its target
        premise("mean:policy/good_share", "fixed", 0.5, by=0.03, relation="<", fails_at=0.48),
        mechanism("mean:policy/clip_high", "self", 1.2, by=0.05, fails_at=1.2),  # the bound moves,
        # and of the same batch's tokens that keep a gradient what is right has more than with the first bounds
        mechanism("mean:policy/kept_share", "self", "mean:policy/kept_share_initial of self", by=0.01, fails_at=0.995),
        # what that is for: rare tokens of right answers keep their gradient, so that the policy stays open
        outcome("late:policy/entropy_estimate", "self", "fixed", by=0.05, scale="ratio", fails_at=10.0),
        outcome("accuracy", "self", "fixed", by=0.05, fails_at=0.96),
        outcome("auc", "self", "fixed", by=0.02, fails_at=0.99),
        outcome("auc", "self", "grpo", by=0.02, fails_at=0.99),
    ),
    args={"target": 0.5},  # the released configuration's
    arms={
        # PPO's bounds, with the same dual clip
        "fixed": ("bapo", {"target": 0.5, "low": 0.8, "low_max": 0.8, "high_max": 1.2}),
        "grpo": "grpo",
        "fresh_grpo": ("grpo", {"delay": 0}, {"steps": 60}),
    },
    regime="doubted",
    settings={"steps": 76},  # the first 16 steps learn nothing: 60 updates, as many as the fresh arm has
    idea=("main.update",),
    differs={
        "main.credit.0": "the fresh arm is there to show what staleness costs",
        "settings.steps": "so that the fresh arm has as many updates",
    },
    first_seed=900,
    corrected="on seeds 200 to 207, in stale, where right and wrong answers are as long as each other and no bound has "
    "to move, the lower bound was raised first, towards a share of 1/2, stale arms had 44 updates beside 60 of the "
    "fresh one, GRPO, whose mean is over answers, stood for fixed bounds, and entropy alone for the mechanism, "
    "although it falls as the policy learns; on seeds 500 to 507 the share of what is right was compared with that of "
    "the arm with fixed bounds, whose policy becomes another one, and not with what it would have been of the same "
    "batches; on 600 to 607 tokens that the lower bound clips were counted in that share, which a higher one can then "
    "only lower; on 700 to 707 the share to be kept was 0.4, which what is right has here with fixed bounds (0.42), so "
    "that there was little to balance (0.5 points [0.3, 0.8] of the gradient): mechanism not shown; on 800 to 823 all "
    "arms had twice the rate that is best for each: does not hold here",
    because=(
        "on stale samples negative advantages outweigh positive ones and a fixed clip drops low-probability positive "
        "tokens; bounds that balance the two keep the entropy"
    ),
)
