"""The ledger: a page of the verdicts on all claims that were run, made from their results alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .claim_curves import draw_curves
from .claim_results import corrected_since, experimented, is_decided, read_results, read_tuning, with_experiments
from .claim_section import claim_section, formatted_effect, formatted_place, paper_link, regime_link
from .doubts import DOUBTS, ON_PURPOSE, doubts_section
from .figures import counted, markdown, section_link
from .findings import FINDINGS, findings_section
from .measured_before import second_measurements
from .regime_evidence import BETTER, gain_of_best, is_better
from .verdict import FAILS, HOLDS, NOT_SHOWN, NOT_TESTED, SHOWN

HEAD = """# The ledger

What became of each paper's claim here: on small models, in a regime of the proving ground made for what the paper is
about. This page is made by `selfteach ledger` from `selfteach/results/*.json`, which `selfteach reproduce METHOD`
writes. A verdict is reported as measured, whichever it is. The site has the claims as
<a href="live/ledger.html">a table that sorts</a>, too.

A **premise** asks whether the situation is there that the paper is about; where it does not hold, the claim is *not
tested here*. A **mechanism** asks whether the idea does directly what it is for; where that does not hold, or is open,
the mechanism is *not shown* and nothing is said of the outcome. An **outcome** asks whether it helps, as the paper
says. A claim *holds* where all its outcomes do, and *does not hold here* where one of them does not, whatever became of
the others; where none fails and some are open, its *mechanism* is *shown* and no more.

Each check is a difference between two figures, measured once per seed; a seed decides a run's randomness, its warm
start and its test questions, and all arms share it. What a run began with decides much of where it ends, so that seeds
of one warm start count as one: the first claims had eight of them, later ones one for each seed. A check *holds* where
the interval in brackets, the paired t interval of the mean over warm starts, lies on the right side of 0 and the mean
is at least the smallest effect of interest, *does not hold here* where the whole interval is smaller than that effect,
and is *undecided* otherwise, with how large the effect may be. Seeds are looked at 8, 12, 16 and 24 at a time, and
alpha is spent over the looks, so that all of them together err in 5 % of cases where there is no difference: brackets
are of 97.7, 98.6, 98.6 and 98.1 %. Outcomes of one claim share these 5 % (Holm), for which brackets are not widened:
beside others an outcome may be undecided though its brackets lie above 0. "Could have found" is the effect that so many
seeds, spread as these are, would have found with a probability of 80 %.

How far that can be trusted: of experiments simulated with eight seeds a t interval of 95 % holds the truth in 95 %
where seeds differ as a normal distribution does, in 92 % where their effects are skewed (exponential), and in 67 %
where one run in ten collapses. The same arm beside itself, with other random keys, was compared twenty times in
`ladder` (`benchmarks/null_trials.py`; the pairs are of seven runs of each of eight starts, and so are not
independent): a level of 5 % would have called two of twenty different, by 0.5 and 0.9 points; the level of the first
look called none, and no effect of interest is as small, so that none was a false verdict. Such pairs differ by 1.5
points (standard deviation).

Words of the checks: *accuracy* is that of sampled answers, *greedy* that of the likeliest; *auc* is the area under the
curve of accuracy over a run's steps, as its mean height; *steps_to@0.5* is the step at which that curve reaches a
half; `accuracy+search` is that of answers by the decoder `search`. What has a slash is [logged at every
step](metrics.md): *first* is its value at the first, *early* and *late* are means over the first and the last quarter,
*mean* and *sum* over all, *spread* is the standard deviation over the mean, *jitter* the median change. *self* is the
method, *start* what it began with, other names are arms, which each section defines.
"""

LIMITS = """
## What small models can tell, and what they cannot

They can tell what a mechanism does: whether a clip acts, whether credit finds the step that was wrong, whether a vote
rises with its policy, what an estimator costs in variance or tokens; and whether that makes a policy better at choosing
among things that it can already do. A regime is made so that this is what decides, and seeds differ in their start,
their questions and their samples.

They cannot tell how large an effect is on a model a thousand times as large, nor anything about what such a model
brings from pre-training: its knowledge, its habits of checking and correcting, its use of language. Answers here have
some thirty tokens, so what is about answers of thousands (length bias, entropy over long chains, cost of rollouts) is
seen in small. A paper whose claim does not hold here is not refuted: its idea did not help in this regime, at the
settings and within the budget that are named. Learning rate, batch and budget are those that were searched for the
regime's GRPO, unless a claim names others; methods were looked at on tuning seeds before they were measured,
{tuned}.
Small differences between methods that all learn are below what 8 to 24 seeds can see; "could
have found" says how far below. Seconds are of a shared machine's clock, most of them beside a second run, so only large
ratios of them say anything: to compare costs, read tokens and optimiser steps.

Test questions are 400 and more, each sampled eight times, where a task has as many. A small world of facts has 76 to
342 that no training question names, and all are asked; where an answer is itself made of many samples (votes, best of
several, search in a tree) one or two of each are drawn; what takes long has fewer, too. Each section says how many.
"""


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
        columns = ["method", "family", "paper", *KINDS, "verdict", "measured on"]
        status = {name: f" (regime {what})" for name, what in (unadmitted or {}).items()}
        out += [_numbers(decided), _standing(status)] if status else [_numbers(decided)]
        out.append(markdown(columns, [_row(r, status.get(r["regime"], "")) for r in decided]))
        known = with_experiments(decided, experiments)
        out += [findings_section(known, formatted_effect, FINDINGS, DOUBTS, status), doubts_section(decided)]
        out.append(LIMITS.format(tuned=_tuned([tuning[r["method"]] for r in decided if r["method"] in tuning])))
        out += [*_experiments_section(experiments), *_summaries(decided)]
        sharing = shared_runs(decided)
        for r in decided:
            picture = f"ledger/{r['method']}.png" if r["method"] in pictures else ""
            others, tuned, place = sharing.get(r["method"], ()), tuning.get(r["method"]), status.get(r["regime"], "")
            out.append(claim_section(r, r["method"], picture, others, tuned, docs="", regime=place))
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
SAID = {
    HOLDS: "{} hold",
    FAILS: "{} do not hold here",
    SHOWN: "of {} the mechanism is shown and the outcome is open",
    NOT_SHOWN: "of {} the mechanism is not shown",
    NOT_TESTED: "{} are not tested here",
}


def _numbers(decided: Sequence[Mapping[str, Any]]) -> str:
    """How many claims came to which verdict, and what that took."""
    counts = Counter(r["verdict"] for r in decided)
    came = "; ".join(text.format(counts[v]) for v, text in SAID.items() if counts[v])
    shown = len(decided) - counts[NOT_SHOWN] - counts[NOT_TESTED]
    runs = {
        run["key"]: run["seconds"]["all"]
        for r in decided
        for arm in r["arms"].values()
        for run in arm["seeds"].values()
        if run.get("key") and run.get("seconds")
    }
    twice = f"{text}\n\n" if (text := second_measurements(decided)) else ""
    return (
        f"\nOf {counted(len(decided), 'claim')} {came}. Premise and mechanism are shown for {shown}. They rest on"
        f" {len(runs):,} runs of together {sum(runs.values()) / 3600:.0f} hours on one core."
        " (A first edition, of three seeds and one warm start, had come to 9 of 51 that held, 23 that did not, and 19"
        f" undecided.)\n\n{twice}"
    )


def _standing(status: Mapping[str, str]) -> str:
    return (
        "A regime is admitted by measurements of its own ([the regimes](regimes.md)). Where these are not made yet, or"
        " were made before its options changed, the row says so, and what is measured there rests on the claim's"
        " premises alone.\n\n"
    )


def _row(r: Mapping[str, Any], status: str) -> list[str]:
    kinds = [kind_verdict([c["verdict"] for c in r["checks"] if c["kind"] == kind]) for kind in KINDS]
    place = formatted_place(r, f"`{r['regime']}`{status}")
    return [section_link(r["method"]), r["family"], paper_link(r["paper"]), *kinds, f"**{r['verdict']}**", place]


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
    """Which ideas helped where, and at what cost: by family, and by regime."""
    families = sorted({r["family"] for r in decided})
    names = sorted({r["verdict"] for r in decided})
    rows = [
        [f, *(str(sum(r["family"] == f and r["verdict"] == v for r in decided) or "-") for v in names)]
        for f in families
    ]
    out = ["\n## Which ideas helped where\n\nBy family and verdict:\n\n", markdown(["family", *names], rows)]
    if helped := [row for r in sorted(decided, key=lambda r: (r["family"], r["method"])) for row in _helped(r)]:
        out += ["\nWhat held, with the first of its outcomes and what it took:\n\n", markdown(HELPED, helped)]
    for regime in sorted({r["regime"] for r in decided}):
        own = [r for r in decided if r["regime"] == regime]
        rows = [row for r in sorted(own, key=lambda r: r["method"]) for row in _outcome_rows(r)]
        out += [f"\nIn {regime_link(regime)}:\n\n", markdown(OUTCOMES, rows)]
    return out


HELPED = ["family", "method", "the idea", "in", "outcome", "difference", "tokens", "optimiser steps"]


def _helped(r: Mapping[str, Any]) -> list[list[str]]:
    """The row of a claim that holds; none for another."""
    if r["verdict"] != HOLDS:
        return []
    name, text, difference, _, *ratios = _outcome_rows(r)[0]
    return [[r["family"], name, r["claim"]["because"], f"`{r['regime']}`", text, difference, *ratios]]


OUTCOMES = ["method", "outcome", "difference", "verdict", "tokens, self / other", "optimiser steps, self / other"]


def _outcome_rows(r: Mapping[str, Any]) -> list[list[str]]:
    """A claim's outcomes, each with what its left arm costs as a multiple of its right one."""
    rows: list[list[str]] = []
    for c in r["checks"]:
        if c["kind"] != "outcome":
            continue
        own, other = (r["arms"].get(arm, {}).get("cost", {}) for arm in (c["left"], c["right"]))
        ratios = [formatted_ratio(own.get(k), other.get(k)) for k in ("tokens", "optimiser_steps")]
        verdict = r["verdict"] if r["verdict"] in (NOT_TESTED, NOT_SHOWN) else c["verdict"]
        rows.append([section_link(r["method"]), c["text"], formatted_effect(c), verdict, *ratios])
    return rows


def formatted_ratio(value: float | None, other: float | None) -> str:
    """A cost as a multiple of another, as text.

    >>> formatted_ratio(30.0, 20.0), formatted_ratio(30.0, None)
    ('1.50', '-')
    """
    return f"{value / other:.2f}" if value is not None and other else "-"


def _tuned(tuning: Sequence[Mapping[str, Any]]) -> str:
    """How many methods were tuned by themselves, and of how many another value was better, as part of a sentence."""
    if not tuning:
        return "and none was searched by itself"
    asked = [t for t in tuning if t["method"] not in ON_PURPOSE]
    better = [t["method"] for t in asked if is_better(gain_of_best(t["arms"].get("self", ())))]
    others = [(t["method"], rows) for t in asked for arm, rows in t["arms"].items() if arm != "self"]
    behind = list(dict.fromkeys(method for method, rows in others if is_better(gain_of_best(rows))))
    chosen = [f"{section_link(t['method'])} ({ON_PURPOSE[t['method']]})" for t in tuning if t["method"] in ON_PURPOSE]
    needed = f". Another is better, too, where what a claim is about needs the stated one: {', '.join(chosen)}"
    return (
        f"and {len(tuning)} of them were run with all values of that search afterwards, on two tuning seeds or more."
        f" Another value is better by more than {100 * BETTER:g} points for {_links(better)}, and for an arm beside"
        f" {_links(behind)}: their sections say which, and until they are measured with it what they came to is of the"
        f" stated one{needed if chosen else ''}"
    )


def _links(methods: Sequence[str]) -> str:
    return ", ".join(map(section_link, methods)) or "none"


def shared_runs(results: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Method -> the other methods whose results are made of some of the same runs."""
    users: dict[str, set[str]] = {}
    for r in results:
        for run in (run for arm in r["arms"].values() for run in arm["seeds"].values()):
            users.setdefault(run.get("key") or "", set()).add(r["method"])
    users.pop("", None)
    names = [r["method"] for r in results]
    return {n: sorted({o for used in users.values() if n in used for o in used} - {n}) for n in names}


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
