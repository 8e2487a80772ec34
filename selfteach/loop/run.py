"""One loop for every method: select, roll out, score, compose, assign, learn, deliver."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import numpy as np

from ..core.batch import Batch
from ..core.blocks import Block, initial_state, state_key
from ..core.errors import BadValue, NoTrainingData, unknown
from ..core.method import Method, Stage
from ..core.protocols import Engine, Learner, MeteredEngine, SleepingEngine
from ..core.scoring import Processes, score, whole_step
from ..core.task import RolloutRequest, Sampling, Task, TaskSource
from ..core.tree import RolloutGroup, Tree
from ..core.user_code import user_code
from ..model.tokenizer import Tokenizer
from .admission import admit
from .delivery import deliver
from .episode import play
from .learn_batch import Composed, compose_batch, learn_batch
from .metrics_history import record_step, summary
from .mismatch_correction import MismatchCorrection
from .run_ahead import RunAhead, StepRollouts, beside, view_of
from .safety import SafetyLimits, check_scores, count_starved, logprob_mismatch
from .state import RunState
from .step_context import EpisodeLimits, StepContext, Tool
from .step_credit import step_auc, step_judges

MAX_ROUNDS = 64  # rounds of requests of a select in one step


@dataclass
class Loop:
    """A method run on a task source, step by step."""

    method: Method
    source: TaskSource
    tokenizer: Tokenizer
    learner: Learner
    engine: Engine | None
    tools: Mapping[str, Tool]
    lr: Callable[[int], float]  # the run's own learning rate at a step
    steps: int
    seed: int = 0
    max_tokens: int | None = None
    limits: EpisodeLimits = field(default_factory=EpisodeLimits)
    safety_limits: SafetyLimits = field(default_factory=SafetyLimits)
    find: Callable[[str], Tree] | None = None
    budget: int | None = None  # sampled tokens after which the run is done
    max_seconds: float | None = None  # seconds of training after which it is done
    staleness: int | None = None  # versions by which rollouts may run ahead of learning; None: the stage's own
    ahead: RunAhead = field(default_factory=RunAhead)
    mismatch_correction: MismatchCorrection | None = None
    sleeps: bool = False  # whether the engine gives up its memory while a step is learned
    processes: Processes | None = None  # other ones, in which rewards are called; None: this one
    state: RunState = field(default_factory=RunState)
    warn: Callable[[str], None] = warnings.warn
    on_phase: Callable[[str], None] = lambda phase: None  # is told what a step does: "rollout", "learn"
    on_learned: Callable[[int, int], None] = lambda done, total: None  # and how many of its updates are done
    # Groups and batch of the step that is being learned from.
    current_step: tuple[list[RolloutGroup], Batch | None] = field(default=([], None), init=False)
    # Of the newest step: name of an example that nothing learned -> why.
    dropped_examples: Mapping[str, str] = field(default_factory=dict[str, str], init=False)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages of the run, in order, repeats included."""
        return self.method.stages * self.method.repeat

    @property
    def stage(self) -> Stage:
        """The stage of the next step."""
        return self.stages[self.state.place]

    @property
    def done(self) -> bool:
        """True once steps, stages or the token budget are used up."""
        return self._spent or self._late or self.state.step >= self.steps or self.state.place >= len(self.stages)

    @property
    def _spent(self) -> bool:
        return self.budget is not None and self.state.tokens >= self.budget

    @property
    def _late(self) -> bool:
        return self.max_seconds is not None and self.state.seconds >= self.max_seconds

    async def advance(self) -> tuple[dict[str, Any], list[RolloutGroup], Batch | None]:
        """One step. Returns its metrics, its groups, and the batch that was learned from (None where nothing was).

        Where rollouts run ahead, those of later steps are played while this one is learned.
        """
        state, stage, started = self.state, self.stage, time.perf_counter()
        if state.stage_step == 0:
            self._enter(stage)
        runs_ahead = bool(self.runs_ahead(stage) or len(self.ahead))
        self.ahead.start_clock()
        self.on_phase("rollout")
        self._deliver_sampler(stage)
        meter = self.engine.meter if isinstance(self.engine, MeteredEngine) and not runs_ahead else dict[str, float]
        meter()  # what an evaluation took is not this step's
        rollouts = await (self._next_rollouts(stage) if runs_ahead else self._rollouts(stage))
        rolled, took = time.perf_counter(), meter()
        if self.sleeps and isinstance(self.engine, SleepingEngine):
            self.engine.sleep()
        self.on_phase("learn")
        learn = partial(self._learn_from, stage, rollouts)
        metrics, batch = await beside(learn) if runs_ahead else learn()
        learned = time.perf_counter()
        if runs_ahead and not self.ahead.at_once:
            await self.ahead.all_over()
        self._deliver(stage)
        groups, sampled = rollouts.groups, metrics["tokens/sampled"]
        state.tokens += sampled
        record_step(state.history, state.step, groups, batch, metrics)
        step_s = time.perf_counter() - started
        metrics |= {"time/rollout_s": rolled - started, "time/learn_s": learned - rolled, "time/step_s": step_s}
        metrics |= {f"engine/{name}": value for name, value in took.items()}
        metrics["tokens_per_s"] = sampled / max(step_s if runs_ahead else rolled - started, 1e-9)
        if runs_ahead:
            metrics |= self.ahead.figures(batch, state.version - 1, step_s, learned - rolled)
        state.seconds += step_s
        if (why := self._proceed(stage)) and len(self.ahead):
            metrics |= await self._drop_pending(why, metrics)
        metrics |= {"stage": stage.name, "tokens/total": state.tokens}
        return metrics, groups, batch if batch.size("token") else None

    def _learn_from(self, stage: Stage, rollouts: StepRollouts) -> tuple[dict[str, Any], Batch]:
        """Learn from a step's rollouts: its metrics, and the batch that they made."""
        groups = rollouts.groups
        check_scores(groups, self.state.step, self.safety_limits)
        batch, dropped, sampled, self.dropped_examples = self._compose(stage, rollouts.context, groups)
        selected = {f"select/{name}": value for name, value in rollouts.select_metrics.items()}
        metrics = summary(groups) | selected | dict(dropped)
        self.current_step = groups, batch
        metrics |= {"tokens/sampled": sampled, "tokens/learned": sampled - sum(dropped.values())}
        metrics["tokens/in_loss"] = batch.size("token")
        metrics["tokens/generated"] = sum(
            e.cost.get("tokens", 0) for g in groups for e in g.episodes
        )  # less than sampled where drafts were adopted
        taught = self._learn(stage, batch) if batch.size("token") else {}
        count_starved(self.state, stage, taught, dropped, self.safety_limits, self.warn)
        return metrics | taught, batch

    @property
    def settled(self) -> bool:
        """True where the engine holds the learner's weights, so that a checkpoint of the learner is one of the run."""
        return self.state.delivered == self.state.version

    # ---- rollouts

    def step_context(
        self,
        programs: Mapping[str, Block],
        sampling: Sampling,
        where: tuple[object, ...],
        engine: Engine | None,
        find: Callable[[str], Tree] | None = None,
    ) -> StepContext:
        """A context for programs: the run's models, tools and limits. `where`: words of the RNG key of their
        episodes.
        """
        return StepContext(
            engine=engine,
            tokenizer=self.tokenizer,
            model_roles=tuple(self.method.models),
            tools=self.tools,
            sampling=sampling,
            programs=programs,
            seed=self.seed,
            where=where,
            limits=self.limits,
            find=find,
            processes=self.processes,
            stored=dict(self.state.blocks),
        )

    def _stage_context(self, stage: Stage, step: int) -> StepContext:
        sampling = replace(stage.sampling, temperature=self.state.scheduled(stage.sampling.temperature))
        if sampling.max_tokens is None:
            sampling = replace(sampling, max_tokens=self.max_tokens)
        where = ("train", step)
        return self.step_context(stage.programs, sampling, where, None if stage.data else self.engine, self._tree)

    def _tree(self, episode: str) -> Tree:
        """The tree of an episode of another step, which waits to be learned or is in the log."""
        if (found := self.ahead.tree(episode)) is not None:
            return found
        if self.find is None:
            raise unknown("episode", episode, ())
        return self.find(episode)

    def runs_ahead(self, stage: Stage) -> int:
        """By how many versions the rollouts of a stage may run ahead of learning: its staleness."""
        return 0 if stage.data else stage.staleness if self.staleness is None else self.staleness

    async def _rollouts(self, stage: Stage) -> StepRollouts:
        """The rollouts of this step, all of them scored."""
        rollouts = StepRollouts(self.state.step, self._stage_context(stage, self.state.step))
        await self._collect(stage, rollouts, self.state)
        return await self._take(stage, rollouts)

    async def _next_rollouts(self, stage: Stage) -> StepRollouts:
        """The rollouts of this step, where those of later ones are begun as far as they are admitted."""
        state, ahead, size = self.state, self.ahead, max(1, stage.groups)
        room = admit(self.runs_ahead(stage), state.version, size, state.accepted, size * len(ahead)) // size
        last = min(self.steps, state.step - state.stage_step + (self._length(stage) or self.steps))
        seen = view_of(state)
        for step in range(state.step + len(ahead), min(state.step + len(ahead) + room, last)):
            if len(ahead) and self.budget is not None and state.tokens + ahead.known_tokens >= self.budget:
                break  # the tokens that are left are sampled already
            rollouts = StepRollouts(step, self._stage_context(stage, step))
            collect = partial(self._collect, stage, rollouts, replace(seen, step=step))
            ahead.begin(rollouts, collect, state_key(stage.select, f"{stage.name}/select"), state.blocks)
        return await self._take(stage, await ahead.next())

    def restore_ahead(self, stored: Sequence[Mapping[str, Any]]) -> None:
        """Take over the rollouts of later steps that a checkpoint holds."""
        if stored:
            self.ahead.restore(stored, partial(self._stage_context, self.stage))

    async def _take(self, stage: Stage, rollouts: StepRollouts) -> StepRollouts:
        """A step's rollouts when it is their turn to be learned, with the rewards that see all of a step's groups."""
        self.state.accepted += max(1, stage.groups)
        for block in (p for p in stage.reward if whole_step(p)):
            await self._score(stage, block, rollouts.groups, rollouts.context, self.state)
        return rollouts

    async def _drop_pending(self, why: str, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """End the rollouts of later steps, which nothing will learn: how the step's account of tokens changes."""
        dropped = await self.ahead.drop()
        self.state.tokens += dropped
        return {"tokens/sampled": metrics["tokens/sampled"] + dropped, f"dropped/{why}": dropped}

    async def _collect(self, stage: Stage, rollouts: StepRollouts, state: RunState) -> None:
        """Fill in the groups of a step: rounds of requests until select returns none, each group scored as it comes in.

        state: of the run, as this step sees it.
        """
        context, finished_rounds = rollouts.context, list[list[RolloutGroup]]()
        early = [p for p in stage.reward if not whole_step(p)]

        async def scored(group: RolloutGroup) -> None:
            for block in early:
                await self._score(stage, block, [group], context, state)

        while True:
            given = {
                "n": stage.groups,
                "rollouts": stage.rollouts,
                "finished_rounds": finished_rounds,
                "source": self.source,
                "step": state.step,
                "seed": self.seed,
                "log_metrics": rollouts.select_metrics.update,
            }
            requests = _requests(state.call(f"{stage.name}/select", stage.select, given), stage.select)
            if not requests:
                break
            if len(finished_rounds) >= MAX_ROUNDS:
                raise NoTrainingData(
                    f"step {state.step}: {stage.select.name} asked for {MAX_ROUNDS} rounds of requests and wants more; "
                    "its filter may pass nothing"
                )
            finished_rounds.append(await play(context, requests, len(finished_rounds), scored))
        rollouts.groups += [g for round_ in finished_rounds for g in round_]

    async def _score(
        self, stage: Stage, block: Block, groups: Sequence[RolloutGroup], context: StepContext, state: RunState
    ) -> None:
        more: dict[str, Any] = {"history": state.history}
        place = state_key(block, f"{stage.name}/reward.{stage.reward.index(block)}")
        if "state" in block.needs:
            more["state"] = [state.blocks.get(place, initial_state(block))]
        found = await score(block, groups, context, self.safety_limits.reward_seconds, **more)
        if "state" in block.needs:
            state.blocks[place] = more["state"][0]
        owner = {e.id: g for g in groups for e in g.episodes}
        for column, places in found.items():
            for at, verdict in places.items():
                have = owner[at.episode].scores.setdefault(column, {})
                if at in have:
                    raise BadValue(
                        f"two rewards score {column!r} at the same place; join them with weighted(...), or give "
                        "one another name"
                    )
                have[at] = verdict

    # ---- learning

    def _compose(self, stage: Stage, context: StepContext, groups: list[RolloutGroup]) -> Composed:
        return compose_batch(groups, stage, self.learner, context, self.state, self.source)

    def _learn(self, stage: Stage, batch: Batch) -> dict[str, Any]:
        measured = self.engine is not None and not stage.data and self.settled
        mismatch = self._mismatch(batch) if measured else {}
        if measured and self.mismatch_correction is not None:
            batch, figures = self.mismatch_correction.corrected(batch, self.learner, self.state.version)
            mismatch |= figures
        batch.put("learner_version", "batch", np.array([self.state.version]))  # for the log
        measure = partial(step_auc, judges=step_judges(self.current_step[0]), tokenizer=self.tokenizer)
        return mismatch | learn_batch(
            batch, stage, self.learner, self.state, self.lr, self.seed, measure, self.on_learned
        )

    def _mismatch(self, batch: Batch) -> dict[str, float]:
        """The log-prob mismatch of engine and learner, bounded but where a stage samples with other weights."""
        bound = None if self.stage.sampler is not None else self.safety_limits.logprob_mismatch
        return logprob_mismatch(batch, self.learner, self.state, self.ahead.at_once, bound)

    def deliver_all(self) -> None:
        """Deliver every group that the engine holds, as the learner has it: at the start and after a checkpoint is
        read.
        """
        self._deliver_groups(() if self.engine is None else self.engine.groups, keep=True)

    def _deliver_groups(self, names: Collection[str], keep: bool = False) -> None:
        """Deliver groups under the current version, or (keep) under the one that they had."""
        state = self.state
        if self.engine is not None:
            for group in sorted(set(names) & set(self.engine.groups)):
                state.versions[group] = state.versions.get(group, 0) if keep else state.version
                deliver(self.learner, self.engine, group, state.versions[group], self.ahead.at_once)
        state.delivered = state.version

    def _deliver_sampler(self, stage: Stage) -> None:
        """Deliver what a stage samples with in this step, where that is not the learner's weights.

        These are delivered again once the step is learned, so that evaluations are of them.
        """
        if stage.sampler is None or self.engine is None:
            return
        given = {"step": self.state.step, "steps": self.steps, "seed": self.seed}
        for group in sorted({g for u in stage.updates for g in u.params} & set(self.engine.groups)):
            all_given = {**given, "weights": self.learner.weights(group)}
            with user_code(f"{stage.name}/sampler {stage.sampler.name}"):
                others = stage.sampler(**{n: v for n, v in all_given.items() if n in stage.sampler.needs})
            if others:
                deliver(self.learner, self.engine, group, self.state.versions[group], others=others)

    def _deliver(self, stage: Stage) -> None:
        """Deliver the updated groups, once in `sync` updates and at the end of the stage."""
        state = self.state
        state.version += 1
        updated = {g for u in stage.updates for g in u.params}
        followed = {n: w for n, w in self.method.weights.items() if w.follow}
        for name, w in followed.items():
            if state.version % w.every == 0:
                self.learner.copy(name, w.follow or "", w.rate)
        if (state.stage_step + 1) % stage.sync:
            return
        self._deliver_groups(
            updated | {n for n, w in followed.items() if stage.sync > 1 or state.version % w.every == 0}
        )

    # ---- state

    def _enter(self, stage: Stage) -> None:
        # As many as if all stages had this one's number of groups: none is missing, none was accepted in advance.
        self.state.accepted = self.state.version * max(1, stage.groups)
        for target, source in stage.enter.items():
            self.learner.copy(target, source, 1.0)
        if stage.reset:
            self.learner.reset_optimisers(stage.reset)
        self._deliver_groups(stage.enter)

    def _length(self, stage: Stage) -> int | None:
        """How many steps a stage has; None where that is not known before, or as many as the run."""
        last = self.state.place == len(self.stages) - 1  # which goes on as long as the run does, and may be given more
        share = None if last else -(-self.steps // len(self.stages))
        return None if isinstance(stage.until, Block) else share if stage.until is None else stage.until

    def _proceed(self, stage: Stage) -> str:
        """Go on to the next step, and to the next stage where this one is over: then returns why nothing more of it
        will be learned.
        """
        state = self.state
        state.step += 1
        state.stage_step += 1
        state.history.step = state.step
        if isinstance(stage.until, Block):
            over = bool(self.state.call(f"{stage.name}/until", stage.until, {}))
        else:
            length = self._length(stage)
            over = length is not None and state.stage_step >= length
        if (over or self.done) and not self.settled:
            self._deliver_groups(
                {g for u in stage.updates for g in u.params} | {n for n, w in self.method.weights.items() if w.follow}
            )
        why = "budget" if self._spent else "max_seconds" if self._late else "stage_end" if over else ""
        if over:
            state.place += 1
            state.stage_step = 0
        return why


def _requests(given: Any, select: Block) -> list[RolloutRequest]:
    """What a select returned, where that is a list of requests. Raises BadValue."""
    requests = cast("list[Any]", given) if isinstance(given, list | tuple) else [given]
    for request in requests:
        if not isinstance(request, RolloutRequest):
            raise BadValue(f"select {select.name}: must return a list of RolloutRequest, not {type(request).__name__}")
        if not isinstance(request.task, Task):
            raise BadValue(f"select {select.name}: asks for a {type(request.task).__name__}, which is no Task")
    return list(requests)
