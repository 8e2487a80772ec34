"""The metrics of a step by name, with their meanings: what `log/events.jsonl` holds, and claims and charts read."""

from __future__ import annotations

import re
from collections.abc import Mapping

# `<x>` stands for a name: of a reward's part, a drop's reason, a term, a weight group ... A metric that does not apply
# to a step (no reward, no update) is absent from it.
METRICS: Mapping[str, str] = {
    "reward/mean": "mean reward of the trajectories that have one",
    "reward/<part>": "mean of a reward's named part (Score.parts)",
    "rollout/episodes": "episodes played",
    "rollout/groups": "groups, rounds of requests that share a key counted as one",
    "rollout/mixed_group_fraction": "share of groups in which rewards differ",
    "rollout/mixed_episode_fraction": "share of episodes that are in such a group",
    "rollout/unscored": "trajectories without a verdict",
    "rollout/failed_episodes": "episodes whose program raised",
    "rollout/length_mean": "generated tokens per episode",
    "rollout/turns_mean": "turns sampled per episode",
    "rollout/tool_calls_mean": "calls of tools per episode",
    "rollout/truncated_fraction": "share of trajectories cut by max_tokens or by a limit of the episode",
    "rollout/re_rendered/<cause>": "times that a chat template re-rendered what was already in a conversation",
    "rollout/cut_text": "characters of tools' text that were left out, since no context could hold them",
    "tokens/generated": "tokens drawn from the engine; fewer than sampled where drafts are taken over",
    "tokens/sampled": "distinct action tokens of the step's episodes, learned or dropped",
    "tokens/learned": "of these, those that an example learns",
    "tokens/total": "sampled tokens of the run so far",
    "dropped/<reason>": "sampled tokens that nothing learns, by reason (loop/token_accounting.py)",
    "select/<name>": "a figure that the stage's select reports",
    "policy/entropy_estimate": "mean -log p of the sampled tokens: an unbiased estimate of the entropy, nats per token",
    "policy/logprob_mismatch_mean": "mean |log p of the engine - log p of the learner|, nats, on a sample of sequences",
    "policy/logprob_mismatch_p99": "its 99th percentile",
    "policy/logprob_mismatch_max": "its largest value",
    "<group>/loss": "the sum of an update's terms, each times its coefficient; <group>: see learn_batch",
    "<group>/loss/<term>": "one term of it, times its coefficient",
    "<group>/grad_norm": "global norm of the gradient before clipping",
    "<group>/lr": "learning rate",
    "<group>/rows": "learned tokens in an optimiser step",
    "<group>/optimiser_steps": "optimiser steps in a step of the loop",
    "<group>/approx_kl": "mean of r - 1 - log r, r = p / p_old: the k3 estimate of the KL from the sampling policy",
    "<group>/ratio_max": "the largest p / p_old",
    "<group>/entropy": "exact entropy of the next-token distribution, nats per token, where a term reads it",
    "<group>/clip_fraction": "share of tokens (or sequences) with an advantage that a clip or mask of ratios acts on",
    "<group>/kept_fraction": "share of a term's rows that its mask keeps, where the mask is no clip",
    "<group>/step_auc": "chance that a right step of an answer has more advantage than a wrong one (step_credit.py)",
    "<group>/<name>": "another figure that a term reports",
    "time/rollout_s": "seconds of sampling and scoring",
    "time/learn_s": "seconds of credit and updates",
    "time/step_s": "seconds of the whole step",
    "tokens_per_s": "sampled tokens over the seconds of the rollout",
    "stage": "name of the stage that the step belongs to",
}


def meaning_of(metric: str) -> str | None:
    """The line of METRICS for a metric's name, the most literal pattern that fits; None where none does.

    >>> meaning_of("time/step_s"), meaning_of("reward/format"), meaning_of("no_metric")
    ('seconds of the whole step', "mean of a reward's named part (Score.parts)", None)
    """
    fits = [name for name in METRICS if re.fullmatch(re.sub(r"<\w+>", "(.+)", name), metric)]
    return METRICS[min(fits, key=lambda name: name.count("<"))] if fits else None
