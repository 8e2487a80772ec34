"""G-RA: gated reward accumulation."""

from __future__ import annotations

from ...core import Check, Claim, Method, method
from ...reward.answer import exact_match
from ...reward.combine import gated, weighted
from ...reward.tags import action_score
from ...rollout.search import search_agent
from ..objective.grpo import grpo

WORLD = {"hops": (1, 2), "withheld": 0.3}


@method(
    family="reward",
    paper="2508.10548",
    catalogue=167,
    claim=Claim(
        (
            Check("accuracy", "self", "direct", by=0.0),
            Check("accuracy", "self", "start", by=0.0),
            # nearly all episodes are completed from the start here, so that completing can only fall
            Check("late:reward/completed", "self", "early:reward/completed of self", by=-0.02),
            Check("late:reward/completed", "direct", "early:reward/completed of direct", by=0.0, relation="<"),
            Check("late:reward/steps", "direct", "late:reward/steps of self", by=0.0),
        ),
        arms={"direct": ("g_ra", {"gate": False})},
        task="factworld",
        knobs=WORLD,
        steps=40,
        because="immediate rewards that count by themselves are farmed; behind the outcome they only refine what succeeds",
    ),
)
def g_ra(
    groups: int = 24,
    rollouts: int = 8,
    turns: int = 4,
    threshold: float = 1.0,
    formed: float = 0.1,
    found: float = 0.1,
    gate: bool = True,
    beta: float = 0.001,
) -> Method:
    """Immediate rewards of an agent's actions count only where its outcome reaches a threshold; GRPO on the sum, with a real search engine.

        R = R_outcome + [R_outcome >= threshold] sum over actions of r        gate=False: R_outcome + sum r, direct accumulation (D-RA)

    In the paper the outcome is a patch that is submitted and passes tests, and actions are those of an editor and a shell; here the
    outcome is the exact answer, and an action a search or an answer: `formed` for each that is well formed (-formed for none at the end),
    `found` for a search that finds something. The paper's values were not to be had; these let direct accumulation earn nearly an answer's worth.
    """
    steps = action_score(formed=formed, found=found)
    reward = gated(levels=((exact_match(), threshold), (steps, 0.0))) if gate else weighted(parts=((1.0, exact_match()), (1.0, steps)))
    return grpo(groups=groups, rollouts=rollouts, beta=beta).but(programs={"main": search_agent(turns=turns)}, reward=(reward,))
