"""Preference terms: over pairs of sequences, win and lose i64[P] the indices of the preferred and the other."""

from __future__ import annotations

from typing import Any

from ..core import Pair, Token, block, logged
from ..core.lazy import torch
from .segments import seq_last, seq_sum

CHOSEN = "The implicit reward beta log(pi / ref) of the preferred answers."
REJECTED = "The implicit reward of the answers to which others are preferred."
MARGIN = "reward_chosen less reward_rejected."
ACCURACY = "Share of the pairs whose preferred answer has the larger implicit reward."


@block
@logged("reward_chosen", lambda logp, ref_logp, seq, win, beta: beta * _log_ratio(logp, ref_logp, seq)[win], CHOSEN)
@logged(
    "reward_rejected", lambda logp, ref_logp, seq, lose, beta: beta * _log_ratio(logp, ref_logp, seq)[lose], REJECTED
)
@logged(
    "reward_margin", lambda logp, ref_logp, seq, win, lose, beta: beta * _margin(logp, ref_logp, seq, win, lose), MARGIN
)
@logged("reward_accuracy", lambda logp, ref_logp, seq, win, lose: _margin(logp, ref_logp, seq, win, lose) > 0, ACCURACY)
def dpo(
    *,
    logp: Token,
    ref_logp: Token,
    seq: Token,
    win: Pair,
    lose: Pair,
    beta: float = 0.1,
    label_smoothing: float = 0.0,
) -> Pair:
    """Direct preference optimisation (Rafailov et al. 2023, 2305.18290, eq. 7).

        l = -(1 - e) log sigmoid(m) - e log sigmoid(-m)     m = beta (h(win) - h(lose)), e = label_smoothing
        h = sum over the sequence of (logp - ref_logp)

    e is the share of preferences that are wrong (Mitchell 2023, conservative DPO); 0 is the paper's.

    Args: logp, ref_logp f[N]; seq i64[N]; win, lose i64[P].
    Returns: l f[P]; log 2 where the policy is the reference. Scope: pair.

    >>> import torch
    >>> same = torch.tensor([-1.0, -2.0])
    >>> dpo(logp=same, ref_logp=same, seq=torch.tensor([0, 1]), win=torch.tensor([0]), lose=torch.tensor([1]))
    tensor([0.6931])
    """
    margin, log_sigmoid = beta * _margin(logp, ref_logp, seq, win, lose), torch.nn.functional.logsigmoid
    return -(1 - label_smoothing) * log_sigmoid(margin) - label_smoothing * log_sigmoid(-margin)


def _log_ratio(logp: Token, ref_logp: Token, seq: Token) -> Any:
    """h f[S]: the log-ratio of each sequence."""
    return seq_sum(logp - ref_logp, seq)


def _margin(logp: Token, ref_logp: Token, seq: Token, win: Pair, lose: Pair) -> Any:
    """h(win) - h(lose), f[P]."""
    log_ratio = _log_ratio(logp, ref_logp, seq)
    return log_ratio[win] - log_ratio[lose]


@block
@logged(
    "pair_accuracy",
    lambda scalar_after, seq, win, lose: _scalar_margin(scalar_after, seq, win, lose) > 0,
    "Share of the pairs whose preferred text has the larger reward.",
)
def bradley_terry(*, scalar_after: Token, seq: Token, win: Pair, lose: Pair) -> Pair:
    """The pairwise loss of a reward model (Bradley & Terry 1952; Ouyang et al. 2022, 2203.02155, eq. 1).

        l = -log sigmoid(R(win) - R(lose))        R the scalar head after a text's last token

    Args: scalar_after f[N]; seq i64[N]; win, lose i64[P]. Returns: l f[P], log 2 where R is equal. Scope: pair.

    >>> import torch
    >>> rows = {"scalar_after": torch.tensor([9.0, 1.0, 1.0]), "seq": torch.tensor([0, 0, 1])}
    >>> bradley_terry(**rows, win=torch.tensor([0]), lose=torch.tensor([1]))
    tensor([0.6931])
    """
    return -torch.nn.functional.logsigmoid(_scalar_margin(scalar_after, seq, win, lose))


def _scalar_margin(scalar_after: Token, seq: Token, win: Pair, lose: Pair) -> Any:
    """R(win) - R(lose), f[P]."""
    score = seq_last(scalar_after, seq)
    return score[win] - score[lose]
