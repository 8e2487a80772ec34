"""Guide: hints where all rollouts fail, learned as if there had been none."""

from __future__ import annotations

from ...core import Check, Claim, Method, Term, Update, method
from ...credit.baseline import norm
from ...credit.compose import each
from ...curriculum.hints import hint_failures
from ...objective.policy import clipped_ratio
from ...objective.weigh import sequence_mean
from ..objective.grpo import grpo


@method(
    family="guidance",
    paper="2506.13923",
    catalogue=118,
    claim=Claim(
        (
            Check("accuracy/depth=3", "self", "grpo", by=0.10),
            Check("accuracy", "self", "uncorrected", by=0.0),
        ),
        arms={"grpo": "grpo", "uncorrected": ("guide", {"corrected": False})},
        task="strings",  # where one question in three is of a kind never shown, and a warm start on what is right heeds hints
        knobs={"hinted": 0.3, "noise": 0.0},
        steps=60,
        equal="tokens",
        because="what is never solved has no gradient until help opens it, and the ratio makes what was helped on a lesson without help",
    ),
)
def guide(groups: int = 16, rollouts: int = 8, clip: float = 0.2, steps: int | None = None, corrected: bool = True) -> Method:
    """Guide-GRPO: where all rollouts of a prompt fail, as many again are drawn with guidance, and learned without it.

        rho_t = pi(y_t | q, y_<t) / pi_old(y_t | q, h, y_<t)        loss = -min(rho A, clip(rho) A), A within failures and guided ones together

    Nath et al. 2025, section 4. steps: of the solution told at most; never what gives the answer away. corrected=False takes guided
    answers for the plain policy's own (the paper's ablation). A tiny model uses guidance only where its warm start showed some (the tasks'
    option `hinted`), and nothing that goes against it (`noise`). That guided ones join the failed, not replace them, is our reading.
    """
    ratio = clipped_ratio(low=clip, high=clip)
    term = Term(ratio if corrected else ratio.reading(old_logp="prox_logp"), weigh=sequence_mean())
    return grpo(groups=groups, rollouts=rollouts).but(
        select=hint_failures(steps=steps), credit=(each(without=("hint",)), norm()), updates=(Update(("policy",), (term,)),)
    )
