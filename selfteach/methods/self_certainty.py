"""Self-Certainty (Kang et al. 2025, arXiv 2502.18581): best-of-N by how far next-token distributions are from uniform.

No reward model: of N samples the most certain one is chosen, or their answers are voted on, with votes by rank.

    C(y) = mean_t KL(uniform || p_t) = -1/(n V) sum_t sum_j log(V p_t(j))
    v(r) = (N - r + 1)^power votes for the sample of rank r by C, 1 the most certain; none for one without an answer
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from ..core import (
    BadValue,
    Block,
    Claim,
    Method,
    RewardContext,
    RolloutContext,
    RolloutGroup,
    RolloutRequest,
    Score,
    Scores,
    block,
    mechanism,
    method,
    outcome,
    premise,
    quantity,
)
from ..core.answers import canonical
from ..core.blocks import asks_engine
from ..core.contexts import own_tokens
from ..core.lazy import torch
from ..core.scoring import score
from ..core.tagged_text import last_between
from ..reward.answer import exact_match
from ..reward.answer_verdicts import verdict_auc
from ..rollout.vote import sample_answers
from .grpo import grpo


@method(family="selfreward", paper="2502.18581", catalogue=54)
def self_certainty(
    groups: int = 16, rollouts: int = 8, k: int = 8, power: float = 0.5, intrinsic: bool = False, beta: float = 0.0
) -> Method:
    """GRPO, evaluated by best-of-N, by Borda votes and by a plain vote over self-certainty.

        C(y) = mean_t KL(uniform || p_t),   v(r) = (N - r + 1)^power

    Kang et al. 2025, sections 3 to 5, and the released code; power=0 is the majority, a large one best-of-N. 1/2 is the
    default of their script and the best at N = 8; the paper's rule is 0.3 for N <= 16 and 1.2 for N >= 32. p_t is, as
    in the paper, of what the token t is sampled from: their script takes logits of one position later. They sample at
    temperature 0.6 and top-p 0.9. By section 4 plain best-of-N is below self-consistency where answers are definite,
    and certainty is better than perplexity from N >= 16 on.

    The paper trains nothing: its claim is about the ways of decoding `vote`, `borda` and `best_of_n`, over k samples.
    intrinsic: certainty in place of the outcome as the reward, as in later work on RL without labels; right answers are
    then used for metrics alone. Logged at each step: reward/certainty, and how well it tells right answers from wrong
    ones beside perplexity (reward/auc, reward/auc_perplexity), for which every answer is read once more.
    """
    return (
        grpo(groups=groups, rollouts=rollouts, beta=beta)
        .replace(reward=(certainty(metric_judge=exact_match()) if intrinsic else certainty(judge=exact_match()),))
        .override(
            decode={
                "vote": certainty_vote(k=k, by="vote"),
                "borda": certainty_vote(k=k, by="borda", power=power),
                "best_of_n": certainty_vote(k=k, by="best"),
            }
        )
    )


@quantity
def self_certainty_at(*, logprobs: torch.Tensor) -> torch.Tensor:
    """KL(uniform || p) of the next-token distribution, in nats: -mean_j log p_j - log V."""
    return -logprobs.mean(-1) - math.log(logprobs.shape[-1])


@block
@asks_engine("self_certainty_at", "raw_logp")
async def certainty(
    *,
    group: RolloutGroup,
    context: RewardContext,
    deadline: float,
    judge: Block | None = None,
    metric_judge: Block | None = None,
    model_role: str = "policy",
) -> Scores:
    """A judge's reward, or without one the self-certainty of each answer.

    judge         a reward of answers; None: the reward is the certainty
    metric_judge  used for metrics alone, where there is no judge

    Parts: certainty; those of the judge; and by group auc and auc_perplexity, the chance that a right answer is more
    certain, or of lower perplexity, than a wrong one. Raises BadValue in a stage without an engine.
    """
    if context.engine is None:
        raise BadValue("certainty needs an engine, and this stage only reads data; use it in a stage that samples")
    verdicts: dict[Any, Score] = {}
    if (asked := judge or metric_judge) is not None:
        verdicts = (await score(asked, [group], context, deadline)).get("reward", {})
    learned = group.learned
    certain, likely = list[float](), list[float]()
    for episode, t in learned:
        path = context.path(t.leaf)
        tokens, own = np.asarray(path.ids[path.prompt :], np.int32), own_tokens(path)[path.prompt :]
        episode.cost["scored"] = episode.cost.get("scored", 0) + len(tokens)
        found = await context.engine.score(
            model_role, np.asarray(path.ids[: path.prompt], np.int32), tokens, ("self_certainty_at", "raw_logp")
        )
        both = [np.asarray(found[n], np.float64)[own] for n in ("self_certainty_at", "raw_logp")]
        certain.append(float(both[0].mean()) if own.any() else 0.0)
        likely.append(float(both[1].mean()) if own.any() else 0.0)
    right = [verdicts[t.leaf].value if t.leaf in verdicts else None for _, t in learned]
    ranks = {"auc": verdict_auc(certain, right), "auc_perplexity": verdict_auc(likely, right)}
    known = {n: v for n, v in ranks.items() if v is not None}
    out: Scores = {"reward": {}}
    for (_, t), c, verdict in zip(learned, certain, right, strict=True):
        have = verdicts.get(t.leaf, Score(None))
        out["reward"][t.leaf] = Score(
            verdict if judge is not None else c, {**have.parts, "certainty": c, **known}, have.why, have.error
        )
    return out


@block
@asks_engine("self_certainty_at")
async def certainty_vote(
    *,
    request: RolloutRequest,
    rollout: RolloutContext,
    k: int = 8,
    by: Literal["vote", "borda", "best"] = "borda",
    power: float = 0.5,
    model_role: str = "policy",
    stop: tuple[str, ...] = ("</answer>",),
) -> str | None:
    """Sample `k` answers and return one of them by self-certainty (section 4).

        vote    the majority answer, without any certainty
        borda   the answer of most votes, (k - r + 1)^power for the sample of rank r
        best    the answer of the most certain sample

    A sample without an answer in tags has its rank, but no vote, and is not the best (section 5.1). Where none has one,
    each says its whole turn, and `borda` is `best`; the released code takes the first. The first sample with the
    returned answer is the trajectory that is scored; the others are kept.
    """
    if by not in ("vote", "borda", "best"):
        raise BadValue(f"certainty_vote: by must be vote, borda or best, not {by!r}")
    sampled = await sample_answers(request, rollout, k, model_role, stop)
    tagged = [last_between(turn.text, "answer", "") for turn in sampled.turns]
    says = [canonical(answer) is not None for answer in tagged]
    if any(says):
        sampled = sampled._replace(answers=tagged)  # without what `sample_answers` takes for an answer: a whole turn
    if by == "vote":
        return sampled.voted()
    start = rollout.model_role(model_role).begin(request.task.prompt)
    prompt = len(start.ids)
    texts = [c.ids[prompt:] for c in sampled.contexts]
    found = await asyncio.gather(*(start.score(ids, want=("self_certainty_at",)) for ids in texts))
    certain = [float(np.mean(f["self_certainty_at"])) if len(ids) else 0.0 for f, ids in zip(found, texts, strict=True)]
    if by == "best" or not any(says):
        return sampled.chosen(max(range(k), key=lambda i: (says[i], certain[i])))
    return sampled.voted(borda_votes(certain, power))


def borda_votes(certain: Sequence[float], power: float) -> list[float]:
    """The votes of each sample by its rank among N: (N - r + 1)^power, r = 1 for the most certain; of equals the
    earlier is before the later.

    >>> borda_votes([0.3, 0.9, 0.5], 2.0)
    [1.0, 9.0, 4.0]
    """
    order = sorted(range(len(certain)), key=lambda i: -certain[i])
    votes = [0.0] * len(certain)
    for rank, i in enumerate(order):
        votes[i] = float(len(certain) - rank) ** power
    return votes


self_certainty.claim = Claim(
    (
        # the vote leaves something to gain
        premise("accuracy+vote", "self", 0.95, relation="<", by=0.0, fails_at=0.96),
        mechanism("mean:reward/auc", "self", 0.5, by=0.1, fails_at=0.55),  # certainty tells right from wrong
        outcome("mean:reward/auc", "self", "mean:reward/auc_perplexity of self", by=0.02, fails_at=0.99),
        outcome("accuracy+best_of_n", "self", "accuracy of self", by=0.05, fails_at=0.99),
        outcome("accuracy+borda", "self", "accuracy+vote of self", by=0.02, fails_at=0.99),
    ),
    regime="real_language",
    # nothing is trained; a vote is of eight samples
    settings={
        "steps": 8,
        "lr": 1e-9,
        "eval_every": 0,
        "final_eval_tasks": 64,
        "final_eval_decoder_samples": 1,
        "final_eval_k": 0,
    },
    idea=(),
    because="distributions far from uniform are those of a model that knows what comes next, whatever the length, so "
    "that certainty picks right answers without a reward model",
)
