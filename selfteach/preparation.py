"""What a run begins with: its task, its model, quantised and warm-started where it is to be, in a session."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from .cluster.ray_cluster import Cluster
from .configuration import RunConfig, task_source
from .core import registry
from .core.blocks import Block
from .core.functions import tools_text
from .core.method import Method
from .core.random_keys import generator
from .core.task import TaskSource
from .core.threads import run_in_thread
from .core.user_code import user_code
from .given_parts import judge_of, with_tools
from .loop import assemble
from .loop.log import RolloutArchive
from .loop.placed import check_placed
from .loop.remote_engines import check_remote
from .loop.session import Observer, Session, StopRequest
from .loop.warmstart import warm_folder, warm_start
from .model import files, lora
from .model.catalog import StartModel, build
from .model.names import SIZES
from .tools.functions import functions_of
from .tools.retrieve import prepare


def set_threads(count: int | None) -> None:
    """Set how many threads matmuls use, for the whole process; the same number gives the same bits."""
    if count:
        torch.set_num_threads(count)


@contextmanager
def shared_cores(run_config: RunConfig) -> Generator[None]:
    """Where rollouts run ahead, and the run does not say how many threads: half of the cores each for engine and
    learner, since threads that wait for cores are slower than none.
    """
    before, s = torch.get_num_threads(), run_config.settings
    ahead = s.staleness if s.staleness is not None else max(stage.staleness for stage in run_config.method.stages)
    if ahead and not s.threads:
        torch.set_num_threads(max(1, min(before, (os.cpu_count() or 1) // 2)))
    try:
        yield
    finally:
        torch.set_num_threads(before)


KNOWN = "known"  # the tag of tasks that say what the policy holds: what the warm start shows


def source_of(run_config: RunConfig, folder: Path | None) -> TaskSource:
    """The task of a run; the tokenizer of a fresh model is made of its words, and of what prompts say of tools.

    Its tasks say what the policy holds (tag `known`) only where a warm start on its demonstrations shows that: of what
    pre-trained models hold nothing is known.
    """
    source, said = task_source(run_config.task, run_config.task_options, folder), said_tools(run_config.method)
    if not (run_config.model in SIZES and run_config.warm.steps and source.demos is not None):
        source = source.without_tag(KNOWN)
    if not said or (words := source.words) is None:
        return source
    return replace(source, words=lambda: (said + text for text in words()))


def said_tools(method: Method) -> str:
    """What a prompt of text says of a method's typed functions; empty where it has none."""
    functions = [tool().spec for tool in functions_of(method.tools).values()]
    return tools_text(functions) if functions else ""


async def prepare_search(run_config: RunConfig, observer: Observer) -> None:
    """Open what the method's tools search, so that an index is built, and seen to be, before anything else is.

    In a thread, so that Ctrl-C ends it; the next run goes on where it was.
    """
    loop = asyncio.get_running_loop()

    def say(**event: Any) -> None:
        loop.call_soon_threadsafe(observer, event)

    def progress(what: str, done: int, total: int) -> None:
        say(event="indexing", what=what, done=done, total=total)

    tools = run_config.method.tools
    await run_in_thread(prepare, tools, progress, lambda text: say(event="note", text=text))


def within_context(run_config: RunConfig, source: TaskSource, start: StartModel) -> TaskSource:
    """The source without tasks whose prompts leave no room for an answer in the context, where it has such."""
    if source.within is None:
        return source
    settings, render = run_config.settings, start.tokenizer.render
    turn = settings.max_tokens or source.defaults.get("max_tokens", assemble.MAX_TOKENS)
    context = assemble.context_of(settings, start)
    longest = context - min(turn, context // 2) - len(start.tokenizer.encode(said_tools(run_config.method)))

    def count(prompt: Any) -> int:
        return len(render(assemble.chat_prompt(prompt, start.tokenizer)))

    return source.within(longest, count)


def check_start(run_config: RunConfig, source: TaskSource, start: StartModel, trains: bool = True) -> Path | None:
    """Check before any work, and before a folder is taken, what can be known: adapters, context, the cache, the engine.

    Returns the folder of the warm start; None for a model that needs none. Raises SelfteachError.
    """
    settings = run_config.settings
    assemble.adapter_for(settings, start.model)
    length = assemble.context_of(settings, start)
    assemble.check_interruptible(start, settings)
    assemble.check_layers_divide(start.model, settings)
    assemble.correction_of(run_config.method, settings)
    check_placed(run_config.method, settings)
    check_remote(run_config.method, start, settings, length, trains)
    if not (start.fresh and run_config.warm.steps > 0 and source.demos is not None):
        return None
    return warm_folder(source, start, warm_method(run_config), run_config.warm, settings)


async def start_model(run_config: RunConfig, source: TaskSource, observer: Observer) -> StartModel:
    """The model that a run starts from: loaded, or fresh and warm-started."""
    start = build(run_config.model, source, run_config.warm.seed)
    source = within_context(run_config, source, start)
    folder = check_start(run_config, source, start, trains=False)
    return await warm_started(run_config, source, start, folder, observer)


def warm_method(run_config: RunConfig) -> Method:
    """The method of the warm start: supervised training, of prompts that say the tools."""
    made = registry.methods.get("sft")(batch=run_config.warm.batch)
    return with_tools(made, functions_of(run_config.method.tools))


async def warm_started(
    run_config: RunConfig,
    source: TaskSource,
    start: StartModel,
    folder: Path | None,
    observer: Observer,
    stop: StopRequest | None = None,
) -> StartModel:
    """A model after its warm start (`check_start` gives the folder), trained now or read; without one as it is. It is
    quantised where the method says so.
    """
    if folder is None:
        return quantised(start, run_config.method.quantise)
    method, judge = warm_method(run_config), judge_of(source)
    await warm_start(folder, source, start, method, judge, run_config.warm, run_config.settings, observer, stop)
    model, tokenizer = files.load(folder, mapped=True)
    start = replace(start, model=model, tokenizer=tokenizer, folder=folder, mapped=True)
    return quantised(start, run_config.method.quantise)


def quantised(start: StartModel, form: Block | None) -> StartModel:
    """A start whose projections a number format has rounded, in place; embeddings, norms and the head stay."""
    if form is None:
        return start
    with user_code(f"quantisation {form.name}"):
        for layer in lora.adaptable_linears(start.model).values():
            layer.weight.data = form(weight=layer.weight.detach())
    return start


def make_session(
    run_config: RunConfig,
    source: TaskSource,
    start: StartModel,
    out: Path | None,
    observer: Observer,
    cluster: Cluster | None = None,
    restores: bool = False,
) -> Session:
    """A session ready to train in the folder `out`, or, where that is None, to measure.

    cluster   that places its processes; None: all is done in this one
    restores  whether it will measure what a checkpoint holds (`Session.restore`)
    """
    stored_tree = RolloutArchive(out / "log").tree if out else None
    s = run_config.settings
    loop = assemble.loop(
        run_config.method,
        source,
        start,
        s,
        stored_tree,
        donate_start=True,
        trains=out is not None,
        restores=restores,
        folder=out,
        say=lambda text: observer({"event": "note", "text": text}),
        cluster=cluster,
    )
    session = Session(
        loop,
        judge_of(source),
        out,
        s.checkpoint_every,
        s.keep,
        observer=observer,
        base=str(start.folder or run_config.model),
        reward=run_config.reward,
    )
    session.eval_every, session.eval_tasks, session.eval_samples = s.eval_every, s.eval_tasks, s.eval_samples
    if run_config.final_eval.seed is not None:
        order = generator("test_tasks", run_config.final_eval.seed).permutation(len(source.test))
        session.test_order = order.tolist()
    return session
