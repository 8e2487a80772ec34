"""Carrying out a planned run: checks, warm start, evaluation before, steps, evaluation after.

carry_out(plan("grpo", task="chain_sum", rollouts=16, steps=40), Path("runs/mine"))
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .cluster.ray_cluster import Cluster
from .configuration import (
    RunConfig,
    keep_inputs,
    use_file,
)
from .core import trust as trust_record
from .core.disk import disk_error, write_whole
from .core.errors import BadValue
from .core.loops import run_to_end
from .core.serial import write_json
from .evaluation import final_eval, start_eval
from .learner.errors import RankFailed
from .learner.ranks import close_ranks
from .loop import assemble, checkpoint, method_on_task
from .loop.log import read_events
from .loop.made_by import file_hashes, load_kernels
from .loop.placed import cluster_of, store_bytes
from .loop.run_folder import FIGURES, finished_figures
from .loop.session import Observer, Session, StopRequest, Watch, ignore_events
from .loop.settings import EvalConfig, RunSettings
from .loop.warmstart import warm_start_seconds
from .model import lora
from .model.catalog import StartModel, build
from .preparation import (
    check_start,
    make_session,
    prepare_search,
    set_threads,
    shared_cores,
    source_of,
    warm_started,
    within_context,
)
from .reward.outside_forms import check_call


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
        write_json(out / FIGURES, figures)
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
    measured: Path | None = None,
) -> Outcome:
    """Train in a run's folder, from the start or (resume) from its newest checkpoint, until done or asked to stop.

    observer  is called with each event of the run, a mapping with "event" for its kind
    on_step   is called with the event of each step once its evaluation and checkpoint are done
    stop      asks it to stop after a step; Ctrl-C and SIGTERM do so where it runs in the main thread
    watch     is called with each event that is logged, and gives warnings to log and show besides (analysis/health.py)
    measured  a file that has, or is to have, what the policy was measured to be before training (`run_cache.start_key`)

    Where this thread runs an event loop already (a notebook), the run has a thread of its own, and Ctrl-C in the
    waiting one asks it to stop.
    """
    stop = stop or StopRequest()
    work = carried_out(run_config, out, observer, resume, on_step, stop, watch, measured)
    return run_to_end(work, lambda: stop.first(signal.SIGINT, observer))


async def carried_out(
    run_config: RunConfig,
    out: Path,
    observer: Observer,
    resume: bool,
    on_step: Observer,
    stop: StopRequest,
    watch: Watch = no_warnings,
    measured: Path | None = None,
) -> Outcome:
    """`carry_out` on the event loop that awaits it, which it blocks for the length of its steps."""
    with closing_cluster(run_config.settings) as cluster:
        restarts, last = 0, -1
        while True:
            try:
                async with opened(run_config, out, observer, resume, stop, watch, cluster, measured) as run:
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
    measured: Path | None = None,
) -> AsyncGenerator[OpenRun]:
    """A run that is ready for its next step, with its folder held inside the `with`: checked, warm-started, measured.

    measured  as of `carry_out`
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
        before = await _begin(run_config, config, session, start, memory, out, measured)
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
    measured: Path | None,
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
        before = await start_eval(session, run_config.final_eval, measured)
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
