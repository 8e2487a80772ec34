"""TEMPO: credit from the tree that the answers of a group make."""

from __future__ import annotations

from ...core import Check, Claim, Method, Term, method
from ...credit.baseline import norm
from ...credit.compose import each
from ...credit.prefix import add_branch_values
from ...objective.policy import clipped_ratio
from ...objective.weigh import sequence_mean
from ..objective.grpo import policy_method


@method(
    family="treesearch",
    paper="2509.18314",
    catalogue=213,
    claim=Claim(
        (Check("accuracy", "self", "grpo", by=0.0), Check("mean:seconds/step", "self", "grpo", by=0.05, relation="~", scale="ratio")),
        arms={"grpo": "grpo"},
        task="chain_sum",
        steps=40,
        because="where the answers of a group part, the shares of right ones behind each branch say what that one token was worth",
    ),
)
def tempo(groups: int = 16, rollouts: int = 8, clip: float = 0.2, rate: float = 1.0) -> Method:
    """GRPO with a temporal difference at the tokens where siblings part, valued by the prefix tree of the group; no critic.

        A_it = (r_i - mean(r) + rate (V(s_{t+1}) - V(s_t))) / std(r),   V(s) = mean reward of the group's answers that begin with s

    Tran et al. 2025, section 3. Along an unbranched stretch V stays, so a token there has GRPO's advantage; rate = 0 is GRPO. Groups
    without a difference teach nothing. The end of a text is a token, so that an answer that goes on where another ends is a branch.
    Chosen here: std over n - 1 as in `grpo`; what the environment says between two turns is no part of a prefix.
    """
    return policy_method(
        credit=(each(), norm(), add_branch_values(rate=rate)),
        term=Term(clipped_ratio(low=clip, high=clip), weigh=sequence_mean()),
        groups=groups,
        rollouts=rollouts,
    )
