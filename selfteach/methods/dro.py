"""DRO, direct reasoning optimisation (Xu et al. 2025, arXiv 2506.13351): a reasoning reflection reward, R3.

A chain of thought is rewarded by how much likelier it makes the reference answer, without a verifier. Tokens of the
reference whose probability differs most between the group's thoughts weigh most: they reflect the reasoning.

    R3_i = sum_j w_j (l_ij - l_j),   w_j = sigma_j / sum_k sigma_k,   sigma_j = std_i l_ij
    l_ij = log p(y_j | q, thought i, y_<j),   l_j the same without a thought
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from ..core import (
    BadValue,
    Block,
    Claim,
    Column,
    Method,
    RewardContext,
    RolloutGroup,
    Score,
    Scores,
    Seq,
    Term,
    block,
    mechanism,
    method,
    outcome,
    premise,
    provides,
)
from ..core.answers import reference_answer
from ..core.scoring import score
from ..credit import segments as seg
from ..credit.advantages import norm
from ..credit.composers import per_trajectory
from ..objective.kl import kl
from ..objective.loss_weights import constant_length
from ..objective.policy import clipped_ratio
from ..reward.answer import exact_match
from ..reward.answer_verdicts import verdict_auc
from ..reward.likelihood import reference_logps
from .base import policy_method


@method(family="selfreward", paper="2506.13351", catalogue=173)
def dro(
    groups: int = 16,
    rollouts: int = 8,
    weights: Literal["spread", "uniform"] = "spread",
    masked: bool = True,
    length: float = 0.1,
    least_probability: float = 0.01,
    drop_share: float = 0.1,
    clip: float = 0.2,
    beta: float = 0.0,
    limit: int = 128,
) -> Method:
    """GRPO on the reference answer's log-probability after each thought, weighted by where thoughts differ.

        R    = sum_j w_j (l_ij - l_j) + length (1 - ||y| - |answer|| / |y|)
        w_j  = sigma_j / sum_k sigma_k                       (weights="uniform": all the same)
        kept: groups in which some thought gives every token of y at least `least_probability`, without the
              `drop_share` of them whose largest sigma_j is smallest
        loss  = -sum over tokens of min(r A, clip(r, 1 - clip, 1 + clip) A) / (S limit),   A normalised within a group

    Xu et al. 2025 (first version of the paper), sections 3 and 4: 16 answers a prompt, clip 0.2, KL coefficient 0.001
    (`beta`, 0 here). The loss is Dr. GRPO's, a sum over tokens divided by a constant, but with rewards still divided by
    the group's std; S is the number of answers, `limit` a constant, the maximal length of one. An answer that was cut
    counts in its group's mean and std, and none of its tokens is learned (chosen here: unless all of a batch were cut).
    masked=False leaves l_j out. As l_j is the same for all answers of a group, advantages are the same with and without
    it: it changes the logged reward alone.
    Chosen here: the reward model is the policy that sampled (the paper's synced variant), weights are proportional to
    sigma, a prompt is too hard by a probability where the paper takes ranks, and the filter is applied to each batch
    (as the loop has no passes over data), without the share that the paper carries over. The paper's other correction,
    which discounts tokens that follow a reflective one, is left out. The right answer is read for metrics alone.
    """
    reward = reasoning_reflection(weights=weights, masked=masked, length=length, metric_judge=exact_match())
    return policy_method(
        credit=(
            per_trajectory(),
            keep_reflective(least_probability=least_probability, drop_share=drop_share),
            norm(),
        ),
        term=Term(clipped_ratio(low=clip, high=clip), loss_weights=constant_length_uncut(limit=limit)),
        more=(Term(kl(kind="k3"), loss_weights=constant_length_uncut(limit=limit), coef=beta),) if beta else (),
        groups=groups,
        rollouts=rollouts,
    ).replace(reward=(reward,))


@block
@provides("spread", "reachable")
async def reasoning_reflection(
    *,
    group: RolloutGroup,
    context: RewardContext,
    deadline: float,
    weights: Literal["spread", "uniform"] = "spread",
    masked: bool = True,
    length: float = 0.1,
    model_role: str = "policy",
    opening: str = "<answer>",
    form: str = " {}</answer>",
    metric_judge: Block | None = None,
) -> Scores:
    """The reasoning reflection reward of each answer (of `dro`), by the engine's log-probabilities of the reference.

    opening, form: as in `reference_logps`. An answer without an opening tag has no thought: l_ij = l_j for it.
    Columns: `spread`, the group's largest sigma_j; `reachable`, its largest least probability of a token of the
    reference. Parts: r3, spread; with a `metric_judge` right, and by group auc and auc_uniform, the chance that a right
    answer has more of R3, or of the plain mean log-probability, than a wrong one.
    """
    if weights not in ("spread", "uniform"):
        raise BadValue(f"reasoning_reflection: weights must be spread or uniform, not {weights!r}")
    reference = await reference_logps(context, group, model_role, opening, form)
    if not reference.after:
        return {"reward": {}, "spread": {}, "reachable": {}}
    found = np.stack([reference.bare if logps is None else logps for _, _, logps in reference.after])
    sigma = found.std(0)
    w = reflection_weights(sigma) if weights == "spread" else np.full(len(sigma), 1.0 / len(sigma))
    r3 = (found - reference.bare if masked else found) @ w
    wanted = len(context.tokenizer.encode(form.format(reference_answer(group.request.task))))
    truth = {} if metric_judge is None else (await score(metric_judge, [group], context, deadline)).get("reward", {})
    right = [truth[t.leaf].value if t.leaf in truth else None for _, t, _ in reference.after]
    ranks = {"auc": verdict_auc(r3.tolist(), right), "auc_uniform": verdict_auc(found.mean(1).tolist(), right)}
    spread, reachable = float(sigma.max()), float(np.exp(found.min(1).max()))
    out: Scores = {"reward": {}, "spread": {}, "reachable": {}}
    for (episode, t, _), value, verdict in zip(reference.after, r3.tolist(), right, strict=True):
        given = "" if episode.answer is None else str(episode.answer)
        fits = 1.0 - abs(len(context.tokenizer.encode(form.format(given))) - wanted) / wanted
        more = {n: v for n, v in {"right": verdict, **ranks}.items() if v is not None}
        out["reward"][t.leaf] = Score(value + length * fits, {"r3": value, "spread": spread, **more})
        out["spread"][t.leaf], out["reachable"][t.leaf] = Score(spread), Score(reachable)
    return out


def reflection_weights(sigma: np.ndarray) -> np.ndarray:
    """f64[n]: weights of the reference's tokens by how much their log-probabilities differ; equal where none does.

    >>> reflection_weights(np.array([3.0, 1.0, 0.0])), reflection_weights(np.zeros(2))
    (array([0.75, 0.25, 0.  ]), array([0.5, 0.5]))
    """
    total = float(sigma.sum())
    return sigma / total if total > 0 else np.full(len(sigma), 1.0 / len(sigma))


@block
def keep_reflective(
    *, spread: Seq, reachable: Seq, group: Seq, batch: Seq, least_probability: float = 0.01, drop_share: float = 0.1
) -> dict[str, Column]:
    """Keep groups that can be learned from: whose reference is within reach, and on which thoughts differ.

        keep_g = 1[reachable_g >= least_probability], and not among the floor(drop_share n) of least spread of those n

    Where no group is within reach, none is left out for it: a policy that begins with nothing must begin somewhere.
    Args: spread, reachable f64[S], of each group; group i64[S]; batch, named so that the batch is not split.
    Returns: keep f64[S]; NaN for a group without them. Scope: batch.

    >>> rows = dict(spread=[3.0, 1.0, 2.0], reachable=[0.5, 0.5, 0.0], group=[0, 1, 2], batch=[0, 0, 0])
    >>> keep_reflective(**rows, drop_share=0.5)["keep"].values  # the third is out of reach, the second of least spread
    array([1., 0., 0.])
    """
    group, n = np.asarray(group), seg.count(group)
    value, reach = seg.mean(spread, group, n), seg.mean(reachable, group, n)
    able = reach >= least_probability
    keep = np.where(np.isnan(value) | np.isnan(reach), np.nan, (able | ~able.any()).astype(np.float64))
    order: list[Any] = sorted(np.flatnonzero(keep == 1).tolist(), key=lambda g: float(value[g]))
    keep[order[: int(drop_share * len(order))]] = 0.0
    return {"keep": Column("seq", keep[group])}


@block
def constant_length_uncut(*, length: Seq, truncated: Seq, limit: int = 128) -> Seq:
    """Dr. GRPO's loss weights (`constant_length`), without answers that a limit cut: (1 - truncated) / (S limit).

    Where all were cut, none is left out: a policy that does not end yet must begin somewhere.
    Args: length i64[S]; truncated f64[S], 1 where an answer was cut. Returns: f64[S], per token.

    >>> constant_length_uncut(length=[3, 10], truncated=[0.0, 1.0], limit=10)  # the one that was cut counts in S alone
    array([0.05, 0.  ])
    """
    whole = 1.0 - np.asarray(truncated, np.float64)
    return constant_length(length=length, limit=limit) * (whole if whole.any() else 1.0)


dro.claim = Claim(
    (
        premise("accuracy", "grpo", "start", by=0.2, fails_at=0.95),  # there is something to learn, with a verifier
        # of a reference's tokens few depend on the thought, so that their plain mean tells right from wrong less well
        premise("early:reward/auc", "self", "early:reward/auc_uniform of self", by=0.05, fails_at=0.96),
        mechanism("mean:reward/auc", "self", 0.8, by=0.0, fails_at=0.6),  # R3 tells right thoughts from wrong ones
        outcome("accuracy", "self", "start", by=0.3, fails_at=0.95),
        outcome("accuracy", "self", "grpo", by=0.05, relation=">=", fails_at=1.0),
        outcome("auc", "self", "uniform", by=0.02, fails_at=0.99),
        outcome("auc", "self", "unfiltered", by=0.02, fails_at=0.99),
    ),
    arms={
        "grpo": "grpo",
        "uniform": ("dro", {"weights": "uniform"}),
        "unfiltered": ("dro", {"drop_share": 0.0, "least_probability": 0.0}),
    },
    regime="skill",
    first_seed=400,
    corrected=(
        "on seeds 200 to 207 a batch's loss was the mean over its tokens, and answers that were cut were learned too: "
        "does not hold here. On seeds 300 to 307 nothing asked whether the mean over a reference hides what a thought "
        "decides, where references are a digit and a closing tag: does not hold here"
    ),
    idea=("main.reward", "main.credit", "main.update"),
    because="the few tokens of a reference that a thought makes likelier tell whether the thought was good, so that "
    "no verifier is needed",
)
