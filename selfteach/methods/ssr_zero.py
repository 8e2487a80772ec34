"""SSR-Zero (Yang et al. 2025, arXiv 2505.16637): translation is learned from scores that the policy gives itself.

After each answer the policy, as it is, judges it without a reference; GRPO is rewarded by that score. With a metric
beside it is SSR-X-Zero.

    r = 0 without the format, else (1 - share) score / 100 + share metric
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any, Literal

from ..core import (
    BadValue,
    Block,
    Claim,
    Method,
    Ref,
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
)
from ..core.scoring import score
from ..core.tagged_text import last_between
from ..reward.answer import exact_match
from ..reward.overlap import word_f1
from ..rollout.judging import JUDGE, judging_prompt, score_of
from ..rollout.single import single
from .grpo import grpo

Judge = Literal["self", "start"]


@method(family="selfreward", paper="2505.16637", catalogue=17)
def ssr_zero(
    groups: int = 16,
    rollouts: int = 8,
    judge: Judge = "self",
    share: float = 0.0,
    sees_question: bool = True,
    instruction: str = JUDGE,
    temperature: float = 0.0,
    beta: float = 0.0,
) -> Method:
    """GRPO rewarded by the score that the policy gives its own answer, without a reference or a label.

        r = 0 where the answer stands in no tags, else (1 - share) score / 100 + share F1 of the words

    Yang et al. 2025: the judge is the policy with its weights of this step and gets no gradient; a score that cannot be
    read is 0. judge="start": the model that the run starts from, an external judge of the same size. share: of a metric
    that knows the reference (SSR-X-Zero; there COMET, here the F1 of words), 1 is the metric alone. sees_question=False
    shows the judge the answer alone, so that it cannot judge. The authors have released models and no code: how the
    metric is added and the judge's greedy decoding are chosen here. Tasks say in which words they are judged by
    `instruction`; a tiny model must have been shown judgements (the task `translation`).

    Logged: reward/score, reward/adequacy (the truth, which no reward reads), reward/inflation, their difference, and
    reward/agreement, how often of two answers the better one has the higher score.
    """
    ask = answer_and_judge(
        model_role="ref" if judge == "start" else "policy",
        sees_question=sees_question,
        instruction=instruction,
        temperature=temperature,
    )
    return (
        grpo(groups=groups, rollouts=rollouts, beta=beta)
        .replace(
            programs={"main": single() if share == 1.0 else ask},
            reward=(own_score(metric=word_f1() if share else None, share=share),),
        )
        .override(decode={"main": single()})
    )


@block
async def answer_and_judge(
    *,
    request: RolloutRequest,
    rollout: RolloutContext,
    model_role: str = "policy",
    sees_question: bool = True,
    instruction: str = JUDGE,
    temperature: float = 0.0,
    stop: tuple[str, ...] = ("</answer>",),
) -> str:
    """One sampled turn as in `single`, and a judgement of its answer in a context of its own, which is not learned.

    Notes at the answer: `score`, from 0 to 1, 0 where the judge gave none. An answer without tags is not judged.
    """
    context = rollout.policy.begin(request.task.prompt)
    turn = await context.sample(stop=stop)
    answer = last_between(turn.text, "answer", None)
    if answer is None:
        context.close()
        return turn.text.strip()
    question: Any = request.task.prompt
    if not sees_question:
        question = "" if isinstance(question, str) else []
    judging = rollout.model_role(model_role).begin(judging_prompt(question, answer, instruction))
    said = await judging.sample(stop=stop, temperature=temperature)
    found = score_of(said.text)
    context.note(score=found or 0.0, judged=float(found is not None))
    judging.close(learn=None, role="judge")
    context.close()
    return answer


@block
async def own_score(
    *, group: RolloutGroup, context: RewardContext, deadline: float, metric: Block | None = None, share: float = 0.0
) -> Scores:
    """The score that the program noted, with a metric in a share of it; 0 where the answer stands in no tags.

        r = (1 - share) score + share metric

    Parts: score, metric; adequacy, by the task's judge of that name, else whether the answer is right; inflation, score
    less adequacy; agreement, of the group. Raises BadValue where a share is asked of no metric.
    """
    if share and metric is None:
        raise BadValue("own_score: a share of no metric; give one, as in own_score(metric=word_f1(), share=0.5)")
    task = group.request.task
    truth_of = task.judges.get("adequacy") or exact_match()
    metrics = (await score(metric, [group], context, deadline)).get("reward", {}) if metric is not None else {}
    values: dict[Ref, float] = {}
    parts: dict[Ref, dict[str, float]] = {}
    for episode in group.episodes:
        for leaf in [t.leaf for t in episode.learned]:
            truth = Score.of(truth_of(answer=episode.answer, task=task)).value or 0.0
            formed = "</answer>" in context.text(leaf)
            parts[leaf] = {"adequacy": truth, "formed": float(formed)}
            own, worth = episode.tree.number(leaf.node, "score"), metrics[leaf].value if leaf in metrics else None
            if own is not None:
                judged = episode.tree.number(leaf.node, "judged") or 0.0
                parts[leaf] |= {"score": own, "inflation": own - truth, "judged": judged}
            if worth is not None:
                parts[leaf]["metric"] = worth
            values[leaf] = (1 - share) * (own or 0.0) + share * (worth or 0.0) if formed else 0.0
    told = [p for p in parts.values() if "score" in p]
    known = agreement([(p["score"], p["adequacy"]) for p in told])
    for p in told if known is not None else ():
        p["agreement"] = known or 0.0
    return {"reward": {leaf: Score(value, parts[leaf]) for leaf, value in values.items()}}


def agreement(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Of (score, truth) of several answers: how often of two with different truths the better one has the higher score.

    Equal scores count one half; None where no truths differ.

    >>> agreement([(0.5, 0.0), (0.5, 1.0), (0.8, 1.0), (0.6, 0.5)])  # of five pairs one equal, one turned round
    0.7
    """
    told = [(a[0] - b[0]) * (1 if a[1] > b[1] else -1) for a, b in combinations(pairs, 2) if a[1] != b[1]]
    return sum(1.0 if d > 0 else 0.5 if d == 0 else 0.0 for d in told) / len(told) if told else None


ssr_zero.claim = Claim(
    (
        premise("accuracy", "gold", "start", by=0.2, fails_at=0.9),  # there is something to learn, with references
        premise("early:reward/agreement", "self", 0.6, by=0.0, fails_at=0.55),  # and the start can judge it
        mechanism("late:reward/score", "self", "early:reward/score of self", by=0.1, fails_at=1.0),
        mechanism("late:reward/inflation", "self", "with_metric", by=0.05, fails_at=1.0),  # it is paid for blind spots
        # what it pays for is mostly true, and it is true as long as the judge is one
        outcome("late:reward/adequacy", "self", "early:reward/adequacy of self", by=0.05, fails_at=1.0),
        outcome("late:reward/adequacy", "self", "blind", by=0.2, fails_at=0.9),
        outcome("late:reward/adequacy", "self", "external", by=0.05, relation=">=", fails_at=1.0),
        # a metric sees what the judge overlooks, and the judge what the metric does
        outcome("accuracy", "with_metric", "self", by=0.1, fails_at=0.95),
        outcome("accuracy", "with_metric", "metric", by=0.1, fails_at=0.95),
    ),
    arms={
        "gold": "grpo",
        "external": ("ssr_zero", {"judge": "start"}),
        "blind": ("ssr_zero", {"sees_question": False}),
        "with_metric": ("ssr_zero", {"share": 0.5}),
        "metric": ("ssr_zero", {"share": 1.0}),
    },
    regime="judged_by_itself",
    idea=("main.program*", "main.reward*", "decode.main"),
    because="a policy that can judge what it cannot yet do well rewards what is good, without a reference",
)
