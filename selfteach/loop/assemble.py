"""Assembling a loop from a method and a task source: the weight groups that something reads, learner, engine, tools."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..cluster.call_workers import CallWorkers
from ..cluster.rank_host import RankPlacer
from ..cluster.ray_cluster import Cluster
from ..core import registry
from ..core.errors import BadCheckpoint, BadValue
from ..core.method import Method
from ..core.protocols import ClosableEngine, Engine
from ..core.tagged_text import messages_as_text
from ..core.task import Task, TaskSource
from ..engine.builtin import BuiltinEngine
from ..engine.equal_length_batching import EqualLengthEngine
from ..engine.http import HttpEngine
from ..engine.recipe import EngineRecipe
from ..learner.local import LocalLearner
from ..learner.param_groups import shared_copy
from ..learner.settings import learning_rate
from ..model import devices, lora, peft_files
from ..model.base import Model
from ..model.catalog import StartModel
from ..model.tokenizer import Tokenizer, is_conversation
from ..model.transformer import Transformer
from .engine_roles import check_engine, engine_model_roles, named_model_roles
from .memory_plan import groups_of, plan_memory
from .method_on_task import check, check_run_ahead, frozen_groups, needed, trainable_groups
from .mismatch_correction import MismatchCorrection
from .placed import on_own_gpu, placed_engine, placed_vllm
from .remote_engines import http_engine, roles_of, vllm_engine
from .run import Loop
from .run_ahead import RunAhead
from .safety import SafetyLimits
from .settings import RunSettings
from .step_context import EpisodeLimits, Tool
from .text_limit import CHARACTERS_PER_TOKEN

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# Bytes per trained parameter that the engine leaves free on a GPU: gradient, moments, activations.
TRAINING_BYTES = 24
MAX_TOKENS = 256  # of a turn, where neither the run nor the task says
MAX_CONTEXT = 2048  # tokens, unless another context is configured: the cache of some models' whole context is too large


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
        return peft_files.read(Path(settings.adapter), base, settings.lora_dropout)
    if (wanted := settings.fresh_lora) is None:
        return None
    lora.target_layers(wanted, base)
    return lora.Adapter(wanted, {})


def memory(method: Method, start: StartModel, settings: RunSettings) -> str | None:
    """The memory plan of a run and the free memory, in a line; None for a model that runs through transformers.

    Raises BadValue where it does not fit.
    """
    if not isinstance(start.model, Transformer):
        return None
    method, placed = needed(method), settings.cluster != "none"
    trunks, trained, sampled = groups_of(method)
    if settings.engine != "builtin" or placed:  # which hold their own, elsewhere
        sampled = set[str]()
    device = devices.resolve_device(("cuda" if settings.learner_gpus else "cpu") if placed else settings.device)
    bf16, moments_8bit = devices.resolve_dtype(settings.dtype, device) == "bfloat16", settings.optimiser == "adamw8bit"
    engine_bytes = DTYPES[devices.resolve_dtype(settings.engine_dtype, device)].itemsize
    plan = plan_memory(
        start.model.config,
        trunks & trainable_groups(method),
        trained,
        sampled,
        tokens=settings.micro_tokens,
        slots=settings.slots,
        length=context_of(settings, start),
        bf16=bf16,
        recompute=settings.recompute,
        moments_8bit=moments_8bit,
        start=bool(trunks & frozen_groups(method)),  # trainable groups took the start's tensors over, or copied them
        gpu=device != "cpu",
        rank=settings.lora_rank or (16 if settings.adapter else 0),  # for a stored adapter a usual rank: it is small
        engine_bytes=engine_bytes,
        ranks=ranks_in(settings),
        here=1 if device.startswith("cuda") else local_ranks(ranks_in(settings)),
        tensor_parallel=settings.tensor_parallel,
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
    with_engine: bool = True,
    donate_start: bool = False,
    trains: bool = True,
    restores: bool = False,
    folder: Path | None = None,
    say: Callable[[str], object] = lambda text: None,
    cluster: Cluster | None = None,
) -> Loop:
    """The loop of a method on a task source: learner, engine and tools built, the first weights delivered.

    with_engine   False for methods that only read data
    donate_start  the loop may take over the start's tensors; otherwise they are not changed
    trains        False: no step will be made, so no weight needs to be copied
    restores      all the same, those of a checkpoint will be put in their place
    folder, say   where a server that is started writes its log, and what is told how that goes
    cluster       that places rollout workers, ranks and reward workers; None: this process does all
    """
    check(method, source)
    check_run_ahead(method, settings.staleness, settings.interrupt)
    source = with_chat_prompts(source, start.tokenizer)
    method = needed(method)
    fixed = frozen_groups(method)
    adapter = adapter_for(settings, start.model)
    bare = lambda group: without_weights(learner.structure(group))  # noqa: E731
    never_written = fixed if trains or restores else method.weights
    donated = donate_start and not start.mapped
    learner = learner_for(method, start, settings, adapter, never_written, donated, trains, cluster)
    engine: Engine | None = None
    if with_engine and cluster is not None and not all(stage.data for stage in method.stages):
        if settings.engine == "vllm":
            model = _engine_copy(learner.trunk(next(iter(roles_of(method).values()))), frozen=True)
            engine = placed_vllm(cluster, method, start, model, settings, context_of(settings, start))
        else:
            parts = lambda s, device: recipe_for(method, learner, start, s, bare, device)  # noqa: E731
            engine = placed_engine(cluster, settings, parts)
        check_engine(method, engine.capabilities, trains)
    elif with_engine and settings.engine != "builtin" and not all(stage.data for stage in method.stages):
        engine = remote_engine(method, learner, start, settings, folder, say)
        check_engine(method, engine.capabilities, trains)
    elif with_engine:
        engine = engine_for(method, learner, start, settings, fixed)
    calls = None
    if cluster is not None and cluster.resources.reward_workers:
        calls = CallWorkers(cluster, registry.user_files(), settings.engine_start_seconds)
    made = Loop(
        method=method,
        source=source,
        tokenizer=start.tokenizer,
        learner=learner,
        engine=engine,
        tools=tools_for(method, source, calls),
        lr=lambda step: learning_rate(settings, step),
        steps=settings.steps,
        seed=settings.seed,
        max_tokens=settings.max_tokens or source.defaults.get("max_tokens", MAX_TOKENS),
        limits=EpisodeLimits(
            tokens=settings.episode_tokens,
            turns=settings.episode_turns,
            calls=settings.episode_turns,
            tool_seconds=settings.tool_seconds,
            characters=CHARACTERS_PER_TOKEN * context_of(settings, start),
        ),
        safety_limits=SafetyLimits(
            settings.max_unscored, settings.max_logprob_mismatch, settings.reward_seconds, settings.max_idle_steps
        ),
        find=find,
        budget=settings.budget,
        max_seconds=settings.max_seconds,
        staleness=settings.staleness,
        ahead=RunAhead(at_once=settings.interrupt),
        mismatch_correction=correction_of(method, settings),
        sleeps=settings.colocate,
        processes=calls,
    )
    made.deliver_all()
    if calls is not None:
        say(calls.about())
    if isinstance(engine, ClosableEngine):
        if isinstance(engine, HttpEngine) and engine.delivery is None:  # it samples what it was started with
            engine.check_model(learner.trunk(engine.group), settings.max_logprob_mismatch)
        say(engine.about())
    return made


def check_interruptible(start: StartModel, settings: RunSettings) -> None:
    """Raise BadValue where answers are to be interrupted and the model's engine cannot."""
    if settings.interrupt and not start.model.supports_custom_attention:
        raise BadValue(
            "interrupt: a model that runs through transformers cannot change its weights in the middle of an answer;"
            " leave --interrupt out"
        )


def learner_for(
    method: Method,
    start: StartModel,
    settings: RunSettings,
    adapter: lora.Adapter | None,
    frozen: Collection[str],
    donate_start: bool,
    trains: bool = True,
    cluster: Cluster | None = None,
) -> LocalLearner:
    """The learner of a run: in this process, or sharded over several where there is something to train."""
    if cluster is not None:
        settings = on_own_gpu(settings, cluster)
    given = (method.weights, method.models, start.model, settings.seed, settings, adapter, frozen)
    if settings.learner == "local" or not trains:
        return LocalLearner(*given, donate_start)
    from ..learner.sharded import ShardedLearner

    placer = None if cluster is None else RankPlacer(cluster)
    return ShardedLearner.started(*given, registry.user_files(), placer)


def engine_for(
    method: Method, learner: LocalLearner, start: StartModel, settings: RunSettings, frozen: Collection[str] = ()
) -> BuiltinEngine | EqualLengthEngine:
    """The engine: the built-in one, or the equal-length one where a model does not support custom attention.

    It holds its own copy (adapters merged in) of the groups of all models that are sampled, or whose scalar heads are
    read in episodes. Groups in `frozen` share the learner's tensors.
    """

    def model_of(group: str) -> Model:
        shared = bool(learner.groups.ranks) or group in frozen  # what ranks hold in parts is a copy already
        return _engine_copy(learner.trunk(group), shared)

    return recipe_for(method, learner, start, settings, model_of, devices.resolve_device(settings.device)).build()


def recipe_for(
    method: Method,
    learner: LocalLearner,
    start: StartModel,
    settings: RunSettings,
    model_of: Callable[[str], Model],
    device: str,
) -> EngineRecipe:
    """What an engine on a device is made of. model_of gives the model of a weight group that will be the engine's."""
    resolved, named = learner.groups.models, named_model_roles(method)
    sampled = {name: resolved[name].trunk for name in engine_model_roles(method)}
    models = {group: model_of(group) for group in sorted(set(sampled.values()))}
    model_heads = {name: dict(resolved[name].heads) for name in sampled if resolved[name].heads and name in named}
    head_groups = {g for own in model_heads.values() for g in own.values()} | {
        g for g in models if learner.groups[g].heads
    }
    heads = {
        group: {h: copy.deepcopy(layer) for h, layer in learner.groups[group].heads.items()}
        for group in sorted(head_groups)
    }
    updated = {g for s in method.stages for u in s.updates for g in u.params}
    n_trained = sum(p.numel() for g in updated for p in learner.groups[g].named_parameters().values())
    return EngineRecipe(
        models,
        sampled,
        start.tokenizer,
        settings.slots,
        context_of(settings, start),
        device,
        DTYPES[devices.resolve_dtype(settings.engine_dtype, device)],
        TRAINING_BYTES * (n_trained // ranks_in(settings)),
        heads,
        model_heads,
    )


def remote_engine(
    method: Method,
    learner: LocalLearner,
    start: StartModel,
    settings: RunSettings,
    folder: Path | None,
    say: Callable[[str], object],
) -> HttpEngine:
    """The engine of other processes: servers at the settings' addresses, or a vLLM started now."""
    length = context_of(settings, start)
    if settings.engine == "http":
        return http_engine(method, start, settings, length)
    group = next(iter(roles_of(method).values()))
    trunk = learner.trunk(group)
    adapted = next(iter(lora.lora_layers(trunk).values()), None)
    # Learners of several processes give whole weights, and a stage's own sampler changes more than an adapter.
    alone = adapted is not None and not learner.groups.ranks and not any(s.sampler for s in method.stages)
    if alone and adapted is not None and settings.lora_delivery == "adapter":
        model, rank = lora.base_copy(trunk), adapted.lora.rank
    else:
        model, rank = _engine_copy(trunk, frozen=True), None
    return vllm_engine(method, start, model, settings, length, folder, say, rank)


def engine_of(start: StartModel, settings: RunSettings) -> BuiltinEngine | EqualLengthEngine:
    """An engine that samples a model as the role `policy`; the model is the engine's from then on."""
    device, models = devices.resolve_device(settings.device), {"policy": start.model}
    more: dict[str, Any] = {"slots": settings.slots, "length": context_of(settings, start), "device": device}
    if not start.model.supports_custom_attention:
        return EqualLengthEngine(models, {"policy": "policy"}, start.tokenizer, **more)
    dtype = DTYPES[devices.resolve_dtype(settings.engine_dtype, device)]
    return BuiltinEngine(models, {"policy": "policy"}, start.tokenizer, dtype=dtype, **more)


def without_weights(model: Model) -> Model:
    """A model's shape for an engine elsewhere, which gets weights with adapters merged in."""
    if isinstance(model, Transformer):
        return Transformer.without_weights(model.config)
    from ..learner.sharding import skeleton

    return skeleton(model)


def _engine_copy(trunk: Model, frozen: bool) -> Model:
    if isinstance(trunk, Transformer) and lora.factors(trunk):
        return lora.merged_copy(trunk)
    return shared_copy(trunk) if frozen else copy.deepcopy(trunk)


def correction_of(method: Method, settings: RunSettings) -> MismatchCorrection | None:
    """How a run corrects for the engine's log-prob mismatch. Raises BadValue for a method that it does not fit."""
    if settings.mismatch_correction == "none":
        return None
    made = MismatchCorrection(settings.mismatch_correction, settings.mismatch_cap, settings.mismatch_floor)
    made.check(method)
    if any(s.staleness if settings.staleness is None else settings.staleness for s in method.stages if not s.data):
        raise BadValue(
            "mismatch_correction: samples that are older than the learner's weights differ from it for that reason, so"
            " that nothing is left to correct by; take --staleness 0, or a method that weighs by who sampled (areal)"
        )
    return made


def ranks_in(settings: RunSettings) -> int:
    """The number of processes over which a run's learner is sharded."""
    if settings.learner == "local":
        return 1
    from ..learner.ranks import world_size

    return world_size(settings.world)


def check_layers_divide(model: Model, settings: RunSettings) -> None:
    """Check that the layers of a model can be cut over the processes that are to share them. Raises BadValue."""
    if settings.tensor_parallel == 1:
        return
    if settings.learner == "local":
        raise BadValue(f"tensor_parallel {settings.tensor_parallel}: the learner is local; give --learner fsdp")
    from ..learner.tensor_parallel import check_tensor_parallel

    adapted = settings.fresh_lora is not None or settings.adapter is not None
    check_tensor_parallel(model, settings.tensor_parallel, ranks_in(settings), adapted)


def local_ranks(ranks: int) -> int:
    """How many of a learner's processes share this machine's memory."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", ranks)) if "RANK" in os.environ else ranks


def context_of(settings: RunSettings, start: StartModel) -> int:
    """The engine's context length in tokens. Raises BadCheckpoint where the model's is shorter than the setting."""
    longest = start.model.config.max_length
    length = settings.context or min(longest, MAX_CONTEXT)
    if length > longest:
        raise BadCheckpoint(
            f"config.json: the model's context (max_position_embeddings) is {longest} tokens, not {length}; ask for a"
            f" context of at most {longest}"
        )
    if settings.max_tokens and settings.max_tokens >= length:
        raise BadValue(
            f"max_tokens: a turn of {settings.max_tokens} tokens does not fit a context of {length}; ask for"
            " shorter turns or a longer context"
        )
    return length


def with_chat_prompts(source: TaskSource, tokenizer: Tokenizer) -> TaskSource:
    """The source with prompts as messages where the tokenizer has a chat template, otherwise as text."""
    if tokenizer.chat is None and not any(is_conversation(t.prompt) for t in source.test[:1]):
        return source

    def rendered(task: Task) -> Task:
        if tokenizer.chat is not None and source.chat and isinstance(task.prompt, str):
            return replace(task, prompt=source.chat(task))
        return replace(task, prompt=chat_prompt(task.prompt, tokenizer))

    demos, shown, pairs = source.demos, source.experts, source.pairs
    return replace(
        source,
        train=lambda i: rendered(source.train(i)),
        test=[rendered(t) for t in source.test],
        demos=None if demos is None else lambda i: rendered(demos(i)),
        experts=None if shown is None else lambda i: rendered(shown(i)),
        pairs=None if pairs is None else lambda i: rendered(pairs(i)),
    )


def chat_prompt(prompt: Any, tokenizer: Tokenizer) -> Any:
    """A prompt as the model takes it: messages where it has a chat template, else text."""
    if tokenizer.chat is None:
        return messages_as_text(prompt) if is_conversation(prompt) else prompt
    return [{"role": "user", "content": prompt.strip()}] if isinstance(prompt, str) else prompt


def tools_for(method: Method, source: TaskSource, calls: CallWorkers | None = None) -> Mapping[str, Tool]:
    """The task's tools and the method's, built. calls: where typed functions are called; None: here."""
    out: dict[str, Tool] = {}
    for name, block in {**source.tools, **method.tools}.items():
        if calls is not None and (elsewhere := calls.tool(block)) is not None:
            out[name] = elsewhere
            continue
        out[name] = block(source=source) if "source" in block.needs else block()
    return out
