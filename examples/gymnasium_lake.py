"""An environment of Gymnasium, turn by turn: FrozenLake in words (pip install 'selfteach[gym]').

Demonstrated moves are random in 40 of 100 cases. For an environment of your own: docs/environments.md.

One run: episodes that reach the goal, sampled, 17 % -> 34 %, greedy 0 -> 100 %; 48 s of one core.
"""

import os

from selfteach import methods, train

LAKE = {"id": "FrozenLake-v1", "config": "is_slippery=false", "noise": 0.4, "max_turns": 12}
SIZES = {"steps": 20, "lr": 1e-3, "final_eval_tasks": 60, "final_eval_pass_at_k_tasks": 0}
TOY = {"steps": 1, "warm_steps": 2, "final_eval_tasks": 2, "eval_every": 0} if "SELFTEACH_TOY" in os.environ else {}

if __name__ == "__main__":
    method = methods.grpo(groups=2, rollouts=2) if TOY else methods.grpo()
    run = train(method, model="tiny-s", task="gym", task_options=LAKE, **{**SIZES, **TOY})
    before, after = run.figures["before"], run.figures["after"]
    print(f"episodes that reach the goal, sampled: {before['accuracy']:.0%} -> {after['accuracy']:.0%}")
