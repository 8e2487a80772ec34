"""Typed functions as tools: a policy learns to do what it is asked by a tool, not only to say so (docs/tools.md).

Half of the demonstrations switch the right light on and say so, half only say so.

One run of 15 steps: calls an answer 0.39 -> 0.82; held-out reward, greedy, 0 -> 0.6 (20 prompts), sampled 0.18 -> 0.40;
that of the rollouts 0.25 -> 0.5; 24 s of one core.
"""

import os
from typing import Literal

from selfteach import methods, train

SIZES = {"steps": 15, "warm_steps": 300, "warm_batch": 16, "lr": 3e-4, "final_eval_tasks": 60, "eval_every": 5}
TOY = {"steps": 1, "warm_steps": 2, "final_eval_tasks": 2, "eval_every": 0} if "SELFTEACH_TOY" in os.environ else {}


def light(room: Literal["attic", "cellar", "hall", "shed"]) -> str:
    """Switch on a light."""
    return f"{room} is lit"


def lit(text, task):
    """1 where the policy called the tool for the room that was asked for, and then said so."""
    return float(f'"room": "{task.answer}"' in text and text.endswith("<answer>done</answer>"))


if __name__ == "__main__":
    rows = []
    for who in ("ann", "ben", "cleo", "dan", "eve", "finn", "gus", "hal", "ida", "jo", "kit", "lou"):
        for room in ("attic", "cellar", "hall", "shed"):
            call = f'<tool_call>{{"name": "light", "arguments": {{"room": "{room}"}}}}</tool_call>'
            call += f"<tool_response>{light(room)}</tool_response>"
            row = {"prompt": f"{who} asks : light the {room} . ", "answer": room}
            rows += [row | {"completion": before + "<answer>done</answer>"} for before in (call, "")]
    sizes = {"test_share": 0.2, "final_eval_k": 0, **SIZES, **TOY}
    run = train(methods.grpo(), model="tiny-s", train=rows, tools=[light], reward=lit, **sizes)
    before, after = run.figures["before"], run.figures["after"]
    print(f"lit, sampled: {before['reward']:.0%} -> {after['reward']:.0%};", end=" ")
    print(f"calls an answer: {before['calls']:.2f} -> {after['calls']:.2f}")
