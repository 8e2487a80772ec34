"""Search Self-play: a proposer of questions and a solver, one policy."""

from __future__ import annotations

from ...core import Check, Claim, Method, Stage, Term, Update, method
from ...credit.baseline import norm
from ...credit.compose import each
from ...curriculum.proposals import propose_check_solve, proposing
from ...objective.kl import kl
from ...objective.likelihood import nll
from ...objective.policy import clipped_ratio
from ...objective.schedules import cosine
from ...objective.weigh import token_mean
from ...reward.proposals import proposer_and_solver
from ...rollout.propose import from_evidence, propose, shown
from ...rollout.search import search_agent


@method(
    family="selfplay",
    paper="2510.18821",
    catalogue=2,
    claim=Claim(
        (
            Check("accuracy", "self", "start", by=0.0),
            Check("accuracy", "self", "fixed", by=0.0),
            Check("late:reward/true", "self", "no_check", by=0.0),
            Check("accuracy", "self", "no_check", by=0.0),
            Check("late:reward/hard", "self", 0.05),
            Check("late:reward/hard", "self", 0.95, relation="<"),
        ),
        arms={"fixed": ("ssp", {"fixed": True}), "no_check": ("ssp", {"check": False})},
        task="factworld",
        steps=300,  # 240 of them are the first stage
        because="a proposer that is paid for what its solver fails, held to questions with evidence, keeps asking what is just being learned",
    ),
)
def ssp(
    groups: int = 16,
    rollouts: int = 5,
    check: bool = True,
    fixed: bool = False,
    noise: int = 2,
    teach: int = 240,
    beta: float = 0.01,
    high: float = 0.285,
) -> Method:
    """Search self-play: from an answer alone the policy searches out a question, checks that its evidence answers it, and answers it by searching.

        proposer r = 1 - mean success, A = r (a group of one);  solver r = exact match, GRPO       clip(r, 0.8, 1.285), KL k3 to the reference

    Lu et al. 2025, sections 3.1 to 3.4 and algorithm 1: the same weights are updated twice a step, on the proposer's and on the solver's
    tokens; what was retrieved is nobody's. Chosen for tiny models: a first stage of `teach` steps shows how to propose and how to read
    evidence, on demonstrations made from the corpus alone (the paper's models can do both unasked), beside those of the warm start; the
    rules ask for one search and four words, not two and ten, and the check adds the evidence of two others, not four. check=False leaves the
    check out; fixed: the proposer does not learn.
    """
    term = clipped_ratio(high=high)
    proposer = Update(("policy",), (Term(term, on=("propose",), weigh=token_mean()),))
    regular = (Term(kl(), weigh=token_mean(), coef=beta),) if beta else ()
    solver = Update(("policy",), (Term(term, weigh=token_mean()), *regular))
    taught = Stage(
        name="teach",
        select=proposing(noise=noise),
        programs={"main": shown()},
        reward=(),
        credit=(each(),),
        updates=(Update(("policy",), (Term(nll(), weigh=token_mean()),), lr=cosine(start=1e-3, stop=1e-5, steps=teach)),),
        groups=32,
        rollouts=1,
        data=True,
        until=teach,
    )
    play = Stage(
        name="play",
        select=propose_check_solve(check=check, noise=noise),
        programs={"main": search_agent(), "propose": propose(), "check": from_evidence()},
        reward=(proposer_and_solver(),),
        credit=(each(), norm(singleton="raw")),
        updates=(solver,) if fixed else (proposer, solver),
        groups=groups,
        rollouts=rollouts,
        enter={"ref": "policy"} if beta else {},
    )
    return Method(stages=(taught, play) if teach else (play,))
