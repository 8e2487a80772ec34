"""The ledger: a page of the verdicts on all claims that were run, made from their results alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.errors import BadCheckpoint
from .figures import is_fraction, markdown

HEAD = """# The ledger

What became of each paper's claim here: on small models, in a regime of the proving ground made for what the paper is
about. This page is made by `selfteach ledger` from `selfteach/results/*.json`, which `selfteach reproduce METHOD`
writes. A verdict is reported as measured, whichever it is.

A **premise** asks whether the situation is there that the paper is about; where it does not hold, the claim is *not
tested here*. A **mechanism** asks whether the idea does directly what it is for; where that does not hold, or is open,
the mechanism is *not shown* and nothing is said of the outcome. An **outcome** asks whether it helps, as the paper
says. The verdict is that of the outcomes; where they are open it is *mechanism shown*.

Each check is a difference between two figures, measured once per seed; a seed decides a run's randomness, its warm
start and its test questions, and all arms share it. Brackets hold the paired t interval of its mean. A check *holds*
where the interval lies on the right side of 0 and the mean is at least the smallest effect of interest, *does not hold
here* where the whole interval is smaller than that effect, and is *undecided* otherwise, with how large the effect may
be. Seeds are looked at 8, 12, 16 and 24 at a time, each time at a level such that all looks together err in 5 % of
cases where there is no difference; outcomes of one claim share these 5 % (Holm). "Could have found" is the effect that
so many seeds, spread as these are, would have found with a probability of 80 %.

At eight seeds such an interval holds the truth in 95 % of simulated experiments where seeds differ as a normal
distribution does, in 92 % where their effects are skewed (exponential), and in 67 % where one run in ten collapses.
"""

NOT_YET = "not yet decided again"
SHIPPED_RESULTS = Path(__file__).parents[1] / "results"  # results that come with the library


def result_folders() -> list[Path]:
    """The default folders of results: ./results goes before the library's own."""
    return [Path("results"), SHIPPED_RESULTS]


def read_results(*folders: str | Path) -> list[dict[str, Any]]:
    """The results in some folders, ordered by family and name; of a method that in the first folder which has it.

    Raises BadCheckpoint for a file that is not a result.
    """
    out: dict[str, dict[str, Any]] = {}
    for file in (f for folder in folders for f in sorted(Path(folder).glob("*.json"))):
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
            for key in ("method", "family", "paper", "claim", "verdict", "checks", "steps", "seeds", "task"):
                _ = data[key]
            out.setdefault(data["method"], data)
        except (ValueError, KeyError, TypeError) as error:
            raise BadCheckpoint(
                f"{file}: not a result of selfteach reproduce ({error}); remove it or run the claim again"
            ) from None
    return sorted(out.values(), key=lambda r: (r["family"], r["method"]))


def is_decided(result: Mapping[str, Any]) -> bool:
    """Whether a result is of a claim in a regime; those of the first edition are to be decided again."""
    return result.get("format", 1) >= 2 and bool(result.get("regime"))


def verdicts(folders: Iterable[str | Path]) -> dict[str, str]:
    """Method -> verdict, from the first folder that has it."""
    return {r["method"]: r["verdict"] if is_decided(r) else NOT_YET for r in read_results(*folders)}


def formatted_difference(check: Mapping[str, Any], value: float | None) -> str:
    """A difference with its sign: fractions in percentage points, ratios in per cent."""
    if value is None:
        return "-"
    if check["scale"] == "ratio":
        return f"{100 * value:+.1f} %"
    return f"{100 * value:+.1f}" if is_fraction(check["measure"]) else f"{value:+.2f}"


def formatted_effect(check: Mapping[str, Any]) -> str:
    """A check's difference and interval as text: `+5.2 [+1.0, +9.3]`."""
    span = f" [{', '.join(formatted_difference(check, v) for v in check['interval'])}]" if check["interval"] else ""
    return formatted_difference(check, check["effect"]) + span


def formatted_verdict(check: Mapping[str, Any]) -> str:
    """A check's verdict as text; where it is undecided, why or how large the effect may be."""
    if check["why"]:
        return f"{check['verdict']} ({check['why']})"
    if check.get("smaller_than") is not None:
        return f"{check['verdict']} (smaller than {formatted_difference(check, check['smaller_than']).lstrip('+')})"
    return check["verdict"]


def formatted_detectable(check: Mapping[str, Any]) -> str:
    """The effect that the seeds of a check would have found with a probability of 80 %, as text."""
    value = check.get("detectable")
    return "-" if value is None else formatted_difference(check, value).lstrip("+")


COSTS = {
    "tokens": "sampled tokens",
    "learned": "learned tokens",
    "optimiser_steps": "optimiser steps",
    "seconds": "seconds of training",
}


def formatted_cost(value: float | None) -> str:
    """A cost as text, with about three digits: 1,230,000 tokens, 0.42 seconds."""
    if value is None:
        return "-"
    return f"{float(f'{value:.3g}'):,.0f}" if value >= 100 else f"{value:.3g}"


def page(results: Sequence[Mapping[str, Any]]) -> str:
    """The ledger in Markdown."""
    decided = [r for r in results if is_decided(r)]
    out = [HEAD]
    if decided:
        counts = Counter(r["verdict"] for r in decided)
        numbers = ", ".join(f"{n} {v}" for v, n in sorted(counts.items()))
        columns = ["method", "family", "paper", *KINDS, "verdict", "measured on"]
        out.append(f"\n{len(decided)} claim{'s' if len(decided) != 1 else ''} decided: {numbers}.\n\n")
        out.append(markdown(columns, [_row(r) for r in decided]))
        sharing = shared_runs(decided)
        out += [_section(r, sharing) for r in decided]
    else:
        out.append("\nNo claim has been decided yet.\n")
    if waiting := [r["method"] for r in results if not is_decided(r)]:
        out.append(
            "\n## Not yet decided again\n\nThese claims were run in a first edition: three seeds, one warm start, tasks"
            " on which the baseline itself hardly learned. What was measured then stands in `selfteach/results` and is"
            f" no verdict.\n\n{', '.join(f'`{m}`' for m in sorted(waiting))}\n"
        )
    return "".join(out)


KINDS = ("premise", "mechanism", "outcome")


def _row(r: Mapping[str, Any]) -> list[str]:
    kinds = [kind_verdict([c["verdict"] for c in r["checks"] if c["kind"] == kind]) for kind in KINDS]
    where = f"`{r['regime']}`, {r['steps']} steps, {len(r['seeds'])} seeds"
    return [f"`{r['method']}`", r["family"], paper_link(r["paper"]), *kinds, f"**{r['verdict']}**", where]


def kind_verdict(verdicts: Sequence[str]) -> str:
    """What became of the checks of one kind together.

    >>> kind_verdict(["holds", "holds"]), kind_verdict(["holds", "undecided"]), kind_verdict([])
    ('holds', '1 of 2 hold', '-')
    """
    if len(set(verdicts)) == 1:
        return verdicts[0]
    return f"{sum(v == 'holds' for v in verdicts)} of {len(verdicts)} hold" if verdicts else "-"


def _section(r: Mapping[str, Any], sharing: Mapping[str, list[str]]) -> str:
    """One claim: why, its checks, its arms with what they cost and differ in."""
    out = [f"\n## {r['method']}\n\n{r['claim']['because'][:1].upper()}{r['claim']['because'][1:]}.\n\n"]
    checks = [
        [c["kind"], c["text"], formatted_effect(c), formatted_detectable(c), formatted_verdict(c)] for c in r["checks"]
    ]
    out.append(markdown(["", "check", "difference", "could have found", "verdict"], checks))
    arms = [
        [f"`{name}`", *(formatted_cost(arm["cost"][c]) for c in COSTS), formatted_differences(arm["differs"])]
        for name, arm in r["arms"].items()
    ]
    out += ["\n", markdown(["arm", *COSTS.values(), "differs from self in"], arms)]
    if r["claim"]["equal"] != "steps":
        out.append(f"\nArms are equal in {r['claim']['equal']}.\n")
    if r.get("changed"):
        out.append("\nNot as claimed: " + ", ".join(f"{k} {v}" for k, v in r["changed"].items()) + ".\n")
    if others := sharing.get(r["method"]):
        out.append(f"\nShares runs, and so their luck, with {', '.join(f'`{o}`' for o in others)}.\n")
    return "".join(out)


def formatted_differences(rows: Sequence[Mapping[str, Any]]) -> str:
    """What an arm differs in, as text: rows of the idea by name, others with the reason."""
    idea = [d["row"] for d in rows if d["kind"] == "idea"]
    more = [f"{d['row']}: {d['other']}, self {d['own']} ({d['because']})" for d in rows if d["kind"] == "explained"]
    return "; ".join([*(["the idea (" + ", ".join(idea) + ")"] if idea else []), *more])


def shared_runs(results: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Method -> the other methods whose results are made of some of the same runs."""
    users: dict[str, set[str]] = {}
    for r in results:
        for run in (run for arm in r["arms"].values() for run in arm["seeds"].values()):
            users.setdefault(run.get("key") or "", set()).add(r["method"])
    users.pop("", None)
    names = [r["method"] for r in results]
    return {n: sorted({o for used in users.values() if n in used for o in used} - {n}) for n in names}


def paper_link(paper: str) -> str:
    """An arXiv number as a link; other text unchanged."""
    return f"[{paper}](https://arxiv.org/abs/{paper})" if paper[:4].isdigit() and paper[4:5] == "." else paper


def write_page(folders: Iterable[str | Path], file: str | Path = "docs/ledger.md") -> Path:
    """Write the page from folders of results. Raises OSError where it cannot be written."""
    out = Path(file)
    text = page(read_results(*folders))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, encoding="utf-8")
    return out
