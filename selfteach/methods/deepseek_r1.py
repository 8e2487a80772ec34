"""DeepSeek-R1 (DeepSeek-AI 2025, arXiv 2501.12948): a cold start, RL, its samples as demonstrations, and RL again.

RL with rewards by rules alone (R1-Zero) finds reasoning that nobody can read. So RL begins after a few demonstrations,
pays for the language of the question as well, and what it then samples well teaches the base model anew.

    cold    imitate a few readable demonstrations
    reason  GRPO,  r = right + format * a thought in its tags + language * in the question's language
    sft     the base model imitates the answers of that policy which are right and in one language
    all     GRPO on all questions, with the rewards of both
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..core import (
    Claim,
    Example,
    Method,
    ModelRole,
    RewardContext,
    RolloutGroup,
    Score,
    Stage,
    Task,
    Term,
    Update,
    WeightSpec,
    block,
    mechanism,
    method,
    outcome,
    premise,
)
from ..credit.composers import of_another_model, per_trajectory
from ..curriculum.select import experts, uniform
from ..objective.likelihood import nll
from ..objective.loss_weights import token_mean
from ..reward.answer import exact_match, thought_then_answer
from ..rollout.single import read, single
from .grpo import grpo

BASE, CHECKPOINT = "base", "checkpoint"


@method(family="objective", paper="2501.12948", catalogue=266)
def deepseek_r1(
    groups: int = 16,
    rollouts: int = 8,
    cold_steps: int = 10,
    reason_steps: int = 40,
    sft_steps: int = 20,
    format: float = 1.0,
    language: float = 1.0,
    batch: int = 32,
    pool: int = 256,
    style: str = "",
    clip: float = 0.2,
    beta: float = 0.001,
) -> Method:
    """DeepSeek-R1's four stages in one run; without cold start, language and samples it is R1-Zero.

        cold     -logp of right demonstrations in the question's language (of `pool`; of one `style` where it is named)
        reason   GRPO with r = right + format [a thought, then the answer, in their tags]
                 + language [in the question's language], reference the cold start
        sft      the base model learns by -logp what that policy samples: right, and where language is paid for, in it
        all      GRPO with the same rewards, reference the model of `sft`, for the rest of the steps

    DeepSeek-AI 2025, in version 2 of the paper: sections 2.2 (the rules' rewards weigh the same, equation 4), 3.2.1 and
    3.2.2 (the language reward is added in both RL stages, equation 8; version 1 names it for the first alone). A stage
    of no steps is left out. beta is that of sections 2.1 and 3.2.1. Section 3.2.1 has a clip of 10 for 16 minibatches;
    here a batch is learned at once, so that no clip acts. The language reward is the share of a thought's words there
    (equation 7), here whether all of a response is in the question's language (the task's judge `language`). Left out:
    the reference that is refreshed every 400 steps (3.2.1), in the last stage the temperature of 0.7 and the reward
    models of helpfulness and harmlessness (in its last 400 steps of 1,700; 3.2.2), in the third the demonstrations of
    other things than reasoning and the filters for long paragraphs and code blocks (B.3.3). Both imitations are of
    2 to 3 epochs there (B.4.2; 2 for the second in version 1), here of a number of steps. A stage begins with a new
    optimiser. Distillation is `sft` on the demonstrations of another model.
    """
    rl = grpo(groups=groups, rollouts=rollouts, clip=clip, beta=beta)
    paid = replace(rl.stage, reward=(right_and_readable(format=format, language=language),), reset=("policy",))
    imitate = (Update(("policy",), (Term(nll(), loss_weights=token_mean()),)),)
    cold = Stage(
        name="cold",
        select=experts(pool=pool, style=style),
        programs={"main": read()},
        reward=(),
        credit=(readable(),),
        updates=imitate,
        groups=batch,
        rollouts=1,
        until=cold_steps,
        data=True,
    )
    sft = replace(
        paid,
        name="sft",
        select=uniform(),
        programs={"main": single(model_role=CHECKPOINT)},
        credit=(accepted(language=language),),
        updates=imitate,
        until=sft_steps,
        enter={CHECKPOINT: "policy", "policy": BASE},
    )
    reference = {"ref": "policy"} if beta else {}
    stages = (
        *((cold,) if cold_steps else ()),
        *((replace(paid, name="reason", until=reason_steps, enter=reference),) if reason_steps else ()),
        *((sft,) if sft_steps else ()),
        replace(paid, name="all", enter=reference),
    )
    extra = (BASE, CHECKPOINT) if sft_steps else ()
    return Method(stages=stages, decode={"main": single()}).override(
        weights={n: WeightSpec("start") for n in extra}, models={n: ModelRole((n,)) for n in extra if n == CHECKPOINT}
    )


@method(family="objective", paper="2501.12948", catalogue=266)
def deepseek_r1_zero(groups: int = 16, rollouts: int = 8, clip: float = 0.2, beta: float = 0.001) -> Method:
    """DeepSeek-R1-Zero: GRPO on the base model, rewarded for being right and for the format (section 2.2)."""
    none: dict[str, Any] = {"cold_steps": 0, "reason_steps": 0, "sft_steps": 0, "language": 0.0}
    return deepseek_r1(groups=groups, rollouts=rollouts, clip=clip, beta=beta, **none)


@block
def right_and_readable(*, text: str, answer: Any, task: Task, format: float = 1.0, language: float = 1.0) -> Score:
    """1 for a right answer, `format` for a thought and an answer in their tags, `language` for the question's language.

    The last is for a response that is in it throughout; all are where a task has no judge `language`. Parts: right,
    format, mixed (1: not all in that language; where there is a judge).
    """
    parts = {"right": float((exact_match(answer=answer, task=task).value or 0.0) >= 1.0)}
    parts |= thought_then_answer(text=text).parts
    alike = True
    if "language" in task.judges:
        alike = bool(task.judges["language"](text=text, task=task))
        parts["mixed"] = float(not alike)
    return Score(parts["right"] + format * parts["format"] + language * alike, parts)


@block
def readable(*, groups: Sequence[RolloutGroup], context: RewardContext) -> list[Example]:
    """The trajectories that are in their question's language throughout; all of a task without a judge of that."""
    by_name = {t.leaf.name: (g.request.task, t.leaf) for g in groups for e in g.episodes for t in e.trajectories}
    out: list[Example] = []
    for example in per_trajectory(groups=groups):
        task, leaf = by_name[example.name]
        judge = task.judges.get("language")
        if judge is None or judge(text=context.text(leaf), task=task):
            out.append(example)
    return out


@block
def accepted(*, groups: Sequence[RolloutGroup], language: float = 1.0) -> list[Example]:
    """The right trajectories of another model, where `language` is not 0 the readable ones of them: rejection sampling.

    By the parts right and mixed of their rewards; a reward without these is of right ones where it is at least 1.
    """
    of = {at.name: score for g in groups for at, score in g.scores["reward"].items()}
    right = [e for e in of_another_model(groups=groups) if of[e.name].parts.get("right", of[e.name].value or 0.0) >= 1]
    return [e for e in right if not (language and of[e.name].parts.get("mixed"))]


deepseek_r1.claim = Claim(
    (
        premise("accuracy", "zero", "start", by=0.2, fails_at=0.9),  # RL with rules alone learns to reason
        premise("late:reward/mixed", "zero", 0.2, fails_at=0.1),  # in answers that mix languages
        mechanism("late:reward/mixed", "self", "no_language", relation="<", by=0.1, fails_at=0.05),
        outcome("late:reward/mixed", "self", "zero", relation="<", scale="ratio", by=0.8, fails_at=0.0),
        outcome("accuracy", "self", "zero", relation=">=", by=0.02, fails_at=1.0),
        outcome("length", "zero", "start", scale="ratio", by=0.1, fails_at=1e6),  # and thinks longer, by itself
        outcome("auc", "self", "no_cold", by=0.03, fails_at=0.98),
        outcome("accuracy", "self", "no_sft", relation=">=", by=0.02, fails_at=1.0),
    ),
    arms={
        "zero": "deepseek_r1_zero",
        "no_language": ("deepseek_r1", {"language": 0.0}),
        "no_cold": ("deepseek_r1", {"cold_steps": 0}),
        "no_sft": ("deepseek_r1", {"sft_steps": 0}),
    },
    regime="bilingual",
    first_seed=300,
    corrected="on seeds 200 to 207 the format was not paid for: does not hold here",
    idea=("cold.*", "reason.*", "sft.*", "all.reward*", "weights.*", "models.*"),
    because="a few readable demonstrations and a reward for their language keep readable what RL finds, and what it"
    " finds can be taught",
)
