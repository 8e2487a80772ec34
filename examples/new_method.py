"""A method of your own in one file: GRPO whose advantage is an answer's rank in its group, so that scale never matters.

    python new_method.py          or on a task: selfteach train new_method.py:rank_grpo --task chain_sum

One run: right answers, sampled, 70 % -> 90 % (60 prompts); 10 s of one core.
"""

import os
import random

import numpy as np

from selfteach import block, method, methods, train
from selfteach.core import Column, Seq
from selfteach.credit.composers import per_trajectory

SIZES = {"steps": 30, "warm_steps": 200, "warm_batch": 16, "lr": 3e-4, "final_eval_tasks": 60, "final_eval_k": 0}
TOY = {"steps": 1, "warm_steps": 2, "final_eval_tasks": 2, "eval_every": 0} if "SELFTEACH_TOY" in os.environ else {}


@block
def ranks(*, reward: Seq, group: Seq, spread: float = 1.0) -> dict[str, Column]:
    """A_i = spread times (share of the group that is worse - share that is better)."""
    adv = np.zeros(len(reward))
    for g in np.unique(group):
        own = reward[group == g]
        adv[group == g] = spread * np.sign(own[:, None] - own[None, :]).mean(1)
    return {"adv": Column("seq", adv)}


@method(family="mine")
def rank_grpo(rollouts: int = 8, spread: float = 1.0):
    """GRPO on the ranks of a group's rewards."""
    return methods.grpo(rollouts=rollouts).replace(credit=(per_trajectory(), ranks(spread=spread)))


if __name__ == "__main__":
    draw, rows, kinds = random.Random(0), [], ["even", "odd"]
    for n in range(1000):
        said = kinds[(n + (draw.random() < 0.3)) % 2]  # three demonstrations of ten are wrong
        rows.append({"prompt": " ".join(f"{n:03}") + " is", "answer": kinds[n % 2], "completion": said})
    run = train(rank_grpo(), model="tiny-s", train=rows, **{**SIZES, **TOY})
    before, after = run.figures["before"], run.figures["after"]
    print(f"right, sampled: {before['accuracy']:.0%} -> {after['accuracy']:.0%}")
