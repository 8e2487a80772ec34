"""PCL, prompt curriculum learning (Gao et al. 2025, arXiv 2510.01135).

A value model predicts each candidate prompt's success rate, and the prompts of intermediate difficulty are trained on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..core import (
    BadValue,
    Claim,
    Column,
    History,
    Method,
    ModelRole,
    RolloutContext,
    RolloutGroup,
    RolloutRequest,
    Seq,
    TaskSource,
    Term,
    Token,
    Update,
    WeightSpec,
    block,
    mechanism,
    method,
    outcome,
    premise,
    provides,
    stateful,
)
from ..credit import segments as seg
from ..credit.advantages import center
from ..credit.composers import per_trajectory
from ..curriculum.select import mean_difficulty, next_tasks
from ..objective.loss_weights import sequence_mean, token_mean
from ..objective.policy import policy_gradient
from ..objective.value import success_loss
from ..rollout.single import single
from .base import policy_method


@method(family="curriculum", paper="2510.01135", catalogue=228)
def pcl(
    groups: int = 16,
    rollouts: int = 8,
    candidates: int = 4,
    target: float = 0.5,
    critic_lr: float = 1e-4,
    critic_epochs: int = 1,
) -> Method:
    """REINFORCE on the prompts, of candidates * groups, whose predicted success rate is nearest `target`.

        A = r - mean(r)
        policy: -A logp, on-policy
        value:  (V(x) - mean(r))^2        V = sigmoid of a head at the prompt's last token

    Gao et al. 2025, algorithm 1. The value model has weights of its own, initialised from the same model, and is one
    step behind the policy. candidates = 1: no selection. The batch (theirs is 512 prompts of 16 answers) and critic_lr
    are chosen here.
    """
    base = policy_method(
        select=nearest_predicted(candidates=candidates, target=target),
        credit=(per_trajectory(), center(), group_mean()),
        term=Term(policy_gradient(), loss_weights=sequence_mean()),
        groups=groups,
        rollouts=rollouts,
    )
    value = Update(
        ("critic",),
        (Term(success_loss(), loss_weights=token_mean()),),
        where=first_rows(),
        lr=critic_lr,
        epochs=critic_epochs,
    )
    return base.replace(
        programs={"main": single(), "predict": predict()}, updates=(value, *base.stage.updates)
    ).override(weights={"critic": WeightSpec("start")}, models={"critic": ModelRole(("critic",), heads=("value",))})


@block
@stateful(lambda: {"next": 0, "predicted": {}})
def nearest_predicted(
    *,
    n: int,
    rollouts: int,
    finished_rounds: list[list[RolloutGroup]],
    source: TaskSource,
    history: History,
    seed: int,
    log_metrics: Callable[..., None],
    state: dict[str, Any],
    candidates: int = 4,
    target: float = 0.5,
    program: str = "predict",
) -> tuple[list[RolloutRequest], dict[str, Any]]:
    """The `n` of candidates * n new tasks whose predicted success rate is nearest `target` (algorithm 1).

    Two rounds a step: predictions by `program`, which answers with a number between 0 and 1, then rollouts of the
    selected tasks. Ties go to the earlier task. Metrics: the mean prediction of the selected tasks (select/predicted),
    the mean absolute error of the predictions of the step before (select/off), and the mean tag `difficulty`. Raises
    BadValue where the program gives no number.
    """
    if not finished_rounds:
        tasks = next_tasks(source, seed, state["next"], candidates * n)
        requests = [RolloutRequest(t, 1, program=program, key=f"{program}/{t.id}") for t in tasks]
        return requests, {**state, "next": state["next"] + len(tasks)}
    if len(finished_rounds) > 1:
        return [], state
    for g in finished_rounds[0]:
        if not isinstance(g.episodes[0].answer, int | float):
            raise BadValue(
                f"nearest_predicted: program {program!r} gave no number for task {g.request.task.id}:"
                f" {g.episodes[0].why or 'no error'}; let it return one"
            )
    predictions = [(g.episodes[0].answer, g.request.task) for g in finished_rounds[0]]
    nearest = sorted(range(len(predictions)), key=lambda i: abs(predictions[i][0] - target))[:n]
    tasks = [predictions[i][1] for i in sorted(nearest)]
    errors = [
        abs(p - history.tasks[t]["reward"])
        for t, p in state["predicted"].items()
        if "reward" in history.tasks.get(t, {})
    ]
    predicted = {predictions[i][1].id: float(predictions[i][0]) for i in nearest}
    log_metrics(
        predicted=sum(predicted.values()) / len(predicted),
        **({"off": sum(errors) / len(errors)} if errors else {}),
        **mean_difficulty(tasks),
    )
    return [RolloutRequest(t, rollouts) for t in tasks], {**state, "predicted": predicted}


@block
async def predict(*, request: RolloutRequest, rollout: RolloutContext, model_role: str = "critic") -> float:
    """The predicted success rate of a task: sigmoid(V), V the value head's output at the prompt's last token.

    Nothing is sampled or learned.
    """
    context = rollout.model_role(model_role).begin(request.task.prompt)
    # The value before a token does not depend on the token, so any will do.
    scored = await context.score([rollout.reserved_token], want=("value",))
    context.close(learn=None)
    return 1.0 / (1.0 + math.exp(-float(scored["value"][0])))


@block
@provides("target")
def group_mean(*, reward: Seq, group: Seq) -> dict[str, Column]:
    """The mean reward of the group, as the column `target` of each of its sequences: the value model's target.

    Args: reward f64[S]; group i64[S]. Returns: target f64[S]; NaN for a group with an unknown reward. Scope: group.

    >>> group_mean(reward=[1, 0, 1, 1], group=[0, 0, 1, 1])["target"].values
    array([0.5, 0.5, 1. , 1. ])
    """
    return {"target": Column("seq", seg.mean(reward, group, seg.count(group))[group])}


@block
def first_rows(*, seq: Token) -> Token:
    """True for the first learned token of each sequence (for `Update.where`): what precedes it is the prompt.

    Args: seq i64[N], ascending. Returns: bool[N].

    >>> first_rows(seq=[0, 0, 0, 1, 1]).tolist()
    [True, False, False, True, False]
    """
    seq = np.asarray(seq)
    return np.concatenate([[True], seq[1:] != seq[:-1]]) if len(seq) else np.zeros(0, bool)


pcl.claim = Claim(
    (
        premise("early:rollout/mixed_group_fraction", "uniform", 0.6, relation="<", by=0.0, fails_at=0.7),
        mechanism("mean:rollout/mixed_group_fraction", "self", "uniform", by=0.2, scale="ratio", fails_at=0.9),
        mechanism("late:select/off", "self", "early:select/off of self", by=0.0, relation="<", fails_at=0.05),
        outcome("auc", "self", "uniform", by=0.02, fails_at=0.99),
        outcome("accuracy", "self", "uniform", by=0.02, fails_at=0.99),
    ),
    arms={"uniform": ("pcl", {"candidates": 1, "critic_lr": 1e-3})},
    regime="steep",
    first_seed=300,
    args={"critic_lr": 1e-3},  # at a tenth it takes half of the run to tell prompts apart
    idea=("main.select",),
    because="a group teaches most where half of its answers are right, and a value model finds such prompts by one "
    "forward pass over each",
)
