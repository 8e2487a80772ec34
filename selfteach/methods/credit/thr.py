"""THR: token hidden reward."""

from __future__ import annotations

from ...core import Check, Claim, Method, Term, method
from ...credit.baseline import norm
from ...credit.compose import each
from ...credit.influence import steer_by_influence
from ...objective.policy import clipped_ratio
from ...objective.weigh import sequence_mean
from ..objective.grpo import policy_method


@method(
    family="credit",
    paper="2510.03669",
    catalogue=208,
    claim=Claim(
        (
            Check("greedy", "self", "grpo", by=0.0),
            Check("pass@32", "explore", "grpo", by=0.03),
            Check("accuracy", "explore", "grpo", by=-0.02),
            Check("accuracy", "dominant", "grpo", by=0.02, relation="~"),
        ),
        arms={"grpo": "grpo", "explore": ("thr", {"p": -0.1}), "dominant": ("thr", {"p": 0.0})},
        task="chain_sum",
        steps=40,
        because="a few tokens decide how likely right answers become; heeding those more sharpens the policy, heeding them less keeps it open",
    ),
)
def thr(groups: int = 16, rollouts: int = 8, clip: float = 0.2, p: float = 0.1, threshold: bool = True) -> Method:
    """GRPO's advantage on the tokens that move the group's right answers, more on those that make them likelier (p > 0), or less (p < 0).

        s_t = sum over tokens m of right answers of <g_m, g_t> <h_m, h_t>,   T_t = sign(A) s_t       g = onehot - softmax, h the last hidden state
        A_t = [|T_t| > tau] (1 + sign(T_t) p) A

    Deng et al. 2025, section 4: p > 0 exploits, p < 0 explores, p = 0 keeps the dominant tokens alone. tau, as in the authors' NTHR
    (2505.18830), is the least mean s of a right answer. Chosen here: the whole vocabulary instead of the group's own tokens; right is a
    reward above the group's mean, which for rewards 0 and 1 is the same. Without the threshold and p it is GRPO.
    """
    return policy_method(
        credit=(each(), norm(), steer_by_influence(p=p, threshold=threshold)),
        term=Term(clipped_ratio(low=clip, high=clip), weigh=sequence_mean()),
        groups=groups,
        rollouts=rollouts,
    )
