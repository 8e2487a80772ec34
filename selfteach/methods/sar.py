"""SAR, self-aligned reward (Han et al. 2025, arXiv 2509.05489).

Beside being right, an answer is rewarded for the relative drop of its perplexity by conditioning on the question: text
that is as likely without the question, such as filler, earns nothing.

    R        = r + alpha clip((ppl(a) - ppl(a|q)) / ppl(a), -1, 1)
    ppl(a|q) = exp(-1/n sum_t log pi(a_t | q, a_<t))
    ppl(a)   = exp(-1/n sum_t log pi(a_t | a_<t))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..core import (
    Claim,
    Column,
    Example,
    Method,
    RewardContext,
    RolloutGroup,
    Seq,
    Term,
    Token,
    block,
    logged,
    mechanism,
    method,
    outcome,
    premise,
    provides,
)
from ..credit import segments as seg
from ..credit.advantages import center
from ..credit.composers import per_trajectory
from ..objective.kl import kl
from ..objective.loss_weights import constant_length
from ..objective.policy import clipped_ratio, clipped_tokens
from .base import policy_method


@method(family="efficiency", paper="2509.05489", catalogue=152)
def sar(
    groups: int = 16, rollouts: int = 8, alpha: float = 0.2, clip: float = 0.2, limit: int = 128, beta: float = 0.0
) -> Method:
    """SA-GRPO: Dr. GRPO on the outcome plus the self-aligned reward, the drop of perplexity due to the question.

        R   = r + alpha clip((ppl(a) - ppl(a|q)) / ppl(a), -1, 1)
        A_i = R_i - mean(R)
        loss = -sum over tokens of min(r A, clip(r, 1 - clip, 1 + clip) A) / (S limit)

    Han et al. 2025, equations 3 to 5, alpha from the released code, whose scripts for SA-GRPO (scripts/SA-grpo-4B.sh)
    neither divide by the group's std nor by an answer's length, and have a KL penalty (`beta`) of 0.001, here 0.
    Without the std a group of right answers, which differ in the self-aligned reward alone, has advantages of alpha's
    size. ppl(a|q) is from the log-probabilities at sampling, ppl(a) from a further forward pass whose prompt is the
    chat template without a question, or the end-of-text token where there is no template. alpha=0 is Dr. GRPO, and
    logs the self-aligned reward all the same.
    """
    weights = constant_length(limit=limit)
    return policy_method(
        credit=(per_trajectory_blind(), self_aligned(alpha=alpha).reading(logp="old_logp"), center()),
        term=Term(aligned_ratio(low=clip, high=clip), loss_weights=weights),
        more=(Term(kl(kind="k3"), loss_weights=weights, coef=beta),) if beta else (),
        groups=groups,
        rollouts=rollouts,
    )


@block
@provides("blind")
def per_trajectory_blind(
    *,
    groups: Sequence[RolloutGroup],
    context: RewardContext,
    loss_stream: str | tuple[str, ...] | None = None,
    mask: tuple[str, ...] = (),
    model_role: str | None = "policy",
) -> list[Example]:
    """`per_trajectory` with the view `blind` of every example: the same tokens after a prompt without the question.

    `logp_blind` is then the log-probability of the tokens without the question. The chat template around the question
    is kept.
    """
    examples = per_trajectory(groups=groups, loss_stream=loss_stream, mask=mask, model_role=model_role)
    prompts = {e.id: g.request.task.prompt for g in groups for e in g.episodes}
    blind = [context.tokenizer.blank_prompt(prompts[x.name.rsplit(":", 1)[0]]) for x in examples]
    return [replace(x, views={**x.views, "blind": tuple(b.tolist())}) for x, b in zip(examples, blind, strict=True)]


@block
@provides("aligned", "redundant")
def self_aligned(
    *, reward: Seq, logp: Token, logp_blind: Token, seq: Token, alpha: float = 0.2, low: float = -1.0, high: float = 1.0
) -> dict[str, Column]:
    """Add to the reward the relative drop of the answer's perplexity by the question (equations 3 and 4).

        aligned = clip((ppl(a) - ppl(a|q)) / ppl(a), low, high)
                = clip(1 - exp(mean_t (logp_blind_t - logp_t)), low, high)
        R       = r + alpha aligned

    Args: reward f64[S]; logp, logp_blind f64[N] (of `per_trajectory_blind`); seq i64[N]. Returns: reward, aligned
    f64[S]; redundant f64[S], for what is logged: 1 for a right answer longer than the mean one, 0 for the other right
    ones, -1 for wrong ones. Scope: seq.

    >>> rows = dict(logp=[-1.0, -1.0], logp_blind=[-1.0 - np.log(4), -1.0], seq=[0, 0])
    >>> self_aligned(reward=[1.0], **rows)["reward"].values  # mean difference -log 2: 1 - 1/2
    array([1.1])
    """
    reward = np.asarray(reward, np.float64)
    log_ratio = seg.mean(np.asarray(logp_blind, np.float64) - np.asarray(logp, np.float64), seq, len(reward))
    with np.errstate(over="ignore"):
        drop = np.clip(1.0 - np.exp(log_ratio), low, high)
    right, length = reward >= 0.5, np.bincount(seq, minlength=len(reward))
    longer = length > length[right].mean() if right.any() else right
    return {
        "reward": Column("seq", reward + alpha * drop),
        "aligned": Column("seq", drop),
        "redundant": Column("seq", np.where(right, longer, -1.0)),
    }


CONCISE = "The self-aligned reward of right answers no longer than the mean one."


@block
@logged("clip_fraction", clipped_tokens)
@logged("self_aligned", lambda aligned: aligned, "The self-aligned reward of the answers.")
@logged("aligned_concise", lambda aligned, redundant: aligned[redundant == 0], CONCISE)
@logged(
    "aligned_redundant",
    lambda aligned, redundant: aligned[redundant == 1],
    "The self-aligned reward of longer right answers.",
)
def aligned_ratio(
    *, logp: Token, old_logp: Token, adv: Token, aligned: Seq, redundant: Seq, low: float = 0.2, high: float = 0.2
) -> Token:
    """`clipped_ratio`, which reports the mean self-aligned reward: of all answers, and of the right ones that are no
    longer than the mean right one, and longer (`self_aligned`).

    Answers without an advantage are passed too, so that the mean is over the same answers whatever alpha is.

    Args: logp, old_logp, adv f[N]; aligned, redundant f[S]. Returns: l f[N]. Scope: token.
    """
    del aligned, redundant
    return clipped_ratio(logp=logp, old_logp=old_logp, adv=adv, low=low, high=high)


sar.claim = Claim(
    (
        # thirty tokens write every addition once
        premise("length_right", "dr_grpo", 36.0, by=0.0, fails_at=32.0),
        # the paper's figure: concise right answers score above redundant ones, here by a fifth
        premise(
            "early:policy/aligned_concise",
            "dr_grpo",
            "early:policy/aligned_redundant of dr_grpo",
            by=0.2,
            scale="ratio",
            fails_at=0.9,
        ),
        # answers owe more of their likelihood to the question
        mechanism("late:policy/self_aligned", "self", "dr_grpo", by=0.1, scale="ratio", fails_at=0.95),
        outcome("length", "self", "dr_grpo", by=0.15, relation="<", scale="ratio", fails_at=30.0),
        outcome("accuracy", "self", "dr_grpo", by=0.03, relation="~", fails_at=0.5),
    ),
    arms={"dr_grpo": ("sar", {"alpha": 0.0})},
    regime="unasked",
    # in sixty steps a reward of this size has just begun to act; in these Dr. GRPO shortens too, with some seeds
    settings={"lr": 3e-4, "steps": 120},
    first_seed=500,
    corrected=(
        "on seeds 200 to 211 advantages were divided by the group's deviation in both arms; on seeds 300 to 307 the "
        "policy had never seen an answer without a question, so that nothing was likely there, and the self-aligned "
        "reward was 0.9 for anything; on seeds 400 to 407 the run ended after sixty steps: mechanism not shown"
    ),
    idea=("main.credit",),
    because="what repeats or fills is as likely without the question, so that it lowers the self-aligned reward",
)
