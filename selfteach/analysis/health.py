"""Health of a run in words: warnings where a rule begins to hold, and an end to them where it has stopped.

    watch = HealthWatch()   # events of a run in, warnings out, for `Session.watch`

The rules are those of `health_rules`. A warning changes nothing in a run.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from .health_rules import ADVICE, Row, Window, check

RECOVERED = 5  # steps in a row without the condition after which a warning is over
READ_ENDS = ("/grad_norm", "/approx_kl", "/clip_fraction", "/optimiser_steps", "/loss/kl")


class HealthWatch:
    """Events of a run in, events of warnings out: `warning` where a rule begins to hold, `warning_over` where it has
    not for some steps. Fed with the log of a run that is resumed, it knows what was said.
    """

    def __init__(self) -> None:
        self.windows: dict[str, Window] = {}
        self.evaluations: list[Row] = []
        self.active: dict[str, int] = {}  # rule -> the newest step at which it held

    def __call__(self, event: Row) -> list[dict[str, Any]]:
        """The events that follow from one."""
        kind = event["event"]
        if kind in ("eval", "final_eval"):
            self.evaluations.append(_evaluation(event))
        elif kind == "warning":
            self.active[event["rule"]] = event["step"]
        elif kind == "warning_over":
            self.active.pop(event["rule"], None)
        elif kind == "step":
            return self._step(event)
        return []

    def _step(self, event: Row) -> list[dict[str, Any]]:
        window = self.windows.setdefault(str(event.get("stage", "")), Window())
        window.evaluations = self.evaluations
        window.add({name: event.get(name) for name in event if _is_read(name)})
        step, held, out = event["step"], check(window), list[dict[str, Any]]()
        for name, text in held.items():
            if name not in self.active:
                advice = ADVICE[name]
                out.append({"event": "warning", "step": step, "rule": name, "text": text, "advice": advice})
            self.active[name] = step
        for name in [n for n, at in self.active.items() if step - at >= RECOVERED]:
            del self.active[name]
            out.append({"event": "warning_over", "step": step, "rule": name})
        return out


class RunWarning(NamedTuple):
    """A warning of a run: its rule, the step at which it began and (None: it still holds) ended, the text, advice."""

    rule: str
    step: int
    until: int | None
    text: str
    advice: str

    def __str__(self) -> str:
        over = "" if self.until is None else f" to {self.until}"
        return f"step {self.step}{over}: {self.text}; {self.advice}"


def warnings_of(events: Iterable[Row]) -> list[RunWarning]:
    """The warnings that a log holds, in order."""
    out: list[RunWarning] = []
    for e in events:
        if e["event"] == "warning":
            out.append(RunWarning(e["rule"], e["step"], None, e["text"], e["advice"]))
        elif e["event"] == "warning_over":
            out = [w._replace(until=e["step"]) if w.rule == e["rule"] and w.until is None else w for w in out]
    return out


def _is_read(name: str) -> bool:
    return name.startswith(("rollout/", "reward/mean", "policy/", "select/")) or name.endswith(READ_ENDS)


def _evaluation(event: Row) -> Row:
    """An evaluation's accuracies by one name each: on the way `accuracy` is greedy, before and after it is sampled."""
    if event["event"] == "eval":
        names = {"greedy": event.get("greedy", event.get("accuracy")), "sampled": event.get("sampled")}
        return {"step": event["step"], "questions": event.get("questions", 0), **names}
    figures, counts = event["figures"], event.get("counts") or {}
    names = {"greedy": figures.get("greedy"), "sampled": figures.get("accuracy")}
    return {"step": event["step"], "questions": len(counts.get("questions", ())), **names}
