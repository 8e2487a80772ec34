"""AI-SearchPlanner, a trained planner beside a frozen generator (Mei et al. 2025, arXiv 2508.20368).

A small model plans: it asks sub-queries, one after another, or stops. A frozen generator answers from what was found.
The planner is paid for what its plan adds to the generator's answer, for how sensible the plan is, and for costing
little; the price of a search moves it along the front of utility and cost.

    R = outcome + process P - alpha C,   C = searches / turns
    outcome = 1/2 + 1/2 (Acc(G(Q, D_plan)) - Acc(G without a plan))        (a reading)
"""

from __future__ import annotations

from ..core import (
    Claim,
    Home,
    Method,
    ModelRole,
    RewardContext,
    RolloutGroup,
    Score,
    Scores,
    Task,
    WeightSpec,
    block,
    mechanism,
    method,
    outcome,
    premise,
)
from ..core.search_record import Search, searches_of
from ..core.tagged_text import last_between
from ..reward.agent_record import sub_question
from ..reward.answer import states_gold
from ..rollout.generator import last_object, naive_rag, search_for_generator
from .ppo import ppo


@method(
    family="search",
    paper="2508.20368",
    catalogue=9,
    home=Home("factworld", 40, {"ways": (0.1, 0.0, 0.15, 0.15, 0.25, 0.35), "hops": (2, 3)}),
)
def ai_search_planner(
    groups: int = 120,
    rollouts: int = 1,
    turns: int = 8,
    gain: float = 0.5,
    process: float = 0.5,
    alpha: float = 0.1,
    beta: float = 0.001,
    critic_lr: float = 1e-3,
    minibatches: int = 4,
    critic_epochs: int = 1,
) -> Method:
    """PPO on a planner of searches for a frozen generator: gain of the answer, reason of the plan, price of it.

        R = (1 - gain) + gain (Acc(G(Q, D_plan)) - max(Acc(G(Q)), Acc(G(Q, D_Q)))) + process P - alpha C
        P = 2 d / (q + n)     d of the n sub-questions asked in q queries
        C = q / turns

    Mei et al. 2025, from descriptions of it; no code was released. That outcome, rationality of the plan and cost are
    summed is theirs; the 1/2 + 1/2 form of the outcome is a reading, and the weights are chosen here. The reference is
    the better of what the generator answers by itself and from what the question finds (naive RAG). Acc is whether the
    answer contains a gold answer; theirs is an LLM judge's, as a survey's table has it (2510.16724). Their P is a score
    that the generator gives the plan when it is asked; a tiny generator cannot, so here it is the F1 of the queries
    against the task's sub-questions: 1 for a plan that asks each once and nothing else. Their cost is of iterations and
    of sub-queries, which coincide where a turn has one query, as here, whether it was answered or not. A term for form
    is said to exist, and is left out. gain=0: the plan is only paid for itself; process=0, alpha=0: without the second
    reward, without a price.

    Generator and planner begin as the same model; the generator stays frozen, and reads the planner's thoughts too. The
    decoder `reader` has another generator, a rule, `naive_rag` no plan, and `naive_reader` neither.
    """
    base = ppo(
        groups=groups,
        rollouts=rollouts,
        beta=beta,
        critic_lr=critic_lr,
        minibatches=minibatches,
        critic_epochs=critic_epochs,
    )
    planner = search_for_generator(turns=turns, naive=False, select=False, thoughts=True)
    return base.replace(
        programs={"main": planner.replace(rag=gain > 0, closed=gain > 0)},
        reward=(planned(turns=turns, gain=gain, process=process, alpha=alpha),),
    ).override(
        weights={"generator": WeightSpec()},
        models={"generator": ModelRole(("generator",))},
        decode={
            "main": planner,
            "reader": planner.replace(generator=last_object()),
            "naive_reader": search_for_generator(turns=0, select=False, generator=last_object()),
            "naive_rag": naive_rag(),
        },
    )


@block
def planned(
    *,
    group: RolloutGroup,
    context: RewardContext,
    turns: int = 8,
    gain: float = 0.5,
    process: float = 0.5,
    alpha: float = 0.1,
) -> Scores:
    """The reward of a plan (see `ai_search_planner`).

    Parts: answer, whether the generator is right; reference, whether it is without the plan; plan (P), searches, cost.
    """
    task, out = group.request.task, Scores({"reward": {}})
    for episode in group.episodes:
        right = states_gold(episode.answer, task)
        others = [context.text(t.leaf) for t in episode.trajectories if t.role in ("rag", "closed")]
        without = max((states_gold(last_between(text, "answer", None), task) for text in others), default=False)
        for t in episode.learned:
            searches = searches_of(episode, t, context)
            sense, cost = reason_of(searches, task), len(searches) / turns
            value = (1.0 - gain) + gain * (float(right) - float(without)) + process * sense - alpha * cost
            parts = {
                "answer": float(right),
                "reference": float(without),
                "plan": sense,
                "searches": float(len(searches)),
                "cost": cost,
            }
            out["reward"][t.leaf] = Score(value, parts)
    return out


def reason_of(searches: list[Search], task: Task) -> float:
    """The F1 of a plan's queries against the sub-questions of its task; a query that asks none, or one again, is in
    vain.

    Raises BadValue for a task without sub-questions.
    """
    asked = {sub_question(s.query, task) for s in searches} - {None}
    return 2.0 * len(asked) / (len(searches) + len(task.tags["keywords"])) if asked else 0.0


WHOLE = {"minibatches": 1, "critic_epochs": 4}  # one update of the policy to a batch, as in all regimes

ai_search_planner.claim = Claim(
    (
        premise("accuracy+naive_rag", "self", 0.5, relation="<", fails_at=0.7),  # a plan has something to add
        # the generator reads what it is given about as well as a rule does
        premise("accuracy", "self", "accuracy+reader of self", relation=">=", by=0.1, fails_at=1.0),
        mechanism("late:reward/plan", "self", "early:reward/plan of self", by=0.1, fails_at=0.95),
        # what is asked for in vain is given up without a price too, so only a price above a plan's worth is felt
        mechanism("late:reward/searches", "dear", "self", relation="<", scale="ratio", by=0.1, fails_at=0.0),
        # the generator answers greedily, and so it must be beaten greedily as well
        outcome("accuracy", "self", "end_to_end", by=0.03, fails_at=0.98),
        outcome("greedy", "self", "end_to_end", by=0.03, relation=">=", fails_at=1.0),
        outcome("accuracy", "self", "no_process", by=0.03, fails_at=0.98),
        outcome("accuracy", "self", "free", by=0.03, relation=">=", fails_at=1.0),
        outcome("accuracy+reader", "self", "accuracy+naive_reader of self", by=0.2, fails_at=0.85),
    ),
    arms={
        "end_to_end": ("s3", {"decoupled": False, "filtered": False, "turns": 8, "beta": 0.0, **WHOLE}),
        "no_process": ("ai_search_planner", {"process": 0.0, "alpha": 0.4, **WHOLE}),
        "free": ("ai_search_planner", {"alpha": 0.0, **WHOLE}),
        "dear": ("ai_search_planner", {"alpha": 4.0, **WHOLE}),
    },
    args={"alpha": 0.4, **WHOLE},
    regime="search_hops",
    settings={"eval_every": 12},
    idea=("main.program", "main.reward", "decode"),
    because="to plan is learned beside what answers, and the price of a search says how much of it is worth while",
)
