"""C3PO, of Ring-lite (Ling team 2025, arXiv 2506.14731): every update learns from the same number of tokens.

Answers differ in length, and so does what a batch of so many answers holds: its gradient is now of few tokens, now of
many. C3PO samples a pool of answers, and takes of these what fits a budget of tokens, by which the loss is divided.

    loss = -(1 / budget) sum over the answers taken, and their tokens, of min(r A, clip(r, 1 - low, 1 + high) A)
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from ..core import (
    Claim,
    Column,
    Method,
    Seq,
    Term,
    Token,
    block,
    mechanism,
    method,
    outcome,
    premise,
    random_keys,
    stateful,
)
from ..credit.advantages import norm
from ..credit.composers import per_trajectory
from ..objective.loss_weights import token_mean
from ..objective.policy import clipped_ratio
from .base import policy_method

By = Literal["tokens", "answers"]


@method(family="system", paper="2506.14731", catalogue=356)
def c3po(
    groups: int = 16,
    rollouts: int = 8,
    budget: int = 2048,
    by: By = "tokens",
    low: float = 0.2,
    high: float = 0.2,
    epochs: int = 1,
    minibatches: int = 1,
) -> Method:
    """GRPO's advantages over a pool of answers, of which each update learns `budget` tokens.

        loss = -(1 / budget) sum_(i taken) sum_t min(r A, clip(r, 1 - low, 1 + high) A)

    Ling team 2025. Answers are taken in random order until the next would exceed the budget; the others
    are dropped. Advantages are those of the whole pool. Where the pool holds fewer tokens than the budget all are
    taken, and the divisor stays: choose the budget below what groups x rollouts answers hold. by="answers" takes so
    many answers instead and divides by their tokens, which is what the paper compares with. How answers are chosen is
    left open there ("a sampling strategy"); at random, without favour for short ones, is a choice made here.

    The rest of Ring-lite's recipe is a matter of the run: the start is a checkpoint of moderate entropy instead of the
    best validated one (`--warm-steps`), mathematics is learned before code, and the sampler's experts are replayed.
    """
    return policy_method(
        credit=(per_trajectory(), norm(), within_budget(budget=budget, by=by)),
        term=Term(
            clipped_ratio(low=low, high=high),
            loss_weights=over_budget(budget=budget) if by == "tokens" else token_mean(),
        ),
        groups=groups,
        rollouts=rollouts,
        epochs=epochs,
        minibatches=minibatches,
    )


@block
@stateful(int)
def within_budget(
    *, adv: Seq, seq: Token, state: int, budget: int = 2048, by: By = "tokens"
) -> tuple[dict[str, Column], int]:
    """Keep the sequences that fit a budget, in random order until the next would exceed it.

        keep_i = [sum of the lengths up to i <= budget],   the first one always

    Args: adv f64[S], of which only the number is read; seq i64[N]. by: the budget counts tokens, or answers. The state
    counts batches, each of which has an order of its own. Returns: keep f64[S]. Scope: batch.

    >>> kept, _ = within_budget(adv=[0.0] * 3, seq=[0, 0, 1, 1, 2, 2], budget=5, state=0)
    >>> int(kept["keep"].values.sum())  # two answers of two tokens each
    2
    """
    length = np.bincount(seq, minlength=len(adv)) if by == "tokens" else np.ones(len(adv), np.int64)
    order = random_keys.generator("budget", state).permutation(len(length))
    fits = np.cumsum(length[order]) <= budget
    fits[:1] = True
    keep = np.zeros(len(length))
    keep[order] = fits
    return {"keep": Column("seq", keep)}, state + 1


@block
def over_budget(*, length: Seq, budget: int = 2048) -> Seq:
    """Equal weight for every token of every update: 1 / budget, however many tokens there are.

    Args: length i64[S]. Returns: f64[S], per token.

    >>> over_budget(length=np.array([1, 3]), budget=8)
    array([0.125, 0.125])
    """
    return np.full(len(length), 1.0 / budget)


c3po.claim = Claim(
    (
        premise("spread:tokens/learned", "answers", 0.03, fails_at=0.02),  # what a batch holds does differ
        # every update holds the same number of tokens
        mechanism("spread:tokens/learned", "self", "answers", relation="<", by=0.5, scale="ratio", fails_at=0.0),
        outcome("jitter:policy/grad_norm", "self", "answers", relation="<", by=0.2, scale="ratio", fails_at=0.0),
        outcome("accuracy", "self", "answers", relation=">=", by=0.03, fails_at=1.0),
    ),
    arms={"answers": ("c3po", {"by": "answers", "budget": 49})},  # as many tokens on average
    regime="verbose",
    idea=("main.credit*", "main.update*"),
    because="a gradient of as many tokens in every update neither jumps nor starves",
)
