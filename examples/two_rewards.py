"""Rows in memory and two weighted rewards in Python: is a number odd, said briefly.

Seven demonstrations of ten are right, half of them are wordy; only RL says what is wanted.

One run: held-out reward, sampled, 0.66 -> 0.89, tokens of an answer 3.4 -> 2.2 (100 prompts); 18 s of one core.
"""

import os
import random

from selfteach import methods, train

SIZES = {"steps": 30, "warm_steps": 200, "warm_batch": 16, "lr": 3e-4, "final_eval_pass_at_k_tasks": 0}
TOY = {"steps": 1, "warm_steps": 2, "final_eval_tasks": 2, "eval_every": 0} if "SELFTEACH_TOY" in os.environ else {}


def right(text, task):
    """1 where the first word is the answer of the row."""
    return float(text.split()[:1] == [task.answer])


def brief(text):
    """1 for one word, less for more."""
    return 1 / max(1, len(text.split()))


if __name__ == "__main__":
    draw, rows, kinds = random.Random(0), [], ["even", "odd"]
    for n in range(1000):
        said = kinds[(n + (draw.random() < 0.3)) % 2] + draw.choice(["", " , of course"])
        rows.append({"prompt": " ".join(f"{n:03}") + " is", "answer": kinds[n % 2], "completion": said})
    rewards = [(0.8, right), (0.2, brief)]
    run = train(methods.grpo(), model="tiny-s", train=rows, reward=rewards, **{**SIZES, **TOY})
    before, after = run.figures["before"], run.figures["after"]
    print(f"held-out reward {before['reward']:.2f} -> {after['reward']:.2f},", end=" ")
    print(f"tokens of an answer {before['length']:.1f} -> {after['length']:.1f}")
