"""From a method and a source to a loop ready to run: only the weight groups that something reads, a learner, an engine, tools."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from ..core.errors import BadCheckpoint, BadValue
from ..core.method import Method, Stage
from ..core.part import Part
from ..core.scoring import nested
from ..core.task import Source, Task
from ..engine.builtin import BuiltinEngine
from ..engine.cohort import CohortEngine
from ..learner.groups import twin
from ..learner.local import LocalLearner
from ..learner.settings import Decay, Optimiser, rate
from ..learner.settings import Settings as LearnerSettings
from ..model import devices, lora
from ..model.base import Model
from ..model.quantities import parse
from ..model.tokenizer import Tokenizer
from ..model.transformer import Transformer
from ..model.zoo import Start
from .memory import groups_of, reckon
from .run import Bounds, Loop
from .speaking import named_members, speakers
from .table import Limits, Tool

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
LEARNING = 24  # bytes for each number that is learned, which a GPU must have left: gradient, moments, and room for activations
CONTEXT = 2048  # a context unless another is asked for: a cache for all that some models can hold would not fit this memory


@dataclass(frozen=True)
class Settings:
    """How a run is carried out, whatever the method."""

    seed: int = 0
    steps: int = 60
    lr: float = 3e-4
    decay: Decay = "constant"
    warmup: int = 0
    grad_clip: float = 1.0
    weight_decay: float = 0.0
    device: str = "auto"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    optimiser: Optimiser = "adamw"
    recompute: bool = False
    micro_tokens: int = 4096
    slots: int = 64
    engine_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    context: int | None = None  # tokens of a whole context; None: the model's own, or 2048 where that is more
    threads: int = 0  # of matrix products: the same number gives the same bits; 0: as the process is set
    max_tokens: int | None = None
    eval_every: int = 10
    eval_tasks: int = 96
    checkpoint_every: int = 10
    keep: int = 2
    unscored: float = 0.1
    gap: float = 0.1
    tool_seconds: float = 30.0
    reward_seconds: float = 60.0
    lora_rank: int | None = None  # None: all weights are trained
    lora_alpha: float | None = None
    lora_targets: tuple[str, ...] = (lora.ALL,)
    lora_dropout: float | None = None
    lora_rslora: bool = False
    adapter: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "lora_targets", tuple(self.lora_targets))
        kinds = ("lora_alpha", "lora_targets", "lora_rslora")
        given = [n for n in kinds if getattr(self, n) != Settings.__dataclass_fields__[n].default]
        if self.adapter is not None and (given or self.lora_rank is not None):
            raise BadValue(f"adapter: {self.adapter} says its own rank, alpha and targets; leave {', '.join(given) or 'lora_rank'} out")
        given += ["lora_dropout"] * (self.lora_dropout is not None)
        if self.fresh_lora is None and self.adapter is None and given:
            raise BadValue(f"{given[0]}: means something for adapters only; give lora_rank too")

    @property
    def fresh_lora(self) -> lora.Lora | None:
        """What fresh adapters are to be; None where all weights are trained, or adapters go on from a folder."""
        if self.lora_rank is None:
            return None
        return lora.Lora(self.lora_rank, self.lora_alpha, self.lora_targets, self.lora_dropout or 0.0, self.lora_rslora)

    def full(self) -> Settings:
        """The same without adapters, for a model into which they are merged."""
        return replace(self, lora_rank=None, lora_alpha=None, lora_targets=(lora.ALL,), lora_dropout=None, lora_rslora=False, adapter=None)


def parts_of(stage: Stage) -> list[Part]:
    """Every block of a stage, nested ones too."""
    top = [stage.select, *stage.programs.values(), *stage.reward, *stage.credit]
    top += [t.fn for u in stage.updates for t in u.terms]
    top += [p for u in stage.updates for p in (*u.assign, *(t.weigh for t in u.terms), u.where, u.when) if p is not None]
    out = list(top)
    for part in top:
        out += nested(part)
    return out


def needed(method: Method) -> Method:
    """The method with only the members and weight groups that something reads: the reference, say, only if a block names `ref_...`."""
    members = {"policy"} | {m for m in method.cast if m != "ref"}
    for stage in method.stages:
        for part in parts_of(stage):
            members |= {v for v in part.knobs.values() if isinstance(v, str) and v in method.cast}
            for column in part.columns:
                name = parse(column, method.cast)
                members |= {name.member} if name and name.member else set()
    cast = {m: method.cast[m] for m in method.cast if m in members}
    groups = {g for m in cast.values() for g in m.weights} | {g for s in method.stages for u in s.updates for g in u.params}
    groups |= {g for s in method.stages for pair in s.enter.items() for g in pair}
    groups |= {w.follow for n, w in method.weights.items() if n in groups and w.follow}
    for g in sorted(groups - method.weights.keys()):
        raise BadValue(f"method {method.name}: no weight group is called {g!r}; it has {', '.join(method.weights)}")
    return replace(method, cast=cast, weights={n: w for n, w in method.weights.items() if n in groups})


def moving(method: Method) -> set[str]:
    """The weight groups that change at any time: by an optimiser, following another, or copied as a stage begins."""
    out = {g for s in method.stages for u in s.updates for g in u.params} | {g for s in method.stages for g in s.enter}
    return out | {n for n, w in method.weights.items() if w.follow}


def still(method: Method) -> set[str]:
    """The weight groups that never change."""
    return set(method.weights) - moving(method)


def adapter_for(settings: Settings, base: Model) -> lora.Adapter | None:
    """The adapters of a run over a base: fresh, read from a folder, or none. Raises BadValue or BadCheckpoint where they do not fit."""
    if settings.adapter is None and settings.lora_rank is None:
        return None
    if not isinstance(base, Transformer):
        raise BadValue(f"lora_rank: adapters are for the families that selfteach computes itself, not for {type(base).__name__}; train all weights")
    if settings.adapter is not None:
        return lora.read(Path(settings.adapter), base, settings.lora_dropout)
    if (wanted := settings.fresh_lora) is None:
        return None
    lora.targeted(wanted, base)
    return lora.Adapter(wanted, {})


def check(method: Method, source: Source) -> None:
    """Say before any work why a method cannot run: on this task, or at all. Raises BadValue or UnknownName."""
    for stage in method.stages:
        if stage.staleness:
            raise BadValue(f"method {method.name}: staleness {stage.staleness} is not built yet; every rollout is learned at once (staleness 0)")
        if stage.data and source.demos is None:
            raise BadValue(f"method {method.name} on task {source.name}: it learns from demonstrations, and this task has none")
        for part in stage.reward:
            if "state" in part.needs and "groups" not in part.needs:
                raise BadValue(f"method {method.name}: reward {part.name} remembers, so it must name `groups`: single groups come in any order")
            for inner in nested(part):
                if "state" in inner.needs:
                    raise BadValue(f"method {method.name}: reward {inner.name} remembers, so it must stand by itself, not inside {part.name}")
        for part in stage.programs.values():
            if (wanted := lacking(part, method, source)) is not None:
                raise BadValue(f"method {method.name} on task {source.name}: its program asks {wanted!r}, and there is no such tool or member here")


def lacking(program: Part, method: Method, source: Source) -> str | None:
    """What a program asks that is neither a tool of the task or method nor a member of the cast; None where it can run."""
    known = {**source.tools, **method.tools, **method.cast, "own memory": None}
    wanted = [program.knobs.get(name) for name in ("answerer", "tool")]
    return next((w for w in wanted if isinstance(w, str) and w not in known), None)


def memory(method: Method, start: Start, settings: Settings) -> str | None:
    """What a run will hold and what is free, in a line; None for a model that is not our own. Raises BadValue where it cannot fit."""
    if not isinstance(start.model, Transformer):
        return None
    method = needed(method)
    trunks, trained, speaking = groups_of(method)
    device = devices.device_of(settings.device)
    half, coded = devices.precision_of(settings.dtype, device) == "bfloat16", settings.optimiser == "adamw8bit"
    plan = reckon(
        start.model.c,
        trunks & moving(method),
        trained,
        speaking,
        tokens=settings.micro_tokens,
        slots=settings.slots,
        length=context_of(settings, start),
        half=half,
        recompute=settings.recompute,
        coded=coded,
        start=bool(trunks & still(method)),  # what stands still shares the start's tensors; what moves took them over, or copied them
        rank=settings.lora_rank or (16 if settings.adapter else 0),  # of a stored adapter the usual one: it hardly weighs
    )
    free = devices.free_memory(device)
    plan.check(free, "--optimiser adamw8bit " * coded + "--recompute" * settings.recompute)
    return plan.line(free)


def loop(
    method: Method,
    source: Source,
    start: Start,
    settings: Settings,
    find: Callable[[str], Any] | None = None,
    budget: int | None = None,
    speak: bool = True,
    given: bool = False,
    teach: bool = True,
) -> Loop:
    """Build learner, engine (unless nobody is to speak) and tools, deliver the first weights, and give the loop.

    `given`: the start's weights are the loop's from then on; otherwise they stay as they are. `teach`: steps will be made, so that the
    weights that move are copied beforehand.
    """
    check(method, source)
    source = spoken(source, start.tokenizer)
    method = needed(method)
    device = devices.device_of(settings.device)
    how = LearnerSettings(
        lr=settings.lr,
        clip=settings.grad_clip,
        weight_decay=settings.weight_decay,
        warmup=settings.warmup,
        decay=settings.decay,
        decay_steps=settings.steps,
        dtype=devices.precision_of(settings.dtype, device),  # type: ignore[arg-type]
        tokens=settings.micro_tokens,
        device=device,
        optimiser=settings.optimiser,
        recompute=settings.recompute,
    )
    fixed = still(method)
    adapter = adapter_for(settings, start.model)
    held = fixed if teach else method.weights
    learner = LocalLearner(method.weights, method.cast, start.model, settings.seed, how, adapter, held, given and not start.mapped)
    engine = engine_for(method, learner, start, settings, fixed) if speak else None
    made = Loop(
        method=method,
        source=source,
        tokenizer=start.tokenizer,
        learner=learner,
        engine=engine,
        tools=tools_for(method, source),
        lr=lambda step: rate(how, step),
        steps=settings.steps,
        seed=settings.seed,
        max_tokens=settings.max_tokens or source.defaults.get("max_tokens", 256),
        limits=Limits(tool_seconds=settings.tool_seconds),
        bounds=Bounds(unscored=settings.unscored, gap=settings.gap, seconds=settings.reward_seconds),
        find=find,
        budget=budget,
    )
    made.deliver_all()
    return made


def engine_for(method: Method, learner: LocalLearner, start: Start, settings: Settings, still: Collection[str] = ()) -> BuiltinEngine | CohortEngine:
    """The engine, holding its own copy of every group that a member uses who speaks or is asked for what its scalar heads say (with adapters
    merged in: why, says model/lora.py), but for those that stay as they are: the built-in one, or where a model's attention cannot be handed
    in, the one of cohorts."""
    seats, named = learner.groups.seats, named_members(method)
    speaking = {name: seats[name].trunk for name in speakers(method)}
    trunks = {group: learner.groups[group].trunk for group in sorted(set(speaking.values()))}
    models = {group: _spoken_by(trunk, group in still) for group, trunk in trunks.items() if trunk is not None}
    device = devices.device_of(settings.device)
    asked = {name: dict(seats[name].heads) for name in speaking if seats[name].heads and name in named}
    homes = {g for own in asked.values() for g in own.values()} | {g for g in models if learner.groups[g].heads}
    heads = {group: {h: copy.deepcopy(layer).to(device) for h, layer in learner.groups[group].heads.items()} for group in sorted(homes)}
    more: dict[str, Any] = {"slots": settings.slots, "length": context_of(settings, start), "heads": heads, "asked": asked}
    if not all(model.pluggable for model in models.values()):
        return CohortEngine(models, speaking, start.tokenizer, device=device, **more)
    dtype = DTYPES[devices.precision_of(settings.engine_dtype, device)]
    moved = {g for s in method.stages for u in s.updates for g in u.params}
    learned = sum(p.numel() for g in moved for p in learner.groups[g].names().values())
    return BuiltinEngine(models, speaking, start.tokenizer, device=device, dtype=dtype, reserve=LEARNING * learned, **more)


def _spoken_by(trunk: Model, still: bool) -> Model:
    if isinstance(trunk, Transformer) and lora.factors(trunk):
        return lora.plain(trunk)
    return twin(trunk) if still else copy.deepcopy(trunk)


def context_of(settings: Settings, start: Start) -> int:
    """Tokens of a whole context. Raises BadCheckpoint where the model has fewer than were asked for."""
    most = start.model.c.max_length
    if settings.context is not None and settings.context < 2:
        raise BadValue(f"context: must be at least 2 tokens, not {settings.context}")
    length = settings.context or min(most, CONTEXT)
    if length > most:
        raise BadCheckpoint(
            f"config.json: the model's context (max_position_embeddings) is {most} tokens, not {length}; ask for a context of at most {most}"
        )
    if settings.max_tokens and settings.max_tokens >= length:
        raise BadValue(
            f"max_tokens: a turn of {settings.max_tokens} tokens does not fit a context of {length}; ask for shorter turns or a longer context"
        )
    return length


def spoken(source: Source, tokenizer: Tokenizer) -> Source:
    """The source as its tasks are put to a model: as messages where it has a chat template, otherwise as they are."""
    if tokenizer.chat is None:
        return source

    def ask(task: Task) -> Task:
        if not isinstance(task.prompt, str):
            return task
        return replace(task, prompt=source.chat(task) if source.chat else [{"role": "user", "content": task.prompt.strip()}])

    demos = source.demos
    return replace(
        source, train=lambda i: ask(source.train(i)), test=[ask(t) for t in source.test], demos=None if demos is None else lambda i: ask(demos(i))
    )


def tools_for(method: Method, source: Source) -> Mapping[str, Tool]:
    """The task's tools and the method's, built."""
    out: dict[str, Tool] = {}
    for name, part in {**source.tools, **method.tools}.items():
        out[name] = part(source=source) if "source" in part.needs else part()
    return out
