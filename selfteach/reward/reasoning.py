"""reasoning-gym's own scorers, in a process of their own that is killed where one does not end.

Nine of its sets evaluate an answer as code. What reaches these is first checked to be made of such characters alone
that nothing can be called; everything else is a wrong answer.
"""

from __future__ import annotations

import json
import re
from typing import Any

from ..core import Score, Task, block
from .worker_process import WorkerProcess, score_apart

LONGEST = 20_000  # characters of an answer that is scored
_FUNCTIONS = {
    "sin",
    "cos",
    "tan",
    "sec",
    "csc",
    "cot",
    "sinh",
    "cosh",
    "tanh",
    "asin",
    "acos",
    "atan",
    "exp",
    "log",
} | {*("ln", "sqrt", "pi", "Abs", "C", "E")}
_LITERAL = re.compile(r"[\dA-Z_\s,\[\]'\"]*")
_ARITHMETIC = re.compile(r"(?:[\d\s()+\-/]|\*(?!\s*\*))*")
_SYMBOLIC = re.compile(r"[\w\s()+\-*/]*")
_POWERS = re.compile(r"\*\*\s*\d{3,}|\*\*\s*\w+\s*\*\*|\*\*\s*\([^)]*\*\*|\d{12,}")  # that would never be computed
CODE_SETS = {
    **dict.fromkeys(("binary_matrix", "n_queens", "spiral_matrix", "string_insertion"), "literal"),
    **dict.fromkeys(("countdown", "puzzle24"), "arithmetic"),
    **dict.fromkeys(("simple_integration", "intermediate_integration", "polynomial_multiplication"), "symbolic"),
}


def harmless(name: str, answer: str) -> bool:
    """Whether an answer may be given to the scorer of a set: of the nine that evaluate it, only what calls nothing.

    >>> harmless("countdown", "94*4 - 61"), harmless("countdown", "__import__('os')"), harmless("countdown", "9**9**9")
    (True, False, False)
    """
    kind = CODE_SETS.get(name)
    if len(answer) > LONGEST or (kind in ("arithmetic", "symbolic") and len(answer) > 500):
        return False
    if kind == "literal":
        return _LITERAL.fullmatch(answer) is not None
    if kind == "arithmetic":
        return _ARITHMETIC.fullmatch(answer) is not None
    if kind == "symbolic":
        words = re.findall(r"[^\W\d]\w*", answer)
        named = all(w in _FUNCTIONS or re.fullmatch(r"[A-Za-z]", w) for w in words)
        return named and _SYMBOLIC.fullmatch(answer) is not None and not _POWERS.search(answer)
    return True


_scorer = WorkerProcess("reward.reasoning_worker", "reasoning-gym")


@block
def reasoning_score(
    *, answer: Any, task: Task, config: str = "{}", partial: bool = False, seconds: float = 20.0
) -> Score:
    """The score of reasoning-gym's own scorer of the task's set; 1 or 0 unless partial scores are asked for.

    config   options of the sets, by name, as JSON
    partial  the scorer's own score, which gives 0.01 to 0.1 to nonsense in many sets; else 1 where it is 1, and 0
    seconds  an answer that takes longer has no score

    The answer is stripped (a blank before it costs half of the sets their point). One on which the scorer raises is
    wrong. Part: scorer, its own score.
    """
    name, index = task.tags["dataset"], task.tags["index"]
    text = "" if answer is None else str(answer).strip()
    options = json.loads(config).get(name, {})
    request = {"set": name, "options": options, "index": index, "answer": text, "seconds": seconds}
    return score_apart(_scorer, name, text, harmless(name, text), request, partial)
