"""Progress of a run from its events, on stderr: live bars on a terminal, plain lines every few seconds elsewhere; in a
notebook in the cell.
"""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol, TextIO, cast

Event = Mapping[str, Any]
RE_RENDERED = "rollout/re_rendered/"


class View(Protocol):
    """How progress is shown."""

    def line(self, text: str) -> None:
        """Show a line that stays."""
        ...

    def bar(self, name: str, done: float, total: float, note: str = "") -> None:
        """Show how far something long is; it is over when done = total."""
        ...

    def close(self) -> None:
        """End the display."""
        ...


@dataclass
class Progress:
    """An observer that shows the events of runs in a view: warm start, steps, evaluations."""

    view: View
    accuracy: float | None = None
    reward: float | None = None  # held out, of the user's own
    arm: str = ""  # of an experiment: name and seed of the run in progress
    budget: int | None = None  # of sampled tokens, where that ends the run

    def __call__(self, event: Event) -> None:
        """Show one event, by the method named `_` and its kind; an event without such a method is not shown."""
        if "run" in event:  # one of several at once
            self.arm = f"{event['run']}: "
        show = getattr(self, f"_{event['event']}", None)
        if show:
            show(event)

    def _arm(self, e: Event) -> None:
        self.arm = f"{e['arm']} seed {e['seed']}: "
        self.accuracy = self.reward = None
        self.view.line(
            f"[{e['number']}/{e['total']}] {e['arm']}, seed"
            f" {e['seed']}{': finished before, read back' if e['reused'] else ''}"
        )

    def _differences(self, e: Event) -> None:
        for arm, rows in e["arms"].items():
            for d in rows:
                why = {"idea": "the idea", "explained": d["because"], "unexplained": "not explained"}[d["kind"]]
                self.view.line(f"{arm} differs in {d['row']}: {d['other']}; self: {d['own']} ({why})")

    def _look(self, e: Event) -> None:
        self.arm = ""
        self.view.line(f"after {e['seeds']} seeds: {e['verdict']}")

    def _part(self, e: Event) -> None:
        self.arm = ""
        self.view.line(f"{e['part']} is measured: {e['why']}")

    def _out_of_time(self, e: Event) -> None:
        self.view.line(f"{e['hours']:g} hours are spent; the same command goes on from here")

    def _worker_died(self, e: Event) -> None:
        self.view.line(f"{e['run']}: its process died ({e['why']}){'; it is tried once more' if e['again'] else ''}")

    def _waiting(self, e: Event) -> None:
        self.view.line(f"waiting for another process that does the same run ({e['folder']})")

    def _source(self, e: Event) -> None:
        if not self.arm:
            about = ", ".join(
                f"{k} {v}" for k, v in e.items() if k not in ("event", "task") and isinstance(v, int | float | str)
            )
            self.view.line(f"task {e['task']}: {about}")

    def _note(self, e: Event) -> None:
        if not self.arm:
            self.view.line(e["text"])

    def _warm_found(self, e: Event) -> None:
        if not self.arm:
            self.view.line("warm start: read from the cache")

    def _warm_step(self, e: Event) -> None:
        loss = f"loss {e['policy/loss']:.3f}" if e.get("policy/loss") is not None else ""
        self.view.bar(f"{self.arm}warm start", e["step"] + 1, e["steps"], loss)

    def _start(self, e: Event) -> None:
        self.budget = e.get("budget")
        if not self.arm or e["resumed"]:
            about = e.get("model", {})
            size = f", model of {about['parameters'] / 1e6:.2f} M parameters" if "parameters" in about else ""
            size += f", frozen, and {about['adapters'] / 1e6:.2f} M in adapters" if "adapters" in about else ""
            again = f": continues after step {e['step']}" if e["resumed"] else ""
            self.view.line(f"run {e['folder']}{again}{size}")
            if e.get("memory") and not self.arm:
                self.view.line(f"memory: {e['memory']}")
        self._kernels(e)
        if not self.arm and (backend := e.get("model", {}).get("backend")):
            kind = e["model"]["kind"]
            self.view.line(
                f"model {kind}: not one of selfteach's own families, so it runs through {backend}; sampling and"
                " learning are slower"
            )

    def _kernels(self, e: Event) -> None:
        by_torch = {k: how for k, how in e.get("kernels", {}).items() if how.startswith("torch: ")}
        if by_torch and not self.arm:
            whys = "; ".join(dict.fromkeys(how.removeprefix("torch: ") for how in by_torch.values()))
            self.view.line(f"kernels: {', '.join(by_torch)} computed by torch, slower ({whys})")

    def _measuring(self, e: Event) -> None:
        when = {"start": "before", "end": "after", "now": "now"}.get(e["when"], e["when"])
        self.view.bar(f"{self.arm}measuring {when}: {e['what']}", e["done"], e["total"])

    def _final_eval(self, e: Event) -> None:
        figures = e["figures"]
        self.accuracy, self.reward = figures.get("greedy"), figures.get("reward_greedy")
        if e["when"] != "start" or self.arm:
            return
        if figures.get("reward") is not None:
            self.view.line(f"before: reward {figures['reward_greedy']:.3g} greedy, {figures['reward']:.3g} sampled")
        if figures.get("accuracy") is not None:
            self.view.line(
                f"before: greedy {100 * (figures.get('greedy') or 0):.1f} %, sampled {100 * figures['accuracy']:.1f} %"
            )

    def _eval(self, e: Event) -> None:
        self.accuracy, self.reward = e.get("accuracy"), e.get("reward")

    def _step(self, e: Event) -> None:
        summary = step_summary(e, self.accuracy, self.reward)
        if self.budget:
            self.view.bar(
                f"{self.arm}tokens",
                min(self.budget, e["tokens/total"]),
                self.budget,
                f"step {e['step'] + 1}, {summary}",
            )
        else:
            self.view.bar(f"{self.arm}steps", e["step"] + 1, e["steps"], summary)

    def _stopping(self, e: Event) -> None:
        self.view.line("stopping after this step (Ctrl-C once more stops at once)")

    def _notice(self, e: Event) -> None:
        self.view.line(f"step {e['step']}: {e['text']}")

    def _warm_stopping(self, e: Event) -> None:
        self.view.line("stopping; an unfinished warm start is not saved")

    def _not_finite(self, e: Event) -> None:
        self.view.line(f"step {e['step']}: {e['why']}")


def step_summary(e: Event, accuracy: float | None = None, reward: float | None = None) -> str:
    """The main metrics of a step as text; accuracy and reward: held out."""
    out: list[str] = []
    if e.get("reward/mean") is not None:
        out.append(f"reward {e['reward/mean']:.2f}")
    elif e.get("policy/loss") is not None:
        out.append(f"loss {e['policy/loss']:.3f}")
    if reward is not None:
        out.append(f"held-out reward {reward:.2f}")
    if accuracy is not None:
        out.append(f"held-out {100 * accuracy:.0f} %")
    if e.get("rollout/length_mean"):
        out.append(f"length {e['rollout/length_mean']:.0f}")
    if e.get("rollout/tool_calls_mean"):
        out.append(f"calls {e['rollout/tool_calls_mean']:.1f}")
    if re_rendered := {k.removeprefix(RE_RENDERED): v for k, v in e.items() if k.startswith(RE_RENDERED)}:
        out.append("re-rendered " + ", ".join(f"{n:.0f} ({why})" for why, n in re_rendered.items()))
    if e.get("policy/logprob_mismatch_mean") is not None:
        out.append(f"mismatch {e['policy/logprob_mismatch_mean']:.0e}")
    if e.get("tokens_per_s"):
        out.append(f"{e['tokens_per_s']:,.0f} tok/s")
    return ", ".join(out)


def format_seconds(seconds: float | None) -> str:
    """Seconds as text: 48 s, 2 min 05 s, 1 h 10 min.

    >>> format_seconds(48.2), format_seconds(125), format_seconds(4200)
    ('48 s', '2 min 05 s', '1 h 10 min')
    """
    if seconds is None:
        return "-"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return (
        f"{whole // 60} min {whole % 60:02d} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    )


@dataclass
class Lines:
    """A view of plain lines: the first and last of each bar, and one every few seconds."""

    stream: TextIO
    every: float = 5.0
    clock: Callable[[], float] = time.monotonic
    begun: dict[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    last_shown: float = float("-inf")

    def line(self, text: str) -> None:
        """Print a line."""
        print(text, file=self.stream, flush=True)

    def bar(self, name: str, done: float, total: float, note: str = "") -> None:
        """Print a line where it is the first, the last, or due."""
        now = self.clock()
        began, first = self.begun.setdefault(name, (now, done))
        if done < total and now - self.last_shown < self.every:
            return
        self.last_shown = now
        left = (
            f", {format_seconds((now - began) / (done - first) * (total - done))} left" if first < done < total else ""
        )
        if done >= total:
            del self.begun[name]
        self.line(f"{name} {done:,}/{total:,}{left}{': ' + note if note else ''}")

    def close(self) -> None:
        """Nothing is left to end."""


class Bars:
    """A view of live bars by rich, at most one at a time; a finished one leaves its line."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Rich
        from rich.table import Column

        columns = (
            TextColumn("{task.description}"),
            BarColumn(20),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("left"),
        )
        # only the metrics are cut where the terminal is narrow
        figures = TextColumn("{task.fields[note]}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"))
        self.rich = Rich(
            *columns, figures, console=Console(file=stream, highlight=False), refresh_per_second=4, expand=True
        )
        self.tasks: dict[str, Any] = {}
        self.rich.start()

    def line(self, text: str) -> None:
        """Print a line above the bar."""
        from rich.text import Text

        self.rich.console.print(Text(text))

    def bar(self, name: str, done: float, total: float, note: str = "") -> None:
        """Draw or move the bar of this name."""
        from rich.markup import escape

        if name not in self.tasks:
            # work done before this call was not timed: without it a resumed run's time left is right
            self.tasks[name] = self.rich.add_task(
                escape(name), total=total, completed=int(done) if done < total else 0, note=""
            )
        self.rich.update(self.tasks[name], completed=done, total=total, note=escape(note))
        if done >= total:
            if "measuring" in name or ": " in name:  # an evaluation, or one run of many: its result is shown elsewhere
                self.rich.remove_task(self.tasks[name])
            del self.tasks[name]

    def close(self) -> None:
        """Take the bars away."""
        self.rich.stop()


class Cell:
    """A view in a notebook's cell: one bar at a time, drawn in its place; lines are printed."""

    def __init__(self, every: float = 0.25, clock: Callable[[], float] = time.monotonic) -> None:
        self.every, self.clock = every, clock
        self.name, self.handle, self.last_shown = "", cast("Any", None), float("-inf")

    def line(self, text: str) -> None:
        """Print a line."""
        print(text, flush=True)

    def bar(self, name: str, done: float, total: float, note: str = "") -> None:
        """Draw or move the bar of this name; one that is due, or over."""
        now = self.clock()
        if done < total and name == self.name and now - self.last_shown < self.every:
            return
        if name != self.name and "measuring" not in self.name:
            self.handle = None  # the bar before it stays
        self.name, self.last_shown = name, now
        text = f"{name} {done:,}/{total:,}{': ' + note if note else ''}"
        bar = f'<progress value="{done}" max="{total}"></progress> {html.escape(text)}'
        bundle = {"text/plain": text, "text/html": bar}
        if self.handle is None:
            self.handle = import_module("IPython.display").display(bundle, raw=True, display_id=True)
        else:
            self.handle.update(bundle, raw=True)

    def close(self) -> None:
        """Nothing is left to end."""


def in_notebook() -> bool:
    """Whether this runs in a notebook's kernel, which shows HTML."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and getattr(shell, "kernel", None) is not None


def show_html(html_text: str, text: str) -> None:
    """Show HTML in a notebook; `text` where only that can be shown."""
    import_module("IPython.display").display({"text/html": html_text, "text/plain": text}, raw=True)


@contextmanager
def show_progress(stream: TextIO | None = None) -> Generator[Progress]:
    """An observer that shows the progress of runs until the block ends; on stderr, or in a notebook's cell."""
    to = sys.stderr if stream is None else stream
    view: View = Cell() if stream is None and in_notebook() else Bars(to) if to.isatty() else Lines(to)
    try:
        yield Progress(view)
    finally:
        view.close()
