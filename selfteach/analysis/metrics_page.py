"""The page docs/metrics.md: every metric that a run logs, every figure of an evaluation, of the tables in the code."""

from __future__ import annotations

import inspect
from collections.abc import Mapping

from ..core import registry
from ..loop.metrics import FIGURES, METRICS, Metric
from .health_rules import RULES

HEAD = """# Metrics

Written by scripts/metrics_page.py (make format) from selfteach/loop/metrics.py: edit there.

`run.metrics` has one row for each step, by these names; so have `log/events.jsonl` and the checks of claims. `<x>`
stands for a name. A metric that does not apply to a step (no reward, no update) is absent from it. "Healthy" is what a
run that goes well shows: a hint where to look, no rule.
"""
DECLARED = """## Figures that a term declares

By `@logged` (CONTRIBUTING.md, "A block"), as `<group>/<name>`.
"""
EVALUATIONS = """## Evaluations

`run.evaluations[step].figures`, of held-out questions: before and after training, and every `eval_every` steps. Those
of a decode program end in its name: `accuracy+search`. `run.evaluations[step].greedy` and `.sampled` are accuracies
with a 95 % interval and the number of questions.
"""
WARNINGS = """## Warnings

While a run goes on, these rules look at its newest steps (selfteach/analysis/health_rules.py, where each number has its
reason). What they find is shown once, is in `run.warnings`, and as events `warning` and `warning_over` in the log. It
changes nothing in the run.
"""


def metrics_page() -> str:
    """The page as Markdown."""
    parts = [HEAD, _table(METRICS), DECLARED, _declared(), EVALUATIONS, _table(FIGURES), WARNINGS, _rules()]
    return "\n".join(parts)


def _table(rows: Mapping[str, Metric]) -> str:
    lines = ["| name | what it means | unit | healthy |", "| --- | --- | --- | --- |"]
    lines += [f"| `{name}` | {_cell(m.meaning)} | {m.unit} | {m.healthy} |" for name, m in rows.items()]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _declared() -> str:
    """The metrics that terms declare, with what the function that computes each says of itself."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, block in registry.blocks.items():
        fn = block().fn
        if fn.__module__.startswith("selfteach."):
            for metric, measure in getattr(fn, "logged", {}).items():
                about = (inspect.getdoc(measure) or "").split("\n\n")[0].replace("\n", " ")
                found.setdefault((metric, about), []).append(name)
    lines = ["| name | what it means | of |", "| --- | --- | --- |"]
    for (metric, about), terms in sorted(found.items()):
        lines.append(f"| `{metric}` | {_cell(about)} | {', '.join(f'`{t}`' for t in sorted(terms))} |")
    return "\n".join(lines) + "\n"


def _rules() -> str:
    lines = ["| rule | when | try |", "| --- | --- | --- |"]
    lines += [f"| `{rule.name}` | {_cell(rule.condition)} | {_cell(rule.advice)} |" for rule in RULES]
    return "\n".join(lines) + "\n"
