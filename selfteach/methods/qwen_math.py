"""Qwen2.5-Math (Yang et al. 2024, arXiv 2409.12122): a reward model of a policy's own answers, used three times.

It learns to tell right from wrong answers to one question, and then chooses the right answers that are imitated, says
in RL which right answers are better, and chooses among several answers.

    reward model  L = -1 / (k (n - k)) sum over right i, wrong j of log sigmoid(R_i - R_j)      k of n answers are right
    imitation     the best answers by R among the right ones; without a label, among those of the majority
    RL            r = sigmoid(alpha R) + (right - 1)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from ..core import (
    BadValue,
    Block,
    Claim,
    Column,
    Example,
    Grp,
    Method,
    ModelRole,
    RewardContext,
    RolloutContext,
    RolloutGroup,
    RolloutRequest,
    Scores,
    Seq,
    Stage,
    Task,
    TaskSource,
    Term,
    Token,
    Update,
    WeightSpec,
    block,
    logged,
    mechanism,
    method,
    outcome,
    premise,
    random_keys,
    stateful,
)
from ..core.lazy import torch
from ..credit import segments as seg
from ..credit.advantages import norm
from ..credit.composers import of_another_model, per_trajectory
from ..credit.keep import drop_zero_variance_groups
from ..curriculum.select import first_task_index, known_rewards, suiting_tasks, uniform
from ..objective.kl import kl
from ..objective.likelihood import nll
from ..objective.loss_weights import sequence_mean
from ..objective.policy import clipped_ratio
from ..objective.segments import seq_last
from ..reward.answer import exact_match
from ..reward.answer_verdicts import judge_groups
from ..reward.vote import majority_vote
from ..rollout.single import single
from ..rollout.value_model import values_by
from ..rollout.vote import sample_answers

Paid = Literal["both", "rule", "model"]
RIGHT = 0.5  # a larger reward is that of a right answer


@method(family="system", paper="2409.12122", catalogue=121)
def qwen_math(
    groups: int = 16,
    rollouts: int = 8,
    rounds: int = 2,
    judge_steps: int = 8,
    judge_lr: float = 1e-3,
    answers: int = 6,
    imitate_steps: int = 4,
    best: int = 2,
    ranked: bool = True,
    unlabelled: float = 0.5,
    questions: int = 128,
    tried: int = 8,
    low: int = 2,
    high: int = 5,
    paid: Paid = "both",
    alpha: float = 0.5,
    beta: float = 0.001,
    clip: float = 0.2,
) -> Method:
    """Rounds of training a reward model and imitating what it likes among right answers, then GRPO on it and the rule.

        r = sigmoid(alpha R) + (right - 1),   A = GRPO's,   + beta KL to the policy that RL began with (k3)

    Yang et al. 2024, sections 3 and 4; alpha 0.5, beta 1e-3, two rounds, six answers to a question for the reward
    model, 32 in RL. Each of the `rounds` has judge_steps of the reward model, begun anew from the policy (groups that
    are all right or all wrong are left out), and imitate_steps of the policy, on the `best` right answers by R to each
    question (ranked=False: the first ones). Of all questions a share `unlabelled` has no label: imitation takes the
    majority answer for right there, the reward model and RL take none of them. RL is on those of `questions` questions
    of which low to high of `tried` answers are right as it begins (tried=0: on all). paid: RL's reward, "rule" for
    right alone, "model" for sigmoid(alpha R) alone. decode: `rm_best`, the answer of eight that R likes most (RM@8).

    Not here: pre-training, answers by code (TIR), answers of models of several sizes. One layer stands for the head of
    two. Where no question is within reach, all are taken.
    """
    rule = exact_match()
    judge = Stage(
        name="judge",
        select=labelled_tasks(unlabelled=unlabelled),
        programs={"main": single()},
        reward=(rule,),
        credit=(of_another_model(compose=per_trajectory(model_role="rm")), drop_zero_variance_groups()),
        updates=(Update(("rm",), (Term(listwise()),), lr=judge_lr),),
        groups=groups,
        rollouts=answers,
        until=judge_steps,
        enter={"rm": "policy"},
        reset=("rm",),
    )
    imitate = Stage(
        name="imitate",
        select=uniform(),
        programs={"main": single()},
        reward=(label_or_vote(judge=rule, unlabelled=unlabelled),),
        credit=(per_trajectory(), best_right(best=best) if ranked else first_right(best=best)),
        updates=(Update(("policy",), (Term(nll(), loss_weights=sequence_mean()),)),),
        groups=groups,
        rollouts=rollouts,
        until=imitate_steps,
    )
    probe = Stage(
        name="probe",
        select=labelled_tasks(unlabelled=unlabelled),
        programs={"main": single()},
        reward=(rule,),
        credit=(count_right(),),
        updates=(),
        groups=questions,
        rollouts=max(1, tried),
        until=1,
    )
    near = (Term(kl(), loss_weights=sequence_mean(), coef=beta),) if beta else ()
    rl = Stage(
        select=within_reach(low=low, high=high) if tried else labelled_tasks(unlabelled=unlabelled),
        programs={"main": single()},
        reward=(rule,),
        credit=(per_trajectory(), *((combined(alpha=alpha, paid=paid),) if paid != "rule" else ()), norm()),
        updates=(Update(("policy",), (Term(clipped_ratio(low=clip, high=clip), loss_weights=sequence_mean()), *near)),),
        groups=groups,
        rollouts=rollouts,
        enter={"ref": "policy"} if beta else {},
        reset=("policy",),
    )
    repeated = [replace(s, name=f"{s.name}_{n}") for n in range(1, rounds + 1) for s in (judge, imitate) if s.until]
    return Method(
        stages=(*repeated, *((probe,) if tried else ()), rl),
        weights={"policy": WeightSpec(), "ref": WeightSpec(), "rm": WeightSpec()},
        models={
            "policy": ModelRole(("policy",)),
            "ref": ModelRole(("ref",)),
            "rm": ModelRole(("rm",), heads=("scalar",)),
        },
        decode={"main": single(), "rm_best": rm_best()},
    )


# ---- questions


def has_label(task: Task, unlabelled: float) -> bool:
    """Whether a question's label may be read; of a share `unlabelled` of all questions it may not."""
    return random_keys.key("label", str(task.prompt)) >= unlabelled * 2**64


@block
@stateful(int, shared="labelled")
def labelled_tasks(
    *,
    n: int,
    rollouts: int,
    finished_rounds: list[list[RolloutGroup]],
    source: TaskSource,
    seed: int,
    state: int,
    unlabelled: float = 0.5,
) -> tuple[list[RolloutRequest], int]:
    """The next `n` questions that have a label; `number` in their help is their place in the source.

    Raises BadValue where nearly none has.
    """
    if finished_rounds:
        return [], state
    out, at = list[RolloutRequest](), first_task_index(seed) + state
    begun = at
    while len(out) < n:
        found, looked = suiting_tasks(source, at, 1, lambda t: has_label(t, unlabelled))
        if not found:
            raise BadValue(f"labelled_tasks: of {looked} questions none has a label; give a smaller unlabelled")
        at += looked
        out.append(RolloutRequest(found[0], rollouts, help={"number": at - 1}))
    return out, state + at - begun


@block
@stateful(lambda: {"right": {}, "asked": 0}, shared="reach")
def count_right(*, groups: Sequence[RolloutGroup], state: dict[str, Any]) -> tuple[list[Example], dict[str, Any]]:
    """A composer without examples: it stores how many answers to each question were right, for `within_reach`."""
    asked = [(g.request.help.get("number"), g) for g in groups]
    found = {str(i): sum(v > RIGHT for v in known_rewards(g)) for i, g in asked if i is not None}
    return [], {**state, "right": {**state["right"], **found}}


@block
@stateful(lambda: {"right": {}, "asked": 0}, shared="reach")
def within_reach(
    *,
    n: int,
    rollouts: int,
    finished_rounds: list[list[RolloutGroup]],
    source: TaskSource,
    seed: int,
    log_metrics: Callable[..., None],
    state: dict[str, Any],
    low: int = 2,
    high: int = 5,
) -> tuple[list[RolloutRequest], dict[str, Any]]:
    """`n` of the questions of which low to high answers were right, each as often, in another order each time.

    Metric: within_reach, their share. Where there are none, all are.
    """
    if finished_rounds:
        return [], state
    fit = [int(i) for i, right in state["right"].items() if low <= right <= high]
    log_metrics(within_reach=len(fit) / max(1, len(state["right"])))
    fit, out = fit or [int(i) for i in state["right"]], list[RolloutRequest]()
    for i in range(state["asked"], state["asked"] + n):
        lap, place = divmod(i, len(fit))
        order = random_keys.generator(seed, "reach", lap).permutation(len(fit))
        out.append(RolloutRequest(source.train(fit[int(order[place])]), rollouts))
    return out, {**state, "asked": state["asked"] + n}


@block
async def label_or_vote(
    *,
    group: RolloutGroup,
    context: RewardContext,
    deadline: float,
    judge: Block | None = None,
    unlabelled: float = 0.5,
) -> Scores:
    """The judge's scores where a question has a label; else 1 for the majority answer of its group, 0 for others."""
    if has_label(group.request.task, unlabelled):
        return {"reward": await judge_groups(judge, [group], context, deadline)}
    return await majority_vote(group=group, context=context, deadline=deadline, metric_judge=judge)


# ---- the reward model


def _gaps(scalar_after: Any, seq: Any, reward: Any, group: Any) -> list[Any]:
    """For each group R_i - R_j of every right i and wrong j, f[k, n - k]."""
    liked = seq_last(scalar_after, seq, len(reward))
    rows = [group == number for number in range(int(group.max()) + 1 if len(group) else 0)]
    return [liked[mine & (reward > RIGHT)][:, None] - liked[mine & (reward <= RIGHT)][None] for mine in rows]


def _ordered(scalar_after: Any, seq: Any, reward: Any, group: Any) -> Any:
    """bool[pairs]: whether the right answer of two is the one that the reward model likes more."""
    return torch.cat([scalar_after[:0], *(g.flatten() for g in _gaps(scalar_after, seq, reward, group))]) > 0


@block
@logged("reward_accuracy", _ordered)
def listwise(*, scalar_after: Token, seq: Token, reward: Seq, group: Seq) -> Grp:
    """The loss of a reward model on the right and wrong answers to a question: the mean over all their pairs.

        l = -mean over right i, wrong j of log sigmoid(R_i - R_j)        right: a reward above 0.5

    Args: scalar_after f[N], of which a text's last is R; seq i64[N]; reward f[S]; group i64[S]. Returns: l f[G], 0 for
    a group without one of each. Scope: group.

    >>> rows = {"scalar_after": torch.tensor([2.0, 0.0, 0.0]), "seq": torch.tensor([0, 1, 2])}
    >>> listwise(**rows, reward=torch.tensor([1.0, 0.0, 1.0]), group=torch.tensor([0, 0, 0]))  # 0.1269 and log 2
    tensor([0.4100])
    """
    pairs = _gaps(scalar_after, seq, reward, group)
    losses = [-torch.nn.functional.logsigmoid(gaps).sum() / max(gaps.numel(), 1) for gaps in pairs]
    return torch.stack(losses) if losses else scalar_after[:0]


def _at_end(scalar: Token, seq: Token, count: int) -> np.ndarray:
    """f64[S]: the value at each sequence's last row; NaN where it has none."""
    last = seg.last(np.asarray(seq), count)
    return np.where(last >= 0, np.asarray(scalar, np.float64)[last], np.nan)


def _top(reward: Seq, group: Seq, order: Any, count: int) -> dict[str, Column]:
    """keep 1 for the `count` right answers of each group that come first by `order`, the least first."""
    right, group, keep = np.asarray(reward) > RIGHT, np.asarray(group), np.zeros(len(reward))
    for number in np.unique(group):
        rows = np.flatnonzero((group == number) & right)
        keep[rows[np.argsort(order[rows], kind="stable")[:count]]] = 1.0
    return {"keep": Column("seq", keep)}


@block
def best_right(*, reward: Seq, rm_scalar_after: Token, seq: Token, group: Seq, best: int = 2) -> dict[str, Column]:
    """Keep the right answers to each question that the reward model likes most.

        keep_i = [r_i > 0.5 and R_i is among the `best` largest of the right ones of its group]

    Args: reward f64[S]; rm_scalar_after f64[N], of which a text's last is R; seq i64[N]; group i64[S]. Returns: keep
    f64[S]. Scope: group.

    >>> rows = {"rm_scalar_after": [0.0, 3.0, 5.0], "seq": [0, 1, 2], "group": [0, 0, 0]}
    >>> best_right(reward=[1.0, 1.0, 0.0], **rows, best=1)["keep"].values
    array([0., 1., 0.])
    """
    return _top(reward, group, -_at_end(rm_scalar_after, seq, len(reward)), best)


@block
def first_right(*, reward: Seq, group: Seq, best: int = 2) -> dict[str, Column]:
    """Keep the first `best` right answers to each question: `best_right` without the reward model.

    >>> first_right(reward=[1.0, 0.0, 1.0, 1.0], group=[0, 0, 0, 0])["keep"].values
    array([1., 0., 1., 0.])
    """
    return _top(reward, group, np.arange(len(reward)), best)


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
    liked = values_by(request, rollout, model_role)
    return sampled.chosen(int(np.argmax(await asyncio.gather(*map(liked, sampled.contexts)))))


qwen_math.claim = Claim(
    (
        premise("accuracy", "rule", "start", by=0.2, fails_at=0.85),
        mechanism("late:rm/reward_accuracy", "self", 0.7, fails_at=0.6),  # R tells right from wrong
        outcome(
            "accuracy+rm_best", "self", "accuracy of self", relation=">=", by=0.01, fails_at=1.0
        ),  # and so after RL
        outcome("auc", "self", "rule", by=0.01, fails_at=0.995),
        outcome("accuracy", "self", "model", by=0.02, fails_at=0.985),  # a reward model alone is hacked
    ),
    args={"judge_steps": 16},
    arms={
        "rule": ("qwen_math", {"judge_steps": 16, "paid": "rule"}),
        "model": ("qwen_math", {"judge_steps": 16, "paid": "model"}),
    },
    regime="skill",  # an answer may be right by a guess, which the rule cannot tell from one that was worked out
    # two rounds of 20 steps, one of trying, 60 of RL; RM@8 is of eight samples
    settings={"steps": 101, "eval_every": 10, "final_eval_decoder_samples": 1},
    idea=("main.credit*",),
    corrected="that the best of eight by R is right at least as often as one sample, once the policy has learned from "
    "R, was asked among the mechanisms, of which it is no part but a use: mechanism not shown, on the same seeds",
    because="among right answers the reward model knows better ones, and the rule keeps it from being hacked",
)
