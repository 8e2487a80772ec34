"""ProRL, prolonged reinforcement learning (Liu et al. 2025, arXiv 2505.24864; the recipe of 2507.12507).

A KL penalty keeps a long run from collapsing, and in the end holds it where it is: the further the policy is from its
reference, the more of every update only pulls it back. So where nothing is gained any more, the policy becomes its own
reference, the optimiser begins anew, and the run goes on.

    loss = DAPO's clip(low, high) + beta KL(policy || ref)
    ref <- policy, moments <- 0        where the reward has not risen, or the KL is too large
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core import Claim, History, Method, Sampling, Term, block, mechanism, method, outcome, premise, stateful
from ..credit.advantages import norm
from ..credit.composers import per_trajectory
from ..credit.keep import drop_zero_variance_groups
from ..curriculum.select import refill
from ..objective.kl import kl
from ..objective.loss_weights import token_mean
from ..objective.policy import clipped_ratio
from .base import policy_method

PENALTY = "policy/loss/kl"  # the metric of the term: beta times the mean KL per token


@method(family="system", paper="2507.12507", catalogue=245)
def prorl(
    groups: int = 16,
    rollouts: int = 16,
    low: float = 0.2,
    high: float = 0.4,
    beta: float = 1e-3,
    temperature: float = 1.2,
    rounds: int = 4,
    minibatches: int = 4,
    resets: int = 7,
    moments: bool = True,
    window: int = 10,
    gain: float = 0.01,
    far: float = 0.5,
) -> Method:
    """DAPO's loss and dynamic sampling at a high temperature, with a KL penalty whose reference is reset.

        loss = -mean over tokens of min(r A, clip(r, 1 - low, 1 + high) A) + beta mean of k2(logp - ref_logp)

    Liu et al. 2025: low 0.2, high 0.4, temperature 1.2, sixteen rollouts, four updates a batch, beta between 1e-4 and
    1e-3, groups of equal rewards replaced (in `rounds` rounds at most). A reset makes the policy its own reference and
    drops the optimiser's moments (moments=False: keeps them); there are `resets` at most (0: none; eight runs in the
    paper), each where the mean reward of the last `window` steps is not `gain` above that of the `window` before, or
    the KL per token above `far`. There the authors watch validation accuracy and decide by hand; a rule on the reward
    of training was chosen here. k2 has the gradient of the reverse KL; the paper does not name its estimator.
    """
    made = policy_method(
        select=refill(rounds=rounds),
        credit=(per_trajectory(), drop_zero_variance_groups(), norm()),
        term=Term(clipped_ratio(low=low, high=high), loss_weights=token_mean()),
        more=(Term(kl(kind="k2"), loss_weights=token_mean(), coef=beta),) if beta else (),
        groups=groups,
        rollouts=rollouts,
        minibatches=minibatches,
    ).replace(sampling=Sampling(temperature=temperature))
    if not resets:
        return made
    period = made.replace(
        until=stalled(window=window, gain=gain, far=far * beta, most=resets),
        enter={"ref": "policy"} if beta else {},
        reset=("policy",) if moments else (),
    )
    return Method(period.stages, repeat=resets + 1)


@block
@stateful(lambda: {"began": 0, "ended": 0})
def stalled(
    *,
    history: History,
    state: dict[str, Any],
    window: int = 10,
    gain: float = 0.01,
    far: float = 0.5,
    most: int = 7,
) -> tuple[bool, dict[str, Any]]:
    """Whether a stage has come to nothing: the reward has not risen by `gain` in `window` steps, or the policy is far.

        over = mean reward of the last window - of the window before < gain, or KL penalty of the last window > far

    A stage lasts two windows at least, and after `most` of them none is over.

    >>> history = History(step=4, scalars={"reward/mean": [0.1, 0.1, 0.3, 0.3]})
    >>> stalled(history=history, state={"began": 0, "ended": 0}, window=2)[0]
    False
    >>> stalled(history=history, state={"began": 0, "ended": 0}, window=2, gain=0.5)
    (True, {'began': 4, 'ended': 1})
    """
    rewards = history.scalars.get("reward/mean", [])[-2 * window :]
    if state["ended"] >= most or min(history.step - state["began"], len(rewards)) < 2 * window:
        return False, state
    risen = np.mean(rewards[window:]) - np.mean(rewards[:window])
    if risen >= gain and np.mean(history.scalars.get(PENALTY, [0.0])[-window:]) <= far:
        return False, state
    return True, {"began": history.step, "ended": state["ended"] + 1}


# a penalty that holds a short run, as one of 1e-3 does a run of thousands of steps
HELD = {"beta": 1.0, "rollouts": 8, "minibatches": 1, "window": 6}

prorl.claim = Claim(
    (
        premise("accuracy", "no_reset", "free", relation="<", by=0.05, fails_at=0.04),  # the penalty holds it
        # the penalty falls to nothing again and again
        mechanism("spread:policy/loss/kl", "self", "no_reset", scale="ratio", by=0.2, fails_at=1e6),
        outcome("accuracy", "self", "no_reset", by=0.03, fails_at=0.98),
        outcome("accuracy", "self", "free", relation=">=", by=0.03, fails_at=1.0),
    ),
    arms={
        "no_reset": ("prorl", {**HELD, "resets": 0}),
        "same_moments": ("prorl", {**HELD, "moments": False}),
        "free": ("prorl", {**HELD, "beta": 0.0, "resets": 0}),
    },
    args=HELD,
    settings={"steps": 90},
    regime="skill",
    idea=("main.until", "main.enter", "main.reset", "main.update*", "repeat"),
    because="a penalty towards where a run began holds it there in the end, and one towards where it is now does not",
)
