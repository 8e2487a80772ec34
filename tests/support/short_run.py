"""A run of two steps of any method on a small task, from a very small model that was not trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from selfteach import api
from selfteach.configuration import RunConfig, plan, task_source
from selfteach.core import Block, Method, registry
from selfteach.core.errors import SelfteachError
from selfteach.core.regime import home_of
from selfteach.core.scoring import whole_step
from selfteach.loop.assemble import check
from selfteach.loop.method_on_task import for_task
from selfteach.reward.combine import weighted

SMALL_TASKS = {  # options that make a task small; a claim's task without an entry runs as it is
    "chain_sum": {"terms": (2, 2), "style": "terse", "n_test": 8},
    "factworld": {"entities": 60, "relations": 4, "hops": (1, 2), "n_test": 8},
    "countdown": {"numbers": (2, 2), "tries": 0, "n_test": 8},
    "strings": {"depth": (1, 2), "n_test": 8},
    "preference": {"n_test": 8},
    "games": {"n_test": 8},
    "digit_sum": {"n_test": 8},
    "hidden_rule": {"n_test": 8},
    "triplets": {"n_test": 8},
    "fact_graph": {"entities": 60, "relations": 4, "hops": (1,), "parts": 2, "n_test": 8},
    "household": {"n_test": 8, "max_turns": 4},
    "dialog_graph": {"n_test": 6, "max_turns": 6},
    "mended_sums": {"n_test": 8},
    "hesitant_sums": {"n_test": 8},
    "two_tongues": {"n_test": 8},
    "overestimated_sums": {"n_test": 8},
    "unasked_sums": {"n_test": 8},
    "translation": {"n_test": 8},
    "self_knowledge": {"n_test": 8},
    "report": {"n_test": 8},
    "sums_in_rounds": {"n_test": 8},
    "twenty_questions": {"n_test": 8, "max_turns": 4},
    "guess_number": {"n_test": 8, "max_turns": 4},
}
# of methods whose tools a task has with some options only
ROUTED: dict[str, Any] = {"hops": (1,), "ways": (0.0, 0.6, 0.0, 0.0, 0.2, 0.2), "says": "route"}
WORDED: dict[str, Any] = {"ways": (0.1, 0.2, 0.1, 0.1, 0.2, 0.3), "worded": 0.5}  # a rule must reject what is right
OPTIONS_OF = {
    "router_r1": ROUTED,
    "hier_search": ROUTED,
    "tinyv": WORDED,
    "soft_rlvr": WORDED,
    "asearcher": {"parts": 1},
}
TASK_OF = {
    "pointwise": "preference",  # a control without a claim, whose judge only that task has
    "rebn": "digit_sum",  # turns of an environment are paid by it, and who was not trained earns nothing there
}
STAND_IN = {"atlas": "factworld"}  # the same generator over a small world
# Hyper-parameters of many methods.
SMALL = {"groups": 3, "rollouts": 3, "batch": 6, "tasks": 3, "teacher_steps": 1, "tokens": 8} | dict.fromkeys(
    ("critic_warmup", "estimator_steps"), 1
)
SMALL["low_steps"] = 0  # of agents below the one that is the policy


def short_job(name: str, start: Callable[..., Path]) -> RunConfig:
    """Two steps of a method on the task of its claim, all sizes small. `start` gives the folder of a model by task."""
    entry = registry.methods.get(name)
    task, options = task_of(name)
    small = {k: v for k, v in SMALL.items() if k in entry.hyper_parameters and entry.hyper_parameters[k].default > 1}
    settings = {"steps": 2, "max_tokens": 8, "eval_every": 0, "checkpoint_every": 9}
    run_config = plan(name, task, options, args=small, settings=settings, model=str(start(task, options)))
    return replace(
        run_config,
        method=varied(shrunk(run_config.method)),
        final_eval=api.EvalConfig(tasks=1, pass_at_k_tasks=1, k=2, decoder_samples=1),
    )


def task_of(name: str) -> tuple[str, dict[str, Any]]:
    """The task of a method's claim, or the first that it can run on with its defaults; small."""
    entry = registry.methods.get(name)
    if name in TASK_OF:
        return TASK_OF[name], SMALL_TASKS[TASK_OF[name]]
    for task in [home_of(entry).task, "chain_sum", "factworld"]:
        task = STAND_IN.get(task, task)
        options = SMALL_TASKS.get(task, {}) | OPTIONS_OF.get(name, {})
        try:
            source = task_source(task, options)
            check(for_task(entry(), source, source.defaults.get("judge")), source)
            return task, options
        except SelfteachError:
            continue
    raise AssertionError(f"{name} runs on no task here")


def shrunk(method: Method) -> Method:
    """The method with few groups, minibatches and epochs in every stage, and one step in all stages but the last."""
    stages = []
    for stage in method.stages:
        updates = tuple(replace(u, epochs=min(u.epochs, 2), minibatches=min(u.minibatches, 2)) for u in stage.updates)
        until = stage.until if stage is method.stages[-1] or stage.until is None else 1
        stages.append(replace(stage, updates=updates, groups=min(stage.groups, 4), until=until))
    return replace(method, stages=tuple(stages))


def varied(method: Method) -> Method:
    """The method with its rewards made different from one answer to the next, so that a group carries a gradient."""
    spread = registry.blocks.get("spread")
    stages = []
    for stage in method.stages:
        if stage.reward and not any(whole_step(r) for r in stage.reward):
            stage = replace(stage, reward=(weighted(parts=(*((1.0, r) for r in stage.reward), (1.0, spread()))),))
        elif stage.reward:
            # a reward of the whole step cannot be part of another: its own parts are changed, and what assigners read
            inner = [
                {k: weighted(parts=((1.0, v), (1.0, spread()))) for k, v in r.args.items() if isinstance(v, Block)}
                for r in stage.reward
            ]
            stage = replace(
                stage, reward=tuple(r.replace(**given) for r, given in zip(stage.reward, inner, strict=True))
            )
            first = next((i for i, p in enumerate(stage.credit) if "reward" in p.columns), None)
            if first is not None:
                out = registry.blocks.get("spread_out")()
                stage = replace(stage, credit=(*stage.credit[:first], out, *stage.credit[first:]))
        stages.append(stage)
    return replace(method, stages=tuple(stages))
