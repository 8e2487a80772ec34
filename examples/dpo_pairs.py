"""DPO on preference pairs, in the columns that TRL has: prompt, chosen, rejected.

Some rows are demonstrations of both manners, which a fresh tiny model begins with; the pairs say which one is wanted.

One run: kind replies to 80 held-out rows, greedy 35 % -> 100 %, sampled 49 % -> 65 %, the loss 0.69 -> 0.53, the
margin 0 -> 0.37; 8 s of one core. Twice the steps widen the margin and bring less (59 % sampled).
"""

import os
import random

from selfteach import methods, train

SIZES = {"steps": 30, "warm_steps": 200, "warm_batch": 16, "lr": 1e-4, "final_eval_pass_at_k_tasks": 0}
TOY = {"steps": 1, "warm_steps": 2, "final_eval_tasks": 2, "eval_every": 0} if "SELFTEACH_TOY" in os.environ else {}
KIND, CURT = ["gladly , {}", "yes , {}"], ["no , {}", "later , {}"]


def kind(text):
    """1 for a kind reply: what DPO is never told, measured on held-out prompts."""
    return float(text.strip().startswith(("gladly ,", "yes ,")))


if __name__ == "__main__":
    draw, rows = random.Random(0), []
    for name in ("ann", "ben", "cleo", "dan", "eve", "finn", "gus", "hal", "ida", "jo"):
        for wish in ("sing", "help", "wait", "dance", "cook", "write", "read", "run", "swim", "draw"):
            prompt = f"{name} asks you to {wish} :"
            good, bad = (f" {draw.choice(manner).format(name)}" for manner in (KIND, CURT))
            rows += [{"prompt": prompt, "completion": said} for said in (good, bad, bad)]
            rows.append({"prompt": prompt, "chosen": good, "rejected": bad})
    run = train(methods.dpo(beta=0.5), model="tiny-s", train=rows, reward=kind, test_share=0.2, **{**SIZES, **TOY})
    for how, name in (("greedy", "reward_greedy"), ("sampled", "reward")):
        print(f"kind, {how}: {run.figures['before'][name]:.0%} -> {run.figures['after'][name]:.0%};", end=" ")
    print(f"margin {run.metrics[-1]['policy/reward_margin']:.2f}, loss {run.metrics[-1]['policy/loss']:.2f}")
