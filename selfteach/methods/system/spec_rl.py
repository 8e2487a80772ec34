"""SPEC-RL: the last epoch's rollouts as drafts."""

from __future__ import annotations

from ...core import Check, Claim, Method, method
from ...curriculum.select import pool, revisit
from ...rollout.drafts import from_draft
from ..objective.grpo import grpo


@method(
    family="system",
    paper="2509.23232",
    catalogue=260,
    claim=Claim(
        (
            Check("sum:tokens/drawn", "self", "plain", by=0.5, relation="<", scale="ratio"),
            Check("accuracy", "self", "plain", by=0.03, relation="~"),
            Check("sum:seconds/rollout", "self", "plain", by=0.0, relation="<", scale="ratio"),
            Check("sum:tokens/drawn", "exact", "plain", by=0.0, relation="<", scale="ratio"),
            Check("accuracy", "exact", "plain", by=0.03, relation="~"),
        ),
        arms={"plain": ("spec_rl", {"reuse": False}), "exact": ("spec_rl", {"lenience": 1.0})},
        task="chain_sum",
        steps=40,
        because="between two epochs a policy moves little, so most of what it said it would say again",
    ),
)
def spec_rl(groups: int = 16, rollouts: int = 8, size: int = 128, lenience: float = 1.6487, reuse: bool = True) -> Method:
    """Speculative rollouts: what was said at a question's last visit is read in one pass, kept as far as the policy accepts it, and gone on from.

        lenience above 1: token t is kept with chance min(1, lenience pi(x_t) / pi_then(x_t)); the rest is drawn by the policy

    Liu et al. 2025, section 3 and algorithm 1, default lenience e^0.5; learning is GRPO, with the log-probabilities of the policy of now.
    That rule has no residual draw, so it only comes near the policy's own distribution. lenience=1 is exact, which the paper has not:
    every token keeps its uniform over all visits and is kept while this still gives it (rollout.drafts). Exact for a policy that does
    not depend on the drafts, as all speculation is; here it was trained on them.

    size: questions in the pool, gone round and round. reuse=False: GRPO over the same pool. Figures: tokens/drawn, seconds/rollout.
    """
    made = grpo(groups=groups, rollouts=rollouts)
    if not reuse:
        return made.but(select=pool(size=size))
    return made.but(select=revisit(size=size), programs={"main": from_draft(lenience=lenience)})
