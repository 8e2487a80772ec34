"""RE-Searcher, agentic search with goal-oriented planning and self-reflection (Fu et al. 2025, arXiv 2509.26048).

The agent states a goal before each search, and after it says whether the result met that goal; what it says there is
rewarded against a judge.

    R = EM (1 - 0.2 (1 - F)) + (1 - EM) 0.2 F + 0.1 V,    F form,    V = share of the verdicts that the judge shares
"""

from __future__ import annotations

from typing import Any

from ..core import (
    Claim,
    Home,
    Method,
    ModelContext,
    RewardContext,
    RolloutContext,
    RolloutRequest,
    Score,
    Task,
    TokenPath,
    Turn,
    block,
    mechanism,
    method,
    outcome,
    premise,
)
from ..core.answers import gold_answers
from ..core.search_record import pieces_of
from ..reward.agent_record import Verdict, count_searches, fault, verdicts_of
from ..reward.answer import exact_match
from ..rollout.search import RETRY, append_information, search_turns, with_a_word_less
from .search_r1 import search_r1


@method(
    family="search",
    paper="2509.26048",
    catalogue=27,
    home=Home("factworld", 40, {"ways": (0.1, 0.3, 0.2, 0.1, 0.1, 0.2), "irrelevant": 0.4, "says": "reflect"}),
)
def re_searcher(
    groups: int = 48,
    rollouts: int = 5,
    turns: int = 4,
    format: float = 0.2,
    reflection: float = 0.1,
    beta: float = 0.001,
) -> Method:
    """Search-R1 that states a goal before each search and says after it whether the goal was met, rewarded for both.

        R = EM (1 - format (1 - F)) + (1 - EM) format F + reflection V
        F   1 where every search has a goal before it and a verdict after it, and the form is right; else 0
        V   the share of the verdicts that a judge shares, in whatever form; 0 without any

    Fu et al. 2025, section 4.3: answer and form as in Search-R1's structured reward, to which the share of right
    reflections is added. Whether an episode without a search is well formed they leave open; here it is, and has no V.
    Their judge is a language model that sees goal, result and verdict; here it is the task's own judge `states`
    (whether the result states the fact that the goal names), or, in a task without one, whether a gold answer is in the
    result. Their tags <query>, in which the goal stands too, and <learnings> are <search> and <information> here, and
    the goal stands before. A supervised stage on 1,000 trajectories precedes theirs; here the run's own start does.
    The decoder `perturbed` leaves a word out of the first query, one of the three changes in the paper's study of
    fragile search.
    """
    engine = search_r1(groups=groups, rollouts=rollouts, turns=turns, beta=beta)
    return engine.replace(reward=(goals_and_reflections(format=format, reflection=reflection),)).override(
        decode={"perturbed": first_query_perturbed(turns=turns)}
    )


@block
def goals_and_reflections(
    *,
    path: TokenPath,
    answer: Any,
    task: Task,
    context: RewardContext,
    format: float = 0.2,
    reflection: float = 0.1,
) -> Score:
    """Exact match, the form of goals and verdicts, and whether the judge shares the verdicts (see `re_searcher`).

    Parts: answer, format; where there are verdicts, reflection: the share that the judge shares, in whatever form.
    """
    pieces = pieces_of(path, context)
    found = verdicts_of(pieces, "reflect", "True", "False")
    verdicts = [v for v in found if v is not None]
    is_right = (exact_match(answer=answer, task=task).value or 0.0) >= 1.0
    why = fault(pieces)
    if not why and len(verdicts) < count_searches(pieces):
        why = "a search without a verdict"
    elif not why and any(not v.goal for v in verdicts):
        why = "a search without a goal"
    parts = {"answer": float(is_right), "format": float(not why)}
    shared = [v.accepted == goal_met(v, task) for v in verdicts]
    if shared:
        parts["reflection"] = sum(shared) / len(shared)
    outcome_and_form = (1.0 - format * bool(why)) if is_right else format * (not why)
    value = outcome_and_form + reflection * parts.get("reflection", 0.0)
    return Score(value, parts, why)


def goal_met(verdict: Verdict, task: Task) -> bool:
    """Whether a result met the goal: by the task's judge `states`, else whether a gold answer is in it.

    A goal that asks for no fact is never met.
    """
    if "states" in task.judges:
        return bool(task.judges["states"](sought=verdict.goal, results=verdict.information))
    return any(gold.lower() in verdict.information.lower() for gold in gold_answers(task))


@block
async def first_query_perturbed(
    *, request: RolloutRequest, rollout: RolloutContext, answerer: str = "search", turns: int = 4, invalid: str = RETRY
) -> str | None:
    """As `search_agent`, but the engine gets the first query without one of its words; the agent sees its own.

    A query of one word stays as it is.
    """
    seen = 0

    async def answer_query(context: ModelContext, turn: Turn) -> None:
        nonlocal seen
        query, seen = turn.between("search") or "", seen + 1
        if seen == 1:
            less = with_a_word_less(query, rollout.random("perturbed query"))
            turn = turn._replace(text=f"<search>{less}</search>{turn.text.rpartition('</search>')[2]}")
        await append_information(rollout, context, turn, answerer)

    return await search_turns(request, rollout, turns, invalid, answer_query)


re_searcher.claim = Claim(
    (
        premise("early:reward/reflection", "no_reflection", 0.85, relation="<", fails_at=0.9),
        premise(
            "accuracy+perturbed", "no_reflection", "accuracy of no_reflection", relation="<", by=0.01, fails_at=0.0
        ),
        mechanism("late:reward/reflection", "self", "no_reflection", by=0.03, fails_at=0.98),
        outcome("accuracy", "self", "no_reflection", by=0.02, fails_at=0.99),
        outcome("accuracy+perturbed", "self", "no_reflection", by=0.03, fails_at=0.98),
    ),
    arms={"no_reflection": ("re_searcher", {"format": 0.0, "reflection": 0.0})},
    regime="search_fragile",
    settings={"eval_every": 12},
    idea=("main.reward",),
    because="an agent that knows what it looks for, and whether it found it, is not led astray by what it finds",
)
