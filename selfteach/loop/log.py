"""The event log of a run: one line of JSON per event, and the rollouts of every step as arrays. Append-only; a viewer
reads it live.

log/events.jsonl          {"event": "step", "step": 3, "reward": 0.41, ...}
log/rollouts/000003.npz   tokens, nodes, trajectories, scores, advantages of that step's episodes; no pickle inside
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
from typing import Any, cast

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
        self.file = folder / "events.jsonl"
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
        arrays["learned/length"] = batch.lengths()
        for name in ("adv", "returns", "reward"):
            if name in batch.columns:
                arrays[f"learned/{name}"] = np.asarray(batch.get(name), np.float32)
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


class Rollouts:
    """The episodes of one step, read back."""

    def __init__(self, file: Path) -> None:
        """Raises BadCheckpoint for a file that is not a rollout file."""
        try:
            with np.load(file, allow_pickle=False) as data:
                self.arrays = {n: data[n] for n in data.files}
            self.metadata = json.loads(self.arrays[METADATA].tobytes())
        except Exception as error:  # zip, NumPy and JSON each have their own
            raise BadCheckpoint(f"{file}: not a rollout file of this run ({describe(error)})") from error
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
        if "learned/adv" not in self.arrays:
            return {}
        parts = np.split(self.arrays["learned/adv"], np.cumsum(self.arrays["learned/length"])[:-1])
        return dict(zip(self.metadata["learned"], parts, strict=True))

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


def read_events(folder: Path) -> list[dict[str, Any]]:
    """The events of a run, oldest first; a line that is broken (the last one, cut short by a kill) is left out."""
    file = folder / "events.jsonl"
    out: list[dict[str, Any]] = []
    for line in file.read_bytes().splitlines() if file.exists() else []:
        with contextlib.suppress(ValueError):
            event = json.loads(line)
            if isinstance(event, dict) and event.keys() >= HOLDS.get(event.get("event", ""), {"event"}):
                out.append(cast("dict[str, Any]", event))
    return out
