"""Self-Verification (Zhang et al. 2025, arXiv 2506.01369): one policy learns to solve, and to judge what it solved.

Solutions of a step become questions of the same step, whether they are right. At test time the policy votes with its
own verdicts.

    solve:  r = 1[right]
    verify: r = 2 (1 - c) for a right Yes, 2 c for a right No, 0 for a wrong verdict;  c the share of right solutions
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from statistics import fmean
from typing import Any

from ..core import (
    Claim,
    Method,
    RolloutContext,
    RolloutGroup,
    RolloutRequest,
    Stage,
    TaskSource,
    Term,
    Update,
    block,
    mechanism,
    method,
    outcome,
    premise,
    random_keys,
    stateful,
)
from ..core.tagged_text import last_between
from ..credit.composers import per_trajectory
from ..curriculum.select import demonstrations, next_tasks
from ..objective.likelihood import nll
from ..objective.loss_weights import token_mean
from ..reward.answer import exact_match
from ..reward.combine import by_program
from ..reward.payoff import payoff_from_notes
from ..rollout.judging import judging_prompt
from ..rollout.single import single
from ..rollout.vote import sample_answers
from .grpo import grpo

VERIFY = "Is the answer above correct? Verify it step by step, and say Yes or No in <answer></answer>."
NOTED = ("agreed", "agreed_right", "agreed_wrong", "yes", "short")


@method(family="selfreward", paper="2506.01369", catalogue=274)
def self_verification(
    groups: int = 16,
    rollouts: int = 8,
    checks: int = 16,
    dynamic: bool = True,
    form_minibatches: int = 60,
    form_lr: float = 5e-4,
    least: int = 40,
    penalty: float = 0.5,
    votes: int = 8,
    verdicts: int = 2,
    instruction: str = VERIFY,
    yes: str = "Yes",
    no: str = "No",
    beta: float = 0.001,
) -> Method:
    """GRPO on questions, and on whether the solutions that were just sampled are right, with one policy for both.

        solve:   r = 1[right]
        verify:  r = 2 (yes (1 - c) + (1 - yes) c) where the verdict is right, else 0
                 less `penalty` each for fewer than `least` characters, and for a block of code

    Zhang et al. 2025. c is the share of right solutions among those to the same question, so that the verdict which is
    mostly right is paid little; dynamic=False: 1 or 0. `checks` solutions of each step, drawn at random, are verified
    `rollouts` times each; all are learned by one GRPO with the KL of the paper. checks=0 is GRPO. Decoding `verified`:
    `votes` solutions, `verdicts` on each, whose share of Yes is the weight of its vote; `vote`: without verdicts. The
    authors' code could not be read; how solutions are drawn is chosen here, and a first stage of one step that shows
    the form of a verdict (`form_minibatches` of 64 demonstrations with random verdicts: no label is seen), which the
    paper's models know. instruction, yes, no: the words, which a tiny model's tokenizer must have.
    """
    decode = {
        "main": single(),
        "vote": verified_vote(votes=votes, verdicts=0),
        "verified": verified_vote(votes=votes, verdicts=verdicts, instruction=instruction, yes=yes),
    }
    solve = grpo(groups=groups, rollouts=rollouts, beta=beta).override(decode=decode)
    if not checks:
        return solve
    form = Stage(
        name="form",
        select=demonstrations(),
        programs={"main": show_with_verdict(instruction=instruction, yes=yes, no=no)},
        reward=(),
        credit=(per_trajectory(),),
        updates=(
            Update(("policy",), (Term(nll(), loss_weights=token_mean()),), minibatches=form_minibatches, lr=form_lr),
        ),
        groups=64 * form_minibatches,
        rollouts=1,
        until=1,
        data=True,
    )
    verify = verify_own(dynamic=dynamic, least=least, penalty=penalty, instruction=instruction, yes=yes, no=no)
    both = solve.replace(
        select=solve_and_verify(checks=checks),
        programs={"main": single(), "verify": verify},
        reward=(by_program(parts=(("main", exact_match()), ("verify", payoff_from_notes(parts=NOTED)))),),
    )
    return replace(both, stages=(form, both.stage))


@block
@stateful(int)
def solve_and_verify(
    *,
    n: int,
    rollouts: int,
    finished_rounds: list[list[RolloutGroup]],
    source: TaskSource,
    seed: int,
    step: int,
    state: int,
    checks: int = 16,
) -> tuple[list[RolloutRequest], int]:
    """The next `n` tasks, then verdicts on `checks` of their solutions, drawn at random.

    The `help` of such a request holds the place where the solution ends (`output`), its reward, and the mean reward of
    its group (`correct`). Solutions whose reward is unknown are not verified.
    """
    if len(finished_rounds) > 1:
        return [], state
    if not finished_rounds:
        return [RolloutRequest(task, rollouts) for task in next_tasks(source, seed, state, n)], state + n
    known: list[RolloutRequest] = []
    for group in finished_rounds[0]:
        scores = {at: s.value for at, s in group.scores.get("reward", {}).items() if s.value is not None}
        for at, value in scores.items():
            told = {"output": at, "reward": value, "correct": fmean(scores.values())}
            known.append(RolloutRequest(group.request.task, rollouts, "verify", help=told, cause=group.key))
    order = random_keys.generator(seed, step, "verify").permutation(len(known))[:checks]
    return [known[int(i)] for i in sorted(order)], state


def verdict_reward(yes: bool | None, right: bool, correct: float, dynamic: bool) -> float:
    """The reward of a verdict on a solution, of whose question a share `correct` was solved (yes None: no verdict).

    >>> [verdict_reward(yes, right, 0.75, True) for yes, right in ((True, True), (False, False), (True, False))]
    [0.5, 1.5, 0.0]
    """
    if yes is not right:
        return 0.0
    return 1.0 if not dynamic else 2 * (1 - correct) if yes else 2 * correct


def verdict_of(text: str, yes: str = "Yes", no: str = "No") -> bool | None:
    """What a verdict says: True for `yes`, False for `no`, None for neither."""
    said = last_between(text, "answer", "").strip(" .").lower()
    return {yes.lower(): True, no.lower(): False}.get(said)


@block
async def verify_own(
    *,
    request: RolloutRequest,
    rollout: RolloutContext,
    dynamic: bool = True,
    least: int = 40,
    penalty: float = 0.5,
    instruction: str = VERIFY,
    yes: str = "Yes",
    no: str = "No",
) -> bool | None:
    """A verdict of the policy on the solution at `output` of the request's help, in a context of its own.

    Notes: payoff (see `self_verification`); agreed, and agreed_right or agreed_wrong by the truth; yes; short.
    """
    told = request.help
    prompt = judging_prompt(request.task.prompt, rollout.text(told["output"]), instruction)
    context = rollout.policy.begin(prompt)
    turn = await context.sample(stop=("</answer>",))
    said, right = verdict_of(turn.text, yes, no), told["reward"] >= 1.0
    short, code = len(turn.text) < least, "```" in turn.text
    payoff = verdict_reward(said, right, told["correct"], dynamic) - penalty * (short + code)
    agreed = float(said is right)
    context.note(payoff=payoff, agreed=agreed, yes=float(said is True), short=float(short))
    context.note(**{"agreed_right" if right else "agreed_wrong": agreed})
    context.close()
    return said


@block
async def show_with_verdict(
    *, request: RolloutRequest, rollout: RolloutContext, instruction: str = VERIFY, yes: str = "Yes", no: str = "No"
) -> str:
    """A demonstration, and the form of a verdict on it: yes or no at random, whatever is true of it."""
    text = request.task.data[0]
    context = rollout.policy.begin(request.task.prompt)
    context.adopt(text)
    context.finish()
    context.close()
    said = yes if rollout.random("verdict").random() < 0.5 else no
    judging = rollout.policy.begin(judging_prompt(request.task.prompt, text, instruction))
    judging.adopt(f"<think> check</think><answer> {said}</answer>")
    judging.finish()
    judging.close()
    return text


@block
async def verified_vote(
    *,
    request: RolloutRequest,
    rollout: RolloutContext,
    votes: int = 8,
    verdicts: int = 2,
    instruction: str = VERIFY,
    yes: str = "Yes",
    stop: tuple[str, ...] = ("</answer>",),
) -> str | None:
    """Sample `votes` solutions and return the answer with the most `yes` in `verdicts` verdicts on each.

    verdicts=0: the answer with the most votes; so too where no solution has a Yes.
    """
    sampled = await sample_answers(request, rollout, votes, "policy", stop)

    async def share(text: str) -> float:
        start = rollout.policy.begin(judging_prompt(request.task.prompt, text, instruction))
        contexts = [start.fork() for _ in range(verdicts)]
        said = await asyncio.gather(*(c.sample(stop=stop) for c in contexts))
        for c in contexts:
            c.close(learn=None, role="verifier")
        return fmean(float(verdict_of(turn.text, yes) is True) for turn in said)

    weights: Any = None
    if verdicts:
        weights = await asyncio.gather(*(share(turn.text) for turn in sampled.turns))
    return sampled.voted(weights if weights and any(weights) else None)


WORDS = {"instruction": "check", "yes": "1", "no": "0"}  # which the regime's tokenizer knows

self_verification.claim = Claim(
    (
        premise("accuracy", "grpo", "start", by=0.1, fails_at=0.95),
        premise("accuracy+vote", "self", 0.95, by=0.0, relation="<", fails_at=0.97),  # a vote leaves something
        # it learns to tell right from wrong: whoever always says one thing is at 0 in one of these
        mechanism("late:reward/agreed_right", "self", 0.5, by=0.05, fails_at=0.5),
        mechanism("late:reward/agreed_wrong", "self", 0.5, by=0.05, fails_at=0.5),
        outcome("accuracy", "self", "grpo", by=0.03, relation=">=", fails_at=1.0),
        outcome("accuracy+verified", "self", "accuracy+vote of self", by=0.03, fails_at=0.98),
        # paid one or nothing, verdicts become what is mostly right: Yes, in the end
        outcome("late:reward/agreed_wrong", "self", "plain", by=0.05, fails_at=0.96),
    ),
    arms={
        "grpo": ("self_verification", {**WORDS, "checks": 0}),
        "plain": ("self_verification", {**WORDS, "dynamic": False}),
    },
    args=WORDS,
    settings={"steps": 40, "final_eval_tasks": 200, "final_eval_decoder_samples": 2},  # a vote is of 16 samples
    regime="unlabelled_wrong",  # whose labels are read here: half of the answers share one error, so that votes err
    idea=("form*", "main.select", "main.program*", "main.reward*"),
    because="who learns to verify what it has just solved can weigh its own votes, and solves no worse for it",
)
