"""Echo (Xiao et al. 2025, arXiv 2508.05387): sampling and training on two swarms, joined by one of two protocols.

    pull   the trainer asks for a batch under its version: the samplers fetch newer weights first, so all is on-policy
    push   the samplers go on without waiting and push what they have, tagged with versions

Known from the abstract and from the catalogue's card: no code of its objective was at hand. No source says what becomes
of old samples. Chosen here: with push the trainer leaves out what is more than `window` versions old and corrects the
rest by importance ratios.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from ..core import BadValue, Claim, Column, History, Method, Term, Token, block, mechanism, method, outcome, premise
from ..credit.advantages import norm
from ..objective.loss_weights import sequence_mean
from ..objective.policy import clipped_ratio, policy_gradient
from .base import delayed_trajectories, policy_method

Protocol = Literal["pull", "push"]


@method(family="system", paper="2508.05387", catalogue=198)
def echo(
    groups: int = 16,
    rollouts: int = 8,
    clip: float = 0.2,
    protocol: Protocol = "push",
    window: int = 8,
    correct: bool = True,
    delay: int = 0,
) -> Method:
    """GRPO whose samplers and trainer are apart.

        push (chosen here): an answer with a token of version v is learned where now - v <= window, by
        -min(r A, clip(r, 1 - clip, 1 + clip) A),  r = p / p_sampled;     without correct: -A log p

    protocol="pull" is GRPO to the bit, wherever its samplers are (`--cluster ray`). With push rollouts run up to
    `window` versions ahead unless the run's `--staleness` says otherwise; with `--interrupt` they never wait. delay:
    learn exactly so many updates late, on top, as a baseline of methods for stale data. Snapshots are published after
    every update.
    """
    if protocol not in ("pull", "push"):
        raise BadValue(f"echo: protocol must be pull or push, not {protocol!r}")
    pushed = protocol == "push"
    ratio = clipped_ratio(low=clip, high=clip) if correct or not pushed else policy_gradient()
    return policy_method(
        credit=(delayed_trajectories(delay), *([within_window(window=window)] if pushed else []), norm()),
        term=Term(ratio, loss_weights=sequence_mean()),
        groups=groups,
        rollouts=rollouts,
    ).replace(staleness=window if pushed else 0)


@block
def within_window(*, version: Token, seq: Token, history: History, window: int = 8) -> dict[str, Column]:
    """Keeps the sequences of which no token was sampled more than `window` updates ago.

    Args: version i64[N], of tokens that no weights of this run sampled below 0, which count as new; seq i64[N].

    >>> rows = {"version": np.array([2, 9, 9]), "seq": np.array([0, 0, 1]), "history": History(step=9)}
    >>> [within_window(**rows, window=window)["keep"].values.tolist() for window in (6, 7)]
    [[0.0, 1.0], [1.0, 1.0]]
    """
    age = np.where(version < 0, 0, history.step - version)
    oldest = np.zeros(int(seq.max()) + 1 if len(seq) else 0)
    np.maximum.at(oldest, seq, age)
    return {"keep": Column("seq", (oldest <= window).astype(np.float64))}


LATE = {"delay": 8, "window": 8}  # the oldest that are still learned

echo.claim = Claim(
    (
        premise("accuracy", "uncorrected", "pull", by=0.05, relation="<", fails_at=0.04),  # stale samples do harm
        mechanism("mean:policy/clip_fraction", "self", 0.005, fails_at=0.001),  # ratios leave 1
        outcome("accuracy", "self", "pull", by=0.05, relation=">=", fails_at=1.0),
        outcome("accuracy", "self", "uncorrected", by=0.05, fails_at=0.96),
    ),
    arms={
        "pull": ("echo", {"protocol": "pull", "delay": 0}, {"steps": 60}),
        "uncorrected": ("echo", {**LATE, "correct": False}, {"lr": 5e-5}),
    },
    args=LATE,
    # Every batch is eight updates old by `delay`, so that the age is the same for all. The first 8 steps learn
    # nothing: 60 updates, as many as `pull` has.
    settings={"staleness": 0, "steps": 68, "lr": 1e-4},
    regime="ladder",
    idea=("main.update*", "main.credit*", "main.staleness"),
    differs={
        "settings.steps": "so that the fresh arm has as many updates",
        "settings.lr": "each at the rate that is best for it",
    },
    first_seed=500,
    corrected="on seeds 200 to 207 stale arms had 44 updates beside 60 of `pull`: does not hold here; on 300 to 307 "
    "batches were sixteen updates old, twice the window that the method has by default, in a regime that was made for "
    "GRPO to fail by that: does not hold here; on 400 to 407 the rate was the best for fresh GRPO, twice to four times "
    "that of any arm here: does not hold here",
    because="what samplers push without waiting is as good as what the newest policy samples, once it is corrected",
)
