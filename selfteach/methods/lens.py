"""LENS (Feng et al. 2025, arXiv 2510.08696): wrong answers are penalised by the confidence that they were given with.

The likelihood of outcomes, where the chance that an answer is right is modelled as pi / D, the policy's confidence over
the question's difficulty, has the gradient of a policy whose right answers are rewarded by 1 and wrong ones by the odds
-pi / (D - pi). So groups without any right answer teach: confident mistakes go down in them, and hesitant ones up.

    pi_i = exp(mean_t old_logp_t),   w_i = pi_i / (D - pi_i)
    r_i  = 1 where right, else -w_i / G
"""

from __future__ import annotations

import numpy as np

from ..core import Claim, Column, Method, Seq, Term, Token, block, mechanism, method, outcome, premise
from ..credit import segments as seg
from ..credit.advantages import center, norm
from ..credit.composers import per_trajectory
from ..objective.loss_weights import sequence_mean
from ..objective.policy import clipped_ratio
from .base import policy_method


@method(family="objective", paper="2510.08696", catalogue=354)
def lens(
    groups: int = 16,
    rollouts: int = 8,
    alpha: float = 0.25,
    confidence: bool = True,
    mixed: bool = True,
    centre: bool = True,
    clip: float = 0.2,
) -> Method:
    """GRPO in which wrong answers are penalised by their confidence, also where a group has no right one.

        pi_i = exp(mean_t old_logp_t),   w_i = pi_i / (D - pi_i)
        D    = max(D_imp, 2 max_j pi_j), 2 max_j pi_j without a right answer
        D_imp = 1 / (mean_i right_i / p_i),   p_i = exp(sum_t old_logp_t)
        r_i  = 1 where right, else -w_i / G of a group of G
        A    = r in standard deviations from the group's mean;  alpha (r - mean r) of a group without a right answer

    Feng et al. 2025, section 5.1; alpha and the confidence, a probability normalised by length, are theirs. In D_imp it
    is the probability of the whole answer (equation 14), so that D is mostly its other part. They learn a batch in four
    minibatches, here in one. centre=False leaves the mean penalty in groups without a right answer, so that hesitant
    mistakes go down too; confidence=False is w = 1, all mistakes alike, and with centre `grpo`. alpha=0 changes groups
    with a right answer alone, mixed=False those without (the paper's ablation); both are `grpo`.
    """
    return policy_method(
        credit=(per_trajectory(), confident_mistakes(alpha=alpha, confidence=confidence, mixed=mixed, centre=centre)),
        term=Term(clipped_ratio(low=clip, high=clip), loss_weights=sequence_mean()),
        groups=groups,
        rollouts=rollouts,
    )


@block
def confident_mistakes(
    *,
    reward: Seq,
    old_logp: Token,
    seq: Token,
    group: Seq,
    alpha: float = 0.25,
    confidence: bool = True,
    mixed: bool = True,
    centre: bool = True,
    right: float = 1.0,
) -> dict[str, Column]:
    """Advantages with a penalty on wrong answers by their odds of being right, as the policy's likelihood says them.

        w_i = pi_i / (D - pi_i),   pi_i = exp(mean_t old_logp_t),   r_i = 1 where right, else -w_i / G   (see `lens`)
        with a right answer in the group   A = norm(r_i)   (mixed=False: GRPO's)
        without                            A = alpha (r_i - mean r)   (centre=False: alpha r_i)

    Args: reward f64[S]; old_logp f64[N]; seq i64[N]; group i64[S]. right: an answer is right where its reward is
    at least this. Returns: adv f64[S]; NaN for a group with an unknown reward. Scope: group.

    Two wrong answers with pi = 0.8 and 0.5: D = 1.6, w = 1 and 5/11, r = -1/2 and -5/22, 3/22 from their mean.

    >>> rows = {"reward": [0.0, 0.0], "old_logp": np.log([0.8, 0.5]), "seq": [0, 1], "group": [0, 0]}
    >>> confident_mistakes(**rows)["adv"].values.round(4)
    array([-0.0341,  0.0341])
    """
    reward, group = np.asarray(reward, np.float64), np.asarray(group)
    n, wrong = seg.count(group), ~(reward >= right)
    pi = np.exp(seg.mean(old_logp, seq, len(reward)))
    with np.errstate(over="ignore"):  # of a long answer, whose part in D_imp is then nothing
        inverse_pi = np.exp(-seg.total(old_logp, seq, len(reward)))
    inverse = seg.mean(np.where(wrong, 0.0, inverse_pi), group, n)  # of D_imp, 0 without a right answer
    d_imp = np.where(inverse > 0, 1 / np.where(inverse > 0, inverse, 1.0), 0.0)
    difficulty = np.maximum(d_imp, 2 * seg.greatest(pi, group, n))[group]  # twice the largest, so that w is at most 1
    weight = pi / (difficulty - pi) if confidence else np.ones(len(pi))
    # Over G: a single right answer beside many wrong ones would else leave some of these above the mean.
    shaped = np.where(wrong, -weight / np.bincount(group, minlength=n)[group], 1.0)
    has_right = seg.total(~wrong, group, n)[group] > 0
    negative = alpha * (center(reward=shaped, group=group)["adv"].values if centre else shaped)
    positive = norm(reward=shaped if mixed else reward, group=group)["adv"].values
    unknown = np.isnan(seg.total(reward, group, n))[group]
    return {"adv": Column("seq", np.where(unknown, np.nan, np.where(has_right, positive, negative)))}


lens.claim = Claim(
    (
        # many groups are all wrong, and teach nothing
        premise("early:rollout/mixed_group_fraction", "grpo", 0.75, relation="<", fails_at=0.8),
        mechanism("early:policy/rows", "self", "grpo", by=0.2, scale="ratio", fails_at=1e6),
        outcome("auc", "self", "grpo", by=0.03, fails_at=0.98),
        outcome("accuracy", "self", "grpo", relation=">=", by=0.03, fails_at=1.0),
        outcome("auc", "self", "uniform", by=0.02, fails_at=0.99),
    ),
    arms={
        "grpo": ("grpo", {"groups": 32, "rollouts": 4}),
        # not centred, since penalties that are all alike would be nothing then
        "uniform": ("lens", {"confidence": False, "centre": False, "groups": 32, "rollouts": 4}),
    },
    args={"groups": 32, "rollouts": 4},  # with few answers a prompt many groups have no right one
    regime="ladder",
    first_seed=300,
    corrected=(
        "on seeds 200 to 207 all answers of a group without a right one went down, by their odds over the largest of "
        "the group, and penalties in other groups were scaled by alpha and not by 1 / G: does not hold here"
    ),
    idea=("main.credit*",),
    because="a group without a right answer teaches which mistakes are the confident ones",
)
