"""The metrics of a step and the figures of an evaluation by name, with what they mean: what `log/events.jsonl` holds,
and what claims, charts and docs/metrics.md (scripts/metrics_page.py) read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple


class Metric(NamedTuple):
    """What a metric means, its unit ("" for a plain number), and how it looks in a run that goes well."""

    meaning: str
    unit: str = ""
    healthy: str = ""


# `<x>` stands for a name: of a reward's part, a drop's reason, a term, a weight group ... A metric that does not apply
# to a step (no reward, no update) is absent from it.
METRICS: Mapping[str, Metric] = {
    "reward/mean": Metric("mean reward of the trajectories that have one", "", "rises, with noise, and levels off"),
    "reward/<part>": Metric("mean of a reward's named part (Score.parts)", "", "the part that is meant to rise does"),
    "rollout/episodes": Metric("episodes played", "episodes", "groups times rollouts"),
    "rollout/groups": Metric("groups, rounds of requests that share a key counted as one", "groups", "constant"),
    "rollout/mixed_group_fraction": Metric(
        "share of groups in which rewards differ",
        "0 to 1",
        "well above 0: in other groups advantages are 0 and nothing is learned; falls as the task is solved",
    ),
    "rollout/mixed_episode_fraction": Metric("share of episodes that are in such a group", "0 to 1", "as above"),
    "rollout/unscored": Metric("trajectories without a verdict", "trajectories", "0"),
    "rollout/failed_episodes": Metric("episodes whose program raised", "episodes", "0"),
    "rollout/length_mean": Metric(
        "generated tokens per episode", "tokens", "steady; a climb to max_tokens without more reward is a bad sign"
    ),
    "rollout/turns_mean": Metric("turns sampled per episode", "turns", "as the program plays"),
    "rollout/tool_calls_mean": Metric("calls of tools per episode", "calls", "above 0 where tools should be used"),
    "rollout/wrong_tool_calls_mean": Metric(
        "calls of typed functions per episode that did not fit: no JSON, no such tool, a wrong argument",
        "calls",
        "falls to 0 as the form is learned; absent where there are none",
    ),
    "rollout/failed_tool_calls_mean": Metric(
        "calls of typed functions per episode that raised or were too late", "calls", "absent, or near 0"
    ),
    "rollout/search/<what>_mean": Metric(
        "searches of your own corpus or server per episode that were: failed (no answer), retried (tries), cached,"
        " empty (nothing found), cut (queries too long), noisy (results replaced), perturbed (queries without a word);"
        " of a task's own engine failed and perturbed alone",
        "searches",
        "failed absent, or near 0; absent where there are none",
    ),
    "rollout/truncated_fraction": Metric(
        "share of trajectories cut by max_tokens or by a limit of the episode",
        "0 to 1",
        "below 0.1",
    ),
    "rollout/re_rendered/<cause>": Metric(
        "times that a chat template re-rendered what was already in a conversation", "times", "absent, or few"
    ),
    "rollout/queued_groups": Metric(
        "of rollouts that run ahead: groups that are over and wait to be learned",
        "groups",
        "few: 0 where learning waits",
    ),
    "rollout/queued_steps": Metric("steps that these groups are of", "steps", "at most the staleness"),
    "staleness/mean": Metric(
        "of rollouts that run ahead: updates between the weights that sampled a learned token and those that learn it",
        "updates",
        "below the setting; with --interrupt well below",
    ),
    "staleness/max": Metric("its largest value", "updates", "at most the setting"),
    "staleness/share_<age>": Metric("share of the learned tokens that are so many updates old", "0 to 1"),
    "rollout/cut_text": Metric(
        "characters of tools' text that were left out, since no context could hold them", "characters", "absent"
    ),
    "tokens/generated": Metric(
        "tokens drawn from the engine; fewer than sampled where drafts are taken over", "tokens", "equal to sampled"
    ),
    "tokens/sampled": Metric("distinct action tokens of the step's episodes, learned or dropped", "tokens", "steady"),
    "tokens/learned": Metric("of these, those that an example learns", "tokens", "most of them"),
    "tokens/in_loss": Metric(
        "tokens of the batch that is learned from, each as often as it is there; also of earlier steps",
        "tokens",
        "as many as learned",
    ),
    "tokens/total": Metric("sampled tokens of the run so far", "tokens", "grows to the budget"),
    "dropped/<reason>": Metric(
        "sampled tokens that nothing learns, by reason (loop/token_accounting.py)", "tokens", "absent, or meant"
    ),
    "select/<name>": Metric("a figure that the stage's select reports", "", "see the method"),
    "policy/entropy_estimate": Metric(
        "mean -log p of the sampled tokens: an unbiased estimate of the entropy",
        "nats per token",
        "falls slowly; near 0 early on the policy has stopped exploring",
    ),
    "policy/logprob_mismatch_mean": Metric(
        "mean |log p of the engine - log p of the learner|, on a sample of sequences",
        "nats per token",
        "rounding: below 1e-5 in float32, some 0.01 with bf16; above max_logprob_mismatch the run stops",
    ),
    "policy/logprob_mismatch_p99": Metric("its 99th percentile", "nats per token", "ten times the mean"),
    "policy/logprob_mismatch_max": Metric("its largest value", "nats per token", "below 1e-3 in float32"),
    "policy/mismatch_ratio_mean": Metric(
        "mean importance ratio p_learner / p_engine of tokens or sequences, where mismatch_correction is on",
        "",
        "near 1",
    ),
    "policy/mismatch_ratio_max": Metric("the largest of them", "", "below mismatch_cap but for a few"),
    "policy/mismatch_clipped_fraction": Metric(
        "share of tokens or sequences whose ratio mismatch_correction truncates or masks", "0 to 1", "below 0.01"
    ),
    "<group>/loss": Metric(
        "the sum of an update's terms, each times its coefficient; <group>: the weight group that the update trains",
        "",
        "of a policy gradient its size means little; falls in supervised training",
    ),
    "<group>/loss/<term>": Metric("one term of it, times its coefficient", "", "no term drowns the others unmeant"),
    "<group>/grad_norm": Metric(
        "global norm of the gradient before clipping", "", "steady; jumps by 10 or more go before a collapse"
    ),
    "<group>/lr": Metric("learning rate", "", "as the schedule says"),
    "<group>/rows": Metric("learned tokens in an optimiser step", "tokens", "steady"),
    "<group>/optimiser_steps": Metric("optimiser steps in a step of the loop", "steps", "epochs times minibatches"),
    "<group>/approx_kl": Metric(
        "mean of r - 1 - log r, r = p / p_old: the k3 estimate of the KL from the sampling policy",
        "nats per token",
        "0 at the first optimiser step of a batch, below 0.05 later",
    ),
    "<group>/ratio_max": Metric("the largest p / p_old", "", "1 on-policy, below about 10 later"),
    "<group>/advantage_abs": Metric(
        "mean |advantage| of the tokens (or sequences) that are learned",
        "",
        "steady; falls where fewer groups have rewards that differ, or a baseline says more",
    ),
    "<group>/entropy": Metric(
        "exact entropy of the next-token distribution, where a term reads it", "nats per token", "falls slowly"
    ),
    "<group>/clip_fraction": Metric(
        "share of tokens (or sequences) with an advantage that a clip or mask of ratios acts on",
        "0 to 1",
        "below 0.2 for clips per token; 0 with one optimiser step a batch",
    ),
    "<group>/kept_fraction": Metric(
        "share of a term's rows that its mask keeps, where the mask is no clip", "0 to 1", "as the method means it"
    ),
    "<group>/step_auc": Metric(
        "chance that a right step of an answer has more advantage than a wrong one (loop/step_credit.py)",
        "0 to 1",
        "0.5 where credit is of the whole answer; above where it finds what was wrong",
    ),
    "<group>/reward_chosen": Metric(
        "of DPO: mean implicit reward, beta times the log-ratio to the reference, of preferred answers",
        "",
        "rises, or falls less than that of rejected ones",
    ),
    "<group>/reward_rejected": Metric("the same of rejected answers", "", "falls"),
    "<group>/reward_margin": Metric("mean of their difference", "", "rises from 0"),
    "<group>/reward_accuracy": Metric(
        "share of pairs in which the preferred answer has the larger one", "0 to 1", "rises above 0.5"
    ),
    "<group>/<name>": Metric("another figure that a term reports", "", "see the method"),
    "engine/steps": Metric("forward passes that the rollouts of a step took", "", "few where many are sampled at once"),
    "engine/peak_tokens": Metric(
        "most tokens of sequences that were being sampled at once: what the key-value cache had to hold", "tokens"
    ),
    "time/rollout_s": Metric(
        "sampling and scoring, as far as the step waited for it", "seconds", "most of a step for long answers"
    ),
    "time/learn_s": Metric("credit and updates", "seconds"),
    "time/step_s": Metric("the whole step", "seconds", "steady"),
    "time/sampler_idle_fraction": Metric(
        "of rollouts that run ahead: share of the step in which nothing was played", "0 to 1", "the smaller of the two"
    ),
    "time/learner_idle_fraction": Metric(
        "share of the step in which nothing was learned", "0 to 1", "near 0 where sampling is faster than learning"
    ),
    "tokens_per_s": Metric(
        "sampled tokens over the seconds of the rollout; of the step, where rollouts run ahead",
        "tokens per second",
        "steady",
    ),
    "stage": Metric("name of the stage that the step belongs to"),
}
# Of an evaluation (`Run.evaluations[step].figures`), before and after training and on the way. Those of a decode
# program end in its name: accuracy+search. On the way it is greedy, and sampled besides with eval_samples.
FIGURES: Mapping[str, Metric] = {
    "accuracy": Metric(
        "share of right answers: sampled, before and after training; on the way greedy", "0 to 1", "rises"
    ),
    "greedy": Metric("share of right greedy answers", "0 to 1", "rises"),
    "sampled": Metric("share of right sampled answers, on the way", "0 to 1", "rises, often more than greedy"),
    "stderr": Metric("standard error of `accuracy` over questions", "0 to 1", "small beside the gain that is claimed"),
    "score": Metric("mean score of the judge, for answers that are not just right or wrong", "", "rises"),
    "f1": Metric(
        "F1 of the words of sampled answers against the gold answer that fits best (on the way of greedy ones), where"
        " answers are names or phrases: tasks of facts, question-answering sets",
        "0 to 1",
        "rises with `accuracy`",
    ),
    "f1_greedy": Metric("the same of greedy answers", "0 to 1", "rises"),
    "reward": Metric("mean of your own reward, sampled; on the way greedy", "", "rises"),
    "reward_greedy": Metric("the same of greedy answers", "", "rises"),
    "reward_sampled": Metric("the same of sampled answers, on the way", "", "rises"),
    "pass@<k>": Metric("chance that one of k samples is right, unbiased", "0 to 1", "does not fall as accuracy rises"),
    "maj": Metric("share of questions whose most frequent answer is right", "0 to 1", "above `accuracy`"),
    "maj@<k>": Metric("the same of k samples", "0 to 1", "above `accuracy`"),
    "distinct": Metric("different right answers to a question", "answers", "does not fall to 1 where there are many"),
    "distinct@<k>": Metric("the same of k samples", "answers", "as above"),
    "length": Metric("generated tokens per answer", "tokens", "steady, or falls"),
    "length_right": Metric("the same of right answers", "tokens"),
    "length_wrong": Metric("the same of wrong answers", "tokens", "not far above those of right ones"),
    "calls": Metric("calls of tools per answer", "calls"),
    "wrong_calls": Metric("calls of typed functions per answer that did not fit", "calls", "absent, or near 0"),
    "search/<what>": Metric("searches per answer that were failed, cached ... (rollout/search/...)", "searches"),
    "search/needless": Metric(
        "searches per answer for what memory answers; this and the next three after a warm start on a task that says"
        " what it shows (`factworld`, `atlas`), as of other models nobody knows what they hold",
        "searches",
        "falls",
    ),
    "search/missed": Metric("answers without a search where memory does not have them", "0 to 1", "near 0"),
    "search/decision_<part>": Metric(
        "precision, recall and f1 of answers without a search as the answers that memory has: F1_aware of AdaSearch;"
        " precision is absent where all answers search",
        "0 to 1",
        "f1 rises; 0 where all answers search",
    ),
    "search/recall": Metric(
        "share of the sentences that support an answer that engines and tools gave; not what the policy wrote itself",
        "0 to 1",
        "rises",
    ),
    "search/citation_precision": Metric(
        "of the pages that an answer cites in <cite>, the share on which a fact was found that the answer needs; of"
        " answers that cite",
        "0 to 1",
        "rises",
    ),
    "failed": Metric("episodes that raised", "episodes", "0"),
    "unscored": Metric("other answers without a score", "answers", "0"),
    "re_rendered": Metric("times that a chat template re-rendered a conversation, per answer", "times", "absent"),
    "<figure>/<tag>=<value>": Metric("a figure of the questions with that tag: accuracy/hops=2", "", ""),
}


def metric_of(name: str, table: Mapping[str, Metric] = METRICS) -> Metric | None:
    """What is known of a metric by its name, by the most literal pattern that fits; None where none does."""
    fits = [n for n in table if re.fullmatch(re.sub(r"<\w+>", "(.+)", n), name)]
    return table[min(fits, key=lambda n: n.count("<"))] if fits else None


def meaning_of(metric: str, table: Mapping[str, Metric] = METRICS) -> str | None:
    """The meaning of a metric by its name; None where no pattern fits.

    >>> meaning_of("time/step_s"), meaning_of("reward/format"), meaning_of("no_metric")
    ('the whole step', "mean of a reward's named part (Score.parts)", None)
    """
    found = metric_of(metric, table)
    return found.meaning if found else None
