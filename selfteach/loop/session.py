"""A loop in a run folder: with its log, checkpoints, evaluations, and a clean stop on Ctrl-C or SIGTERM."""

from __future__ import annotations

import copy
import gc
import os
import signal
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..core.batch import Batch
from ..core.blocks import Block
from ..core.contexts import History
from ..core.errors import BadCheckpoint, EngineLost, NotFinite, Terminated
from ..core.protocols import ClosableEngine
from ..core.task import Sampling, Task
from ..core.tree import RolloutGroup
from ..core.user_code import end_fork, guarded
from ..model import files, lora, peft_files
from ..model.base import Model
from ..model.tokenizer import Tokenizer
from . import checkpoint
from .evaluate import Result, evaluate, failure_lines
from .log import RunLog
from .made_by import differences
from .rollout_records import sample_rows
from .run import Loop
from .state import RunState
from .text_limit import CUT, cut_line

Observer = Callable[[Mapping[str, Any]], None]


def ignore_events(event: Mapping[str, Any]) -> None:
    """An observer that does nothing."""


Watch = Callable[[Mapping[str, Any]], Iterable[Mapping[str, Any]]]  # an event -> events that follow from it
SHOWN_ROLLOUTS = 4  # of a step, that the observer gets as text
LONG = 3.0  # seconds of learning, after which the observer hears how far it is


@dataclass
class Session:
    """A loop in a folder. `observer` gets every event; with `folder` None nothing is written (warm starts, tests).

    judge   says which held-out answers are right; None: they cannot be judged
    reward  a user's own, which evaluations measure besides
    watch   gives warnings that follow from an event; they are logged and shown, and change nothing
    """

    loop: Loop
    judge: Block | None
    folder: Path | None = None
    checkpoint_every: int = 10
    keep: int = 2
    eval_every: int = 0
    eval_tasks: int = 64
    eval_samples: int = 0
    test_order: Sequence[int] | None = None  # of the held-out tasks, where they are not taken from the first
    rollouts: bool = True
    observer: Observer = lambda event: None
    base: str = ""  # the adapters' base model, for their config
    reward: Block | None = None
    watch: Watch = lambda event: ()
    made_by: Mapping[str, Any] = field(default_factory=dict[str, Any])  # kernels and files of the user (made_by.py)
    log: RunLog | None = field(default=None, init=False)
    stop: StopRequest = field(default_factory=lambda: StopRequest())
    _cut_was_said: bool = field(default=False, init=False)
    _is_whole: bool = field(default=True, init=False)  # whether the last step was ended
    _saved: int = field(default=-1, init=False)  # the step of the last checkpoint
    _phase_since: float = field(default=0.0, init=False)  # by time.monotonic()
    _reports_learning: bool = field(default=False, init=False)  # whether the observer hears of this step
    _emitting: Any = field(default_factory=threading.RLock, init=False)  # a learner may warn from a thread of its own

    def __post_init__(self) -> None:
        self.loop.on_phase, self.loop.on_learned = self._phase, self._learned
        for part in (self.loop, self.loop.learner, self.loop.engine, self.loop.processes):
            if hasattr(part, "warn"):
                part.warn = lambda text: self.emit("notice", step=self.loop.state.step, text=text)  # type: ignore[union-attr]

    @property
    def model(self) -> Model:
        """The policy's trunk, as the learner has it."""
        return self.loop.learner.trunk("policy")

    @property
    def _remote(self) -> bool:
        """Whether the engine is another process, which can be lost."""
        engine = self.loop.engine
        return engine is not None and engine.capabilities.remote

    @property
    def structure(self) -> Model:
        """The policy's trunk for its shape alone."""
        return self.loop.learner.structure("policy")

    @property
    def stopping(self) -> bool:
        """Whether a stop after the current step was requested."""
        return bool(self.stop.signal)

    @property
    def adapted(self) -> bool:
        """Whether the policy is a base with adapters."""
        return bool(lora.lora_layers(self.structure))

    def open(self) -> bool:
        """Load the folder's newest checkpoint; True where there was one."""
        if self.folder is None:
            return False
        checkpoint.clear_unfinished(self.folder)
        found = checkpoint.read(self.folder)
        offset = None
        if found is not None:
            at, _, state = found
            if not (self.folder / "last").is_dir():
                self.emit("notice", step=state["step"], text=f"{self.folder / 'last'} is missing: continues with {at}")
            if Tokenizer.load(at).fingerprint != self.loop.tokenizer.fingerprint:
                raise BadCheckpoint(
                    f"{at / 'tokenizer.json'}: not the tokenizer that this run's model started with; its ids "
                    "would mean other tokens"
                )
            self._put_policy(at)
            self.loop.learner.load(at, skip=("policy",))
            self.loop.state = unpack(state, at / "state.json")
            self.loop.restore_ahead(state.get("ahead", ()))
            self._saved = self.loop.state.step
            # Events of a finished run after its last checkpoint are its evaluation, which is not repeated.
            offset = None if self.loop.done else state["log"]
            self.loop.deliver_all()
        self.log = RunLog(self.folder / "log", 0 if found is None else offset)
        self.log.remove_from(self.loop.state.step)
        if found is not None and self.made_by:
            for text in differences(found[2].get("made_by", {}), self.made_by):
                self.emit("notice", step=self.loop.state.step, text=text)
        if found is not None and not self.log.missing and self.log.changed(found[2]["log"], found[2].get("log_hash")):
            text = f"{self.log.file}: changed since the checkpoint was written; figures and curves of earlier steps"
            self.emit("notice", step=self.loop.state.step, text=f"{text} may be wrong (no weight depends on it)")
        if self.log.missing:
            text = f"{self.log.file}: {self.log.missing} bytes shorter than when the checkpoint was written"
            self.emit("notice", step=self.loop.state.step, text=f"{text}; earlier steps are missing from it")
        if found is None:
            self.save()
        return found is not None

    def restore(self, at: Path, state: Mapping[str, Any]) -> None:
        """Take all weights and the loop's state from a checkpoint in the folder `at`, to measure it."""
        self._put_policy(at)
        self.loop.learner.load_weights(at, skip=("policy",))
        self.loop.state = unpack(state, at / "state.json")
        self.loop.deliver_all()

    def _put_policy(self, at: Path) -> None:
        """Set the policy's weights, or its adapters, to those of a checkpoint."""
        if self.adapted:
            adapter = at / "adapter"
            self.loop.learner.put("policy", peft_files.read_factors(adapter), str(adapter / peft_files.WEIGHTS))
        else:
            self.loop.learner.put("policy", files.load_weights(at, self.structure), str(at / "model.safetensors"))

    def save(self) -> None:
        """Write a checkpoint; with LoRA it holds the adapters, and the merged model where the run is done."""
        if self.folder is None:
            return
        loop = self.loop

        def fill(folder: Path) -> None:
            loop.tokenizer.save(folder)
            model = self.model
            if self.adapted:
                peft_files.save(folder / "adapter", model, self.base)
            if loop.done or not self.adapted:
                files.save(folder, lora.merged_copy(model) if self.adapted else model, loop.tokenizer)
            del model
            loop.learner.save(folder, skip=("policy",))

        state = {**asdict(loop.state), "log": self.log.offset if self.log else 0, "made_by": dict(self.made_by)}
        state["log_hash"] = self.log.hash if self.log else None
        if len(loop.ahead):
            state["ahead"], state["blocks"] = loop.ahead.stored(loop.state.blocks)
        checkpoint.write(self.folder, loop.state.step, state, fill, self.keep)
        self._saved = loop.state.step

    async def run(self, on_step: Observer = lambda event: None) -> None:
        """Step until the method is done or a stop is requested; ends with a checkpoint, except on an error.

        on_step  is called with the event of each step once it is whole
        """
        process = os.getpid()
        with self.stop_on_signals():
            async with aclosing(self.steps()) as steps:
                async for event in steps:
                    try:
                        on_step(event)
                    finally:
                        end_fork(process)

    async def steps(self) -> AsyncGenerator[Mapping[str, Any]]:
        """The event of each step, once its evaluation and its checkpoint, where they are due, are done."""
        loop, started = self.loop, time.monotonic()
        first, due = loop.state.step, False
        gc.collect()  # a warm start, say, which would be kept otherwise
        with frozen_heap(), closing_ahead(loop):
            while not loop.done and not (self.stopping and loop.settled):
                step, self._is_whole = loop.state.step, False
                before = copy.deepcopy(loop.state) if self._remote else None
                try:
                    metrics, groups, batch = await guarded(loop.advance())
                except EngineLost:
                    if before is not None and loop.state.version == before.version:  # lost in the rollouts
                        loop.state, self._is_whole = before, True
                        self.leave()
                    raise
                except NotFinite as error:
                    if self.log:  # whatever the settings: the error names these samples
                        self.log.rollouts(step, *loop.current_step)
                    self.emit("not_finite", step=step, why=str(error))
                    raise
                if self.log and self.rollouts:
                    self.log.rollouts(step, groups, batch, loop.dropped_examples)
                event = {"step": step, "steps": loop.steps, "first": first, "seconds": time.monotonic() - started}
                event |= metrics
                self.emit("step", **event)
                self._show_rollouts(step, groups, batch)
                self._say_cut(metrics.get(f"rollout/{CUT}", 0))
                if self.eval_every and loop.state.step % self.eval_every == 0 and not loop.done:
                    self._phase("evaluate")
                    result = await self.measure(
                        k=1, tasks=self.eval_tasks, greedy=True, where=("eval", loop.state.step)
                    )
                    asked = {"questions": sum(map(bool, result.scored)), "samples": self.eval_samples}
                    self.emit("eval", step=loop.state.step, **asked, **await self._with_samples(result))
                due = due or loop.done or self.stopping or loop.state.step % self.checkpoint_every == 0
                if self.folder and due and loop.settled:
                    self._phase("checkpoint")
                    self.save()
                    due = False
                self._is_whole = True
                yield event
            self.leave()  # where the stop was requested since the last step ended

    async def close(self) -> None:
        """Let go of other processes: those that rewards are called in, and an engine's connections, files, a server."""
        if isinstance(self.loop.engine, ClosableEngine):
            await self.loop.engine.close()
        if self.loop.processes is not None:
            self.loop.processes.close()

    def leave(self) -> None:
        """Write a checkpoint of where it is, unless that is the newest one or inside a step."""
        if self._is_whole and self.loop.settled and self._saved != self.loop.state.step:
            self.save()

    async def _with_samples(self, greedy: Result) -> dict[str, float]:
        """The figures of a greedy evaluation; where samples are asked for, with `greedy` and `sampled` accuracy."""
        if not self.eval_samples:
            return greedy.figures()
        where = ("eval_samples", self.loop.state.step)
        result = await self.measure(k=self.eval_samples, tasks=self.eval_tasks, where=where)
        both = {"failed": float(greedy.failed + result.failed), "unscored": float(greedy.unscored + result.unscored)}
        rewards = {"reward_greedy": greedy.reward, "reward_sampled": result.reward} if self.reward is not None else {}
        accuracies = {"greedy": greedy.accuracy, "sampled": result.accuracy} if self.judge is not None else {}
        return {**greedy.figures(), **both, **accuracies, **rewards}

    def test_tasks(self) -> list[Task]:
        """The held-out tasks, in the order in which they are taken."""
        test = self.loop.source.test
        return list(test) if self.test_order is None else [test[i] for i in self.test_order]

    async def measure(
        self,
        *,
        k: int,
        tasks: int,
        greedy: bool = False,
        program: Block | None = None,
        where: tuple[object, ...] = ("eval",),
        wave: int = 256,
    ) -> Result:
        """Evaluate a program (the stage's own unless given) on the first held-out tasks (`test_tasks`)."""
        return await self.measure_tasks(
            self.test_tasks()[:tasks], k=k, greedy=greedy, program=program, where=where, wave=wave
        )

    async def measure_tasks(
        self,
        tasks: Any,
        *,
        k: int,
        greedy: bool = False,
        program: Block | None = None,
        where: tuple[object, ...] = ("eval",),
        wave: int = 256,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> Result:
        """Evaluate a program on tasks, `k` samples each, about `wave` episodes at a time."""
        loop = self.loop
        stage = loop.stages[min(loop.state.place, len(loop.stages) - 1)]
        temperature = 0.0 if greedy else loop.state.scheduled(stage.sampling.temperature)
        sampling = Sampling(temperature=temperature, max_tokens=loop.max_tokens)
        main = program or loop.method.eval_program(stage)
        with frozen_heap():
            result = await evaluate(
                loop.step_context({"main": main}, sampling, where, loop.engine),
                list(tasks),
                self.judge,
                k,
                max(1, wave // k),
                on_progress,
                loop.safety_limits.unscored,
                loop.safety_limits.reward_seconds,
                self.reward,
                bool(loop.source.defaults.get("words")),
            )
        if text := failure_lines(result, len(result.tasks) * k):
            self.emit("notice", step=loop.state.step, text=f"evaluation: {text}")
        self._say_cut(result.cut_text)
        return result

    def _say_cut(self, characters: float) -> None:
        """Say once that text of tools was cut; how much, each step's metrics say."""
        if characters and not self._cut_was_said:
            self._cut_was_said = True
            self.emit("notice", step=self.loop.state.step, text=cut_line(characters))

    def emit(self, event: str, **values: Any) -> None:
        """Log an event and show it to the observer, with the warnings that follow from it."""
        with self._emitting:
            if self.log:
                self.log.event(event, **values)
            self._observe({"event": event, **values})
            for warning in self.watch({"event": event, **values}):
                self.emit(**warning)

    def _observe(self, event: Mapping[str, Any]) -> None:
        process = os.getpid()
        try:
            with self._emitting:
                self.observer(event)
        finally:
            end_fork(process)

    def _phase(self, phase: str) -> None:
        """Tell the observer what is done now; it is not logged."""
        self._phase_since = time.monotonic()
        self._observe({"event": "phase", "phase": phase, "step": self.loop.state.step})

    def _learned(self, done: int, total: int) -> None:
        """Tell the observer how far a step's learning is, where that takes long; it is not logged."""
        was_long = self._reports_learning
        self._reports_learning = done < total and (was_long or time.monotonic() - self._phase_since > LONG)
        if self._reports_learning or was_long:
            self._observe({"event": "learning", "step": self.loop.state.step, "done": done, "total": total})

    def _show_rollouts(self, step: int, groups: Sequence[RolloutGroup], batch: Batch | None) -> None:
        """Give the observer some rollouts of a step as text, the best first, the worst last; the log has them all."""
        if self.folder is not None:
            rows = sample_rows(groups, batch, self.loop.tokenizer, SHOWN_ROLLOUTS)
            self._observe({"event": "rollouts", "step": step, "rows": rows})

    @contextmanager
    def stop_on_signals(self) -> Generator[None]:
        """Ctrl-C or SIGTERM requests a stop after the current step; a second one stops at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def stop(number: int, *_: Any) -> None:
            if not self.stop.first(number, self.observer):
                raise interruption(number)

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@dataclass
class StopRequest:
    """Whether a run is asked to stop after its current step, and by which signal."""

    signal: int = 0

    def first(self, number: int, observer: Observer) -> bool:
        """Request the stop, and say so; False where it is requested already."""
        if self.signal:
            return False
        self.signal = int(number)
        observer({"event": "stopping"})
        return True


def interruption(number: int) -> KeyboardInterrupt:
    """The exception for a signal that asked to stop."""
    return Terminated() if number == signal.SIGTERM else KeyboardInterrupt()


@contextmanager
def frozen_heap() -> Generator[None]:
    """Leave out what there is now when garbage is collected: the objects of all imported modules, which live on anyway.

    To walk over them takes a tenth of a second, each few steps of a small run. Where a heap is frozen already, nothing
    more is: what has been made since could never be collected. (`gc.get_freeze_count` would walk over them as well.)
    """
    global _heap_is_frozen
    if _heap_is_frozen:
        yield
        return
    gc.freeze()
    _heap_is_frozen = True
    try:
        yield
    finally:
        _heap_is_frozen = False
        gc.unfreeze()


_heap_is_frozen = False


@contextmanager
def closing_ahead(loop: Loop) -> Generator[None]:
    """End at the end of a `with` what is played ahead; a checkpoint has what is over."""
    try:
        yield
    finally:
        loop.ahead.cancel()


def unpack(state: Mapping[str, Any], file: Path) -> RunState:
    """The loop's state from a checkpoint's. Raises BadCheckpoint for one of other fields."""
    known = {k: v for k, v in state.items() if k not in ("log", "log_hash", "history", "made_by", "ahead")}
    try:
        return RunState(**known, history=History(**state["history"]))
    except (KeyError, TypeError) as error:
        raise BadCheckpoint(f"{file}: not a state that this selfteach wrote ({error})") from error
