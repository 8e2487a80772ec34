"""ScaleRL (Khatri et al. 2025, arXiv 2510.13786): the recipe of a study of what scales in RL for language models.

Of many choices the study keeps those that raise what a run tends to, or get there sooner, as a sigmoid of accuracy over
compute shows (`analysis/scaling_fit.py`, and the figures `asymptote` and `forecast@0.5` of claims):

    R(C) = R_0 + (A - R_0) / (1 + (C_mid / C)^B)

    loss = -mean over prompts, and over the tokens of a prompt's answers, of sg(min(rho, most)) A logp
    A_i  = (r_i - mean of the group) / std of the batch
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from ..core import (
    Claim,
    History,
    Method,
    RolloutContext,
    RolloutGroup,
    RolloutRequest,
    TaskSource,
    Term,
    block,
    mechanism,
    method,
    outcome,
    premise,
    stateful,
)
from ..core.tagged_text import last_between
from ..credit.advantages import Over, center_and_scale
from ..credit.composers import per_trajectory
from ..credit.keep import drop_zero_variance_groups
from ..curriculum.select import pool_tasks, uniform
from ..objective.loss_weights import prompt_mean, sequence_mean, token_mean
from ..objective.policy import clipped_importance, clipped_ratio
from ..rollout.single import single
from .base import policy_method

MEANS = {"prompt": prompt_mean, "answer": sequence_mean, "token": token_mean}


@method(family="system", paper="2510.13786", catalogue=224)
def scale_rl(
    groups: int = 16,
    rollouts: int = 8,
    sync: int = 8,
    loss: Literal["cispo", "clip"] = "cispo",
    most: float = 4.0,
    low: float = 0.2,
    high: float = 0.28,
    mean: Literal["prompt", "answer", "token"] = "prompt",
    std: Over = "batch",
    drop_equal: bool = True,
    questions: int | None = 512,
    solved: float = 0.9,
    thinking: int | None = None,
    phrase: str = "</think>",
    epochs: int = 1,
    minibatches: int = 1,
) -> Method:
    """CISPO's loss on stale samples, a mean over prompts, the batch's deviation, and no question that is solved.

        loss = -mean over prompts, and over the tokens of a prompt's answers, of sg(min(rho, most)) A logp
        A_i  = (r_i - mean of the group) / std of the batch

    Khatri et al. 2025, section 4; each argument is one choice, which a leave-one-out run takes back. sync: updates
    between two deliveries of weights to the sampler, whose samples are up to sync - 1 updates old; in PipelineRL-8 it
    gets them while it samples, and samples are up to 8 updates old. loss: "clip" is DAPO's, with low and high. most:
    the largest weight of a token (4, 5 and 8 do equally well there). mean: over what a token's loss is averaged.
    drop_equal: groups of equal rewards count in no mean, nor in the batch's deviation, which is of the others (whether
    theirs is was not to be seen). questions: how many there are, of which one whose answers were
    right in a share of at least `solved` is never asked again (1.01: it is; None: new questions without end). thinking:
    tokens after which `phrase` ends the thoughts of an answer, so that it is given; None: never. Logits are computed in
    float32 by sampler and learner, here always.
    """
    fn = clipped_importance(low=1.0, high=most - 1) if loss == "cispo" else clipped_ratio(low=low, high=high)
    made = policy_method(
        select=uniform() if questions is None else unsolved(questions=questions, solved=solved),
        credit=(
            per_trajectory(),
            *((drop_zero_variance_groups(),) if drop_equal else ()),
            center_and_scale(std=std),
        ),
        term=Term(fn, loss_weights=MEANS[mean]()),
        groups=groups,
        rollouts=rollouts,
        epochs=epochs,
        minibatches=minibatches,
        sync=sync,
    )
    return made.replace(
        programs={"main": single() if thinking is None else interrupted(thinking=thinking, phrase=phrase)}
    )


@block
@stateful(int)
def unsolved(
    *,
    n: int,
    rollouts: int,
    finished_rounds: list[list[RolloutGroup]],
    source: TaskSource,
    seed: int,
    history: History,
    log_metrics: Callable[..., None],
    state: int,
    questions: int = 512,
    solved: float = 0.9,
) -> tuple[list[RolloutRequest], int]:
    """The next `n` of a fixed set of questions, shuffled anew in each epoch, without those that are solved.

    A question is solved where the mean reward of its last answers was at least `solved`; it is not asked again. Where
    all are solved, all are asked. `state` counts the places of the cycle that were passed. Metrics: success and
    visited, the mean of those rewards over what is asked and was before, and over all that was.
    """
    if finished_rounds:
        return [], state
    out, missed = list[RolloutRequest](), 0
    while len(out) < n:
        (task,) = pool_tasks(source, seed, state, 1, questions)
        state += 1
        known = history.tasks.get(task.id)
        if known is None or known["reward"] < solved:
            out.append(RolloutRequest(task, rollouts))
            missed = 0
        elif missed == 2 * questions:  # two laps have each of them
            out.append(RolloutRequest(task, rollouts))
        else:
            missed += 1
    visited = {name: known["reward"] for name, known in history.tasks.items()}
    means = {"success": [visited[r.task.id] for r in out if r.task.id in visited], "visited": [*visited.values()]}
    log_metrics(**{name: math.fsum(rewards) / len(rewards) for name, rewards in means.items() if rewards})
    return out, state


@block
async def interrupted(
    *,
    request: RolloutRequest,
    rollout: RolloutContext,
    thinking: int = 192,
    answer: int = 64,
    phrase: str = "</think>",
    stop: tuple[str, ...] = ("</answer>",),
) -> str:
    """One turn whose thoughts are ended after `thinking` tokens by a phrase, after which it has `answer` tokens more.

    The phrase is outside the action mask (span `interruption`).
    """
    context = rollout.model_role("policy").begin(request.task.prompt)
    turn = await context.sample(stop=stop, max_tokens=thinking)
    text = turn.text
    if turn.status == "length":
        context.append(phrase, span="interruption")
        text += phrase + (await context.sample(stop=stop, max_tokens=answer)).text
    context.close()
    return last_between(text, "answer", text.strip())


# as many as a short run asks several times; weights are delivered after every fourth update
FEW = {"sync": 4, "questions": 128}

scale_rl.claim = Claim(
    (
        premise("accuracy", "self", "start", by=0.2, fails_at=0.85),
        premise("late:rollout/mixed_group_fraction", "resampled", 0.8, relation="<", fails_at=0.9),  # some are solved
        # what is asked is what fails
        mechanism("mean:select/success", "self", "mean:select/visited of self", by=0.03, relation="<", fails_at=0.02),
        # half of a run tells where it ends
        outcome("forecast@0.5", "self", "accuracy of self", relation="~", by=0.05, fails_at=0.5),
        outcome("auc", "self", "resampled", by=0.01, fails_at=0.995),  # and that is of use
        # taking one choice back costs speed, not what is reached
        outcome("auc", "self", "answer_mean", relation=">=", by=0.03, fails_at=1.0),
        outcome("auc", "self", "group_std", relation=">=", by=0.03, fails_at=1.0),
        outcome("accuracy", "self", "clip", relation=">=", by=0.03, fails_at=1.0),
    ),
    arms={
        "resampled": ("scale_rl", {**FEW, "solved": 1.01}),
        "clip": ("scale_rl", {**FEW, "loss": "clip"}),
        "answer_mean": ("scale_rl", {**FEW, "mean": "answer"}),
        "group_std": ("scale_rl", {**FEW, "std": "group"}),
    },
    args=FEW,
    settings={"eval_every": 4},
    regime="ladder",
    first_seed=400,
    corrected="on seeds 200 to 207 groups of equal rewards were compared with another arm's, whose policy has them by "
    "its own doing, and nothing was asked of the group's deviation: mechanism not shown. On seeds 300 to 307 nothing "
    "asked whether leaving out what is solved is of use: mechanism shown",
    idea=("main.select", "main.update*", "main.credit*"),
    because="choices that raise the asymptote or the speed add up, and half of a run foretells the rest",
)
