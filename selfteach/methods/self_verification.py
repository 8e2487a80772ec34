"""Self-Verification (Zhang et al. 2025, arXiv 2506.01369): one policy learns to solve, and to judge what it solved.

Solutions of earlier steps become questions, whether they are right. At test time the policy weighs its own votes.

    verify: r = 2 (1 - c) for a right Yes, 2 c for a right No, 0 for a wrong verdict;  c the share of right solutions
    vote:   argmax_a sum_{i: a_i = a} s_i^alpha,   s_i = pi(Yes | solution i, one greedy rationale)
"""

from __future__ import annotations

import asyncio
import math
import re
from dataclasses import replace
from statistics import fmean
from typing import Any

from ..core import (
    Claim,
    Method,
    Ref,
    RolloutContext,
    RolloutGroup,
    RolloutRequest,
    Score,
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
    reads_last_step,
    stateful,
)
from ..core.blocks import asks_engine
from ..core.scoring import accepts
from ..core.tagged_text import last_between
from ..credit.composers import per_trajectory
from ..curriculum.select import demonstrations, has_mixed_rewards, known_rewards, next_tasks
from ..objective.likelihood import nll
from ..objective.loss_weights import token_mean
from ..reward.answer import exact_match
from ..reward.combine import by_program, weighted
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
    buffer: int = 4,
    dynamic: bool = True,
    form_minibatches: int = 60,
    form_lr: float = 5e-4,
    form_true: float = 0.5,
    least: int = 40,
    penalty: float = 0.5,
    votes: int = 8,
    alpha: float = 1.0,
    instruction: str = VERIFY,
    yes: str = "Yes",
    no: str = "No",
    beta: float = 0.001,
) -> Method:
    """GRPO on questions, and on whether solutions of the last steps are right, with one policy for both.

        solve:   r = 1[right], less `penalty` for a block of code
        verify:  r = 2 (yes (1 - c) + (1 - yes) c) where the verdict is right, else 0
                 less `penalty` for fewer than `least` characters

    Zhang et al. 2025. c is the share of right solutions among those to the same question, so that the verdict which is
    mostly right is paid little; dynamic=False: 1 or 0, which is the same where GRPO divides by a group's deviation.
    Each step `checks` solutions are verified `rollouts` times each, from a buffer that is replaced every `buffer` steps
    by solutions of these (there 60 of 1000 to 2000); all are learned by one GRPO with the KL of the paper, not with its
    entropy bonus. checks=0 or buffer=0 is GRPO. As in the authors' code what is verified has rewards of 1 or 0, in
    groups where they differ. There it is shuffled with the problems, and the penalties are those of a model that writes
    no thoughts, whose characters count here. Decoding `verified`: `votes` solutions, weighed by s^alpha, s the
    probability of Yes after one greedy rationale (alpha is 1 for 7B there, 0.1 for 1.5B); `vote`: alpha=0. Added here:
    a first stage of one step shows the form of a verdict (`form_minibatches` of 64 demonstrations, of whose verdicts a
    share `form_true` is true: 0.5 is a model that cannot judge; the paper's judge a little before they are trained),
    and the words are instruction, yes and no, which a tiny model's tokenizer must have.
    """
    decode = {
        "main": single(),
        "vote": verified_vote(votes=votes, alpha=0.0),
        "verified": verified_vote(votes=votes, alpha=alpha, instruction=instruction, yes=yes),
    }
    solve = grpo(groups=groups, rollouts=rollouts, beta=beta).override(decode=decode)
    if not (checks and buffer):
        return solve
    nlls = (Term(nll(), loss_weights=token_mean()),)
    form = Stage(
        name="form",
        select=demonstrations(),
        programs={"main": show_with_verdict(true=form_true, instruction=instruction, yes=yes, no=no)},
        reward=(),
        credit=(per_trajectory(),),
        updates=(Update(("policy",), nlls, minibatches=form_minibatches, lr=form_lr),),
        groups=64 * form_minibatches,
        rollouts=1,
        until=1,
        data=True,
    )
    verify = verify_own(dynamic=dynamic, least=least, penalty=penalty, instruction=instruction, yes=yes, no=no)
    solved = weighted(parts=((1.0, exact_match()), (-penalty, code_block())))
    both = solve.replace(
        select=solve_and_verify(checks=checks, buffer=buffer),
        programs={"main": single(), "verify": verify},
        reward=(by_program(parts=(("main", solved), ("verify", payoff_from_notes(parts=NOTED)))),),
    )
    return replace(both, stages=(form, both.stage))


@block
@reads_last_step("it verifies solutions of the steps before")
@stateful(lambda: {"taken": 0, "steps": 0, "fresh": [], "buffer": [], "asked": 0})
def solve_and_verify(
    *,
    n: int,
    rollouts: int,
    finished_rounds: list[list[RolloutGroup]],
    source: TaskSource,
    seed: int,
    step: int,
    state: dict[str, Any],
    checks: int = 16,
    buffer: int = 4,
) -> tuple[list[RolloutRequest], dict[str, Any]]:
    """The next `n` tasks, and verdicts on the next `checks` solutions of the buffer, which begins anew at its end.

    After every `buffer` steps it is replaced by random ones of theirs, as many as are verified until the next time. The
    `help` of a request for verdicts: where the solution ends in the run's log (`output`), its reward, and the share of
    its group that was right (`correct`).
    """
    held, taken = state["buffer"], state["taken"]
    asked = [held[(state["asked"] + i) % len(held)] for i in range(min(checks, len(held)))]
    if not finished_rounds:
        tasks = next_tasks(source, seed, taken, n) + [next_tasks(source, seed, s["task"], 1)[0] for s in asked]
        verify = [RolloutRequest(t, rollouts, "verify", help=s) for t, s in zip(tasks[n:], asked, strict=True)]
        return [RolloutRequest(t, rollouts) for t in tasks[:n]] + verify, state
    fresh = [*state["fresh"], *(s for i, g in enumerate(finished_rounds[0][:n]) for s in _solutions(g, taken + i))]
    state = {**state, "taken": taken + n, "steps": state["steps"] + 1, "asked": state["asked"] + len(asked)}
    if state["steps"] % buffer:
        return [], {**state, "fresh": fresh}
    order = random_keys.generator(seed, step, "buffer").permutation(len(fresh))[: checks * buffer]
    return [], {**state, "fresh": [], "buffer": [fresh[int(i)] for i in order], "asked": 0}


def _solutions(group: RolloutGroup, task: int) -> list[dict[str, Any]]:
    """Of a group whose rewards differ, the `task`-th of the run, the solutions whose reward is 1 or 0."""
    if not has_mixed_rewards(group):
        return []
    told, scores = {"task": task, "correct": fmean(v > 0 for v in known_rewards(group))}, group.scores["reward"]
    return [{**told, "output": list(at), "reward": s.value} for at, s in scores.items() if s.value in (0, 1)]


@block
def code_block(*, text: str) -> Score:
    """1 where there is a block of Python code after the thought, else 0.

    >>> [code_block(text=t).value for t in ("```python 1```", "```python 1```</think> 1", "```python 1")]
    [1.0, 0.0, 0.0]
    """
    found = re.search(r"```python.*?```", text.rsplit("</think>", 1)[-1], re.DOTALL) is not None
    return Score(float(found), {"code": float(found)})


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
    told, solution = request.help, rollout.text(Ref(*request.help["output"]))
    context = rollout.policy.begin(judging_prompt(request.task.prompt, solution, instruction))
    turn = await context.sample(stop=("</answer>",))
    said, right = verdict_of(turn.text, yes, no), told["reward"] >= 1.0
    short, agreed = len(turn.text) < least, float(said is right)
    payoff = verdict_reward(said, right, told["correct"], dynamic) - penalty * short
    context.note(payoff=payoff, agreed=agreed, yes=float(said is True), short=float(short))
    context.note(**{"agreed_right" if right else "agreed_wrong": agreed})
    context.close()
    return said


@block
async def show_with_verdict(
    *, request: RolloutRequest, rollout: RolloutContext, true: float = 0.5,
    instruction: str = VERIFY, yes: str = "Yes", no: str = "No",
) -> str:  # fmt: skip
    """A demonstration, and the form of a verdict on it, which is true with this probability."""
    task, text = request.task, request.task.data[0]
    right = accepts(exact_match(), last_between(text, "answer", ""), task)
    says = yes if right == (rollout.random("verdict").random() < true) else no
    verdict = f"<think> check</think><answer> {says}</answer>"
    for prompt, shown in ((task.prompt, text), (judging_prompt(task.prompt, text, instruction), verdict)):
        context = rollout.policy.begin(prompt)
        context.adopt(shown)
        context.finish()
        context.close()
    return text


@block
@asks_engine("raw_logp")
async def verified_vote(
    *,
    request: RolloutRequest,
    rollout: RolloutContext,
    votes: int = 8,
    alpha: float = 1.0,
    instruction: str = VERIFY,
    yes: str = "Yes",
) -> str | None:
    """Sample `votes` solutions and return the answer with the largest sum of s^alpha over those that give it.

    s: the probability of `yes` after one greedy rationale, 0 where no answer follows. alpha=0, or all s 0: most votes.
    """
    sampled = await sample_answers(request, rollout, votes, "policy", ("</answer>",))

    async def belief(text: str) -> float:
        context = rollout.policy.begin(judging_prompt(request.task.prompt, text, instruction))
        turn = await context.sample(stop=("<answer>",), temperature=0.0)
        logp = (await context.score(f" {yes}", want=("raw_logp",)))["raw_logp"].sum()
        context.close(learn=None, role="verifier")
        return math.exp(logp) if turn.text.endswith("<answer>") else 0.0

    beliefs = await asyncio.gather(*(belief(turn.text) for turn in sampled.turns)) if alpha else []
    return sampled.voted([s**alpha for s in beliefs] if any(beliefs) else None)


OWN = {"instruction": "check", "yes": "1", "no": "0", "form_true": 0.7}  # words that its tokenizer knows
self_verification.claim = Claim(
    (
        premise("accuracy+vote", "self", 0.95, by=0.0, relation="<", fails_at=0.97),  # a vote leaves something
        # it learns to tell right from wrong: whoever always says one thing is at 0 in one of these
        mechanism("late:reward/agreed_right", "self", 0.5, by=0.05, fails_at=0.5),
        mechanism("late:reward/agreed_wrong", "self", 0.5, by=0.05, fails_at=0.5),
        outcome("accuracy", "self", "grpo", by=0.03, relation=">=", fails_at=1.0),
        outcome("accuracy+verified", "self", "accuracy+vote of self", by=0.03, fails_at=0.98),
    ),
    arms={"grpo": ("self_verification", {**OWN, "checks": 0})},
    args=OWN,
    settings={"lr": 1e-4, "final_eval_tasks": 420, "final_eval_decoder_samples": 1},  # a vote is of 16 samples
    regime="agreed",
    first_seed=400,
    corrected="on seeds 200 to 207 solutions were verified in their own step, code cost verdicts and not solutions; on "
    "300 to 307 hardly a vote erred in the end, and verdicts began at random: not tested here",
    idea=("form*", "main.select", "main.program*", "main.reward*"),
    because="who learns to verify what it has just solved can weigh its own votes, and solves no worse for it",
)
