"""The command `selfteach plan`: what a run on many accelerators would take, on paper."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..core.errors import BadValue, unknown
from .arguments import Parser, add_typed
from .common import print_json

ABOUT = """Say what a run on many GPUs takes, on paper: memory, seconds of a step, who waits for whom, for every split.

Work is counted from the model's shape, divided by what a device does at best and the share of that which is reached;
steps are simulated with answers as long as yours are. Nothing is measured and no GPU is needed. --assume changes what
is assumed; docs/cluster_plan.md says how close it comes where it could be checked.
"""
EXAMPLES = """examples:
  selfteach plan --gpus 8 --model 7B --prompt 300 --answer 1500
  selfteach plan --gpus 64 --model 7B --groups 64 --rollouts 16 --answer 4000 --max-tokens 16384 --staleness 0,1,4
  selfteach plan --gpus 16 --gpu h200 --model path/to/model --lengths runs/grpo-1 --assume learn=0.4 token_seconds=0.01

what comes out: a table of splits, the fastest first, and what the fastest one waits for; with --json all of it as one
line."""
MOST_ANSWERS = 65536
LISTED = 8


class Option(NamedTuple):
    """An option: its kind, default and help, and the smallest and largest number that it takes."""

    kind: Any
    default: Any
    help: str
    least: int = 1
    most: int = 1 << 24


OPTIONS = {
    "gpus": Option(int, 8, "how many devices", most=16384),
    "gpu": Option(str, "h100", "a100, h100, h200, b200 or l40s"),
    "model": Option(str, "7B", "0.5B, 1.5B, 3B, 7B, 14B, 32B or 72B (Qwen2.5's shapes), or a model's folder"),
    "groups": Option(int, 64, "groups of a step", most=4096),
    "rollouts": Option(int, 8, "answers of a group", most=1024),
    "prompt": Option(int, 300, "tokens of a prompt"),
    "answer": Option(int, 2000, "mean tokens of an answer"),
    "spread": Option(float, 0.8, "standard deviation of the logarithm of their lengths", least=0, most=3),
    "max_tokens": Option(int, 8192, "the longest answer"),
    "wait": Option(float, 0.0, "seconds from an answer to its reward, each", least=0, most=3600),
    "staleness": Option(
        tuple[int, ...], (0, 1, 4), "updates that an answer may be old; several to compare", least=0, most=64
    ),
    "epochs": Option(int, 1, "epochs over a batch", most=64),
    "micro_tokens": Option(int, 16384, "tokens of a micro-batch on a device", most=1 << 22),
    "recompute": Option(bool, True, "activations are computed twice"),
    "reference": Option(bool, False, "a reference model is computed too"),
}


def parser() -> Parser:
    """The options of `plan`."""
    made = Parser("plan", usage="selfteach plan --gpus N --model SIZE [options]", description=ABOUT, epilog=EXAMPLES)
    for name, option in OPTIONS.items():
        add_typed(made, name, option.kind, option.help, option.default)
    made.add_argument("--lengths", metavar="RUN", help="lengths of prompts and answers as a run's log has them")
    made.add_argument("--assume", metavar="NAME=X", nargs="+", action="extend", help="other assumptions")
    return made


def run(command: str, words: Sequence[str]) -> int:
    """Carry out `selfteach plan`; returns the exit code."""
    typed = vars(parser().read(words))
    given = {name: option.default for name, option in OPTIONS.items()} | typed
    _check(given, typed)
    from ..analysis import cluster_plan
    from ..analysis.throughput import Workload
    from ..progress import view_on

    device = cluster_plan.ACCELERATORS.get(given["gpu"])
    if device is None:
        raise unknown("kind of GPU", given["gpu"], cluster_plan.ACCELERATORS)
    shape, at = _shape(given["model"]), _assumptions(given.get("assume", ()))
    longest, prompt = given["max_tokens"], given["prompt"]
    if "lengths" in given:
        lengths, prompt = cluster_plan.recorded_lengths(Path(given["lengths"]))
        longest = max(typed.get("max_tokens", 1), int(lengths.max()))
    else:
        lengths = cluster_plan.expected_lengths(given["answer"], given["spread"], longest)
    work = Workload(given["groups"], given["rollouts"], prompt, lengths, lengths * 0.0 + given["wait"])
    learning = cluster_plan.Learning(**{name: given[name] for name in cluster_plan.Learning._fields})
    staleness = tuple(dict.fromkeys(given["staleness"]))
    view = view_on(sys.stderr, panel=False)
    try:
        found = cluster_plan.splits(
            shape,
            device,
            given["gpus"],
            work,
            prompt + longest,
            staleness,
            learning,
            at,
            lambda done, of: view.bar("simulating splits", done, of),
        )
    finally:
        view.close()
    if given.get("json"):
        print_json([cluster_plan.split_summary(split) for split in found])
    else:
        print("\n".join(cluster_plan.split_lines(found[:LISTED], found, at)))
    return 0


def _check(given: Mapping[str, Any], typed: Mapping[str, Any]) -> None:
    """Raise BadValue for a number out of range, by its option, and for options that do not go together."""
    for name, (kind, _, _, least, most) in OPTIONS.items():
        if kind in (str, bool):
            continue
        for number in given[name] if name == "staleness" else (given[name],):
            if not least <= number <= most:
                option = name.replace("_", "-")
                raise BadValue(f"selfteach plan: --{option} must be between {least} and {most}, not {number}")
    if not given["staleness"]:
        raise BadValue("selfteach plan: --staleness is empty; give numbers, such as 0,1,4")
    if (answers := given["groups"] * given["rollouts"]) > MOST_ANSWERS:
        raise BadValue(f"selfteach plan: {answers:,} answers a step; at most {MOST_ANSWERS:,} are simulated")
    if "lengths" in typed and {"answer", "spread", "prompt"} & typed.keys():
        raise BadValue("selfteach plan: --lengths has prompts and answers; leave --answer, --spread and --prompt out")


def _shape(word: str) -> Any:
    from ..analysis.cluster_plan import SHAPES
    from ..model.files import read_config

    if word in SHAPES:
        return SHAPES[word]
    if not (Path(word) / "config.json").is_file():
        raise BadValue(
            f"selfteach plan: --model {word}: is neither a size ({', '.join(SHAPES)}) nor a folder with a config.json"
        )
    shape = read_config(Path(word) / "config.json")
    if isinstance(shape, str):
        raise BadValue(f"selfteach plan: --model {word}: of family {shape}, whose shape is not known here")
    return shape


def _assumptions(words: Sequence[str]) -> Any:
    from dataclasses import fields

    from ..analysis.cluster_plan import USUAL, with_assumptions

    known, change = {f.name for f in fields(USUAL)}, dict[str, float]()
    for word in words:
        name, equals, text = word.partition("=")
        if name not in known:
            raise unknown("assumption", name, known)
        try:
            change[name] = float(text) if equals else float("nan")
        except ValueError:
            change[name] = float("nan")
        if not 0 < change[name] < float("inf"):
            raise BadValue(f"selfteach plan: --assume {word}: {name} must be a number above 0")
    return with_assumptions(USUAL, **change)
