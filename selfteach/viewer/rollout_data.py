"""The rollouts of a step as the page reads them: a row for each trajectory, and an episode with all of its tokens."""

from __future__ import annotations

import codecs
import itertools
import json
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..api.rollouts import LearnedExamples, ScoreRecord, why_not_learned
from ..core.errors import BadCheckpoint, BadValue, SelfteachError, describe
from ..core.serial import from_json
from ..core.tool_calls import MARKS, find_tool_calls
from ..core.tree import Trajectory, Tree
from ..loop.log import Rollouts, logged_steps, read_metadata
from ..loop.rollout_records import plain_values, token_writers
from ..loop.run_folder import find
from ..model.tokenizer import Tokenizer
from .curve_data import rounded

SNIPPET_TOKENS, SNIPPET = 96, 180  # of a response in the list: tokens that are decoded, characters that are sent
KEPT_STEPS = 6  # in memory
MOST_NODE_TEXT = 20_000  # characters of a node of a tree
MOST_TOKENS = 50_000  # of a piece that are sent
LEARNED = ("gap", "entropy")  # what a log may hold of a learned token beside its advantage
CALL = ("tool", "node", "seconds", "error")
ZERO = "its advantage is 0, so it has no gradient"
NO_TOKENIZER = "the run has no checkpoint yet, and so no tokenizer: tokens are shown by their numbers"


@contextmanager
def as_written(file: Path) -> Generator[None]:
    """Raise BadCheckpoint for what goes wrong inside: what is not as it was written shows wherever it is first used."""
    try:
        yield
    except SelfteachError:
        raise
    except Exception as error:
        raise BadCheckpoint(f"{file}: not as a run wrote it ({describe(error, 160)})") from error


class StepRollouts:
    """The rollouts of one step; rows are made when they are asked for, an episode at a time."""

    def __init__(self, file: Path, step: int, tokenizer: Tokenizer | None) -> None:
        self.file, self.step, self.tokenizer = file, step, tokenizer
        self.stored = Rollouts(file)
        with as_written(file):
            self.learned = LearnedExamples(self.stored)
            self.of_learned = {name: self.stored.learned(name) for name in LEARNED}
            self.episodes = self.stored.metadata["episodes"]
            self.group_of: list[dict[str, Any]] = []
            self.scores: dict[str, list[dict[str, Any]]] = {}
            for group, episodes in self.stored.groups():
                self.group_of += [group] * len(episodes)
                for s in group["scores"]:
                    self.scores.setdefault(s["at"][0], []).append(s)
            # one row a trajectory; an episode that closed none has one too
            self.places = [(n, t) for n, e in enumerate(self.episodes) for t in range(max(1, len(e["trajectories"])))]
        self._rows: list[dict[str, Any]] = []
        self._texts: list[str] | None = None
        self._lock = threading.Lock()

    def rows(self, first: int, count: int) -> list[dict[str, Any]]:
        """Rows first : first + count."""
        with self._lock, as_written(self.file):
            upto = min(first + count, len(self.places))
            while len(self._rows) < upto:
                self._rows.append(self._row(*self.places[len(self._rows)]))
        return self._rows[first:upto]

    def search(self, words: str) -> list[int]:
        """The numbers of the rows whose prompt, response or observations contain a text, letter case aside."""
        if self._texts is None:
            texts: list[str] = []
            with as_written(self.file):
                for n, t in self.places:
                    tree, trajectory = self.stored.tree(self.episodes[n]["id"]), self._trajectory(n, t)
                    leaf = (trajectory.leaf.node, trajectory.leaf.offset) if trajectory else (len(tree.parent) - 1, -1)
                    texts.append(self._text(tree.ids_to(*leaf)).lower())
            self._texts = texts
        sought = words.lower()
        return [i for i, text in enumerate(self._texts) if sought in text]

    def _trajectory(self, n: int, t: int) -> Trajectory | None:
        stored = self.episodes[n]["trajectories"]
        return from_json(stored[t]) if stored else None

    def _text(self, ids: np.ndarray) -> str:
        if self.tokenizer is None:
            return " ".join(map(str, ids.tolist()))
        return self.tokenizer.decode(ids)

    def _row(self, n: int, t: int) -> dict[str, Any]:
        e, group = self.episodes[n], self.group_of[n]
        tree, trajectory = self.stored.tree(e["id"]), self._trajectory(n, t)
        node, offset = (trajectory.leaf.node, trajectory.leaf.offset) if trajectory else (len(tree.parent) - 1, -1)
        places = tree.places(node, offset)
        own = tree.id[places][tree.action_mask[places]]
        scores = self._scores(e["id"], tree, node, offset)
        reward = next((s for s in reversed(scores) if s["column"] == "reward"), None)
        name, dropped, advantage = self._fate(n, trajectory, scores)
        text = self._text(own[:SNIPPET_TOKENS])
        return {
            "step": self.step,
            "episode": e["id"],
            "at": t,
            "group": group["key"],
            "task": _task(group).get("id", ""),
            "program": _request(group).get("program", ""),
            "reward": reward["value"] if reward else None,
            "parts": {k: rounded(v) for k, v in reward["parts"].items()} if reward else {},
            "advantage": rounded(advantage),
            "tokens": len(own),
            "turns": sum(1 for k, _ in tree.path(node, offset) if tree.sampling[k] >= 0) if node >= 0 else 0,
            "role": trajectory.role if trajectory else "",
            "status": "error" if e["status"] == "error" else trajectory.status if trajectory else e["status"],
            "learned": name is not None and not dropped,
            "text": text if len(text) <= SNIPPET else text[:SNIPPET] + "…",
            "forks": sum(n > 1 for parent, n in Counter(tree.parent).items() if parent >= 0),
            "paths": len(e["trajectories"]),
        }

    def _scores(self, episode: str, tree: Tree, node: int, offset: int) -> list[dict[str, Any]]:
        nodes = {k for k, _ in tree.path(node, offset)} if node >= 0 else set[int]()
        return [s for s in self.scores.get(episode, ()) if s["at"][1] in nodes]

    def _fate(
        self, n: int, trajectory: Trajectory | None, scores: Sequence[Mapping[str, Any]]
    ) -> tuple[str | None, str, float | None]:
        """(name of the example that learned a trajectory, why nothing of it was learned or "", mean advantage)."""
        e = self.episodes[n]
        if trajectory is None:
            return (
                None,
                f"its program failed ({e['why']})" if e["status"] == "error" else "it closed no trajectory",
                None,
            )
        name, reason = self.learned.of(e["id"], trajectory.leaf.node, len(e["trajectories"]) > 1)
        advantages = self.learned.advantages.get(name or "")
        mean = float(np.mean(advantages)) if advantages is not None and len(advantages) else None
        records = [ScoreRecord(s["column"], s["value"], s["parts"], s["why"], s["error"]) for s in scores]
        dropped = reason or ("" if name else why_not_learned(e, trajectory, records))
        if name and advantages is not None and not np.any(advantages):
            dropped = ZERO
        return name, dropped, mean

    def episode(self, name: str) -> dict[str, Any]:
        """An episode whole: its task, scores, tree, and each trajectory token by token. Raises BadValue."""
        if name not in self.stored.index:
            raise BadValue(f"{self.file}: has no episode {name!r}")
        n = self.stored.index[name]
        e, group = self.episodes[n], self.group_of[n]
        with as_written(self.file):
            tree, task, request = self.stored.tree(name), _task(group), _request(group)
            trajectories = [self._trajectory(n, t) for t in range(max(1, len(e["trajectories"])))]
            by_token = self._by_token(tree, n, trajectories)
            return {
                "step": self.step,
                "episode": name,
                "group": group["key"],
                "task": task.get("id", ""),
                "program": request.get("program", ""),
                "prompt": plain_values(task.get("prompt", "")),
                "reference": plain_values(task.get("answer")),
                "tags": plain_values(task.get("tags", {})),
                "help": plain_values(request.get("help", {})),
                "answer": plain_values(e["answer"]),
                "status": e["status"],
                "why": e["why"],
                "cost": e["cost"],
                "note": "" if self.tokenizer else NO_TOKENIZER,
                "samplings": [plain_values(s) for s in e["samplings"]],
                "holds": self._holds(tree),
                "calls": [dict(zip(CALL, call, strict=True)) for call in e["calls"]] if "calls" in e else None,
                "paths": [self._path(n, t, tree, by_token) for t in trajectories],
                "tree": self._tree(tree, e, by_token),
            }

    def _holds(self, tree: Tree) -> dict[str, bool]:
        """What the log holds of tokens beside their log-probability."""
        known = {name: bool(values) for name, values in self.of_learned.items()}
        return {"advantage": bool(self.learned.advantages), **known, **dict.fromkeys(tree.recorded, True)}

    def _by_token(self, tree: Tree, n: int, trajectories: Sequence[Trajectory | None]) -> dict[str, np.ndarray]:
        """Of every token of a tree: advantage, gap, entropy and staleness that it was learned with, NaN where unknown;
        whether it was learned.

        The log holds these of an example's learned tokens end to end. Which tokens these are follows from how
        many: those under the action mask, without those of the spans that are context only.
        """
        learned = np.zeros(len(tree), bool)
        columns = {c: np.full(len(tree), np.nan) for c in ("advantage", "staleness", *LEARNED)}
        for t in trajectories:
            name = (
                self._fate(n, t, self._scores(self.episodes[n]["id"], tree, t.leaf.node, t.leaf.offset))[0]
                if t
                else None
            )
            if t is None or name is None:
                continue
            places = _learned_places(tree, t, self.learned.tokens.get(name, 0))
            if places is None:
                continue
            learned[places] = True
            for column, known in (("advantage", self.learned.advantages), *self.of_learned.items()):
                if (values := known.get(name)) is not None and len(values) == len(places):
                    columns[column][places] = values
            if (version := self.stored.learner_version) is not None:
                drawn = tree.version[places]
                columns["staleness"][places] = np.where(drawn >= 0, version - drawn, np.nan)
        return {**columns, "learned": learned}

    def _path(self, n: int, t: Trajectory | None, tree: Tree, by_token: Mapping[str, np.ndarray]) -> dict[str, Any]:
        node, offset = (t.leaf.node, t.leaf.offset) if t else (len(tree.parent) - 1, -1)
        scores = self._scores(self.episodes[n]["id"], tree, node, offset)
        name, dropped, mean = self._fate(n, t, scores)
        pieces = list(self._pieces(tree, node, offset, by_token, name, dropped)) if node >= 0 else []
        return {
            "role": t.role if t else "",
            "key": t.key if t else "",
            "stream": t.learn if t else None,
            "status": t.status if t else self.episodes[n]["status"],
            "leaf": node,
            "re_rendered": len(t.before) if t else 0,
            "advantage": rounded(mean),
            "learned": self.learned.tokens.get(name or "", 0),
            "mapped": name is None or bool(by_token["learned"].any()),
            "dropped": dropped,
            "scores": [{k: s[k] for k in ("column", "value", "parts", "why", "error")} for s in scores],
            "pieces": pieces,
        }

    def _pieces(
        self, tree: Tree, node: int, offset: int, by_token: Mapping[str, np.ndarray], name: str | None, dropped: str
    ) -> Iterator[dict[str, Any]]:
        writers = list(token_writers(tree, node, offset))
        node_of = np.repeat(
            [k for k, _ in tree.path(node, offset)], [upto for _, upto in tree.path(node, offset)]
        ).tolist()
        texts = self.token_texts(tree.id[[w.place for w in writers]])
        said = ""
        rows = zip(writers, node_of, texts, strict=True)
        for (kind, role, span, k), own in itertools.groupby(rows, lambda r: (r[0].kind, r[0].role, r[0].span, r[1])):
            whole = list(own)
            own = whole[:MOST_TOKENS]
            places = np.array([w.place for w, _, _ in own])
            text = [t for _, _, t in own]
            piece: dict[str, Any] = {
                "kind": kind,
                "role": role,
                "span": span,
                "node": k,
                "text": text,
                "tokens": len(whole),
            }
            if kind in ("sampled", "adopted"):
                piece["fate"] = self._piece_fate(by_token["learned"][places], span, name, dropped)
                for column, values in (
                    ("logp", tree.logp[places]),
                    ("advantage", by_token["advantage"][places]),
                    ("version", tree.version[places]),
                    *((c, by_token[c][places]) for c in ("staleness", *LEARNED)),
                    *((c, v[places]) for c, v in tree.recorded.items()),
                ):
                    if not np.all(np.isnan(values)):
                        piece[column] = _short(values, column == "gap")
                joined = "".join(text)
                said = joined if kind == "sampled" else said
                found = find_tool_calls(joined)[1] if any(mark in joined for mark in MARKS) else []
                piece["calls"] = [{"name": c.name or c.wrong, "arguments": json.dumps(c.arguments)} for c in found]
            elif kind == "context":
                piece["call"] = _call_before(said)
                piece["parent"] = tree.parent[k]
            yield piece

    @staticmethod
    def _piece_fate(learned: np.ndarray, span: str, name: str | None, dropped: str) -> str:
        if dropped:
            return f"dropped: {dropped}"
        if learned.all():
            return "learned"
        if learned.any():
            return f"{int(learned.sum())} of {len(learned)} tokens learned"
        if span:
            return f"dropped: inside the span {span}, which is context only"
        return "dropped: context of what is learned" if name else "dropped"

    def token_texts(self, ids: np.ndarray) -> list[str]:
        """The text of each token; a character made of several tokens stands with the last of them."""
        if self.tokenizer is None:
            return [f"‹{i}›" for i in ids.tolist()]
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        out = [decoder.decode(piece) for piece in self.tokenizer.token_bytes(ids)]
        if out:
            out[-1] += decoder.decode(b"", True)
        return [text or self._special(i) for text, i in zip(out, ids.tolist(), strict=True)]

    def _special(self, token: int) -> str:
        """A token that adds nothing to the text (the end of a turn, say) by its name, in marks that no text has."""
        assert self.tokenizer is not None
        return "⟦" + (self.tokenizer.inner.id_to_token(token) or str(token)) + "⟧" if self._is_silent(token) else ""

    def _is_silent(self, token: int) -> bool:
        return self.tokenizer is not None and not self.tokenizer.token_bytes([token])[0]

    def _tree(self, tree: Tree, e: Mapping[str, Any], by_token: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
        """The nodes of a tree, in the order in which they were appended."""
        closed: dict[int, list[dict[str, Any]]] = {}
        for t in e["trajectories"]:
            about = {"role": t["role"], "status": t["status"], "stream": t["learn"]}
            closed.setdefault(t["leaf"]["node"], []).append(about)
        scores: dict[int, list[dict[str, Any]]] = {}
        for s in self.scores.get(e["id"], ()):
            scores.setdefault(s["at"][1], []).append({"column": s["column"], "value": s["value"], "why": s["why"]})
        out: list[dict[str, Any]] = []
        for k, parent in enumerate(tree.parent):
            own = slice(tree.begin[k], tree.stop(k))
            advantages = by_token["advantage"][own]
            known = advantages[~np.isnan(advantages)]
            chosen = "sampled" if tree.sampling[k] >= 0 else "adopted"
            mask = tree.action_mask[own]
            out.append(
                {
                    "parent": parent,
                    "cut": tree.cut[k],
                    "of": tree.size(parent) if parent >= 0 else 0,
                    "tokens": tree.size(k),
                    "role": tree.roles[tree.by[k]],
                    "kind": chosen if mask.any() else "prompt" if parent < 0 else "context",
                    "text": self._text(tree.id[own])[:MOST_NODE_TEXT],
                    "notes": {name: plain_values(v) for name, v in tree.notes.get(k, {}).items()},
                    "scores": scores.get(k, []),
                    "closed": closed.get(k, []),
                    "credit": rounded(float(known.mean())) if len(known) else None,
                    "learned": int(by_token["learned"][own].sum()),
                    "logp": rounded(float(np.nansum(tree.logp[own]))) if not np.isnan(tree.logp[own]).all() else None,
                }
            )
        return out


def _learned_places(tree: Tree, t: Trajectory, count: int) -> np.ndarray | None:
    """The places of an example's learned tokens in its tree, in order; None where they cannot be known."""
    pieces: list[np.ndarray] = []
    seen = np.zeros(len(tree), bool)
    for leaf in (*t.before, t.leaf):
        places = tree.places(leaf.node, leaf.offset)
        places = places[tree.action_mask[places] & ~seen[places]]
        seen[places] = True
        pieces.append(places)
    places = np.concatenate(pieces)
    spans = sorted({int(s) for s in tree.span[places] if s > 0})
    for k in range(len(spans) + 1):
        for left_out in itertools.combinations(spans, k):
            kept = places[~np.isin(tree.span[places], left_out)]
            if len(kept) == count:
                return kept
    return None


def _call_before(said: str) -> dict[str, str] | None:
    """The call that a text ends with, that an observation answers: <search>...</search> and the like."""
    text = said.rstrip()
    if not text.endswith(">"):
        return None
    tag = text[text.rfind("</") + 2 : -1]
    opening = text.rfind(f"<{tag}>")
    if not tag or not tag.replace("_", "").isalnum() or opening < 0 or len(tag) > 40:
        return None
    return {"name": tag, "arguments": text[opening + len(tag) + 2 : text.rfind("</")].strip()}


def _short(values: np.ndarray, tiny: bool = False) -> list[Any]:
    """Numbers of four places, or where they may be tiny of three digits; None for what is not known."""
    unknown, exact = np.isnan(values), values.astype(np.float64)
    out = [float(f"{v:.3g}") for v in exact.tolist()] if tiny else np.round(exact, 4).tolist()
    return [None if u else v for u, v in zip(unknown.tolist(), out, strict=True)] if unknown.any() else out


def _request(group: Mapping[str, Any]) -> Mapping[str, Any]:
    return group["request"] if isinstance(group["request"], dict) else {}


def _task(group: Mapping[str, Any]) -> Mapping[str, Any]:
    found = _request(group).get("task", {})
    return found if isinstance(found, dict) else {}


class RolloutReader:
    """The rollouts of runs, a few steps of which are kept in memory."""

    def __init__(self) -> None:
        self._steps: OrderedDict[tuple[Path, int, int], StepRollouts] = OrderedDict()
        self._tokenizers: dict[Path, Tokenizer] = {}
        self._tasks: dict[Path, tuple[int, dict[str, list[float | None]]]] = {}
        self._lock = threading.Lock()

    def steps(self, run: Path) -> list[int]:
        """The steps that are logged."""
        return logged_steps(run / "log")

    def step(self, run: Path, step: int) -> StepRollouts:
        """The rollouts of a step. Raises BadValue for one that is not logged, BadCheckpoint for a broken file."""
        file = run / "log" / "rollouts" / f"{step:06d}.npz"
        try:
            changed = file.stat().st_mtime_ns
        except OSError:
            raise BadValue(f"{run.name}: the log has no rollouts of step {step}") from None
        tokenizer = self.tokenizer(run)
        key = (file, changed, int(tokenizer is not None))
        with self._lock:
            if key in self._steps:
                self._steps.move_to_end(key)
                return self._steps[key]
        made = StepRollouts(file, step, tokenizer)
        with self._lock:
            self._steps[key] = made
            while len(self._steps) > KEPT_STEPS:
                self._steps.popitem(last=False)
        return made

    def tokenizer(self, run: Path) -> Tokenizer | None:
        """The run's tokenizer, of its newest checkpoint; None before there is one."""
        if run not in self._tokenizers:
            folder = find(run)
            if folder is None or not (folder / "tokenizer.json").is_file():
                return None
            self._tokenizers[run] = Tokenizer.load(folder)
        return self._tokenizers[run]

    def follow(self, run: Path, task: str, after: int = -1, seconds: float = 0.5) -> dict[str, Any]:
        """The rewards of a task in the steps after `after`, as far as they can be read in so many seconds.

        Returns {"found": [[step, rewards] ...], "read": the last step that was read, "more": whether others are left}
        """
        end, found, read, steps = time.monotonic() + seconds, [], after, [s for s in self.steps(run) if s > after]
        for step in steps:
            rewards = self._rewards(run / "log" / "rollouts" / f"{step:06d}.npz").get(task)
            if rewards is not None:
                found.append([step, rewards])
            read = step
            if time.monotonic() > end:
                break
        return {"found": found, "read": read, "more": bool(steps) and read < steps[-1]}

    def _rewards(self, file: Path) -> dict[str, list[float | None]]:
        """Task -> the rewards of a step, of a file's JSON alone; empty for a broken one."""
        try:
            changed = file.stat().st_mtime_ns
            if self._tasks.get(file, (None,))[0] != changed:
                out: dict[str, list[float | None]] = {}
                for group in read_metadata(file)["groups"]:
                    values = [s["value"] for s in group["scores"] if s["column"] == "reward"]
                    out.setdefault(str(_task(group).get("id", "")), []).extend(values)
                self._tasks[file] = (changed, out)
            return self._tasks[file][1]
        except (OSError, SelfteachError, KeyError, TypeError):
            return {}
