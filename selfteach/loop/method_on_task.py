"""A method as it runs on a task: what of it is needed and trained, and whether it can run there. Without torch, so that
what cannot run is refused at once.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ..core.blocks import Block, items_read, last_step_read, shared_state, why_items_read
from ..core.errors import BadValue
from ..core.method import Method, Stage
from ..core.quantity import parse
from ..core.scoring import nested, with_nested
from ..core.task import TaskSource
from .name_checks import check_names


def blocks_of(stage: Stage) -> list[Block]:
    """Every block of a stage, nested ones too."""
    top = [stage.select, *stage.programs.values(), *stage.reward, *stage.credit]
    top += [t.fn for u in stage.updates for t in u.terms]
    top += [
        p
        for u in stage.updates
        for p in (*u.assign, *(t.loss_weights for t in u.terms), u.where, u.when)
        if p is not None
    ]
    return with_nested(top)


def needed(method: Method) -> Method:
    """The method with only the models and weight groups that something reads: the reference model, say, only if a block
    names `ref_...`.
    """
    model_roles = {"policy"} | {m for m in method.models if m != "ref"}
    for stage in method.stages:
        for block in blocks_of(stage):
            model_roles |= {v for v in block.hyper_parameters.values() if isinstance(v, str) and v in method.models}
            for column in block.columns:
                name = parse(column, method.models)
                model_roles |= {name.model_role} if name and name.model_role else set()
    models = {m: method.models[m] for m in method.models if m in model_roles}
    groups = {g for m in models.values() for g in m.weights} | {
        g for s in method.stages for u in s.updates for g in u.params
    }
    groups |= {g for s in method.stages for g in (*s.enter.keys(), *s.enter.values(), *s.reset)}
    groups |= {w.follow for n, w in method.weights.items() if n in groups and w.follow}
    for g in sorted(groups - method.weights.keys()):
        raise BadValue(f"method {method.name}: no weight group is called {g!r}; it has {', '.join(method.weights)}")
    return replace(method, models=models, weights={n: w for n, w in method.weights.items() if n in groups})


def trainable_groups(method: Method) -> set[str]:
    """The weight groups that ever change: by an optimiser, following another, or copied as a stage begins."""
    out = {g for s in method.stages for u in s.updates for g in u.params} | {g for s in method.stages for g in s.enter}
    return out | {n for n, w in method.weights.items() if w.follow}


def frozen_groups(method: Method) -> set[str]:
    """The weight groups that never change."""
    return set(method.weights) - trainable_groups(method)


def check(method: Method, source: TaskSource) -> None:
    """Check before any work that a method can run on this task. Raises BadValue or UnknownName."""
    for stage in method.stages:
        items = items_read(stage.select) or ("demos" if stage.data else None)
        if items and getattr(source, items) is None:
            kind = {"demos": "demonstrations", "pairs": "preference pairs (columns prompt, chosen, rejected)"}[items]
            more = "; of your own they are rows with a column completion" if items == "demos" else ""
            more += f"; {why}" if (why := why_items_read(stage.select)) else ""
            raise BadValue(
                f"method {method.name} on task {source.name}: it learns from {kind}, and this task has none{more}"
            )
        for block in stage.reward:
            if "state" in block.needs and "groups" not in block.needs:
                raise BadValue(
                    f"method {method.name}: reward {block.name} is stateful, so it must name `groups`: single groups"
                    " come in any order"
                )
            for inner in nested(block):
                if "state" in inner.needs and "state" not in block.needs:  # one that is stateful itself keeps it
                    raise BadValue(
                        f"method {method.name}: reward {inner.name} is stateful, so it cannot be inside {block.name}"
                    )
        for block in stage.programs.values():
            if (wanted := lacking(block, method, source)) is not None:
                raise BadValue(
                    f"method {method.name} on task {source.name}: its program names {wanted!r}, and there is no"
                    " such tool or model here"
                )
    check_names(method)


def check_run_ahead(method: Method, staleness: int | None, interrupt: bool) -> None:
    """Check before any work that a method's rollouts can run ahead of learning by so many versions (None: each stage's
    own). Raises BadValue.
    """
    ahead = [s for s in method.stages if not s.data and (s.staleness if staleness is None else staleness)]
    if interrupt and not ahead:
        raise BadValue("interrupt: is for rollouts that run ahead of learning; give --staleness 1 or more too")
    for stage in ahead:
        if stage.sync > 1:
            raise BadValue(
                f"method {method.name}: its weights are delivered every {stage.sync} updates, so that rollouts would be"
                " older than their staleness allows; set sync to 1 (--sync 1), or --staleness 0"
            )
        if stage.sampler is not None:
            raise BadValue(
                f"method {method.name}: {stage.sampler.name} changes what the engine samples with in every step, so"
                " rollouts cannot run ahead of learning; take --staleness 0"
            )
        why = last_step_read(stage.select)
        if why is None and (shared := shared_state(stage.select)):
            others = [b.name for b in blocks_of(stage) if b.name != stage.select.name and shared_state(b) == shared]
            why = f"it goes on from what {' and '.join(others)} has stored of the step before" if others else None
        if why is not None:
            raise BadValue(
                f"method {method.name}: its select {stage.select.name} cannot run ahead of learning: {why}; take"
                " --staleness 0"
            )


def for_task(method: Method, source: TaskSource, judge: Block | None) -> Method:
    """The method as it plays a task that brings a program of its own (an environment): that in place of each single
    turn, the task's judge in place of exact_match. As it is where the task brings none. A program of the method's own
    that plays by a tool of the task (its `tool`) is kept.

    Raises BadValue for a method whose programs are its own and play by no such tool.
    """
    if source.program is None:
        return method
    if judge is None:
        raise BadValue(f"task {source.name}: brings a program, and no judge of what it does; give it defaults['judge']")
    method = played_by(
        method,
        source.program,
        f"on task {source.name}",
        f"this task is played by {source.program.name}",
        source.tools,
    )
    method = replace(method, decode={**method.decode, **source.decode})
    rewarded = any(stage.reward for stage in method.stages)
    return method.with_reward(judge, required=rewarded and all(judge.name not in str(s.reward) for s in method.stages))


def played_by(method: Method, own: Block, where: str, why: str, tools: Collection[str] = ()) -> Method:
    """The method with a program in place of each single turn, also inside other programs, and the decode programs that
    then play it. A program whose `tool` is one of `tools` plays by itself.

    Raises BadValue for a method whose programs are its own: it says where, and why they cannot be.
    """

    def played(program: Block) -> Block:
        if program.name == "single":
            return program if {"prefix", "model_role"} & program.args.keys() else own
        inner = {n: played(p) for n, p in program.args.items() if isinstance(p, Block)}
        return program.replace(**inner) if inner else program

    def is_played(program: Block) -> bool:
        by_itself = program.hyper_parameters.get("tool") in tools
        return by_itself or own.name in (program.name, *(p.name for p in nested(program)))

    stages: list[Stage] = []
    for stage in method.stages:
        programs = {name: played(program) for name, program in stage.programs.items()}
        for program in programs.values():
            if not is_played(program) and program.name != "read" and not stage.data:
                raise BadValue(
                    f"method {method.name} {where}: its program {program.name} is its own, and {why}; take a method"
                    " that answers in a single turn, such as grpo, rloo or ppo"
                )
        stages.append(replace(stage, programs=programs))
    decode = {name: played(program) for name, program in method.decode.items()}
    return replace(method, stages=tuple(stages), decode={n: p for n, p in decode.items() if is_played(p)})


def lacking(program: Block, method: Method, source: TaskSource) -> str | None:
    """The first name that a program needs and that is no tool of task or method and no model; None where it can run."""
    known = {**source.tools, **method.tools, **method.models, "own memory": None}
    return next((name for name in asked_names(program) if name not in known), None)


def asked_names(program: Block) -> list[str]:
    """The tools and models that a program asks by name, also inside other blocks."""
    values = [p.hyper_parameters.get(name) for p in with_nested([program]) for name in ("answerer", "tool")]
    return [v for v in values if isinstance(v, str)]
