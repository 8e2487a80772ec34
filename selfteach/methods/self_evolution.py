"""SELF (Lu et al. 2023, arXiv 2310.00533): a model refines its answers by its own words on them, and learns the result.

It answers, judges the answer in words, answers again, and judges that; what it finds good is its next training set.
Round after round, without labels.

    r ~ pi(. | p),  f ~ pi(. | p, r),  r' ~ pi(. | p, r, f);   kept where pi's words on r' find nothing wrong
    loss = mean over tokens of -log pi(r' | p), and of -log pi on demonstrations of answering, judging, refining
"""

from __future__ import annotations

from typing import Any

from ..core import (
    Claim,
    Method,
    ModelRole,
    RolloutContext,
    RolloutGroup,
    RolloutRequest,
    Score,
    Scores,
    Stage,
    Task,
    TaskSource,
    Term,
    Update,
    WeightSpec,
    block,
    mechanism,
    method,
    outcome,
    premise,
    stateful,
)
from ..core.answers import canonical, majority
from ..core.tagged_text import last_between
from ..credit.composers import per_trajectory
from ..curriculum.select import demonstrations, uniform
from ..objective.likelihood import nll
from ..objective.loss_weights import token_mean
from ..reward.answer import exact_match
from ..rollout.judging import JUDGE, REFINE, judging_prompt, refining_prompt, score_of
from ..rollout.single import read, single
from ..rollout.vote import sample_answers

TEACHER = "teacher"  # the policy as the round began, which makes its training set
STOP = ("</answer>",)


@method(
    family="selfreward",
    paper="2310.00533",
    catalogue=132,
    ignores_reward="what is learned is decided as it is made, by the policy's own words",
)
def self_evolution(
    groups: int = 32,
    rounds: int = 3,
    round_steps: int = 20,
    feedback: bool = True,
    filtered: bool = True,
    restart: bool = True,
    meta: int = 16,
    votes: int = 8,
    judge_instruction: str = JUDGE,
    refine_instruction: str = REFINE,
) -> Method:
    """Rounds of supervised learning from answers that the policy has refined by its own feedback and found good.

        r ~ pi_t-1(. | p),  f ~ pi_t-1(. | p, r),  r' ~ pi_t-1(. | p, r, f);  kept where pi_t-1 gives r' the full score
        loss = mean over the tokens of kept r' after p, and of `meta` demonstrations, of -logp

    Lu et al. 2023, sections 3.1 and 3.2. The meta-skills, feedback and refinement, are among the demonstrations that
    the warm start has learned, and are kept by `meta` of them in each step. A round is `round_steps` steps of `groups`
    questions; restart: each begins with the model that the run starts from, else with that of the last round.
    filtered=False keeps all refined answers; feedback=False learns the majority answer of `votes` direct ones in place
    of a refined one. Known from a description and a review of the paper, not from code. By the review, rounds 2 and 3
    ask questions there that the model made itself, and a restart trains on the meta-skill data, which a stronger model
    wrote, and on the data of all rounds; here all rounds ask the task's questions, a restart is on the current round
    alone with `meta` of the warm start's demonstrations in each step, and feedback is greedy (chosen here). Decoding
    `refined`: an answer, feedback, a better answer. Logged, by labels that nothing learns from: reward/right_first,
    right_refined, right_kept; reward/kept.
    """
    learn = (Term(nll(), on=("main", "meta"), loss_weights=token_mean()),)
    asked = {"judge_instruction": judge_instruction, "refine_instruction": refine_instruction}
    make: Any = refine_own(filtered=filtered, **asked) if feedback else vote_own(votes=votes)
    stage = Stage(
        name="evolve",
        select=with_demonstrations(batch=meta),
        programs={"main": make, "meta": read(learn="meta")},
        reward=(self_made(),),
        credit=(per_trajectory(roles=("policy",)),),
        updates=(Update(("policy",), learn),),
        groups=groups,
        rollouts=1,
        until=round_steps,
        enter={TEACHER: "policy", **({"policy": "ref"} if restart else {})},
        reset=("policy",),
    )
    return Method(stages=(stage,), repeat=rounds, decode={"main": single(), "refined": refined(**asked)}).override(
        weights={TEACHER: WeightSpec("start")}, models={TEACHER: ModelRole((TEACHER,))}
    )


@block
@stateful(lambda: {"asked": 0, "shown": 0})
def with_demonstrations(
    *,
    n: int,
    rollouts: int,
    finished_rounds: list[list[RolloutGroup]],
    source: TaskSource,
    seed: int,
    state: dict[str, int],
    batch: int = 16,
) -> tuple[list[RolloutRequest], dict[str, int]]:
    """The next `n` tasks, and `batch` demonstrations for the program `meta`."""
    given: dict[str, Any] = {"rollouts": rollouts, "finished_rounds": finished_rounds, "source": source}
    tasks, asked = uniform(n=n, seed=seed, state=state["asked"], **given)
    shown, taken = demonstrations(n=batch, state=state["shown"], **given)
    return [*tasks, *(RolloutRequest(r.task, 1, "meta") for r in shown)], {"asked": asked, "shown": taken}


async def _ask(rollout: RolloutContext, role: str, prompt: Any, **sampling: Any) -> str:
    """What a model says after a prompt, in a context that is not learned."""
    context = rollout.model_role(role).begin(prompt)
    turn = await context.sample(stop=STOP, **sampling)
    context.close(learn=None, role="made")
    return turn.text


async def _refine(rollout: RolloutContext, role: str, prompt: Any, judge: str, refine: str) -> tuple[str, Any]:
    """A model's first answer to a prompt, and the prompt for a better one, with its feedback."""
    first = last_between(await _ask(rollout, role, prompt), "answer", "") or ""
    words = await _ask(rollout, role, judging_prompt(prompt, first, judge), temperature=0.0)
    return first, refining_prompt(prompt, first, words, judge, refine)


def _right(answer: str, task: Task) -> float:
    return float((exact_match(answer=answer, task=task).value or 0.0) >= 1.0)


@block
async def refine_own(
    *,
    request: RolloutRequest,
    rollout: RolloutContext,
    filtered: bool = True,
    judge_instruction: str = JUDGE,
    refine_instruction: str = REFINE,
) -> str:
    """The teacher's answer to its own feedback, adopted as an answer to the question; learned where it is found good.

    Found good is what the teacher gives the full score; what stands in no tags is never learned. Returns it.
    """
    task = request.task
    first, again = await _refine(rollout, TEACHER, task.prompt, judge_instruction, refine_instruction)
    text = await _ask(rollout, TEACHER, again)
    answer = last_between(text, "answer", None)
    kept = answer is not None
    if answer is not None and filtered:
        verdict = await _ask(rollout, TEACHER, judging_prompt(task.prompt, answer, judge_instruction), temperature=0.0)
        kept = score_of(verdict) == 1.0
    _adopt(rollout, task, text, answer or "", kept, right_first=_right(first, task))
    return answer or ""


@block
async def vote_own(*, request: RolloutRequest, rollout: RolloutContext, votes: int = 8) -> str:
    """The first of the teacher's direct answers that says what most of them say, adopted as the one to learn."""
    sampled = await sample_answers(request, rollout, votes, TEACHER, STOP)
    for context in sampled.contexts:
        context.close(learn=None, role="made")
    voted, _ = majority(sampled.answers)
    place = next((i for i, a in enumerate(sampled.answers) if canonical(a) == voted), 0)
    text, answer = sampled.turns[place].text, sampled.answers[place]
    _adopt(rollout, request.task, text, answer, True, right_first=_right(sampled.answers[0], request.task))
    return answer


def _adopt(rollout: RolloutContext, task: Task, text: str, answer: str, kept: bool, right_first: float) -> None:
    """Adopt a text as the answer to a task, learned where it is kept, with the notes that `self_made` reads."""
    right = _right(answer, task)
    context = rollout.policy.begin(task.prompt)
    context.adopt(text)
    context.note(kept=float(kept), right_first=right_first, right_refined=right)
    if kept:
        context.note(right_kept=right)
    context.close(role=None if kept else "refused")


@block
async def refined(
    *,
    request: RolloutRequest,
    rollout: RolloutContext,
    judge_instruction: str = JUDGE,
    refine_instruction: str = REFINE,
) -> str:
    """An answer of the policy, its feedback, and its better answer, which is returned."""
    _, again = await _refine(rollout, "policy", request.task.prompt, judge_instruction, refine_instruction)
    context = rollout.policy.begin(again)
    turn = await context.sample(stop=STOP)
    context.close()
    return last_between(turn.text, "answer", turn.text.strip())


@block
def self_made(*, group: RolloutGroup) -> Scores:
    """1 where an answer was kept, else 0, with what was noted of it as parts; 1 of a demonstration."""
    out: Scores = {"reward": {}}
    names = ("kept", "right_first", "right_refined", "right_kept")
    for tree, t in [(e.tree, t) for e in group.episodes for t in e.trajectories if t.role != "made"]:
        parts = {n: v for n in names if (v := tree.number(t.leaf.node, n)) is not None}
        out["reward"][t.leaf] = Score(parts.get("kept", 1.0), parts)
    return out


self_evolution.claim = Claim(
    (
        # it refines better than it answers, and tells which of it is right
        premise(
            "mean:reward/right_refined", "unfiltered", "mean:reward/right_first of unfiltered", by=0.1, fails_at=1.0
        ),
        mechanism("mean:reward/right_kept", "self", "mean:reward/right_refined of self", by=0.05, fails_at=1.0),
        outcome("accuracy", "self", "start", by=0.1, fails_at=0.95),
        outcome("accuracy", "self", "one_round", by=0.03, fails_at=0.98),
        outcome("accuracy", "self", "unfiltered", by=0.03, fails_at=0.98),
        outcome("accuracy", "self", "voted", by=0.03, fails_at=0.98),
        outcome("accuracy+refined", "self", "accuracy of self", by=0.02, fails_at=0.99),
    ),
    arms={
        "one_round": ("self_evolution", {"groups": 32, "rounds": 1}),
        "unfiltered": ("self_evolution", {"groups": 32, "filtered": False}),
        "voted": ("self_evolution", {"groups": 32, "feedback": False}),
    },
    args={"groups": 32},
    regime="refined_by_itself",
    idea=("evolve.program.main", "repeat"),
    because="words on what is wrong lead to better answers, and to answer like them at once can be learned",
)
