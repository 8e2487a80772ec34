"""What a later reading found of claims as they stand: what else than the paper's idea a verdict may rest on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from ..core.claim import figure_of
from .figures import is_fraction, markdown, section_link
from .verdict import FAILS, NOT_SHOWN, NOT_TESTED, end_figure

# method -> the doubt. It goes once the claim is mended and measured again, on seeds of which none was seen.
DOUBTS: Mapping[str, str] = {
    "ai_search_planner": "the arm without process rewards is at a ceiling, 98 % greedy",
    "barl": "the arm that knows less has 27 texts to try, and an answer has room for 12 symbols",
    "deepseek_r1": "plain RL is fast and readable there, which leaves nothing for a cold start",
    "guide": "groups that fail are opened as often by sampling again",
    "hier_search": "a planner whose agents search once each can only lose against one that searches itself",
    "iter_research": "its clip acts on two in five rounds as short as these; with wider ones no round is left to save",
    "lead": "wrong answers are the short ones there, so that the mean of the right ones is long",
    "motif": "one round cannot end a sum there, so that the arm of one round has to fail",
    "pcl": "the error of the predictor falls where nothing is predicted, too, once all is mastered",
    "pipo": "its measure of what helped is above the bound on noise as well",
    "ppr": "an agent has eight turns, where theirs has two, and every search of a right answer is paid",
    "prorl": "that a KL is needed is not so there: without it most is right",
    "red_searcher": "the arms that were taught by trajectories end where nothing was learned",
    "score": "all second attempts are at a ceiling, 96 %",
    "search_gym": "long questions are not harder there",
    "search_llm": "accuracy is at a ceiling, 95 %",
    "self_certainty": "perplexity is compared at eight samples, where the paper's gain begins at sixteen",
    "spiral": "a perfect player is won against in half of the games at most, and all arms are near it",
    "spo": "a right answer beats every other there, so that a reward model ranks it first as well",
    "ssrl": "its first query always goes to the engine: 39 % of the calls can be saved at most, and 20 % are asked for",
    "tinyv": "a true judge is one point above the rule there",
    "soft_rlvr": "a true judge is no better than the rule there",
}

# method -> what would not be there at the value that is best, so that its claim states another.
ON_PURPOSE: Mapping[str, str] = {
    "pipo": "GRPO falls back",
    "self_verification": "votes err",
}

# Methods whose mechanism is a saving or a bound that they have as built: that it holds shows that, and no effect.
BY_CONSTRUCTION = ("a_star_po", "asyncflow", "c3po", "grpo", "nlpo")


def doubts_section(results: Sequence[Mapping[str, Any]]) -> str:
    """The verdicts in doubt and why, the mechanisms that could not fail, and the checks that a ceiling decided; empty
    where there are none.
    """
    rows = [[section_link(r["method"]), r["verdict"], DOUBTS[r["method"]]] for r in results if r["method"] in DOUBTS]
    told = [r for r in results if r["verdict"] not in (NOT_TESTED, NOT_SHOWN)]
    built = [section_link(r["method"]) for r in told if r["method"] in BY_CONSTRUCTION]
    near = [[section_link(r["method"]), *row] for r in told for row in at_a_ceiling(r)]
    out = ""
    if rows:
        out += (
            "\n## Verdicts in doubt\n\nEvery claim was read again, beside its authors' code where there is any and it"
            " could be had, and its own result (each section says what was read of its paper). These rest on something"
            " else than the paper's idea, or do not ask what it says; they stand as measured until they are mended and"
            " measured again on other seeds.\n\n" + markdown(["method", "verdict", "doubt"], sorted(rows))
        )
    if built:
        out += (
            "\nSome mechanisms are savings or bounds by construction, so that they are shown says that the method was"
            f" built as its paper has it, and no more: those of {', '.join(built)}.\n"
        )
    if near:
        out += (
            f"\nThese outcomes ask for more than was left: with it the other arm would be above {100 * CEILING:.0f} %."
            " That they do not hold says little.\n\n" + markdown(["method", "outcome", "the other arm"], near)
        )
    return out


CEILING = 0.97  # of an accuracy, which a few hopeless questions keep from 1


def at_a_ceiling(result: Mapping[str, Any]) -> list[list[str]]:
    """The outcomes of a result that failed, and asked for an accuracy above CEILING: (text, what the other arm has)."""
    out: list[list[str]] = []
    for c in result.get("checks", ()):
        asked = c["kind"] == "outcome" and c["verdict"] == FAILS and (c["relation"], c["scale"]) == (">", "abs")
        if not asked or not is_fraction(c["measure"]) or not isinstance(c["right"], str):
            continue
        measure, arm = figure_of(c["measure"], c["right"])
        runs = result["arms"].get(arm, {}).get("seeds", {}).values()
        values = [v for run in runs if (v := end_figure(run, measure)) is not None]
        if values and fmean(values) + c["by"] > CEILING:
            out.append([c["text"], f"{100 * fmean(values):.1f} %"])
    return out
