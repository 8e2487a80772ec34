"""ReSeek, self-correcting search agents with instructive rewards (Li et al. 2025, arXiv 2510.00568).

After each result the agent says whether it is useful, <judge>Yes</judge> or <judge>No</judge>, and goes on or searches
again. The verdicts are rewarded against whether the result does hold the answer.

    R = EM + sum over results of what the verdict on it is worth
"""

from __future__ import annotations

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
from ..core.answers import gold_answers
from ..core.search_record import pieces_of
from ..reward.agent_record import verdicts_of
from ..reward.answer import exact_match
from .search_r1 import search_r1


@method(
    family="search",
    paper="2510.00568",
    catalogue=4,
    home=Home("factworld", 40, {"ways": (0.1, 0.3, 0.2, 0.1, 0.1, 0.2), "irrelevant": 0.4, "says": "judge"}),
)
def reseek(
    groups: int = 48,
    rollouts: int = 5,
    turns: int = 4,
    judge: bool = True,
    right: float = 0.1,
    wrong: float = -0.05,
    tariff: Literal["graded", "counted"] = "graded",
    beta: float = 0.001,
) -> Method:
    """Search-R1 whose verdicts on what was found are rewarded besides the answer.

        R = EM + sum over results of     graded                          counted (a verdict is right or wrong)
          Yes, and the answer is right   right                           right + 0.1
          Yes, and it is wrong           wrong / 2 if useful, else wrong right if useful, else wrong
          No                             wrong if useful, else right / 5 wrong / 2 if useful, else right (+ 0.1)

    The authors' code: `graded` are the rules of its version with a reranker, of which `right` and `wrong` are the
    defaults; `counted` those of its version without, with 0.3 and -0.6. Useful is there that the reranker's score of
    gold answer and result is at least 0.5, or that a gold answer is in the result, which is what is asked here under
    both. A result that is not judged before the next search has no verdict; theirs takes that of a later one. Without
    an answer R is 0. (They quarter EM after more than ten answers; here the first ends the episode.) The
    paper drops what was judged useless from the context of the next action; their code keeps it, and so does this.
    Under `counted` a rejected useless result is worth so much that it pays to look for some; and under both, in a group
    that is all wrong GRPO's division by the standard deviation makes any verdict weigh as much as an answer elsewhere.
    judge=False: EM alone.
    """
    reward = judged(right=right, wrong=wrong, tariff=tariff) if judge else judged(right=0.0, wrong=0.0, tariff="graded")
    return search_r1(groups=groups, rollouts=rollouts, turns=turns, beta=beta).replace(reward=(reward,))


@block
def judged(
    *,
    path: TokenPath,
    answer: Any,
    task: Task,
    context: RewardContext,
    right: float = 0.1,
    wrong: float = -0.05,
    tariff: Literal["graded", "counted"] = "graded",
) -> Score:
    """Exact match and the verdicts' rewards (see `reseek`).

    Parts: answer; judged, the number of verdicts; where there are any, judge, the share that say of a result what is so
    (whether it contains a gold answer).
    """
    pieces = pieces_of(path, context)
    verdicts = [v for v in verdicts_of(pieces, "judge", "Yes", "No") if v is not None]
    is_right = (exact_match(answer=answer, task=task).value or 0.0) >= 1.0
    parts = {"answer": float(is_right), "judged": float(len(verdicts))}
    golds = [g.lower().strip() for g in gold_answers(task)]
    useful = [any(g in v.information.lower() for g in golds) for v in verdicts]
    if verdicts:
        parts["judge"] = sum(v.accepted == u for v, u in zip(verdicts, useful, strict=True)) / len(verdicts)
    if answer is None:
        return Score(0.0, parts, "no answer")
    worth = graded if tariff == "graded" else counted
    paid = sum(worth(v.accepted, u, is_right, right, wrong) for v, u in zip(verdicts, useful, strict=True))
    return Score(float(is_right) + paid, parts)


def graded(accepted: bool, useful: bool, is_right: bool, right: float, wrong: float) -> float:
    """What a verdict is worth: most where it led to a right answer, little where it rejects what is useless."""
    if accepted:
        return right if is_right else wrong / 2 if useful else wrong
    return wrong if useful else right / 5


def counted(accepted: bool, useful: bool, is_right: bool, right: float, wrong: float) -> float:
    """What a verdict is worth: as much whatever it says, where it is right; and 0.1 more before a right answer."""
    if accepted == useful or (accepted and is_right):
        return right + 0.1 * is_right
    return wrong if accepted else wrong / 2


reseek.claim = Claim(
    (
        premise(
            "early:reward/judge", "no_judge", 0.85, relation="<", fails_at=0.9
        ),  # verdicts are often wrong at first
        premise("early:reward/judged", "no_judge", 0.3, fails_at=0.2),  # and there are some
        mechanism("late:reward/judge", "self", "no_judge", by=0.03, fails_at=0.98),
        outcome("accuracy", "self", "no_judge", by=0.02, fails_at=0.99),
        outcome("auc", "self", "no_judge", by=0.02, fails_at=0.99),
    ),
    arms={"no_judge": ("reseek", {"judge": False})},
    regime="search_noisy",
    idea=("main.reward",),
    because="where an agent is paid for seeing that a result is useless, it searches again and does not answer from it",
)
