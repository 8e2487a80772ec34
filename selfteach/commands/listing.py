"""The commands `selfteach methods`, `tasks` and `models`: what is registered."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..core import registry
from ..core.errors import BadValue, unknown
from ..core.method import Method, MethodEntry
from ..core.serial import to_json
from ..core.task import TaskSource
from ..loop.settings import SETTING_NAMES, option_name
from .arguments import Parser, describe_type, doc_options, format_value, type_of
from .common import ROWS, load_files, print_json, read_method, read_task_options

ABOUT = {
    "methods": """List the methods with paper, family and verdict; or show one: its blocks, slot by slot, its
hyper-parameters and its claim.

A method has a verdict where its claim was run: in ./results/NAME.json, or in the results that come with the library.
""",
    "tasks": """List the tasks; or show one: its options with their defaults, its size, and a held-out task with its
answer.
""",
    "models": """List the models that a run can start from by name. A folder in the Hub's layout or a .gguf file works
as well.
""",
}
EXAMPLES = {
    "methods": """examples:
  selfteach methods --family objective
  selfteach methods dr_grpo --diff grpo        the slots in which two methods differ
  selfteach methods --json | jq '.[] | select(.verdict == "holds") | .name'

what comes out: a table; with --json a list of {"name", "family", "catalogue", "paper", "claim", "verdict", "doc",
"hyper_parameters"}, and for one NAME that object with the method's "table" and its "value".""",
    "tasks": """examples:
  selfteach tasks
  selfteach tasks atlas --set hops=1,2

what comes out: a table; with --json a list of {"name", "doc", "options"}, and for one NAME that object with "about"
and "example".""",
    "models": """examples:
  selfteach models
  selfteach train grpo --model tiny-s

what comes out: a table; with --json a list of {"name", "about", "shape"}.""",
}


def run(command: str, words: Sequence[str]) -> int:
    """Carry out `selfteach methods`, `tasks` or `models`; returns the exit code."""
    made = parser(command)
    given = vars(made.read(words))
    load_files(given.get("use", ()))
    {"methods": _methods, "tasks": _tasks, "models": _models}[command](given)
    return 0


def parser(command: str) -> Parser:
    """The options of `methods`, `tasks` or `models`."""
    usage = f"selfteach {command} [NAME] [options]" if command != "models" else "selfteach models [--json]"
    made = Parser(command, usage=usage, description=ABOUT[command], epilog=EXAMPLES[command])
    if command == "models":
        return made
    made.add_argument("name", metavar="NAME", nargs="?", help=f"one {command[:-1]}")
    made.add_argument(
        "--use", metavar="FILE.py", nargs="+", action="extend", help="files of your own that register methods or tasks"
    )
    if command == "methods":
        made.add_argument("--family", metavar="F", help="only this family")
        made.add_argument("--diff", metavar="OTHER", help="with NAME: the rows in which the two differ")
    else:
        made.add_argument(
            "--set", metavar="KEY=VALUE", nargs="+", action="extend", help="with NAME: options of the task"
        )
    return made


# ---- methods


def method_summary(entry: MethodEntry[...], verdicts: Mapping[str, str]) -> dict[str, Any]:
    """A method as the list in JSON has it."""
    from ..analysis.verdict import claim_json

    return {
        "name": entry.name,
        "family": entry.family,
        "catalogue": list(entry.catalogue),
        "paper": entry.paper,
        "claim": claim_json(entry.claim) if entry.claim else None,
        "verdict": verdicts.get(entry.name),
        "doc": entry.doc.split("\n", 1)[0],
        "hyper_parameters": {k: to_json(p.default) for k, p in entry.hyper_parameters.items()},
    }


def _methods(given: Mapping[str, Any]) -> None:
    from ..analysis.claim_results import result_folders, verdicts
    from ..analysis.figures import ReportTable
    from .show import print_tables

    known = verdicts(result_folders())
    if "name" in given:
        return _method(given, known)
    if "diff" in given:
        raise BadValue("selfteach methods: --diff OTHER needs a NAME to compare with it")
    entries = [e for _, e in registry.methods.items()]
    families = {e.family for e in entries}
    if "family" in given:
        if given["family"] not in families:
            raise unknown("family", given["family"], families)
        entries = [e for e in entries if e.family == given["family"]]
    if given.get("json"):
        return print_json([method_summary(e, known) for e in entries])
    entries.sort(key=lambda e: (e.family, e.name))
    rows = [
        [e.name, e.family, e.paper, known.get(e.name, "-" if e.claim else "no claim"), e.doc.split("\n", 1)[0]]
        for e in entries
    ]
    print_tables(
        [ReportTable(f"{len(rows)} methods", ["name", "family", "paper", "verdict here", "what it does"], rows)]
    )


def _method(given: Mapping[str, Any], verdicts: Mapping[str, str]) -> None:
    entry, args, _ = read_method(given["name"])
    value = entry(**args)
    if "diff" in given:
        other, more, _ = read_method(given["diff"])
        return _diff(given, value, other(**more))
    about = method_summary(entry, verdicts)
    if given.get("json"):
        return print_json({**about, "doc": entry.doc, "table": value.table(), "value": to_json(value)})
    print(f"{entry.doc}\n\n{value}\n")
    print(
        f"family   {entry.family}\npaper    {entry.paper}"
        + (f"\ncards    {', '.join(map(str, entry.catalogue))}" if entry.catalogue else "")
    )
    docs = doc_options(entry.doc)
    if entry.hyper_parameters:
        print("hyper-parameters")
    for name, parameter in entry.hyper_parameters.items():
        option = option_name(name, "method" if name in SETTING_NAMES else "")
        print(
            f"  {option:<18} {format_value(parameter.default):<10} {docs.get(name, describe_type(type_of(parameter)))}"
        )
    if claim := about["claim"]:
        arms = "".join(f"\n  arm {n}: {a}" for n, a in claim["arms"].items())
        print(f"claim    {claim['because']} ({claim['regime'] or claim['task']}, {claim['steps']} steps){arms}")
        kinds = [f"{k}: " if k != "unsorted" else "" for k in claim["kinds"]]
        print("\n".join(f"  - {k}{c}" for k, c in zip(kinds, claim["checks"], strict=True)))
        print(f"verdict  {about['verdict'] or f'not run yet: selfteach reproduce {entry.name}'}")


def _diff(given: Mapping[str, Any], here: Method, there: Method) -> None:
    from ..analysis.figures import ReportTable
    from .show import print_tables

    rows = here.diff(there)
    if given.get("json"):
        print_json(
            [{"place": p, here.name: a, there.name if there.name != here.name else "other": b} for p, a, b in rows]
        )
    elif not rows:
        print(f"{here.name} and {there.name} are the same")
    else:
        print_tables(
            [ReportTable("", ["", given["name"], given["diff"]], [[p, a or "-", b or "-"] for p, a, b in rows])]
        )


# ---- tasks and models


def _tasks(given: Mapping[str, Any]) -> None:
    from ..analysis.figures import ReportTable
    from .show import print_tables

    if "name" in given:
        return _task(given)
    if "set" in given:
        raise BadValue("selfteach tasks: --set needs the NAME of a task")
    entries = registry.tasks.items()
    if given.get("json"):
        return print_json([{"name": n, "doc": _summary(fn), "options": _options(fn)} for n, fn in entries])
    rows = [[n, _summary(fn), ", ".join(_options(fn))] for n, fn in entries]
    print_tables([ReportTable(f"{len(rows)} tasks", ["name", "what is asked", "options"], rows)])


def _summary(fn: Callable[..., TaskSource]) -> str:
    """The first line of a task's docstring."""
    return (inspect.getdoc(fn) or "").split("\n", 1)[0]


def _options(fn: Callable[..., TaskSource]) -> dict[str, dict[str, Any]]:
    """Name -> default, type in words and text of a task's options."""
    docs = doc_options(inspect.getdoc(fn) or "")
    known = inspect.signature(fn, eval_str=True).parameters
    return {
        n: {"default": p.default, "kind": describe_type(type_of(p)), "doc": docs.get(n, "")} for n, p in known.items()
    }


def _task(given: Mapping[str, Any]) -> None:
    name = given["name"]
    task_options = read_task_options(name, given.get("set", ()))
    fn = registry.tasks.get(name)
    source = None if name == ROWS and not {"train", "test"} & task_options.keys() else fn(**task_options)
    example = _example(source) if source else {}
    if given.get("json"):
        return print_json(
            {
                "name": name,
                "doc": inspect.getdoc(fn) or "",
                "options": _options(fn),
                "about": dict(source.about) if source else {},
                "example": example,
            }
        )
    print(
        (inspect.getdoc(fn) or "").strip() + "\n\noptions (selfteach train METHOD --task " + name + " --set KEY=VALUE):"
    )
    for n, option in _options(fn).items():
        print(f"  {n + '=' + format_value(task_options.get(n, option['default'])):<24} {option['kind']}")
    if source is None:
        return print("\nits rows are yours: --data FILE, or --set train=FILE (docs/data.md)")
    print("\nsize:")
    for n, value in source.about.items():
        print(f"  {n}: {value}")
    print(f"\na held-out task:\n{_indented(example['prompt'])}")
    answers = example["answer"] if isinstance(example["answer"], list | tuple) else [example["answer"] or ""]
    print(f"its answer:\n{_indented(' or '.join(map(str, answers)))}")
    if example["demonstration"]:
        print("a demonstration of the warm start (some are wrong on purpose):")
        print(_indented(example["demonstration"]))


def _example(source: TaskSource) -> dict[str, Any]:
    """The first held-out task and the first demonstration, as `tasks NAME` shows them."""
    task, demo = source.test[0], source.demos(0) if source.demos is not None else None
    shown = None if demo is None else f"{demo.prompt}{''.join(map(str, demo.data))}"
    return {"prompt": task.prompt, "answer": task.answer, "demonstration": shown}


def _indented(text: str) -> str:
    return "\n".join("  " + line for line in str(text).rstrip("\n").splitlines())


def _models(given: Mapping[str, Any]) -> None:
    from ..analysis.figures import ReportTable
    from ..model.names import ABOUT as MODELS
    from ..model.names import SIZES
    from .show import print_tables

    if given.get("json"):
        return print_json([{"name": n, "about": about, "shape": SIZES.get(n, {})} for n, about in MODELS.items()])
    rows = [[n, about, ", ".join(f"{k} {v}" for k, v in SIZES.get(n, {}).items())] for n, about in MODELS.items()]
    print_tables([ReportTable("models by name", ["name", "what it is", "shape"], rows)])
    print(
        "or a folder: --model runs/ssrl-1/last, --model ./checkpoint (config.json, model.safetensors,"
        " tokenizer.json), or a GGUF file"
    )
