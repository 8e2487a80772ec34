"""ACE-RL, adaptive constraint-enhanced reward for long texts (Chen et al. 2025, arXiv 2509.04903).

An instruction is turned once into a checklist of constraints. A verifier grades a text on each of them, which says more
than one mark for the whole, and a length reward keeps it near the length that the instruction asks for.

    R = (mean_k s_k + R_length) / 2,    s_k = 1 fully, 0.5 partly, 0 not satisfied                  equations 6 to 8
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core import BadValue, Claim, Method, Score, Task, block, mechanism, method, outcome, premise
from ..core.method import Home
from ..core.random_keys import generator
from .grpo import grpo


@method(family="reward", paper="2509.04903", catalogue=197, home=Home("report", 40))
def ace_rl(
    groups: int = 16,
    rollouts: int = 8,
    partial: bool = True,
    levels: int = 0,
    length_weight: float = 0.5,
    tolerance: float = 0.1,
    checker_noise: float = 0.0,
    beta: float = 0.0,
) -> Method:
    """GRPO on the mean grade over an instruction's checklist, and on the length that it asks for.

        s_k       1 fully satisfied, 0.5 partly (partial=False: 0), 0 not
        R_length  1 where |words - target| / target is at most `tolerance`, from there linearly to 0 at 1
        R         (1 - length_weight) mean_k s_k + length_weight R_length

    Chen et al. 2025, equations 6 to 8 by a guide to them: checklist, grades and their equal part with length are
    theirs; the form of the length reward is chosen here. Their constraints are written by an LLM and verified by
    another; here they are the task's tag `checklist` and its judge `constraint`, a program, and `checker_noise` is the
    chance that a grade is replaced by one of the three at random, as a model's would err.
    levels  0; else the same checklist as one coarse mark: its mean rounded down to one of so many values in [0, 1],
            so that full marks are for what is right in all. The paper compares with the one mark that a language
            model gives a text

    Metrics: reward/followed and reward/unsaid, the shares of constraints that are fully satisfied of the checklist and
    of those that it lacks (the tag `held_out`); reward/length_error; reward/right by the task's verifier.
    """
    reward = checklist_grade(
        partial=partial, levels=levels, length_weight=length_weight, tolerance=tolerance, noise=checker_noise
    )
    return grpo(groups=groups, rollouts=rollouts, beta=beta).replace(reward=(reward,))


@block
def checklist_grade(
    *,
    answer: Any,
    task: Task,
    partial: bool = True,
    levels: int = 0,
    length_weight: float = 0.5,
    tolerance: float = 0.1,
    noise: float = 0.0,
) -> Score:
    """The mean grade of a text over the task's checklist, and how near it is to the target length (`ace_rl`).

    A noisy grade is a function of the text, the task and the constraint. Parts: constraints, length, followed, unsaid,
    length_error, right. Raises BadValue for a task without the tags `checklist` and `target_length`.
    """
    if any(name not in task.tags for name in ("checklist", "target_length")):
        raise BadValue(f"checklist_grade: task {task.id} has no checklist and target_length among its tags")
    text, judge = str(answer or ""), task.judge("constraint")
    true = {name: float(judge(text=text, constraint=name)) for name in task.tags["checklist"]}
    grades = [_noisy(g, noise, generator("checker", task.id, name, text)) for name, g in true.items()]
    mean = float(np.mean([g if partial else float(g >= 1) for g in grades]))
    if levels:
        mean = coarse(mean, levels)
    error = abs(len(text.split()) - task.tags["target_length"]) / task.tags["target_length"]
    length = length_reward(error, tolerance)
    unsaid = [float(judge(text=text, constraint=name) >= 1) for name in task.tags.get("held_out", ())]
    parts = {
        "constraints": mean,
        "length": length,
        "length_error": error,
        "followed": float(np.mean([g >= 1 for g in true.values()])),
        **({"unsaid": float(np.mean(unsaid))} if unsaid else {}),
        **({"right": float(task.verifier(answer=answer, task=task).value >= 1.0)} if task.verifier else {}),
    }
    return Score((1 - length_weight) * mean + length_weight * length, parts)


def length_reward(error: float, tolerance: float) -> float:
    """1 up to the tolerance of the relative error, then linearly down to 0 at an error of 1.

    >>> length_reward(0.1, 0.2), length_reward(0.6, 0.2), length_reward(3.0, 0.2)
    (1.0, 0.5, 0.0)
    """
    return 1.0 if error <= tolerance else max(0.0, (1 - error) / (1 - tolerance)) if tolerance < 1 else 0.0


def coarse(mean: float, levels: int) -> float:
    """The highest of so many values, evenly from 0 to 1, that is reached. Raises BadValue for fewer than two.

    >>> coarse(0.4, 3), coarse(0.8, 3), coarse(1.0, 3)
    (0.0, 0.5, 1.0)
    """
    if levels < 2:
        raise BadValue(f"checklist_grade: levels must be 0 or at least 2, not {levels}")
    return int(mean * (levels - 1) + 1e-9) / (levels - 1)


def _noisy(grade: float, noise: float, draw: np.random.Generator) -> float:
    """The grade, or with probability `noise` one of the three at random."""
    return float(draw.choice([0.0, 0.5, 1.0])) if draw.random() < noise else grade


ace_rl.claim = Claim(
    (
        premise("accuracy", "coarse", 0.8, relation="<", fails_at=0.9),  # one mark leaves room
        # of answers that one mark does not tell apart the checklist's mean does; length would, too
        mechanism("early:rollout/mixed_group_fraction", "lengthless", "coarse_lengthless", by=0.02, fails_at=1.0),
        outcome("late:reward/followed", "self", "late:reward/followed of coarse", by=0.02, fails_at=0.99),
        outcome("accuracy", "self", "coarse", by=0.05, fails_at=0.97),
        outcome("auc", "self", "coarse", by=0.03, fails_at=0.98),
        outcome(
            "late:reward/length_error",
            "self",
            "late:reward/length_error of lengthless",
            relation="<",
            by=0.02,
            fails_at=0.0,
        ),
    ),
    args={"levels": 0, "length_weight": 0.5},
    arms={
        "coarse": ("ace_rl", {"levels": 3, "length_weight": 0.5}),
        "lengthless": ("ace_rl", {"levels": 0, "length_weight": 0.0}),
        "coarse_lengthless": ("ace_rl", {"levels": 3, "length_weight": 0.0}),
    },
    regime="written",
    settings={"steps": 40, "eval_every": 4},  # after more nothing is left to gain, with either mark
    first_seed=300,
    corrected="on seeds 200 to 207 the coarse mark paid full for an answer that misses one point of five: holds",
    idea=("main.reward",),
    because="a checklist tells apart what one mark for the whole calls equal, and the length is asked for by itself",
)
