"""Which tasks are asked."""

from __future__ import annotations

from ..core import Group, Request, Source, Task, address, block, remembers


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
def reviewed(
    *,
    n: int,
    rollouts: int,
    back: list[list[Group]],
    source: Source,
    seed: int,
    step: int,
    state: int,
    program: str = "review",
    times: int = 1,
    every: int = 1,
) -> tuple[list[Request], int]:
    """As `uniform`, and in a second round `times` episodes of another program about each answer (one in the steps between each `every`).

    Such a request's help holds `output`, where the answer ends, and `reward`, its reward if it is known by then; its cause is the answer's
    group. Those about one answer are a group.
    """
    if len(back) > 1:
        return [], state
    if not back:
        first = start(seed) + state
        return [Request(source.train(first + i), rollouts) for i in range(n)], state + n
    often = 1 if step % every else times
    out: list[Request] = []
    for group in back[0]:
        scores = group.scores.get("reward", {})
        for leaf in [t.leaf for e in group.episodes for t in e.trajectories if t.learn is not None]:
            known = scores[leaf].value if leaf in scores else None
            out.append(Request(group.request.task, often, program, help={"output": leaf, "reward": known}, cause=group.key))
    return out, state


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
