"""The ledger: what came of every claim that was run, as a page of the docs made from results/*.json alone.

python -m selfteach.analysis.ledger [results] [docs/ledger.md]
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.errors import BadCheckpoint
from .figures import is_share, markdown

HEAD = """# The ledger

What became of each paper's claim here: on small models and small tasks, with the same budget for every arm. This page is made from
`results/*.json` by `selfteach ledger`; `selfteach reproduce METHOD` writes those files. A verdict is reported as measured, whichever it is.

Each check is a difference between two figures, measured once per seed. Brackets hold its 95 % interval, by bootstrap over seeds. A check
*holds* where the whole interval satisfies it, *does not hold here* where the whole interval violates it, and is *undecided* otherwise and with
fewer than three seeds. With three or four seeds the interval reaches from the smallest to the largest difference seen, so that a true difference
of nothing still looks like one in a quarter or an eighth of the cases: read those verdicts with care. A claim holds if all its checks do.
"""


def read(folder: str | Path) -> list[dict[str, Any]]:
    """Every result of a folder, by family and name. Raises BadCheckpoint for a file that is not one."""
    out = []
    for file in sorted(Path(folder).glob("*.json")):
        try:
            data = json.loads(file.read_text())
            out.append({k: data[k] for k in ("method", "family", "paper", "claim", "verdict", "checks", "steps", "seeds", "task")} | data)
        except (ValueError, KeyError, TypeError) as error:
            raise BadCheckpoint(f"{file}: not a result of selfteach reproduce ({error}); remove it or run the claim again") from None
    return sorted(out, key=lambda r: (r["family"], r["method"]))


def verdicts(folders: Iterable[Path]) -> dict[str, str]:
    """method -> verdict, from the first folder that has it."""
    out: dict[str, str] = {}
    for folder in folders:
        for result in read(folder) if folder.is_dir() else []:
            out.setdefault(result["method"], result["verdict"])
    return out


def number(check: Mapping[str, Any], value: float | None) -> str:
    """A difference with its sign: shares in points of per cent, ratios in per cent."""
    if value is None:
        return "-"
    if check["scale"] == "ratio":
        return f"{100 * value:+.1f} %"
    return f"{100 * value:+.1f}" if is_share(check["measure"]) else f"{value:+.2f}"


def measured(check: Mapping[str, Any]) -> str:
    """`+5.2 [+1.0, +9.3]`."""
    span = f" [{', '.join(number(check, v) for v in check['interval'])}]" if check["interval"] else ""
    return number(check, check["effect"]) + span


def page(results: Sequence[Mapping[str, Any]]) -> str:
    """The ledger as Markdown."""
    if not results:
        return HEAD + "\nNo claim has been run yet.\n"
    counts = Counter(r["verdict"] for r in results)
    head = ", ".join(f"{n} {v}" for v, n in sorted(counts.items()))
    rows = []
    for r in results:
        budget = f"{r['task']}, {r['steps']} steps, {len(r['seeds'])} seed{'s' if len(r['seeds']) != 1 else ''}"
        rows.append([f"`{r['method']}`", r["family"], linked(r["paper"]), f"**{r['verdict']}**", budget])
    out = [
        HEAD,
        f"\n{len(results)} claim{'s' if len(results) != 1 else ''} run: {head}.\n\n",
        markdown(["method", "family", "paper", "verdict", "measured on"], rows),
    ]
    for r in results:
        out.append(f"\n## {r['method']}\n\n{r['claim']['because'][:1].upper()}{r['claim']['because'][1:]}.\n\n")
        found = [[c["text"], measured(c), c["verdict"] + (f" ({c['why']})" if c["why"] else "")] for c in r["checks"]]
        out.append(markdown(["check", "difference", "verdict"], found))
        if r.get("changed"):
            out.append("\nNot as claimed: " + ", ".join(f"{k} {v}" for k, v in r["changed"].items()) + ".\n")
        elif r["steps"] != r["claim"]["steps"]:
            out.append(f"\nNot as claimed: {r['steps']} steps instead of {r['claim']['steps']}.\n")
    return "".join(out)


def linked(paper: str) -> str:
    """An arXiv number as a link; other words as they are."""
    return f"[{paper}](https://arxiv.org/abs/{paper})" if paper[:4].isdigit() and paper[4:5] == "." else paper


def write(results: str | Path = "results", file: str | Path = "docs/ledger.md") -> Path:
    """Make the page from a folder of results. Raises OSError where it cannot be written."""
    out = Path(file)
    text = page(read(results))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text)
    return out


if __name__ == "__main__":
    print(write(*sys.argv[1:3]))
