"""The ledger: a page of the verdicts on all claims that were run, made from their results alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .claim_curves import draw_curves
from .claim_results import corrected_since, experimented, is_decided, read_results, read_tuning
from .doubts import doubts_section
from .figures import is_fraction, markdown
from .findings import findings_section
from .verdict import NOT_SHOWN, NOT_TESTED

HEAD = """# The ledger

What became of each paper's claim here: on small models, in a regime of the proving ground made for what the paper is
about. This page is made by `selfteach ledger` from `selfteach/results/*.json`, which `selfteach reproduce METHOD`
writes. A verdict is reported as measured, whichever it is.

A **premise** asks whether the situation is there that the paper is about; where it does not hold, the claim is *not
tested here*. A **mechanism** asks whether the idea does directly what it is for; where that does not hold, or is open,
the mechanism is *not shown* and nothing is said of the outcome. An **outcome** asks whether it helps, as the paper
says. The verdict is that of the outcomes; where they are open it is *mechanism shown*.

Each check is a difference between two figures, measured once per seed; a seed decides a run's randomness, its warm
start and its test questions, and all arms share it. What a run began with decides much of where it ends, so that seeds
of one warm start count as one: the first claims had eight of them, later ones one for each seed. Brackets hold the
paired t interval of the mean over warm starts. A check *holds* where the interval lies on the right side of 0 and the
mean is at least the smallest effect of interest, *does not hold here* where the whole interval is smaller than that
effect, and is *undecided* otherwise, with how large the effect may be. Seeds are looked at 8, 12, 16 and 24 at a time,
each time at a level such that all looks together err in 5 % of cases where there is no difference; outcomes of one
claim share these 5 % (Holm). "Could have found" is the effect that so many seeds, spread as these are, would have
found with a probability of 80 %.

At eight seeds such an interval holds the truth in 95 % of simulated experiments where seeds differ as a normal
distribution does, in 92 % where their effects are skewed (exponential), and in 67 % where one run in ten collapses.
The same arm beside itself, with other random keys, twenty times in `ladder` (`benchmarks/null_trials.py`, 56 runs; its
figures are beside it): p was below 0.05 in two trials and below the first look's level in none. Such pairs differ by
1.5 points (standard deviation).
"""

LIMITS = """
## What small models can tell, and what they cannot

They can tell what a mechanism does: whether a clip acts, whether credit finds the step that was wrong, whether a vote
rises with its policy, what an estimator costs in variance, tokens or seconds; and whether that makes a policy better at
choosing among things that it can already do. A regime is made so that this is what decides, and every seed has another
start, other questions and other samples.

They cannot tell how large an effect is on a model a thousand times as large, nor anything about what such a model
brings from pre-training: its knowledge, its habits of checking and correcting, its use of language. Answers here have
some thirty tokens, so what is about answers of thousands (length bias, entropy over long chains, cost of rollouts) is
seen in small. A paper whose claim does not hold here is not refuted: its idea did not help in this regime, at the
settings and within the budget that are named. Small differences between methods that all learn are below what 8 to 24
seeds can see; "could have found" says how far below.
"""


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


def page(
    results: Sequence[Mapping[str, Any]],
    tuning: Mapping[str, Mapping[str, Any]] | None = None,
    pictures: Collection[str] = (),
    experiments: Mapping[str, Mapping[str, Mapping[str, Any]]] | None = None,
    unadmitted: Mapping[str, str] | None = None,
) -> str:
    """The ledger in Markdown.

    tuning       method -> what `experiments.tune` found
    pictures     methods whose learning curves are drawn in ledger/METHOD.png, beside the page
    experiments  method -> experiment -> its result, of those whose further experiments have a page, ledger/METHOD.md
    unadmitted   regime that is not admitted -> its status (`regime_evidence.status`), which the rows measured there say
    """
    tuning, experiments = tuning or {}, experiments or {}
    decided = [r for r in results if is_decided(r)]
    out = [HEAD]
    if decided:
        counts = Counter(r["verdict"] for r in decided)
        numbers = ", ".join(f"{n} {v}" for v, n in sorted(counts.items()))
        columns = ["method", "family", "paper", *KINDS, "verdict", "measured on"]
        out.append(f"\n{len(decided)} claim{'s' if len(decided) != 1 else ''} decided: {numbers}.\n\n")
        out.append(markdown(columns, [_row(r, (unadmitted or {}).get(r["regime"], "")) for r in decided]))
        out += [findings_section(decided, formatted_effect), doubts_section(decided), LIMITS]
        out += [*_experiments_section(experiments), *_summaries(decided)]
        sharing = shared_runs(decided)
        for r in decided:
            picture = f"ledger/{r['method']}.png" if r["method"] in pictures else ""
            out.append(claim_section(r, r["method"], picture, sharing.get(r["method"], ()), tuning.get(r["method"])))
            if r["method"] in experiments:
                out.append(f"\nWhat else its paper shows: [its further experiments](ledger/{r['method']}.md).\n")
    else:
        out.append("\nNo claim has been decided yet.\n")
    if waiting := [r for r in results if not is_decided(r)]:
        out.append(
            "\n## To be measured again\n\nWhat was measured of these claims stands in `selfteach/results` and is no"
            " verdict: they were corrected since, or were run in a first edition, with three seeds and one warm"
            " start.\n\n"
        )
        more = {m: f", [its further experiments](ledger/{m}.md)" for m in experiments}
        rows = [[f"`{(m := r['method'])}`{more.get(m, '')}", corrected_since(r) or "first edition"] for r in waiting]
        out.append(markdown(["method", "what was corrected, and what it had come to"], sorted(rows)))
    return "".join(out)


KINDS = ("premise", "mechanism", "outcome")


def _row(r: Mapping[str, Any], status: str) -> list[str]:
    kinds = [kind_verdict([c["verdict"] for c in r["checks"] if c["kind"] == kind]) for kind in KINDS]
    regime = f"`{r['regime']}`" + (f" (regime {status})" if status else "")
    place = formatted_place(r, regime)
    return [f"`{r['method']}`", r["family"], paper_link(r["paper"]), *kinds, f"**{r['verdict']}**", place]


def formatted_place(r: Mapping[str, Any], regime: str = "") -> str:
    """Where a result was measured: the regime (as it is written, if not by its name), steps and seeds."""
    return f"{regime or '`' + r['regime'] + '`'}, {r['steps']} steps, {len(r['seeds'])} seeds"


def _experiments_section(experiments: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """All experiments beside the claims, those on a pre-trained model first."""
    rows = [
        [f"[`{m}`](ledger/{m}.md#{name})", name, r["claim"]["because"], f"**{r['verdict']}**", formatted_place(r)]
        for m, results in sorted(experiments.items())
        for name, r in results.items()
    ]
    if not rows:
        return []
    about = (
        "\n## Beside the claims\n\nWhat else papers show, and what they show on a pre-trained model (`smollm2`:"
        " SmolLM2 with 135 million parameters on questions about the real world), judged as claims are.\n\n"
    )
    rows.sort(key=lambda row: row[1] != "smollm2")
    return [about, markdown(["method", "experiment", "what the paper says", "here", "measured on"], rows)]


def kind_verdict(verdicts: Sequence[str]) -> str:
    """What became of the checks of one kind together.

    >>> kind_verdict(["holds", "holds"]), kind_verdict(["holds", "undecided"]), kind_verdict([])
    ('holds', '1 of 2 hold', '-')
    """
    if len(set(verdicts)) == 1:
        return verdicts[0]
    return f"{sum(v == 'holds' for v in verdicts)} of {len(verdicts)} hold" if verdicts else "-"


def _summaries(decided: Sequence[Mapping[str, Any]]) -> list[str]:
    """Which ideas helped where, and at what cost: by regime, and how many by family."""
    out = ["\n## Which ideas helped where\n"]
    for regime in sorted({r["regime"] for r in decided}):
        own = [r for r in decided if r["regime"] == regime]
        rows = [row for r in sorted(own, key=lambda r: r["method"]) for row in _outcome_rows(r)]
        out += [f"\nIn [`{regime}`](regimes.md#{regime}):\n\n", markdown(OUTCOMES, rows)]
    families = sorted({r["family"] for r in decided})
    names = sorted({r["verdict"] for r in decided})
    counted = [
        [f, *(str(sum(r["family"] == f and r["verdict"] == v for r in decided) or "-") for v in names)]
        for f in families
    ]
    return [*out, "\nClaims by family and verdict:\n\n", markdown(["family", *names], counted)]


OUTCOMES = ["method", "outcome", "difference", "verdict", "tokens, self / other", "seconds, self / other"]


def _outcome_rows(r: Mapping[str, Any]) -> list[list[str]]:
    """A claim's outcomes, each with what its left arm costs as a multiple of its right one."""
    rows: list[list[str]] = []
    for c in r["checks"]:
        if c["kind"] != "outcome":
            continue
        own, other = (r["arms"].get(arm, {}).get("cost", {}) for arm in (c["left"], c["right"]))
        ratios = [formatted_ratio(own.get(k), other.get(k)) for k in ("tokens", "seconds")]
        verdict = r["verdict"] if r["verdict"] in (NOT_TESTED, NOT_SHOWN) else c["verdict"]
        rows.append([f"[`{r['method']}`](#{r['method']})", c["text"], formatted_effect(c), verdict, *ratios])
    return rows


def formatted_ratio(value: float | None, other: float | None) -> str:
    """A cost as a multiple of another, as text.

    >>> formatted_ratio(30.0, 20.0), formatted_ratio(30.0, None)
    ('1.50', '-')
    """
    return f"{value / other:.2f}" if value is not None and other else "-"


def claim_section(
    r: Mapping[str, Any],
    title: str,
    picture: str = "",
    sharing: Sequence[str] = (),
    tuned: Mapping[str, Any] | None = None,
    arms: str = "",
) -> str:
    """One result: why, its curves and checks, its arms with what they cost and differ in, and how it was tuned.

    picture: of its curves, as the page links to it. sharing: methods whose results are of some of the same runs. arms:
    what is said of its arms, in place of `arms_table`.
    """
    out = [f"\n## {title}\n\n{r['claim']['because'][:1].upper()}{r['claim']['because'][1:]}.\n\n"]
    if picture:
        out.append(f"![Held-out accuracy over steps, by arm]({picture})\n\n")
    checks = [
        [c["kind"], c["text"], formatted_effect(c), formatted_detectable(c), formatted_verdict(c)] for c in r["checks"]
    ]
    out.append(markdown(["", "check", "difference", "could have found", "verdict"], checks))
    out += ["\n", arms or arms_table(r)]
    if warned := formatted_warnings(r):
        out.append(f"\nWarned of while they ran: {warned}.\n")
    if tuned:
        out.append(f"\n{formatted_tuning(tuned)}\n")
    if corrected := r["claim"].get("corrected"):
        out.append(f"\nReported before on other seeds, and corrected since: {corrected}.\n")
    if r["claim"]["equal"] != "steps":
        out.append(f"\nArms are equal in {r['claim']['equal']}.\n")
    if r.get("changed"):
        out.append("\nNot as claimed: " + ", ".join(f"{k} {v}" for k, v in r["changed"].items()) + ".\n")
    if sharing:
        out.append(f"\nShares runs, and so their luck, with {', '.join(f'`{o}`' for o in sharing)}.\n")
    return "".join(out)


def arms_table(r: Mapping[str, Any]) -> str:
    """The arms of a result with what they cost and differ in."""
    rows = [
        [f"`{name}`", *(formatted_cost(arm["cost"][c]) for c in COSTS), formatted_differences(arm["differs"])]
        for name, arm in r["arms"].items()
    ]
    return markdown(["arm", *COSTS.values(), "differs from self in"], rows)


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
    """What the arms of a claim were tuned over, and which of it was best for each: a sentence."""

    def listed(values: Mapping[str, Any]) -> str:
        return " ".join(f"{n} {v}" for n, v in values.items())

    tried = "; ".join(f"{n} {', '.join(map(str, values))}" for n, values in tuned["grid"].items())
    found = [(arm, best_of(rows)) for arm, rows in tuned["arms"].items()]
    best = ", ".join(f"{arm} {listed(row['values'])}" for arm, row in found if row)
    return f"Tuned on seeds {', '.join(map(str, tuned['seeds']))} over {tried}. Best: {best or 'none ran to its end'}."


def best_of(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Of an arm's combinations that with the highest figure, the first of equals; None where every one failed.

    >>> best_of([{"figure": None}, {"figure": 0.5, "values": {"lr": 1}}, {"figure": 0.5, "values": {}}])["values"]
    {'lr': 1}
    """
    return max((r for r in rows if r["figure"] is not None), key=lambda r: r["figure"], default=None)


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


def write_page(
    folders: Iterable[str | Path], file: str | Path = "docs/ledger.md", unadmitted: Mapping[str, str] | None = None
) -> Path:
    """Write the page from folders of results, and beside it, in the folder `ledger`, the curves of each decided claim.

    unadmitted: as in `page`.

    Raises OSError where it cannot be written, BadValue where matplotlib is not installed.
    """
    out, folders = Path(file), list(folders)
    results = read_results(*folders)
    out.parent.mkdir(parents=True, exist_ok=True)
    drawn = [r for r in results if is_decided(r)]
    for r in drawn:
        draw_curves(r, out.parent / "ledger" / f"{r['method']}.png")
    text = page(results, read_tuning(folders), [r["method"] for r in drawn], experimented(folders), unadmitted)
    out.write_text(text, encoding="utf-8")
    return out
