"""SPO: self-play preference optimisation."""

from __future__ import annotations

from ...core import Check, Claim, Method, method
from ...reward.compared import win_rate
from ...reward.written import coarse_worth, preferred, proxy_worth
from ..objective.grpo import grpo


@method(
    family="preference",
    paper="2401.04056",
    catalogue=62,
    claim=Claim(
        (Check("score", "self", "start", by=0.05), Check("score", "self", "proxy", by=0.05), Check("score", "self", "oracle", by=-0.05)),
        arms={"proxy": ("pointwise", {"judge": "proxy"}), "oracle": "grpo"},
        task="preference",
        steps=40,
        because="who wins against his siblings is told by the noisy judge itself: there is no reward model between them to be fooled",
    ),
)
def spo(groups: int = 16, rollouts: int = 8, noise: float = 0.15) -> Method:
    """Self-play preference optimisation: the reward of an answer is the share of its siblings that a judge of pairs likes it better than.

        r_i = 1/(n - 1) sum_{j != i} P(y_i over y_j)        then any policy gradient; here GRPO's

    Swamy et al. 2024, algorithm 1, with the siblings of a group for its queue of trajectories. Playing itself, one learner finds the minimax
    winner, also where preferences go in circles. The judge is the task's (Bradley and Terry over the hidden reward, scale `noise`).
    """
    return grpo(groups=groups, rollouts=rollouts).but(reward=(win_rate(judge=preferred(noise=noise)),))


@method(
    family="preference",
    paper="2401.04056",
    claim=Claim(
        (Check("score", "self", "oracle", by=0.05, relation="<"),),
        arms={"oracle": "grpo"},
        task="preference",
        steps=40,
        because="a proxy parts from what it stands for once it is climbed",
    ),
)
def pointwise(groups: int = 16, rollouts: int = 8, judge: str = "proxy", noise: float = 0.15, levels: int = 4) -> Method:
    """What comparing is measured against: GRPO on a judge of single texts, `proxy` (a reward that can be over-optimised) or `coarse` (few marks)."""
    reward = proxy_worth() if judge == "proxy" else coarse_worth(noise=noise, levels=levels)
    return grpo(groups=groups, rollouts=rollouts).but(reward=(reward,))
