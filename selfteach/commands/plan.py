"""The command `selfteach plan`: what a run on many accelerators would take, on paper."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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
LIMITS = {"gpus": 16384, "groups": 4096, "rollouts": 1024, "micro_tokens": 1 << 22}
MOST_ANSWERS = 65536
LISTED = 8


def parser() -> Parser:
    """The options of `plan`."""
    made = Parser("plan", usage="selfteach plan --gpus N --model SIZE [options]", description=ABOUT, epilog=EXAMPLES)
    add_typed(made, "gpus", int, "how many devices", 8)
    add_typed(made, "gpu", str, "a100, h100, h200, b200 or l40s", "h100")
    add_typed(made, "model", str, "0.5B, 1.5B, 3B, 7B, 14B, 32B or 72B (Qwen2.5's shapes), or a model's folder", "7B")
    add_typed(made, "groups", int, "groups of a step", 64)
    add_typed(made, "rollouts", int, "answers of a group", 8)
    add_typed(made, "prompt", int, "tokens of a prompt", 300)
    add_typed(made, "answer", int, "mean tokens of an answer", 2000)
    add_typed(made, "spread", float, "standard deviation of the logarithm of their lengths", 0.8)
    add_typed(made, "max_tokens", int, "the longest answer", 8192)
    made.add_argument("--lengths", metavar="RUN", help="lengths of prompts and answers as a run's log has them")
    add_typed(made, "wait", float, "seconds from an answer to its reward, each", 0.0)
    add_typed(made, "staleness", tuple[int, ...], "updates that an answer may be old; several to compare", (0, 1, 4))
    add_typed(made, "epochs", int, "epochs over a batch", 1)
    add_typed(made, "micro_tokens", int, "tokens of a micro-batch on a device", 16384)
    add_typed(made, "recompute", bool, "activations are computed twice", True)
    add_typed(made, "reference", bool, "a reference model is computed too", False)
    made.add_argument("--assume", metavar="NAME=X", nargs="+", action="extend", help="other assumptions")
    return made


def run(command: str, words: Sequence[str]) -> int:
    """Carry out `selfteach plan`; returns the exit code."""
    given = vars(parser().read(words))
    _check(given)
    from ..analysis import cluster_plan
    from ..analysis.throughput import Workload

    device = cluster_plan.ACCELERATORS.get(given.get("gpu", "h100"))
    if device is None:
        raise unknown("kind of GPU", given["gpu"], cluster_plan.ACCELERATORS)
    shape = _shape(given.get("model", "7B"))
    at = _assumptions(given.get("assume", ()))
    longest = given.get("max_tokens", 8192)
    if "lengths" in given:
        lengths, prompt = cluster_plan.recorded_lengths(Path(given["lengths"]))
        longest = max(longest if "max_tokens" in given else 1, int(lengths.max()))
    else:
        lengths = cluster_plan.expected_lengths(given.get("answer", 2000), given.get("spread", 0.8), longest)
        prompt = given.get("prompt", 300)
    waits = lengths * 0.0 + given.get("wait", 0.0)
    work = Workload(given.get("groups", 64), given.get("rollouts", 8), prompt, lengths, waits)
    learning = cluster_plan.Learning(**{name: given[name] for name in cluster_plan.Learning._fields if name in given})
    staleness = tuple(dict.fromkeys(given.get("staleness", (0, 1, 4))))
    from ..progress import view_on

    view = view_on(sys.stderr, panel=False)
    try:
        found = cluster_plan.splits(
            shape,
            device,
            given.get("gpus", 8),
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


def _check(given: Mapping[str, Any]) -> None:
    """Raise BadValue for a number out of range, by its option."""
    for name, value in given.items():
        for number in value if name == "staleness" else (value,):
            if isinstance(number, bool) or not isinstance(number, int | float):
                continue
            least, most = (0 if name in ("spread", "wait", "staleness") else 1), LIMITS.get(name, 1 << 24)
            most = {"spread": 3, "wait": 3600, "staleness": 64, "epochs": 64}.get(name, most)
            if not least <= number <= most:
                option = name.replace("_", "-")
                raise BadValue(f"selfteach plan: --{option} must be between {least} and {most}, not {number}")
    if not given.get("staleness", (0,)):
        raise BadValue("selfteach plan: --staleness is empty; give numbers, such as 0,1,4")
    answers = given.get("groups", 64) * given.get("rollouts", 8)
    if answers > MOST_ANSWERS:
        raise BadValue(f"selfteach plan: {answers:,} answers a step; at most {MOST_ANSWERS:,} are simulated")
    if "lengths" in given and {"answer", "spread", "prompt"} & given.keys():
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
