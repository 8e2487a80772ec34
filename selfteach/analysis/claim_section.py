"""One result of `selfteach reproduce` as a section of a page: its checks, its arms, what they cost, what was built."""

from __future__ import annotations

import inspect
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from ..core import registry
from .claim_results import claim_of
from .figures import counted, decoders, formatted, formatted_change, is_fraction, markdown
from .measured_before import measured_before
from .regime_evidence import best_of, stated_of
from .verdict import is_stored


def formatted_difference(check: Mapping[str, Any], value: float | None) -> str:
    """A difference with its sign: fractions in percentage points, ratios in per cent, others to two figures or more."""
    if value is None:
        return "-"
    if check["scale"] == "ratio":
        return f"{100 * value:+.1f} %"
    if is_fraction(check["measure"]):
        return f"{100 * value:+.1f}"
    largest = max(abs(v) for v in (value, check["effect"], *(check["interval"] or ())) if v is not None)
    decimals = 2 if largest == 0 else min(6, max(2, 1 - math.floor(math.log10(largest))))
    return f"{value:+.{decimals}f}"


def formatted_effect(check: Mapping[str, Any]) -> str:
    """A check's difference and interval as text: `+5.2 [+1.0, +9.3]`."""
    span = f" [{', '.join(formatted_difference(check, v) for v in check['interval'])}]" if check["interval"] else ""
    return formatted_difference(check, check["effect"]) + span


def formatted_verdict(check: Mapping[str, Any]) -> str:
    """A check's verdict as text; where it is undecided, why or how large the effect may be."""
    if check["why"]:
        return f"{check['verdict']} ({check['why']})"
    bound = check.get("smaller_than")
    could_be_any = check["scale"] != "ratio" and is_fraction(check["measure"]) and (bound or 0) >= 1
    if bound is None or could_be_any:
        return check["verdict"]
    return f"{check['verdict']} (smaller than {formatted_difference(check, bound).lstrip('+')})"


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


def formatted_place(r: Mapping[str, Any], regime: str = "") -> str:
    """Where a result was measured: the regime (as it is written, if not by its name), steps, seeds, warm starts."""
    starts, seeds = len(set(r["starts"])), len(r["seeds"])
    fewer = f" of {starts} warm starts" if 0 < starts < seeds else ""
    return f"{regime or '`' + r['regime'] + '`'}, {counted(r['steps'], 'step')}, {counted(seeds, 'seed')}{fewer}"


def paper_link(paper: str) -> str:
    """An arXiv number as a link; other text unchanged."""
    return f"[{paper}](https://arxiv.org/abs/{paper})" if paper[:4].isdigit() and paper[4:5] == "." else paper


def regime_link(name: str, docs: str | None = "") -> str:
    """A regime's name as a link to its section. docs: where regimes.md is, from the page; None: it is not linked to."""
    return f"`{name}`" if docs is None else f"[`{name}`]({docs}regimes.md#{name})"


def claim_section(
    r: Mapping[str, Any],
    title: str,
    picture: str = "",
    sharing: Sequence[str] = (),
    tuned: Mapping[str, Any] | None = None,
    docs: str | None = None,
    regime: str = "",
) -> str:
    """One result: why, its curves and checks, its arms with what they come to, cost and differ in, and its source.

    picture: of its curves, as the page links to it. sharing: methods whose results are of some of the same runs. docs:
    as in `regime_link`. regime: what is said of the regime in which it was measured.
    """
    out = [f"\n## {title}\n\n{r['claim']['because'][:1].upper()}{r['claim']['because'][1:]}.\n\n"]
    if "experiment" not in r:
        place = formatted_place(r, regime_link(r["regime"], docs) + regime)
        out.append(f"**{r['verdict']}** in {place}; {r['family']}, {paper_link(r['paper'])}.\n\n")
    if picture:
        out.append(f"![Held-out accuracy over steps, by arm]({picture})\n\n")
    checks = [
        [c["kind"], c["text"], formatted_effect(c), formatted_detectable(c), formatted_verdict(c)] for c in r["checks"]
    ]
    out.append(markdown(["", "check", "difference", "could have found", "verdict"], checks))
    out += ["\n", arms_of(r, docs)]
    if own := formatted_settings(r):
        out.append(f"\nOther than in the regime: {own}.\n")
    if unequal := unequal_costs(r):
        out.append(f"\nNot equal: {unequal}.\n")
    if "experiment" not in r and (built := as_built(r["method"])):
        out.append(f"\nAs built here: {built}\n")
    if warned := formatted_warnings(r):
        out.append(f"\nWarned of while they ran: {warned}.\n")
    if tuned:
        out.append(f"\n{formatted_tuning(tuned)}\n")
    if corrected := r["claim"].get("corrected"):
        out.append(f"\nReported before on other seeds, and corrected since: {corrected}.\n")
    if before := measured_before(r):
        out.append(f"\n{before}\n")
    if r["claim"]["equal"] != "steps":
        out.append(f"\nArms are equal in {r['claim']['equal']}.\n")
    if r.get("changed"):
        out.append("\nNot as claimed: " + ", ".join(f"{k} {v}" for k, v in r["changed"].items()) + ".\n")
    if sharing:
        out.append(f"\nShares runs, and so their luck, with {', '.join(f'`{o}`' for o in sharing)}.\n")
    return "".join(out)


def as_built(method: str) -> str:
    """What the docstring of a method says of its source, and of what was chosen or left out here; "": nothing.

    That is all but its first paragraph and what is indented: equations and tables.
    """
    if method not in registry.methods:
        return ""
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(registry.methods.get(method).doc))[1:]
    return " ".join(" ".join(p.split()) for p in paragraphs if not p.startswith(" "))


def formatted_settings(r: Mapping[str, Any]) -> str:
    """The settings of all arms that are a claim's or an experiment's own, and not its regime's, as text; "": none.

    A result does not have them, so that they are read from the claim as it stands, unless it is another by now. Options
    of the task are left out.
    """
    claim = claim_of(r)
    if claim is None or not is_stored(claim, r["claim"]):
        return ""
    return ", ".join(f"{k}={v}" for k, v in claim.settings.items() if not k.startswith("task."))


UNEQUAL = {"optimiser_steps": 1.15, "tokens": 1.5}  # cost -> the ratio from which it is said


def unequal_costs(r: Mapping[str, Any]) -> str:
    """The arms that took other numbers of optimiser steps than self by more than a seventh, or of sampled tokens by
    more than a half; "": none did.

    >>> arms = {name: {"cost": {"optimiser_steps": n}} for name, n in {"self": 60, "alike": 64, "longer": 1140}.items()}
    >>> unequal_costs({"arms": arms})
    'optimiser steps, of which self took 60 and longer 1,140'
    """
    out: list[str] = []
    for cost, ratio in UNEQUAL.items():
        taken = {name: arm["cost"].get(cost) for name, arm in r["arms"].items()}
        own = taken.get("self")
        others = [
            f"{name} {formatted_cost(n)}" for name, n in taken.items() if own and n and max(own / n, n / own) > ratio
        ]
        if others:
            out.append(f"{COSTS[cost]}, of which self took {formatted_cost(own)} and {', '.join(others)}")
    return "; ".join(out)


def arms_of(r: Mapping[str, Any], docs: str | None = None) -> str:
    """The arms of a result: what each was given and differs in, what it comes to and costs, and from where.

    Figures are means over seeds, before training and after where there is any; what its method answers by a decoder
    stands below it. docs: as in `regime_link`.
    """
    given = [[f"`{n}`", f"`{_call(arm)}`", formatted_differences(arm["differs"])] for n, arm in r["arms"].items()]
    costs = COSTS if r["steps"] else {}
    rows = [row for name, arm in r["arms"].items() for row in _measured(name, arm, list(costs), bool(r["steps"]))]
    home = regime_link(r["regime"], docs)
    starts = len(set(r["starts"]))
    start = f"`{r['model']}` after the warm start of the seed, one of {starts}" if starts else f"`{r['model']}`"
    asked = max((len(q) for q in r["questions"].values()), default=0)
    options = " ".join(f"{k}={v}" for k, v in r["task_options"].items())
    return (
        markdown(["arm", "method, and what it was given", "differs from self in"], given)
        + "\n"
        + markdown(["arm", "accuracy, %", "tokens an answer", *costs.values()], rows)
        + f"\nAll arms run in {home}, and begin from the same: {start}. {asked} held-out questions, each sampled"
        f" {r['samples']} times, of `{r['task']}`{f' with `{options}`' if options else ''}.\n"
    )


def _call(arm: Mapping[str, Any]) -> str:
    """An arm's method with what it was given in place of its defaults, by the experiment or the regime."""
    return f"{arm['method']}({', '.join(f'{k}={v}' for k, v in arm['args'].items())})"


def _measured(name: str, arm: Mapping[str, Any], costs: list[str], trained: bool) -> list[list[str]]:
    """An arm's rows: accuracy, tokens of an answer, costs; and of each of its decoders the first two."""
    runs = list(arm["seeds"].values())

    def change(measure: str, tail: str) -> str:
        known = {when: [run[when].get(measure + tail) for run in runs] for when in ("before", "after")}
        before, after = (fmean(v) if v and None not in v else None for v in known.values())
        return formatted_change(measure, before if trained else None, after)

    rows: list[list[str]] = []
    for way in decoders(*(run["after"] for run in runs)):
        tail = f"+{way}" if way else ""
        row = [f"`{name}`" + (f" with `{way}`" if way else ""), change("accuracy", tail), change("length", tail)]
        rows.append(row + [formatted_cost(arm["cost"][c]) if not way else "" for c in costs])
    return rows


def formatted_warnings(result: Mapping[str, Any]) -> str:
    """In how many runs of each arm the rules of health (`health_rules`) warned of what; "": of nothing, or unknown.

    >>> seeds = {"7": {"warnings": ["reward_fall", "groups_alike"]}, "8": {"warnings": ["groups_alike"]}}
    >>> formatted_warnings({"arms": {"self": {"seeds": seeds}, "other": {"seeds": {"7": {}}}}})
    'self groups alike in 2 of 2, reward fall in 1 of 2'
    """
    lines = list[str]()
    for name, arm in result["arms"].items():
        runs = arm["seeds"].values()
        counts = Counter(rule for run in runs for rule in run.get("warnings") or ())
        if found := [f"{rule.replace('_', ' ')} in {n} of {len(runs)}" for rule, n in counts.most_common()]:
            lines.append(f"{name} {', '.join(found)}")
    return "; ".join(lines)


def formatted_tuning(tuned: Mapping[str, Any]) -> str:
    """What arms of a claim were tuned over, and which of it was best for each, beside what is stated: a sentence.

    >>> row = {"values": {"lr": 0.1}, "figure": 0.5, "stated": False}
    >>> rows = [row, {"values": {"lr": 0.2}, "figure": 0.4, "stated": True}]
    >>> formatted_tuning({"grid": {"lr": [0.1, 0.2]}, "seeds": [0, 1], "arms": {"self": rows}})
    'Tuned on seeds 0, 1 over lr 0.1, 0.2, by the mean of greedy and sampled accuracy. Best: self lr 0.1 (50.0 %; as \
stated 40.0).'
    """

    def listed(values: Mapping[str, Any]) -> str:
        return " ".join(f"{n} {v}" for n, v in values.items())

    tried = "; ".join(f"{n} {', '.join(map(str, values))}" for n, values in tuned["grid"].items())
    best = list[str]()
    for arm, rows in tuned["arms"].items():
        if top := best_of(rows):
            stated = stated_of(rows)
            other = f"; as stated {formatted('accuracy', stated['figure'])}" if stated else ""
            beside = ", as stated" if top is stated else other
            best.append(f"{arm} {listed(top['values'])} ({formatted('accuracy', top['figure'])} %{beside})")
    seeds = ", ".join(map(str, tuned["seeds"]))
    return (
        f"Tuned on seeds {seeds} over {tried}, by the mean of greedy and sampled accuracy. Best:"
        f" {', '.join(best) or 'none ran to its end'}."
    )


def formatted_differences(rows: Sequence[Mapping[str, Any]]) -> str:
    """What an arm differs in, as text: of the idea which parts of the method, others with the reason.

    >>> rows = [{"row": r, "kind": "idea"} for r in ("main.credit.1", "main.credit.2", "decode.search", "probe.select")]
    >>> formatted_differences(rows)
    'the idea (credit, decoder search, stage probe)'
    """
    idea = dict.fromkeys(_part(d["row"]) for d in rows if d["kind"] == "idea")
    more = [f"{d['row']}: {d['other']}, self {d['own']} ({d['because']})" for d in rows if d["kind"] == "explained"]
    return "; ".join([*(["the idea (" + ", ".join(idea) + ")"] if idea else []), *more])


OF_METHOD = {"decode": "decoder", "models": "model", "weights": "weights of", "settings": "setting"}


def _part(row: str) -> str:
    """The part of a method that a row of its configuration is of: a slot of the main stage, another stage, a model."""
    first, _, rest = row.partition(".")
    if first == "main":
        return rest.partition(".")[0]
    if not rest:
        return first
    return f"{OF_METHOD[first]} {rest}" if first in OF_METHOD else f"stage {first}"
