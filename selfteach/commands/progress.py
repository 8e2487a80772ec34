"""Progress of a run, from its events: bars with time left on a terminal, plain lines every few seconds elsewhere. Always on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TextIO

from .show import time_of

Event = Mapping[str, Any]


class View(Protocol):
    """How progress is shown."""

    def say(self, text: str) -> None:
        """A line that stays."""
        ...

    def bar(self, name: str, done: float, total: float, note: str = "") -> None:
        """Where something long stands; over when done = total."""
        ...

    def close(self) -> None:
        """Nothing more will come."""
        ...


@dataclass
class Progress:
    """Hears the events of runs and tells a view: the warm start, the steps, each measurement."""

    view: View
    accuracy: float | None = None
    inside: str = ""  # the arm of an experiment that is under way
    budget: int | None = None  # of sampled tokens, where that ends the run

    def __call__(self, event: Event) -> None:
        hear = getattr(self, f"_{event['event']}", None)
        if hear:
            hear(event)

    def _arm(self, e: Event) -> None:
        self.inside = f"{e['arm']} seed {e['seed']}: "
        self.accuracy = None
        self.view.say(f"[{e['number']}/{e['total']}] {e['arm']}, seed {e['seed']}{': finished before, reused' if e['reused'] else ''}")

    def _waiting(self, e: Event) -> None:
        self.view.say(f"waiting for another process that runs the same thing ({e['folder']})")

    def _source(self, e: Event) -> None:
        if not self.inside:
            about = ", ".join(f"{k} {v}" for k, v in e.items() if k not in ("event", "task") and isinstance(v, int | float | str))
            self.view.say(f"task {e['task']}: {about}")

    def _warm_found(self, e: Event) -> None:
        if not self.inside:
            self.view.say("warm start: found in the cache")

    def _warm_step(self, e: Event) -> None:
        loss = f"loss {e['loss']:.3f}" if e.get("loss") is not None else ""
        self.view.bar(f"{self.inside}warm start", e["step"] + 1, e["steps"], loss)

    def _start(self, e: Event) -> None:
        self.budget = e.get("budget")
        if not self.inside or e["resumed"]:
            about = e.get("model", {})
            size = f", model of {about['parameters'] / 1e6:.2f} M parameters" if "parameters" in about else ""
            size += f", which stand still, and {about['adapters'] / 1e6:.2f} M in adapters" if "adapters" in about else ""
            again = f": goes on after step {e['step']}" if e["resumed"] else ""
            self.view.say(f"run {e['folder']}{again}{size}")
            if e.get("memory") and not self.inside:
                self.view.say(f"memory: {e['memory']}")
        if not self.inside and (through := e.get("model", {}).get("through")):
            kind = e["model"]["kind"]
            self.view.say(f"model {kind}: none of selfteach's own families, so it runs through {through}; sampling and learning are slower")

    def _measuring(self, e: Event) -> None:
        when = {"start": "before", "end": "after", "now": "now"}.get(e["when"], e["when"])
        self.view.bar(f"{self.inside}measuring {when}: {e['what']}", e["done"], e["total"])

    def _survey(self, e: Event) -> None:
        figures = e["figures"]
        self.accuracy = figures.get("greedy")
        if e["when"] == "start" and not self.inside and figures.get("accuracy") is not None:
            self.view.say(f"before: greedy {100 * (figures.get('greedy') or 0):.1f} %, sampled {100 * figures['accuracy']:.1f} %")

    def _eval(self, e: Event) -> None:
        self.accuracy = e.get("accuracy")

    def _step(self, e: Event) -> None:
        told = latest(e, self.accuracy)
        if self.budget:
            self.view.bar(f"{self.inside}tokens", min(self.budget, e["tokens/total"]), self.budget, f"step {e['step'] + 1}, {told}")
        else:
            self.view.bar(f"{self.inside}steps", e["step"] + 1, e["steps"], told)

    def _stopping(self, e: Event) -> None:
        self.view.say("stopping after this step (Ctrl-C once more stops at once)")

    def _notice(self, e: Event) -> None:
        self.view.say(f"step {e['step']}: {e['text']}")

    def _warm_stopping(self, e: Event) -> None:
        self.view.say("stopping; an unfinished warm start is not kept")

    def _not_finite(self, e: Event) -> None:
        self.view.say(f"step {e['step']}: {e['why']}")


def latest(e: Event, accuracy: float | None = None) -> str:
    """The newest figures of a step in a few words."""
    out = []
    if e.get("reward") is not None:
        out.append(f"reward {e['reward']:.2f}")
    elif e.get("loss") is not None:
        out.append(f"loss {e['loss']:.3f}")
    if accuracy is not None:
        out.append(f"held-out {100 * accuracy:.0f} %")
    if e.get("length"):
        out.append(f"length {e['length']:.0f}")
    if e.get("calls"):
        out.append(f"calls {e['calls']:.1f}")
    if anew := {k.removeprefix("rewritten/"): v for k, v in e.items() if k.startswith("rewritten/")}:
        out.append("rewritten " + ", ".join(f"{n:.0f} ({why})" for why, n in anew.items()))
    if e.get("gap/mean") is not None:
        out.append(f"gap {e['gap/mean']:.0e}")
    if e.get("tokens/sampled") and e.get("seconds/rollout"):
        out.append(f"{e['tokens/sampled'] / e['seconds/rollout']:,.0f} tok/s")
    return ", ".join(out)


@dataclass
class Lines:
    """Plain lines: the first and last of each bar, and one every few seconds."""

    stream: TextIO
    every: float = 5.0
    clock: Callable[[], float] = time.monotonic
    begun: dict[str, tuple[float, float]] = field(default_factory=dict)
    told: float = float("-inf")

    def say(self, text: str) -> None:
        print(text, file=self.stream, flush=True)

    def bar(self, name: str, done: float, total: float, note: str = "") -> None:
        now = self.clock()
        began, at = self.begun.setdefault(name, (now, done))
        if done < total and now - self.told < self.every:
            return
        self.told = now
        left = f", {time_of((now - began) / (done - at) * (total - done))} left" if at < done < total else ""
        if done >= total:
            del self.begun[name]
        self.say(f"{name} {done:,}/{total:,}{left}{': ' + note if note else ''}")

    def close(self) -> None: ...


class Bars:
    """Live bars of rich, at most one at a time; a finished one leaves its line."""

    def __init__(self, stream: TextIO):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Rich
        from rich.table import Column

        columns = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn(compact=True), TextColumn("left"))
        # only the figures give way where the terminal is narrow
        figures = TextColumn("{task.fields[note]}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"))
        self.rich = Rich(*columns, figures, console=Console(file=stream, highlight=False), refresh_per_second=4, expand=True)
        self.tasks: dict[str, Any] = {}
        self.rich.start()

    def say(self, text: str) -> None:
        from rich.text import Text

        self.rich.console.print(Text(text))

    def bar(self, name: str, done: float, total: float, note: str = "") -> None:
        from rich.markup import escape

        if name not in self.tasks:
            # what came before this call has not been timed, so that a resumed run's time left is its own
            self.tasks[name] = self.rich.add_task(escape(name), total=total, completed=int(done) if done < total else 0, note="")
        self.rich.update(self.tasks[name], completed=done, total=total, note=escape(note))
        if done >= total:
            if "measuring" in name or ": " in name:  # a measurement, or one run of many: what came of it is told elsewhere
                self.rich.remove_task(self.tasks[name])
            del self.tasks[name]

    def close(self) -> None:
        self.rich.stop()


@contextmanager
def watching(stream: TextIO | None = None) -> Iterator[Progress]:
    """An observer for a run that shows progress until the block ends."""
    to = sys.stderr if stream is None else stream
    view: View = Bars(to) if to.isatty() else Lines(to)
    try:
        yield Progress(view)
    finally:
        view.close()
