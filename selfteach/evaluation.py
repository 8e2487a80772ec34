"""Measuring a model: a run's newest checkpoint, or what a run would start from, with every program that it has."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .configuration import RunConfig, run_config_of, task_source
from .core.blocks import Block
from .core.errors import BadValue, quoted, unknown
from .core.loops import run_to_end
from .core.serial import plain, write_json
from .given_parts import OF_WHAT, judge_of, search_options, with_search
from .loop import checkpoint, method_on_task
from .loop.engine_roles import engine_model_roles
from .loop.made_by import load_kernels
from .loop.session import Observer, Session, ignore_events
from .loop.settings import EvalConfig
from .model import lora, peft_files
from .model.catalog import StartModel, build
from .preparation import (
    KNOWN,
    make_session,
    prepare_search,
    set_threads,
    source_of,
    start_model,
    within_context,
)
from .reward.outside_forms import Reward, as_block, check_call


def trained_model(folder: str | Path, observer: Observer = ignore_events, trust: bool = False) -> StartModel:
    """The model of a run's newest checkpoint.

    Where the checkpoint holds adapters alone, it is the model that the run started from with these merged in.
    """
    run_config, last = run_config_of(folder, trust), checkpoint.find(Path(folder))
    source = source_of(run_config, Path(folder))
    if last is None:
        raise no_checkpoint(folder)
    if (last / "config.json").is_file() or not (last / "adapter").is_dir():
        return build(str(last), source)
    start = run_to_end(start_model(run_config, source, observer))
    peft_files.check_base(last / "learner.json", start.model)
    adapter = peft_files.read(last / "adapter", start.model)
    return replace(start, model=lora.merged_copy(lora.adapt(start.model, adapter.lora, given=adapter.tensors)))


def no_checkpoint(folder: str | Path) -> BadValue:
    """The error where a run was killed before its first checkpoint."""
    return BadValue(f"{folder}: has no checkpoint yet; continue with selfteach train --resume {quoted(folder)}")


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
    by_calls: bool = False,
) -> dict[str, float]:
    """Measure the newest checkpoint of a run, or the model that a RunConfig would start from, before any training.

    decoder  of the method's decoders only this one, besides its own program
    task     another task than the run's, with its options
    settings others than the run's: threads, max_unscored
    trust    as in `resume`
    reward   measured besides, in place of the run's own
    search   corpus, search_url, retriever and search as of PlanArguments, in place of the run's own
    by_calls  sampled answers by their number of calls too: accuracy/calls=2 ..., share/calls=2 ...

    Raises UnknownName for a decoder that the method does not have, BadValue for a folder without a run, ScoringFailed
    where more than `max_unscored` of the answers have no score.
    """
    folder = None if isinstance(run, RunConfig) else Path(run)
    run_config = (run if isinstance(run, RunConfig) else run_config_of(Path(run), trust)).override(**(settings or {}))
    own = run_config.task, plain(run_config.task_options)
    if task is not None:
        run_config = replace(run_config, task=task, task_options=dict(task_options or {}))
    if reward is not None:
        run_config = replace(run_config, reward=as_block(reward)[0])
    if search:
        options, source = search_options(search), None
        if not options.keys() & OF_WHAT:  # the engine of the task
            source = task_source(run_config.task, run_config.task_options, folder)
        run_config = replace(run_config, method=with_search(run_config.method, options, source))
    if decoder is not None and decoder not in run_config.method.decode:
        if not run_config.method.decode:
            raise BadValue(
                f"method {run_config.method.name}: has no decoder besides its own program, so no {decoder!r}; leave"
                " --decoder out"
            )
        raise unknown(f"decoder of {run_config.method.name}", decoder, run_config.method.decode)
    set_threads(run_config.settings.threads)
    source = source_of(run_config, folder)
    if (run_config.task, plain(run_config.task_options)) != own:  # its warm start was on other demonstrations
        source = source.without_tag(KNOWN)
    run_config = replace(run_config, method=method_on_task.for_task(run_config.method, source, judge_of(source)))
    method_on_task.check(run_config.method, source)
    if run_config.reward is not None:
        run_to_end(check_call(run_config.reward, source.test[0], run_config.settings.reward_seconds))
    run_to_end(prepare_search(run_config, observer))
    found = None if folder is None else checkpoint.read(folder, state_alone=True)
    alone = engine_model_roles(run_config.method) == ["policy"]  # programs can read no other model
    if folder is None:
        start = run_to_end(start_model(run_config, source, observer))
    elif alone:
        start = trained_model(folder, observer, trust)
        run_config = replace(run_config, settings=run_config.settings.full())
    elif found is None:
        raise no_checkpoint(folder)
    else:  # what its other models were at first, and may be still
        first = run_config_of(folder, trust)
        start = run_to_end(start_model(first, source_of(first, folder), observer))
    source = within_context(run_config, source, start)
    session = make_session(run_config, source, start, None, observer, restores=folder is not None and not alone)
    if found is not None and alone:
        session.loop.state.blocks = dict(found[2]["blocks"])  # which decode programs may read
    elif found is not None:
        session.restore(found[0], found[2])
    observer({"event": "kernels", "kernels": load_kernels(run_config.settings, session.structure, learns=False)})
    return run_to_end(_evaluated(session, config or run_config.final_eval, decoder, by_calls))


async def _evaluated(session: Session, config: EvalConfig, decoder: str | None, by_calls: bool) -> dict[str, float]:
    try:
        return await final_eval(session, config, "now", None if decoder is None else [decoder], by_calls)
    finally:
        await session.close()


async def start_eval(session: Session, config: EvalConfig, kept: Path | None) -> dict[str, float]:
    """`final_eval` of a policy before training, read from the file `kept` where another run has left it there."""
    found = None if kept is None else _read_kept(kept)
    if found is None:
        found = await _measured(session, config, "start")
        if kept is not None:
            write_json(kept, found)
    session.emit("final_eval", when="start", step=session.loop.state.step, **found)
    return found["figures"]


def _read_kept(file: Path) -> dict[str, Any] | None:
    """An evaluation in a file; None where it is not there, or not whole."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return {name: dict(found[name]) for name in ("figures", "counts")}
    except (OSError, ValueError, KeyError, TypeError):
        return None


async def final_eval(
    session: Session, config: EvalConfig, when: str, decoders: Sequence[str] | None = None, by_calls: bool = False
) -> dict[str, float]:
    """Measure the current policy, with its own program and with each decoder of the method (or those in `decoders`).

    Names of figures: accuracy (mean over samples), greedy, f1 and f1_greedy (of answers in words), reward and
    reward_greedy (of a user's own), pass@k, maj and
    distinct right answers (of `config.decoder_samples` samples; distinct@k of k, maj@2, maj@4 ... of so many), length,
    calls, accuracy/hops=2; those of a decoder end in its name: accuracy+search ... `failed` and `unscored` count
    episodes that raised and other answers without a score, in all that was sampled. by_calls: accuracy/calls=2 ... and
    share/calls=2 ... too.
    """
    found = await _measured(session, config, when, decoders, by_calls)
    session.emit("final_eval", when=when, step=session.loop.state.step, **found)
    return found["figures"]


async def _measured(
    session: Session, config: EvalConfig, when: str, decoders: Sequence[str] | None = None, by_calls: bool = False
) -> dict[str, Any]:
    """The "figures" of `final_eval`, and the "counts" of right answers by question."""
    method, source = session.loop.method, session.loop.source
    tasks, by = session.test_tasks(), source.defaults.get("by", "category")
    tags = [by] if isinstance(by, str) else list(by)
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
        return result.figures([] if greedy else [2**i for i in range(11) if 2**i <= k], tags, by_calls and not greedy)

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
        for figure, own in (("accuracy", "greedy"), ("reward", "reward_greedy"), ("f1", "f1_greedy")):
            out |= {f"{k.replace(figure, own, 1)}{tail}": v for k, v in greedy.items() if k.startswith(figure)}
        out |= {f"{k}{tail}": v for k, v in drawn.items()}
    questions = list(session.test_order or range(len(tasks)))[: config.tasks]
    counts |= {"samples": config.decoder_samples, "questions": questions}
    return {"figures": out, "counts": counts}
