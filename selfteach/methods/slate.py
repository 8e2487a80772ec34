"""SLATE, step-level advantages from truncated exploration (Samarinas et al. 2026, arXiv 2602.23440).

At each step of a search agent k continuations of one shared prefix are sampled, each only up to its query or answer. A
judge scores them, they are compared with each other alone, and one is gone on from, the better ones more often.

    A_j = (r_j - mean_k r) / std_k r    on the tokens of that step;   r = thought + query or answer, each -1, 0 or 1
    the sibling that is gone on from ~ softmax(A / eta)
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core import (
    Claim,
    Home,
    Method,
    RewardContext,
    RolloutContext,
    RolloutGroup,
    RolloutRequest,
    Score,
    Scores,
    Task,
    block,
    mechanism,
    method,
    outcome,
    premise,
)
from ..core.answers import f1, gold_answers
from ..core.search_record import facts_of, searches_of
from ..core.tagged_text import last_between
from ..credit.advantages import norm
from ..credit.composers import per_trajectory
from ..reward.agent_record import sub_question
from ..reward.answer import exact_match
from ..reward.payoff import payoff_from_notes
from ..rollout.search import RETRY, append_information, search_agent, self_search
from .search_r1 import search_r1

HOPS = {"ways": (0.1, 0.0, 0.15, 0.15, 0.25, 0.35), "hops": (2, 3)}
PARTS = ("thought", "query", "answer", "searches")


@method(family="search", paper="2602.23440", catalogue=53, home=Home("factworld", 40, HOPS))
def slate(
    groups: int = 48,
    rollouts: int = 5,
    turns: int = 4,
    truncated: bool = True,
    judge: bool = True,
    early: float = 0.1,
    eta: float = 0.7,
    beta: float = 0.001,
) -> Method:
    """GRPO over the continuations of one step: siblings from a shared prefix, scored by a judge of steps.

        r_j = thought + query                                     of a search (their eq. 3)
            = thought + answer + early (turns - t) / turns        of an answer at step t, from 0 on (eq. 4)
        A_j = (r_j - mean_k r) / std_k r, on the tokens of step t alone (eq. 5)

    Samarinas et al. 2026, from their code: rollouts is k, turns their budget B, and early lambda, whose bonus every
    answer has, right or wrong. The sibling that is gone on from is drawn by softmax(A / eta); eta=0: the best. An
    answer that is forced after B steps is neither scored nor learned. Their judge is a language model that is shown the
    gold answer for answers alone: it judges thoughts and queries from the context, before retrieval. Here it is a rule
    by the task's sub-questions and facts (`step_scores`), a stronger oracle. A turn of theirs is made to be a query or
    an answer; here one that is neither costs 1 and ends the episode. Their released trainer writes the data of steps
    and never reads them, so the objective of a step is the paper's, here averaged over tokens. Under rewards that add
    up over T steps the noise of the other T - 1 steps is not in A_j, so its variance is up to T times smaller.
    truncated=False: whole episodes with the sum of the same scores, compared with each other (GRPO). judge=False: right
    answers alone are worth anything. Episodes are sampled whole in evaluation.
    """
    engine = search_agent(turns=turns, invalid=RETRY)
    if not truncated:
        return search_r1(groups=groups, rollouts=rollouts, turns=turns, beta=beta).replace(
            reward=(sum_of_steps(turns=turns, early=early, judge=judge),),
        )
    program = truncated_steps(k=rollouts, turns=turns, early=early, judge=judge, eta=eta)
    return (
        search_r1(groups=groups, rollouts=1, turns=turns, beta=beta)
        .replace(
            programs={"main": program},
            reward=(payoff_from_notes(parts=PARTS),),
            credit=(per_trajectory(turns=1), norm()),
        )
        .override(decode={"main": engine, "search": engine, "self": self_search()})
    )


@block
async def truncated_steps(
    *,
    request: RolloutRequest,
    rollout: RolloutContext,
    answerer: str = "search",
    k: int = 5,
    turns: int = 4,
    early: float = 0.1,
    judge: bool = True,
    eta: float = 0.7,
) -> str | None:
    """Up to `turns` steps of `k` continuations each, of which one is gone on from; after them an answer is forced.

    Each continuation is a trajectory of its own, compared with its siblings; the notes at its end are `payoff`, its
    score (see `slate`), and what it is made of.
    """
    task, draw = request.task, rollout.random("the continuation that is gone on from")
    context, asked, found = rollout.policy.begin(task.prompt), list[str](), list[str]()
    for step in range(turns):
        siblings = [context.fork() for _ in range(k)]
        said = await asyncio.gather(*(s.sample(stop=("</search>", "</answer>")) for s in siblings))
        payoffs = list[float]()
        for sibling, turn in zip(siblings, said, strict=True):
            parts = step_scores(turn.text, task, asked, found)
            payoffs.append(worth(parts, step, turns, early, judge))
            sibling.note(payoff=payoffs[-1], searches=len(asked) + ("query" in parts), **parts)
            sibling.close(key=f"{rollout.number}/{step}")
        chosen = int(draw.choice(k, p=chances(payoffs, eta)))
        context, turn = siblings[chosen], said[chosen]
        query = turn.between("search")
        if query is None or turn.between("answer") is not None or turn.status == "limit":
            return turn.between("answer")
        before = context.at
        await append_information(rollout, context, turn, answerer)
        asked.append(query)
        found.append(rollout.text(context.at).removeprefix(rollout.text(before)))
    context.append("<answer>")
    last = await context.sample(stop=("</answer>",))  # not closed: no trajectory has it, so nothing scores or learns it
    return last_between("<answer>" + last.text, "answer", None)


def chances(payoffs: Sequence[float], eta: float) -> np.ndarray:
    """f64[k]: the chance of each sibling to be gone on from, softmax(A / eta); at eta 0 the best share it.

    >>> chances([2.0, -2.0], 0.7).round(3), chances([1.0, 2.0, 2.0], 0.0)  # A is 0.707 and -0.707
    (array([0.883, 0.117]), array([0. , 0.5, 0.5]))
    """
    values = np.asarray(payoffs, np.float64)
    if not eta:
        return (values == values.max()) / (values == values.max()).sum()
    spread = values.std(ddof=1) if len(values) > 1 else 0.0
    weights = np.exp((values - values.max()) / (spread + 1e-6) / eta)
    return weights / weights.sum()


def step_scores(said: str, task: Task, asked: Sequence[str], found: Sequence[str]) -> dict[str, float]:
    """What a step is worth, by the task's sub-questions: thought, and query or answer, each -1, 0 or 1.

    thought  1: it names what the query asks for, or what is answered; 0: it is closed; -1: there is none
    query    1: it asks for the first fact that is not found yet; 0: for another fact on the way that is not found
             yet; -1: for one that is, for none, or as was asked before
    answer   1: right; 0: partly right, by a word F1 of at least 1/2 with a gold answer (chosen here); -1: wrong
    neither  -1: a step without a query and without an answer

    Raises BadValue for a task without sub-questions.
    """
    thought, query = last_between(said, "think", None), last_between(said, "search", None)
    given = last_between(said, "answer", None)
    if query is not None and given is None:
        facts, told = facts_of(task), " ".join(found)
        open_ones = [n for n, fact in enumerate(facts) if fact not in told]
        at = sub_question(query, task)
        value = 1.0 if open_ones and at == open_ones[0] else 0.0 if at in open_ones else -1.0
        scores, meant = {"query": -1.0 if query in asked else value}, query
    elif given is not None:
        right = (exact_match(answer=given, task=task).value or 0.0) >= 1.0
        partly = max((f1(given, gold) for gold in gold_answers(task)), default=0.0) >= 0.5
        scores, meant = {"answer": 1.0 if right else 0.0 if partly else -1.0}, given
    else:
        scores, meant = {"neither": -1.0}, ""
    words = set(re.findall(r"\w+", thought or "")) & set(re.findall(r"\w+", meant)) - {"of"}
    return {"thought": -1.0 if thought is None else float(bool(words)), **scores}


def worth(scores: dict[str, float], step: int, turns: int, early: float, judge: bool) -> float:
    """The reward of a step of these scores (see `slate`)."""
    if not judge:
        return float(scores.get("answer", 0.0) > 0)
    return sum(scores.values()) + (early * (turns - step) / turns if "answer" in scores else 0.0)


@block
def sum_of_steps(
    *, group: RolloutGroup, context: RewardContext, turns: int = 4, early: float = 0.1, judge: bool = True
) -> Scores:
    """The sum of a whole episode's step scores, without a forced answer's after the budget.

    Parts: searches, and the means of what the scores are made of.
    """
    task, out = group.request.task, Scores({"reward": {}})
    for episode, t in group.learned:
        searches, tree = searches_of(episode, t, context), episode.tree
        last = context.tokenizer.decode(tree.id[tree.begin[t.leaf.node] : tree.stop(t.leaf.node)])
        value, every = 0.0, list[dict[str, float]]()
        for step, text in enumerate([*(s.said for s in searches), last][:turns]):
            asked, found = [s.query for s in searches[:step]], [s.found for s in searches[:step]]
            every.append(step_scores(text, task, asked, found))
            value += worth(every[-1], step, turns, early, judge)
        parts: dict[str, Any] = {"searches": float(len(searches))}
        for name in PARTS[:-1]:
            known = [s[name] for s in every if name in s]
            parts |= {name: sum(known) / len(known)} if known else {}
        out["reward"][t.leaf] = Score(value, parts)
    return out


slate.claim = Claim(
    (
        premise("accuracy", "whole", 0.9, relation="<", fails_at=0.95),  # credit over whole episodes leaves something
        # queries get better: of siblings, in which those that are not gone on from count too
        mechanism("late:reward/query", "self", "early:reward/query of self", by=0.1, fails_at=0.9),
        outcome("accuracy", "self", "whole", by=0.03, fails_at=0.98),
        outcome("auc", "self", "whole", by=0.03, fails_at=0.98),
        outcome("accuracy", "self", "search_r1", by=0.05, fails_at=0.96),
        outcome("accuracy", "self", "no_judge", by=0.05, fails_at=0.96),
    ),
    arms={
        "whole": ("slate", {"truncated": False}),
        "search_r1": "search_r1",
        "no_judge": ("slate", {"judge": False}),
    },
    regime="search_side_by_side",
    settings={"eval_every": 6},
    first_seed=400,
    corrected=(
        "on seeds 300 to 307 the best sibling was always gone on from, right answers alone had the bonus for being "
        "early, and an answer after the budget was scored and learned: does not hold here"
    ),
    equal="tokens",
    idea=("main.program", "main.reward", "main.credit", "decode", "main.rollouts"),
    because="continuations of one prefix differ in one step alone, so its score is not lost in what other steps do",
)
