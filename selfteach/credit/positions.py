"""Credit that differs along an answer by what is paid at each of its tokens, compared position by position; and how many easy prompts stay."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core import Column, Seq, Token, block, remembers
from . import segments as seg


@block
def pay_necessary(
    *, reward: Seq, necessary: Seq, thinking: Seq, seq: Token, group: Seq, paid: float = 1.1, redundant: float = 1.0
) -> dict[str, Column]:
    """Pay each token of a right answer, and less for what was thought after the answer was found (DECS, 2509.25827, eq. 6).

        r_ij = R_i paid for j <= necessary_i and j > thinking_i,   R_i (redundant - (paid - redundant) L_i / L_max) between

    Args: reward R f64[S], 1 or 0 in the paper; necessary, thinking f64[S] in tokens; seq i64[N]; group i64[S]. L_max: the longest of the group.
    Returns: token_reward f64[N]; NaN for an unknown reward. Scope: group.

    >>> given = {"necessary": [1.0, 2.0], "thinking": [2.0, 2.0], "seq": [0, 0, 0, 1, 1, 1], "group": [0, 0]}
    >>> pay_necessary(reward=[1.0, 0.0], **given)["token_reward"].values.round(3)
    array([1.1, 0.9, 1.1, 0. , 0. , 0. ])
    """
    reward, seq, group = np.asarray(reward, np.float64), np.asarray(seq), np.asarray(group)
    length = np.bincount(seq, minlength=len(reward)).astype(np.float64)
    longest = seg.greatest(length, group, seg.count(group))[group]
    number = _positions(seq) + 1
    late = (number > np.asarray(necessary)[seq]) & (number <= np.asarray(thinking)[seq])
    less = redundant - (paid - redundant) * length / longest
    return {"token_reward": Column("token", reward[seq] * np.where(late, less[seq], paid))}


@block
def norm_by_position(*, token_reward: Token, seq: Token, group: Seq, ddof: int = 1, eps: float = 1e-6, finished: bool = True) -> dict[str, Column]:
    """Compare each token's reward with the siblings' at the same position (DECS, 2509.25827, eq. 7).

        A_ij = (r_ij - mean_k r_kj) / (std_k r_kj + eps)

    Args: token_reward f64[N]; seq i64[N]; group i64[S]. finished: a sibling that has ended counts on with its last token's reward; else only
    those that reach the position count. Returns: adv f64[N]; 0 where all that count agree. Scope: group.
    Equals: `norm` where every token of an answer is paid alike and `finished`.

    >>> norm_by_position(token_reward=[1.0, 1.0, 1.0, 0.0], seq=[0, 0, 1, 1], group=[0, 0], eps=0.0)["adv"].values.round(3)
    array([ 0.   ,  0.707,  0.   , -0.707])
    """
    value, seq, group = np.asarray(token_reward, np.float64), np.asarray(seq), np.asarray(group)
    number, out = _positions(seq), np.full(len(seq), np.nan)
    for g in range(seg.count(group)):
        rows = np.flatnonzero(group[seq] == g)
        if not len(rows):
            continue
        who, at = np.unique(seq[rows], return_inverse=True)[1], number[rows]
        wide = np.zeros((int(who.max()) + 1, int(at.max()) + 1))
        wide[who, at] = value[rows]
        here = np.zeros(wide.shape, bool)
        here[who, at] = True
        last = here.sum(1) - 1
        if finished:
            wide = np.where(here, wide, wide[np.arange(len(wide)), last][:, None])
            here = np.ones_like(here)
        who_counts, column = np.nonzero(here)
        counted, n = wide[who_counts, column], wide.shape[1]
        with np.errstate(invalid="ignore", divide="ignore"):
            adv = (wide - seg.mean(counted, column, n)) / (seg.std(counted, column, n, ddof) + eps)
        alike = seg.same(counted, column, n) | (np.bincount(column, minlength=n) <= ddof)
        out[rows] = np.where(alike, 0.0, adv)[who, at]
    return {"adv": Column("token", out)}


@block
@remembers(lambda: {"share": None, "needed": None})
def keep_share_of_easy(
    *, reward: Seq, necessary: Seq, thinking: Seq, group: Seq, state: dict[str, Any], rate: float = 0.2
) -> tuple[dict[str, Column], dict[str, Any]]:
    """Keep only a share of the batch's easy prompts, fewer while thinking is redundant (DECS, 2509.25827, eq. 9).

        kappa_m = clip(kappa_{m-1} + rate (R_m - R_{m-1}), 0, share of the batch's groups that are easy),   R = mean necessary / thinking

    Easy: all of the group are right (reward above 0); R is over right answers. round(kappa * groups) of them stay, the most redundant first.
    Args: reward, necessary, thinking f64[S]; group i64[S]; state {"share", "needed"}. The first batch keeps all; one without an easy group, or
    without a right answer, changes nothing. Returns: (keep f64[S], the next state). Scope: batch.
    """
    reward, group = np.asarray(reward, np.float64), np.asarray(group)
    n, right = seg.count(group), reward > 0
    share = np.asarray(necessary, np.float64) / np.maximum(np.asarray(thinking, np.float64), 1.0)
    easy = seg.least(right.astype(np.float64), group, n) == 1
    if not easy.any():
        return {"keep": Column("seq", np.ones(len(reward)))}, state
    needed, natural = float(share[right].mean()), float(easy.mean())
    before = natural if state["share"] is None else state["share"] + rate * (needed - state["needed"])
    kappa = float(np.clip(before, 0.0, natural))
    order = sorted(np.flatnonzero(easy).tolist(), key=lambda g: float(share[group == g].mean()))
    gone = np.zeros(n, bool)
    gone[order[round(kappa * n) :]] = True
    return {"keep": Column("seq", np.where(gone[group], 0.0, 1.0))}, {"share": kappa, "needed": needed}


def _positions(seq: np.ndarray) -> np.ndarray:
    """Number of each row in its sequence, from 0."""
    rows = np.arange(len(seq))
    return rows - np.maximum.accumulate(np.where(np.append(True, np.diff(seq) != 0)[: len(seq)], rows, 0))
