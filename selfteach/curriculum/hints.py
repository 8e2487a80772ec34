"""Help where it is needed: a hint after failure, or as much of a solution as leaves half of the answers right."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from ..core import BadValue, Group, Request, Source, Task, block, remembers
from .response import fit
from .select import round_of, start


def guidance(task: Task, most: int | None = None) -> str:
    """The leading steps of a task's solution that do not give the answer away, as a line of their own; "" where there are none.

    Of the tag `steps` the last two (the answer, and the step that makes it) are never told, nor what says a gold answer as words of its
    own. most: at most so many steps.
    """
    steps = [re.sub(r"<[^<>]*>", "", s).strip() for s in task.tags.get("steps", ())[:-2]]
    golds = [str(task.answer)] if isinstance(task.answer, str | int | float) else [str(a) for a in task.answer or ()]
    told: list[str] = []
    for step in steps[:most]:
        if any(re.search(rf"(?<!\w){re.escape(gold.strip())}(?!\w)", step) for gold in golds):
            break
        told.append(step)
    return f" {' '.join(told)}\n" if told else ""


@block
@remembers(int)
def hint_failures(
    *,
    n: int,
    rollouts: int,
    back: list[list[Group]],
    source: Source,
    seed: int,
    tell: Callable[..., None],
    state: int,
    failed: float = 0.0,
    steps: int | None = None,
) -> tuple[list[Request], int]:
    """The next `n` tasks; those of which no rollout got more than `failed` are asked as often again with guidance, into the same group.

    Nath et al. 2025 (2506.13923). Tells the share of tasks that were guided (select/guided), and their mean reward then (select/opened).
    """
    if not back:
        first = start(seed) + state
        return [Request(source.train(first + i), rollouts) for i in range(n)], state + n
    if len(back) > 1:
        if found := [s.value for g in back[1] for s in g.scores.get("reward", {}).values() if s.value is not None]:
            tell(opened=sum(found) / len(found))
        return [], state
    lost = [g for g in back[0] if (known := _known(g)) and max(known) <= failed]
    hints = [(g, hint) for g in lost if (hint := guidance(g.request.task, steps))]
    tell(guided=len(hints) / max(1, len(back[0])), failed=len(lost) / max(1, len(back[0])))
    return [Request(g.request.task, rollouts, key=g.key, help={"hint": hint}, cause=g.key) for g, hint in hints], state


def _known(group: Group) -> list[float]:
    return [s.value for s in group.scores.get("reward", {}).values() if s.value is not None]


def prefix(text: str, rate: float) -> str:
    """The first share `rate` of a text's words, spaces before them included; never the last word.

    >>> prefix("a b c d", 0.5), prefix("a b", 1.0)
    ('a b', 'a')
    """
    words = re.findall(r"\s*\S+", text)
    return "".join(words[: min(int(rate * len(words)), len(words) - 1)])


@block
@remembers(lambda: {"next": 0, "rates": {}})
def responsive_hints(
    *,
    n: int,
    rollouts: int,
    back: list[list[Group]],
    source: Source,
    seed: int,
    tell: Callable[..., None],
    state: dict[str, Any],
    rounds: int = 4,
    target: float = 0.5,
    size: int = 256,
    first: float = 0.0,
    highest: float = 0.95,
    fixed: float | None = None,
) -> tuple[list[Request], dict[str, Any]]:
    """`n` tasks of a pool of `size`, their `rollouts` in `rounds` rounds with more or less of the solution shown, all in one group each.

        round 1 shows what the task's last visit ended with (`first` where there was none); after each, f is fitted to this visit's
        (rate, accuracy) pairs and the next shows l = f^-1(target), within 0 and `highest`                       (`response.fit`)

    Li et al. 2025 (2509.06923), section 3. The hint is the first share l of the words of the tag `solution`. fixed: show this much
    always, in one round. Tells the mean rate of the step's rollouts (select/hint) and of its last round (select/ends).
    Raises BadValue where a task has no solution.
    """
    rounds = 1 if fixed is not None else min(rounds, rollouts)
    sizes = [rollouts // rounds + (i < rollouts % rounds) for i in range(rounds)]
    if not back:
        tasks = round_of(source, seed, state["next"], n, size)
        rates = [float(state["rates"].get(t.id, first)) if fixed is None else fixed for t in tasks]
        return [_shown(t, rate, sizes[0], None) for t, rate in zip(tasks, rates, strict=True)], {**state, "next": state["next"] + n}
    nexts = [_next_rate(list(groups), target, highest) if fixed is None else fixed for groups in zip(*back, strict=True)]
    if len(back) < rounds:
        asked = zip(back[0], nexts, strict=True)
        return [_shown(g.request.task, rate, sizes[len(back)], g.key) for g, rate in asked], state
    shown = [(g.request.help["rate"], g.request.n) for round_ in back for g in round_]
    ends = [g.request.help["rate"] for g in back[-1]]
    tell(hint=math.fsum(r * k for r, k in shown) / sum(k for _, k in shown), ends=math.fsum(ends) / len(ends))
    learned = {g.request.task.id: rate for g, rate in zip(back[0], nexts, strict=True)}
    return [], {**state, "rates": {**state["rates"], **learned}}


def _shown(task: Task, rate: float, n: int, key: str | None) -> Request:
    if "solution" not in task.tags:
        raise BadValue(f"select: task {task.id} has no tag 'solution' to take hints from; take a task that has worked solutions")
    return Request(task, n, key=key, help={"hint": prefix(str(task.tags["solution"]), rate), "rate": rate})


def _next_rate(visit: list[Group], target: float, highest: float) -> float:
    """Where the curve through one task's rounds comes to the target."""
    points = [(float(g.request.help["rate"]), math.fsum(known) / len(known), len(known)) for g in visit if (known := _known(g))]
    return min(max(fit(points).inverse(target), 0.0), highest)
