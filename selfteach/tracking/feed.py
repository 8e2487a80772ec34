"""Events of a run as calls of trackers: each in a thread of its own, each step once."""

from __future__ import annotations

import json
import math
import queue
import threading
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.disk import write_whole
from ..core.errors import describe
from ..loop.log import read_events
from .tracker import RunAbout, Tracker
from .trackers import TRACKERS, resolve

Event = Mapping[str, Any]
Show = Callable[[Event], None]

WAITING = 2000  # calls that may wait for a tracker before it is left behind
FINISH_SECONDS = 60.0  # that a tracker may take to end
FOLDER = "tracking"  # in the run's folder: what each tracker was told
ABOUT_A_RUN = ("event", "step", "steps", "first", "seconds", "questions", "samples")  # in events, and no metrics


def kept_names(folder: Path) -> list[str]:
    """The trackers that a run in this folder has used, by name."""
    return [name for name in TRACKERS if (folder / FOLDER / f"{name}.json").is_file()]


@contextmanager
def tracked(
    names: Sequence[str | Tracker], folder: Path, config: Mapping[str, Any], show: Show, resume: bool = False
) -> Generator[Show]:
    """An observer that gives what a run logs to trackers and passes every event on to `show`.

    names   of trackers, or trackers; resume adds those that the run has used before
    show    gets notes besides: a tracker that failed

    Raises, before anything is done, UnknownName for a name that is none and BadValue for a missing package.
    """
    kept = [n for n in kept_names(folder) if n not in names] if resume else []
    trackers = resolve([*names, *kept])
    if not trackers:
        yield show
        return
    feeds = [Feed(name, tracker) for name, tracker in trackers.items()]
    status = "failed"

    def observer(event: Event) -> None:
        nonlocal status
        kind = event["event"]
        if kind == "stopping":
            status = "stopped"
        elif kind == "done":
            status = "done"
        if kind == "start":
            for feed in feeds:
                feed.begin(event, config)
        for feed in feeds:
            feed.take(event)
        show(event)
        _say(feeds, show)

    try:
        yield observer
    except KeyboardInterrupt:
        status = "stopped"
        raise
    finally:
        for feed in feeds:
            feed.close(status)
        for feed in feeds:
            feed.wait()
        _say(feeds, show)


def _say(feeds: Sequence[Feed], show: Show) -> None:
    for feed in feeds:
        while feed.messages:
            text = feed.messages.pop(0)
            show({"event": "note", "text": text})


@dataclass
class Feed:
    """The calls of one tracker.

    state     what it was told: "key" of its run, and by kind of call the newest step
    messages  to be said in the run's own thread
    """

    name: str
    tracker: Tracker
    state: dict[str, Any] = field(default_factory=dict[str, Any])
    messages: list[str] = field(default_factory=list[str])
    over: bool = False  # nothing is told to it any more
    began: bool = False
    file: Path | None = None  # where the state is kept
    _calls: queue.Queue[Callable[[], None] | None] = field(default_factory=lambda: queue.Queue(WAITING))
    _thread: threading.Thread | None = None

    def begin(self, event: Event, config: Mapping[str, Any]) -> None:
        """Begin its thread, and tell it of the run; of one that is resumed all that it has not heard of."""
        folder = Path(event["folder"])
        self.began = True
        self.file = folder / FOLDER / f"{self.name}.json"
        self.state = _read(self.file) if event["resumed"] else {}
        title = f"{config.get('method', {}).get('name') or 'method'} on {config.get('task')}"
        about = RunAbout(folder, title, config, bool(event["resumed"]), event["step"], self.state.get("key"))

        def start() -> None:
            self.state["key"] = self.tracker.start(about)

        self._thread = threading.Thread(target=self._work, name=f"selfteach-{self.name}", daemon=True)
        self._thread.start()
        self._call(start)
        if event["resumed"]:
            for earlier in read_events(folder / "log"):
                self.take(earlier)

    def take(self, event: Event) -> None:
        """Tell it of an event, where it is to hear of that kind."""
        for kind, step, call in self._calls_of(event):
            self._call(lambda kind=kind, step=step, call=call: self._once(kind, step, call))

    def _calls_of(self, event: Event) -> Iterator[tuple[str, int, Callable[[], None]]]:
        kind = event["event"]
        if not self.began or kind not in ("step", "eval", "final_eval", "rollouts", "warning"):
            return
        step, to = event["step"], self.tracker
        if kind == "rollouts":
            yield kind, step, lambda: to.table(step, event["rows"])
        elif kind == "warning":
            text = f"{event['text']}; {event['advice']}"
            yield f"warning/{event['rule']}", step, lambda: to.warning(step, event["rule"], text)
        else:
            values = metrics_in(event) if kind == "step" else evaluation_in(event)
            yield "step" if kind == "step" else "eval", step, lambda: to.log(step, values)

    def _once(self, kind: str, step: int, call: Callable[[], None]) -> None:
        """Make a call unless it was made for this step already, by a run that was killed after it."""
        if step <= self.state.get(kind, -1):
            return
        call()
        self.state[kind] = step
        self._keep()

    def _keep(self) -> None:
        if self.file is not None:
            self.file.parent.mkdir(exist_ok=True)
            write_whole(self.file, json.dumps(self.state) + "\n")

    def _call(self, call: Callable[[], None]) -> None:
        if self.over:
            return
        try:
            self._calls.put_nowait(call)
        except queue.Full:
            self._leave(f"does not keep up: {WAITING} calls wait for it")

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            if self.over:
                continue
            try:
                call()
            except BaseException as error:  # whatever a library does, the run goes on
                self._leave(describe(error))

    def _leave(self, why: str) -> None:
        """Tell it nothing any more, and say so once."""
        if not self.over:
            self.over = True
            self.messages.append(f"log {self.name}: {why}; the run goes on without it")

    def close(self, status: str) -> None:
        """Ask it to end after what it has still to hear."""
        if self._thread is None:
            return
        self._call(lambda: self.tracker.finish(status))
        self._call_end()

    def _call_end(self) -> None:
        try:
            self._calls.put_nowait(None)
        except queue.Full:  # its thread is a daemon: it ends with the process
            self.over = True

    def wait(self, seconds: float | None = None) -> None:
        """Wait until it has ended, for a while."""
        if self._thread is None or (self.over and self._calls.qsize() > 1):
            return
        self._thread.join(FINISH_SECONDS if seconds is None else seconds)
        if self._thread.is_alive():
            self._leave("has not ended in time; what it had not written is missing there")


def _read(file: Path) -> dict[str, Any]:
    """The state that was kept; {} where there is none that can be read."""
    try:
        state = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def metrics_in(event: Event) -> dict[str, float]:
    """The metrics of a step by their names: the numbers that are finite."""
    return {
        name: float(value)
        for name, value in event.items()
        if name not in ABOUT_A_RUN and isinstance(value, int | float) and math.isfinite(value)
    }


def evaluation_in(event: Event) -> dict[str, float]:
    """The figures of an evaluation as eval/NAME, each name with one meaning: on the way `accuracy` is that of greedy
    answers in the log, and here eval/greedy; eval/accuracy and eval/reward are always those of sampled answers.
    """
    if event["event"] == "final_eval":
        return {f"eval/{name}": value for name, value in metrics_in(event["figures"]).items()}
    found = metrics_in(event)
    for name, greedy, sampled in (("accuracy", "greedy", "sampled"), ("reward", "reward_greedy", "reward_sampled")):
        mean = found.pop(name, None)
        if mean is not None:
            found.setdefault(greedy, mean)
        if sampled in found:
            found[name] = found.pop(sampled)
    return {f"eval/{name}": value for name, value in found.items()}


def warn_in_words(event: Event) -> None:
    """An observer that says notes of trackers where no progress is shown."""
    if event["event"] == "note" and str(event["text"]).startswith("log "):
        warnings.warn(str(event["text"]), stacklevel=2)
