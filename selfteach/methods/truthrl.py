"""TruthRL (Wei et al. 2025, arXiv 2509.25760).

GRPO with a ternary reward, by which "I don't know" is better than a wrong answer and worse than a right one.

    R = 1 right, 0 abstained, -1 wrong

The paper measures truthfulness, the share of right answers minus that of wrong ones; accuracy may fall.
"""

from __future__ import annotations

from typing import Any

from ..core import Claim, Home, Method, Score, Task, block, mechanism, method, outcome, premise
from ..core.answers import normalise
from ..reward.answer import ABSTENTIONS, exact_match
from ..rollout.search import self_search
from .grpo import grpo


@method(family="reward", paper="2509.25760", catalogue=336, home=Home("atlas", 40, {"abstain": 0.1}))
def truthrl(
    groups: int = 24, rollouts: int = 8, abstained: float = 0.0, wrong: float = -1.0, beta: float = 0.001
) -> Method:
    """GRPO with a ternary reward: right, abstained ("I don't know"), wrong.

        R = 1 right, 0 abstained, -1 wrong

    In a group of {wrong, abstained} abstaining has the positive advantage, in {right, abstained} answering has. Wei et
    al. 2025: G = 8, beta 0.001, the group's mean and standard deviation as in GRPO. abstained=-1 is their binary
    reward. Metrics: the shares reward/right, reward/abstained, reward/wrong, and reward/truthful, the paper's
    truthfulness (section 2.1 with its weights 1, 0, 1), whatever is paid. A policy that is right less than half of the
    time maximises its expected reward by always abstaining, so the initial one must know enough. Rollouts are SSRL's,
    from the policy's own knowledge.

    A fork of the released code (verl/utils/reward_score/truthrl_qa.py) takes "i dont know" anywhere in the boxed answer
    for an abstention and asks for it first, so that it always pays 0; a large model judges what else is no exact match
    (with exact match alone theirs came to abstain too often: table 5, from a summary). Here an answer abstains if it is
    one of ABSTENTIONS and nothing else, the judge is exact match, and where abstaining is the gold answer it is right
    and pays 1, as in their variant that knows what is out of knowledge.
    """
    return grpo(groups=groups, rollouts=rollouts, beta=beta).replace(
        programs={"main": self_search()}, reward=(truthful(abstained=abstained, wrong=wrong),)
    )


@block
def truthful(*, answer: Any, task: Task, right: float = 1.0, abstained: float = 0.0, wrong: float = -1.0) -> Score:
    """The ternary reward: right, abstained, wrong. Where abstaining is the gold answer, it is right.

    Parts: right, abstained, wrong, one of which is 1; truthful, right - wrong, whatever is paid.
    """
    is_right = (exact_match(answer=answer, task=task).value or 0.0) >= 1.0
    is_abstained = not is_right and abstains(answer)
    parts = {
        "right": float(is_right),
        "abstained": float(is_abstained),
        "wrong": float(not is_right and not is_abstained),
    }
    parts["truthful"] = parts["right"] - parts["wrong"]
    return Score(right if is_right else abstained if is_abstained else wrong, parts)


def abstains(answer: Any) -> bool:
    """Whether an answer, normalised, is one of ABSTENTIONS ("I don't know" ...)."""
    return answer is not None and normalise(str(answer)) in {normalise(a) for a in ABSTENTIONS}


TERNARY = (  # what the third value does
    premise("early:reward/abstained", "self", 0.03, fails_at=0.01),  # the start can abstain
    mechanism("late:reward/abstained", "self", "binary", by=0.05, fails_at=1.0),
    outcome("late:reward/wrong", "self", "binary", by=0.25, relation="<", scale="ratio", fails_at=0.0),
    outcome("late:reward/truthful", "self", "binary", by=0.05, fails_at=1.0),
)

truthrl.claim = Claim(
    (
        premise("late:reward/wrong", "binary", 0.1, fails_at=0.05),  # without the third value it guesses
        *TERNARY,
    ),
    arms={"binary": ("truthrl", {"abstained": -1.0})},
    args={"abstained": 0.0},
    regime="unknown",
    first_seed=300,
    corrected=(
        "on seeds 200 to 207 right answers and accuracy were not to be below the binary reward's, where the paper has "
        "fewer of them and more truthfulness: does not hold here"
    ),
    idea=("main.reward",),
    because=(
        "where a wrong answer and an abstention have the same reward, guessing costs nothing; where they do not, "
        "the policy answers what it knows"
    ),
)
