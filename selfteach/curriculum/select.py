"""Which tasks are asked."""

from __future__ import annotations

from typing import Any

from ..core import Group, Ref, Request, Source, Task, address, block, remembers


@block
@remembers(int)
def uniform(*, n: int, rollouts: int, back: list[list[Group]], source: Source, seed: int, state: int) -> tuple[list[Request], int]:
    """The next `n` tasks of the source, `rollouts` episodes of each."""
    if back:
        return [], state
    first = start(seed) + state
    return [Request(source.train(first + i), rollouts) for i in range(n)], state + n


@block
@remembers(int)
def demonstrations(*, n: int, rollouts: int, back: list[list[Group]], source: Source, state: int) -> tuple[list[Request], int]:
    """The next `n` demonstrations of the source, for programs that read."""
    del rollouts
    if back or source.demos is None:
        return [], state
    return [Request(source.demos(state + i), 1) for i in range(n)], state + n


@block
@remembers(int)
def refill(*, n: int, rollouts: int, back: list[list[Group]], source: Source, seed: int, state: int, rounds: int = 4) -> tuple[list[Request], int]:
    """Ask on until `n` groups carry a gradient, in at most `rounds` rounds (Yu et al. 2025, DAPO, dynamic sampling).

    A group carries one where its known rewards differ. Each round asks for as many as are missing.
    """
    missing = n - sum(mixed(g) for round_ in back for g in round_)
    if missing <= 0 or len(back) >= rounds:
        return [], state
    first = start(seed) + state
    return [Request(source.train(first + i), rollouts) for i in range(missing)], state + missing


@block
@remembers(int)
def pool(
    *, n: int, rollouts: int, back: list[list[Group]], source: Source, seed: int, state: int, size: int = 128, held_out: bool = False
) -> tuple[list[Request], int]:
    """Go round and round a fixed set of tasks, in an order of its own in each epoch; `state` counts what has been asked.

    size: the first so many tasks of the source. held_out: its test questions instead (at most `size`), for what learns without labels.
    """
    if back:
        return [], state
    return [Request(task, rollouts) for task in round_of(source, seed, state, n, size, held_out)], state + n


@block
@remembers(lambda: {"asked": 0, "last": {}})
def revisit(
    *, n: int, rollouts: int, back: list[list[Group]], source: Source, seed: int, state: dict[str, Any], size: int = 128
) -> tuple[list[Request], dict[str, Any]]:
    """As `pool`, and with what was said at a task's last visit, for programs that begin with drafts.

    A request's help: `lots`, a name that is the same at every visit (of a task that is twice in a step the second has another), and `drafts`,
    for each episode the Ref of what it came to at the last visit, None where there is none. The state holds Refs into the run's log.
    """
    if back:
        last = {g.request.help["lots"]: [list(e.trajectories[-1].leaf) if e.trajectories else None for e in g.episodes] for g in back[0]}
        return [], {**state, "last": {**state["last"], **last}}
    out: list[Request] = []
    for task in round_of(source, seed, state["asked"], n, size):
        lots = f"{task.id}/{sum(r.task.id == task.id for r in out)}"
        drafts = [Ref(*d) if d else None for d in state["last"].get(lots, ())]
        out.append(Request(task, rollouts, help={"lots": lots, "drafts": (*drafts, *[None] * (rollouts - len(drafts)))}))
    return out, {**state, "asked": state["asked"] + n}


def round_of(source: Source, seed: int, first: int, n: int, size: int, held_out: bool = False) -> list[Task]:
    """Tasks `first` to `first + n - 1` of the endless walk through a fixed set, each epoch in an order of its own."""
    count = min(size, len(source.test)) if held_out else size
    out: list[Task] = []
    for i in range(first, first + n):
        epoch, place = divmod(i, count)
        number = int(address.generator(seed, "epoch", epoch).permutation(count)[place])
        out.append(source.test[number] if held_out else source.train(start(seed) + number))
    return out


def start(seed: int) -> int:
    """Where in the endless source a run of this seed begins, so that other seeds meet other tasks."""
    return address.key(seed, "tasks") % 2**31


def mixed(group: Group) -> bool:
    """True where a group's known rewards are not all alike."""
    return len({s.value for s in group.scores.get("reward", {}).values() if s.value is not None}) > 1
