"""One loop for every method: select, roll out, score, compose, assign, weigh, learn, deliver."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..core.batch import Batch, Example, gather
from ..core.errors import BadValue, NoVerdict, Starved, Unproven
from ..core.method import Method, Stage, Update
from ..core.part import Part, first_state, memory, waits
from ..core.protocols import Engine, History, Learner
from ..core.scoring import score, whole_step
from ..core.task import Request, Source
from ..core.tree import Group
from ..model.quantities import parse
from ..model.tokenizer import Tokenizer
from .account import account
from .admission import admit
from .books import remember, summary
from .cuts import deal, without, without_silent
from .episode import play
from .table import Limits, Table, Tool
from .weighing import weights

ROUNDS = 64  # a select that asks more often than this in one step will never have enough


@dataclass(frozen=True)
class Bounds:
    """What a run will not put up with."""

    unscored: float = 0.1  # share of trajectories without a verdict in one step
    gap: float = 0.1  # mean |log-probability of the sampler - of the learner| in nats
    seconds: float = 60.0  # a reward's deadline
    starved: int = 20  # steps in a row in which no group carries a gradient


@dataclass
class State:
    """Everything a run remembers between steps besides weights and optimisers."""

    step: int = 0
    place: int = 0  # in the sequence of stages
    stage_step: int = 0
    version: int = 0
    delivered: int = 0  # the version of the newest delivery
    versions: dict[str, int] = field(default_factory=dict)  # of each group that the sampler holds
    accepted: int = 0
    tokens: int = 0
    starved: int = 0
    blocks: dict[str, Any] = field(default_factory=dict)
    history: History = field(default_factory=History)


@dataclass
class Loop:
    """A method at work on a source: what the five slots of its stages say, done step by step."""

    method: Method
    source: Source
    tokenizer: Tokenizer
    learner: Learner
    engine: Engine | None
    tools: Mapping[str, Tool]
    lr: Callable[[int], float]  # the run's own learning rate at a step
    steps: int
    seed: int = 0
    max_tokens: int | None = None
    limits: Limits = field(default_factory=Limits)
    bounds: Bounds = field(default_factory=Bounds)
    find: Callable[[str], Any] | None = None
    budget: int | None = None  # sampled tokens after which the run is done
    state: State = field(default_factory=State)
    under_way: tuple[list[Group], Batch | None] = field(default=([], None), init=False)  # of the step that is being learned from
    told: dict[str, float] = field(default_factory=dict, init=False)  # numbers that select told in this step

    @property
    def stages(self) -> tuple[Stage, ...]:
        return self.method.stages * self.method.repeat

    @property
    def stage(self) -> Stage:
        return self.stages[self.state.place]

    @property
    def done(self) -> bool:
        spent = self.budget is not None and self.state.tokens >= self.budget
        return spent or self.state.step >= self.steps or self.state.place >= len(self.stages)

    async def advance(self) -> tuple[dict[str, Any], list[Group], Batch | None]:
        """One step. Returns its metrics, its groups, and the batch that was learned from (None where nothing was)."""
        state, stage, started = self.state, self.stage, time.perf_counter()
        if state.stage_step == 0:
            self._enter(stage)
        table = self._table(stage)
        groups = await self._collect(stage, table)
        rolled = time.perf_counter()
        self._verdicts(groups)
        batch, dropped, sampled = self._compose(stage, table, groups)
        metrics = summary(groups) | {f"select/{name}": value for name, value in self.told.items()} | dict(dropped)
        self.under_way = groups, batch
        metrics |= {"tokens/sampled": sampled, "tokens/learned": sampled - sum(dropped.values())}
        metrics["tokens/drawn"] = sum(e.cost.get("tokens", 0) for g in groups for e in g.episodes)  # less than sampled where drafts were adopted
        state.starved = 0 if batch.size("token") or not stage.updates else state.starved + 1  # a stage that only measures teaches nothing
        if state.starved >= self.bounds.starved + sum(waits(p) for p in stage.credit):
            why = ", ".join(f"{k.removeprefix('dropped/')} {v}" for k, v in dropped.items()) or "nothing was sampled"
            raise Starved(f"step {state.step}: {state.starved} steps in a row taught nothing (last: {why}); are all rewards of a group alike?")
        if batch.size("token"):
            metrics |= self._learn(stage, batch)
        learned = time.perf_counter()
        self._deliver(stage)
        state.tokens += sampled
        remember(state.history, state.step, groups, batch, metrics)
        metrics |= {"seconds/rollout": rolled - started, "seconds/learn": learned - rolled, "seconds/step": time.perf_counter() - started}
        metrics |= {"stage": stage.name, "tokens/total": state.tokens}
        self._proceed(stage)
        return metrics, groups, batch if batch.size("token") else None

    @property
    def settled(self) -> bool:
        """True where the sampler holds what the learner holds, so that a checkpoint of the learner's weights is one of the run."""
        return self.state.delivered == self.state.version

    # ---- rollouts

    def _table(self, stage: Stage) -> Table:
        sampling = replace(stage.sampling, temperature=self._knob(stage.sampling.temperature))
        if sampling.max_tokens is None:
            sampling = replace(sampling, max_tokens=self.max_tokens)
        where = ("train", self.state.step)
        engine = None if stage.data else self.engine
        members = tuple(self.method.cast)
        return Table(engine, self.tokenizer, members, self.tools, sampling, stage.programs, self.seed, where, self.limits, find=self.find)

    async def _collect(self, stage: Stage, table: Table) -> list[Group]:
        """Rounds of requests, until select asks for nothing more; rewards as each group comes in, those of the whole step last."""
        state, back = self.state, list[list[Group]]()
        self.told = {}
        early = [p for p in stage.reward if not whole_step(p)]

        async def scored(group: Group) -> None:
            for part in early:
                await self._score(stage, part, [group], table)

        n = admit(stage.staleness, state.version, stage.groups, state.accepted, 0)
        while True:
            given = {
                "n": n,
                "rollouts": stage.rollouts,
                "back": back,
                "history": state.history,
                "source": self.source,
                "step": state.step,
                "seed": self.seed,
                "tell": self.told.update,
            }
            requests: list[Request] = self._call(f"{stage.name}/select", stage.select, given)
            if not requests:
                break
            if len(back) >= ROUNDS:
                raise Starved(f"step {state.step}: {stage.select.name} asked {ROUNDS} rounds of requests and wants more; its filter may pass nothing")
            back.append(await play(table, requests, len(back), scored))
        groups = [g for round_ in back for g in round_]
        state.accepted += n
        for part in (p for p in stage.reward if whole_step(p)):
            await self._score(stage, part, groups, table)
        return groups

    async def _score(self, stage: Stage, part: Part, groups: Sequence[Group], table: Table) -> None:
        more: dict[str, Any] = {"history": self.state.history}
        place = memory(part, f"{stage.name}/reward.{stage.reward.index(part)}")
        if "state" in part.needs:
            more["state"] = [self.state.blocks.get(place, first_state(part))]
        found = await score(part, groups, table, self.bounds.seconds, **more)
        if "state" in part.needs:
            self.state.blocks[place] = more["state"][0]
        owner = {e.id: g for g in groups for e in g.episodes}
        for column, places in found.items():
            for at, verdict in places.items():
                have = owner[at.episode].scores.setdefault(column, {})
                if at in have:
                    raise BadValue(f"two rewards score {column!r} at the same place; join them with weighted(...), or give one another name")
                have[at] = verdict

    def _verdicts(self, groups: Sequence[Group]) -> None:
        """Stop the run where too many trajectories have no score, or too many episodes failed, and say which."""
        rewards = [(at, s) for g in groups for at, s in g.scores.get("reward", {}).items()]
        failed = {e.id: e.why for g in groups for e in g.episodes if e.status == "error"}
        unscored = [f"{at.episode}: {s.error or 'no value'}" for at, s in rewards if s.value is None and at.episode not in failed]
        silent = {e.id for g in groups for e in g.episodes} - {at.episode for at, _ in rewards} - failed.keys()
        bad, total = len(failed) + len(unscored), len(failed) + len(silent) + sum(at.episode not in failed for at, _ in rewards)
        if total and bad / total > self.bounds.unscored:
            first = "\n  ".join(([f"{name}: {why}" for name, why in failed.items()] + unscored)[:5])
            raise NoVerdict(
                f"step {self.state.step}: {bad} of {total} trajectories have no verdict (limit {self.bounds.unscored:.0%})\n  {first}\n"
                "mend the reward, tool or program, or allow more with --unscored"
            )

    # ---- credit

    def _compose(self, stage: Stage, table: Table, groups: list[Group]) -> tuple[Batch, Counter[str], int]:
        examples: list[Example] = []
        assigners: list[tuple[int, Part]] = []
        for number, part in enumerate(stage.credit):
            if "groups" in part.needs:
                made = self._call(
                    f"{stage.name}/credit.{number}", part, {"groups": groups, "history": self.state.history, "cast": table, "source": self.source}
                )
                examples += [replace(e, beats=tuple(b + len(examples) for b in e.beats)) if e.beats else e for e in made]
            else:
                assigners.append((number, part))
        batch = gather(examples, table.tree)
        whole = dict(zip(batch.names, batch.lengths().tolist(), strict=True))
        self._fill(batch, [p for _, p in assigners])
        gone: dict[str, str] = {}
        for number, part in assigners:
            batch = self._assign(f"{stage.name}/credit.{number}", part, batch, gone)
        if "adv" in batch.columns:
            batch = without(batch, np.isnan(batch.get("adv")), "no advantage", gone)
        later: dict[str, list[str]] = {}
        for name, reason in gone.items():
            later.setdefault(reason, []).append(name)
        counts = Counter(account(groups, examples, later))
        sampled, learned = counts.pop("sampled"), counts.pop("learned")
        kept = zip(batch.names, batch.lengths().tolist(), strict=True)
        if cut := sum(whole[name] - left for name, left in kept if name.rsplit(":", 1)[0] in table.trees):
            counts["dropped/rows"] += cut  # single tokens of sequences that stay
            learned -= cut
        assert sampled == learned + sum(counts.values()), f"tokens unaccounted for: {sampled} sampled, {learned} learned, {dict(counts)} dropped"
        return batch, counts, sampled

    def _fill(self, batch: Batch, parts: Sequence[Part]) -> None:
        """Columns from forward passes that these blocks name and nobody else gives."""
        made = {"adv", "returns", "keep"}
        want = [c for p in parts for c in p.columns if c not in batch and c not in made and parse(c, self.method.cast, batch.prefixes)]
        if want and batch.size("token"):
            self.learner.forward(batch, sorted(set(want)))

    def _assign(self, place: str, part: Part, batch: Batch, gone: dict[str, str]) -> Batch:
        if not batch.size("token"):
            return batch
        given = {n: batch.get(part.reads.get(n, n), u) for n, u in part.needs.items() if n not in ("state", "history")}
        columns = self._call(place, part, {**given, "history": self.state.history})
        for name, (unit, values) in columns.items():
            batch.put(name, unit, values)
        if "keep" in columns:
            batch = without(batch, np.asarray(batch.get("keep")) == 0, part.name, gone)
            batch.columns.pop("keep")
        return batch

    # ---- learning

    def _learn(self, stage: Stage, batch: Batch) -> dict[str, Any]:
        metrics: dict[str, Any] = {}
        if self.engine is not None and not stage.data and self.settled:
            metrics |= self._gap(batch)
        for number, update in enumerate(stage.updates):
            if update.when is not None and not self._call(f"{stage.name}/when.{number}", update.when, {"history": self.state.history}):
                continue
            self._fill(batch, update.assign)
            ready, nobody = batch, dict[str, str]()
            for i, part in enumerate(update.assign):
                ready = self._assign(f"{stage.name}/update.{number}.{i}", part, ready, nobody)
            if update.where is not None:
                given = {n: ready.get(update.where.reads.get(n, n), u) for n, u in update.where.needs.items()}
                ready = ready.take(np.asarray(update.where(**given), bool))
            prox = sorted({c for t in update.terms for c in t.fn.columns if c.startswith("prox_")})
            if prox and ready.size("token"):
                self.learner.forward(ready, prox)
            metrics |= self._update(stage, update, number, ready)
        return metrics

    def _update(self, stage: Stage, update: Update, number: int, batch: Batch) -> dict[str, Any]:
        resolved = replace(update, terms=tuple(replace(t, coef=self._knob(t.coef)) for t in update.terms))
        lr = self.lr(self.state.step) if update.lr is None else self._knob(update.lr)
        found: list[Mapping[str, float]] = []
        for epoch in range(update.epochs):
            for part in deal(batch, update, (self.seed, "deal", self.state.step, number, epoch)):
                for t, term in enumerate(resolved.terms):
                    part.put(f"w{t}", term.fn.unit, weights(part, term))
                live = without_silent(part, resolved)
                if not live.size("token"):
                    continue
                found.append({**self.learner.backward(live, resolved), **self.learner.step(resolved, lr)})
        prefix = f"{number}/" if len(stage.updates) > 1 else ""
        return {prefix + k: float(np.mean([m[k] for m in found if k in m])) for k in sorted({k for m in found for k in m})}

    def _gap(self, batch: Batch) -> dict[str, float]:
        """How far sampler and learner disagree, on one in sixteen sequences of every step, at most eight; above the bound the run stops."""
        same = batch.get("version") == self.state.version  # not what was replayed
        if "moved" in batch:  # nor what is learned in another context than it was drawn in
            same &= batch.get("moved") != 1
        now = np.unique(batch.get("seq")[same])
        if not len(now):
            return {}
        few = batch.take_sequences(now[: min(8, -(-len(now) // 16))])
        gap = {f"gap/{k}": v for k, v in self.learner.gap(few).items() if k != "rows"}
        if gap["gap/mean"] > self.bounds.gap:
            raise Unproven(
                f"step {self.state.step}: sampler and learner differ by {gap['gap/mean']:.3g} nats a token on average (bound {self.bounds.gap:g}); "
                "the sampler may hold other weights or use another precision"
            )
        return gap

    def deliver_all(self) -> None:
        """Hand the engine every group it holds, as the learner has them now: at the start and after a checkpoint is read."""
        self._hand_over(() if self.engine is None else self.engine.groups, keep=True)

    def _hand_over(self, names: Collection[str], keep: bool = False) -> None:
        """Deliver groups under the version of now, or (keep) under the one that they had, and call it settled."""
        state = self.state
        if self.engine is not None:
            for group in sorted(set(names) & set(self.engine.groups)):
                state.versions[group] = state.versions.get(group, 0) if keep else state.version
                deliver(self.learner, self.engine, group, state.versions[group])
        state.delivered = state.version

    def _deliver(self, stage: Stage) -> None:
        """Hand the engine the groups that moved, once in `sync` updates and at the stage's end, and compare what it then holds."""
        state = self.state
        state.version += 1
        moved = {g for u in stage.updates for g in u.params}
        followed = {n: w for n, w in self.method.weights.items() if w.follow}
        for name, w in followed.items():
            if state.version % w.every == 0:
                self.learner.copy(name, w.follow or "", w.rate)
        if (state.stage_step + 1) % stage.sync:
            return
        self._hand_over(moved | {n for n, w in followed.items() if stage.sync > 1 or state.version % w.every == 0})

    # ---- state

    def _enter(self, stage: Stage) -> None:
        self.state.accepted = self.state.version * stage.groups  # stages of other sizes: none is owed from before, none was had in advance
        for target, source in stage.enter.items():
            self.learner.copy(target, source, 1.0)
        self._hand_over(stage.enter)

    def _proceed(self, stage: Stage) -> None:
        state = self.state
        state.step += 1
        state.stage_step += 1
        state.history.step = state.step
        if isinstance(stage.until, Part):
            over = bool(self._call(f"{stage.name}/until", stage.until, {"history": state.history}))
        else:
            last = state.place == len(self.stages) - 1
            share = -(-self.steps // len(self.stages))
            over = state.stage_step >= (stage.until if stage.until is not None else self.steps if last else share)
        if (over or self.done) and not self.settled:
            self._hand_over({g for u in stage.updates for g in u.params} | {n for n, w in self.method.weights.items() if w.follow})
        if over:
            state.place += 1
            state.stage_step = 0

    def _call(self, place: str, part: Part, given: Mapping[str, Any]) -> Any:
        """Run a block on what it names; one that remembers is handed its state, and what it becomes is kept."""
        needs = part.needs
        hand = {n: given[n] for n in needs if n in given}
        if "state" not in needs:
            return part(**hand)
        blocks, place = self.state.blocks, memory(part, place)
        if place not in blocks:
            blocks[place] = first_state(part)
        value, blocks[place] = part(**hand, state=blocks[place])
        return value

    def _knob(self, value: float | Part) -> float:
        return float(value(history=self.state.history)) if isinstance(value, Part) else float(value)


def deliver(learner: Learner, engine: Engine, group: str, version: int) -> None:
    """Hand over a weight group and prove it. Raises Unproven where the engine then holds something else."""
    held, ours = engine.load(group, learner.weights(group), version), learner.fingerprint(group)
    if held != ours:
        raise Unproven(f"weights {group!r}, version {version}: the sampler holds {held}, the learner {ours}; the delivery failed")
