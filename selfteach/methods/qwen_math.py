"""Qwen2.5-Math (Yang et al. 2024, arXiv 2409.12122): a reward model of a policy's own answers, used three times.

It is trained to tell right from wrong answers to one question, and chooses the right answers that are imitated. It is
combined with the rule in RL, so that a right answer is worth more than any wrong one. And it chooses among answers.

    reward model  L = -1 / (k (n - k)) sum over right i, wrong j of log sigmoid(R_i - R_j)      k of n answers are right
    imitation     the best answers by R among the right ones
    RL            r = sigmoid(alpha R) + (right - 1)
"""

from __future__ import annotations

import asyncio
from typing import Literal

import numpy as np

from ..core import (
    Claim,
    Column,
    Grp,
    Method,
    ModelRole,
    RolloutContext,
    RolloutRequest,
    Seq,
    Stage,
    Term,
    Token,
    Update,
    WeightSpec,
    block,
    mechanism,
    method,
    outcome,
    premise,
)
from ..core.lazy import torch
from ..credit import segments as seg
from ..credit.advantages import norm
from ..credit.composers import per_trajectory
from ..credit.keep import drop_zero_variance_groups
from ..curriculum.select import uniform
from ..objective.kl import kl
from ..objective.likelihood import nll
from ..objective.loss_weights import sequence_mean
from ..objective.policy import clipped_ratio
from ..objective.segments import seq_last
from ..reward.answer import exact_match
from ..rollout.single import single
from ..rollout.vote import sample_answers

Paid = Literal["both", "rule", "model"]


@method(family="system", paper="2409.12122", catalogue=121)
def qwen_math(
    groups: int = 16,
    rollouts: int = 8,
    rounds: int = 2,
    judge_steps: int = 6,
    judge_lr: float = 1e-3,
    imitate_steps: int = 2,
    best: int = 2,
    paid: Paid = "both",
    alpha: float = 0.5,
    beta: float = 0.001,
    clip: float = 0.2,
) -> Method:
    """Rounds of training a reward model and imitating what it likes among right answers, then GRPO on it and the rule.

        r = sigmoid(alpha R) + (right - 1),   A = GRPO's,   + beta KL to the policy that RL began with (k3)

    Yang et al. 2024, sections 3 and 4; alpha 0.5, beta 1e-3, two rounds, 32 answers to a question in RL. Each of the
    `rounds` has judge_steps of the reward model (whose groups that are all right or all wrong are left out) and
    imitate_steps of the policy, on the `best` right answers by R to each question. paid: RL's reward, "rule" for right
    alone, "model" for sigmoid(alpha R) alone. decode: `rm_best`, the answer of eight that R likes most.

    Left out, as they need data or tools that are not a task's: answers by code, questions without a label (whose answer
    is a vote), and choosing questions for RL of which two to five in eight answers are right. A head of one layer
    stands for the two-layer one.
    """
    judge = Stage(
        name="judge",
        select=uniform(),
        programs={"main": single()},
        reward=(exact_match(),),
        credit=(per_trajectory(model_role="rm"), drop_zero_variance_groups()),
        updates=(Update(("rm",), (Term(listwise()),), lr=judge_lr),),
        groups=groups,
        rollouts=rollouts,
        until=judge_steps,
    )
    imitate = Stage(
        name="imitate",
        select=uniform(),
        programs={"main": single()},
        reward=(exact_match(),),
        credit=(per_trajectory(), best_right(best=best)),
        updates=(Update(("policy",), (Term(nll(), loss_weights=sequence_mean()),)),),
        groups=groups,
        rollouts=rollouts,
        until=imitate_steps,
    )
    near = (Term(kl(), loss_weights=sequence_mean(), coef=beta),) if beta else ()
    rl = Stage(
        select=uniform(),
        programs={"main": single()},
        reward=(exact_match(),),
        credit=(per_trajectory(), *((combined(alpha=alpha, paid=paid),) if paid != "rule" else ()), norm()),
        updates=(Update(("policy",), (Term(clipped_ratio(low=clip, high=clip), loss_weights=sequence_mean()), *near)),),
        groups=groups,
        rollouts=rollouts,
        enter={"ref": "policy"} if beta else {},
    )
    return Method(
        stages=(*[s for s in (judge, imitate) if s.until] * rounds, rl),
        weights={"policy": WeightSpec(), "ref": WeightSpec(), "rm": WeightSpec()},
        models={
            "policy": ModelRole(("policy",)),
            "ref": ModelRole(("ref",)),
            "rm": ModelRole(("rm",), heads=("scalar",)),
        },
        decode={"main": single(), "rm_best": rm_best()},
    )


@block
def listwise(*, scalar_after: Token, seq: Token, reward: Seq, group: Seq) -> Grp:
    """The loss of a reward model on the right and wrong answers to a question: the mean over all their pairs.

        l = -mean over right i, wrong j of log sigmoid(R_i - R_j)        right: a reward of 1 or more

    Args: scalar_after f[N], of which a text's last is R; seq i64[N]; reward f[S]; group i64[S]. Returns: l f[G], 0 for
    a group without one of each. Scope: group.

    >>> rows = {"scalar_after": torch.tensor([2.0, 0.0, 0.0]), "seq": torch.tensor([0, 1, 2])}
    >>> listwise(**rows, reward=torch.tensor([1.0, 0.0, 1.0]), group=torch.tensor([0, 0, 0]))  # 0.1269 and log 2
    tensor([0.4100])
    """
    score = seq_last(scalar_after, seq, len(reward))
    out = list[torch.Tensor]()
    for number in range(int(group.max()) + 1 if len(group) else 0):
        right, wrong = (score[(group == number) & side] for side in (reward >= 1, reward < 1))
        gaps = right[:, None] - wrong[None]
        out.append(-torch.nn.functional.logsigmoid(gaps).sum() / max(gaps.numel(), 1))
    return torch.stack(out) if out else score[:0]


def _at_end(scalar: Token, seq: Token, count: int) -> np.ndarray:
    """f64[S]: the value at each sequence's last row; NaN where it has none."""
    last = seg.last(np.asarray(seq), count)
    return np.where(last >= 0, np.asarray(scalar, np.float64)[last], np.nan)


@block
def best_right(*, reward: Seq, rm_scalar_after: Token, seq: Token, group: Seq, best: int = 2) -> dict[str, Column]:
    """Keep the right answers to each question that the reward model likes most.

        keep_i = [r_i >= 1 and R_i is among the `best` largest of the right ones of its group]

    Args: reward f64[S]; rm_scalar_after f64[N], of which a text's last is R; seq i64[N]; group i64[S]. Returns: keep
    f64[S]. Scope: group.

    >>> rows = {"rm_scalar_after": [0.0, 3.0, 5.0], "seq": [0, 1, 2], "group": [0, 0, 0]}
    >>> best_right(reward=[1.0, 1.0, 0.0], **rows, best=1)["keep"].values
    array([0., 1., 0.])
    """
    liked, right, group = _at_end(rm_scalar_after, seq, len(reward)), np.asarray(reward) >= 1, np.asarray(group)
    keep = np.zeros(len(reward))
    for number in np.unique(group):
        rows = np.flatnonzero((group == number) & right)
        keep[rows[np.argsort(-liked[rows], kind="stable")[:best]]] = 1.0
    return {"keep": Column("seq", keep)}


@block
def combined(
    *, reward: Seq, rm_scalar_after: Token, seq: Token, alpha: float = 0.5, paid: Paid = "both"
) -> dict[str, Column]:
    """A reward of rule and reward model, by which right answers are above 0 and wrong ones below.

        r = sigmoid(alpha R) + (right - 1);   paid="model": sigmoid(alpha R)

    Args: reward f64[S], right where it is 1; rm_scalar_after f64[N], of which a text's last is R; seq i64[N]. Returns:
    reward f64[S]. Scope: seq.

    >>> rows = {"rm_scalar_after": [0.0, 0.0], "seq": [0, 1]}
    >>> combined(reward=[1.0, 0.0], **rows)["reward"].values
    array([ 0.5, -0.5])
    """
    liked = 0.5 * (1 + np.tanh(alpha * _at_end(rm_scalar_after, seq, len(reward)) / 2))  # the sigmoid, without overflow
    own = np.asarray(reward, np.float64)
    return {"reward": Column("seq", liked + (own - 1 if paid == "both" else own - own))}


@block
async def rm_best(
    *,
    request: RolloutRequest,
    rollout: RolloutContext,
    k: int = 8,
    model_role: str = "rm",
    stop: tuple[str, ...] = ("</answer>",),
) -> str:
    """The answer of `k` sampled ones that the reward model likes most (RM@8)."""
    sampled = await sample_answers(request, rollout, k, "policy", stop)

    async def liked(number: int) -> float:
        text = rollout.response_ids(sampled.contexts[number].at)
        read = rollout.model_role(model_role).begin(request.task.prompt)
        return float((await read.score(text, want=("scalar_after",)))["scalar_after"][-1]) if len(text) else -np.inf

    return sampled.chosen(int(np.argmax(await asyncio.gather(*map(liked, range(k))))))


ONE_ROUND = {"rounds": 1, "judge_steps": 10}

qwen_math.claim = Claim(
    (
        premise("accuracy", "rule", "start", by=0.2, fails_at=0.85),
        mechanism("accuracy+rm_best", "self", "accuracy of self", relation=">=", by=0.01, fails_at=1.0),
        outcome("accuracy", "self", "rule", by=0.01, fails_at=0.995),
        outcome("accuracy", "self", "model", by=0.05, fails_at=0.96),  # a reward model alone is hacked
    ),
    arms={
        "rule": ("qwen_math", {**ONE_ROUND, "paid": "rule"}),
        "model": ("qwen_math", {**ONE_ROUND, "paid": "model"}),
    },
    args=ONE_ROUND,
    regime="skill",
    idea=("main.credit*",),
    because="among right answers the reward model knows better ones, and the rule keeps it from being hacked",
)
