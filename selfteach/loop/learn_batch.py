"""From scored groups to a batch of columns (`compose_batch`), and from a batch to new weights (`learn_batch`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ..core.batch import Batch, Example
from ..core.blocks import Block
from ..core.collate import collate
from ..core.errors import BadValue
from ..core.method import Stage, Update
from ..core.protocols import Learner
from ..core.quantity import parse
from ..core.task import TaskSource
from ..core.tree import RolloutGroup
from ..core.user_code import user_code
from .loss_weights import loss_weights
from .minibatches import drop_zero_advantage, split_minibatches, without
from .mismatch_correction import mismatch_weight
from .state import RunState
from .step_context import StepContext
from .token_accounting import account

ASSIGNED = frozenset({"adv", "returns", "keep"})  # columns that assigners write: no forward pass gives them


class Composed(NamedTuple):
    """A batch with its credit columns, the sampled tokens left out of it by reason, and how many were sampled.

    reasons  name of an example that was left out -> why
    """

    batch: Batch
    dropped: Counter[str]
    sampled: int
    reasons: Mapping[str, str]


def compose_batch(
    groups: Sequence[RolloutGroup],
    stage: Stage,
    learner: Learner,
    context: StepContext,
    state: RunState,
    source: TaskSource | None = None,
) -> Composed:
    """The batch that the credit blocks of a stage make of scored groups: composed, with assigned columns, without
    dropped rows.
    """
    examples = _examples(groups, stage, context, state, source)
    batch = collate(examples, context.tree)
    composed = dict(zip(batch.names, batch.lengths().tolist(), strict=True))
    assigners = [(i, p) for i, p in enumerate(stage.credit) if "groups" not in p.needs]
    _add_forward_columns(batch, [p for _, p in assigners], learner)
    reasons: dict[str, str] = {}  # why a sequence was dropped
    for number, block in assigners:
        batch = _assign(batch, block, state, f"{stage.name}/credit.{number}", reasons)
    if "adv" in batch.columns:
        batch = without(batch, np.isnan(batch.get("adv")), "no advantage", reasons)
    names: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        names.setdefault(reason, []).append(name)
    counts = Counter(account(groups, examples, names))
    sampled, learned = counts.pop("sampled"), counts.pop("learned")
    kept = zip(batch.names, batch.lengths().tolist(), strict=True)
    if dropped_rows := sum(composed[name] - left for name, left in kept if name.rsplit(":", 1)[0] in context.trees):
        counts["dropped/rows"] += dropped_rows  # single tokens of sequences that stay
        learned -= dropped_rows
    assert sampled == learned + sum(counts.values()), (
        f"tokens unaccounted for: {sampled} sampled, {learned} learned, {dict(counts)} dropped"
    )
    return Composed(batch, counts, sampled, reasons)


def learn_batch(
    batch: Batch,
    stage: Stage,
    learner: Learner,
    state: RunState | None = None,
    lr: float | Callable[[int], float] = 1e-4,
    seed: int = 0,
    credit_auc: Callable[[Batch], float | None] = lambda batch: None,
    on_learned: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, float]:
    """Do the updates of a stage on a composed batch, as a step of a run does, and return their metrics.

    For each update whose `when` holds: its assigners, the rows of its `where`, the proximal columns, then for each
    epoch and minibatch the loss weights, `learner.backward` and `learner.step`. Metrics (loop/metrics.py) are means
    over minibatches, under the weight group that the update trains: policy/loss, rm/grad_norm.

    state  the run's state, which schedules and stateful blocks read; None: that of a first step
    lr     the run's learning rate, or a function of the step; an update with a rate of its own does not read it
    seed   of the shuffling into minibatches
    credit_auc  how well a batch's advantages tell right steps from wrong (`step_credit.step_auc`); None: not known
    on_learned  is told after each optimiser step how many are done, and of how many
    """
    state = state or RunState()
    done, planned = 0, sum(update.epochs * update.minibatches for update in stage.updates)
    rate = lr(state.step) if callable(lr) else lr
    metrics: dict[str, float] = {}
    prefixes = metric_prefixes(stage)
    for number, update in enumerate(stage.updates):
        if update.when is not None and not state.call(f"{stage.name}/when.{number}", update.when, {}):
            continue
        if update.reset:
            learner.reset_optimisers(update.params)
        prepared = _prepared(batch, update, learner, state, f"{stage.name}/update.{number}")
        if (area := credit_auc(prepared)) is not None:
            metrics[f"{prefixes[number]}/step_auc"] = area
        found = list[Mapping[str, float]]()
        for of_one in _optimise(prepared, update, learner, state, rate, (seed, "minibatches", state.step, number)):
            found.append(of_one)
            done += 1
            on_learned(done, planned)
        names = sorted({k for m in found for k in m})
        metrics |= {f"{prefixes[number]}/{k}": float(np.mean([m[k] for m in found if k in m])) for k in names}
        metrics[f"{prefixes[number]}/optimiser_steps"] = float(len(found))
    if done < planned:  # an update was not due, or a minibatch had nothing to learn
        on_learned(planned, planned)
    return metrics


def metric_prefixes(stage: Stage) -> list[str]:
    """The first block of the names of each update's metrics: `policy` where it trains the policy, else its weight
    group.

    A second update of the same group in a stage is `policy/2`, a third `policy/3`.
    """
    groups = ["policy" if "policy" in u.params else u.params[0] for u in stage.updates]
    counts = [groups[: n + 1].count(group) for n, group in enumerate(groups)]
    return [group if count == 1 else f"{group}/{count}" for group, count in zip(groups, counts, strict=True)]


def _examples(
    groups: Sequence[RolloutGroup], stage: Stage, context: StepContext, state: RunState, source: TaskSource | None
) -> list[Example]:
    examples: list[Example] = []
    for number, block in enumerate(stage.credit):
        if "groups" in block.needs:
            given = {"groups": [g.for_user() for g in groups], "context": context, "source": source}
            made: list[Example] = state.call(f"{stage.name}/credit.{number}", block, given)
            if not isinstance(made, list) or not all(isinstance(e, Example) for e in made):
                raise BadValue(f"composer {block.name}: must return a list of Examples, not {type(made).__name__}")
            first = len(examples)
            examples += [
                replace(e, preferred_over=tuple(b + first for b in e.preferred_over)) if e.preferred_over else e
                for e in made
            ]
    return examples


def _add_forward_columns(batch: Batch, blocks: Sequence[Block], learner: Learner) -> None:
    """Add the columns that these blocks read and a forward pass gives."""
    absent = {c for b in blocks for c in b.columns if c not in batch and c not in ASSIGNED}
    want = sorted(c for c in absent if parse(c, learner.models, batch.prefixes))
    if want and batch.size("token"):
        learner.forward(batch, want)


def _assign(batch: Batch, block: Block, state: RunState, place: str, reasons: dict[str, str]) -> Batch:
    """The batch with an assigner's columns, without the rows that it does not keep."""
    if not batch.size("token"):
        return batch
    columns = state.call(place, block, _columns_of(block, batch))
    with user_code(f"{place} {block.name}: what it returned"):
        for name, (unit, values) in columns.items():
            batch.put(name, unit, _numbers(values))
    if "keep" in columns:
        batch = without(batch, np.asarray(batch.get("keep")) == 0, block.name, reasons)
        batch.columns.pop("keep")
    return batch


def _numbers(values: Any) -> np.ndarray:
    """A column that a block gave. Raises TypeError for values that are neither numbers nor strings."""
    array = np.asarray(values)
    if array.dtype.kind not in "biufUS":
        raise TypeError(f"a column of {array.dtype}")
    return array


def _columns_of(block: Block, batch: Batch) -> dict[str, np.ndarray]:
    """The columns that a block reads, which it cannot write to: they are those of the batch."""
    own = {n: batch.get(block.reads.get(n, n), u) for n, u in block.needs.items() if n not in ("state", "history")}
    return {n: _read_only(values) for n, values in own.items()}


def _read_only(values: Any) -> Any:
    if not isinstance(values, np.ndarray):
        return values
    view = values.view()
    view.flags.writeable = False
    return view


def _prepared(batch: Batch, update: Update, learner: Learner, state: RunState, place: str) -> Batch:
    """The rows that an update learns from, with the columns that it takes before its first optimiser step."""
    _add_forward_columns(batch, update.assign, learner)
    for i, block in enumerate(update.assign):
        batch = _assign(batch, block, state, f"{place}.{i}", {})
    if update.where is not None:
        with user_code(f"{place} where {update.where.name}"):
            batch = batch.take(np.asarray(update.where(**_columns_of(update.where, batch)), bool))
    prox = sorted({c for t in update.terms for c in t.fn.columns if c.startswith("prox_")})
    if prox and batch.size("token"):
        learner.forward(batch, prox)
    return batch


def _optimise(
    batch: Batch, update: Update, learner: Learner, state: RunState, rate: float, key: tuple[object, ...]
) -> Iterator[Mapping[str, float]]:
    """Do the optimiser steps of an update, and give the metrics of each.

    `key`: the RNG key of the shuffling, less the epoch.
    """
    update = replace(update, terms=tuple(replace(t, coef=state.scheduled(t.coef)) for t in update.terms))
    rate = rate if update.lr is None else state.scheduled(update.lr)
    for epoch in range(update.epochs):
        for minibatch in split_minibatches(batch, update, (*key, epoch)):
            for t, term in enumerate(update.terms):
                with user_code(f"loss weights {term.loss_weights} of {term.fn.name}"):
                    w = loss_weights(minibatch, term) * mismatch_weight(minibatch, term.fn.unit)
                if not np.isfinite(w).all():
                    raise BadValue(f"loss weights {term.loss_weights} of {term.fn.name}: not all are finite")
                minibatch.put(f"w{t}", term.fn.unit, w)
            nonzero = drop_zero_advantage(minibatch, update)
            if nonzero.size("token"):
                with user_code(f"the gradient of {' + '.join(t.fn.name for t in update.terms)}"):
                    gradient = learner.backward(nonzero, update)
                yield {**gradient, **learner.step(update, rate)}
