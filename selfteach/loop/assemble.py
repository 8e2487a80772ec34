"""From a method and a source to a loop ready to run: only the weight groups that something reads, a learner, an engine,
tools.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..core.blocks import Block
from ..core.errors import BadCheckpoint, BadValue
from ..core.method import Method, Stage
from ..core.quantity import parse
from ..core.scoring import nested
from ..core.task import Task, TaskSource
from ..engine.builtin import BuiltinEngine
from ..engine.equal_length_batching import EqualLengthEngine
from ..learner.local import LocalLearner
from ..learner.param_groups import shared_copy
from ..learner.settings import learning_rate
from ..model import devices, lora
from ..model.base import Model
from ..model.catalog import StartModel
from ..model.tokenizer import Tokenizer
from ..model.transformer import Transformer
from .engine_roles import named_model_roles, speakers
from .memory_plan import groups_of, plan_memory
from .name_checks import check_names
from .run import Loop, SafetyLimits
from .settings import RunSettings
from .step_context import EpisodeLimits, Tool

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
LEARNING = (
    24  # bytes for each number that is learned, which a GPU must have left: gradient, moments, and room for activations
)
CONTEXT = (
    2048  # a context unless another is asked for: a cache for all that some models can hold would not fit this memory
)


def parts_of(stage: Stage) -> list[Block]:
    """Every block of a stage, nested ones too."""
    top = [stage.select, *stage.programs.values(), *stage.reward, *stage.credit]
    top += [t.fn for u in stage.updates for t in u.terms]
    top += [
        p
        for u in stage.updates
        for p in (*u.assign, *(t.loss_weights for t in u.terms), u.where, u.when)
        if p is not None
    ]
    out = list(top)
    for part in top:
        out += nested(part)
    return out


def needed(method: Method) -> Method:
    """The method with only the members and weight groups that something reads: the reference, say, only if a block
    names `ref_...`.
    """
    model_roles = {"policy"} | {m for m in method.models if m != "ref"}
    for stage in method.stages:
        for part in parts_of(stage):
            model_roles |= {v for v in part.hyper_parameters.values() if isinstance(v, str) and v in method.models}
            for column in part.columns:
                name = parse(column, method.models)
                model_roles |= {name.model_role} if name and name.model_role else set()
    models = {m: method.models[m] for m in method.models if m in model_roles}
    groups = {g for m in models.values() for g in m.weights} | {
        g for s in method.stages for u in s.updates for g in u.params
    }
    groups |= {g for s in method.stages for pair in s.enter.items() for g in pair}
    groups |= {w.follow for n, w in method.weights.items() if n in groups and w.follow}
    for g in sorted(groups - method.weights.keys()):
        raise BadValue(f"method {method.name}: no weight group is called {g!r}; it has {', '.join(method.weights)}")
    return replace(method, models=models, weights={n: w for n, w in method.weights.items() if n in groups})


def trainable_groups(method: Method) -> set[str]:
    """The weight groups that change at any time: by an optimiser, following another, or copied as a stage begins."""
    out = {g for s in method.stages for u in s.updates for g in u.params} | {g for s in method.stages for g in s.enter}
    return out | {n for n, w in method.weights.items() if w.follow}


def frozen_groups(method: Method) -> set[str]:
    """The weight groups that never change."""
    return set(method.weights) - trainable_groups(method)


def adapter_for(settings: RunSettings, base: Model) -> lora.Adapter | None:
    """The adapters of a run over a base: fresh, read from a folder, or none.

    Raises BadValue or BadCheckpoint where they do not fit.
    """
    if settings.adapter is None and settings.lora_rank is None:
        return None
    if not isinstance(base, Transformer):
        raise BadValue(
            "lora_rank: adapters are for the families that selfteach computes itself, not for"
            f" {type(base).__name__}; train all weights"
        )
    if settings.adapter is not None:
        return lora.read(Path(settings.adapter), base, settings.lora_dropout)
    if (wanted := settings.fresh_lora) is None:
        return None
    lora.target_layers(wanted, base)
    return lora.Adapter(wanted, {})


def check(method: Method, source: TaskSource) -> None:
    """Say before any work why a method cannot run: on this task, or at all. Raises BadValue or UnknownName."""
    for stage in method.stages:
        if stage.staleness:
            raise BadValue(
                f"method {method.name}: staleness {stage.staleness} is not built yet; every rollout is learned at"
                " once (staleness 0)"
            )
        if stage.data and source.demos is None:
            raise BadValue(
                f"method {method.name} on task {source.name}: it learns from demonstrations, and this task has none"
            )
        for part in stage.reward:
            if "state" in part.needs and "groups" not in part.needs:
                raise BadValue(
                    f"method {method.name}: reward {part.name} remembers, so it must name `groups`: single groups"
                    " come in any order"
                )
            for inner in nested(part):
                if "state" in inner.needs:
                    raise BadValue(
                        f"method {method.name}: reward {inner.name} remembers, so it must stand by itself, not"
                        f" inside {part.name}"
                    )
        for part in stage.programs.values():
            if (wanted := lacking(part, method, source)) is not None:
                raise BadValue(
                    f"method {method.name} on task {source.name}: its program asks {wanted!r}, and there is no"
                    " such tool or member here"
                )
    check_names(method)


def lacking(program: Block, method: Method, source: TaskSource) -> str | None:
    """What a program asks that is neither a tool of task or method nor a member of the cast; None where it can run."""
    known = {**source.tools, **method.tools, **method.models, "own memory": None}
    wanted = [program.hyper_parameters.get(name) for name in ("answerer", "tool")]
    return next((w for w in wanted if isinstance(w, str) and w not in known), None)


def memory(method: Method, start: StartModel, settings: RunSettings) -> str | None:
    """What a run will hold and what is free, in a line; None for a model that is not our own.

    Raises BadValue where it cannot fit.
    """
    if not isinstance(start.model, Transformer):
        return None
    method = needed(method)
    trunks, trained, speaking = groups_of(method)
    device = devices.resolve_device(settings.device)
    bf16, moments_8bit = devices.resolve_dtype(settings.dtype, device) == "bfloat16", settings.optimiser == "adamw8bit"
    engine_bytes = DTYPES[devices.resolve_dtype(settings.engine_dtype, device)].itemsize
    plan = plan_memory(
        start.model.c,
        trunks & trainable_groups(method),
        trained,
        speaking,
        tokens=settings.micro_tokens,
        slots=settings.slots,
        length=context_of(settings, start),
        bf16=bf16,
        recompute=settings.recompute,
        moments_8bit=moments_8bit,
        start=bool(
            trunks & frozen_groups(method)
        ),  # what stands still shares the start's tensors; what moves took them over, or copied them
        rank=settings.lora_rank
        or (16 if settings.adapter else 0),  # of a stored adapter the usual one: it hardly weighs
        engine_bytes=engine_bytes,
        # On a CPU the engine keeps the weights in float32, and packed for its kernel besides.
        engine_weight_bytes=engine_bytes if device.startswith("cuda") else 4 + engine_bytes,
    )
    free = devices.free_memory(device)
    plan.check(free, "--optimiser adamw8bit " * moments_8bit + "--recompute" * settings.recompute)
    return plan.line(free)


def loop(
    method: Method,
    source: TaskSource,
    start: StartModel,
    settings: RunSettings,
    find: Callable[[str], Any] | None = None,
    speak: bool = True,
    given: bool = False,
    teach: bool = True,
) -> Loop:
    """Build learner, engine (unless nobody is to speak) and tools, deliver the first weights, and give the loop.

    `given`: the start's weights are the loop's from then on; otherwise they stay as they are. `teach`: steps will be
    made, so that the weights that move are copied beforehand.
    """
    check(method, source)
    source = spoken(source, start.tokenizer)
    method = needed(method)
    fixed = frozen_groups(method)
    adapter = adapter_for(settings, start.model)
    held = fixed if teach else method.weights
    learner = LocalLearner(
        method.weights, method.models, start.model, settings.seed, settings, adapter, held, given and not start.mapped
    )
    engine = engine_for(method, learner, start, settings, fixed) if speak else None
    made = Loop(
        method=method,
        source=source,
        tokenizer=start.tokenizer,
        learner=learner,
        engine=engine,
        tools=tools_for(method, source),
        lr=lambda step: learning_rate(settings, step),
        steps=settings.steps,
        seed=settings.seed,
        max_tokens=settings.max_tokens or source.defaults.get("max_tokens", 256),
        limits=EpisodeLimits(tool_seconds=settings.tool_seconds),
        bounds=SafetyLimits(settings.max_unscored, settings.max_logprob_mismatch, settings.reward_seconds),
        find=find,
        budget=settings.budget,
    )
    made.deliver_all()
    return made


def engine_for(
    method: Method, learner: LocalLearner, start: StartModel, settings: RunSettings, frozen_groups: Collection[str] = ()
) -> BuiltinEngine | EqualLengthEngine:
    """The engine, holding its own copy of every group that a member uses who speaks or is asked for what its scalar
    heads say (with adapters merged in: why, says model/lora.py), but for those that stay as they are: the built-in one,
    or where a model's attention cannot be handed in, the one of cohorts.
    """
    seats, named = learner.groups.models, named_model_roles(method)
    speaking = {name: seats[name].trunk for name in speakers(method)}
    trunks = {group: learner.groups[group].trunk for group in sorted(set(speaking.values()))}
    models = {group: _spoken_by(trunk, group in frozen_groups) for group, trunk in trunks.items() if trunk is not None}
    device = devices.resolve_device(settings.device)
    asked = {name: dict(seats[name].heads) for name in speaking if seats[name].heads and name in named}
    homes = {g for own in asked.values() for g in own.values()} | {g for g in models if learner.groups[g].heads}
    heads = {
        group: {h: copy.deepcopy(layer).to(device) for h, layer in learner.groups[group].heads.items()}
        for group in sorted(homes)
    }
    more: dict[str, Any] = {
        "slots": settings.slots,
        "length": context_of(settings, start),
        "heads": heads,
        "model_heads": asked,
    }
    if not all(model.supports_custom_attention for model in models.values()):
        return EqualLengthEngine(models, speaking, start.tokenizer, device=device, **more)
    dtype = DTYPES[devices.resolve_dtype(settings.engine_dtype, device)]
    off_context = {g for s in method.stages for u in s.updates for g in u.params}
    learned = sum(p.numel() for g in off_context for p in learner.groups[g].named_parameters().values())
    return BuiltinEngine(
        models, speaking, start.tokenizer, device=device, dtype=dtype, reserve=LEARNING * learned, **more
    )


def _spoken_by(trunk: Model, frozen_groups: bool) -> Model:
    if isinstance(trunk, Transformer) and lora.factors(trunk):
        return lora.merged_copy(trunk)
    return shared_copy(trunk) if frozen_groups else copy.deepcopy(trunk)


def context_of(settings: RunSettings, start: StartModel) -> int:
    """Tokens of a whole context. Raises BadCheckpoint where the model has fewer than were asked for."""
    most = start.model.c.max_length
    length = settings.context or min(most, CONTEXT)
    if length > most:
        raise BadCheckpoint(
            f"config.json: the model's context (max_position_embeddings) is {most} tokens, not {length}; ask for a"
            f" context of at most {most}"
        )
    if settings.max_tokens and settings.max_tokens >= length:
        raise BadValue(
            f"max_tokens: a turn of {settings.max_tokens} tokens does not fit a context of {length}; ask for"
            " shorter turns or a longer context"
        )
    return length


def spoken(source: TaskSource, tokenizer: Tokenizer) -> TaskSource:
    """The source as its tasks are put to a model: as messages where it has a chat template, otherwise as they are."""
    if tokenizer.chat is None:
        return source

    def ask(task: Task) -> Task:
        if not isinstance(task.prompt, str):
            return task
        return replace(
            task, prompt=source.chat(task) if source.chat else [{"role": "user", "content": task.prompt.strip()}]
        )

    demos = source.demos
    return replace(
        source,
        train=lambda i: ask(source.train(i)),
        test=[ask(t) for t in source.test],
        demos=None if demos is None else lambda i: ask(demos(i)),
    )


def tools_for(method: Method, source: TaskSource) -> Mapping[str, Tool]:
    """The task's tools and the method's, built."""
    out: dict[str, Tool] = {}
    for name, part in {**source.tools, **method.tools}.items():
        out[name] = part(source=source) if "source" in part.needs else part()
    return out
