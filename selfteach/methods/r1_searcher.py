"""R1-Searcher (Song et al. 2025, arXiv 2503.05592).

Two stages of RL from outcomes alone: the first pays for searching at all and for the form, the second for the answer.

    stage 1   R = 0.5 [it searched] + 0.5 [the form is right]
    stage 2   R = F1(answer, gold) - 2 [the form is wrong]
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from ..core import (
    Claim,
    Home,
    Method,
    RewardContext,
    Score,
    Task,
    TokenPath,
    block,
    mechanism,
    method,
    outcome,
    premise,
)
from ..core.search_record import own_text, pieces_of
from ..credit.advantages import center, norm, whiten
from ..credit.composers import per_trajectory
from ..objective.loss_weights import sequence_mean
from ..reward.agent_record import count_searches, fault
from ..reward.answer import exact_match, states_gold
from ..reward.overlap import word_f1
from .search_r1 import search_r1

Match = Literal["f1", "exact", "cover"]


@method(family="search", paper="2503.05592", catalogue=312, home=Home("factworld", 40))
def r1_searcher(
    groups: int = 16,
    rollouts: int = 16,
    turns: int = 4,
    invoke_steps: int = 20,
    retrieval: float = 0.5,
    format: float = 0.5,
    penalty: float = 2.0,
    match: Match = "f1",
    estimator: Literal["reinforce_baseline", "grpo"] = "reinforce_baseline",
    beta: float = 0.0,
) -> Method:
    """First to search at all, in the right form; then to be right.

        stage 1, `invoke_steps` steps   R = retrieval [at least one search] + format [the form is right]
        stage 2                         R = F1(answer, gold) - penalty [the form is wrong]
        A = (r - mean of the group), whitened over the tokens of the batch        estimator reinforce_baseline
        loss = mean over answers of the mean over their own tokens

    Song et al. 2025: 16 rollouts, retrieved text without a loss, no KL (1e-4 in one of their scripts). The form, after
    the released reward servers in the tags used here: every tag closed, one answer of at most ten words, at least one
    closed thought, no result that the policy wrote itself, no turn that is neither a query nor an answer. Their script
    for another model (Llama) subtracts 1, and adds 1 or -1 for the answer in the first stage, which the paper does not;
    and its first stage alone has the advantages of GRPO. Theirs asks up to 8 times, does four updates of 256 answers to
    a batch of 64 questions, and has its KL in the reward; here it is one update, and beta weighs Search-R1's KL term.
    Questions are not sorted by difficulty here, as theirs are. invoke_steps=0: the second stage alone. match: what an
    answer is worth, its F1, or what theirs compares that with, whether it is the gold answer (exact) or contains it
    (cover). estimator: the released code's REINFORCE with a group's mean as the baseline, or GRPO.
    """
    credit = (norm(),) if estimator == "grpo" else (center(), whiten())
    second = search_r1(groups=groups, rollouts=rollouts, turns=turns, beta=beta).replace(
        reward=(right_and_formed(penalty=penalty, match=match),), credit=(per_trajectory(), *credit)
    )
    (update,) = second.stage.updates
    terms = tuple(replace(term, loss_weights=sequence_mean()) for term in update.terms)
    second = second.replace(updates=(replace(update, terms=terms),))
    if not invoke_steps:
        return second
    first = replace(
        second.stage,
        name="invoke",
        reward=(searched_and_formed(retrieval=retrieval, format=format),),
        until=invoke_steps,
    )
    return second.override(stages=(first, *second.stages))


@block
def searched_and_formed(
    *, path: TokenPath, context: RewardContext, retrieval: float = 0.5, format: float = 0.5
) -> Score:
    """Whether it searched, and whether the form is right. Parts: searched, format."""
    pieces = pieces_of(path, context)
    searched, why = count_searches(pieces) > 0, misformed(own_text(pieces)) or fault(pieces)
    parts = {"searched": float(searched), "format": float(not why)}
    return Score(retrieval * searched + format * (not why), parts, why)


@block
def right_and_formed(
    *, path: TokenPath, answer: Any, task: Task, context: RewardContext, penalty: float = 2.0, match: Match = "f1"
) -> Score:
    """How well the answer matches a gold answer, less a penalty for a wrong form.

    match  its F1; exact, whether it is the same; cover, whether it contains it
    Parts: answer, searched, format.
    """
    pieces = pieces_of(path, context)
    why = misformed(own_text(pieces)) or fault(pieces)
    if match == "cover":
        worth = float(states_gold(answer, task))
    else:
        worth = (word_f1 if match == "f1" else exact_match)(answer=answer, task=task).value or 0.0
    parts = {
        "answer": worth,
        "searched": float(count_searches(pieces) > 0),
        "format": float(not why),
    }
    return Score(worth - penalty * bool(why), parts, why)


def misformed(said: str) -> str:
    """What only R1-Searcher minds of an agent's own words: no thought, a result of its own, an answer of many words.

    >>> misformed("<think>so</think><information>Ulm</information>")
    'a result that it wrote itself'
    >>> misformed("<think>so</think><answer> Ulm</answer>")
    ''
    """
    if "</think>" not in said:
        return "no thought"
    if "<information>" in said or "</information>" in said:
        return "a result that it wrote itself"
    answer = said.rpartition("<answer>")[2].partition("</answer>")[0]
    return "an answer of more than ten words" if len(answer.split()) > 10 else ""


r1_searcher.claim = Claim(
    (
        premise("early:reward/searched", "one_stage", 0.4, relation="<", fails_at=0.5),  # it seldom searches at first
        premise("accuracy", "one_stage", 0.9, relation="<", fails_at=0.95),  # and outcomes alone do not teach it all
        # after the first stage, in which no answer was ever looked at, it searches
        mechanism("mean:reward/searched", "self", "one_stage", by=0.2, fails_at=1.0),
        outcome("accuracy", "self", "one_stage", by=0.1, fails_at=0.95),
    ),
    arms={"one_stage": ("r1_searcher", {"invoke_steps": 0})},
    regime="seldom_searched",
    first_seed=400,
    corrected=(
        "on seeds 200 to 207 one demonstration in ten searched, where now one in fifty does, and outcomes alone taught "
        "it in half of the steps: not tested here; on seeds 300 to 307 it was also asked whether exact match does as "
        "well as F1, which are the same of answers of one word: holds"
    ),
    settings={"eval_every": 12},
    idea=("invoke", "invoke.*"),
    because="an agent that hardly ever searches is not taught to by its answers; paid for searching, it does",
)
