"""Your own prompts in a JSONL file, and a reward in TRL's form: GRPO on whether a number is odd.

The model is a fresh tiny one; the file's completions, of which three in ten are wrong, are its warm start.

One run: held-out reward, sampled, 0.71 -> 0.89 (100 prompts); 10 s of one core, warm start and evaluation too.
"""

import json
import os
import random

from selfteach import methods, train

SIZES = {"steps": 30, "warm_steps": 200, "warm_batch": 16, "lr": 3e-4, "final_eval_pass_at_k_tasks": 0}
TOY = {"steps": 1, "warm_steps": 2, "final_eval_tasks": 2, "eval_every": 0} if "SELFTEACH_TOY" in os.environ else {}


def right(completions, parity, **kwargs):
    """1 where a completion is the value of the column `parity`."""
    return [float(said == wanted) for said, wanted in zip(completions, parity, strict=True)]


if __name__ == "__main__":
    draw = random.Random(0)
    with open("numbers.jsonl", "w", encoding="utf-8") as file:
        for n in range(1000):
            prompt, kinds = " ".join(f"{n:03}") + " is", ["even", "odd"]
            said = kinds[(n + (draw.random() < 0.3)) % 2]
            row = {"prompt": prompt, "parity": kinds[n % 2], "completion": said}
            file.write(json.dumps(row) + "\n")
    run = train(methods.grpo(), model="tiny-s", train="numbers.jsonl", reward=right, **{**SIZES, **TOY})
    print(f"held-out reward {run.figures['before']['reward']:.2f} -> {run.figures['after']['reward']:.2f}")
