"""RoRecomp."""

from __future__ import annotations

from typing import Literal

from ...core import Check, Claim, Method, Term, Update, method
from ...credit.baseline import norm
from ...credit.replay import recompose
from ...objective.policy import clipped_ratio
from ...objective.schedules import cosine
from ...objective.weigh import sequence_mean
from ..objective.grpo import policy_method


@method(
    family="efficiency",
    paper="2509.25958",
    catalogue=153,
    claim=Claim(
        (
            Check("length", "self", "grpo", by=0.20, relation="<", scale="ratio"),
            Check("accuracy", "self", "grpo", by=-0.02),
            Check("accuracy", "self", "uncompensated", by=0.0),
        ),
        arms={"grpo": "grpo", "uncompensated": ("rorecomp", {"often": 0.0})},
        task="chain_sum",
        steps=40,
        because="short right and long wrong answers alone pull to brevity, and the others, learned later and ever more rarely, keep it from collapse",
    ),
)
def rorecomp(
    groups: int = 16,
    rollouts: int = 8,
    share: float = 0.5,
    capacity: int = 128,
    take: int = 64,
    often: float = 1.0,
    decay: int = 40,
    by: Literal["tokens", "turns"] = "tokens",
    clip: float = 0.2,
) -> Method:
    """Update on short right and long wrong answers first; the rest of each batch waits in a store and has updates of its own.

        priority: of each group the shortest `share` of the right and the longest of the wrong answers;   A of the whole group, as in `grpo`
        compensation: the `take` oldest of the store once it holds `capacity`, by -min(r A, clip(r) A) against the policy that drew them

    Li et al. 2025. The share of steps that compensate falls from `often` to 0 along half a cosine over `decay` steps. Known from summaries:
    chosen are share 1/2, a store of two batches' rests, ranking within the group, and that fractions of a compensation are saved up
    instead of drawn. by="turns" is for agents, whose length is in calls. share=1 is `grpo`.
    """
    rate = cosine(start=often, stop=0.0, steps=decay) if often else 0.0
    base = policy_method(
        credit=(recompose(credit=norm(), share=share, capacity=capacity, take=take, often=rate, by=by),),
        term=Term(clipped_ratio(low=clip, high=clip), weigh=sequence_mean()),
        groups=groups,
        rollouts=rollouts,
    )
    late = Update(("policy",), (Term(clipped_ratio(low=clip, high=clip), on=("comp",), weigh=sequence_mean()),))
    return base.but(updates=(*base.stage.updates, late))
