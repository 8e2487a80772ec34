"""RLPR, RL with a reference probability reward (Yu et al. 2025, arXiv 2506.18254).

No verifier: the reward is the mean probability of the reference answer y* after the answer's reasoning z, less that
without reasoning, of the policy p0 that training began with. Groups of a small reward std are filtered, by a threshold
that follows the moving average of the std.

    r = clip(1/|y*| sum_t p(y*_t | x, z, y*_<t) - 1/|y*| sum_t p0(y*_t | x, y*_<t), 0, 1)
"""

from __future__ import annotations

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
    Trajectory,
    block,
    mechanism,
    method,
    outcome,
    premise,
    stateful,
)
from ..core.answers import reference_answer
from ..core.scoring import score
from ..core.tagged_text import pieces_before
from ..credit import segments as seg
from ..credit.advantages import norm
from ..credit.composers import per_trajectory
from ..curriculum.select import known_rewards, next_tasks
from ..objective.loss_weights import token_mean
from ..objective.policy import clipped_ratio
from ..reward.answer import exact_match
from ..reward.answer_verdicts import verdict_auc
from ..reward.likelihood import token_logps
from .base import policy_method

THINKING = ("<think>", "</think>", "<answer>", "</answer>")  # the format R1 of the released script for Qwen


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
    minibatches: int = 4,
) -> Method:
    """GRPO on the gain in mean probability of the reference answer by an answer's reasoning, without a verifier.

        p = clip(1/|y*| sum_t p(y*_t | x, z) - 1/|y*| sum_t p0(y*_t | x), 0, 1)
        r = (1 - format) p + format [<think>, </think>, <answer> and </answer> are there once]
        groups with std(r) < std_share m are filtered,  m the moving average of the groups' mean std

    Yu et al. 2025, equations 2 to 4 and section 3.3. p0 is the policy that training began with; it reads the prompt, a
    space and y*, without a tag. The released code computes these scores once, before its first step (`get_scoreA` in
    verl/trainer/ppo/ray_trainer.py). There as here, an answer without <think>, </think> and <answer>, each once and in
    this order, has p = 0. `std_share`, `ema_decay`, `minibatches`, the bounds of the clip and the format reward are the
    released script's for Qwen; for Llama and Gemma std_share is 0.9 and 1, and there are no <think> tags. There the
    average begins with steps 6 to 10 and filters from step 11 on, here with the first `warmup_steps`; the space before
    y* is the answer's own, here it is given, and counts where it is a token. The repetition penalty is left out.

    Filtered groups are replaced, in up to `rounds` rounds of sampling (1: they are not). Exact match is no part of the
    reward: it is read for the metrics reward/right, reward/auc and reward/auc_product. by="product": the likelihood as
    the reward, as in VeriFree. debias=False: without the term that subtracts p0(y* | x).
    """
    start = "ref" if debias else None
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
        minibatches=minibatches,
    ).replace(reward=(reference_probability(by=by, reference=start, format=format, metric_judge=exact_match()),))


@block
async def reference_probability(
    *,
    group: RolloutGroup,
    context: RewardContext,
    deadline: float,
    by: Literal["mean", "product"] = "mean",
    reference: str | None = "ref",
    model_role: str = "policy",
    tags: tuple[str, ...] = THINKING,
    format: float = 0.1,
    form: str = " {}",
    bare: str = "",
    metric_judge: Block | None = None,
) -> Scores:
    """The probability of the reference answer after the policy's reasoning, less that without it, and a format reward.

        r = (1 - format) clip(f(y* | x, z) - f(y* | x), 0, 1) + format [all `tags` are there once, in this order]

        by="mean"      f = mean_t p_t, less sensitive to one unlikely token
        by="product"   f = prod_t p_t

    y* is the task's first accepted answer, formatted by `form` and tokenised by itself, at temperature 1. For
    f(y* | x, z), of `model_role`, it replaces the text after the last but one of `tags`; without all up to there, each
    once and in order, f is 0. For f(y* | x), of the model `reference` (None: it is left out), it follows the prompt and
    the text `bare` ("<answer>" would show where an answer begins). For the format, nothing may stand before a first tag
    <think>. Parts: probability, base, product, format; with a `metric_judge` right, and by group auc and
    auc_product: the AUC of the mean, or the product, as a classifier of right answers. Raises BadValue for a task
    without a reference answer.
    """
    tokenizer, learned = context.tokenizer, group.learned
    wanted = tokenizer.encode(form.format(reference_answer(group.request.task)))
    base = dict[str, float]()
    if reference and learned:
        path = context.path(learned[0][1].leaf)
        ids = np.concatenate([path.ids[: path.prompt], tokenizer.encode(bare)])
        mean, product = _likelihoods(await token_logps(context, learned[0][0], reference, ids, wanted))
        base = {"base": mean if by == "mean" else product}
    means, products, out = list[float](), list[float](), dict[Any, Score]()
    for episode, t in learned:
        ids, text = _before_the_answer(context, t, tags[:-1]), context.text(t.leaf)
        mean = product = 0.0
        if ids is not None:
            mean, product = _likelihoods(await token_logps(context, episode, model_role, ids, wanted))
        value = (mean if by == "mean" else product) - base.get("base", 0.0)
        means, products = [*means, mean], [*products, product]
        formed = in_order(text, tags) and (tags[0] != THINKING[0] or text.startswith(tags[0]))
        parts = {"probability": mean, "product": product, "format": float(formed), **({} if ids is None else base)}
        why = f"not {' '.join(tags[:-1])}, each once" if ids is None else ""
        out[t.leaf] = Score((1 - format) * min(max(value, 0.0), 1.0) + format * formed, parts, why)
    if metric_judge is not None:
        truth = (await score(metric_judge, [group], context, deadline)).get("reward", {})
        right = [truth[t.leaf].value if t.leaf in truth else None for _, t in learned]
        ranks = {"auc": verdict_auc(means, right), "auc_product": verdict_auc(products, right)}
        for (_, t), verdict in zip(learned, right, strict=True):
            s, more = out[t.leaf], {n: v for n, v in {"right": verdict, **ranks}.items() if v is not None}
            out[t.leaf] = Score(s.value, {**s.parts, **more}, s.why)
    return {"reward": out}


def _likelihoods(logps: np.ndarray) -> tuple[float, float]:
    """The mean and the product of tokens' probabilities."""
    return float(np.exp(logps).mean()), float(np.exp(logps.sum()))


def _before_the_answer(context: RewardContext, trajectory: Trajectory, tags: tuple[str, ...]) -> np.ndarray | None:
    """i32[n]: the prompt and the response up to the last tag, with it; None where a tag is not there once, in order."""
    path = context.path(trajectory.leaf)
    pieces = context.tokenizer.token_bytes(path.ids[path.prompt :])
    text = b"".join(pieces)
    if not in_order(text.decode(errors="replace"), tags):
        return None
    end = path.prompt + pieces_before(pieces, text.rfind(tags[-1].encode()))
    return np.concatenate([path.ids[:end], context.tokenizer.encode(tags[-1])])


def in_order(text: str, tags: tuple[str, ...]) -> bool:
    """Whether each tag is in the text once, in this order.

    >>> [in_order(t, ("<answer>", "</answer>")) for t in ("a<answer> 1</answer>", "<answer> 1", "</answer>1<answer>")]
    [True, False, False]
    """
    return all(text.count(tag) == 1 for tag in tags) and sorted(tags, key=text.find) == list(tags)


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


# One update of the policy to a batch, as in all regimes; and filtered groups are not replaced, which would sample more.
WHOLE = {"rounds": 1, "minibatches": 1}

rlpr.claim = Claim(
    (
        premise("accuracy", "grpo", "start", by=0.2, fails_at=0.95),  # there is something to learn, with a verifier
        mechanism("mean:reward/auc", "self", 0.8, by=0.0, fails_at=0.6),
        outcome("accuracy", "self", "start", by=0.3, fails_at=0.95),
        outcome("accuracy", "self", "grpo", by=0.05, relation="~", fails_at=0.5),
        outcome("auc", "self", "biased", by=0.02, fails_at=0.99),
    ),
    arms={"grpo": "grpo", "biased": ("rlpr", {**WHOLE, "debias": False})},
    regime="skill",
    # one token answers here, so that mean and product of the probabilities are the same and have no arm
    args=WHOLE,
    first_seed=300,
    corrected=(
        "on seeds 200 to 207 what the answer's probability is without reasoning was asked of the policy as it was by "
        "then, after an <answer> tag, and answers did not have to think: does not hold here"
    ),
    idea=("main.select", "main.reward", "main.credit", "main.update"),
    because="reasoning that leads to the answer makes it likely, so that no verifier is needed",
)
