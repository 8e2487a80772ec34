"""Rewards for attempts that follow one another in one context."""

from __future__ import annotations

from typing import Any

from ..core import Group, Part, Ref, Score, Scores, block
from ..core.text import last_between
from .answer import exact_match
from .judged import verdicts


@block
async def progress(*, group: Group, cast: Any, deadline: float, judge: Part | None = None, first: float = 1.0, alpha: float = 10.0) -> Scores:
    """Pay every attempt where it ends: the first `first` times its verdict, a later one its own and alpha times what it gained.

        first r_1,   r_k + alpha (r_k - r_{k-1})        (Kumar et al. 2024, SCoRe, section 5.2; alpha = 10)

    judge: a judge of answers (exact_match unless named); an attempt's answer is what its turn says in <answer>, else the whole turn.
    Parts, at the last attempt: first, last, gain, fixed (wrong, then right), broken (right, then wrong). Unknown where a verdict is.
    """
    ends: list[list[Ref]] = []
    for episode in group.episodes:
        for t in (t for t in episode.trajectories if t.learn is not None):
            path = [node for leaf in (*t.before, t.leaf) for node, _ in episode.tree.path(leaf.node, leaf.offset)]
            spoken = [n for n in dict.fromkeys(path) if episode.tree.sampling[n] >= 0 and n != t.leaf.node]
            ends.append([*(Ref(episode.id, n) for n in spoken), t.leaf])
    found = await verdicts(judge or exact_match(), group, [(at, _answer(at, group, cast)) for path in ends for at in path], cast, deadline)
    out: dict[Ref, Score] = {}
    for path in ends:
        values = [found[at].value for at in path]
        known = [v for v in values if v is not None]
        if len(known) < len(values):
            why = next((found[at].error for at in path if found[at].value is None), None)
            out |= {at: Score(None, error=why or "an attempt has no verdict") for at in path}
            continue
        out[path[0]] = Score(first * known[0])
        out |= {at: Score(r + alpha * (r - before)) for at, r, before in zip(path[1:], known[1:], known[:-1], strict=True)}
        gain = known[-1] - known[0]
        parts = {"first": known[0], "last": known[-1], "gain": gain, "fixed": max(gain, 0.0), "broken": max(-gain, 0.0)}
        out[path[-1]] = Score(out[path[-1]].value, parts)
    return {"reward": out}


def _answer(at: Ref, group: Group, cast: Any) -> str:
    tree = next(e.tree for e in group.episodes if e.id == at.episode)
    text = cast.tokenizer.decode(tree.id[tree.begin[at.node] : tree.stop(at.node)])
    return last_between(text, "answer", text.strip())
