"""Supervised fine-tuning on demonstrations, then GRPO from its checkpoint: is a number odd?

Seven of ten demonstrations are right. SFT comes to say what they say; GRPO keeps what is rewarded.

One run: held-out reward, sampled, 0 fresh, 0.73 after SFT, 0.89 after GRPO (100 prompts); 18 s of one core.
"""

import os
import random

from selfteach import methods, train

SFT = {"steps": 200, "warm_steps": 0, "lr": 3e-3, "final_eval_k": 0, "eval_every": 0}
RL = {"steps": 30, "lr": 3e-4, "final_eval_k": 0}
TOY = {"steps": 1, "final_eval_tasks": 2, "eval_every": 0} if "SELFTEACH_TOY" in os.environ else {}


def right(completions, answer, **kwargs):
    """1 where a completion is the answer of its row."""
    return [float(said == wanted) for said, wanted in zip(completions, answer, strict=True)]


if __name__ == "__main__":
    draw, rows, kinds = random.Random(0), [], ["even", "odd"]
    for n in range(1000):
        said = kinds[(n + (draw.random() < 0.3)) % 2]
        rows.append({"prompt": " ".join(f"{n:03}") + " is", "answer": kinds[n % 2], "completion": said})
    taught = train(methods.sft(batch=16), model="tiny-s", train=rows, reward=right, **{**SFT, **TOY})
    run = train(methods.grpo(), model=taught.model, train=rows, reward=right, **{**RL, **TOY})
    print(f"held-out reward: fresh {taught.figures['before']['reward']:.2f}, after SFT", end=" ")
    print(f"{run.figures['before']['reward']:.2f}, after GRPO {run.figures['after']['reward']:.2f}")
