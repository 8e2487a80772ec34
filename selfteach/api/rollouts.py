"""The rollouts of a step, read from a run's log: who wrote what, how it was scored, and what was learned of it."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from ..core.serial import from_json
from ..core.task import Ref
from ..core.tree import Trajectory, Tree
from ..loop.log import Rollouts
from ..loop.rollout_records import TokenWriter, token_writers
from ..model.tokenizer import Tokenizer
from ..progress import in_notebook, show_html

COLOURS = {"prompt": "#eef1f4", "model": "#e3f1e5", "adopted": "#fdf3d8", "context": "#e4edf8"}


@dataclass(frozen=True)
class Piece:
    """Consecutive tokens of one writer.

    by    "prompt"; the model role that sampled them ("policy"); "adopted", tokens put in as the model's own; "context",
          what a tool, an environment or the program put in
    span  the name that the program gave them (information, think ...), or ""
    """

    by: str
    text: str
    span: str = ""

    @property
    def writer(self) -> str:
        """`by`, with the span where there is one."""
        return f"{self.by} [{self.span}]" if self.span else self.by


@dataclass(frozen=True)
class ScoreRecord:
    """One score: its column ("reward"), value (None: there is none), parts by name, reason, and what failed."""

    column: str
    value: float | None
    parts: Mapping[str, float]
    why: str = ""
    error: str | None = None

    def __str__(self) -> str:
        out = f"{self.column} {'none' if self.value is None else f'{self.value:.4g}'}"
        if self.parts:
            out += " (" + ", ".join(f"{name} {v:.4g}" for name, v in self.parts.items()) + ")"
        return out + "".join(f"; {text}" for text in (self.why, self.error) if text)


@dataclass(frozen=True)
class PathRecord:
    """One trajectory: a text of one model from its prompt to its end.

    role        the model role; loss_stream: what it was to be learned as; None: never learned
    status      why its last turn ended: stop | length | limit | cancelled | error
    advantage   mean over its learned tokens; None where there is none
    tokens      how many of its tokens were learned
    dropped     why nothing of it was learned; "" where something was
    branches    times that a chat template re-rendered the conversation, each of which began a new branch
    """

    role: str
    loss_stream: str | None
    status: str
    pieces: tuple[Piece, ...]
    scores: tuple[ScoreRecord, ...]
    advantage: float | None
    tokens: int
    dropped: str
    branches: int = 0

    @property
    def text(self) -> str:
        """The text after the prompt, whoever wrote it."""
        return "".join(p.text for p in self.pieces if p.by != "prompt")

    def learned(self) -> str:
        """What was learned of it, in words."""
        if self.dropped:
            return f"dropped: {self.dropped}"
        advantage = "" if self.advantage is None else f"advantage {self.advantage:.4g}, "
        return f"{advantage}{self.tokens} tokens learned"


@dataclass(frozen=True)
class Rollout:
    """One episode of a step.

    id, group, task  of the episode; of the group that it is compared in; of the task
    prompt           the task's prompt, text or messages
    answer           what the program returned
    status, why      done | limit | error, and the error
    cost             tokens sampled, turns, calls of tools ...
    paths            its trajectories
    """

    id: str
    group: str
    task: str
    prompt: Any
    answer: Any
    status: str
    why: str
    cost: Mapping[str, float]
    paths: tuple[PathRecord, ...]

    @property
    def text(self) -> str:
        """What came after the prompt of the last trajectory, whoever wrote it."""
        return self.paths[-1].text if self.paths else ""

    @property
    def reward(self) -> float | None:
        """The reward of the last trajectory that has one."""
        found = [s.value for p in self.paths for s in p.scores if s.column == "reward"]
        return found[-1] if found else None

    @property
    def advantage(self) -> float | None:
        """The mean advantage of the last trajectory that has one."""
        found = [p.advantage for p in self.paths if p.advantage is not None]
        return found[-1] if found else None

    def show(self) -> None:
        """Show it: as text in a terminal, as HTML in a notebook."""
        if in_notebook():
            show_html(self._repr_html_(), str(self))
        else:
            print(self)

    def __str__(self) -> str:
        lines = [self._title()]
        for path in self.paths:
            for piece in path.pieces:
                lines += [piece.writer, *("  " + line for line in printable(piece.text).split("\n"))]
            lines += [f"ended: {path.status}", *(f"score: {printable(str(s))}" for s in path.scores), path.learned()]
        if self.status != "done":
            lines.append(f"episode: {self.status}" + (f", {printable(self.why)}" if self.why else ""))
        return "\n".join(lines)

    def __repr__(self) -> str:
        reward = "none" if self.reward is None else f"{self.reward:.4g}"
        return f"<Rollout {self.id}: reward {reward}, {self.text[:60]!r}>"

    def _title(self) -> str:
        return printable(f"rollout {self.id}, task {self.task}, group {self.group}")

    def _repr_html_(self) -> str:
        out = [f"<b>{html.escape(self._title())}</b>"]
        for path in self.paths:
            for p in path.pieces:
                colour = COLOURS.get(p.by, COLOURS["model"])
                out.append(
                    f'<div style="background:{colour};color:#24292f;padding:2px 6px;margin:1px 0;white-space:pre-wrap">'
                    f"<small><b>{html.escape(p.writer)}</b></small>\n{html.escape(printable(p.text))}</div>"
                )
            rows = [f"ended: {path.status}", *map(str, path.scores), path.learned()]
            out.append("<div>" + "<br>".join(html.escape(printable(row)) for row in rows) + "</div>")
        if self.status != "done":
            out.append(f"<div>episode: {html.escape(printable(f'{self.status}, {self.why}'))}</div>")
        return "<div>" + "".join(out) + "</div>"


def printable(text: str) -> str:
    r"""A text without control characters, by which a model could write over a terminal; each is shown as its escape.

    >>> printable("a\x1b[2Jb\n")
    'a\\x1b[2Jb\n'
    """
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)


def read_rollouts(file: Path, tokenizer: Tokenizer) -> list[Rollout]:
    """The rollouts in a file of the log. Raises BadCheckpoint where it is broken."""
    stored = Rollouts(file)
    learned = LearnedExamples(stored)
    out: list[Rollout] = []
    for group, episodes in stored.groups():
        scores = group["scores"]
        task = group["request"]["task"] if isinstance(group["request"], dict) else {}  # without its verifier and judges
        for e in episodes:
            tree = stored.tree(e["id"])
            paths = tuple(
                _path(e, tree, from_json(t), [s for s in scores if s["at"][0] == e["id"]], learned, tokenizer)
                for t in e["trajectories"]
            )
            out.append(
                Rollout(
                    e["id"],
                    group["key"],
                    task.get("id", ""),
                    from_json(task.get("prompt")),
                    e["answer"],
                    e["status"],
                    e["why"],
                    e["cost"],
                    paths,
                )
            )
    return out


class LearnedExamples:
    """What was learned of each example of a step: its tokens and advantages; and why others were dropped."""

    def __init__(self, stored: Rollouts) -> None:
        names = stored.metadata["learned"]
        lengths = stored.arrays["learned/length"].tolist() if names else []
        self.tokens = dict(zip(names, lengths, strict=True))
        self.advantages = stored.advantages() if names else {}
        self.dropped: Mapping[str, str] = stored.metadata.get("dropped", {})

    def of(self, episode: str, node: int, many: bool) -> tuple[str | None, str]:
        """(name of the example that learned a trajectory, why it was dropped); (None, "") where none was made."""
        own = f"{episode}:{node}"
        for known, kept in ((self.tokens, True), (self.dropped, False)):
            name = own if own in known else None
            if name is None and not many:  # a composer of a method's own names its examples otherwise
                name = next((n for n in known if n.startswith(episode + ":")), None)
            if name is not None:
                return (name, "") if kept else (None, self.dropped[name])
        return None, ""


def _path(
    e: Mapping[str, Any],
    tree: Tree,
    t: Trajectory,
    scores: list[Mapping[str, Any]],
    learned: LearnedExamples,
    tokenizer: Tokenizer,
) -> PathRecord:
    nodes = {node for node, _ in tree.path(t.leaf.node, t.leaf.offset)}
    names = ("column", "value", "parts", "why", "error")
    own = [ScoreRecord(**{n: s[n] for n in names}) for s in scores if s["at"][1] in nodes]
    name, reason = learned.of(e["id"], t.leaf.node, len(e["trajectories"]) > 1)
    advantages = learned.advantages.get(name or "")
    advantage = float(np.mean(advantages)) if advantages is not None and len(advantages) else None
    dropped = reason or ("" if name else why_not_learned(e, t, own))
    if name and advantages is not None and not np.any(advantages):
        dropped = "its advantage is 0, so it has no gradient"
    return PathRecord(
        t.role,
        t.learn,
        t.status,
        tuple(_pieces(tree, t.leaf, tokenizer)),
        tuple(own),
        advantage,
        learned.tokens.get(name or "", 0),
        dropped,
        len(t.before),
    )


def why_not_learned(e: Mapping[str, Any], t: Trajectory, scores: list[ScoreRecord]) -> str:
    """Why no example was made of a trajectory."""
    if t.learn is None:
        return "it is logged and never learned"
    if e["status"] == "error":
        return f"its program failed ({e['why']})"
    if any(s.column == "reward" and s.value is None for s in scores):
        return "it has no reward"
    return "no composer took it"


def _pieces(tree: Tree, at: Ref, tokenizer: Tokenizer) -> Iterator[Piece]:
    """The tokens of a path, consecutive ones of one writer together."""

    def about(writer: TokenWriter) -> tuple[str, str]:
        return writer.role if writer.kind == "sampled" else writer.kind, writer.span

    for (by, span), own in groupby(token_writers(tree, at.node, at.offset), about):
        yield Piece(by, tokenizer.decode(tree.id[[w.place for w in own]]), span)
