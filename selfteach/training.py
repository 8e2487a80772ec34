"""Carrying out a planned run: checks, warm start, evaluation before, steps, evaluation after; and measuring one.

carry_out(plan("grpo", task="chain_sum", rollouts=16, steps=40), Path("runs/mine"))
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from .cluster.ray_cluster import Cluster
from .configuration import (
    RunConfig,
    judge_of,
    keep_inputs,
    run_config_of,
    search_options,
    task_source,
    use_file,
    with_search,
    with_tools,
)
from .core import registry
from .core import trust as trust_record
from .core.blocks import Block
from .core.disk import disk_error, write_whole
from .core.errors import BadValue, quoted, unknown
from .core.functions import tools_text
from .core.method import Method
from .core.random_keys import generator
from .core.serial import plain
from .core.task import TaskSource
from .core.threads import run_in_thread, run_to_end, user_code
from .learner.errors import RankFailed
from .learner.ranks import close_ranks
from .loop import assemble, checkpoint, method_on_task
from .loop.log import RolloutArchive, read_events
from .loop.made_by import file_hashes, load_kernels
from .loop.placed import check_placed, cluster_of, store_bytes
from .loop.remote_engines import check_remote
from .loop.run_folder import FIGURES, finished_figures
from .loop.session import Observer, Session, StopRequest, Watch
from .loop.settings import EvalConfig, RunSettings
from .loop.warmstart import warm_folder, warm_start, warm_start_seconds
from .model import files, lora, peft_files
from .model.catalog import StartModel, build
from .reward.outside_forms import Reward, as_block, check_call
from .tools.functions import functions_of
from .tools.retrieve import prepare


def ignore_events(event: Mapping[str, Any]) -> None:
    """An observer that does nothing."""


def no_warnings(event: Mapping[str, Any]) -> tuple[()]:
    """A watch that never warns."""
    return ()


@dataclass
class Outcome:
    """What came of carrying out a run: its folder, its figures, and whether it was finished.

    figures  "before" and "after" -> figure -> value, as `final_eval` names them; "counts" of right answers by question
             before and after; "steps", "tokens", and "seconds" ("all"; "training": of steps, also before a resume;
             "warm": of its warm start, whenever that was trained); of a stopped run "before" alone
    seconds  wall-clock time of this call
    stopped_by  the signal that stopped it
    """

    folder: Path
    figures: dict[str, Any]
    done: bool
    seconds: float
    stopped_by: int = 0

    @property
    def model(self) -> Path:
        """The folder of the newest checkpoint, in the Hub's layout."""
        return self.folder / "last"


@dataclass
class OpenRun:
    """A run that is ready for its next step.

    before   figures before training
    first    its next step
    started  time.monotonic() at the beginning of this call
    """

    session: Session
    folder: Path
    before: dict[str, Any]
    first: int
    started: float
    warm_seconds: float | None
    final_eval: EvalConfig

    async def outcome(self) -> Outcome:
        """What came of it so far; of a run that is done after its evaluation, which is measured where it was not."""
        session, out = self.session, self.folder
        if not session.loop.done:
            return Outcome(out, {"before": self.before}, False, time.monotonic() - self.started, session.stop.signal)
        after = _logged_evaluation(out, "end")
        if after and session.loop.state.step == self.first and (found := finished_figures(out)) is not None:
            session.observer({"event": "done", "folder": str(out), "figures": found})  # as it was, nothing is written
            return Outcome(out, found, True, time.monotonic() - self.started)
        after = after or await final_eval(session, self.final_eval, "end")
        figures: dict[str, Any] = {
            "before": self.before,
            "after": after,
            "counts": {
                name: _logged_evaluation(out, when, "counts") for name, when in (("before", "start"), ("after", "end"))
            },
            "seconds": {
                "all": time.monotonic() - self.started,
                "training": session.loop.state.seconds,
                "warm": self.warm_seconds,
            },
            "steps": session.loop.state.step,
            "tokens": session.loop.state.tokens,
        }
        write_whole(out / FIGURES, json.dumps(plain(figures), indent=1) + "\n")
        session.observer({"event": "done", "folder": str(out), "figures": figures})
        return Outcome(out, figures, True, time.monotonic() - self.started)


def new_run_folder(name: str, base: str | Path = "runs") -> Path:
    """A new empty folder BASE/NAME-1, or the first free number; created at once, so that two runs never share one."""
    number = 1
    while True:
        folder = Path(base) / f"{name}-{number}"
        try:
            folder.mkdir(parents=True, exist_ok=False)
            return folder
        except FileExistsError:
            if not Path(base).is_dir():
                raise BadValue(f"{base}: is a file, so no run can be written under it; give another --out") from None
            number += 1
        except OSError as error:
            raise disk_error(error, folder) from error


def carry_out(
    run_config: RunConfig,
    out: Path,
    observer: Observer = ignore_events,
    resume: bool = False,
    on_step: Observer = ignore_events,
    stop: StopRequest | None = None,
    watch: Watch = no_warnings,
) -> Outcome:
    """Train in a run's folder, from the start or (resume) from its newest checkpoint, until done or asked to stop.

    observer  is called with each event of the run, a mapping with "event" for its kind
    on_step   is called with the event of each step once its evaluation and checkpoint are done
    stop      asks it to stop after a step; Ctrl-C and SIGTERM do so where it runs in the main thread
    watch     is called with each event that is logged, and gives warnings to log and show besides (analysis/health.py)

    Where this thread runs an event loop already (a notebook), the run has a thread of its own, and Ctrl-C in the
    waiting one asks it to stop.
    """
    stop = stop or StopRequest()
    work = carried_out(run_config, out, observer, resume, on_step, stop, watch)
    return run_to_end(work, lambda: stop.first(signal.SIGINT, observer))


async def carried_out(
    run_config: RunConfig,
    out: Path,
    observer: Observer,
    resume: bool,
    on_step: Observer,
    stop: StopRequest,
    watch: Watch = no_warnings,
) -> Outcome:
    """`carry_out` on the event loop that awaits it, which it blocks for the length of its steps."""
    with closing_cluster(run_config.settings) as cluster:
        restarts, last = 0, -1
        while True:
            try:
                async with opened(run_config, out, observer, resume, stop, watch, cluster) as run:
                    await run.session.run(on_step)
                    return await run.outcome()
            except RankFailed as lost:
                at = checkpoint.find(out)
                step = -1 if at is None else checkpoint.step_of(at)
                restarts, last = (restarts + 1 if step == last else 1), step
                if cluster is None or not lost.lost or at is None or restarts > run_config.settings.cluster_restarts:
                    raise
                text = f"{str(lost).removesuffix('; go on with --resume')}; the learner goes on from checkpoint {step}"
                observer({"event": "note", "text": text})
                cluster.end_all()
                resume = True


@asynccontextmanager
async def opened(
    run_config: RunConfig,
    out: Path,
    observer: Observer,
    resume: bool,
    stop: StopRequest,
    watch: Watch = no_warnings,
    cluster: Cluster | None = None,
) -> AsyncGenerator[OpenRun]:
    """A run that is ready for its next step, with its folder held inside the `with`: checked, warm-started, measured.

    cluster  of the run, which is started where it is not, and not closed (`closing_cluster`); None: one for this `with`

    Raises SelfteachError, before any work for what can be known then.
    """
    started = time.monotonic()
    set_threads(run_config.settings.threads)
    if not resume:
        trust_record.remember_all(run_config.use)
    config = run_config.to_json()
    checkpoint.check_folder(out, config, resume)
    source = source_of(run_config, out)
    method_on_task.check(run_config.method, source)
    method_on_task.check_run_ahead(run_config.method, run_config.settings.staleness, run_config.settings.interrupt)
    start = build(run_config.model, source, run_config.warm.seed)
    source = within_context(run_config, source, start)
    folder = check_start(run_config, source, start)
    if run_config.reward is not None and not resume:
        await check_call(run_config.reward, source.test[0], run_config.settings.reward_seconds)
    memory = assemble.memory(run_config.method, start, run_config.settings)
    observer({"event": "source", "task": run_config.task, **source.about})  # only once nothing can be refused any more
    if start.fresh and source.demos is None:
        text = (
            f"{run_config.model} is a fresh model and knows nothing, and the task has no demonstrations to begin with:"
            " its first answers are noise; give rows with a completion, or --model"
        )
        observer({"event": "note", "text": text})
    await prepare_search(run_config, observer)
    with contextlib.ExitStack() as held:
        cluster = cluster or held.enter_context(closing_cluster(run_config.settings))
        if cluster is not None:
            cluster.say = lambda text: observer({"event": "note", "text": text})
            cluster.start(store_bytes(run_config.method, start))
        held.enter_context(checkpoint.claimed(out, config, resume))
        held.enter_context(shared_cores(run_config))
        keep_inputs(run_config, out)
        start = await warm_started(run_config, source, start, folder, observer, stop)
        session = make_session(run_config, source, start, out, observer, cluster)
        session.stop, session.watch = stop, watch
        before = await _begin(run_config, config, session, start, memory, out)
        warm_seconds = warm_start_seconds(start.folder)
        del start  # its weights are the session's now
        first = session.loop.state.step
        try:
            yield OpenRun(session, out, before, first, started, warm_seconds, run_config.final_eval)
        finally:
            await session.close()


async def _begin(
    run_config: RunConfig,
    config: Mapping[str, Any],
    session: Session,
    start: StartModel,
    memory: str | None,
    out: Path,
) -> dict[str, Any]:
    """Open the session, say so, and measure before training: the figures."""
    kernels = load_kernels(run_config.settings, session.structure)
    used = file_hashes([str(use_file(file, out)) for file in run_config.use])
    files_used = dict(zip(run_config.use, used.values(), strict=True))
    session.made_by = {"kernels": kernels, "files": files_used, "config": config}
    end = _last_evaluation(out)
    resumed = session.open()
    for event in read_events(out / "log"):  # what a run that is resumed was warned of already
        session.watch(event)
    given_more = end is not None and not session.loop.done and end["step"] == session.loop.state.step
    if end is not None and given_more:  # the log was cut back to the checkpoint
        session.emit(**(end | {"when": "on the way"}))
    about = dict(start.about) | (
        {"adapters": sum(t.numel() for t in lora.factors(session.structure).values())} if session.adapted else {}
    )
    session.observer(
        {
            "event": "start",
            "folder": str(out),
            "resumed": resumed,
            "step": session.loop.state.step,
            "budget": run_config.settings.budget,
            "model": about,
            "memory": memory,
            "kernels": kernels,
        }
    )
    before = _logged_evaluation(out, "start")
    if before is None:
        before = await final_eval(session, run_config.final_eval, "start")
    return before or {}


@contextmanager
def closing_cluster(settings: RunSettings) -> Generator[Cluster | None]:
    """The cluster of a run, given back at the end of a `with`; None for a run without one."""
    cluster = cluster_of(settings)
    try:
        yield cluster
    finally:
        if cluster is not None:
            close_ranks()
            cluster.close()


def extend(folder: Path, run_config: RunConfig, **ends: Any) -> RunConfig:
    """Give a run other settings of when it ends (steps, budget, max_seconds), in its config.json.

    Raises BadValue where another process trains in its folder.
    """
    changed = run_config.override(**ends)
    with checkpoint.held(folder):
        (folder / FIGURES).unlink(missing_ok=True)  # of the run as it ended before
        write_whole(folder / "config.json", json.dumps(changed.to_json(), indent=1) + "\n")
    return changed


def serve_other_ranks(run_config: RunConfig) -> None:
    """Under torchrun: of rank 0 nothing; any other rank serves the learner of rank 0, and exits when that ends.

    Raises BadValue where several processes were started, and the learner is of one.
    """
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return
    settings, started = run_config.settings, int(os.environ["WORLD_SIZE"])
    if settings.learner == "local":
        if started > 1:
            raise BadValue(f"learner: {started} processes were started, and the learner is local; give --learner fsdp")
        return
    if os.environ["RANK"] != "0":
        from .learner.ranks import join, world_size
        from .learner.worker import serve
        from .model.devices import resolve_device

        world_size(settings.world)
        serve(join(resolve_device(settings.device), settings.learner_seconds))
        raise SystemExit(0)


async def start_model(run_config: RunConfig, source: TaskSource, observer: Observer) -> StartModel:
    """The model that a run starts from: loaded, or fresh and warm-started."""
    start = build(run_config.model, source, run_config.warm.seed)
    source = within_context(run_config, source, start)
    folder = check_start(run_config, source, start, trains=False)
    return await warm_started(run_config, source, start, folder, observer)


def source_of(run_config: RunConfig, folder: Path | None) -> TaskSource:
    """The task of a run; the tokenizer of a fresh model is made of its words, and of what prompts say of tools."""
    source, said = task_source(run_config.task, run_config.task_options, folder), said_tools(run_config.method)
    if not said or (words := source.words) is None:
        return source
    return replace(source, words=lambda: (said + text for text in words()))


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


def said_tools(method: Method) -> str:
    """What a prompt of text says of a method's typed functions; empty where it has none."""
    functions = [tool().spec for tool in functions_of(method.tools).values()]
    return tools_text(functions) if functions else ""


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
) -> Session:
    """A session ready to train in the folder `out`, or, where that is None, to measure.

    cluster  that places its processes; None: all is done in this one
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


def _last_evaluation(out: Path) -> dict[str, Any] | None:
    """The event of the newest evaluation after training, also of a shorter run before this, where the log has it."""
    found = [e for e in read_events(out / "log") if e["event"] == "final_eval" and e["when"] != "start"]
    return found[-1] if found else None


def _logged_evaluation(out: Path, when: str, what: str = "figures") -> dict[str, Any] | None:
    """What the evaluation at `when` ("start" or "end") found, where the run's log has it already."""
    for event in read_events(out / "log"):
        if event["event"] == "final_eval" and event["when"] == when:
            return event.get(what)
    return None


async def final_eval(
    session: Session, config: EvalConfig, when: str, decoders: Sequence[str] | None = None
) -> dict[str, float]:
    """Measure the current policy, with its own program and with each decoder of the method (or those in `decoders`).

    Names of figures: accuracy (mean over samples), greedy, reward and reward_greedy (of a user's own), pass@k, maj and
    distinct right answers (of `config.decoder_samples` samples; distinct@k of k, maj@2, maj@4 ... of so many), length,
    calls, accuracy/hops=2; those of a decoder end in its name: accuracy+search ... `failed` and `unscored` count
    episodes that raised and other answers without a score, in all that was sampled.
    """
    method, source = session.loop.method, session.loop.source
    tasks, tags = session.test_tasks(), [source.defaults.get("by", "category")]
    last = method.stages[-1]
    main = method.eval_program(last)
    out: dict[str, float] = {}
    counts: dict[str, Any] = {}

    def progress(what: str) -> Callable[[int, int], None]:
        return lambda done, total: session.observer(
            {"event": "measuring", "when": when, "what": what, "done": done, "total": total}
        )

    async def measure(name: str, program: Block, k: int, n: int, greedy: bool) -> dict[str, float]:
        what = f"{name or 'own program'}, {'greedy' if greedy else f'{k} samples'}"
        result = await session.measure_tasks(
            tasks[:n],
            k=k,
            greedy=greedy,
            program=program,
            where=("final_eval", when, name, greedy),
            on_progress=progress(what),
        )
        if not name and (greedy or k == config.decoder_samples):
            counts.setdefault("greedy" if greedy else "sampled", result.counts())
        return result.figures([] if greedy else [2**i for i in range(11) if 2**i <= k], tags)

    requested = {name: program for name, program in method.decode.items() if decoders is None or name in decoders}
    for name, program in {"": main, **requested}.items():
        if name and (str(program) == str(main) or method_on_task.lacking(program, method, source)):
            continue
        greedy = await measure(name, program, 1, config.tasks, True)
        found, many = dict[str, float](), dict[str, float]()
        if config.decoder_samples:
            found = await measure(name, program, config.decoder_samples, config.tasks, False)
        drawn = {k: v for k, v in found.items() if not k.startswith("maj@")}
        if (
            config.k and session.judge is not None and (not name or decoders is not None)
        ):  # a decoder asked for by name gets pass@k too
            many = await measure(name, program, config.k, min(config.pass_at_k_tasks, len(tasks)), False)
            drawn |= {k: v for k, v in many.items() if k.startswith(("pass@", "maj@"))}
            drawn |= {f"{figure}@{config.k}": many.get(figure, float("nan")) for figure in ("maj", "distinct")}
        drawn |= {n: greedy[n] + found.get(n, 0.0) + many.get(n, 0.0) for n in ("failed", "unscored")}
        tail = f"+{name}" if name else ""
        for figure, own in (("accuracy", "greedy"), ("reward", "reward_greedy")):
            out |= {f"{k.replace(figure, own, 1)}{tail}": v for k, v in greedy.items() if k.startswith(figure)}
        out |= {f"{k}{tail}": v for k, v in drawn.items()}
    questions = list(session.test_order or range(len(tasks)))[: config.tasks]
    counts |= {"samples": config.decoder_samples, "questions": questions}
    session.emit("final_eval", when=when, step=session.loop.state.step, figures=out, counts=counts)
    return out


def evaluate(
    run: str | os.PathLike[str] | RunConfig,
    config: EvalConfig | None = None,
    observer: Observer = ignore_events,
    decoder: str | None = None,
    task: str | None = None,
    task_options: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    trust: bool = False,
    reward: Reward | Sequence[Reward | tuple[float, Reward]] | None = None,
    search: Mapping[str, Any] | None = None,
) -> dict[str, float]:
    """Measure the newest checkpoint of a run, or the model that a RunConfig would start from, before any training.

    decoder  of the method's decoders only this one, besides its own program
    task     another task than the run's, with its options
    settings others than the run's: threads, max_unscored
    trust    as in `resume`
    reward   measured besides, in place of the run's own
    search   corpus, search_url, retriever and search as of PlanArguments, in place of the run's own

    Raises UnknownName for a decoder that the method does not have, BadValue for a folder without a run, ScoringFailed
    where more than `max_unscored` of the answers have no score.
    """
    folder = None if isinstance(run, RunConfig) else Path(run)
    run_config = (run if isinstance(run, RunConfig) else run_config_of(Path(run), trust)).override(**(settings or {}))
    if task is not None:
        run_config = replace(run_config, task=task, task_options=dict(task_options or {}))
    if reward is not None:
        run_config = replace(run_config, reward=as_block(reward)[0])
    if search:
        run_config = replace(run_config, method=with_search(run_config.method, search_options(search)))
    if decoder is not None and decoder not in run_config.method.decode:
        if not run_config.method.decode:
            raise BadValue(
                f"method {run_config.method.name}: has no decoder besides its own program, so no {decoder!r}; leave"
                " --decoder out"
            )
        raise unknown(f"decoder of {run_config.method.name}", decoder, run_config.method.decode)
    set_threads(run_config.settings.threads)
    source = source_of(run_config, folder)
    run_config = replace(run_config, method=method_on_task.for_task(run_config.method, source, judge_of(source)))
    method_on_task.check(run_config.method, source)
    if run_config.reward is not None:
        run_to_end(check_call(run_config.reward, source.test[0], run_config.settings.reward_seconds))
    run_to_end(prepare_search(run_config, observer))
    if folder is None:
        start = run_to_end(start_model(run_config, source, observer))
    else:
        start = trained_model(folder, observer, trust)
        run_config = replace(run_config, settings=run_config.settings.full())
    source = within_context(run_config, source, start)
    session = make_session(run_config, source, start, None, observer)
    if folder is not None and (found := checkpoint.read(folder)) is not None:
        session.loop.state.blocks = dict(found[2]["blocks"])  # which decode programs may read
    observer({"event": "kernels", "kernels": load_kernels(run_config.settings, session.structure, learns=False)})
    return run_to_end(_evaluated(session, config or run_config.final_eval, decoder))


async def _evaluated(session: Session, config: EvalConfig, decoder: str | None) -> dict[str, float]:
    try:
        return await final_eval(session, config, "now", None if decoder is None else [decoder])
    finally:
        await session.close()


def trained_model(folder: str | Path, observer: Observer = ignore_events, trust: bool = False) -> StartModel:
    """The model of a run's newest checkpoint.

    Where the checkpoint holds adapters alone, it is the model that the run started from with these merged in.
    """
    run_config, last = run_config_of(folder, trust), checkpoint.find(Path(folder))
    source = source_of(run_config, Path(folder))
    if last is None:
        raise BadValue(f"{folder}: has no checkpoint yet; continue with selfteach train --resume {quoted(folder)}")
    if (last / "config.json").is_file() or not (last / "adapter").is_dir():
        return build(str(last), source)
    start = run_to_end(start_model(run_config, source, observer))
    peft_files.check_base(last / "learner.json", start.model)
    adapter = peft_files.read(last / "adapter", start.model)
    return replace(start, model=lora.merged_copy(lora.adapt(start.model, adapter.lora, given=adapter.tensors)))


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


def set_threads(count: int | None) -> None:
    """Set how many threads matmuls use, for the whole process; the same number gives the same bits."""
    if count:
        torch.set_num_threads(count)
