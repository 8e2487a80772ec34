"""Which tasks are asked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core import BadValue, Group, Ref, Request, Source, Task, address, block, remembers

LOOK = 64  # demonstrations looked at to see which styles a task shows


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
def reworded(*, n: int, rollouts: int, back: list[list[Group]], source: Source, seed: int, state: int) -> tuple[list[Request], int]:
    """The next n / 2 tasks of the source, each asked in both its wordings: the prompt, and the tag `paraphrase`.

    The other wording is a task of its own, whose tag `same_as` names the first. Raises BadValue for a task that has no other wording.
    """
    if back:
        return [], state
    first, count = start(seed) + state, max(1, n // 2)
    pairs = [source.train(first + i) for i in range(count)]
    return [Request(t, rollouts) for task in pairs for t in (task, other_wording(task, source))], state + count


def other_wording(task: Task, source: Source) -> Task:
    """The same question in its other wording, put as the source puts its questions."""
    if "paraphrase" not in task.tags:
        raise BadValue(f"task {source.name}: its questions come in one wording (no tag `paraphrase`); take chain_sum or countdown")
    told: Any = task.tags["paraphrase"]
    other = replace(task, id=f"{task.id}/reworded", prompt=told, tags={**task.tags, "same_as": task.id})
    if isinstance(task.prompt, str):
        return other
    return replace(other, prompt=source.chat(other) if source.chat else [{"role": "user", "content": told.strip()}])


@block
@remembers(int)
def demonstrations(*, n: int, rollouts: int, back: list[list[Group]], source: Source, state: int) -> tuple[list[Request], int]:
    """The next `n` demonstrations of the source, for programs that read."""
    del rollouts
    if back or source.demos is None:
        return [], state
    return [Request(source.demos(state + i), 1) for i in range(n)], state + n


@block
@remembers(lambda: {"taken": 0, "seen": 0, "known": []})
def experts(
    *, n: int, back: list[list[Group]], source: Source, state: dict[str, Any], pool: int = 512, style: str = "", program: str = "main"
) -> tuple[list[Request], dict[str, Any]]:
    """The next `n` demonstrations of an expert, for a program that reads.

    The expert's set is the first `pool` demonstrations that are right (tag `slip` empty) and, where the task shows several styles, of one
    `style`; it is gone round and round. Raises BadValue where the source has none.
    """
    if back:
        return [], state
    wanted = range(state["taken"], state["taken"] + n)
    state = _more_experts(source, state, min(wanted.stop, pool), style)
    assert source.demos is not None
    return [Request(source.demos(state["known"][i % pool]), 1, program) for i in wanted], {**state, "taken": wanted.stop}


@block
@remembers(lambda: {"asked": 0, "taken": 0, "seen": 0, "known": []})
def with_experts(
    *,
    n: int,
    rollouts: int,
    back: list[list[Group]],
    source: Source,
    seed: int,
    state: dict[str, Any],
    batch: int = 32,
    pool: int = 512,
    style: str = "",
    program: str = "expert",
) -> tuple[list[Request], dict[str, Any]]:
    """The next `n` tasks as `uniform` asks them, and beside them `batch` demonstrations as `experts` does, for the program `program`."""
    asked, count = uniform(n=n, rollouts=rollouts, back=back, source=source, seed=seed, state=state["asked"])
    shown, state = experts(n=batch, back=back, source=source, state=state, pool=pool, style=style, program=program)
    return [*asked, *shown], {**state, "asked": count}


def _more_experts(source: Source, state: dict[str, Any], count: int, style: str) -> dict[str, Any]:
    """Go on through the demonstrations until `count` of the expert's are known: numbers, and how many were looked at."""
    if source.demos is None:
        raise BadValue(f"task {source.name}: has no demonstrations, and the method learns from an expert's")
    known, seen = list(state["known"]), state["seen"]
    styles = {source.demos(i).tags.get("style") for i in range(LOOK)} if style and len(known) < count else set[Any]()
    while len(known) < count:
        tags = source.demos(seen).tags
        if not tags.get("slip") and (style not in styles or tags.get("style") == style):
            known.append(seen)
        seen += 1
        if seen > 1000 * (len(known) + 1):
            raise BadValue(f"task {source.name}: only {len(known)} of {seen} demonstrations are an expert's (no slip, style {style or 'any'})")
    return {**state, "known": known, "seen": seen}


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
