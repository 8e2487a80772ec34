"""Sharpening (Huang et al. 2024, arXiv 2412.01951): a model learns the answers that it holds likeliest itself.

The reward is the log-probability of the base model, log pi_base(y | x). Best-of-N samples search for its largest; what
is found is learned by likelihood (SFT-Sharpening), or the reward is climbed under a KL penalty (RLHF-Sharpening).

    sft   max sum_x log pi(y_BoN(x) | x),   y_BoN = argmax over N samples of pi_base of the reward
    rlhf  min over pairs of (beta log pi/pi_base(y) - beta log pi/pi_base(y') - (r(y) - r(y')))^2
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
    Pair,
    RewardContext,
    RolloutContext,
    RolloutGroup,
    RolloutRequest,
    Score,
    Scores,
    Seq,
    Stage,
    Term,
    Token,
    Update,
    block,
    logged,
    mechanism,
    method,
    outcome,
    own_tokens,
    premise,
)
from ..core.answers import canonical, majority
from ..credit import segments as seg
from ..credit.composers import of_another_model, preference_pairs
from ..curriculum.select import uniform
from ..objective.likelihood import weighted_nll
from ..objective.loss_weights import sequence_sum
from ..objective.segments import log_ratio
from ..reward.answer import exact_match
from ..reward.answer_verdicts import judge_groups, verdict_auc
from ..rollout.single import single
from ..rollout.vote import sample_answers

By = Literal["sft", "rlhf"]
SelfReward = Literal["likelihood", "mean", "vote"]


@method(family="selfreward", paper="2412.01951", catalogue=147)
def sharpening(
    groups: int = 16,
    rollouts: int = 8,
    by: By = "sft",
    self_reward: SelfReward = "likelihood",
    beta: float = 0.5,
    votes: int = 8,
) -> Method:
    """Self-improvement by the base model's own judgement, on samples of the base model alone.

        likelihood  r = log pi_base(y | x)      mean  r / tokens      vote  1 for the majority answer, else 0

        sft    the best of `rollouts` samples of each question by r, learned by likelihood
        rlhf   squared error of beta times the difference of log-ratios against that of r, over all pairs of a group

    Huang et al. 2024; the pair loss is in sections 2.2 (eq. 4) and 4.2.1 (eq. 8), what is shown of both in theorems 4.1
    to 4.3. With C = 1 / pi_base(y* | x) the best of N samples is the likeliest answer y* with probability 1 -
    (1 - 1/C)^N, so that N of about C log(1 / delta) is enough (N = 50 there); the optimum of rlhf is
    pi_base^(1 + 1 / beta), normalised. N = 1 learns the base model again. beta: their analysis lets it fall with the
    margin between the likeliest answers, no value is the paper's. They draw one pair for each prompt; here all pairs of
    a group are taken. The squared error has the gradient of `copg` with this reward. From the paper, not from code;
    optimistic exploration (XPO) is left out. Decoding `best`: the best of `votes` samples by the log-probability of the
    policy itself, where their appendix A.1 takes the reference's. Labels are read for metrics alone.
    """
    sft = Term(weighted_nll(), loss_weights=sequence_sum())
    rlhf, pairs = Term(reward_regression(beta=beta)), preference_pairs(margin=-1.0, choose="all")
    stage = Stage(
        select=uniform(),
        programs={"main": single(model_role="ref")},
        reward=(own_judgement(by=self_reward, metric_judge=exact_match()),),
        credit=(of_another_model(), keep_best()) if by == "sft" else (of_another_model(compose=pairs),),
        updates=(Update(("policy",), (sft if by == "sft" else rlhf,)),),
        groups=groups,
        rollouts=rollouts,
    )
    return Method(stages=(stage,), decode={"main": single(), "best": likeliest(votes=votes)})


@block
async def own_judgement(
    *,
    group: RolloutGroup,
    context: RewardContext,
    deadline: float,
    by: SelfReward = "likelihood",
    metric_judge: Block | None = None,
) -> Scores:
    """What the model that sampled the answers holds of them, by their log-probabilities or by a vote.

    Parts, with a `metric_judge`: right, and by group best (whether the answer of the largest reward is right) and auc,
    the chance that a right answer has a larger reward than a wrong one. Raises BadValue for another judgement.
    """
    if by not in ("likelihood", "mean", "vote"):
        raise BadValue(f"own_judgement: by must be likelihood, mean or vote, not {by!r}")
    learned = group.learned
    voted, _ = majority([e.answer for e, _ in learned])
    values = list[float]()
    for episode, t in learned:
        path = context.path(t.leaf)
        logps = np.asarray(path.logp, np.float64)[own_tokens(path)]
        if by == "vote":
            values.append(float(voted is not None and canonical(episode.answer) == voted))
        else:
            values.append(float(logps.sum() if by == "likelihood" else logps.mean()) if len(logps) else 0.0)
    parts: dict[Any, dict[str, float]] = {t.leaf: {} for _, t in learned}
    if metric_judge is not None and learned:
        truth = await judge_groups(metric_judge, [group], context, deadline)
        right = [truth[t.leaf].value if t.leaf in truth else None for _, t in learned]
        best = right[int(np.argmax(values))]
        whole = {"best": best, "auc": verdict_auc(values, right)}
        for (_, t), verdict in zip(learned, right, strict=True):
            parts[t.leaf] = {n: v for n, v in {"right": verdict, **whole}.items() if v is not None}
    return {"reward": {t.leaf: Score(v, parts[t.leaf]) for (_, t), v in zip(learned, values, strict=True)}}


@block
def keep_best(*, reward: Seq, group: Seq) -> dict[str, Column]:
    """Keep of each group the sequences of the largest reward, the best of N; several that are equal share its weight.

    Args: reward f64[S], NaN: never the best; group i64[S]. Returns: keep f64[S]; adv f64[S], 1 over how many are kept.

    >>> found = keep_best(reward=[-3.0, -1.0, -1.0, -2.0], group=[0, 0, 0, 1])
    >>> found["keep"].values, found["adv"].values
    (array([0., 1., 1., 1.]), array([0. , 0.5, 0.5, 1. ]))
    """
    reward, group = np.asarray(reward, np.float64), np.asarray(group)
    known = np.where(np.isnan(reward), -np.inf, reward)
    best = np.isfinite(known) & (known == seg.greatest(known, group, seg.count(group))[group])
    shares = np.where(best, 1 / np.maximum(seg.total(best, group, seg.count(group)), 1)[group], 0.0)
    return {"keep": Column("seq", best.astype(np.float64)), "adv": Column("seq", shares)}


@block
@logged("log_ratio", log_ratio)
def reward_regression(
    *, logp: Token, ref_logp: Token, reward: Seq, seq: Token, win: Pair, lose: Pair, beta: float = 0.5
) -> Pair:
    """Squared error of the difference of two answers' log-ratios against that of their rewards (eq. 4 and 8).

        l = (beta (h(y) - h(y')) - (r(y) - r(y')))^2,   h = sum over an answer of (logp - ref_logp)

    Zero for all pairs where pi is proportional to pi_ref exp(r / beta). Which of a pair is y makes no difference.

    Args: logp, ref_logp f[N]; reward f[S]; seq i64[N]; win, lose i64[P]. Returns: l f[P]. Scope: pair.

    >>> import torch
    >>> rows = {"logp": torch.tensor([-1.0, -2.0]), "ref_logp": torch.tensor([-2.0, -2.0]), "seq": torch.arange(2)}
    >>> pair = {"win": torch.tensor([0]), "lose": torch.tensor([1])}  # 0.5 (1 - 0) - (0 - 1) = 1.5
    >>> reward_regression(**rows, **pair, reward=torch.tensor([0.0, 1.0]), beta=0.5)
    tensor([2.2500])
    """
    h = log_ratio(logp, ref_logp, seq, reward)
    return (beta * (h[win] - h[lose]) - (reward[win] - reward[lose])) ** 2


@block
async def likeliest(
    *,
    request: RolloutRequest,
    rollout: RolloutContext,
    votes: int = 8,
    model_role: str = "policy",
    stop: tuple[str, ...] = ("</answer>",),
) -> str:
    """Sample `votes` answers and return the one with the largest log-probability: best-of-N by one's own likelihood."""
    sampled = await sample_answers(request, rollout, votes, model_role, stop)
    paths = [rollout.path(turn.at) for turn in sampled.turns]
    return sampled.chosen(int(np.argmax([np.sum(path.logp[own_tokens(path)]) for path in paths])))


sharpening.claim = Claim(
    (
        # among samples of the base model the likeliest is right far more often than one, but has to be found
        premise("mean:reward/best", "self", "mean:reward/right of self", by=0.3, fails_at=1.0),
        mechanism("mean:reward/auc", "self", 0.8, by=0.0, fails_at=0.6),
        outcome("accuracy", "self", "start", by=0.3, fails_at=0.95),
        # one pass does what a search does: what the best of eight samples gains is in the weights
        outcome("accuracy", "self", "accuracy+best of start", by=0.05, relation=">=", fails_at=1.0),
        outcome("accuracy", "rlhf", "start", by=0.3, fails_at=0.95),
        # coverage: too few samples do not find what is likeliest, and one finds nothing
        outcome("accuracy", "self", "two", by=0.1, fails_at=0.95),
        outcome("accuracy", "one", "start", by=0.05, relation="<=", fails_at=0.0),
    ),
    arms={
        "rlhf": ("sharpening", {"by": "rlhf"}),
        "two": ("sharpening", {"rollouts": 2}),
        "one": ("sharpening", {"rollouts": 1}),
    },
    settings={"final_eval_decoder_samples": 2},  # a search is of eight samples
    regime="skill",
    idea=("main.credit*", "main.update.0.term.0", "main.rollouts"),
    because="a model that recognises its good answers by their likelihood can learn to give them at once",
)
