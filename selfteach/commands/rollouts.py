"""The command `selfteach show`: rollouts of a run, from its log."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.disk import disk_errors, write_whole
from ..core.errors import BadValue
from ..core.extras import optional
from ..core.terminal_text import escaped
from .arguments import Parser
from .common import add_trust, print_json, print_note
from .streams import results

ABOUT = """Show rollouts of a run from its log: prompt, turns, reward with its parts and reasons, advantage.

Without --best, --worst or --task there is one line for each rollout of the step. The log of a run that is still being
trained can be read too.
"""
EXAMPLES = """examples:
  selfteach show runs/grpo-1                              the newest step, a line for each rollout
  selfteach show runs/grpo-1 --step 7 --worst 5           the five of the lowest reward, whole
  selfteach show runs/grpo-1 --step 7 --task train/123    all of one task
  selfteach show runs/grpo-1 --step all --parquet rollouts.parquet

what comes out: text on stdout, without control characters on a terminal; with --json one line of JSON for each rollout.
--jsonl and --parquet write the same rows into a file instead: step, episode, group, task, prompt, reference, turns,
response, answer, reward, parts, why, error, scores, advantage, tokens, status (docs/serving.md)."""
LINE = 72  # characters of a response in the list


def parser() -> Parser:
    """The options of `show`."""
    made = Parser("show", usage="selfteach show RUN [options]", description=ABOUT, epilog=EXAMPLES)
    made.add_argument("run", metavar="RUN", help="a run's folder")
    made.add_argument("--step", metavar="N|all", help="which step (default: the newest that is logged)")
    made.add_argument("--best", type=int, metavar="N", help="the N of the highest reward")
    made.add_argument("--worst", type=int, metavar="N", help="the N of the lowest reward")
    made.add_argument("--task", metavar="ID", help="those of the task with this id")
    made.add_argument("--jsonl", metavar="FILE", help="write them as JSON lines")
    made.add_argument("--parquet", metavar="FILE", help="write them as a Parquet table; needs selfteach[data]")
    add_trust(made)
    return made


def run(command: str, words: Sequence[str]) -> int:
    """Carry out `selfteach show`; returns the exit code."""
    given = vars(parser().read(words))
    for name in ("best", "worst"):
        if given.get(name, 1) < 1:
            raise BadValue(f"selfteach show: --{name} must be 1 or more, not {given[name]}")
    from ..analysis.health import warnings_of
    from ..loop.log import logged_steps, read_events
    from ..loop.rollout_records import best_and_worst, of_task, read_rollouts

    folder = Path(given["run"])
    if not (folder / "config.json").is_file():
        raise BadValue(f"{folder}: holds no run (there is no config.json); show takes the folder that train printed")
    steps = _steps(given.get("step"), logged_steps(folder / "log"), folder)
    if "parquet" in given:
        optional("pyarrow", "data", "selfteach show --parquet")
    tokenizer = _tokenizer(folder, bool(given.get("trust")))
    records = [r for step in steps for r in read_rollouts(folder / "log", step, tokenizer)]
    chosen = of_task(records, given["task"]) if "task" in given else records
    if "best" in given or "worst" in given:
        chosen = best_and_worst(chosen, given.get("best", 0), given.get("worst", 0))
    files = {name: Path(given[name]) for name in ("jsonl", "parquet") if name in given}
    for name, file in files.items():
        if file.is_dir():
            raise BadValue(f"selfteach show: --{name} {file} is a folder; give a file's name")
    for name, file in files.items():
        (_write_jsonl if name == "jsonl" else _write_parquet)(file, chosen)
    if files:
        print_note(f"{len(chosen)} rollouts: {', '.join(map(str, files.values()))}")
        return 0
    if given.get("json"):
        for record in chosen:
            print_json(record.to_json())
        return 0
    whole = not {"best", "worst", "task"}.isdisjoint(given)
    text = "\n\n".join(map(_whole, chosen)) if whole else "\n".join(map(_line, chosen))
    print(escaped(text) if sys.stdout.isatty() else text, file=results())
    unknown = sum(r.reward is None for r in records)
    print_note(
        f"{folder}, step {given.get('step', steps[-1])}: {len(records)} rollouts of {len({r.group for r in records})}"
        f" groups, mean reward {_mean(records)}" + (f", {unknown} without a reward" if unknown else "")
    )
    for warning in warnings_of(read_events(folder / "log")):
        print_note(escaped(f"warning: {warning}"))
    return 0


def _steps(word: str | None, logged: Sequence[int], folder: Path) -> Sequence[int]:
    if not logged:
        raise BadValue(f"{folder}: has no rollouts yet; train it for a step")
    if word == "all":
        return logged
    if word is not None and not (word.isascii() and word.isdigit() and len(word) < 10):
        raise BadValue(f"selfteach show: --step must be the number of a step, or all, not {word!r}")
    return [logged[-1] if word is None else int(word)]


def _tokenizer(folder: Path, trust: bool) -> Any:
    """The run's tokenizer: of its newest checkpoint, or of the model that it starts from, which a warm start keeps."""
    from ..loop import checkpoint
    from ..model.tokenizer import Tokenizer

    last = checkpoint.find(folder)
    if last is not None and (last / "tokenizer.json").is_file():
        return Tokenizer.load(last)
    from .. import preparation
    from ..configuration import run_config_of

    config = run_config_of(folder, trust)
    return preparation.build(config.model, preparation.source_of(config, folder), config.warm.seed).tokenizer


def _line(record: Any) -> str:
    """A rollout in a line: reward, task, tokens, and the beginning of what was sampled."""
    text = " ".join(record.response.split())
    text = text if len(text) <= LINE else text[: LINE - 3] + "..."
    return f"{_number(record.reward):>8}  {record.task:<24}  {record.tokens:>5} {record.status:<7} {text}"


def _whole(record: Any) -> str:
    """A rollout whole."""
    head = f"--- {record.episode}, task {record.task}: reward {_number(record.reward)}"
    if record.advantage is not None:
        head += f", advantage {record.advantage:+.3f}"
    lines = [f"{head}, {record.tokens} tokens, {record.status}"]
    for turn in record.turns:
        name = " ".join(w for w in (turn.kind, turn.role if turn.kind == "sampled" else "", turn.span) if w)
        lines += [f"[{name}]", *("  " + line for line in turn.text.splitlines())]
    if record.parts:
        lines.append("parts      " + ", ".join(f"{k} {_number(v)}" for k, v in record.parts.items()))
    for score in record.scores:
        lines.append(f"{score['column']:<10} {_number(score['value'])} {score['why'] or ''}".rstrip())
    for name in ("why", "error", "answer", "reference"):
        value = getattr(record, name)
        if value not in (None, ""):
            lines.append(f"{name:<10} {value}")
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _mean(records: Sequence[Any]) -> str:
    known = [r.reward for r in records if r.reward is not None]
    return _number(sum(known) / len(known) if known else None)


def _write_jsonl(file: Path, records: Sequence[Any]) -> None:
    from ..loop.rollout_records import as_lines

    write_whole(file, as_lines(records))


def _write_parquet(file: Path, records: Sequence[Any]) -> None:
    from ..loop.rollout_records import as_columns

    pa, parquet = (optional(m, "data", "selfteach show --parquet") for m in ("pyarrow", "pyarrow.parquet"))
    text, turn = pa.string(), ("kind", "role", "span", "text")
    kinds: Mapping[str, Any] = {
        **dict.fromkeys(("episode", "group", "task", "prompt", "reference"), text),
        "turns": pa.list_(pa.struct([(name, text) for name in turn])),
        **dict.fromkeys(("response", "answer", "parts", "why", "error", "scores", "status"), text),
        "reward": pa.float64(),
        "advantage": pa.float64(),
        "step": pa.int64(),
        "tokens": pa.int64(),
    }
    table = pa.Table.from_pylist(as_columns(records), schema=pa.schema(list(kinds.items())))
    with disk_errors(file):
        parquet.write_table(table, str(file))
