"""MOTIF, modular thinking (Mitra and Ulukus 2025, arXiv 2507.02851): a question is thought through in several rounds.

Each round begins anew from the question and the last round's answer, so a context stays short. Only the first round is
learned: it is worth what comes of it in the end, on average over several continuations by the policy itself.

    R(o_1) = 2 / m sum_{j=1..m} 1[the last round of continuation j is right] + format(o_1),   A = (R - mean R) / std R
"""

from __future__ import annotations

import asyncio

from ..core import (
    Block,
    Claim,
    Method,
    Ref,
    RewardContext,
    RolloutContext,
    RolloutGroup,
    RolloutRequest,
    Sampling,
    Score,
    Scores,
    block,
    mechanism,
    method,
    outcome,
    premise,
)
from ..reward.answer import exact_match, thought_then_answer
from ..reward.answer_verdicts import judge_answers
from ..reward.combine import weighted
from ..rollout.attempts import answer_in, progress_prompt
from .grpo import grpo


@method(family="efficiency", paper="2507.02851", catalogue=364)
def motif(
    groups: int = 16,
    rollouts: int = 8,
    rounds: int = 3,
    continuations: int = 4,
    simulated: bool = True,
    temperature: float = 0.8,
    top_p: float = 0.95,
    outcome: float = 2.0,
    format: float = 1.0,
    beta: float = 0.0,
) -> Method:
    """GRPO on the first of several rounds, rewarded by the outcomes of the rounds that the policy lets follow.

        round k + 1:   pi(. | question, 'Progress in round k: "..."'), what round k said in <answer>
        R = outcome mean_j right_j + format 1[form],   over `continuations` of rounds 2 to `rounds`

    Mitra and Ulukus 2025, sections 3 and 4, and the released code, whose are the words between rounds, eight answers a
    question, four continuations, their temperature and top-p, 2 for a right answer, and no KL penalty (there also rank
    64 LoRA and one question a step). One policy writes all rounds, so that training one is enough. simulated=False:
    the first round is rewarded for its own answer, GRPO as it was. All evaluations are of `rounds` rounds. There 1
    point is given where the right answer stands in the last response outside of its tags, and the form's reward is a
    sum of strict, soft and counted tags, up to 1.5; here a right answer is in its tags, and the form is one thought
    and one answer.
    """
    how = {"rounds": rounds, "temperature": temperature, "top_p": top_p}
    parts = ((outcome, mean_outcome(judge=exact_match())), (format, thought_then_answer()))
    return (
        grpo(groups=groups, rollouts=rollouts, beta=beta)
        .replace(
            programs={"main": first_round(continuations=continuations if simulated else 0, **how)},
            reward=(weighted(parts=parts),),
        )
        .override(decode={"main": in_rounds(rounds=rounds)})
    )


@block
async def first_round(
    *,
    request: RolloutRequest,
    rollout: RolloutContext,
    rounds: int = 3,
    continuations: int = 4,
    temperature: float = 0.8,
    top_p: float = 0.95,
    stop: tuple[str, ...] = ("</answer>",),
) -> str:
    """The first round, which is learned, and `continuations` of it, which are not; its own answer.

    The last round of each continuation has the role `last`, those between are `between`; without a continuation, or
    any round to follow, the first is the last. A turn for each round of each: an episode has 64 at most.
    """
    context = rollout.policy.begin(request.task.prompt)
    turn = await context.sample(stop=stop)
    context.close()
    answer = answer_in(turn.text)
    if rounds > 1:
        sampling = rollout.sampling.replace(temperature=temperature, top_p=top_p)
        following = [later_rounds(request, rollout, answer, rounds, stop, sampling) for _ in range(continuations)]
        await asyncio.gather(*following)
    return answer


@block
async def in_rounds(
    *, request: RolloutRequest, rollout: RolloutContext, rounds: int = 3, stop: tuple[str, ...] = ("</answer>",)
) -> str:
    """The answer of the last of several rounds, each of which begins from the answer of the one before."""
    context = rollout.policy.begin(request.task.prompt)
    turn = await context.sample(stop=stop)
    context.close(learn="main" if rounds == 1 else None)
    return await later_rounds(request, rollout, answer_in(turn.text), rounds, stop, learn="main")


async def later_rounds(
    request: RolloutRequest,
    rollout: RolloutContext,
    answer: str,
    rounds: int,
    stop: tuple[str, ...],
    sampling: Sampling | None = None,
    learn: str | None = None,
) -> str:
    """The answer of the last round after a first one that answered `answer`; learn: the last round's loss stream."""
    for number in range(1, rounds):
        last = number == rounds - 1
        context = rollout.policy.begin(progress_prompt(request.task.prompt, number, answer, last))
        answer = answer_in((await context.sample(sampling, stop=stop)).text)
        context.close(learn=learn if last else None, role="last" if last else "between")
    return answer


@block
async def mean_outcome(
    *, group: RolloutGroup, context: RewardContext, deadline: float, judge: Block | None = None, role: str = "last"
) -> Scores:
    """The share of an episode's trajectories of a role that are right, as the reward of the one that is learned.

    judge: of answers; None: exact_match. Where an episode has none of that role its own answer is judged. One without
    a verdict does not count; without any the reward is unknown. Parts: right, the share; progress, the words of the
    learned answer.
    """
    ends: dict[Ref, list[tuple[Ref, str]]] = {}
    for episode in group.episodes:
        for own in episode.learned:
            last = [t.leaf for t in episode.trajectories if t.role == role and t.status != "limit"]
            ends[own.leaf] = [(at, answer_in(context.text(at))) for at in last or [own.leaf]]
    answers = [pair for pairs in ends.values() for pair in pairs]
    verdicts = await judge_answers(judge, group, answers, context, deadline)
    out: dict[Ref, Score] = {}
    for own, pairs in ends.items():
        known = [v for at, _ in pairs if (v := verdicts[at].value) is not None]
        share = sum(known) / len(known) if known else None
        parts = {"progress": float(len(answer_in(context.text(own)).split()))}
        error = next((e for at, _ in pairs if (e := verdicts[at].error)), None) if share is None else None
        out[own] = Score(share, parts if share is None else {**parts, "right": share}, "", error)
    return {"reward": out}


motif.claim = Claim(
    (
        premise("accuracy", "alone", 0.7, relation="<", fails_at=0.75),  # paid for its own answer it does not learn to
        # the first round says what is left to do
        mechanism("late:reward/progress", "self", "alone", by=1.0, fails_at=1e9),
        outcome("accuracy", "self", "alone", by=0.1, fails_at=0.95),
        outcome("accuracy", "self", "start", by=0.1, fails_at=0.95),
        outcome("accuracy", "self", "one", by=0.03, relation=">=", fails_at=1.0),  # four continuations, or one
    ),
    args={"groups": 8},
    arms={
        "alone": ("motif", {"groups": 8, "simulated": False}),
        "one": ("motif", {"groups": 8, "continuations": 1}),
    },
    regime="rounds",
    idea=("main.program.main",),
    because="a round that is paid for what comes of it learns to leave behind what the next one needs",
)
