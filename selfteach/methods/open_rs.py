"""Open-RS (Dang and Ngo 2025, arXiv 2503.16219): what works in RL of a small reasoner at low cost.

GRPO on a small set of easy and hard questions mixed, with six answers each, a format reward, and a cosine length
reward in place of accuracy, which keeps answers within a tight limit.

    R = format 1[<think>...</think> and <answer>...</answer>] + 2 cosine
"""

from __future__ import annotations

from ..core import Claim, Method, Sampling, mechanism, method, outcome, premise
from ..curriculum.select import pool
from ..reward.answer import exact_match, thought_then_answer
from ..reward.combine import weighted
from ..reward.length import cosine_scaled
from .grpo import grpo


@method(family="efficiency", paper="2503.16219", catalogue=310)
def open_rs(
    groups: int = 16,
    rollouts: int = 6,
    cosine: bool = True,
    limit: int = 128,
    right_short: float = 1.0,
    right_long: float = 0.5,
    wrong_short: float = 0.0,
    wrong_long: float = -0.5,
    outcome: float = 2.0,
    format: float = 1.0,
    questions: int | None = None,
    temperature: float = 0.7,
    beta: float = 0.04,
) -> Method:
    """GRPO with a format reward and a cosine length reward, on few questions of mixed difficulty.

        R = format 1[form] + outcome cosine,   cosine from right_short to right_long over the length if right, else from
        wrong_short to wrong_long

    Dang and Ngo 2025, experiment 3, and the released recipe: six answers a question at temperature 0.7, weights 1 and
    2, TRL's KL coefficient of that time, and the cosine's values, by which a long wrong answer is the worst (0 and
    -1/2, the script's; open-r1's own defaults are -1 and -1/2). There length is counted in characters, up to 3584.
    cosine=False is the accuracy reward of experiments 1 and 2. questions: the size of the set that is cycled through
    (7,000 there; None: new questions always); mixed difficulty is a matter of the task.
    """
    scaled = cosine_scaled(
        judge=exact_match(),
        limit=limit,
        right_short=right_short,
        right_long=right_long,
        wrong_short=wrong_short,
        wrong_long=wrong_long,
    )
    parts = ((format, thought_then_answer()), (outcome, scaled if cosine else exact_match()))
    base = grpo(groups=groups, rollouts=rollouts, beta=beta).replace(
        reward=(weighted(parts=parts),), sampling=Sampling(temperature=temperature)
    )
    return base.replace(select=pool(size=questions)) if questions else base


open_rs.claim = Claim(
    (
        premise("length_right", "accuracy", 36.0, by=0.0, fails_at=32.0),  # thirty tokens write every addition once
        mechanism("length_right", "self", "accuracy", by=0.1, relation="<", scale="ratio", fails_at=28.0),
        outcome("length", "self", "accuracy", by=0.1, relation="<", scale="ratio", fails_at=30.0),
        outcome("accuracy", "self", "accuracy", by=0.03, relation=">=", fails_at=1.0),
    ),
    arms={"accuracy": ("open_rs", {"cosine": False, "temperature": 1.0, "beta": 0.0})},
    args={"limit": 81, "temperature": 1.0, "beta": 0.0},  # tokens of an answer, at most
    regime="overlong",
    idea=("main.reward",),
    because="a cosine over the length keeps answers within the limit at the same accuracy",
)
