"""SCoRe: self-correction in two attempts and two stages."""

from __future__ import annotations

from ...core import Check, Claim, Method, Part, Stage, Term, Update, method
from ...credit.compose import each
from ...credit.process import center_by_turn
from ...curriculum.select import uniform
from ...objective.kl import kl
from ...objective.policy import policy_gradient
from ...objective.weigh import sequence_sum
from ...reward.attempts import progress
from ...rollout.attempts import two_attempts
from ...rollout.single import single

ATTEMPTS = ("first", "second")


@method(
    family="credit",
    paper="2409.12917",
    catalogue=21,
    claim=Claim(
        (
            Check("accuracy", "self", "accuracy+first of self", by=0.0),
            Check("late:reward/gain", "self", "plain", by=0.0),
            Check("late:reward/gain", "self", "no_bonus", by=0.0),
            Check("late:reward/gain", "self", "no_stage_one", by=0.0),
        ),
        arms={
            "plain": ("score", {"prepare": False, "alpha": 0.0}),
            "no_bonus": ("score", {"alpha": 0.0}),
            "no_stage_one": ("score", {"prepare": False}),
        },
        task="chain_sum",
        knobs={"again": 0.3},  # a tiny model that was never shown a second attempt makes none
        steps=40,
        because="pinned first attempts keep the second from becoming a copy, and the bonus pays for correcting rather than for being right",
    ),
)
def score(
    groups: int = 16, rollouts: int = 8, alpha: float = 10.0, beta: float = 0.01, beta_first: float = 0.1, gamma: float = 0.0, prepare: bool = True
) -> Method:
    """Two attempts in one context, learned in two stages by REINFORCE against the siblings' attempts of the same number.

        I   (prepare)  E[r(y2)] - beta_first KL(first attempt) - beta KL(both)        the first attempt stays, the second learns
        II             E[r(y1) + r(y2) + alpha (r(y2) - r(y1))] - beta KL(both)       the bonus is paid to the second attempt

    Kumar et al. 2024, equations 3 and 4 (alpha 10, beta 0.01, beta_first 0.1), each stage half of the steps. The KL is to the start, of
    next-token distributions. Chosen here: an attempt answers for its own pay alone (gamma = 0), since paid for the whole the first would
    learn to be wrong; the question follows the instruction again. Figures: reward/first, last, gain, fixed, broken, and accuracy of the
    program (second attempt) beside that of `first`, one attempt alone. A tiny model must have been shown second attempts (the option `again`).
    """
    return Method(
        stages=(
            *((_stage("one", groups, rollouts, progress(first=0.0, alpha=0.0), beta, beta_first, gamma),) if prepare else ()),
            _stage("two", groups, rollouts, progress(alpha=alpha), beta, 0.0, gamma),
        ),
        decode={"first": single()},
    )


def _stage(name: str, groups: int, rollouts: int, reward: Part, beta: float, beta_first: float, gamma: float) -> Stage:
    near = kl(kind="k3", grad="k2")
    terms = [Term(policy_gradient(), on=ATTEMPTS, weigh=sequence_sum())]
    terms += [Term(near, on=ATTEMPTS, weigh=sequence_sum(), coef=beta)] if beta else []
    terms += [Term(near, on=ATTEMPTS[:1], weigh=sequence_sum(), coef=beta_first)] if beta_first else []
    return Stage(
        name=name,
        select=uniform(),
        programs={"main": two_attempts()},
        reward=(reward,),
        credit=(each(stream=ATTEMPTS, steps=("reward",)), center_by_turn(gamma=gamma)),
        updates=(Update(("policy",), tuple(terms)),),
        groups=groups,
        rollouts=rollouts,
    )
