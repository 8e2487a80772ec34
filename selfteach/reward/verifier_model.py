"""Rewards by a language model that verifies answers, alone or beside a rule; and how often each of them errs."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from typing import Literal

import numpy as np

from ..core import BadValue, Block, Episode, Ref, RewardContext, RolloutGroup, Score, Scores, block
from ..core.answers import for_verifier, reference_answer
from .answer_verdicts import judge_groups
from .likelihood import token_logps


@block
async def by_verifier(
    *,
    group: RolloutGroup,
    context: RewardContext,
    deadline: float,
    rule: Block | None = None,
    judge: Block | None = None,
    mode: Literal["addon", "only", "mixed"] = "addon",
    soft: bool = False,
    weight: float = 1.0,
    question: bool = False,
    model_role: str = "verifier",
) -> Scores:
    """What a rule and a model that verifies answers make of an answer; the model writes 1 or 0 after reading it.

        v      = p(1 | [question,] reference, answer), or with soft=False whether that is above 1/2; 0 without an answer
        addon  1 where the rule accepts, else weight v      (only then the model is asked)
        only   v
        mixed  weight v + (1 - weight) [the rule accepts]

    `judge` (None: exact_match), who knows the truth, is no part of the reward; parts by it: right; missed, right and
    rewarded with less than 1/2; fooled, wrong and rewarded with more. Error rates, given for the answers that they are
    rates of: rule_misses (right ones), verifier_misses and verifier_fooled (right and wrong ones that it was asked
    about). Further parts: asked. Raises BadValue without a rule, except in the mode `only`.
    """
    if mode not in ("addon", "only", "mixed"):
        raise BadValue(f"by_verifier: mode must be addon, only or mixed, not {mode!r}")
    if rule is None and mode != "only":
        raise BadValue(f"by_verifier needs rule=, such as same_text(), in the mode {mode!r}")
    truth = await judge_groups(judge, [group], context, deadline)
    ruled = await judge_groups(rule, [group], context, deadline) if rule is not None else {}
    places = [(e, t.leaf) for e in group.episodes for t in e.trajectories if t.leaf in truth]

    async def one(episode: Episode, at: Ref) -> tuple[Ref, Score]:
        right = truth[at].value
        accepts = _accepts(ruled, at)
        if right is None or (rule is not None and accepts is None):
            return at, Score(None, truth[at].parts, truth[at].why, truth[at].error)
        asked = not (mode == "addon" and accepts) and episode.answer is not None
        p = await probability_right(context, episode, group, model_role, question) if asked else 0.0
        v = p if soft else float(p > 0.5)
        if mode == "addon":
            value = 1.0 if accepts else weight * v
        else:
            value = v if mode == "only" else weight * v + (1 - weight) * float(bool(accepts))
        return at, Score(value, _errors(right >= 1.0, value, p, asked, accepts))

    return {"reward": dict(await asyncio.gather(*(one(e, at) for e, at in places)))}


async def probability_right(
    context: RewardContext,
    episode: Episode,
    group: RolloutGroup,
    model_role: str = "verifier",
    question: bool = False,
) -> float:
    """The probability of the verdict 1 of a model that has read reference answer and answer, as `read_judgement`."""
    task = group.request.task
    tokenizer = context.tokenizer
    read = for_verifier(reference_answer(task), str(episode.answer))
    path = context.path(episode.trajectories[0].leaf)
    ids = np.concatenate([path.ids[: path.prompt], tokenizer.encode(read)]) if question else tokenizer.render(read)
    return math.exp(float((await token_logps(context, episode, model_role, ids, tokenizer.encode("1"))).sum()))


def _accepts(ruled: Mapping[Ref, Score], at: Ref) -> bool | None:
    """Whether the rule accepts the answer at a place; None where it has no verdict."""
    value = ruled[at].value if at in ruled else None
    return None if value is None else value >= 1.0


def _errors(right: bool, value: float, p: float, asked: bool, accepts: bool | None) -> dict[str, float]:
    """The parts of a score that say who was right about the answer."""
    parts = {
        "right": float(right),
        "asked": float(asked),
        "missed": float(right and value < 0.5),
        "fooled": float(not right and value > 0.5),
    }
    if right and accepts is not None:
        parts["rule_misses"] = float(not accepts)
    if asked:
        parts |= {"verifier_misses": float(p <= 0.5)} if right else {"verifier_fooled": float(p > 0.5)}
    return parts
