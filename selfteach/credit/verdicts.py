"""Credit from a verifier's marks: steps compared within a group and fused with the outcome, and a verifier's classes balanced."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..core import BadValue, Column, Example, Group, History, Seq, Token, block, remembers
from ..core.task import Ref
from ..core.text import step_ends
from . import recipe
from . import segments as seg


@block
def with_verdicts(*, groups: Sequence[Group], cast: Any) -> list[Example]:
    """Answers and the verdicts on them, each learned by who wrote it. Columns beside those of `each`, NaN where there is none:

    process  per token, at the end of each step of an answer: its mark (1 or -1), the mean over the verdicts that are in form
    label    per sequence, of a verdict: 1 if the answer that it is about is right, else 0
    """
    marks: dict[Ref, list[list[float]]] = {}
    labels: dict[str, float] = {}
    for group in (g for g in groups if "output" in g.request.help):
        for episode, t in [(e, t) for e in group.episodes for t in e.trajectories]:
            notes = episode.tree.notes.get(t.leaf.node, {})
            labels[f"{episode.id}:{t.leaf.node}"] = notes["right"]
            if "mark0" in notes:
                count = sum(name.startswith("mark") for name in notes)
                marks.setdefault(group.request.help["output"], []).append([notes[f"mark{i}"] for i in range(count)])
    leaves = {f"{e.id}:{t.leaf.node}": t.leaf for g in groups for e in g.episodes for t in e.trajectories}
    trees = {e.id: e.tree for g in groups for e in g.episodes}
    out: list[Example] = []
    for example in recipe.examples(groups, member=None):
        leaf = leaves[example.name]
        tree = trees[leaf.episode]
        process = np.full(int(tree.chosen[tree.places(leaf.node, leaf.offset)].sum()), np.nan)
        if leaf in marks:
            process = _placed(process, np.mean(marks[leaf], axis=0), cast, leaf)
        out.append(replace(example, given={**example.given, "process": ("token", process), "label": ("seq", labels.get(example.name, math.nan))}))
    return out


def _placed(process: np.ndarray, marks: np.ndarray, cast: Any, leaf: Ref) -> np.ndarray:
    """The marks at the chosen tokens that end, or last before the end of, each step of what was said."""
    path = cast.path(leaf)
    said, chosen = path.ids[path.prompt :], path.chosen[path.prompt :]
    text = cast.text(leaf)
    stops = np.cumsum([len(piece) for piece in cast.tokenizer.spelled(said)])
    for end, mark in zip(step_ends(text), marks, strict=True):
        token = int(np.searchsorted(stops, len(text[:end].encode())))
        row = int(chosen[: token + 1].sum()) - 1
        if row >= 0:
            process[row] = mark
    return process


@block
def fuse_steps(
    *, adv: Seq, process: Token, seq: Token, group: Seq, history: History, start: float = 0.5, stop: float = 0.1, steps: int = 40
) -> dict[str, Column]:
    """Fuse the outcome's advantage with that of steps, each normalised by itself (RL Tango, 2505.15034; GRPO's process form).

        z = (process - mean) / std over all steps of the group          A_step,t = sum of z over the steps that end at t or later
        A_t = (1 - a) A + a A_step,t          a = start (stop / start)^(step / steps), then stop

    Args: adv f64[S]; process f64[N], NaN but at the ends of steps; seq i64[N]; group i64[S]. Returns: adv f64[N]. Where the marks of a group
    are alike z is 0; a sequence without marks keeps its outcome's advantage. Scope: group.
    """
    if not 0 < stop <= start <= 1:
        raise BadValue(f"fuse_steps: shares must go down within (0, 1], not from {start:g} to {stop:g}")
    share = start * (stop / start) ** min(history.step / steps, 1.0)
    process, seq = np.asarray(process, np.float64), np.asarray(seq)
    rows = np.flatnonzero(~np.isnan(process))
    index, n = np.asarray(group)[seq[rows]], seg.count(group)
    z = np.zeros(len(process))
    if len(rows):
        mean, std = seg.mean(process[rows], index, n), seg.std(process[rows], index, n, 1)
        with np.errstate(invalid="ignore", divide="ignore"):
            z[rows] = np.where(seg.same(process[rows], index, n)[index], 0.0, (process[rows] - mean[index]) / std[index])
    total = seg.total(z, seq, len(adv))
    before = np.cumsum(z) - z  # of all rows before this one; rows of a sequence stand together
    first = np.full(len(adv), len(seq))
    np.minimum.at(first, seq, np.arange(len(seq)))
    ahead = total[seq] - (before - before[first[seq]])
    marked = np.isin(seq, seq[rows])
    outcome = np.asarray(adv, np.float64)[seq]
    return {"adv": Column("token", np.where(marked, (1 - share) * outcome + share * ahead, outcome))}


@block
@remembers(lambda: {"right": 0.5})
def balance_classes(*, adv: Seq, label: Seq, state: dict[str, float], rate: float = 0.2, floor: float = 0.02) -> tuple[dict[str, Column], Any]:
    """Weigh the advantages of verdicts by how rare the truth that they are about is, so that always saying the commoner does not pay.

        A_i <- A_i / sqrt(2 share of i's class)          the share of right ones follows that of the batch by `rate`, kept from `floor` to 1 - floor

    RL Tango, 2505.15034: weights go with one over the root of a class's size, smoothed; 1 for classes of one size. Args: adv, label f64[S],
    NaN for what is no verdict, which is left as it is. Returns: (adv f64[S], the next state). Scope: token.

    >>> balance_classes(adv=[1.0, 1.0, 1.0], label=[1.0, 0.0, float("nan")], state={"right": 0.5})[0]["adv"].values
    array([1., 1., 1.])
    """
    adv, label = np.asarray(adv, np.float64), np.asarray(label, np.float64)
    known = label[~np.isnan(label)]
    share = state["right"] + rate * (float(known.sum() / len(known)) - state["right"]) if len(known) else state["right"]
    held = min(max(share, floor), 1 - floor)
    weight = np.where(label >= 1.0, 1 / math.sqrt(2 * held), 1 / math.sqrt(2 * (1 - held)))
    return {"adv": Column("seq", np.where(np.isnan(label), adv, adv * weight))}, {"right": share}
