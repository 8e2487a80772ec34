"""What a later reading found of claims as they stand: what else than the paper's idea a verdict may rest on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .figures import markdown

# method -> the doubt. It goes once the claim is mended and measured again, on seeds of which none was seen.
DOUBTS: Mapping[str, str] = {
    "a_star_po": "its step times were measured beside other work: six seeds took three times as long as two",
    "ace_rl": "with three levels the coarse mark pays full for an answer that misses one of five points",
    "ai_search_planner": "the arm without process rewards is at a ceiling, 98 % greedy",
    "barl": "the arm that eliminates writes 12 symbols at most, where all hypotheses take 27",
    "deepseek_r1": "plain RL is fast and readable there, which leaves nothing for a cold start",
    "dr_grpo": "a mean over tokens favours short right answers, and nearly all answers are right",
    "guide": "groups that fail are opened as often by sampling again",
    "hier_search": "a planner whose agents search once each can only lose against one that searches itself",
    "iter_research": "its clip acts on two in five rounds as short as these; with wider bounds none was left to save",
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
    "ssrl": "of the calls that waiting may save there are 39 %, and 20 % are asked for",
    "tinyv": "a true judge is one point above the rule there",
    "soft_rlvr": "a true judge is no better than the rule there",
}


def doubts_section(results: Sequence[Mapping[str, Any]]) -> str:
    """The verdicts in doubt, and why; empty where there are none."""
    rows = [
        [f"[`{r['method']}`](#{r['method']})", r["verdict"], DOUBTS[r["method"]]]
        for r in results
        if r["method"] in DOUBTS
    ]
    if not rows:
        return ""
    return (
        "\n## Verdicts in doubt\n\nEvery claim was read again beside its authors' code and its own result. These rest"
        " on something else than the paper's idea, or do not ask what it says; they stand as measured until they are"
        " mended and measured again on other seeds.\n\n" + markdown(["method", "verdict", "doubt"], sorted(rows))
    )
