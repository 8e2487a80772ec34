"""A live panel of one run on a terminal: curves, newest rollouts, warnings, throughput, time left, by rich.

Lines are printed above it and stay. It is drawn again where an event or a second has passed, and no oftener than
costs `SHARE` of the time. It fits the terminal as that is at each drawing; where it cannot be drawn, plain lines
follow.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from rich.cells import cell_len
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from ..analysis.curves import run_title
from ..analysis.health import RunWarning, warnings_of
from ..core.terminal_text import escaped
from ..loop.log import read_events
from .chart import Points, binned, curve_rows, span_of
from .plain_views import Lines
from .view import Event, format_seconds

SHARE = 0.005  # of the time, that drawing may take
TICK = 1.0  # seconds after which it is drawn without an event
LEAST = 0.1  # seconds between two drawings
WIDEST = 140  # columns; wider lines are hard to read
SIDE_BY_SIDE = 72  # columns from which the two curves stand beside each other
CHART_ROWS = (2, 8)  # of a curve, least and most
PHASES = {"rollout": "sampling", "learn": "learning", "evaluate": "measuring", "checkpoint": "writing a checkpoint"}
# Characters without a width of their own, by whose combinations terminals and rich differ.
JOINERS = dict.fromkeys(map(ord, "\u00ad\u200b\u200c\u200d\u2060\ufe0e\ufe0f\ufeff"))


@dataclass
class RunState:
    """What the panel shows, taken from the events of a run."""

    title: str = ""
    name: str = ""  # of what is going on: its bar
    done: float = 0
    total: float = 0
    note: str = ""
    phase: str = ""
    phase_since: float = 0.0
    step: Event = field(default_factory=dict[str, Any])  # metrics of the newest one
    rewards: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    greedy: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    sampled: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    held_out_reward: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    best: Event | None = None
    worst: Event | None = None
    warnings: list[RunWarning] = field(default_factory=list[RunWarning])

    def take(self, e: Event) -> None:
        """Take in one event."""
        kind = e["event"]
        if kind == "step":
            self.step = e
            value = e["reward/mean"] if "reward/mean" in e else e.get("policy/loss")
            _add(self.rewards, e["step"] + 1, value)
        elif kind == "eval":
            _add(self.greedy, e["step"], e.get("greedy", e.get("accuracy")))
            _add(self.sampled, e["step"], e.get("sampled"))
            _add(self.held_out_reward, e["step"], e.get("reward_greedy", e.get("reward")))
        elif kind == "final_eval":
            figures = e["figures"]
            _add(self.greedy, e["step"], figures.get("greedy"))
            _add(self.sampled, e["step"], figures.get("accuracy"))
            _add(self.held_out_reward, e["step"], figures.get("reward_greedy"))
        elif kind == "rollouts" and e["rows"]:
            self.best, self.worst = e["rows"][0], e["rows"][-1]
        elif kind in ("warning", "warning_over"):
            self.warnings = [w for w in warnings_of([*map(_as_event, self.warnings), e]) if w.until is None]


def _as_event(warning: RunWarning) -> Event:
    return {"event": "warning", **warning._asdict()}


def _add(points: list[tuple[float, float]], x: float, y: Any) -> None:
    if y is not None:
        points[:] = [p for p in points if p[0] < x]  # a step that is played again
        points.append((x, float(y)))


class Prints:
    """A terminal's stream in whose place prints are collected, to be shown above the panel with its next drawing: to
    draw for each of them would cost a reward that prints more than the reward.
    """

    def __init__(self, stream: Any) -> None:
        self.stream, self.pieces = stream, list[str]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Keep a text."""
        self.pieces.append(text)
        return len(text)

    def flush(self) -> None:
        """Nothing: `Panel` takes what there is."""

    def taken(self, whole: bool) -> str:
        """The lines that are complete, without the last newline; with `whole` what was begun, too."""
        count = len(self.pieces)
        text = "".join(self.pieces[:count])
        end = len(text) if whole else text.rfind("\n") + 1
        self.pieces[:count] = [text[end:]] if text[end:] else []
        return text[:end].removesuffix("\n")


class Panel:
    """A view of one run as a live panel."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic, tick: float = TICK) -> None:
        self.state, self.stream, self.clock = RunState(), stream, clock
        self.console = Console(file=stream, highlight=False)
        self.ascii_only = not (getattr(stream, "encoding", None) or "").lower().startswith("utf")
        self.begun: dict[str, tuple[float, float]] = {}
        self.spent, self.due, self.over = 0.0, 0.0, False
        self.plain: Lines | None = None  # in its place, once it has failed
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self.live = Live(
            console=self.console,
            get_renderable=self._render,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )
        self._redirected: dict[str, Prints] = {}
        self._of_steps: tuple[str, float, float, str] | None = None  # the bar of steps, as it was last
        self._tick = tick
        self._thread: threading.Thread | None = None

    # ---- the view

    def line(self, text: str) -> None:
        """Print a line above the panel, which stays."""
        if self.plain is not None:
            self.plain.line(text)
            return
        with self._lock:
            self._take_prints()
            self._guarded(lambda: self.console.print(Text(text)))

    def bar(self, name: str, done: float, total: float, note: str = "") -> None:
        """Move the bar of what is going on."""
        if self.plain is not None:
            self.plain.bar(name, done, total, note)
            return
        state, now = self.state, self.clock()
        if name not in self.begun:
            # work done before this call was not timed
            self.begun = {name: (now, 0 if "measuring" in name else done)}
        state.name, state.done, state.total, state.note = name, done, total, note
        if name in ("steps", "tokens"):
            self._of_steps = name, done, total, note
        else:
            state.phase = ""
        self.draw()

    def update(self, event: Event) -> bool:
        """Take in an event; True for those that only the panel shows."""
        state, kind = self.state, event["event"]
        if self.plain is not None:
            return False
        with self._lock:
            if kind == "start":
                state.title = run_title(Path(event["folder"]))
                if event["resumed"]:
                    for earlier in read_events(Path(event["folder"]) / "log"):
                        state.take(earlier)
            elif kind == "phase":
                state.phase, state.phase_since = PHASES.get(event["phase"], ""), self.clock()
            for warning in self.state.warnings if kind == "warning_over" else ():
                if warning.rule == event["rule"]:
                    self._say(warning._replace(until=event["step"]))
            state.take(event)
        if kind in ("eval", "rollouts", "phase", "warning", "warning_over"):
            self.draw(at_once=kind.startswith("warning"))
            return True
        return False

    def close(self) -> None:
        """End the panel: its curves stay, the terminal is as it was."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(5)
        with self._lock:
            self.over = True
            if not self.live.is_started:
                return
            if self._of_steps is not None:
                state = self.state
                state.name, state.done, state.total, state.note = self._of_steps
            self._take_prints(whole=True)
            warnings, self.state.warnings = self.state.warnings, []
            for warning in warnings:
                self._say(warning)
            self._restore_streams()
            with suppress(Exception):  # the terminal may be gone
                self.live.stop()

    # ---- drawing

    def draw(self, at_once: bool = False) -> None:
        """Draw the panel, where that is due."""
        with self._lock:
            if self.plain is not None or self.over or (not at_once and self.clock() < self.due):
                return
            began = time.thread_time()  # not the time in which it waits for the run
            self._guarded(self._refresh)
            cost = time.thread_time() - began
            self.spent += cost
            self.due = self.clock() + max(LEAST, cost / SHARE)

    def _refresh(self) -> None:
        if not self.live.is_started:
            self.live.start()
            self._thread = threading.Thread(target=self._ticking, name="selfteach-panel", daemon=True)
            self._thread.start()
            for name in ("stdout", "stderr"):  # a pipe gets what is meant for it
                if (stream := getattr(sys, name)).isatty():
                    self._redirected[name] = Prints(stream)
                    setattr(sys, name, self._redirected[name])
        if not self._take_prints():
            self.live.refresh()

    def _take_prints(self, whole: bool = False) -> bool:
        """Show what was printed above the panel; True where there was something."""
        texts = [text for stream in self._redirected.values() if (text := stream.taken(whole))]
        for text in texts:
            self._guarded(lambda text=text: self.console.print(Text.from_ansi(text)))
        return bool(texts)

    def _restore_streams(self) -> None:
        for name, stream in self._redirected.items():
            if getattr(sys, name) is stream:
                setattr(sys, name, stream.stream)
            for piece in stream.pieces:  # of another thread, meanwhile
                stream.stream.write(piece)
        self._redirected = {}

    def _ticking(self) -> None:
        while not self._stop.wait(self._tick):
            self.draw()

    def _guarded(self, do: Callable[[], object]) -> None:
        """Do it; where that fails, the panel ends and plain lines follow: a run is worth more than its picture."""
        try:
            do()
        except Exception as error:
            self.plain = Lines(self.stream)
            self._stop.set()
            self._restore_streams()
            with suppress(Exception):  # it may draw once more, and restores the terminal in any case
                self.live.stop()
            with suppress(Exception):  # the terminal may be gone
                self.plain.line(f"the panel could not be drawn ({type(error).__name__}: {error}); plain lines follow")

    def _say(self, warning: RunWarning) -> None:
        """Leave a warning above the panel, which will not show it any more."""
        self._guarded(lambda: self.console.print(Text(f"warning: {warning}")))

    def _render(self) -> Group:
        size = self.console.size
        try:
            return Group(*self.lines(min(WIDEST, size.width - 1), size.height - 1))
        except Exception as error:  # rich would draw nothing and say nothing
            return Group(Text(f"{type(error).__name__}: {error}"[: max(1, size.width - 1)], no_wrap=True))

    def lines(self, width: int, height: int) -> list[Text]:
        """The panel as lines, none wider than `width`, at most `height` of them: what matters least is left out."""
        width, height = max(8, width), max(1, height)
        head = self._head(width)
        if self.over:
            rest = self._curves(width, height - len(head))
        else:
            warnings = self._warnings(width, max(0, min(height - len(head), height // 3)))
            left = height - len(head) - len(warnings)
            rollouts = self._rollouts(width, left // 2)
            rest = [*warnings, *self._curves(width, left - len(rollouts)), *rollouts]
        return [self._fitted(text, width) for text in [*head, *rest][:height]]

    def _fitted(self, text: Text, width: int) -> Text:
        text.no_wrap = True
        text.truncate(width, overflow="crop" if self.ascii_only else "ellipsis")
        return text

    def _head(self, width: int) -> list[Text]:
        state = self.state
        if not state.name:
            return [Text(state.title or "selfteach", style="bold")]
        left = self._time_left()
        count = f"{state.name} {state.done:,}/{state.total:,}" + (f", {left} left" if left else "")
        title, out = Text(state.title, style="bold"), list[Text]()
        room = width - cell_len(state.title) - cell_len(count) - 4
        bar = self._bar(max(8, min(30, room)))
        if state.title and room >= 8:
            out.append(title + Text("  ") + bar + Text("  " + count))
        else:
            out += [title] if state.title else []
            out.append(bar + Text(" " + count) if width >= 44 else Text(count))
        for row in _wrapped(self._facts(), width):
            out.append(Text(row, style="dim"))
        return out

    def _bar(self, width: int) -> Text:
        share = self.state.done / self.state.total if self.state.total else 0.0
        full = round(width * min(1.0, share))
        on, off = ("#", "-") if self.ascii_only else ("━", "─")
        return Text(on * full, style="green") + Text(off * (width - full), style="dim")

    def _time_left(self) -> str:
        state = self.state
        began, first = self.begun.get(state.name, (0.0, 0.0))
        if not first < state.done < state.total:
            return ""
        return format_seconds((self.clock() - began) / (state.done - first) * (state.total - state.done))

    def _facts(self) -> list[str]:
        """What is going on, and the newest step's figures."""
        state, step, out = self.state, self.state.step, list[str]()
        if not self.over and state.phase:
            out.append(f"{state.phase} {format_seconds(self.clock() - state.phase_since)}")
        out += state.note.split(", ") if state.note else []
        if (entropy := step.get("policy/entropy_estimate")) is not None and state.note:
            out.append(f"entropy {entropy:.2g}")
        if step.get("time/step_s"):
            share = 100 * step.get("time/rollout_s", 0.0) / step["time/step_s"]
            out.append(f"{step['time/step_s']:.1f} s a step, {share:.0f} % of it sampling")
        if "time/sampler_idle_fraction" in step:
            idle = [100 * step[f"time/{name}_idle_fraction"] for name in ("sampler", "learner")]
            out.append(f"sampler idle {idle[0]:.0f} %, learner {idle[1]:.0f} %")
            queued, age = step["rollout/queued_groups"], step.get("staleness/mean", 0.0)
            out.append(f"data {age:.1f} updates old, {queued:.0f} groups wait")
        return out

    def _warnings(self, width: int, height: int) -> list[Text]:
        out, mark = list[Text](), "!" if self.ascii_only else "▲"
        for n, warning in enumerate(self.state.warnings):
            head = _wrapped([f"{mark} {warning.text} (since step {warning.step})"], width)
            more = [f"  {row}" for row in _wrapped([f"try: {warning.advice}"], width - 2)]
            room = height - len(out) - (n + 1 < len(self.state.warnings))
            if room < 1:
                out.append(Text(f"{mark} and {len(self.state.warnings) - n} more", style="yellow"))
                break
            out += [Text(row, style="bold yellow") for row in head[:room]]
            out += [Text(row, style="yellow") for row in more[: room - len(head)] if room > len(head)]
        return out[:height]

    def _curves(self, width: int, height: int) -> list[Text]:
        state, step = self.state, self.state.step
        held_out = [(name, found) for name, found in (("greedy", state.greedy), ("sampled", state.sampled)) if found]
        percent = [(name, [(x, 100 * y) for x, y in found], "%") for name, found in held_out]
        newest = percent[-1:] or [("reward", state.held_out_reward, "")]
        name = "reward" if "reward/mean" in step or not step else "loss"
        wanted = [(name, state.rewards, "", "cyan"), *((f"held-out {n}", p, unit, "green") for n, p, unit in newest)]
        wanted = [w for w in wanted if len(w[1]) > 1]
        if not wanted or height < CHART_ROWS[0] + 1:
            return []
        beside = len(wanted) > 1 and width >= SIDE_BY_SIDE
        if not beside and height < len(wanted) * (CHART_ROWS[0] + 1):
            wanted = wanted[:1]
        across = len(wanted) if beside else 1
        rows = min(CHART_ROWS[1], height * across // len(wanted) - 1)
        drawn = [self._curve(*w, (width - 3 * (across - 1)) // across, rows) for w in wanted]
        if not beside:
            return [row for chart in drawn for row in chart]
        return [first + Text("   ") + second for first, second in zip(*drawn, strict=True)]

    def _curve(self, name: str, points: Points, unit: str, colour: str, width: int, height: int) -> list[Text]:
        """A curve with its name and newest value above and the ends of its scale beside it, `height` + 1 rows."""
        newest = points[-1][1]
        low, high = span_of([y for _, y in binned(points, 2 * width)])
        marks = [f"{_short(v)}{unit}" for v in (high, low)]
        margin = max(map(len, marks)) + 1
        title = f"{name} {_short(newest)}{unit}" + ("" if width < 30 else f", step 0 to {points[-1][0]:.0f}")
        drawn = curve_rows(points, max(1, width - margin), height, (low, high), self.ascii_only)
        out = [Text(title[:width].ljust(width))]
        for n, row in enumerate(drawn):
            mark = marks[0] if n == 0 else marks[1] if n == height - 1 else ""
            out.append(Text(f"{mark:>{margin - 1}} ", style="dim") + Text(row, style=colour))
        return out

    def _rollouts(self, width: int, height: int) -> list[Text]:
        """The best and the worst of the newest step: what was asked, what was said, as many lines as there is room."""
        state, out = self.state, list[Text]()
        if state.best is None or state.worst is None or height < 2:
            return []
        each = min(5, height // 2)
        for name, row in (("best", state.best), ("worst", state.worst)):
            about = f"{name}: reward {_short(row['reward'])}"
            if row["advantage"] is not None:
                about += f", advantage {row['advantage']:+.2g}"
            about += f", {row['tokens']} tokens" + ("" if row["status"] == "stop" else f", {row['status']}")
            prompt, response = self._one_line(row["prompt"]), self._one_line(row["response"])
            if each == 1:
                out.append(Text(about + ": ", style="bold") + Text(_ends(response, width)))
                continue
            out.append(Text(about, style="bold"))
            if each > 2:
                out.append(Text("  asked ", style="dim") + Text(_end(prompt, width - 8)))
            room = (width - 8) * (each - (2 if each > 2 else 1))
            said = _chopped(_ends(response, room), width - 8)
            for n, piece in enumerate(said[: each - (2 if each > 2 else 1)]):
                out.append(Text("  said  " if n == 0 else "        ", style="dim") + Text(piece))
        return out

    def _one_line(self, text: str) -> str:
        newline = " / " if self.ascii_only else "⏎"
        text = escaped(text).translate(JOINERS).replace("\t", " ").replace("\n", newline)
        return text.encode("ascii", "backslashreplace").decode() if self.ascii_only else text


def _short(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _wrapped(pieces: list[str], width: int) -> list[str]:
    """Pieces with commas between, and their words, in lines of at most `width` characters."""
    words = ", ".join(pieces).split()
    lines = [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + word
    return [line for line in lines if line]


def _end(text: str, width: int) -> str:
    """The end of a text, where a prompt has its question."""
    return text if cell_len(text) <= width else "..." + _last_cells(text, width - 3)


def _ends(text: str, width: int) -> str:
    """Both ends of a text that is too long: an answer begins with its form and ends with its result."""
    if cell_len(text) <= width:
        return text
    half = (width - 5) // 2
    return _chopped(text[: max(1, half)], max(1, half))[0] + " ... " + _last_cells(text, half)


def _last_cells(text: str, width: int) -> str:
    width = max(1, width)
    tail = text[-width:]
    while cell_len(tail) > width:
        tail = tail[1:]
    return tail


def _chopped(text: str, width: int) -> list[str]:
    """A text cut into pieces of at most `width` cells."""
    width, out, cells = max(2, width), [""], 0
    for character in text:
        size = cell_len(character)
        if cells + size > width:
            out.append("")
            cells = 0
        out[-1] += character
        cells += size
    return out
