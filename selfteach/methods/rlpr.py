"""RLPR, RL with a reference probability reward (Yu et al. 2025, arXiv 2506.18254).

No verifier: the reward is the mean probability of the reference answer y* after the answer's reasoning z, less that
without reasoning. Groups of a small reward std are filtered, by a threshold that follows the moving average of the std.

    r = clip(1/|y*| sum_t p(y*_t | x, z, y*_<t) - 1/|y*| sum_t p(y*_t | x, y*_<t), 0, 1)
"""

from __future__ import annotations

import re
from typing import Any, Literal

import numpy as np

from ..core import (
    Block,
    Claim,
    Column,
    Method,
    RewardContext,
    RolloutGroup,
    RolloutRequest,
    Score,
    Scores,
    Seq,
    TaskSource,
    Term,
    block,
    mechanism,
    method,
    outcome,
    premise,
    stateful,
)
from ..core.scoring import score
from ..credit import segments as seg
from ..credit.advantages import norm
from ..credit.composers import per_trajectory
from ..curriculum.select import known_rewards, next_tasks
from ..objective.loss_weights import token_mean
from ..objective.policy import clipped_ratio
from ..reward.answer import exact_match
from ..reward.answer_verdicts import verdict_auc
from ..reward.combine import weighted
from ..reward.likelihood import reference_logps
from .base import policy_method


@method(family="selfreward", paper="2506.18254", catalogue=188)
def rlpr(
    groups: int = 16,
    rollouts: int = 8,
    by: Literal["mean", "product"] = "mean",
    debias: bool = True,
    std_share: float = 0.5,
    ema_decay: float = 0.99,
    warmup_steps: int = 6,
    low: float = 0.2,
    high: float = 0.27,
    format: float = 0.1,
    rounds: int = 4,
) -> Method:
    """GRPO on the gain in mean probability of the reference answer by an answer's reasoning, without a verifier.

        p = clip(1/|y*| sum_t p(y*_t | x, z) - 1/|y*| sum_t p(y*_t | x), 0, 1)
        r = (1 - format) p + format [the answer's tags are there once]
        groups with std(r) < std_share m are filtered,  m the moving average of the groups' mean std

    Yu et al. 2025, equations 2 to 4 and section 3.3. `std_share`, `ema_decay`, the bounds of the clip and the format
    reward are the released script's for Qwen (std_share 0.9 and 1 for Llama and Gemma); there the average begins with
    steps 6 to 10 and filters from step 11 on, here with the first `warmup_steps`. Its repetition penalty is left out.
    Filtered groups are replaced, in up to `rounds` rounds of sampling (1: they are not). Exact match is no part of the
    reward: it is read for the metrics reward/right, reward/auc and reward/auc_product. by="product": the likelihood as
    the reward, as in VeriFree. debias=False: without the term that subtracts p(y* | x).
    """
    reward = reference_probability(by=by, debias=debias, metric_judge=exact_match())
    return policy_method(
        select=refill_spread(std_share=std_share, warmup_steps=warmup_steps, rounds=rounds),
        credit=(
            per_trajectory(),
            keep_spread(std_share=std_share, ema_decay=ema_decay, warmup_steps=warmup_steps),
            norm(),
        ),
        term=Term(clipped_ratio(low=low, high=high), loss_weights=token_mean()),
        groups=groups,
        rollouts=rollouts,
    ).replace(reward=(weighted(parts=((1 - format, reward), (format, tags_once()))) if format else reward,))


@block
async def reference_probability(
    *,
    group: RolloutGroup,
    context: RewardContext,
    deadline: float,
    by: Literal["mean", "product"] = "mean",
    debias: bool = True,
    model_role: str = "policy",
    opening: str = "<answer>",
    form: str = " {}",
    bare: str = "",
    metric_judge: Block | None = None,
) -> Scores:
    """The probability of the reference answer after the policy's reasoning, less that without it (equations 2 to 4).

        r = clip(f(y* | x, z) - f(y* | x), 0, 1)

        by="mean"      f = mean_t p_t, less sensitive to one unlikely token
        by="product"   f = prod_t p_t

    y* is the task's first accepted answer. It replaces the text after the last `opening`, formatted by `form` and
    tokenised by itself; for f(y* | x) the text `bare` replaces the reasoning. Probabilities are at temperature 1.
    debias=False leaves f(y* | x) out. Text without an opening tag has reward 0. Parts: probability, base, product; with
    a `metric_judge` right, and by group auc and auc_product: the AUC of the mean, or the product, as a classifier of
    right answers. Raises BadValue for a task without a reference answer.
    """
    reference = await reference_logps(context, group, model_role, opening, form, bare)
    base = float(np.exp(reference.bare).mean() if by == "mean" else np.exp(reference.bare.sum()))
    means, products, out = list[float](), list[float](), dict[Any, Score]()
    for _, t, logps in reference.after:
        if logps is None:
            means.append(0.0)
            products.append(0.0)
            out[t.leaf] = Score(0.0, {"probability": 0.0, "product": 0.0}, f"no {opening}")
            continue
        means.append(float(np.exp(logps).mean()))
        products.append(float(np.exp(logps.sum())))
        value = (means if by == "mean" else products)[-1] - (base if debias else 0.0)
        out[t.leaf] = Score(
            min(max(value, 0.0), 1.0), {"probability": means[-1], "base": base, "product": products[-1]}
        )
    if metric_judge is not None:
        truth = (await score(metric_judge, [group], context, deadline)).get("reward", {})
        right = [truth[t.leaf].value if t.leaf in truth else None for _, t, _ in reference.after]
        ranks = {"auc": verdict_auc(means, right), "auc_product": verdict_auc(products, right)}
        for (_, t, _), verdict in zip(reference.after, right, strict=True):
            s, more = out[t.leaf], {n: v for n, v in {"right": verdict, **ranks}.items() if v is not None}
            out[t.leaf] = Score(s.value, {**s.parts, **more}, s.why)
    return {"reward": out}


@block
def tags_once(*, text: str, tags: tuple[str, ...] = ("<answer>", "</answer>")) -> Score:
    """The format reward: 1 where every tag is in the text once, in this order, else 0 (the released `format_reward`).

    >>> [tags_once(text=t).value for t in ("a<answer> 1</answer>", "<answer> 1", "</answer>1<answer>")]
    [1.0, 0.0, 0.0]
    """
    once = all(text.count(tag) == 1 for tag in tags)
    right = once and re.search(".*".join(map(re.escape, tags)), text, re.DOTALL) is not None
    return Score(float(right), {"format": float(right)})


@block
@stateful(lambda: {"mean": 0.0, "steps": 0, "asked": 0}, shared="rlpr/spread")
def refill_spread(
    *,
    n: int,
    rollouts: int,
    finished_rounds: list[list[RolloutGroup]],
    source: TaskSource,
    seed: int,
    state: dict[str, Any],
    std_share: float = 0.5,
    warmup_steps: int = 6,
    rounds: int = 4,
) -> tuple[list[RolloutRequest], dict[str, Any]]:
    """Request tasks until `n` groups pass the filter of `keep_spread`, whose state this block shares, in at most
    `rounds` rounds. Each round requests as many tasks as are missing.
    """
    threshold = _threshold(state, std_share, warmup_steps)
    rewards = [known_rewards(g) for round_ in finished_rounds for g in round_]
    missing = n - sum(len(r) < 2 or float(np.std(r, ddof=1)) >= threshold for r in rewards)
    if missing <= 0 or len(finished_rounds) >= rounds:
        return [], state
    requests = [RolloutRequest(task, rollouts) for task in next_tasks(source, seed, state["asked"], missing)]
    return requests, {**state, "asked": state["asked"] + missing}


def _threshold(state: dict[str, Any], std_share: float, warmup_steps: int) -> float:
    """The least std of a group that is kept: a share of the moving average, 0 in the first `warmup_steps`."""
    return std_share * state["mean"] if state["steps"] >= warmup_steps else 0.0


@block
@stateful(lambda: {"mean": 0.0, "steps": 0, "asked": 0}, shared="rlpr/spread")
def keep_spread(
    *,
    reward: Seq,
    group: Seq,
    state: dict[str, Any],
    std_share: float = 0.5,
    ema_decay: float = 0.99,
    warmup_steps: int = 6,
) -> tuple[dict[str, Column], dict[str, Any]]:
    """Keep groups whose reward std is at least a share of its moving average (section 3.3, std filtering).

        keep_g = 1[std_j r_j >= std_share m]
        m     <- ema_decay m + (1 - ema_decay) mean_g std_g

    m begins as the mean of mean_g std_g over the first `warmup_steps`, in which all groups are kept; it is updated
    after the filter, by all groups. Prompts that are too easy or too hard have nearly equal rewards.

    Args: reward f64[S]; group i64[S]. std over n - 1; a group of one is kept. Returns: (keep f64[S], NaN for a group
    with an unknown reward; the next state). Scope: batch.

    >>> rows = dict(reward=[0, 1, 0.4, 0.5], group=[0, 0, 1, 1])  # std .7071 and .0707, the threshold .25
    >>> keep_spread(**rows, state={"mean": 0.5, "steps": 6})[0]["keep"].values
    array([1., 1., 0., 0.])
    """
    n = seg.count(group)
    if not n:
        return {"keep": Column("seq", np.zeros(0))}, state
    std = np.where(seg.same(reward, group, n), 0.0, seg.std(reward, group, n))
    threshold = _threshold(state, std_share, warmup_steps)
    alone = np.bincount(group, minlength=n) == 1
    unknown = np.isnan(seg.mean(reward, group, n))
    keep = np.where(unknown, np.nan, (std >= threshold) | alone)[group]
    known = std[np.isfinite(std) & ~alone]
    if len(known):
        weight = 1 / (state["steps"] + 1) if state["steps"] < warmup_steps else 1 - ema_decay
        mean = float(state["mean"] + weight * (known.mean() - state["mean"]))
        state = {**state, "mean": mean, "steps": state["steps"] + 1}
    return {"keep": Column("seq", keep)}, state


rlpr.claim = Claim(
    (
        premise("accuracy", "grpo", "start", by=0.2, fails_at=0.95),  # there is something to learn, with a verifier
        mechanism("mean:reward/auc", "self", 0.8, by=0.0, fails_at=0.6),
        outcome("accuracy", "self", "start", by=0.3, fails_at=0.95),
        outcome("accuracy", "self", "grpo", by=0.05, relation="~", fails_at=0.5),
        outcome("auc", "self", "biased", by=0.02, fails_at=0.99),
    ),
    arms={"grpo": "grpo", "biased": ("rlpr", {"rounds": 1, "debias": False})},
    regime="skill",
    # one token answers here, so that mean and product of the probabilities are the same and have no arm
    args={"rounds": 1},
    idea=("main.select", "main.reward", "main.credit", "main.update"),
    because="reasoning that leads to the answer makes it likely, so that no verifier is needed",
)
