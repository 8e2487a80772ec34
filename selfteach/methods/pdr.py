"""PDR, parallel-distill-refine (Madaan et al. 2025, arXiv 2510.01123): a policy as an operator that improves drafts.

Drafts are sampled in parallel and distilled into a workspace of bounded length, from which the next round begins; the
last round has one answer. So a context stays short however much is thought. A policy that answers so is trained so.

    s_i ~ pi(. | x, C_{r-1}), i = 1..M;   C_r = D(x, s_1..s_M), at most kappa tokens;   M = 1 in the last round
    J = E R(x, y) + E_C E_{y ~ pi(. | x, C)} R(x, y),   no gradient through C          operator-consistent RL
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Literal

from ..core import (
    BadValue,
    Claim,
    Method,
    Ref,
    RolloutContext,
    RolloutGroup,
    RolloutRequest,
    TaskSource,
    block,
    mechanism,
    method,
    outcome,
    premise,
    stateful,
)
from ..core.answers import canonical
from ..curriculum.select import next_tasks
from ..rollout.attempts import answer_in, without_thought, workspace_prompt
from ..rollout.single import single
from .grpo import grpo

Distil = Literal["random_k", "top_k", "summary"]
SUMMARISE = "Summarise the solutions above: where they agree, where they contradict each other, what is still open."


@method(family="efficiency", paper="2510.01123", catalogue=343)
def pdr(
    groups: int = 8,
    rollouts: int = 8,
    share: float = 1.0,
    drafts: int = 4,
    rounds: int = 2,
    distil: Distil = "random_k",
    keep: int = 4,
    kappa: int = 64,
    beta: float = 0.0,
) -> Method:
    """GRPO on questions, and on the same questions behind a workspace of drafts: as the policy will be asked.

        round r:   M drafts, each from C_{r-1};   C_r: `keep` of their solutions, or a summary; at most kappa tokens
        decode:    pdr   `rounds` rounds, of `drafts` drafts each and then one answer
                   refine   as many rounds of one draft (sequential refinement, SR)

    Madaan et al. 2025, sections 2 and 3, as described by others; no code is released. distil: random_k, `keep` drafts
    at random, others for each answer; top_k, those whose answer has the most votes, the same for all; summary, a text
    that the policy writes of them all, which no reward reaches. Of a draft only what follows its thought is kept. A
    share of the step's questions is asked again, `rollouts` times, behind one round of drafts; 0 is GRPO. Both parts of
    the objective weigh the same. Chosen here: drafts are the first of the question's own answers of this step, which
    saves sampling others, and the loss is GRPO's. length+pdr counts all tokens; the longest way through them is at
    most `rounds` answers.
    """
    if kappa < keep:
        raise BadValue(f"pdr: kappa must be at least keep, a token for each of {keep} solutions, not {kappa}")
    how: dict[str, Any] = {"drafts": drafts, "distil": distil, "keep": keep, "kappa": kappa}
    return (
        grpo(groups=groups, rollouts=rollouts, beta=beta)
        .replace(select=answers_and_refinements(share=share), programs={"main": single(), "refine": refinement(**how)})
        .override(
            decode={
                "main": single(),
                "pdr": improving_rounds(rounds=rounds, **how),
                "refine": improving_rounds(rounds=rounds, **{**how, "drafts": 1}),
            }
        )
    )


@block
@stateful(int)
def answers_and_refinements(
    *,
    n: int,
    rollouts: int,
    finished_rounds: list[list[RolloutGroup]],
    source: TaskSource,
    seed: int,
    state: int,
    share: float = 1.0,
    program: str = "refine",
) -> tuple[list[RolloutRequest], int]:
    """The next `n` tasks, then a share of them again, whose `help` holds the places where their answers end (`drafts`).

    The refinements of one question are a group.
    """
    if not finished_rounds:
        return [RolloutRequest(task, rollouts) for task in next_tasks(source, seed, state, n)], state + n
    if len(finished_rounds) > 1:
        return [], state
    again = list[RolloutRequest]()
    for group in finished_rounds[0][: round(share * n)]:
        ends = [t.leaf for _, t in group.learned]
        if ends:
            again.append(RolloutRequest(group.request.task, rollouts, program, help={"drafts": ends}, cause=group.key))
    return again, state


@block
async def refinement(
    *,
    request: RolloutRequest,
    rollout: RolloutContext,
    drafts: int = 4,
    distil: Distil = "random_k",
    keep: int = 4,
    kappa: int = 64,
    stop: tuple[str, ...] = ("</answer>",),
) -> str:
    """One answer from a workspace distilled of the first `drafts` of the request's help."""
    ends = request.help["drafts"][:drafts]
    (prompt,) = await next_prompts(request.task.prompt, rollout, ends, 1, distil, keep, kappa)
    context = rollout.policy.begin(prompt)
    turn = await context.sample(stop=stop)
    context.close()
    return answer_in(turn.text)


@block
async def improving_rounds(
    *,
    request: RolloutRequest,
    rollout: RolloutContext,
    rounds: int = 2,
    drafts: int = 4,
    distil: Distil = "random_k",
    keep: int = 4,
    kappa: int = 64,
    stop: tuple[str, ...] = ("</answer>",),
) -> str:
    """Rounds of drafts, each from a workspace of the round before, and then one answer, which alone is scored.

    rounds: with the last one, so 1 is a single turn; drafts=1: sequential refinement.
    """
    ends, text = list[Ref](), ""
    for number in range(1, rounds + 1):
        count = drafts if number < rounds else 1
        prompts = await next_prompts(request.task.prompt, rollout, ends, count, distil, keep, kappa)
        contexts = [rollout.policy.begin(prompt) for prompt in prompts]
        turns = await asyncio.gather(*(context.sample(stop=stop) for context in contexts))
        for context in contexts:
            context.close(**({} if number == rounds else {"learn": None, "role": "draft"}))
        ends, text = [turn.at for turn in turns], turns[0].text
    return answer_in(text)


async def next_prompts(
    prompt: Any, rollout: RolloutContext, ends: Sequence[Ref], count: int, distil: Distil, keep: int, kappa: int
) -> list[Any]:
    """The prompts of the next `count` answers: the question itself where there are no drafts yet.

    ends: where drafts end. Each of the `keep` solutions in a workspace has at most kappa / keep tokens, its last ones;
    a summary has at most kappa.
    """
    if not ends:
        return [prompt] * count
    most = kappa if distil == "summary" else kappa // keep
    solutions = [solution(rollout, at, most) for at in ends]
    if distil == "summary":
        context = rollout.policy.begin(workspace_prompt(prompt, "".join(solutions), SUMMARISE))
        turn = await context.sample(max_tokens=kappa)
        context.close(learn=None, role="summary")
        return [workspace_prompt(prompt, turn.text)] * count
    if distil == "top_k":
        chosen = [most_voted([answer_in(rollout.text(at)) for at in ends], keep)] * count
    else:
        draw = rollout.random(f"workspace {ends[0].node}")
        size = min(keep, len(ends))
        chosen = [sorted(draw.choice(len(ends), size, replace=False).tolist()) for _ in range(count)]
    return [workspace_prompt(prompt, "".join(solutions[i] for i in rows)) for rows in chosen]


def solution(rollout: RolloutContext, at: Ref, most: int) -> str:
    """What a draft says after its thought, of which its last `most` tokens."""
    whole = without_thought(rollout.text(at))
    end = rollout.decode(rollout.response_ids(at)[-most:])
    return min(whole, end, key=len)


def most_voted(answers: Sequence[str], k: int) -> list[int]:
    """The indices of the k answers that the most others share, in their order; of equals the earlier ones.

    >>> most_voted(["3", "7", "5", "7.0"], 3)
    [0, 1, 3]
    """
    names = [canonical(a) for a in answers]
    ranked = sorted(range(len(names)), key=lambda i: -sum(n == names[i] for n in names))
    return sorted(ranked[:k])


pdr.claim = Claim(
    (
        # before training: of as many tokens in a row, two rounds are worth more than one answer
        premise("accuracy+pdr", "untrained", "accuracy of untrained", by=0.05, fails_at=0.96),
        premise("accuracy+pdr", "standard", 0.95, relation="<", fails_at=0.96),  # it leaves something to learn
        # and two rounds of four drafts more than two of one
        mechanism("accuracy+pdr", "untrained", "accuracy+refine of untrained", by=0.03, fails_at=0.98),
        outcome("accuracy+pdr", "self", "accuracy+pdr of standard", by=0.02, fails_at=0.99),
        outcome("accuracy", "self", "standard", by=0.05, relation=">=", fails_at=1.0),
    ),
    arms={"standard": ("pdr", {"share": 0.0, "groups": 16}), "untrained": ("pdr", {"groups": 8}, {"steps": 0})},
    args={"groups": 8},
    regime="drafted",
    idea=("main.select", "settings.steps"),
    differs={"main.groups": "eight questions asked twice are as many answers as sixteen asked once"},
    because="what will answer from drafts of its own is trained to, beside answering at once",
)
