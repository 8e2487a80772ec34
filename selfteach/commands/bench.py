"""The command `selfteach bench`: the speed of this library beside other libraries and the machine's limit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..core.errors import BadValue, unknown
from .arguments import Parser
from .common import print_json, print_note

KINDS = ("rollout", "learn", "step")
ABOUT = """Measure speed: this library and the peers that are installed, in turns in one run, beside this machine's
own limit. A peer is another library that does the same work.

  rollout   sampling: equal lengths beside the peers, uneven lengths, episodes of 200 turns, forks
  learn     forward, backward and AdamW: equal lengths beside plain loops, groups that share a long prompt
  step      a GRPO step end to end beside TRL, with short and long prompts; startup; with --long memory over 500 steps

All systems load the same weights and get the same prompts. Each has a process of its own; they take turns, so that a
noisy machine slows all of them alike. The limit is the roofline: the slower of matrix products and memory traffic, at
rates that are measured between the turns. A peer that is missing or fails is a line with the reason; the others go on.
"""
EXAMPLES = """examples:
  selfteach bench rollout
  selfteach bench rollout --width 16 64 --against transformers vllm --python vllm=envs/vllm/bin/python
  selfteach bench learn --model runs/ssrl-1/last --only fixed
  selfteach bench step --against trl:bf16 --json

what comes out: a table per workload: tokens/s (median and range over rounds), speedup of selfteach's fastest
precision over it (median and range of the rounds' ratios), share of the limit in its precision; then the limit's terms;
with --json one object {"kind", "model", "threads", "repeats", "machine", "workloads": [{"name", "title", "limits",
"machine", "systems": [...]}]}. Nothing is written."""


def parser() -> Parser:
    """The options of `selfteach bench`."""
    made = Parser("bench", usage="selfteach bench rollout|learn|step [options]", description=ABOUT, epilog=EXAMPLES)
    made.add_argument("kind", metavar="KIND", help="rollout, learn or step")
    made.add_argument(
        "--model",
        metavar="M",
        help="tiny (4 layers of 256, vocabulary 512), smollm2-135m (random weights), or a folder",
    )
    made.add_argument(
        "--against",
        metavar="PEER",
        nargs="+",
        action="extend",
        help="NAME or NAME:VARIANT: torch, transformers, vllm, llamacpp, trl; none",
    )
    made.add_argument(
        "--precision",
        metavar="PRECISION",
        nargs="+",
        action="extend",
        help="of selfteach: float32, bfloat16 (default: both)",
    )
    made.add_argument(
        "--width",
        type=int,
        metavar="N",
        nargs="+",
        action="extend",
        help="sequences at once (rollout) or in the batch (learn)",
    )
    made.add_argument(
        "--only",
        metavar="WORKLOAD",
        nargs="+",
        action="extend",
        help="rollout: fixed, uneven, turns, forks; learn: fixed, shared_prefix; step: fixed, shared_prefix, startup",
    )
    made.add_argument("--repeats", type=int, metavar="K", help="measured rounds, after a warm-up round (default: 5)")
    made.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help="threads of every system (default: as many as the machine has cores)",
    )
    made.add_argument(
        "--slots",
        type=int,
        metavar="N",
        help="sequences that selfteach's engine samples at once (default: as in training)",
    )
    made.add_argument("--long", action="store_true", help="step: memory over --steps steps as well")
    made.add_argument("--steps", type=int, metavar="N", help="steps of --long (default: 500)")
    made.add_argument(
        "--python", metavar="PEER=PATH", nargs="+", action="extend", help="the interpreter that has a peer installed"
    )
    return made


def run(command: str, words: Sequence[str]) -> int:
    """Carry out `selfteach bench`; returns the exit code."""
    given = vars(parser().read(words))
    options = options_of(given)
    from ..bench import measure, report

    if given.get("json"):
        print_json(measure.measure(options, print_note))
        return 0
    results = measure.measure(options, print_note, lambda workload: print_result(*report.workload_table(workload)))
    if "startup" in results:
        print_result(*report.startup_table(results["startup"]))
    print(
        f"{results['machine']['processor']}, {options.threads} threads, {options.repeats} rounds, model {options.model}"
    )
    return 0


def options_of(given: dict[str, Any]) -> Any:
    """The options as `bench.workloads.Options`. Raises BadValue or UnknownName before anything heavy is imported."""
    if given["kind"] not in KINDS:
        raise unknown("kind of benchmark", given["kind"], KINDS)
    for name in ("repeats", "threads", "slots", "steps"):
        if given.get(name, 1) < 1:
            raise BadValue(f"selfteach bench: --{name} must be 1 or more, not {given[name]}")
    if any(w < 1 for w in given.get("width", ())):
        raise BadValue(f"selfteach bench: --width must be 1 or more, not {min(given['width'])}")
    if given.get("long") and given["kind"] != "step":
        raise BadValue("selfteach bench: --long belongs to bench step")
    from ..bench.workloads import Options

    against = given.get("against")
    named: dict[str, Any] = {
        k: tuple(given[v])
        for k, v in {"precisions": "precision", "widths": "width", "only": "only"}.items()
        if v in given
    }
    scalars: dict[str, Any] = {k: given[k] for k in ("model", "repeats", "threads", "slots", "steps") if k in given}
    if given.get("long"):
        named["only"] = (*named.get("only", ("fixed", "shared_prefix", "startup")), "memory")
    values: dict[str, Any] = {"threads": cores(), **named, **scalars}
    return Options(
        kind=given["kind"],
        against=None if against is None else tuple(w for w in against if w != "none"),
        pythons=dict(interpreter(word) for word in given.get("python", ())),
        **values,
    )


def interpreter(word: str) -> tuple[str, str]:
    """PEER=PATH as a pair. Raises BadValue."""
    name, equals, path = word.partition("=")
    if not equals:
        raise BadValue(f"selfteach bench: --python {word!r} is not PEER=PATH")
    if not Path(path).is_file():
        raise BadValue(f"selfteach bench: --python {word}: {path} is not a file; give the interpreter, ENV/bin/python")
    return name, path


def cores() -> int:
    """The cores that this process may use."""
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def print_result(table: Any, lines: list[str]) -> None:
    """Print a table and the lines below it."""
    from .show import print_tables

    print_tables([table])
    print("\n".join(f"  {text}" for text in lines) + "\n", flush=True)
