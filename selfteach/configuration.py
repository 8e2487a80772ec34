"""The configuration of a run: made by `plan`, saved as RUN/config.json, read from there.

A run has settings (learning rate, steps, seed ...) and its method has hyper-parameters (rollouts, clip ...). They are
passed apart, and a bare name is taken where only one of the two can be meant:

    plan(methods.m2po(budget=0.04), task="chain_sum", settings={"steps": 40, "budget": 100_000})
    plan("m2po", args={"budget": 0.04}, settings={"budget": 100_000})
    plan("grpo", rollouts=16, steps=40)
    plan("m2po", budget=0.04)      # refused: both have a `budget`
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from .core import registry
from .core.blocks import Block
from .core.env import Env, env_word
from .core.errors import BadCheckpoint, BadValue, SelfteachError, describe, unknown
from .core.method import Method, MethodEntry
from .core.regime import claim_home
from .core.serial import from_json, to_json
from .core.task import TaskSource
from .loop import assemble, checkpoint
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
from .reward.answer import exact_match


@dataclass(frozen=True)
class RunConfig:
    """The whole configuration of a run: all that is needed to repeat it. Saved as RUN/config.json."""

    method: Method
    task: str
    task_options: Mapping[str, Any] = field(default_factory=dict)
    model: str = "tiny"
    settings: RunSettings = RunSettings()
    warm: WarmStartConfig = WarmStartConfig()
    final_eval: EvalConfig = EvalConfig()
    use: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The configuration as plain values, for config.json."""
        return {
            "format": checkpoint.FORMAT,
            "method": to_json(self.method),
            "task": self.task,
            "task_options": to_json(dict(self.task_options)),
            "model": self.model,
            "use": list(self.use),
            **{group: asdict(getattr(self, group)) for group in SETTING_GROUPS},
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> RunConfig:
        """The configuration that `to_json` wrote; its `use` files are imported first.

        Raises UnknownName for a block that is no longer there, BadCheckpoint for another format.
        """
        if data.get("format") != checkpoint.FORMAT:
            raise BadCheckpoint(
                f"config.json: has format {data.get('format')}, and this selfteach reads {checkpoint.FORMAT}; run it"
                " with the selfteach that wrote it"
            )
        for file in data["use"]:
            registry.load_file(file)
        return RunConfig(
            from_json(data["method"]),
            data["task"],
            from_json(data["task_options"]),
            data["model"],
            use=tuple(data["use"]),
            **{group: cls(**data[group]) for group, (_, cls) in SETTING_GROUPS.items()},
        )

    def override(self, model: str | None = None, **settings: Any) -> RunConfig:
        """The configuration with other settings (lr, warm_steps, final_eval_k ...) or another model.

        Raises UnknownName for a setting that does not exist, BadValue for a value out of range.
        """
        groups = group_settings(settings).items()
        change = {group: replace(getattr(self, group), **values) for group, values in groups}
        return replace(self, model=model or self.model, **change)


def task_source(task: str, task_options: Mapping[str, Any]) -> TaskSource:
    """A task with some of its options set. Raises UnknownName for a task or option that does not exist."""
    make = registry.tasks.get(task)
    known = inspect.signature(make).parameters
    for name in task_options:
        if name not in known:
            raise unknown(f"option of task {task}", name, known)
    # A plan reads the source's defaults and the run its tasks: the second time it is not made again.
    key = make, repr(sorted(task_options.items()))
    if key not in _sources:
        _sources.clear()
        try:
            _sources[key] = make(**task_options)
        except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            if isinstance(error, SelfteachError):
                raise
            given = ", ".join(f"{name}={value!r}" for name, value in task_options.items()) or "no options"
            raise BadValue(f"task {task} with {given}: cannot be made ({describe(error)})") from error
    return _sources[key]


_sources: dict[tuple[Callable[..., TaskSource], str], TaskSource] = {}  # the last one made


def judge_of(source: TaskSource) -> Block:
    """The block that judges answers to this task: its own judge, or an exact match with the reference answer."""
    return source.defaults.get("judge") or exact_match()


def plan(
    method: str | Method | MethodEntry[...],
    task: str | None = None,
    task_options: Mapping[str, Any] | None = None,
    *,
    args: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    model: str | None = None,
    use: Sequence[str] = (),
    env: type[Env] | str | None = None,
    **named: Any,
) -> RunConfig:
    """The configuration of a run; the task defaults to that of the method's claim, settings to the task's defaults.

    args      hyper-parameters of the method, where it is given by name
    settings  of the run: fields of RunSettings, of WarmStartConfig as warm_steps ..., of EvalConfig as final_eval_k ...
    env       an environment to play in place of a task: a class with reset and step (core/env.py), or FILE.py:Class
    named     either of these without saying which, where only one has the name: plan("grpo", rollouts=16, steps=40)

    Raises BadValue for a bare name that the method and the run both have, UnknownName for one that neither has.
    """
    entry = registry.methods.get(method) if isinstance(method, str) else method
    if not isinstance(entry, Method | MethodEntry):
        raise BadValue(f"a method is a name or a Method, not {type(method).__name__}")
    if isinstance(entry, Method):
        if args:
            raise BadValue(f"args: method {entry.name} has its hyper-parameters already; give its name, or no args")
        built, given, claim = entry, split_settings(None, named, {}, settings or {})[1], None
    else:
        own, given = split_settings(entry, named, args or {}, settings or {})
        built, claim = entry(**own), entry.claim
    home, steps = claim_home(claim) if claim else ("atlas", 0)
    if env is not None:
        if task not in (None, "environment"):
            raise BadValue(f"env: takes the place of a task, so {task} cannot be given beside it; leave one out")
        task, task_options = "environment", {**(task_options or {}), "env": env_word(env)}
    task = task or home
    source = task_source(task, task_options or {})
    model = model or RunConfig.model
    suggested = suggested_settings(model)
    if given.get("lora_rank") or given.get("adapter"):  # adapters start at zero and take larger steps
        suggested = {n: 10 * v if n == "lr" else v for n, v in suggested.items()}
    defaults = {n: v for n, v in source.defaults.items() if n in SETTING_NAMES}
    if steps and home == task:
        suggested["steps"] = steps
    groups = group_settings({"threads": torch.get_num_threads(), **defaults, **suggested, **given})
    return RunConfig(
        assemble.for_task(built, source, judge_of(source)),
        task,
        dict(task_options or {}),
        model,
        use=tuple(dict.fromkeys((*use, *source.files))),
        **{group: cls(**groups[group]) for group, (_, cls) in SETTING_GROUPS.items()},
    )


def run_config_of(folder: str | Path) -> RunConfig:
    """The configuration of a run's folder.

    Raises BadValue where it holds no run, BadCheckpoint where its config.json is broken or another program's.
    """
    file = Path(folder) / "config.json"
    if not file.is_file():
        raise BadValue(
            f"{folder}: holds no run (there is no config.json); give the folder that selfteach train printed at"
            " its start"
        )
    return read_run_config(file)


def read_run_config(file: Path) -> RunConfig:
    """The configuration that a config.json holds. Raises BadCheckpoint for a file that does not hold one."""
    try:
        run_config = RunConfig.from_json(json.loads(file.read_text()))
        kinds = {"method": Method, "task": str, "task_options": Mapping, "model": str}
        for name, kind in kinds.items():
            if not isinstance(getattr(run_config, name), kind):
                raise BadCheckpoint(f"{file}: its {name} is no {kind.__name__.lower()}")
        assemble.check(run_config.method, task_source(run_config.task, run_config.task_options))
        return run_config
    except SelfteachError as error:
        raise error if "config.json" in str(error) else type(error)(f"{file}: {error}") from None
    except OSError as error:
        raise BadValue(f"{file}: cannot be read ({error.strerror}); give the config.json of a run") from None
    except Exception as error:  # it was edited, and what is wrong shows wherever it is first used
        raise BadCheckpoint(f"{file}: not a run's config.json ({describe(error)})") from error
