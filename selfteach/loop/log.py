"""The event log of a run: one line of JSON per event, and the rollouts of every step as arrays. Append-only; a viewer
reads it live.

log/events.jsonl          {"event": "step", "step": 3, "reward": 0.41, ...}
log/rollouts/000003.npz   of that step's episodes tokens, nodes, trajectories, scores, calls of tools, and of learned
                          tokens the advantage and what else was computed (`learned_arrays`); no pickle inside
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np

from ..core.batch import Batch
from ..core.disk import disk_errors
from ..core.errors import BadCheckpoint, describe, unknown
from ..core.serial import from_json, plain_text, to_json
from ..core.task import Ref
from ..core.tree import RolloutGroup, Tree

TOKENS = ("id", "action_mask", "logp", "version", "span")
METADATA = "metadata"  # the array that holds the JSON
# What readers of these events rely on; a line without it is broken.
EVENTS = "events.jsonl"
MARK_BYTES = 256  # before a place in the events, by which a log that was cut back meanwhile is known
WINDOW_BYTES = 1 << 16  # of a sample of a log that is too large to be read whole
HOLDS = {
    "step": {"event", "step"},
    "eval": {"event", "step"},
    "final_eval": {"event", "when", "step", "figures"},
    "warning": {"event", "step", "rule", "text", "advice"},
    "warning_over": {"event", "step", "rule"},
}
NODES = ("parent", "cut", "begin", "by", "sampling")


class RunLog:
    """Writes the log of one run folder."""

    def __init__(self, folder: Path, offset: int | None = None) -> None:
        """`offset`: truncate the events to their size at a checkpoint, so that repeated steps are logged once; None:
        keep all complete lines. `missing`: bytes of these that are not there any more.
        """
        self.folder = folder
        self.file = folder / EVENTS
        with disk_errors(folder):
            (folder / "rollouts").mkdir(parents=True, exist_ok=True)
            if self.file.exists():
                with self.file.open("r+b") as f:
                    data = f.read() if offset is None else f.read(offset)
                    f.truncate(data.rfind(b"\n") + 1)
        self.missing = max(0, (offset or 0) - self.offset)
        self._hash = hashlib.blake2b(self._begin(), digest_size=16)

    def _begin(self, size: int | None = None) -> bytes:
        """The first bytes of the file of events."""
        with disk_errors(self.file):
            return self.file.read_bytes()[:size] if self.file.exists() else b""

    @property
    def hash(self) -> str:
        """A hash of the events so far."""
        return self._hash.hexdigest()

    def changed(self, size: int, before: str | None) -> bool:
        """Whether the first bytes of the events are others than those that had the hash `before` (None: unknown)."""
        return before is not None and hashlib.blake2b(self._begin(size), digest_size=16).hexdigest() != before

    @property
    def offset(self) -> int:
        """Bytes of the file of events."""
        return self.file.stat().st_size if self.file.exists() else 0

    def event(self, event: str, **values: Any) -> None:
        """Append one event. Numbers that are not finite become null."""
        line = plain_text({"event": event, **values})
        with disk_errors(self.file), self.file.open("a", encoding="utf-8") as f:
            f.write(line + "\n")
        self._hash.update(line.encode() + b"\n")

    def rollouts(
        self,
        step: int,
        groups: Sequence[RolloutGroup],
        batch: Batch | None,
        dropped: Mapping[str, str] | None = None,
    ) -> None:
        """Write a step's episodes, whole or not at all; `dropped` as in `pack`."""
        file = self.folder / "rollouts" / f"{step:06d}.npz"
        temporary = file.with_suffix(".new")
        packed = pack(groups, batch, dropped)
        with disk_errors(file):
            with temporary.open("wb") as f:
                f.write(packed)
            os.replace(temporary, file)

    def remove_from(self, step: int) -> None:
        """Remove the rollouts of `step` and later ones, which are about to be repeated."""
        with disk_errors(self.folder):
            for file in (self.folder / "rollouts").glob("*.npz"):
                if file.stem.isdigit() and int(file.stem) >= step:
                    file.unlink()


def pack(groups: Sequence[RolloutGroup], batch: Batch | None, dropped: Mapping[str, str] | None = None) -> bytes:
    """The episodes of some groups as one npz: token and node arrays end to end, and all else as JSON.

    dropped  name of an example that is not in the batch -> why
    """
    episodes = [(g, e) for g in groups for e in g.episodes]
    arrays: dict[str, np.ndarray] = {
        "token_start": np.cumsum([0] + [len(e.tree) for _, e in episodes]),
        "node_start": np.cumsum([0] + [len(e.tree.parent) for _, e in episodes]),
    }
    for name in TOKENS:
        arrays[name] = np.concatenate([getattr(e.tree, name) for _, e in episodes]) if episodes else np.zeros(0)
    for name in NODES:
        arrays[name] = np.array([v for _, e in episodes for v in getattr(e.tree, name)], np.int32)
    for name in sorted({n for _, e in episodes for n in e.tree.recorded}):
        rows = [e.tree.recorded.get(name, np.full(len(e.tree), np.nan, np.float32))[: len(e.tree)] for _, e in episodes]
        arrays["recorded/" + name] = np.concatenate(rows)
    if batch is not None:
        arrays |= learned_arrays(batch)
    samplings = cache(to_json)  # those of a step are few, and every sampled node has one
    metadata = {
        "groups": [
            {"key": g.key, "request": _request(g), "episodes": len(g.episodes), "scores": _scores(g)} for g in groups
        ],
        "episodes": [
            {
                "id": e.id,
                "status": e.status,
                "why": e.why,
                "answer": e.answer,
                "cost": e.cost,
                "calls": [list(c) for c in e.calls],
                "trajectories": [to_json(t) for t in e.trajectories],
                "spans": e.tree.spans,
                "roles": e.tree.roles,
                "samplings": [samplings(s) for s in e.tree.samplings],
                "origin": {str(n): to_json(r) for n, r in e.tree.origin.items()},
                "notes": {str(n): v for n, v in e.tree.notes.items()},
            }
            for _, e in episodes
        ],
        "learned": list(batch.names) if batch is not None else [],
        "dropped": dict(dropped or {}),
    }
    arrays[METADATA] = np.frombuffer(plain_text(metadata).encode(), np.uint8)
    out = io.BytesIO()
    np.savez(out, allow_pickle=False, **arrays)
    return out.getvalue()


def learned_arrays(batch: Batch) -> dict[str, np.ndarray]:
    """What the log keeps of a batch's learned tokens, end to end; nothing is computed for it.

    learned/length     i64[S]  tokens of each sequence
    learned/adv ...    f32[N]  advantage, return, reward; entropy where the method reads it
    learned/gap        f32[n]  the engine's minus the learner's log-probability of the tokens learned/gap_rows (i32[n]):
                               all where the method reads the learner's, else those of which the mismatch is measured
    learned/version    i64[1]  of the policy that learned
    """
    arrays: dict[str, np.ndarray] = {"learned/length": batch.lengths()}
    for name in ("adv", "returns", "reward", "entropy"):
        if name in batch.columns and np.ndim(batch.get(name)) == 1:
            arrays[f"learned/{name}"] = np.asarray(batch.get(name), np.float32)
    if "learner_version" in batch.columns:
        arrays["learned/version"] = np.asarray(batch.get("learner_version", "batch"))
    learner = next((n for n in ("logp", "prox_logp") if n in batch.columns), None)
    if learner and "old_logp" in batch.columns:
        gap = np.asarray(batch.get("old_logp"), np.float64) - np.asarray(batch.get(learner), np.float64)
    elif "logprob_gap" in batch.columns:
        gap = np.asarray(batch.get("logprob_gap"))
    else:
        return arrays
    rows = np.flatnonzero(np.isfinite(gap))
    return arrays | {"learned/gap_rows": rows.astype(np.int32), "learned/gap": gap[rows].astype(np.float32)}


def _request(group: RolloutGroup) -> Any:
    try:
        return to_json(group.request)
    except TypeError:  # a task may hold any value; the log of it is for people
        return str(group.request)


def _scores(group: RolloutGroup) -> list[dict[str, Any]]:
    return [
        {"column": column, "at": list(at), "value": s.value, "parts": dict(s.parts), "why": s.why, "error": s.error}
        for column, places in group.scores.items()
        for at, s in places.items()
    ]


def read_metadata(file: Path) -> dict[str, Any]:
    """What a rollout file says of its groups and episodes, without their tokens. Raises BadCheckpoint."""
    return _read(file, (METADATA,))[1]


def _read(file: Path | BinaryIO, names: Sequence[str] | None = None) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    try:
        with np.load(file, allow_pickle=False) as data:
            arrays = {n: data[n] for n in names or data.files}
        return arrays, json.loads(arrays[METADATA].tobytes())
    except Exception as error:  # zip, NumPy and JSON each have their own
        raise BadCheckpoint(f"{file}: not a rollout file of this run ({describe(error)})") from error


class Rollouts:
    """The episodes of one step, read back."""

    def __init__(self, file: Path | BinaryIO) -> None:
        """Raises BadCheckpoint for a file that is not a rollout file."""
        self.arrays, self.metadata = _read(file)
        self.index = {e["id"]: n for n, e in enumerate(self.metadata["episodes"])}

    def __iter__(self) -> Iterator[str]:
        return iter(self.index)

    def groups(self) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
        """Each group with its episodes, as they are stored, in order."""
        episodes = iter(self.metadata["episodes"])
        for group in self.metadata["groups"]:
            yield group, [next(episodes) for _ in range(group["episodes"])]

    def advantages(self) -> dict[str, np.ndarray]:
        """The advantages of the learned tokens of each example, by its name; empty where the step has none."""
        return self.learned("adv")

    def learned(self, column: str) -> dict[str, np.ndarray]:
        """A column of the learned tokens of each example (`learned_arrays`), by its name; empty where the log has it
        not. `gap` is NaN where it is not known.
        """
        if "learned/" + column not in self.arrays:
            return {}
        lengths, values = self.arrays["learned/length"], self.arrays["learned/" + column]
        if column == "gap":
            known, values = values, np.full(int(lengths.sum()), np.nan, np.float32)
            values[self.arrays["learned/gap_rows"]] = known
        return dict(zip(self.metadata["learned"], np.split(values, np.cumsum(lengths)[:-1]), strict=True))

    @property
    def learner_version(self) -> int | None:
        """The version of the policy that learned from the step; None where nothing did, or in an older log."""
        return int(self.arrays["learned/version"][0]) if "learned/version" in self.arrays else None

    def tree(self, episode: str) -> Tree:
        """The tree of an episode, equal to the one that was written."""
        n = self.index[episode]
        about, tree = self.metadata["episodes"][n], Tree()
        (a, z), (i, j) = self.arrays["token_start"][n : n + 2], self.arrays["node_start"][n : n + 2]
        tree.adopt_arrays(
            {name: self.arrays[name][a:z] for name in TOKENS},
            {name: self.arrays[name][i:j].tolist() for name in NODES},
            {k.removeprefix("recorded/"): v[a:z] for k, v in self.arrays.items() if k.startswith("recorded/")},
        )
        tree.spans, tree.roles = about["spans"], about["roles"]
        tree.samplings = [from_json(s) for s in about["samplings"]]
        tree.origin = {int(k): Ref(*from_json(v)) for k, v in about["origin"].items()}
        tree.notes = {
            int(k): {n: tuple(v) if isinstance(v, list) else v for n, v in notes.items()}
            for k, notes in about["notes"].items()
        }
        return tree


class RolloutArchive:
    """The trees of earlier steps, read from a run's log for replay."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read = lru_cache(maxsize=8)(lambda step: Rollouts(folder / "rollouts" / f"{step:06d}.npz"))

    def tree(self, episode: str) -> Tree:
        """Raises UnknownName for an episode that this run never logged."""
        words = episode.split("/")
        if len(words) < 2 or not words[1].isdigit():
            raise unknown("logged episode", episode, [])
        rollouts = self._read(int(words[1]))
        if episode not in rollouts.index:
            raise unknown("logged episode", episode, rollouts.index)
        return rollouts.tree(episode)


def logged_steps(log: Path) -> list[int]:
    """The steps whose rollouts a run's log (RUN/log) has, ascending."""
    return sorted(int(f.stem) for f in (log / "rollouts").glob("*.npz") if f.stem.isdigit())


def read_events(folder: Path) -> list[dict[str, Any]]:
    """The events of a run, oldest first; a line that is broken (the last one, cut short by a kill) is left out."""
    file = folder / EVENTS
    return _events_of(file.read_bytes()) if file.exists() else []


def _events_of(lines: bytes) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for line in lines.splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            event = json.loads(line)
            if isinstance(event, dict) and event.keys() >= HOLDS.get(event.get("event", ""), {"event"}):
                out.append(cast("dict[str, Any]", event))
    return out


class EventPage(NamedTuple):
    """Some events of a log that may grow meanwhile.

    offset  bytes of the log that are behind them: where the next page begins; mark: of what stands before it
    size    bytes of the log
    anew    the log is not the one of which an earlier page told (a resumed run cuts it back): these are its first
    sampled it is larger than what was to be read: these are its ends and places evenly between
    """

    events: list[dict[str, Any]]
    offset: int
    mark: str
    size: int
    anew: bool = False
    sampled: bool = False


def read_events_after(folder: Path, offset: int = 0, mark: str = "", most: int = 1 << 25) -> EventPage:
    """The events of a run after `offset` bytes of its log, of an earlier page's (offset, mark): what is new of a live
    run, without reading it all again. A last line that is not ended yet belongs to the next page.

    most: bytes to read; of a log with more left, a sample (see EventPage), so that 5 GB are as quick as 50 MB.
    """
    try:
        with (folder / EVENTS).open("rb") as f:
            size = os.fstat(f.fileno()).st_size
            anew = offset > 0 and (offset > size or _mark(f, offset) != mark)
            begin = 0 if anew else offset
            end = _line_end(f, size, begin)
            lines, sampled = _lines(f, begin, end, most)
            return EventPage(_events_of(lines), end, _mark(f, end), size, anew, sampled)
    except FileNotFoundError:
        return EventPage([], 0, "", 0, offset > 0)


def read_events_between(folder: Path, first: int, last: int, most: int = 1 << 25) -> EventPage:
    """The events of the steps `first` to `last` of a run, found by bisection of its log; `most` as in
    `read_events_after`.
    """
    try:
        with (folder / EVENTS).open("rb") as f:
            size = os.fstat(f.fileno()).st_size
            begin, end = _place_of_step(f, first, size), _place_of_step(f, last + 1, size)
            lines, sampled = _lines(f, begin, _line_end(f, end, begin), most)
            return EventPage(_events_of(lines), end, _mark(f, end), size, False, sampled)
    except FileNotFoundError:
        return EventPage([], 0, "", 0)


def last_events(folder: Path, most: int = WINDOW_BYTES) -> list[dict[str, Any]]:
    """The events in the last `most` bytes of a log: how far a run is."""
    try:
        with (folder / EVENTS).open("rb") as f:
            size = os.fstat(f.fileno()).st_size
            return _events_of(_window(f, max(0, size - most), size))
    except FileNotFoundError:
        return []


def _mark(f: BinaryIO, offset: int) -> str:
    f.seek(max(0, offset - MARK_BYTES))
    return hashlib.blake2b(f.read(min(MARK_BYTES, offset)), digest_size=8).hexdigest()


def _line_end(f: BinaryIO, upto: int, begin: int) -> int:
    """The place after the last whole line before `upto`; `begin` where there is none after it."""
    at = upto
    while at > begin:
        start = max(begin, at - WINDOW_BYTES)
        f.seek(start)
        found = f.read(at - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        at = start
    return begin


def _window(f: BinaryIO, start: int, stop: int) -> bytes:
    """The whole lines that begin in start:stop and end there."""
    f.seek(max(0, start - 1))
    data = f.read(stop - max(0, start - 1))
    first = data.find(b"\n") + 1 if start else 0
    return data[first : data.rfind(b"\n") + 1] if first or not start else b""


def _lines(f: BinaryIO, begin: int, end: int, most: int) -> tuple[bytes, bool]:
    """(whole lines of begin:end, whether they are a sample): all, or windows of it that are `most` bytes together."""
    if end - begin <= most:
        f.seek(begin)
        return f.read(end - begin), False
    count = max(3, most // WINDOW_BYTES)
    places = [begin + (end - WINDOW_BYTES - begin) * i // (count - 1) for i in range(count)]
    return b"".join(_window(f, at, at + WINDOW_BYTES) for at in places), True


def _place_of_step(f: BinaryIO, step: int, size: int) -> int:
    """The place of the first line of that step or a later one. Steps rise along a log; evaluations stand among them."""
    low, high = 0, size
    while high - low > WINDOW_BYTES:
        middle = (low + high) // 2
        there = _first_step(f, middle, high)
        if there is None or there >= step:
            high = middle
        else:
            low = middle
    f.seek(low)
    data = f.read(high - low + WINDOW_BYTES)
    at = 0 if low == 0 else data.find(b"\n") + 1
    while 0 <= at < len(data):
        after = data.find(b"\n", at) + 1
        events = _events_of(data[at:after]) if after else []
        if not after or (events and events[0].get("step", -1) >= step):
            break
        at = after
    return low + at


def _first_step(f: BinaryIO, start: int, stop: int) -> int | None:
    """The step of the first event of a step that begins after `start`."""
    while start < stop:
        for event in _events_of(_window(f, start, min(stop, start + WINDOW_BYTES))):
            if event["event"] == "step":
                return event["step"]
        start += WINDOW_BYTES // 2
    return None
