"""The command `selfteach eval`: measure the newest checkpoint of a run, or a model before any training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core import registry
from ..core.errors import BadValue, SelfteachError, nearest
from ..loop.settings import EvalConfig, RunSettings
from .arguments import Parser, add_fields
from .common import (
    OF_SEARCH,
    add_model,
    add_sampling,
    add_task,
    add_trust,
    data_arguments,
    load_files,
    model_of,
    print_json,
    print_note,
    read_method,
    read_task_options,
    settings_of,
    task_of,
)
from .streams import results

if TYPE_CHECKING:
    from ..configuration import RunConfig

ABOUT = """Measure a model on held-out tasks: accuracy greedy and sampled, pass@k, majority vote, length, calls.

RUN is a folder that `selfteach train` made: its newest checkpoint is measured. METHOD is a method's name: the model
that it would start from (--model) is measured with the method's program, before any training. Besides this program
every decoder of the method is measured: one with a real search engine, say, for a model that was trained on its own
memory alone.
"""
EXAMPLES = """examples:
  selfteach eval runs/ssrl-1 --decoder search                     with this decoder and its own program alone
  selfteach eval runs/grpo-1 --k 256 --pass-at-k-tasks 20         pass@1..256 on 20 tasks
  selfteach eval runs/grpo-1 --task chain_sum --set terms=5,6     on tasks of a kind that it was not trained on
  selfteach eval runs/ssrl-1 --decoder search --corpus wiki.jsonl --retriever fused   over documents of your own
  selfteach eval runs/ssrl-1 --picture calls.png                  and a picture of accuracy against searches
  selfteach eval ssrl --model smollm2-135m --k 64                 a model before any training
  selfteach eval runs/grpo-1 --inspect mine.py@arithmetic --tasks 50          on a task of inspect_ai
  selfteach eval runs/grpo-1 --test-data other.jsonl --reward mine.py:score   on rows of your own, by your own reward

what comes out: tables on stdout, or with --json one line {"of": ..., "figures": {"accuracy": ..., "pass@64": ...,
"accuracy+search": ...}}. Figures of a decoder end in +DECODER, those of a part of the tasks in /hops=2.
Nothing is written but the picture."""


def parser() -> Parser:
    """The options of `eval`."""
    made = Parser("eval", usage="selfteach eval RUN|METHOD [options]", description=ABOUT, epilog=EXAMPLES)
    made.add_argument("run", metavar="RUN|METHOD", help="a run's folder, or a method's name")
    made.add_argument(
        "--decoder",
        metavar="NAME",
        help="of the method's decoders measure this one alone (search ...), besides its own program",
    )
    made.add_argument(
        "--inspect",
        metavar="FILE.py[@TASK]",
        help="evaluate on tasks of inspect_ai instead, greedy unless they say otherwise; RUN may be a model too",
    )
    made.add_argument(
        "--picture",
        metavar="FILE.png",
        help="draw accuracy against calls of tools: by the number of calls, and each decoder as a point",
    )
    made.add_argument("--inspect-logs", metavar="FOLDER", help="keep inspect_ai's logs there (default: nowhere)")
    add_fields(made, EvalConfig, only=MEASURED, of="")
    add_task(made)
    add_trust(made)
    add_fields(made, RunSettings, only=("threads", "max_unscored", *OF_ENGINES))
    group = made.add_argument_group("for a METHOD alone")
    add_model(group)
    add_sampling(group)
    add_fields(group, RunSettings, only=("seed", "max_tokens", "slots"))
    return made


OF_ENGINES = ("engine", "url", "engine_seconds", "engine_start_seconds", "vllm_python", "vllm_args", "context")
MEASURED = ("tasks", "pass_at_k_tasks", "k", "decoder_samples")  # fields of EvalConfig that are options
OF_A_METHOD = (
    "model",
    "download",
    "use",
    "seed",
    "max_tokens",
    "slots",
    "temperature",
    "top_p",
    "tools",
)  # options that a run's folder does not take


def run(command: str, words: Sequence[str]) -> int:
    """Carry out `selfteach eval`; returns the exit code."""
    given = vars(parser().read(words))
    if "inspect" in given:
        return _inspect(given)
    if "inspect_logs" in given:
        raise BadValue("selfteach eval: --inspect-logs goes with --inspect FILE.py")
    from ..configuration import rows_of, run_config_of
    from ..given_parts import asked_as

    config = EvalConfig(**{name: given[name] for name in MEASURED if name in given})
    if not config.tasks:
        raise BadValue("selfteach eval: --tasks must be 1 or more, not 0")
    target, title = _target(given)
    task_options, settings, reward = None, None, None
    data = dict[str, Any]()
    if isinstance(target, Path):
        settings = settings_of(given)
        run_config = run_config_of(target, bool(given.get("trust")))
        data = data_arguments(given)
        reward = data.get("reward")
        rows = not data.keys().isdisjoint(("train", "test"))
        task = task_of(given, None) if rows else given.get("task", run_config.task if "set" in given else None)
        task_options = read_task_options(task, given.get("set", ())) if task else None
        if rows:
            task, task_options = rows_of(
                task, task_options or {}, *(data.get(n) for n in ("train", "test", "test_share"))
            )
            task_options.setdefault("ask", asked_as(run_config.method))
        elif task and "task" not in given:
            task_options = {**run_config.task_options, **(task_options or {})}
    else:
        run_config, task = target, None
    from .. import evaluation  # with torch, once nothing is left to refuse
    from ..analysis.figures import failed_figures, tables
    from ..progress import show_progress
    from .show import print_tables

    with show_progress() as progress:
        figures = evaluation.evaluate(
            target,
            config,
            progress,
            given.get("decoder"),
            task,
            task_options,
            settings,
            bool(given.get("trust")),
            reward,
            {n: data[n] for n in OF_SEARCH if n in data},
            by_calls="picture" in given,
        )
    picture = _draw(given["picture"], figures, title) if "picture" in given else None
    if given.get("json"):
        print_json({"of": title, "figures": figures})
    else:
        print_tables(tables({}, figures))
        print_note(
            f"\n{title}, {task or run_config.task}: at most {config.tasks} held-out tasks;"
            " --json has the standard error of"
            " the sampled accuracy"
        )
        if picture is not None:
            print(f"picture  {picture}")
    if text := failed_figures(figures):
        print_note(text)
    return 0


def _draw(file: str, figures: Mapping[str, float], title: str) -> Path:
    """Write the picture of accuracy against calls. Raises BadValue where the program calls nothing."""
    from ..analysis.calls_picture import draw_calls

    try:
        return draw_calls(figures, title, Path(file))
    except OSError as error:
        raise SelfteachError(f"{file}: cannot be written ({error.strerror}); give another --picture") from None


OF_INSPECT = ("run", "inspect", "inspect_logs", "tasks", "max_tokens", "seed", "threads", "trust", "json")


def _inspect(given: Mapping[str, Any]) -> int:
    """Evaluate a run or a model on tasks of inspect_ai; returns the exit code."""
    for name in given:
        if name not in OF_INSPECT:
            why = "takes a run's folder or a model" if name == "model" else "does not go with it"
            raise BadValue(f"selfteach eval: --inspect {why}; leave out --{name.replace('_', '-')}")
    from ..serving.inspect_eval import MAX_TOKENS, evaluate_inspect
    from .model_text import load_model

    with load_model({**given, "model": given["run"]}, slots=16) as model:
        figures = evaluate_inspect(
            model,
            given["inspect"],
            given.get("tasks"),
            given.get("seed", 0),
            given.get("max_tokens", MAX_TOKENS),
            given.get("inspect_logs"),
        )
    if given.get("json"):
        print_json({"of": given["run"], "figures": figures})
        return 0
    width = max(map(len, figures))
    for name, value in figures.items():
        print(f"{name:<{width}}  {value:.6g}", file=results())
    return 0


def _target(given: Mapping[str, Any]) -> tuple[Path | RunConfig, str]:
    """(the folder of a run, or the configuration of a method; its title)."""
    folder = Path(given["run"])
    if (folder / "config.json").is_file():
        for name in OF_A_METHOD:
            if name in {**given, **settings_of(given)}:
                raise BadValue(
                    f"selfteach eval: --{name.replace('_', '-')} goes with a METHOD; {folder} is a run, which has"
                    " its own; leave it out"
                )
        return folder, str(folder)
    if folder.is_dir():
        raise BadValue(
            f"{folder}: holds no run (there is no config.json); eval takes the folder that selfteach train printed"
        )
    from ..configuration import plan

    used = load_files(given.get("use", ()))
    if given["run"].partition(":")[0] not in registry.methods and ".py:" not in given["run"]:
        raise BadValue(
            f"selfteach eval: {given['run']} is neither a run's folder nor a method;"
            f" {nearest(given['run'], registry.methods)}"
        )
    entry, args, more = read_method(given["run"])
    task = task_of(given, entry)
    run_config = plan(
        entry.name,
        task,
        read_task_options(task, given.get("set", ())),
        args=args,
        settings=settings_of(given, entry),
        model=model_of(given),
        use=(*used, *more),
        **data_arguments(given),
    )
    return run_config, f"{entry.name} with {run_config.model}"
