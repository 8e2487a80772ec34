"""Cooper, and the rule alone that it improves on."""

from __future__ import annotations

from ...core import Check, Claim, Member, Method, Stage, Term, Update, Weights, method
from ...credit.baseline import norm
from ...credit.compose import each
from ...credit.graded import certified_pairs, labelled
from ...curriculum.select import demonstrations, reviewed
from ...objective.grading import bradley_terry, right_or_wrong
from ...objective.policy import clipped_ratio
from ...objective.weigh import sequence_mean
from ...reward.answer import exact_match, terse_match
from ...reward.appraised import appraised
from ...rollout.appraisal import appraise, read_for_appraisal
from ...rollout.single import single
from ..objective.grpo import grpo


@method(
    family="reward",
    paper="2508.05613",
    catalogue=184,
    claim=Claim(
        (
            Check("accuracy", "self", "static", by=0.02),
            Check("accuracy", "self", "rule_only", by=0.02),
            Check("late:reward", "static", "late:reward/right of static", by=0.1),
            Check("late:reward/agreed", "self", "early:reward/agreed of self", by=-0.01),
        ),
        arms={"static": ("cooper", {"update": False}), "rule_only": "rule_only"},
        task="chain_sum",
        steps=40,
        because="a reward model that stands still is found out; one that goes on learning from what a precise rule certifies is not",
    ),
)
def cooper(groups: int = 16, rollouts: int = 8, clip: float = 0.2, warm: int = 120, warm_lr: float = 1e-3, update: bool = True) -> Method:
    """A reward model that judges against the reference answer, and is taught on beside the policy by what a rule certifies.

        r_i = sigmoid(R(q, reference, o_i)), GRPO        then R: -log sigmoid(R(o+) - R(o-)), o+ certified by the rule, o- its corruption

    Hong et al. 2025, section 3. Here R is the run's model with a scalar head and weights of its own; the first step is its supervised
    training on `warm` minibatches of 32 labelled pairs (binary cross-entropy as there, and the pairs' own loss, without which it takes far
    longer). The rule reads terse sums only: it is precise and misses the worded half. What spoils answers is a program that changes their
    result, for an assistant that rewrites them. update=False: R stands still.
    """
    first = Stage(
        name="grade",
        select=demonstrations(),
        programs={"main": read_for_appraisal()},
        reward=(),
        credit=(labelled(),),
        updates=(Update(("rm",), (Term(right_or_wrong(), on=("rm",)), Term(bradley_terry(), on=("rm",))), minibatches=warm, lr=warm_lr),),
        groups=32 * warm,
        rollouts=1,
        until=1,
        data=True,
    )
    learn = Update(("rm",), (Term(bradley_terry(), on=("rm",)),))
    policy = Update(("policy",), (Term(clipped_ratio(low=clip, high=clip), weigh=sequence_mean()),))
    second = Stage(
        select=reviewed(program="appraise"),
        programs={"main": single(), "appraise": appraise()},
        reward=(appraised(beside=(("rule", terse_match()), ("right", exact_match()))),),
        credit=(each(), certified_pairs(wrong=exact_match()), norm()),
        updates=(policy, learn) if update else (policy,),
        groups=groups,
        rollouts=rollouts,
    )
    return Method(
        stages=(first, second),
        weights={"policy": Weights(), "rm": Weights()},
        cast={"policy": Member(("policy",)), "rm": Member(("rm",), heads=("scalar",))},
    )


@method(
    family="reward",
    paper="2508.05613",
    claim=Claim(
        (Check("accuracy", "self", "grpo", by=0.0, relation="<"),),
        arms={"grpo": "grpo"},
        task="chain_sum",
        steps=40,
        because="a rule that misses what is right teaches its own taste with the truth",
    ),
)
def rule_only(groups: int = 16, rollouts: int = 8) -> Method:
    """Cooper's baseline: GRPO on a precise rule of low recall alone (terse sums that are right; everything worded counts as wrong)."""
    return grpo(groups=groups, rollouts=rollouts).but(reward=(terse_match(),))
