"""The panel on a terminal: a process of its own on a pseudo-terminal, and what an emulator of one shows then."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pyte
import pytest

from selfteach.progress import Bars, Lines, Progress, view_on
from selfteach.progress.chart import curve_rows
from selfteach.progress.panel import SHARE, Panel

HERE = Path(__file__).parent
STEPS = 12


def row(name: str, reward: float) -> dict[str, Any]:
    return {
        "task": "t",
        "prompt": f"a long prefix {'x' * 300} and the question of {name}?",
        "response": f"\x1b[2J\x1b[Hevil {name}\nnext line " + "y" * 500 + " the end",
        "answer": None,
        "reward": reward,
        "advantage": 0.5,
        "tokens": 9,
        "status": "stop",
    }


def events(folder: str = "runs/mine", steps: int = STEPS) -> list[dict[str, Any]]:
    """Those of a run, with a warning that ends and one that does not."""
    out: list[dict[str, Any]] = [
        {"event": "start", "folder": folder, "resumed": False, "step": 0, "model": {}},
        {"event": "final_eval", "when": "start", "step": 0, "figures": {"greedy": 0.25, "accuracy": 0.2}},
    ]
    for step in range(steps):
        out += [
            {"event": "phase", "phase": "rollout", "step": step},
            {"event": "step", "step": step, "steps": steps, "reward/mean": 0.1 * step, "tokens_per_s": 900.0}
            | {"time/step_s": 2.0, "time/rollout_s": 1.0, "policy/entropy_estimate": 0.5},
            {"event": "rollouts", "step": step, "rows": [row("best", 1.0), row("worst", 0.0)]},
        ]
        if step == 3:
            warning = {"event": "warning", "step": 3, "rule": "truncated", "text": "answers are cut"}
            out.append({**warning, "advice": "raise --max-tokens"})
            out.append({**warning, "rule": "clipped", "text": "the clip acts", "advice": "lower --lr"})
        if step == 8:
            out.append({"event": "warning_over", "step": 8, "rule": "truncated"})
        if step % 4 == 3:
            out.append({"event": "eval", "step": step + 1, "accuracy": 0.05 * step, "sampled": 0.04 * step})
        out.append({"event": "note", "text": f"line {step}"})
    return out


CHILD = """
import sys, time, signal
sys.path.insert(0, {here!r})
from selfteach.progress import show_progress
from selfteach.core.errors import Terminated
import test_panel
how = {how!r}
print("\\n".join("before %d" % n for n in range(40)))
try:
    with show_progress(panel=True) as progress:
        for n, event in enumerate(test_panel.events()):
            progress(event)
            time.sleep({pause})
            if n == 20 and how == "print":
                print("from a reward")
            if n == 20 and how == "raise":
                raise ValueError("broken")
            if n == 20 and how == "interrupt":
                print("READY", flush=True); time.sleep(20)
except ValueError as error:
    print("ended by", error)
except KeyboardInterrupt:
    print("ended by Ctrl-C")
print("after")
"""


class Terminal:
    """A pseudo-terminal with an emulator behind it, and all that ever scrolled out of it."""

    def __init__(self, code: str, columns: int = 100, rows: int = 30, **env: str) -> None:
        self.screen = pyte.HistoryScreen(columns, rows, history=5000, ratio=0.5)
        self.stream, self.raw = pyte.ByteStream(self.screen), b""
        master, slave = pty.openpty()
        self.master = master
        self.resize(columns, rows, emulate=False)
        given = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS", "LINES")}
        given |= {"TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **env}
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=slave, stdout=slave, stderr=slave, env=given, start_new_session=True
        )
        os.close(slave)

    def resize(self, columns: int, rows: int, emulate: bool = True) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        if emulate:
            self.screen.resize(rows, columns)

    def read(self, seconds: float = 60.0, until: bytes = b"") -> None:
        """Take in what is written, until the process has ended, or a text has come."""
        due = time.monotonic() + seconds
        while time.monotonic() < due and not (until and until in self.raw):
            if select.select([self.master], [], [], 0.1)[0]:
                try:
                    data = os.read(self.master, 65536)
                except OSError:  # the other end is closed
                    break
                if not data:
                    break
                self.raw += data
                self.stream.feed(data)
        if not until:
            self.process.wait(30)

    def shown(self) -> list[str]:
        return [line.rstrip() for line in self.screen.display]

    def everything(self) -> list[str]:
        """What scrolled out of the screen, then what is on it."""
        gone = ["".join(line[n].data for n in range(self.screen.columns)).rstrip() for line in self.screen.history.top]
        return [*gone, *self.shown()]


def child(how: str = "", pause: float = 0.02) -> str:
    return CHILD.format(here=str(HERE), how=how, pause=pause)


def restored(terminal: Terminal) -> bool:
    """Whether the cursor is shown, after it was hidden."""
    return terminal.raw.rfind(b"\x1b[?25h") > terminal.raw.rfind(b"\x1b[?25l") >= 0


@pytest.mark.parametrize(("columns", "rows"), [(100, 30), (40, 24), (200, 60), (60, 8), (20, 5)])
def test_no_line_is_lost_and_none_is_too_wide(columns, rows):
    terminal = Terminal(child(), columns, rows)
    terminal.read()
    lines = terminal.everything()
    assert terminal.process.returncode == 0 and restored(terminal)
    kept = [line for line in lines if line.startswith(("before ", "line ", "after"))]
    assert kept == [*(f"before {n}" for n in range(40)), *(f"line {n}" for n in range(STEPS)), "after"]
    assert b"\x1b[2J" not in terminal.raw.replace(b"\\x1b[2J", b"")  # what the rollouts say is written out
    # One panel is left, not a trail of them: its head stands once.
    assert sum("steps 12/12" in line for line in lines) == 1
    assert not [line for line in lines if "steps 11/12" in line]


def test_the_panel_says_what_it_is_for():
    terminal = Terminal(child("interrupt"), 110, 40)
    terminal.read(until=b"READY")
    parts = (
        *("mine", "steps 4/12", "reward 0.3", "held-out sampled", "12%", "900 tok/s", "entropy 0.5", "sampling"),
        *("answers are cut (since step 3)", "try: raise --max-tokens", "the clip acts"),
        *("best: reward 1, advantage +0.5, 9 tokens", "question of best?", "evil worst", "\\x1b[2J", "the end"),
    )
    text = ""
    for _ in range(20):  # ticks, without an event; what is read may end in the middle of a frame
        terminal.read(1.0, until=b"never")
        text = "\n".join(terminal.shown())
        if all(part in text for part in parts):
            break
    for part in parts:
        assert part in text, part
    assert any("\u2800" < c <= "\u28ff" for c in text)
    os.killpg(terminal.process.pid, signal.SIGKILL)
    terminal.process.wait()


@pytest.mark.parametrize(("how", "end"), [("raise", "ended by broken"), ("interrupt", "ended by Ctrl-C")])
def test_however_it_ends_the_terminal_is_restored(how, end):
    terminal = Terminal(child(how))
    if how == "interrupt":
        terminal.read(until=b"READY")
        terminal.process.send_signal(signal.SIGINT)
    terminal.read()
    assert restored(terminal) and terminal.process.returncode == 0
    assert [end, "after"] == [line for line in terminal.shown() if line.startswith(("ended", "after"))]
    assert "before 39" in terminal.everything()


def test_what_a_reward_prints_stays_above():
    terminal = Terminal(child("print"))
    terminal.read()
    lines = terminal.everything()
    assert lines.count("from a reward") == 1 and "line 11" in lines and lines.count("before 39") == 1


def test_a_terminal_may_be_resized_meanwhile():
    terminal = Terminal(child(pause=0.06), 100, 30)
    for n, (columns, rows) in enumerate([(60, 30), (130, 20), (40, 12), (100, 30)]):
        terminal.read(0.8, until=f"line {2 * n + 1}".encode())
        terminal.resize(columns, rows)
    terminal.read()
    assert terminal.process.returncode == 0 and restored(terminal)
    written = terminal.raw.decode()
    assert all(f"line {n}\r\n" in written for n in range(STEPS)) and "Error" not in written


def test_without_colour_and_without_utf_8():
    terminal = Terminal(child(), 100, 30, NO_COLOR="1", PYTHONIOENCODING="ascii")
    terminal.read()
    assert terminal.process.returncode == 0 and terminal.raw.isascii()
    assert not [n for n in range(30, 38) if f"\x1b[{n}m".encode() in terminal.raw]
    assert "*" in "\n".join(terminal.shown())


@pytest.mark.parametrize("term", ["dumb", ""])
def test_a_terminal_that_cannot_move_its_cursor_gets_lines(term):
    terminal = Terminal(child(), TERM=term)
    terminal.read()
    text = terminal.raw.decode()
    assert "\x1b" not in text and text.count("step 3: warning: answers are cut; try: raise --max-tokens") == 1


class Screen(io.StringIO):
    """A terminal in memory."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_what_shows_progress_depends_on_where(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(view_on(io.StringIO(), True), Lines)
    for panel, kind in ((True, Panel), (False, Bars)):
        view = view_on(Screen(), panel)
        view.close()
        assert isinstance(view, kind)


def test_plain_lines_say_how_far_the_learning_of_a_step_is():
    stream = io.StringIO()
    seen = Progress(Lines(stream, every=0.0))
    for done in (250, 3000):
        seen({"event": "learning", "step": 0, "done": done, "total": 3000})
    assert stream.getvalue() == "learning: step 1, updates 250/3,000\nlearning: step 1, updates 3,000/3,000\n"


def test_plain_lines_say_each_warning_once():
    stream = io.StringIO()
    seen = Progress(Lines(stream, every=0.0))
    warning = {"event": "warning", "rule": "truncated", "text": "answers are cut", "advice": "raise --max-tokens"}
    for step in (3, 9):
        seen({**warning, "step": step})
        seen({"event": "warning_over", "step": step + 5, "rule": "truncated"})
    seen({"event": "arm", "arm": "a", "seed": 1, "number": 1, "total": 2, "reused": False})
    seen({**warning, "rule": "clipped", "step": 1})  # one of many runs: its log has it
    assert stream.getvalue().count("warning") == 1
    assert "step 3: warning: answers are cut; try: raise --max-tokens\n" in stream.getvalue()


def test_drawing_takes_no_more_than_its_share():
    now = [0.0]
    panel = Panel(Screen(), clock=lambda: now[0], tick=1e9)
    costs, drawn = [], []
    with contextlib.closing(panel):
        for event in events(steps=200):
            spent = panel.spent
            Progress(panel)(event)
            if panel.spent > spent:
                costs.append(panel.spent - spent)
                drawn.append((now[0], panel.due))
            now[0] += 0.05
    for (at, due), cost in zip(drawn, costs, strict=True):
        assert due - at >= cost / SHARE * 0.99
    assert 1 < len(costs) < 500


def test_a_reward_that_prints_much_costs_no_drawing_for_each(monkeypatch):
    stream = Screen()
    monkeypatch.setattr(sys, "stdout", stream)
    panel = Panel(stream, clock=lambda: 0.0, tick=1e9)
    with contextlib.closing(panel):
        panel.draw()
        drawn = stream.getvalue().count("selfteach")
        for n in range(500):
            print("\x1b[31mprinted", n)
        print("begun", end="")
        assert stream.getvalue().count("selfteach") == drawn
    text = stream.getvalue()
    assert text.count("printed") == 500 and text.count("begun") == 1 and sys.stdout is stream


def test_a_panel_that_cannot_be_drawn_gives_way_to_lines(monkeypatch):
    stream = Screen()
    panel = Panel(stream, tick=1e9)
    seen = Progress(panel)
    given = events()
    for event in given[:6]:
        seen(event)
    monkeypatch.setattr(panel.live, "refresh", lambda: 1 / 0)
    panel.due = 0.0
    for event in given[6:]:
        seen(event)
    panel.close()
    text = stream.getvalue()
    assert "plain lines follow" in text and "line 11" in text and "steps 12/12" in text


def test_a_curve_by_hand():
    rising = [(1, 0.0), (2, 1.0)]
    assert curve_rows(rising, 2, 2, (0.0, 1.0), ascii_only=True) == [" *", "* "]
    # Dots from the lowest of column 0.5 * 3 to the highest of column 3 in a grid of 4 by 8.
    (top, bottom) = curve_rows(rising, 2, 2, (0.0, 1.0))
    assert top[0] == " " and bottom[1] != " " and top[1] != " "
    assert curve_rows([(1, 5.0)], 1, 1, (5.0, 5.0)) == ["\u2880"]
