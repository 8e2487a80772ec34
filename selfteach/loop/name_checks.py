"""Whether all that a method's blocks name is there to be given to them: checked before any work."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ..core.batch import ROWS
from ..core.blocks import Block, provided
from ..core.errors import unknown
from ..core.method import Method, Stage
from ..core.quantity import parse
from ..core.registry import quantities
from ..core.scoring import nested

SELECT = frozenset({"n", "rollouts", "finished_rounds", "history", "source", "step", "seed", "log_metrics", "state"})
PROGRAM = frozenset({"request", "rollout"})
COMPOSER = frozenset({"groups", "history", "context", "source", "state"})
REWARD = {  # by what a reward is asked about: all groups of a step, a group, a trajectory
    "groups": frozenset({"groups", "context", "deadline", "history", "state"}),
    "group": frozenset({"group", "context", "deadline", "history"}),
    "": frozenset({"text", "answer", "task", "path", "context"}),
}
INDEX = frozenset({"step", "seq", "group", "batch", "episode", "win", "lose"})
COMPOSED = frozenset(
    {"reward", "truncated", "off_context", "adv", "task", "category", "role"}
)  # what most composers give
REMEMBERED = frozenset({"state", "history"})


def check_names(method: Method) -> None:
    """Raises UnknownName for the first input or column that no block or forward pass of a stage gives."""
    for stage in method.stages:
        _check("select", stage.select, SELECT)
        for program in stage.programs.values():
            _check("program", program, PROGRAM)
        for reward in stage.reward:
            _check_reward(reward)
        for part in stage.credit:
            if "groups" in part.needs:
                _check("composer", part, COMPOSER)
        _check_columns(method, stage)


def _check(kind: str, part: Block, known: Collection[str]) -> None:
    for name in part.needs:
        if name not in known:
            raise unknown(f"input of the {kind} {part.name}", name, known)


def _check_reward(part: Block) -> None:
    """Check a reward, and those that it is made of: one that asks others names the deadline."""
    _check("reward", part, REWARD[next((n for n in ("groups", "group") if n in part.needs), "")])
    if "deadline" in part.needs:
        for inner in nested(part):
            _check_reward(inner)


def _check_columns(method: Method, stage: Stage) -> None:
    assigners = [p for p in stage.credit if "groups" not in p.needs] + [p for u in stage.updates for p in u.assign]
    extra = _provided([*stage.reward, *stage.credit, *assigners])
    given = {*ROWS, *INDEX, *COMPOSED, *extra}
    terms = [t for u in stage.updates for t in u.terms]
    readers = [("assigner", p, REMEMBERED) for p in assigners]
    readers += [("filter", u.where, frozenset[str]()) for u in stage.updates if u.where]
    readers += [("term", t.fn, frozenset[str]()) for t in terms]
    readers += [("weighting", t.loss_weights, frozenset({"length"})) for t in terms if t.loss_weights]
    for kind, part, more in readers:
        for name in (part.reads.get(n, n) for n in part.needs):
            recorded = name.startswith("old_") and name.removeprefix("old_") in quantities
            if not (name in given or name in more or recorded or parse(name, method.models, extra)):
                raise unknown(f"column that the {kind} {part.name} can read", name, given | more | set(quantities))


def _provided(parts: Iterable[Block]) -> set[str]:
    return {name for part in parts for name in (*provided(part), *_provided(nested(part)))}
