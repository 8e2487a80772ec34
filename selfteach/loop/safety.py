"""Bounds at which a run stops: answers without a score, steps that teach nothing, an engine that has drifted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..core.batch import Batch
from ..core.blocks import start_delay
from ..core.errors import EngineMismatch, NoTrainingData, ScoringFailed
from ..core.method import Stage
from ..core.protocols import Learner
from ..core.tree import RolloutGroup
from .state import RunState


@dataclass(frozen=True)
class SafetyLimits:
    """Bounds at which a run stops."""

    unscored: float = 0.1  # share of trajectories without a score in one step
    logprob_mismatch: float = 0.1  # mean |log-probability of the engine - of the learner| in nats
    reward_seconds: float = 60.0  # a reward's deadline
    starved: int = 20  # steps in a row without a gradient


def check_scores(groups: Sequence[RolloutGroup], step: int, limits: SafetyLimits) -> None:
    """Raise ScoringFailed where too many trajectories have no score or too many episodes failed."""
    rewards = [(at, s) for g in groups for at, s in g.scores.get("reward", {}).items()]
    failed = {e.id: e.why for g in groups for e in g.episodes if e.status == "error"}
    unscored = [
        f"{at.episode}: {s.error or 'no value'}" for at, s in rewards if s.value is None and at.episode not in failed
    ]
    without_scores = {e.id for g in groups for e in g.episodes} - {at.episode for at, _ in rewards} - failed.keys()
    bad = len(failed) + len(unscored)
    total = len(failed) + len(without_scores) + sum(at.episode not in failed for at, _ in rewards)
    if total and bad / total > limits.unscored:
        first = "\n  ".join(([f"{name}: {why}" for name, why in failed.items()] + unscored)[:5])
        raise ScoringFailed(
            f"step {step}: {bad} of {total} trajectories have no score (limit {limits.unscored:.0%})\n  {first}\n"
            "fix the reward, tool or program, or allow more with --max-unscored"
        )


def count_starved(
    state: RunState,
    stage: Stage,
    taught: Mapping[str, float],
    dropped: Mapping[str, int],
    limits: SafetyLimits,
    warn: Callable[[str], None],
) -> None:
    """Count steps without a gradient: no token was left to learn, or no update that was due had one.

    taught   metrics of the step's updates;  dropped: tokens that nothing learned, by why

    Raises NoTrainingData after `starved` of them where no step has had one before: nothing is learned here. Later
    there is only a notice: a task that is solved gives every answer the same reward.
    """
    due = not taught or any(name.endswith("/optimiser_steps") for name in taught)
    if not stage.updates or any(v != 0 for name, v in taught.items() if name.endswith("/grad_norm")):
        state.starved, state.learned = 0, state.learned or bool(stage.updates)
    elif due:
        state.starved += 1
    limit = limits.starved + sum(start_delay(p) for p in stage.credit)
    if state.starved < limit:
        return
    reasons = ", ".join(f"{k.removeprefix('dropped/')} {v}" for k, v in dropped.items())
    why = reasons or ("the gradient was zero" if taught else "nothing was sampled")
    text = f"{state.starved} steps in a row taught nothing (last: {why}); are all rewards of a group equal?"
    if not state.learned:
        raise NoTrainingData(f"step {state.step}: {text} --max-idle-steps allows more")
    if state.starved == limit:
        warn(text)


def logprob_mismatch(
    batch: Batch, learner: Learner, state: RunState, at_once: bool = False, bound: float | None = None
) -> dict[str, float]:
    """The log-prob mismatch of engine and learner, on one in sixteen sequences of a step, at most eight.

    at_once  weights change in the middle of sequences, so that only those of one version can be compared
    bound    nats a token, on average; None: they differ on purpose

    The gap of each token is put into the batch, for the log. Raises EngineMismatch where it is above the bound on these
    and then on all that can be compared: a few short answers may be off by chance.
    """
    other = batch.get("version") != state.version  # replayed, or of an older version
    if "off_context" in batch:  # or learned in another context than it was sampled in
        other |= batch.get("off_context") == 1
    seq = batch.get("seq")
    now = np.setdiff1d(seq[~other], seq[other] if at_once else [])
    if not len(now):
        return {}
    few = now[: min(8, -(-len(now) // 16))]
    mismatch = _measured_on(few, batch, learner)
    if bound is not None and mismatch["mean"] > bound:
        mismatch = _measured_on(now, batch, learner)
        if mismatch["mean"] > bound:
            raise EngineMismatch(
                f"step {state.step}: engine and learner differ by {mismatch['mean']:.3g} nats a token on average "
                f"(bound {bound:g}); the engine may hold other weights, or they compute in different precisions: "
                "--dtype float32 and --engine-dtype float32 make both exact"
            )
    return {f"policy/logprob_mismatch_{k}": v for k, v in mismatch.items() if k != "rows"}


def _measured_on(seqs: np.ndarray, batch: Batch, learner: Learner) -> dict[str, float]:
    """The mismatch on these sequences; what it is of each token is put into the batch."""
    part = batch.take(picked := np.isin(batch.get("seq"), seqs))
    mismatch = dict(learner.logprob_mismatch(part))
    if "logprob_gap" in part:
        gaps = np.full(batch.size("token"), np.nan, np.float32)
        gaps[picked] = part.get("logprob_gap")
        batch.put("logprob_gap", "token", gaps)
    return mismatch
