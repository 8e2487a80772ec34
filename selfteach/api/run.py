"""A run on disk: its metrics, evaluations, rollouts and policy, and going on with it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..analysis.curves import curves_of, figure_of, png_of, run_title
from ..analysis.health import RunWarning, warnings_of
from ..analysis.learning_curve import curve
from ..analysis.scaling_fit import ScalingFit, fit_scaling
from ..configuration import RunConfig, run_config_of
from ..core.errors import BadValue
from ..loop import checkpoint
from ..loop.log import logged_steps, read_events
from ..loop.run_folder import finished_figures
from ..loop.session import Observer, ignore_events
from ..loop.settings import not_placed
from ..model.tokenizer import Tokenizer
from ..training import Outcome, extend
from .launch import Trackers, calling, launch
from .policy import Policy, policy_of
from .rollouts import Rollout, read_rollouts
from .tables import Evaluations, MetricsTable, evaluations_of, metrics_of, metrics_row


@dataclass(repr=False)
class Run(Outcome):
    """A run in its folder, finished or not. What it shows is read from the folder each time, also while it is trained.

        run.metrics["reward/mean"], run.evaluations[40].greedy, run.plot()
        run.policy.generate("2 + 3 =", n=4), run.rollouts(step=3)[0].show()
        run.resume(steps=80), run.save("folder")

    folder, figures, done, seconds, stopped_by: see `selfteach.training.Outcome`
    """

    _policy: Policy | None = field(default=None, init=False, compare=False)

    def __fspath__(self) -> str:
        """Its folder: a run stands where a path of one is asked for, as in `evaluate`."""
        return str(self.folder)

    @property
    def metrics(self) -> MetricsTable:
        """One row for each step, by the names of the log (docs/metrics.md)."""
        return metrics_of(read_events(self.folder / "log"))

    @property
    def evaluations(self) -> Evaluations:
        """Step -> held-out figures after that many steps, with questions and intervals."""
        return evaluations_of(read_events(self.folder / "log"))

    @property
    def warnings(self) -> list[RunWarning]:
        """What the run was warned of, in order: rule, step, until (None: it holds still), text, advice."""
        return warnings_of(read_events(self.folder / "log"))

    @property
    def policy(self) -> Policy:
        """The policy of the newest checkpoint, to sample from; kept until there is a newer one.

        Raises BadValue where there is no checkpoint.
        """
        newest = policy_of(self.folder)
        if self._policy is None or self._policy.folder != newest.folder:
            self._policy = newest
        return self._policy

    @property
    def steps_done(self) -> int:
        """Steps that the newest checkpoint has behind it; 0 without one."""
        folder = checkpoint.find(self.folder)
        if folder is None or folder.name.isdigit():
            return 0 if folder is None else int(folder.name)
        return checkpoint.step_of(folder)  # a copy that has a folder in place of the link

    def rollouts(self, step: int) -> list[Rollout]:
        """The rollouts of a step, as the log holds them; steps count from 0, as in `metrics`.

        Raises BadValue for a step that is not in the log.
        """
        known = logged_steps(self.folder / "log")
        step = step if step >= 0 else max(known, default=-1) + 1 + step
        file = self.folder / "log" / "rollouts" / f"{step:06d}.npz"
        if not file.is_file():
            there = f"it has steps {known[0]} to {known[-1]}" if known else "it has none yet"
            raise BadValue(f"{self.folder}: the log has no rollouts of step {step}; {there}")
        return read_rollouts(file, self._tokenizer())

    def scaling_fit(self, kind: Literal["greedy", "sampled"] = "greedy") -> ScalingFit:
        """The sigmoid of held-out accuracy over steps (ScaleRL, arXiv 2510.13786): where the run tends to, how fast.

            fit = run.scaling_fit(); fit.asymptote, fit(1000)      # what 1,000 steps are foretold to reach

        Raises BadValue for fewer than three evaluations after the one before training (`--eval-every`).
        """
        fit = fit_scaling(curve(read_events(self.folder / "log"), kind))
        if fit is None:
            raise BadValue(f"{self.folder}: too few evaluations for a curve; train with --eval-every")
        return fit

    def plot(self) -> Any:
        """A matplotlib figure of the run's curves: reward, held-out accuracy, length ...; a notebook shows it,
        `.savefig(FILE)` writes it.

        Raises BadValue where matplotlib is not installed, or nothing is logged yet.
        """
        curves = curves_of(read_events(self.folder / "log"), run_title(self.folder))
        if not curves.steps and not curves.after:
            raise BadValue(f"{self.folder}: nothing to plot yet, it has no step behind it; go on with run.resume()")
        figure = figure_of(curves)
        figure._repr_png_ = lambda: png_of(figure)  # without pyplot no notebook knows how to show it
        return figure

    def resume(
        self,
        steps: int | None = None,
        observer: Observer = ignore_events,
        *,
        budget: int | None = None,
        max_seconds: float | None = None,
        trust: bool = False,
        progress: bool = True,
        callbacks: Sequence[Callable[[Step], object]] = (),
        log: Trackers = (),
    ) -> Run:
        """Go on from the newest checkpoint, to `steps` in all; returns the run as it is then.

        steps, budget, max_seconds  when it ends, in place of its own settings; with none of them, or the same, a
                                    finished run stays as it is
        trust                       run the files that its config.json names, even if this user has not run them here
        log                         as in `train`; trackers that the run has used before go on by themselves
        others                      as in `train`

        A learning rate that falls (`decay`) falls over the new number of steps. Raises BadValue for fewer steps than
        are done.
        """
        run_config = self.ending(trust, steps=steps, budget=budget, max_seconds=max_seconds)
        outcome = launch(run_config, self.folder, observer, True, progress, self.on_step(callbacks), log)
        return Run(**vars(outcome))

    def ending(self, trust: bool = False, **ends: Any) -> RunConfig:
        """Its configuration, with other settings of when it ends (steps, budget, max_seconds) or of where it is carried
        out (learner, world, cluster, rollout_workers ...; None: as they are), which its config.json then has. Raises
        BadValue for fewer steps than are done.
        """
        run_config = run_config_of(self.folder, trust)
        if ends.get("cluster") == "none":  # and what was for a cluster
            ends = {**not_placed(), **{n: v for n, v in ends.items() if v is not None}}
        ends = {n: v for n, v in ends.items() if v is not None and v != getattr(run_config.settings, n)}
        if (steps := ends.get("steps")) is not None and steps < self.steps_done:
            raise BadValue(
                f"resume: steps={steps}, and {self.folder} has {self.steps_done} behind it; give more to go on, or"
                " train again in a new folder"
            )
        return extend(self.folder, run_config, **ends) if ends else run_config

    def save(self, folder: str | Path) -> Path:
        """Write the policy to a new folder in the Hub's layout, which transformers, vLLM and `--model` read.

        Raises BadValue where something is there already, or there is no checkpoint.
        """
        return self.policy.save(folder)

    def on_step(self, callbacks: Sequence[Callable[[Step], object]]) -> Observer:
        """A function of a step's event that calls functions of a Step. Raises BadValue for one that is no function."""
        return calling(callbacks, lambda event: step_of(self, event), self.folder)

    def _tokenizer(self) -> Tokenizer:
        folder = checkpoint.find(self.folder)
        if folder is None:
            raise BadValue(f"{self.folder}: has no checkpoint yet, and so no tokenizer to read its rollouts with")
        return Tokenizer.load(folder)

    def __repr__(self) -> str:
        state = f"done after {self.steps_done} steps" if self.done else f"not finished, {self.steps_done} steps"
        greedy = [f"{100 * e.greedy.value:.1f} %" for e in self.evaluations.values() if e.greedy]
        accuracy = ", greedy " + " -> ".join(dict.fromkeys((greedy[0], greedy[-1]))) if greedy else ""
        return f"<Run {' '.join(run_title(self.folder).split())}: {state}{accuracy}; {self.folder}>"


@dataclass(frozen=True)
class Step:
    """One step of a run, whole, with its evaluation and checkpoint where they are due.

    run      that it belongs to
    number   from 0
    metrics  by the names of the log (docs/metrics.md)
    """

    run: Run
    number: int
    metrics: dict[str, Any]

    @property
    def rollouts(self) -> list[Rollout]:
        """The episodes of its batch, with scores and advantages."""
        return self.run.rollouts(self.number)


def step_of(run: Run, event: Any) -> Step:
    """The step of an event."""
    return Step(run, event["step"], metrics_row(event))


def load(folder: str | Path) -> Run:
    """The run in a folder, finished or not. None of its code is run.

    Raises BadValue where the folder holds no run.
    """
    at = Path(folder)
    try:
        config = json.loads((at / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        config = {}
    if "method" not in config:
        raise BadValue(
            f"{at}: holds no run (there is no config.json of one); give the folder that train printed at its start"
        )
    if (figures := finished_figures(at)) is not None:
        return Run(at, figures, True, figures.get("seconds", {}).get("all", 0.0))
    found = [e["figures"] for e in read_events(at / "log") if e["event"] == "final_eval" and e["when"] == "start"]
    return Run(at, {"before": found[-1] if found else {}}, False, 0.0)
