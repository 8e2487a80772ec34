"""DECS: what was thought after the answer was found is pushed down, and nothing else."""

from __future__ import annotations

from ...core import Check, Claim, Method, Term, method
from ...credit.compose import each
from ...credit.positions import keep_share_of_easy, norm_by_position, pay_necessary
from ...objective.policy import clipped_ratio
from ...objective.weigh import token_mean
from ...reward.necessary import REFLECTION, necessary_prefix
from ..objective.grpo import policy_method


@method(
    family="efficiency",
    paper="2509.25827",
    catalogue=181,
    claim=Claim(
        (
            Check("length", "self", "grpo", by=0.05, relation="<", scale="ratio"),
            Check("accuracy", "self", "grpo", by=-0.02),
            Check("late:reward/necessary", "self", "grpo_judged", by=0.0),
        ),
        arms={"grpo": "grpo", "grpo_judged": ("decs", {"redundant": 1.1, "rate": 0.0})},
        task="chain_sum",
        steps=40,
        because="only tokens behind the first statement of the right answer are paid less, so what finds it is left alone",
    ),
)
def decs(
    groups: int = 16,
    rollouts: int = 8,
    clip: float = 0.2,
    paid: float = 1.1,
    redundant: float = 1.0,
    rate: float = 0.2,
    finished: bool = True,
    words: tuple[str, ...] = REFLECTION,
) -> Method:
    """Decoupled token rewards and a share of easy prompts that follows the redundancy that is left.

        r_ij = paid up to K*_i, the end of the chunk that first states the right answer, and in the final answer
             = redundant - (paid - redundant) L_i / L_max in the thinking behind it;   0 where the answer is wrong
        A_ij = (r_ij - mean_j) / std_j over the group at position j        kappa += rate (R_m - R_{m-1}), R the mean of K* / thinking

    arXiv 2509.25827, sections 4.1 to 4.3. The judge is a string rule (= or is, and the right answer) in place of a small model; words
    are the paper's reflection words and the `then` and `so` of verbose sums, and single-line chunks are not merged. Chosen here: L_max
    over the group; siblings that have ended count with their last reward; of the easy prompts the most redundant stay. With
    redundant = paid and rate = 0 all tokens of a right answer are paid alike.
    """
    return policy_method(
        credit=(each(), keep_share_of_easy(rate=rate), pay_necessary(paid=paid, redundant=redundant), norm_by_position(finished=finished)),
        term=Term(clipped_ratio(low=clip, high=clip), weigh=token_mean()),
        groups=groups,
        rollouts=rollouts,
    ).but(reward=(necessary_prefix(words=words),))
