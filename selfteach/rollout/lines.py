"""Episodes that search: a tree over the lines of an answer, or many answers, by what a value model says of unfinished text."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from typing import Any

from ..core import Request, block
from ..core.text import last_between


@dataclass(eq=False)
class Line:
    """A node of the search: the text up to the end of a line, its worth and how often it was gone through."""

    context: Any
    parent: Line | None = None
    depth: int = 0
    value: float = 0.0
    visits: int = 0
    ended: bool = False
    below: list[Line] = field(default_factory=list["Line"])

    def open(self, depth: int) -> bool:
        """Whether there is anything left to try below."""
        return not self.ended and self.depth < depth and (not self.below or any(c.open(depth) for c in self.below))

    def urgency(self, explore: float) -> tuple[float, float]:
        """UCT: V + explore sqrt(2 ln N_parent / N); whoever was never gone through comes first, the worthiest of them."""
        if not self.visits or self.parent is None:
            return math.inf, self.value
        return self.value + explore * math.sqrt(2 * math.log(max(1, self.parent.visits)) / self.visits), self.value

    def back_up(self) -> None:
        """Count a visit up to the root; a node is worth the mean of what is below, weighed by visits."""
        self.visits += 1
        node = self.parent
        while node is not None:
            node.visits += 1
            node.value = sum(c.visits * c.value for c in node.below) / sum(c.visits for c in node.below)
            node = node.parent


@block
async def line_search(
    *,
    request: Request,
    cast: Any,
    judge: str = "vm",
    rounds: int = 8,
    tokens: int = 0,
    branch: int = 3,
    ahead: int = 3,
    explore: float = 0.7,
    blend: float = 0.5,
    gate: float = 0.9,
    whole: bool = False,
    depth: int = 16,
    stop: tuple[str, ...] = (".",),
) -> str | None:
    """MCTS* over lines (Zhang et al. 2024, ReST-MCTS*, 2406.03816, algorithm 2): descend by UCT, write `branch` next lines, look ahead, back up.

    judge    the member whose scalar head values text: sigmoid of what it says after the last token
    rounds   expansions at most; tokens: none is begun once so many were drawn (0: no such bound)
    ahead    lines that are looked ahead from the best new one; it is worth (1 - blend) of its own value and blend of the best seen there
    gate     a finished answer worth as much ends the search; whole: it goes on all the same, for trees to learn from
    stop     what ends a line; a line without it ends the answer, which stands for the paper's question whether to go on

    Every line is noted with value, visits and ended; finished answers are closed, or the worthiest text where there is none. Returns the
    answer of the worthiest.
    """
    root, lines = Line(cast.policy.begin(request.task.prompt)), list[Line]()
    worth = valued(request, cast, judge)
    best: Line | None = None
    for _ in range(rounds):
        if not root.open(depth) or (tokens and cast.spent >= tokens) or (not whole and best is not None and best.value >= gate):
            break
        node = root
        while node.below:
            node = max((c for c in node.below if c.open(depth)), key=lambda c: c.urgency(explore))
        lines += await _expand(node, worth, branch, stop)
        if not node.below:
            node.ended = True  # nothing new came: no place to go on from
            continue
        top = max(node.below, key=lambda c: c.value)
        seen = await _look_ahead(top, worth, ahead, stop)
        if seen is not None:
            top.value = (1 - blend) * top.value + blend * seen
        top.back_up()
        best = max((c for c in lines if c.ended and c is not root), key=lambda c: c.value, default=None)
    for line in lines:
        line.context.note(value=line.value, visits=line.visits, ended=float(_finished(line)))
    done = [c for c in lines if _finished(c)] or [max(lines, key=lambda c: c.value, default=root)]
    for line in done:
        line.context.close()
    return last_between(cast.text(max(done, key=lambda c: c.value).context.at), "answer", None)


@block
async def best_of(
    *, request: Request, cast: Any, judge: str = "vm", n: int = 8, tokens: int = 0, stop: tuple[str, ...] = ("</answer>",)
) -> str | None:
    """Whole answers, of which the worthiest counts: `n` at most, and none is begun once so many `tokens` were drawn (0: no such bound)."""
    start, worth = cast.policy.begin(request.task.prompt), valued(request, cast, judge)
    found: list[tuple[float, int, Any]] = []
    while len(found) < n and not (tokens and cast.spent >= tokens):
        context = start.fork()
        await context.sample(stop=stop)
        found.append((await worth(context), -len(found), context))
        context.close()
    return last_between(cast.text(max(found)[2].at), "answer", None)


def valued(request: Request, cast: Any, judge: str) -> Any:
    """An async function of a context: what the judge's scalar head says after its last token, between 0 and 1."""
    reader = cast.member(judge).begin(request.task.prompt)
    skip = len(reader.ids)

    async def worth(context: Any) -> float:
        ids = context.ids[skip:]
        if not len(ids):
            return 0.0
        said = (await reader.score(ids, want=("scalar_after",)))["scalar_after"][-1]
        return 1 / (1 + math.exp(-float(said)))

    return worth


async def _expand(node: Line, worth: Any, branch: int, stop: tuple[str, ...]) -> list[Line]:
    """The different next lines among `branch` draws, valued."""
    forks = [node.context.fork() for _ in range(branch)]
    turns = await asyncio.gather(*(c.sample(stop=(*stop, "</answer>")) for c in forks))
    new = {t.text: Line(c, node, node.depth + 1, ended=_last(t.text, stop)) for c, t in reversed(list(zip(forks, turns, strict=True))) if t.text}
    node.below = list(new.values())[::-1]
    for line, value in zip(node.below, await asyncio.gather(*(worth(c.context) for c in node.below)), strict=True):
        line.value = value
    return node.below


async def _look_ahead(line: Line, worth: Any, ahead: int, stop: tuple[str, ...]) -> float | None:
    """The best value met while up to `ahead` more lines are written; None where there is nothing to look at."""
    seen: list[float] = []
    context, ended = line.context.fork(), line.ended
    while len(seen) < ahead and not ended:
        turn = await context.sample(stop=(*stop, "</answer>"))
        if not turn.text:
            break
        ended = _last(turn.text, stop)
        seen.append(await worth(context))
    return max(seen, default=None)


def _last(text: str, stop: tuple[str, ...]) -> bool:
    return "</answer>" in text or not any(s in text for s in stop)


def _finished(line: Line) -> bool:
    return line.ended and not line.below
