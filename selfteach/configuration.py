"""The configuration of a run: made by `plan`, saved as RUN/config.json, read from there.

A run has settings (learning rate, steps, seed ...) and its method has hyper-parameters (rollouts, clip ...). They are
passed apart, and a bare name is taken where only one of the two can be meant:

    plan(methods.m2po(budget=0.04), task="chain_sum", settings={"steps": 40, "budget": 100_000})
    plan("m2po", args={"budget": 0.04}, settings={"budget": 100_000})
    plan("grpo", rollouts=16, steps=40)
    plan("m2po", budget=0.04)      # refused: both have a `budget`
    plan(methods.grpo(), train="mine.jsonl", reward="mine.py:score", model="path")      # a user's own data and reward
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar, Unpack, get_type_hints

from typing_extensions import TypedDict

from .core import registry
from .core.blocks import Block
from .core.env import Env, env_files, env_word
from .core.errors import BadCheckpoint, BadValue, SelfteachError, describe, unknown
from .core.function_source import allow_functions
from .core.lazy import torch
from .core.method import Home, Method, MethodEntry
from .core.regime import home_of
from .core.serial import from_json, to_json
from .core.task import TaskSource
from .given_parts import (
    asked_as,
    check_rewards,
    judge_of,
    sampled_at,
    search_options,
    with_search,
    with_tools,
)
from .loop import checkpoint, method_on_task
from .loop.settings import (
    SETTING_GROUPS,
    SETTING_NAMES,
    EvalConfig,
    RunSettings,
    WarmStartConfig,
    group_settings,
    split_settings,
)
from .model.names import suggested_settings
from .model.outside_models import located
from .reward import outside_forms
from .reward.outside_forms import Reward
from .tasks import row_files, rows
from .tools.functions import function_tools


@dataclass(frozen=True)
class RunConfig:
    """The whole configuration of a run: all that is needed to repeat it. Saved as RUN/config.json.

    reward  what a user gave in place of the method's exact match: the method has it, and evaluation measures it too
    """

    method: Method
    task: str
    task_options: Mapping[str, Any] = field(default_factory=dict)
    model: str = "tiny"
    settings: RunSettings = RunSettings()
    warm: WarmStartConfig = WarmStartConfig()
    final_eval: EvalConfig = EvalConfig()
    use: tuple[str, ...] = ()
    reward: Block | None = None

    def to_json(self) -> dict[str, Any]:
        """The configuration as plain values, for config.json."""
        return {
            "format": checkpoint.FORMAT,
            "method": to_json(self.method),
            "task": self.task,
            "task_options": to_json(dict(self.task_options)),
            "model": self.model,
            "use": list(self.use),
            **({} if self.reward is None else {"reward": to_json(self.reward)}),
            **{group: asdict(getattr(self, group)) for group in SETTING_GROUPS},
        }

    @staticmethod
    def from_json(
        data: Mapping[str, Any], trust: bool = False, named_by: str | Path = "config.json", folder: Path | None = None
    ) -> RunConfig:
        """The configuration that `to_json` wrote; its `use` files are run first, if they may be (core/trust.py).

        trust     they may, whatever they are
        named_by  where the data are from, for errors
        folder    the run's, which may hold copies of these files

        Raises BadValue for a file that must not be run.
        Raises UnknownName for a block that is no longer there, BadCheckpoint for another format.
        """
        if data.get("format") != checkpoint.FORMAT:
            raise BadCheckpoint(
                f"config.json: has format {data.get('format')}, and this selfteach reads {checkpoint.FORMAT}; run it"
                " with the selfteach that wrote it"
            )
        options = from_json(data["task_options"])
        for file in dict.fromkeys((*data["use"], *env_files(data["task"], options))):
            registry.load_file(use_file(file, folder), named_by, trust)
        allow_functions([data["method"], data.get("reward")], named_by, trust)
        return RunConfig(
            from_json(data["method"]),
            data["task"],
            options,
            data["model"],
            use=tuple(data["use"]),
            reward=from_json(data.get("reward")),
            **{group: cls(**data[group]) for group, (_, cls) in SETTING_GROUPS.items()},
        )

    def override(self, model: Any = None, **settings: Any) -> RunConfig:
        """The configuration with other settings (lr, warm_steps, final_eval_k ...) or another model.

        Raises UnknownName for a setting that does not exist, BadValue for a value out of range.
        """
        groups = group_settings(settings).items()
        change = {group: replace(getattr(self, group), **values) for group, values in groups}
        return replace(self, model=located(model) if model else self.model, **change)


def use_file(file: str, folder: Path | None) -> Path:
    """A file of the user's that a run needs: where it was, or else the copy in the run's folder."""
    copied = None if folder is None else folder / "use" / Path(file).name
    return copied if copied is not None and copied.is_file() and not Path(file).is_file() else Path(file)


def keep_inputs(run_config: RunConfig, folder: Path) -> None:
    """Copy what a run is made of into its folder: files of the user's, and rows (those of a file up to 64 MiB)."""
    for file in run_config.use:
        if Path(file).is_file() and not (folder / "use" / Path(file).name).exists():
            row_files.copy_whole(Path(file), folder / "use" / Path(file).name)
    if run_config.task == rows.NAME:
        for side, at in rows.references(run_config.task_options).items():
            row_files.keep(at, folder, side)


def task_source(task: str, task_options: Mapping[str, Any], folder: Path | None = None) -> TaskSource:
    """A task with some of its options set. folder: of the run, which may hold the task's data.

    Raises UnknownName for a task or option that does not exist, BadValue for rows that are not there any more.
    """
    make = registry.tasks.get(task)
    known = inspect.signature(make).parameters
    for name in task_options:
        if name not in known:
            raise unknown(f"option of task {task}", name, known)
    if task == rows.NAME:
        task_options = rows.located(task_options, folder)
    # A plan reads the source's defaults and the run its tasks: the second time it is not made again.
    key = make, repr(sorted(task_options.items()))
    if key not in _sources:
        _sources.clear()
        try:
            _sources[key] = make(**task_options)
        except (SelfteachError, KeyboardInterrupt):
            raise
        except BaseException as error:  # one that exits, too
            given = ", ".join(f"{name}={value!r}" for name, value in task_options.items()) or "no options"
            raise BadValue(f"task {task} with {given}: cannot be made ({describe(error)})") from error
    return _sources[key]


_sources: dict[tuple[Callable[..., TaskSource], str], TaskSource] = {}  # the last one made


class PlanArguments(TypedDict, total=False, extra_items=Any):
    """What a run is planned from, besides its method and its task; each may be left out, or None.

    Any other name is a setting or a hyper-parameter, given without saying which, where only one of the two has it:
    plan("grpo", rollouts=16, steps=40).

    train       rows of your own to learn from, in place of a task: a path (JSONL, JSON, CSV, Parquet), a list of dicts,
                a datasets.Dataset, a pandas or polars frame, a pyarrow table; docs/data.md says what rows may hold
    test        rows that are measured and never learned; None: a share of `train`
    test_share  that share (default: 0.1)
    reward      in place of the method's exact match: a function of ours, TRL's or verl's form, a block, FILE.py:NAME; a
                list of them, or of (weight, reward) pairs
    reward_weights  of a list of rewards
    temperature, top_p  of the rollouts, for a method that does not state its sampling itself
    args      hyper-parameters of the method, where it is given by name
    settings  of the run: a RunSettings (the fields that it was made with), or a dict of fields of RunSettings, of
              WarmStartConfig as warm_steps ..., of EvalConfig as final_eval_k ...
    model     a model's name, its folder, a .gguf file, a name of the Hub ("Qwen/Qwen2.5-0.5B") that is in the local
              cache, or (model, tokenizer) of transformers
    download  get a name of the Hub that is not in the cache
    use       files of your own that register what the method or the task is made of
    tools     typed functions with docstrings that the policy may call in its turns (docs/tools.md): a list of
              functions, or of words FILE.py:NAME
    corpus    what the tools `search` and `open` search and read: a folder or a file of texts (docs/search.md), or a
              list of dicts or texts
    search_url  of a search server, in place of a corpus
    retriever  bm25 (default), dense or fused over a corpus; http (default) or searxng of a server
    search    further options of the tool (tools/retrieve.py): top, chars, noise, failures, latency, timeout ...
    env       an environment to play in place of a task: a class with reset and step (core/env.py), or FILE.py:Class
    """

    model: str | Path | tuple[Any, Any] | None
    download: bool
    env: type[Env] | str | None
    tools: Sequence[Callable[..., Any] | str] | None
    corpus: str | Path | Sequence[Any] | None
    search_url: str | None
    retriever: str | None
    search: Mapping[str, Any] | None
    train: Any
    test: Any
    test_share: float | None
    reward: Reward | Sequence[Reward | tuple[float, Reward]] | None
    reward_weights: Sequence[float] | None
    temperature: float | None
    top_p: float | None
    args: Mapping[str, Any] | None
    settings: RunSettings | Mapping[str, Any] | None
    use: Sequence[str]


class RunArguments(PlanArguments, total=False):
    """What a run is planned from, besides its method.

    task          a task by name; None: the method's own (`home_of`)
    task_options  its options
    """

    task: str | None
    task_options: Mapping[str, Any] | None


F = TypeVar("F", bound=Callable[..., Any])


def listed(arguments: type) -> Callable[[F], F]:
    """A decorator: a function whose last parameter is **given: Unpack[arguments] shows each of them in its signature,
    for `help` and for completion.
    """

    def decorate(fn: F) -> F:
        own, keyword = inspect.signature(fn), inspect.Parameter.KEYWORD_ONLY
        *shown, rest = own.parameters.values()
        kinds = get_type_hints(arguments).items()
        shown += [inspect.Parameter(name, keyword, default=None, annotation=kind) for name, kind in kinds]
        given = own.replace(parameters=[*shown, rest.replace(name="named", annotation=Any)])
        fn.__signature__ = given  # type: ignore[attr-defined]
        return fn

    return decorate


@listed(PlanArguments)
def plan(
    method: str | Method | MethodEntry[...],
    task: str | None = None,
    task_options: Mapping[str, Any] | None = None,
    **given: Unpack[PlanArguments],
) -> RunConfig:
    """The configuration of a run; `given`: PlanArguments.

    The task defaults to the method's home (`home_of`), settings to the task's defaults.

    Raises BadValue for a bare name that the method and the run both have and for rows, rewards or sampling that do not
    fit, UnknownName for a name that neither has.
    """
    entry = registry.methods.get(method) if isinstance(method, str) else method
    if not isinstance(entry, Method | MethodEntry):
        raise BadValue(f"a method is a name or a Method, not {type(method).__name__}")
    named = {name: value for name, value in given.items() if name not in PlanArguments.__annotations__}
    temperature, top_p, reward, env = (given.get(name) for name in ("temperature", "top_p", "reward", "env"))
    reward_weights, args, use = given.get("reward_weights"), given.get("args"), tuple(given.get("use") or ())
    settings = given_settings(given.get("settings"))
    own_names = () if isinstance(entry, Method) else entry.hyper_parameters
    sampling = {"temperature": temperature, "top_p": top_p}
    named |= {n: v for n, v in sampling.items() if v is not None and n in own_names}
    sampling = {n: v for n, v in sampling.items() if v is not None and n not in own_names}
    if isinstance(entry, Method):
        if args:
            raise BadValue(f"args: method {entry.name} has its hyper-parameters already; give its name, or no args")
        built, stated, home = entry, split_settings(None, named, {}, settings)[1], Home("atlas")
    else:
        own, stated = split_settings(entry, named, args or {}, settings)
        built, home = entry(**own), home_of(entry)
    if env is not None:
        if task not in (None, "environment"):
            raise BadValue(f"env: takes the place of a task, so {task} cannot be given beside it; leave one out")
        task, task_options = "environment", {**(task_options or {}), "env": env_word(env)}
    task, task_options = rows_of(
        task, task_options or {}, given.get("train"), given.get("test"), given.get("test_share")
    )
    searched = search_options(given)
    if task == rows.NAME and (style := asked_as(built)):
        task_options.setdefault("ask", style)
    task = task or home.task
    if task == home.task:
        task_options = {**home.options, **task_options}
    source = task_source(task, task_options)
    built = sampled_at(built, sampling)
    if functions := given.get("tools"):
        tools, files = function_tools(functions)
        built, use = with_tools(built, tools, source), tuple(dict.fromkeys((*use, *files)))
    built = with_search(built, searched, source)
    block = None
    if reward is not None:
        block, files = outside_forms.as_block(reward, reward_weights)
        built = built.with_reward(block, required=not all(stage.data for stage in built.stages))
        use = tuple(dict.fromkeys((*use, *files)))
    elif reward_weights is not None:
        raise BadValue("reward_weights: there is no reward; give reward=[...] too")
    check_rewards(built, source, block)
    check_files(use)
    model = located(given.get("model") or RunConfig.model, bool(given.get("download")))
    suggested = suggested_settings(model)
    if stated.get("lora_rank") or stated.get("adapter"):  # adapters start at zero and take larger steps
        suggested = {n: 10 * v if n == "lr" else v for n, v in suggested.items()}
    defaults = {n: v for n, v in source.defaults.items() if n in SETTING_NAMES}
    if home.steps and home.task == task:
        suggested["steps"] = home.steps
    groups = group_settings({**defaults, **suggested, **stated})
    made = {group: cls(**groups[group]) for group, (_, cls) in SETTING_GROUPS.items()}
    built = method_on_task.for_task(built, source, judge_of(source))
    if "threads" not in groups["settings"]:  # last: torch is imported for what can run alone
        made["settings"] = RunSettings(**groups["settings"], threads=torch.get_num_threads())
    use = tuple(dict.fromkeys((*use, *source.files)))
    return RunConfig(built, task, dict(task_options), model, use=use, reward=block, **made)


def given_settings(settings: RunSettings | Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Settings as a dict; of a RunSettings those that it was made with."""
    if isinstance(settings, RunSettings):
        return {name: getattr(settings, name) for name in settings.given}
    if settings is not None and not isinstance(settings, Mapping):
        raise BadValue(f"settings: a RunSettings or a dict of settings, not {type(settings).__name__}")
    return settings or {}


def rows_of(
    task: str | None, task_options: Mapping[str, Any], train: Any, test: Any, test_share: float | None
) -> tuple[str | None, dict[str, Any]]:
    """(task, options) with a user's rows among the options, as paths and hashes."""
    options = dict(task_options)
    if train is not None or test is not None:
        if task not in (None, rows.NAME):
            raise BadValue(
                f"rows of your own are in place of a task, so task {task} cannot go with them; leave one out"
            )
        task = rows.NAME
        for side, given in (("train", train), ("test", test)):
            if given is not None:
                options[side], options[f"{side}_hash"] = row_files.reference(given, side)
    if test_share is not None:
        if test is not None or task != rows.NAME:
            raise BadValue("test_share: is of training rows without test rows; leave it out")
        options["test_share"] = test_share
    return task, rows.with_hashes(options) if task == rows.NAME else options


def check_files(use: Sequence[str]) -> None:
    """Raise BadValue for two files of one name, of which a run's folder could keep one only."""
    names: dict[str, str] = {}
    for file in use:
        other = names.setdefault(Path(file).name, str(file))
        if Path(other).resolve() != Path(file).resolve():
            raise BadValue(f"{file}: and {other} have one name, and a run keeps a copy of each; rename one")


def run_config_of(folder: str | Path, trust: bool = False) -> RunConfig:
    """The configuration of a run's folder; `trust` as in `RunConfig.from_json`.

    Raises BadValue where it holds no run, BadCheckpoint where its config.json is broken or another program's.
    """
    file = Path(folder) / "config.json"
    if not file.is_file():
        raise BadValue(
            f"{folder}: holds no run (there is no config.json); give the folder that selfteach train printed at"
            " its start"
        )
    return read_run_config(file, trust)


def read_run_config(file: Path, trust: bool = False) -> RunConfig:
    """The configuration that a config.json holds; `trust` as in `RunConfig.from_json`.

    Raises BadCheckpoint for a file that does not hold one, BadValue where it names a file that must not be run.
    """
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        run_config = RunConfig.from_json(data, trust, file, file.parent)
        kinds = {"method": Method, "task": str, "task_options": Mapping, "model": str}
        for name, kind in kinds.items():
            if not isinstance(getattr(run_config, name), kind):
                raise BadCheckpoint(f"{file}: its {name} is no {kind.__name__.lower()}")
        method_on_task.check(run_config.method, task_source(run_config.task, run_config.task_options, file.parent))
        return run_config
    except SelfteachError as error:
        raise error if "config.json" in str(error) else type(error)(f"{file}: {error}") from None
    except OSError as error:
        raise BadValue(f"{file}: cannot be read ({error.strerror}); give the config.json of a run") from None
    except Exception as error:  # it was edited, and what is wrong shows wherever it is first used
        raise BadCheckpoint(f"{file}: not a run's config.json ({describe(error)})") from error
