"""SEELE: as much of the solution as leaves half of the answers right."""

from __future__ import annotations

from ...core import Check, Claim, Method, method
from ...curriculum.hints import responsive_hints
from ..objective.grpo import grpo


@method(
    family="guidance",
    paper="2509.06923",
    catalogue=30,
    claim=Claim(
        (
            Check("late:reward", "self", 0.5, by=0.15, relation="~"),
            Check("accuracy/terms=8", "self", "grpo", by=0.10),
            Check("late:select/hint", "self", "early:select/hint of self", by=0.0, relation="<"),
            Check("accuracy", "self", "half", by=0.0),
        ),
        arms={"grpo": "grpo", "half": ("seele", {"fixed": 0.5})},
        task="chain_sum",
        knobs={"terms": (2, 8), "style": "terse"},
        steps=60,
        because="half of the answers right is where a step gains most, and an item-response curve finds the hint that leaves them so",
    ),
)
def seele(
    groups: int = 16, rollouts: int = 8, rounds: int = 4, target: float = 0.5, size: int = 256, highest: float = 0.95, fixed: float | None = None
) -> Method:
    """Capability-adaptive hints: each problem's rollouts come in rounds, each with a prefix of the solution that a fitted curve asks for.

        f(l) = c + (1 - c) / (1 + exp(-a (l - b)))  fitted to this step's (hint rate, accuracy) pairs;  next l = f^-1(target)

    Li et al. 2025, section 3. All rounds are one group; hints are prompt, without loss. Prompts come from a pool of `size`, so that a
    visit begins with the rate that the last one ended with. fixed: always this rate, in one round.
    """
    select = responsive_hints(rounds=rounds, target=target, size=size, highest=highest, fixed=fixed)
    return grpo(groups=groups, rollouts=rollouts).but(select=select)
