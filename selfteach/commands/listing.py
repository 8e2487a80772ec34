"""selfteach methods, tasks and models: what there is."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from ..core import registry
from ..core.errors import BadValue, unknown
from ..core.serial import to_json
from .arguments import Parser, described, documented, kind_of, shown
from .common import asks_help, emit, method_named, task_options, use_files

ABOUT = {
    "methods": """List the methods there are, with paper, family, claim and verdict; or show one: what its slots hold, and its hyper-parameters.

A verdict is there where the method's claim was run: ./results/NAME.json, or the one that came with the library.
""",
    "tasks": """List the tasks there are; or show one: its options with their defaults, its figures, and a question with its answer.
""",
    "models": """List the models that a run can start from by name. Any folder in the Hub's layout that selfteach can read works as well.
""",
}
EXAMPLES = {
    "methods": """examples:
  selfteach methods --family objective
  selfteach methods dr_grpo --diff grpo        what one changes in the other
  selfteach methods --json | jq '.[] | select(.verdict == "holds") | .name'

what comes out: a table; with --json a list of {"name", "family", "catalogue", "paper", "claim", "verdict", "doc", "knobs"}, and for one
NAME that object with the method's "table" and its "value".""",
    "tasks": """examples:
  selfteach tasks
  selfteach tasks atlas --set hops=1,2

what comes out: a table; with --json a list of {"name", "doc", "options"}, and for one NAME that object with "about" and "example".""",
    "models": """examples:
  selfteach models
  selfteach train grpo --model tiny-s

what comes out: a table; with --json a list of {"name", "about", "shape"}.""",
}


def run(command: str, words: Sequence[str]) -> int:
    made = parser(command)
    if asks_help(words):
        made.print_help()
        return 0
    given = vars(made.read(words))
    use_files(given.get("use", ()))
    {"methods": _methods, "tasks": _tasks, "models": _models}[command](given)
    return 0


def parser(command: str) -> Parser:
    usage = f"selfteach {command} [NAME] [options]" if command != "models" else "selfteach models [--json]"
    made = Parser(command, usage=usage, description=ABOUT[command], epilog=EXAMPLES[command])
    made.add_argument("--json", action="store_true", help="JSON")
    if command == "models":
        return made
    made.add_argument("name", metavar="NAME", nargs="?", help=f"one {command[:-1]}")
    made.add_argument("--use", metavar="FILE.py", nargs="+", action="extend", help="files of your own that register methods or tasks")
    if command == "methods":
        made.add_argument("--family", metavar="F", help="only this family")
        made.add_argument("--diff", metavar="OTHER", help="with NAME: the rows in which the two differ")
    else:
        made.add_argument("--set", metavar="KEY=VALUE", nargs="+", action="extend", help="with NAME: options of the task")
    return made


# ---- methods


def told(entry: Any, verdicts: Mapping[str, str]) -> dict[str, Any]:
    """What the list says of a method."""
    from ..analysis.verdict import claim_json

    return {
        "name": entry.name,
        "family": entry.family,
        "catalogue": list(entry.catalogue),
        "paper": entry.paper,
        "claim": claim_json(entry.claim) if entry.claim else None,
        "verdict": verdicts.get(entry.name),
        "doc": entry.doc.split("\n", 1)[0],
        "knobs": {k: to_json(p.default) for k, p in entry.knobs.items()},
    }


def _methods(given: Mapping[str, Any]) -> None:
    from ..analysis.figures import Table
    from ..analysis.ledger import verdicts
    from .reproducing import result_folders
    from .show import show

    found = verdicts(result_folders())
    if "name" in given:
        return _method(given, found)
    if "diff" in given:
        raise BadValue("selfteach methods: --diff OTHER needs a NAME to compare with it")
    entries = [e for _, e in registry.methods.items()]
    families = {e.family for e in entries}
    if "family" in given:
        if given["family"] not in families:
            raise unknown("family", given["family"], families)
        entries = [e for e in entries if e.family == given["family"]]
    if given.get("json"):
        return emit([told(e, found) for e in entries])
    entries.sort(key=lambda e: (e.family, e.name))
    rows = [[e.name, e.family, e.paper, found.get(e.name, "-" if e.claim else "no claim"), e.doc.split("\n", 1)[0]] for e in entries]
    show([Table(f"{len(rows)} methods", ["name", "family", "paper", "verdict here", "what it does"], rows)])


def _method(given: Mapping[str, Any], found: Mapping[str, str]) -> None:
    entry, args, _ = method_named(given["name"])
    value = entry(**args)
    if "diff" in given:
        other, more, _ = method_named(given["diff"])
        return _diff(given, value, other(**more))
    about = told(entry, found)
    if given.get("json"):
        return emit({**about, "doc": entry.doc, "table": value.table(), "value": to_json(value)})
    print(f"{entry.doc}\n\n{value}\n")
    print(f"family   {entry.family}\npaper    {entry.paper}" + (f"\ncards    {', '.join(map(str, entry.catalogue))}" if entry.catalogue else ""))
    docs = documented(entry.doc)
    for name, parameter in entry.knobs.items():
        print(f"  --{name.replace('_', '-'):<16} {shown(parameter.default):<10} {docs.get(name, described(kind_of(parameter)))}")
    if claim := about["claim"]:
        arms = "".join(f"\n  arm {n}: {a}" for n, a in claim["arms"].items())
        print(f"claim    {claim['because']} ({claim['task']}, {claim['steps']} steps){arms}")
        print("\n".join(f"  - {c}" for c in claim["checks"]))
        print(f"verdict  {about['verdict'] or f'not run yet: selfteach reproduce {entry.name}'}")


def _diff(given: Mapping[str, Any], here: Any, there: Any) -> None:
    from ..analysis.figures import Table
    from .show import show

    rows = here.diff(there)
    if given.get("json"):
        emit([{"place": p, here.name: a, there.name if there.name != here.name else "other": b} for p, a, b in rows])
    elif not rows:
        print(f"{here.name} and {there.name} are the same")
    else:
        show([Table("", ["", given["name"], given["diff"]], [[p, a or "-", b or "-"] for p, a, b in rows])])


# ---- tasks and models


def _tasks(given: Mapping[str, Any]) -> None:
    from ..analysis.figures import Table
    from .show import show

    if "name" in given:
        return _task(given)
    if "set" in given:
        raise BadValue("selfteach tasks: --set needs the NAME of a task")
    entries = registry.tasks.items()
    if given.get("json"):
        return emit([{"name": n, "doc": _first(fn), "options": _options(fn)} for n, fn in entries])
    rows = [[n, _first(fn), ", ".join(_options(fn))] for n, fn in entries]
    show([Table(f"{len(rows)} tasks", ["name", "what is asked", "options"], rows)])


def _first(fn: Any) -> str:
    return (inspect.getdoc(fn) or "").split("\n", 1)[0]


def _options(fn: Any) -> dict[str, dict[str, Any]]:
    """name -> default, kind and text of a task's options."""
    docs = documented(inspect.getdoc(fn) or "")
    known = inspect.signature(fn, eval_str=True).parameters
    return {n: {"default": p.default, "kind": described(kind_of(p)), "doc": docs.get(n, "")} for n, p in known.items()}


def _task(given: Mapping[str, Any]) -> None:
    name = given["name"]
    knobs = task_options(name, given.get("set", ()))
    fn = registry.tasks.get(name)
    source = fn(**knobs)
    asked = source.test[0]
    shown_demo = source.demos(0) if source.demos is not None else None
    example = {"prompt": asked.prompt, "answer": asked.answer, "demonstration": shown_demo.prompt + str(shown_demo.data[0]) if shown_demo else None}
    if given.get("json"):
        return emit({"name": name, "doc": inspect.getdoc(fn) or "", "options": _options(fn), "about": dict(source.about), "example": example})
    print((inspect.getdoc(fn) or "").strip() + "\n\noptions (selfteach train METHOD --task " + name + " --set KEY=VALUE):")
    for n, option in _options(fn).items():
        print(f"  {n + '=' + shown(knobs.get(n, option['default'])):<24} {option['kind']}")
    print("\nfigures:")
    for n, value in source.about.items():
        print(f"  {n}: {value}")
    print(f"\na held-out question:\n{_indented(asked.prompt)}\nits answer:\n{_indented(' or '.join(map(str, asked.answer or ())))}")
    if shown_demo:
        print(f"a demonstration of the warm start (it may be wrong on purpose):\n{_indented(example['demonstration'] or '')}")


def _indented(text: str) -> str:
    return "\n".join("  " + line for line in str(text).rstrip("\n").splitlines())


def _models(given: Mapping[str, Any]) -> None:
    from ..analysis.figures import Table
    from ..model.zoo import ABOUT as MODELS
    from ..model.zoo import SIZES
    from .show import show

    if given.get("json"):
        return emit([{"name": n, "about": about, "shape": SIZES.get(n, {})} for n, about in MODELS.items()])
    rows = [[n, about, ", ".join(f"{k} {v}" for k, v in SIZES.get(n, {}).items())] for n, about in MODELS.items()]
    show([Table("models by name", ["name", "what it is", "shape"], rows)])
    print("or a folder: --model runs/ssrl-1/last, --model ./checkpoint (config.json, model.safetensors, tokenizer.json), or a GGUF file")
