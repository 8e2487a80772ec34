"""The door from Python: train, resume, evaluate. The command line calls these and nothing else."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from .core import registry
from .core.errors import BadCheckpoint, BadValue, SelfteachError, unknown
from .core.method import Method
from .core.part import Part
from .core.serial import from_json, to_json
from .core.task import Source
from .loop import assemble, checkpoint
from .loop.assemble import Settings
from .loop.log import Shelf, plain, read_events
from .loop.session import Session
from .loop.warmstart import Warm, warm_start
from .model import files, lora
from .model.zoo import Start, build, suited
from .reward.answer import exact_match

Observer = Callable[[Mapping[str, Any]], None]


def silent(event: Mapping[str, Any]) -> None:
    """An observer that does not listen."""


@dataclass(frozen=True)
class Survey:
    """How a policy is measured before and after training: greedy on `tasks` held-out questions, `k` samples on `deep` of them."""

    tasks: int = 200
    deep: int = 48
    k: int = 64
    ways: int = 4  # samples of each other way to decode (a real engine in place of memory, ...) on the `tasks`


@dataclass(frozen=True)
class Job:
    """A run, resolved: all that is needed to do it again. Goes to RUN/config.json."""

    method: Method
    task: str
    knobs: Mapping[str, Any] = field(default_factory=dict)
    model: str = "tiny"
    settings: Settings = Settings()
    warm: Warm = Warm()
    survey: Survey = Survey()
    use: tuple[str, ...] = ()
    budget: int | None = None  # stop after so many sampled tokens

    def to_json(self) -> dict[str, Any]:
        values = {n: asdict(getattr(self, n)) for n in ("settings", "warm", "survey")}
        plain = {n: getattr(self, n) for n in ("task", "model", "budget")}
        return {
            "format": checkpoint.FORMAT,
            "method": to_json(self.method),
            "knobs": to_json(dict(self.knobs)),
            "use": list(self.use),
            **plain,
            **values,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Job:
        """Raises UnknownName for a block that is no longer there, BadCheckpoint for another format."""
        if data.get("format") != checkpoint.FORMAT:
            raise BadCheckpoint(f"config.json: format {data.get('format')}, this selfteach reads {checkpoint.FORMAT}")
        for file in data["use"]:
            registry.load_file(file)
        return Job(
            from_json(data["method"]),
            data["task"],
            from_json(data["knobs"]),
            data["model"],
            Settings(**data["settings"]),
            Warm(**data["warm"]),
            Survey(**data["survey"]),
            tuple(data["use"]),
            data["budget"],
        )


@dataclass
class Run:
    """A run that is over (or stopped): its folder, what it measured, and where the model lies."""

    folder: Path
    figures: dict[str, Any]
    done: bool
    seconds: float

    @property
    def model(self) -> Path:
        return self.folder / "last"


def source_of(task: str, knobs: Mapping[str, Any]) -> Source:
    """A task's source with some options set. Raises UnknownName for a wrong task or option."""
    import inspect

    make = registry.tasks.get(task)
    known = inspect.signature(make).parameters
    for name in knobs:
        if name not in known:
            raise unknown(f"option of task {task}", name, known)
    return make(**knobs)


def judge_of(source: Source) -> Part:
    """What says whether an answer to this task is right."""
    return source.defaults.get("judge") or exact_match()


def plan(
    method: str | Method, task: str | None = None, knobs: Mapping[str, Any] | None = None, args: Mapping[str, Any] | None = None, **change: Any
) -> Job:
    """A job from names: the method's own task where none is given, the task's own defaults where nothing else is said.

    `change`: hyper-parameters of the method, or fields of Settings, Warm (as warm_steps ...), Survey (as survey_k ...) and Job.
    `args`: hyper-parameters again, for those that are called as a field is.
    """
    rest = dict(change)
    entry = registry.methods.get(method) if isinstance(method, str) else None
    claim = entry.claim if entry else None
    task = task or (claim.task if claim else "atlas")
    assert task is not None
    source = source_of(task, knobs or {})
    settings = {k: rest.pop(k) for k in list(rest) if k in Settings.__dataclass_fields__}
    defaults = {k: v for k, v in source.defaults.items() if k in Settings.__dataclass_fields__}
    warm = {k: source.defaults[f"warm_{k}"] for k in Warm.__dataclass_fields__ if f"warm_{k}" in source.defaults}
    warm |= {k: rest.pop(f"warm_{k}") for k in Warm.__dataclass_fields__ if f"warm_{k}" in rest}
    survey = {k: rest.pop(f"survey_{k}") for k in Survey.__dataclass_fields__ if f"survey_{k}" in rest}
    own = {k: rest.pop(k) for k in ("model", "use", "budget") if k in rest}
    if claim and "steps" not in settings and claim.task == task:
        settings["steps"] = claim.steps
    for name in rest:
        if not entry or name not in entry.knobs:
            fields = [*Settings.__dataclass_fields__, *(f"warm_{k}" for k in Warm.__dataclass_fields__)]
            fields += [*(f"survey_{k}" for k in Survey.__dataclass_fields__), "model", "use", "budget", *(entry.knobs if entry else ())]
            raise unknown(f"setting or hyper-parameter of {entry.name if entry else 'a run'}", name, fields)
    made = entry(**{**rest, **(args or {})}) if entry else method
    if not isinstance(made, Method):
        raise BadValue(f"a method is a name or a Method, not {type(method).__name__}")
    suggested = suited(own.get("model", Job.model))
    if settings.get("lora_rank") or settings.get("adapter"):
        suggested = {n: 10 * v if n == "lr" else v for n, v in suggested.items()}  # adapters begin at nothing and take larger steps
    settings = {"threads": torch.get_num_threads(), **defaults, **suggested, **settings}
    return Job(made, task, dict(knobs or {}), settings=Settings(**settings), warm=Warm(**warm), survey=Survey(**survey), **own)


def changed(job: Job, **change: Any) -> Job:
    """The job with other fields of Settings, Warm (as warm_steps ...), Survey (as survey_k ...), or another model or budget."""
    settings = {k: v for k, v in change.items() if k in Settings.__dataclass_fields__}
    warm = {k.removeprefix("warm_"): v for k, v in change.items() if k.startswith("warm_")}
    survey = {k.removeprefix("survey_"): v for k, v in change.items() if k.startswith("survey_")}
    own = {k: v for k, v in change.items() if k in ("model", "budget")}
    made = {"settings": replace(job.settings, **settings), "warm": replace(job.warm, **warm), "survey": replace(job.survey, **survey)}
    return replace(job, **made, **own)


def free_folder(name: str, base: str | Path = "runs") -> Path:
    """A new empty folder base/name-1, or the first number that is free; made at once, so that two runs never share one."""
    number = 1
    while True:
        folder = Path(base) / f"{name}-{number}"
        try:
            folder.mkdir(parents=True, exist_ok=False)
            return folder
        except FileExistsError:
            if not Path(base).is_dir():
                raise BadValue(f"{base}: is a file, so no run can lie in it; give another --out") from None
            number += 1
        except OSError as error:
            raise checkpoint.disk_error(error, folder) from error


def train(job: Job | str | Method, out: str | Path | None = None, observer: Observer = silent, resume: bool = False, **change: Any) -> Run:
    """Do a job in a run folder, from the start or from its newest checkpoint. Returns when it is done or was asked to stop.

    `job`: a Job, or a method with what `plan` takes: train("grpo", task="chain_sum", steps=40). `out` None: runs/METHOD-N.
    """
    if not isinstance(job, Job):
        job = plan(job, **change)
    elif change:
        raise BadValue(f"train: a Job is whole already, so {', '.join(change)} cannot be given beside it; see plan or changed")
    return asyncio.run(_train(job, Path(out) if out is not None else free_folder(job.method.name or "method"), observer, resume))


def resume(folder: str | Path, observer: Observer = silent) -> Run:
    """Go on with a run where its newest checkpoint left it. Raises BadValue where the folder holds no run."""
    return train(job_of(folder), folder, observer, resume=True)


def job_of(folder: str | Path) -> Job:
    """The job of a run's folder. Raises BadValue where it holds no run, BadCheckpoint where its config.json is broken or foreign."""
    file = Path(folder) / "config.json"
    if not file.is_file():
        raise BadValue(f"{folder}: holds no run (there is no config.json); give the folder that selfteach train printed at its start")
    return read_job(file)


def read_job(file: Path) -> Job:
    """The job that a config.json holds. Raises BadCheckpoint for a file that does not hold one."""
    try:
        return Job.from_json(json.loads(file.read_text()))
    except SelfteachError:
        raise
    except OSError as error:
        raise BadValue(f"{file}: cannot be read ({error.strerror}); give the config.json of a run") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadCheckpoint(f"{file}: not a run's config.json ({type(error).__name__}: {error})") from None


async def _train(job: Job, out: Path, observer: Observer, again: bool) -> Run:
    started = time.monotonic()
    threads(job.settings.threads)
    checkpoint.claim_folder(out, job.to_json(), again)
    source = source_of(job.task, job.knobs)
    assemble.check(job.method, source)
    observer({"event": "source", "task": job.task, **source.about})
    start = await started_model(job, source, observer)
    memory = assemble.memory(job.method, start, job.settings)
    session = session_of(job, source, start, out, observer)
    resumed = session.open()
    about = dict(start.about) | ({"adapters": sum(t.numel() for t in lora.factors(session.model).values())} if session.adapted else {})
    told = {"folder": str(out), "resumed": resumed, "step": session.loop.state.step, "budget": job.budget, "model": about}
    observer({"event": "start", **told, "memory": memory})
    before = _told(out, "start")
    if before is None:
        before = await survey(session, job.survey, "start")
    rl = time.monotonic()
    await session.run()
    rl = time.monotonic() - rl
    if not session.loop.done:
        return Run(out, {"before": before or {}}, False, time.monotonic() - started)
    after = _told(out, "end") or await survey(session, job.survey, "end")
    figures: dict[str, Any] = {"before": before or {}, "after": after, "seconds": {"all": time.monotonic() - started, "training": rl}}
    figures["steps"] = session.loop.state.step
    figures["tokens"] = session.loop.state.tokens
    (out / "figures.json").write_text(json.dumps(plain(figures), indent=1) + "\n")
    observer({"event": "done", "folder": str(out), "figures": figures})
    return Run(out, figures, True, time.monotonic() - started)


async def started_model(job: Job, source: Source, observer: Observer) -> Start:
    """The model that a job starts from: loaded, or fresh and warm-started."""
    start = build(job.model, source, job.warm.seed)
    assemble.adapter_for(job.settings, start.model)  # that adapters do not fit is said before a warm start, not after
    if start.fresh and job.warm.steps and source.demos is not None:
        method = registry.methods.get("sft")(batch=job.warm.batch)
        folder = await warm_start(source, start, method, judge_of(source), job.warm, job.settings, observer)
        model, tokenizer = files.load(folder, mapped=True)
        start = replace(start, model=model, tokenizer=tokenizer, folder=folder, mapped=True)
    return start


def session_of(job: Job, source: Source, start: Start, out: Path | None, observer: Observer) -> Session:
    """A session ready to run or to measure."""
    find = Shelf(out / "log").tree if out else None
    s = job.settings
    made = assemble.loop(job.method, source, start, s, find, budget=job.budget, given=True, teach=out is not None)
    session = Session(made, judge_of(source), out, s.checkpoint_every, s.keep, observer=observer, base=str(start.folder or job.model))
    session.eval_every, session.eval_tasks = s.eval_every, s.eval_tasks
    return session


def _told(out: Path, when: str) -> dict[str, float] | None:
    """What a survey at `when` found, if the run's log has it already."""
    for event in read_events(out / "log"):
        if event["event"] == "survey" and event["when"] == when:
            return event["figures"]
    return None


async def survey(session: Session, how: Survey, when: str, ways: Sequence[str] | None = None) -> dict[str, float]:
    """Measure the policy as it stands, by its own program and by every other way the method can decode.

    Names: accuracy (mean over samples), greedy, pass@k, maj and distinct right answers (of `ways` samples; maj@k, distinct@k of k), length,
    calls, accuracy/hops=2; of another way: accuracy+search ...
    """
    method, source = session.loop.method, session.loop.source
    tasks, tags = source.test, [source.defaults.get("by", "category")]
    last = method.stages[-1]
    main = method.measured(last)
    out: dict[str, float] = {}

    def told(what: str) -> Callable[[int, int], None]:
        return lambda done, total: session.observer({"event": "measuring", "when": when, "what": what, "done": done, "total": total})

    async def measure(name: str, program: Part, k: int, n: int, greedy: bool) -> dict[str, float]:
        what = f"{name or 'own program'}, {'greedy' if greedy else f'{k} samples'}"
        result = await session.measure_tasks(tasks[:n], k=k, greedy=greedy, program=program, where=("survey", when, name, greedy), told=told(what))
        return result.figures([] if greedy else [2**i for i in range(11) if 2**i <= k], tags)

    deep = min(how.deep, len(tasks))
    for name, program in {"": main, **{w: p for w, p in method.decode.items() if ways is None or w in ways}}.items():
        if name and (str(program) == str(main) or assemble.lacking(program, method, source)):
            continue
        greedy = await measure(name, program, 1, how.tasks, True)
        drawn = await measure(name, program, how.ways, how.tasks, False) if how.ways else {}
        if how.k and (not name or ways is not None):  # one way asked for by name is looked at as closely
            found = await measure(name, program, how.k, deep, False)
            drawn |= {k: v for k, v in found.items() if k.startswith("pass@")}
            drawn |= {f"{figure}@{how.k}": found.get(figure, float("nan")) for figure in ("maj", "distinct")}
        tail = f"+{name}" if name else ""
        out |= {f"{k.replace('accuracy', 'greedy')}{tail}": v for k, v in greedy.items() if k.startswith("accuracy")}
        out |= {f"{k}{tail}": v for k, v in drawn.items()}
    session._tell("survey", when=when, step=session.loop.state.step, figures=out)
    return out


def evaluate(
    what: str | Path | Job,
    how: Survey | None = None,
    observer: Observer = silent,
    tool: str | None = None,
    task: str | None = None,
    knobs: Mapping[str, Any] | None = None,
) -> dict[str, float]:
    """Measure the newest checkpoint of a run, or the model that a Job would start from, as it is before any training.

    tool: only this way to decode besides the method's own program. Another task than the run's may be given.
    """
    folder = None if isinstance(what, Job) else Path(what)
    job = what if isinstance(what, Job) else job_of(what)
    if task is not None:
        job = replace(job, task=task, knobs=dict(knobs or {}))
    if tool is not None and tool not in job.method.decode:
        if not job.method.decode:
            raise BadValue(f"method {job.method.name}: has no other way to decode than its own program, so no {tool!r}; leave --tool out")
        raise unknown(f"way to decode of {job.method.name}", tool, job.method.decode)
    threads(job.settings.threads)
    source = source_of(job.task, job.knobs)
    assemble.check(job.method, source)
    if folder is None:
        start = asyncio.run(started_model(job, source, observer))
    else:
        start, job = trained(folder, observer), replace(job, settings=job.settings.full())
    session = session_of(job, source, start, None, observer)
    return asyncio.run(survey(session, how or job.survey, "now", None if tool is None else [tool]))


def trained(folder: str | Path, observer: Observer = silent) -> Start:
    """The model of a run's newest checkpoint; where that holds adapters alone, the model that the run started from with these merged in."""
    last, job = Path(folder) / "last", job_of(folder)
    source = source_of(job.task, job.knobs)
    if not last.exists():
        raise BadValue(f"{folder}: has no checkpoint yet")
    if (last / "config.json").is_file() or not (last / "adapter").is_dir():
        return build(str(last), source)
    start = asyncio.run(started_model(job, source, observer))
    lora.same_base(last / "learner.json", start.model)
    adapter = lora.read(last / "adapter", start.model)
    return replace(start, model=lora.plain(lora.adapt(start.model, adapter.lora, given=adapter.tensors)))


def threads(count: int | None) -> None:
    """Set how many threads matrix products use; the same number gives the same bits."""
    if count:
        torch.set_num_threads(count)
