"""Rollouts of a run's log as people read them: prompt, turns, reward with its parts and reasons, advantage."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from ..core.batch import Batch
from ..core.errors import BadCheckpoint, BadValue, describe, unknown
from ..core.protocols import Tokenizer
from ..core.tree import Episode, RolloutGroup, Trajectory, Tree
from .log import Rollouts, logged_steps


@dataclass(frozen=True)
class TurnRecord:
    """A part of a rollout's text. kind: prompt, sampled (the policy or another model wrote it), context (a tool, a
    document, a message). role: of the model whose context it is in. span: what a program marked it as (information).
    """

    kind: str
    role: str
    span: str
    text: str


@dataclass(frozen=True)
class RolloutRecord:
    """One trajectory of a step.

    task       the task's id; prompt, reference: its prompt (text or messages) and its answer
    response   all that was sampled, context left out
    reward     None: there is none; `parts`, `why` and `error` say how it came about
    scores     others of this trajectory: column, value, parts, why, error
    advantage  mean over its learned tokens; None: it was not learned
    tokens     sampled ones; status: why it ended (stop, length, limit, error)
    """

    step: int
    episode: str
    group: str
    task: str
    prompt: Any
    reference: Any
    turns: tuple[TurnRecord, ...]
    response: str
    answer: Any
    reward: float | None
    parts: Mapping[str, float]
    why: str
    error: str | None
    scores: tuple[Mapping[str, Any], ...]
    advantage: float | None
    tokens: int
    status: str

    def to_json(self) -> dict[str, Any]:
        """The record as plain values."""
        return asdict(self)


def read_rollouts(log: Path, step: int, tokenizer: Tokenizer) -> list[RolloutRecord]:
    """The rollouts of a step in a run's log (RUN/log), in order; `tokenizer`: the run's.

    An episode without a trajectory (its program raised) is one with the text that it came to. Raises BadValue for a
    step that the log does not have, BadCheckpoint for a file that is none.
    """
    file = log / "rollouts" / f"{step:06d}.npz"
    if not file.is_file():
        steps = logged_steps(log)
        have = f"it has {steps[0]} to {steps[-1]}" if steps else "it has none yet"
        raise BadValue(f"{log}: has no rollouts of step {step}; {have}")
    rollouts = Rollouts(file)
    try:
        advantages, out = _advantages(rollouts), list[RolloutRecord]()
        for group, episodes in rollouts.groups():
            for episode in episodes:
                out += _records(rollouts, group, episode, step, tokenizer, advantages)
    except Exception as error:  # what is not as it was written shows wherever it is first used
        raise BadCheckpoint(f"{file}: not as a run wrote it ({describe(error, 160)})") from error
    return out


def best_and_worst(records: Sequence[RolloutRecord], best: int = 0, worst: int = 0) -> list[RolloutRecord]:
    """The `best` of the highest reward, falling, and the `worst` of the lowest, rising, among those that have one."""
    known = sorted((r for r in records if r.reward is not None), key=lambda r: cast("float", r.reward))
    return [*known[::-1][:best], *known[:worst]]


def of_task(records: Sequence[RolloutRecord], task: str) -> list[RolloutRecord]:
    """The rollouts of the task with this id. Raises UnknownName for one that the step did not have."""
    found = [r for r in records if r.task == task]
    if not found:
        raise unknown("task of this step", task, {r.task for r in records})
    return found


def _records(
    rollouts: Rollouts,
    group: Mapping[str, Any],
    episode: Mapping[str, Any],
    step: int,
    tokenizer: Tokenizer,
    advantages: Mapping[str, float],
) -> Iterator[RolloutRecord]:
    tree, request = rollouts.tree(episode["id"]), group["request"]
    task = request.get("task", {}) if isinstance(request, dict) else {}
    closed = [(tuple(t["leaf"].get(k) for k in ("node", "offset")), t) for t in episode["trajectories"]]
    if not closed and len(tree.parent):
        closed = [((len(tree.parent) - 1, -1), {"status": episode["status"]})]
    for (node, offset), trajectory in closed:
        places = tree.places(node, offset)
        mask = tree.action_mask[places]
        scores = [s for s in group["scores"] if tuple(s["at"]) == (episode["id"], node, offset)]
        reward = next((s for s in scores if s["column"] == "reward"), None) or {}
        yield RolloutRecord(
            step,
            episode["id"],
            group["key"],
            str(task.get("id", "")),
            plain_values(task.get("prompt", request if isinstance(request, str) else "")),
            plain_values(task.get("answer")),
            _turns(tree, node, offset, tokenizer),
            tokenizer.decode(tree.id[places][mask]),
            plain_values(episode["answer"]),
            reward.get("value"),
            reward.get("parts", {}),
            reward.get("why", ""),
            reward.get("error") or (episode["why"] or None),
            tuple({k: v for k, v in s.items() if k != "at"} for s in scores if s is not reward),
            advantages.get(f"{episode['id']}:{node}"),
            int(mask.sum()),
            trajectory.get("status", episode["status"]),
        )


TEXT_TOKENS = 512  # of a sample's response that are decoded at each end


def sample_rows(
    groups: Sequence[RolloutGroup], batch: Batch | None, tokenizer: Tokenizer, most: int
) -> list[dict[str, Any]]:
    """Some trajectories of a step as text, from the highest reward to the lowest, evenly among those that have one.

    Keys: task, prompt (text), response (all that was sampled; of a long one both ends), answer (what the program
    returned, as text), reward, advantage (mean over its learned tokens; None: nothing was learned of it), tokens,
    status. It is what is shown while a run goes on; `read_rollouts` has everything.
    """
    found = [
        (score.value, group, episode, trajectory)
        for group in groups
        for episode in group.episodes
        for trajectory in episode.trajectories
        if (score := group.scores.get("reward", {}).get(trajectory.leaf)) is not None and score.value is not None
    ]
    found.sort(key=lambda row: -row[0])
    places = sorted({round(i * (len(found) - 1) / max(1, most - 1)) for i in range(min(most, len(found)))})
    advantages = _batch_advantages(batch)
    return [_sample_row(*found[n], tokenizer, advantages) for n in places]


def _batch_advantages(batch: Batch | None) -> dict[str, float]:
    """The mean advantage of each learned sequence of a batch, by its name."""
    if batch is None or "adv" not in batch.columns:
        return {}
    sums = np.bincount(batch.get("seq"), weights=batch.get("adv"), minlength=len(batch.names))
    means = sums / np.maximum(batch.lengths(), 1)
    return {name: float(mean) for name, mean in zip(batch.names, means.tolist(), strict=True) if np.isfinite(mean)}


def _sample_row(
    reward: float,
    group: RolloutGroup,
    episode: Episode,
    trajectory: Trajectory,
    tokenizer: Tokenizer,
    advantages: Mapping[str, float],
) -> dict[str, Any]:
    tree, task = episode.tree, group.request.task
    places = tree.places(trajectory.leaf.node, trajectory.leaf.offset)
    ids = tree.id[places][tree.action_mask[places]]
    long = len(ids) > 2 * TEXT_TOKENS
    parts = (ids[:TEXT_TOKENS], ids[-TEXT_TOKENS:]) if long else (ids,)
    return {
        "task": task.id,
        "prompt": prompt_text(task.prompt),
        "response": " ... ".join(tokenizer.decode(part) for part in parts),
        "answer": str(episode.answer) if isinstance(episode.answer, str | int | float) else None,
        "reward": reward,
        "advantage": advantages.get(trajectory.leaf.name),
        "tokens": len(ids),
        "status": trajectory.status,
    }


def prompt_text(prompt: Any) -> str:
    """A task's prompt, text or messages, as one text.

    >>> prompt_text([{"role": "user", "content": "2 + 3 ="}])
    'user: 2 + 3 ='
    """
    if not isinstance(prompt, list | tuple):
        return str(prompt)
    said = [m if isinstance(m, Mapping) else {"content": m} for m in cast("Sequence[Any]", prompt)]
    return "\n".join(f"{m['role']}: {m.get('content')}" if "role" in m else str(m.get("content")) for m in said)


class TokenWriter(NamedTuple):
    """Who wrote a token. kind: prompt; sampled; adopted, put in as the model's own; context, from a tool or a message.
    role: of the model whose context it is in. span: what a program marked it as. place: its index in the tree.
    """

    kind: str
    role: str
    span: str
    place: int


def token_writers(tree: Tree, node: int, offset: int = -1) -> Iterator[TokenWriter]:
    """Who wrote each token from the root to a place, in order."""
    for at, upto in tree.path(node, offset):
        chosen = "sampled" if tree.sampling[at] >= 0 else "adopted"
        given = "prompt" if tree.parent[at] < 0 else "context"
        for place in range(tree.begin[at], tree.begin[at] + upto):
            kind = chosen if tree.action_mask[place] else given
            yield TokenWriter(kind, tree.roles[tree.by[at]], tree.spans[tree.span[place]], place)


def _turns(tree: Tree, node: int, offset: int, tokenizer: Tokenizer) -> tuple[TurnRecord, ...]:
    def about(writer: TokenWriter) -> tuple[str, str, str]:
        return "sampled" if writer.kind == "adopted" else writer.kind, writer.role, writer.span

    pieces = groupby(token_writers(tree, node, offset), about)
    return tuple(TurnRecord(*who, tokenizer.decode(tree.id[[w.place for w in own]])) for who, own in pieces)


def _advantages(rollouts: Rollouts) -> dict[str, float]:
    """The mean advantage of each learned sequence, by its name."""
    known = rollouts.advantages().items()
    return {name: float(np.mean(part)) for name, part in known if len(part) and np.isfinite(part).all()}


def plain_values(value: Any) -> Any:
    """A value of the log's JSON without the marks of its types."""
    if isinstance(value, dict):
        if value.keys() == {"tuple"}:
            return plain_values(value["tuple"])
        if value.keys() == {"map"}:
            return {str(plain_values(k)): plain_values(v) for k, v in value["map"]}
        return {k: plain_values(v) for k, v in value.items()}
    return [plain_values(v) for v in value] if isinstance(value, list) else value


def as_lines(records: Collection[RolloutRecord]) -> str:
    """The records as JSON lines."""
    return "".join(json.dumps(r.to_json(), ensure_ascii=False) + "\n" for r in records)


def as_columns(records: Collection[RolloutRecord]) -> list[dict[str, Any]]:
    """The records as rows of a table: what has another form from row to row is JSON text."""
    out: list[dict[str, Any]] = []
    for record in records:
        row = record.to_json()
        for name in ("reference", "answer", "scores", "parts"):
            row[name] = json.dumps(row[name], ensure_ascii=False)
        if not isinstance(row["prompt"], str):
            row["prompt"] = json.dumps(row["prompt"], ensure_ascii=False)
        out.append(row)
    return out
