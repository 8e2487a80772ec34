"""What the ledger found, in sentences: each stands on checks of some claims and is printed while these came out so."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from string import ascii_lowercase
from typing import Any, NamedTuple

from .figures import section_link
from .verdict import FAILS, HOLDS, UNDECIDED


class Figure(NamedTuple):
    """A check that a finding stands on: whose claim (a method, or METHOD.EXPERIMENT), measure, left and right side, and
    the verdict that it came to.
    """

    method: str
    measure: str
    left: str
    right: str
    verdict: str = HOLDS


class Finding(NamedTuple):
    """A finding: a sentence to remember, what was measured, with `{a}`, `{b}` ... where figures stand, and these.

    Figures that the text does not print follow those that it does: it stands on them too.
    """

    title: str
    text: str
    figures: tuple[Figure, ...]


FINDINGS = (
    Finding(
        "One update late is as good as fresh, and no correction makes up for eight or sixteen.",
        "A policy that samples one update behind the newest loses nothing ({a} points). Eight updates behind, in"
        " `ladder`, with every arm at the rate that is best for it, Echo's correction is no better than none at half of"
        " its rate ({b}), and stays far below fresh samples ({c}). Sixteen behind, in `stale`, M2PO's bound on the"
        " second moment is far above GRPO as it is ({d}), and still below fresh samples ({e}), as is AReaL's decoupled"
        " objective ({f}).",
        (
            Figure("asyncflow", "accuracy", "self", "synchronous"),
            Figure("echo", "accuracy", "self", "uncorrected", FAILS),
            Figure("echo", "accuracy", "self", "pull", FAILS),
            Figure("m2po", "accuracy", "self", "grpo"),
            Figure("m2po", "accuracy", "self", "fresh", FAILS),
            Figure("areal", "accuracy", "self", "fresh", FAILS),
        ),
    ),
    Finding(
        "A judge that is frozen is hacked, one that goes on learning seldom, and a rule that misses much never.",
        "Cooper's reward model has seen few labelled answers. Frozen, it comes to pay far more than what is right earns"
        " ({a} of 1), for what its labels lacked. Trained along with the policy, on right answers that a rule certifies"
        " and their corruptions, it agrees with the truth more often ({b}), is hacked in one run of sixteen, and is"
        " ahead by {c} points, and by {d} where the frozen one has the rate that is best for it. The rule alone, though"
        " it misses more than a third of what is right, teaches more still ({e} points from it).",
        (
            Figure("cooper", "late:reward/mean", "static", "late:reward/right of static"),
            Figure("cooper", "late:reward/agreed", "self", "late:reward/agreed of static"),
            Figure("cooper", "accuracy", "self", "static"),
            Figure("cooper", "accuracy", "self", "slow"),
            Figure("cooper", "accuracy", "self", "rule_only", FAILS),
        ),
    ),
    Finding(
        "A reward for steps that has no bound is farmed; a gate or a bound prevents it.",
        "Paid for each step at once, a policy learns to write steps; G-RA, which pays for them only where the outcome"
        " is right, is ahead by {a} points, and level with the outcome alone ({b}). Paid for each step beside the"
        " outcome it is lost in two runs of three; a bound on what steps pay (Clip, {c}) and paying the difference from"
        " step to step (Delta, {d}) prevent that, and are no better than the outcome alone either ({e}).",
        (
            Figure("g_ra", "accuracy", "self", "direct"),
            Figure("g_ra", "accuracy", "self", "outcome"),
            Figure("clip_delta", "accuracy", "clip", "summed"),
            Figure("clip_delta", "accuracy", "difference", "summed"),
            Figure("clip_delta", "accuracy", "self", "outcome"),
        ),
    ),
    Finding(
        "A KL penalty that is too heavy costs 20 to 30 points, and many things repair it alike.",
        "In `skill` a penalty that spares the tokens of which the start is unsure is far ahead of an ordinary one ({a}"
        " points), and so is one whose reference is moved to where the policy is now and then ({b}). Either is within"
        " three points of no penalty at all ({c}; {d}), and sparing tokens is no better than a penalty of half the"
        " weight on all ({e}).",
        (
            Figure("prioritized_kl", "accuracy", "self", "ordinary"),
            Figure("prorl", "accuracy", "self", "no_reset"),
            Figure("prioritized_kl", "accuracy", "self", "free"),
            Figure("prorl", "accuracy", "self", "free"),
            Figure("prioritized_kl", "accuracy", "self", "lighter", FAILS),
        ),
    ),
    Finding(
        "The mean of a group does what a critic does.",
        "GRPO is no worse than PPO ({a} points), whose critic takes four updates for each of the policy's; without them"
        " its learner takes less time ({b}).",
        (
            Figure("grpo", "accuracy", "self", "ppo"),
            Figure("grpo", "sum:time/learn_s", "self", "ppo"),
        ),
    ),
    Finding(
        "What a search is paid says how often one searches.",
        "An agent that is paid the sum of marks for its turns searches more often than by outcomes alone ({a} searches"
        " an answer). PPR, in which a mark counts by what came of the answer, searches less than that ({b}) and is not"
        " above outcomes ({c} points). StepSearch, which charges for what was found before, repeats less ({d}), needs"
        " fewer calls ({e}) and is somewhat more often right ({f}).",
        (
            Figure("ppr", "late:reward/searches", "sum", "late:reward/searches of outcome"),
            Figure("ppr", "late:reward/searches", "self", "sum"),
            Figure("ppr", "accuracy", "self", "outcome", FAILS),
            Figure("step_search", "late:reward/repeated", "self", "outcome"),
            Figure("step_search", "calls", "self", "outcome"),
            Figure("step_search", "accuracy", "self", "outcome"),
        ),
    ),
    Finding(
        "Where votes are more often right than answers, labels are not needed.",
        "TTRL, rewarded by its own majority, on questions of which an answer is seldom right, ends above the vote of"
        " sixteen that it began with ({a} points) and level with the same run on labels ({b}); RLSC, which only follows"
        " its own probability, gains {c}.",
        (
            Figure("ttrl", "accuracy", "self", "maj@16 of start"),
            Figure("ttrl", "accuracy", "self", "labelled"),
            Figure("rlsc", "accuracy", "self", "start"),
        ),
    ),
    Finding(
        "Planning, querying and reading, taught one by one, help where whole trajectories teach nothing.",
        "A model that was taught nothing of searching learns next to nothing from a pool of trajectories, or from twice"
        " as many, and RL after it finds nothing to pay. REDSearcher, which takes more updates before that and first"
        " learns the parts, from texts that cost no search, ends above either ({a} and {b} points), at a fifth right.",
        (
            Figure("red_searcher", "accuracy", "self", "untaught"),
            Figure("red_searcher", "accuracy", "self", "twice"),
            Figure("red_searcher", "early:reward/answer", "self", "untaught"),
        ),
    ),
    Finding(
        "Votes of one wording entrench an error, and votes of the other undo it.",
        "Where half of the answers to a question's second wording make the same error, a policy that is rewarded by its"
        " own majority loses what it could do ({a} points). Co-Reward, where the majority of either wording rewards the"
        " other, ends far above that ({b}), level with the same run on labels ({c}).",
        (
            Figure("co_reward", "accuracy", "own", "start"),
            Figure("co_reward", "accuracy", "self", "own"),
            Figure("co_reward", "accuracy", "self", "gold"),
        ),
    ),
    Finding(
        "Of what a model refines, it is best to learn only what it finds right itself.",
        "SELF translates, judges its translation word by word, translates again, and learns what a second judgement"
        " finds nothing wrong with: {a} points in three rounds without a label. It is ahead of the same without that"
        " second judgement ({b} points), and far ahead of learning what its answers have a majority for ({c}).",
        (
            Figure("self_evolution", "accuracy", "self", "start"),
            Figure("self_evolution", "accuracy", "self", "unfiltered"),
            Figure("self_evolution", "accuracy", "self", "voted"),
        ),
    ),
    Finding(
        "A model that learned to search itself can search an engine.",
        "SSRL is above direct answers ({a} points) and above thinking ({b}), which got as many tokens and so many more"
        " updates, and an engine in the place of its memory adds to that without training ({c}). Over an engine's text"
        " the mask pays (Search-R1, {d}); over what it wrote itself eight seeds cannot tell ({e}), nor what the reward"
        " for form adds ({f}).",
        (
            Figure("ssrl", "accuracy", "self", "answer_only"),
            Figure("ssrl", "accuracy", "self", "think_then_answer"),
            Figure("ssrl", "accuracy+search", "self", "accuracy of self"),
            Figure("search_r1", "accuracy", "self", "no_mask"),
            Figure("ssrl", "accuracy", "self", "no_mask", UNDECIDED),
            Figure("ssrl", "accuracy", "self", "no_format", UNDECIDED),
        ),
    ),
    Finding(
        "Questions that a model asks itself teach it to search, and far better if a check keeps them true.",
        "In SSP a policy proposes questions from facts that it looked up, and answers them: it ends above the"
        " supervised start from which it plays ({a} points). The check that a question can be answered from what its"
        " proposer found keeps more of them true, and play with it ends above play without ({b}), which gains, too."
        " Whether the proposer has to learn along is open ({d}).",
        (
            Figure("ssp", "accuracy", "self", "taught"),
            Figure("ssp", "accuracy", "self", "no_check"),
            Figure("ssp", "late:reward/true", "self", "no_check"),
            Figure("ssp", "accuracy", "self", "fixed", UNDECIDED),
        ),
    ),
    Finding(
        "Paid for what supports an answer, an agent stops guessing, and is as often right.",
        "Where an agent is paid for right answers alone, most of these are not supported by what it cites. CaRR, which"
        " also pays for the statements that lead to an answer, ends that (their share: {a}) at the same accuracy ({b}"
        " points). That it pays for them in right answers alone makes no difference ({c}).",
        (
            Figure("carr", "late:reward/guessed", "self", "outcome"),
            Figure("carr", "accuracy", "self", "outcome"),
            Figure("carr", "accuracy", "self", "ungated", FAILS),
        ),
    ),
    Finding(
        "An agent that minds what it knows searches half as often, and is wrong more often.",
        "In `half_known`, where memory holds a half of what is asked and an engine all of it, a reward for being right"
        " alone teaches to look up nearly everything. R1-Searcher++ ({a} calls) and IKEA ({b}) leave to memory what it"
        " holds, and pay for it in right answers, which a small memory gives less surely than an engine ({c} and {d}"
        " points).",
        (
            Figure("r1_searcher_pp", "calls", "self", "plain"),
            Figure("ikea", "calls", "self", "plain"),
            Figure("r1_searcher_pp", "accuracy", "self", "plain", FAILS),
            Figure("ikea", "accuracy", "self", "plain", FAILS),
        ),
    ),
    Finding(
        "Answers get shorter at the same accuracy by nearly any reward for it.",
        "The cosine rewards of Open-RS ({a}) and Demystifying Long CoT ({b}), AdaCtrl's tags ({c}), Bingo's"
        " significance ({d}), LASER-D's targets ({e}) and the distance from a group's shortest ({f}) all do it. LEAD,"
        " which aims at the mean length of what is right, leaves answers longer than correctness alone does ({g}). Of"
        " the finer parts some add nothing, as Bingo's weights by significance to accuracy ({h}) and its schedule to"
        " length ({i}), and some do, as the moving targets of LASER-D beside a fixed one ({j}).",
        (
            Figure("open_rs", "length", "self", "accuracy"),
            Figure("demystify", "length", "repeating", "classic"),
            Figure("adactrl", "length", "self", "untold"),
            Figure("bingo", "length", "self", "ppo"),
            Figure("laser_d", "length", "self", "grpo"),
            Figure("self_rewarded_efficiency", "length", "self", "plain"),
            Figure("lead", "length", "self", "correct", FAILS),
            Figure("bingo", "accuracy", "self", "total", FAILS),
            Figure("bingo", "length", "self", "fixed", FAILS),
            Figure("laser_d", "length", "self", "half"),
            Figure("laser_d", "accuracy", "self", "grpo"),
            Figure("self_rewarded_efficiency", "accuracy", "self", "plain"),
            Figure("open_rs", "accuracy", "self", "accuracy"),
            Figure("demystify", "accuracy", "self", "classic"),
            Figure("adactrl", "accuracy", "self", "untold"),
            Figure("bingo", "accuracy", "self", "ppo"),
        ),
    ),
    Finding(
        "Divided by its length, a wrong answer gets longer; undivided, answers cost less, and no fewer are right.",
        "Where additions are half learned and wrong answers remain, those of GRPO end longer than they began ({a}). Dr."
        " GRPO, whose loss divides none by its length, keeps them shorter ({b}) and all answers with them ({c}), and is"
        " right no less often ({d} points). Dividing by a group's deviation has no part in it ({e}).",
        (
            Figure("dr_grpo", "length_wrong", "grpo", "start"),
            Figure("dr_grpo", "length_wrong", "self", "grpo"),
            Figure("dr_grpo", "length", "self", "grpo"),
            Figure("dr_grpo", "accuracy", "self", "grpo"),
            Figure("dr_grpo", "length_wrong", "self", "std"),
        ),
    ),
    Finding(
        "Tokens that are saved are not seconds that are saved.",
        "A*-PO, one answer to a prompt whose value was estimated beforehand, samples less than GRPO on the same prompts"
        " ({a}), and its steps take less time ({b}), though not by as much. SPEC-RL takes over most of what it sampled"
        " an epoch before ({c} generated), and its rollouts take longer ({d}): to check a draft costs a small model as"
        " much as to write it.",
        (
            Figure("a_star_po", "sum:tokens/sampled", "self", "grpo"),
            Figure("a_star_po", "sum:time/step_s", "self", "grpo"),
            Figure("spec_rl", "sum:tokens/generated", "self", "no_reuse"),
            Figure("spec_rl", "sum:time/rollout_s", "self", "no_reuse", FAILS),
        ),
    ),
    Finding(
        "Neither a higher bound of the ratio nor clipped weights keep a policy open.",
        "Where a batch is learned in thirty-two updates and an equal clip acts on one or two tokens in a hundred, a"
        " higher upper bound (DAPO) keeps no entropy up ({a}). Under CISPO, which clips weights, and seldom, and no"
        " gradient, what is rare and right grows further in the first batch ({b} nats), and the entropy is lower for it"
        " ({c} against DAPO).",
        (
            Figure("dapo", "mean:policy/entropy_estimate", "self", "equal_clip", FAILS),
            Figure("cispo", "first:policy/rare_growth", "self", "equal_clip"),
            Figure("cispo", "mean:policy/entropy_estimate", "self", "dapo", FAILS),
        ),
    ),
    Finding(
        "Held loosely to where it began, DPO ranks answers rightly and gives wrong ones.",
        "On stored pairs of a noisy judge DPO with a beta of 1 gains {a} points, more than likelihood of what was"
        " preferred ({b}). With a tenth of that beta its implicit reward is as often right of pairs that it has not"
        " seen ({c} above a half), the answers that are preferred become rarer too ({d}), and it ends below where it"
        " began ({e}).",
        (
            Figure("dpo", "accuracy", "self", "start"),
            Figure("dpo", "accuracy", "self", "preferred_ft"),
            Figure("dpo.weak_anchor", "late:policy/reward_accuracy", "loose", "0.5"),
            Figure("dpo.weak_anchor", "late:policy/reward_chosen", "loose", "0.0"),
            Figure("dpo.weak_anchor", "accuracy", "loose", "start"),
        ),
    ),
    Finding(
        "Groups without a gradient cost little where GRPO learns anyway.",
        "LENS takes a gradient from more rows ({a}), as it says, and learns no sooner than GRPO ({b}); dealing more"
        " rollouts to prompts whose groups differ (Knapsack RL) learns no sooner than dealing them evenly ({c}). DAPO,"
        " which samples until every group differs, learns a little sooner ({d}), for more than twice the tokens.",
        (
            Figure("lens", "early:policy/rows", "self", "grpo"),
            Figure("lens", "auc", "self", "grpo", FAILS),
            Figure("knapsack", "auc", "self", "uniform", FAILS),
            Figure("dapo", "auc", "self", "static"),
        ),
    ),
)


FIRST = 5  # findings that stand before the others


def findings_section(
    results: Sequence[Mapping[str, Any]],
    formatted: Callable[[Mapping[str, Any]], str],
    findings: Sequence[Finding] = FINDINGS,
    doubted: Collection[str] = (),
    unadmitted: Collection[str] = (),
) -> str:
    """The findings whose every check came out as they say, in Markdown; "" where there are none.

    results: of claims, and of experiments by the name METHOD.EXPERIMENT (`claim_results.with_experiments`). formatted:
    how a check's difference and interval are written. doubted: methods whose verdict is in doubt, and unadmitted:
    regimes that are not admitted; a finding that stands on one says so.
    """
    known = {(r["method"], c["measure"], c["left"], str(c["right"])): c for r in results for c in r["checks"]}
    places = {r["method"]: r.get("regime", "") for r in results}
    rows: list[str] = []
    for finding in findings:
        checks = [known.get(f[:4]) for f in finding.figures]
        if all(c and c["verdict"] == f.verdict for c, f in zip(checks, finding.figures, strict=True)):
            texts = {letter: formatted(c) for letter, c in zip(ascii_lowercase, checks, strict=False) if c}
            used = list(dict.fromkeys(f.method for f in finding.figures))
            notes = [f"of `{m}` a doubt stands" for m in used if m in doubted]
            notes += [f"`{h}` is not admitted yet" for h in dict.fromkeys(places[m] for m in used) if h in unadmitted]
            methods = "; ".join([", ".join(map(section_link, used)), *notes])
            rows.append(f"- **{finding.title}** {finding.text.format(**texts)} ({methods})")
    if not rows:
        return ""
    more = "\n\nAnd:\n\n" + "\n".join(rows[FIRST:]) if rows[FIRST:] else ""
    return "\n## What was found\n\n" + "\n".join(rows[:FIRST]) + more + "\n"
