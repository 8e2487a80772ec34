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
    Token,
    block,
    mechanism,
    method,
    outcome,
    premise,
    provides,
)
from ..credit import segments as seg
from ..credit.advantages import norm
from ..credit.composers import per_trajectory
from .grpo import grpo


@method(family="efficiency", paper="2509.05489", catalogue=152)
def sar(groups: int = 16, rollouts: int = 8, alpha: float = 0.2, beta: float = 0.0) -> Method:
    """SA-GRPO: GRPO on the outcome plus the self-aligned reward, the drop of perplexity that is due to the question.

        R = r + alpha clip((ppl(a) - ppl(a|q)) / ppl(a), -1, 1)

    Han et al. 2025, equations 3 to 5. ppl(a|q) is from the log-probabilities at sampling, ppl(a) from a further forward
    pass whose prompt is the chat template without a question, or the end-of-text token where there is no template.
    alpha=0 is GRPO.
    """
    return grpo(groups=groups, rollouts=rollouts, beta=beta).replace(
        credit=(per_trajectory_blind(), self_aligned(alpha=alpha).reading(logp="old_logp"), norm())
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
def self_aligned(
    *, reward: Seq, logp: Token, logp_blind: Token, seq: Token, alpha: float = 0.2, low: float = -1.0, high: float = 1.0
) -> dict[str, Column]:
    """Add to the reward the relative drop of the answer's perplexity by the question (equations 3 and 4).

        R = r + alpha clip((ppl(a) - ppl(a|q)) / ppl(a), low, high)
          = r + alpha clip(1 - exp(mean_t (logp_blind_t - logp_t)), low, high)

    Args: reward f64[S]; logp, logp_blind f64[N] (of `per_trajectory_blind`); seq i64[N]. Returns: reward f64[S].
    Scope: seq.

    >>> rows = dict(logp=[-1.0, -1.0], logp_blind=[-1.0 - np.log(4), -1.0], seq=[0, 0])
    >>> self_aligned(reward=[1.0], **rows)["reward"].values  # mean difference -log 2: 1 - 1/2
    array([1.1])
    """
    log_ratio = seg.mean(np.asarray(logp_blind, np.float64) - np.asarray(logp, np.float64), seq, len(reward))
    with np.errstate(over="ignore"):
        drop = np.clip(1.0 - np.exp(log_ratio), low, high)
    return {"reward": Column("seq", np.asarray(reward, np.float64) + alpha * drop)}


sar.claim = Claim(
    (
        # thirty tokens write every addition once
        premise("length_right", "grpo", 36.0, by=0.0, fails_at=32.0),
        mechanism("length_right", "self", "grpo", by=0.1, relation="<", scale="ratio", fails_at=30.0),
        outcome("length", "self", "grpo", by=0.15, relation="<", scale="ratio", fails_at=30.0),
        outcome("accuracy", "self", "grpo", by=0.03, relation="~", fails_at=0.5),
    ),
    arms={"grpo": "grpo"},
    regime="overlong",
    idea=("main.credit",),
    because="what repeats or fills is as likely without the question, so that it lowers the self-aligned reward",
)
