"""Values of states from the verdicts on what was continued from them."""

from __future__ import annotations

from typing import Any

from ..core import Group, Part, Ref, Score, Scores, block
from ..core.text import last_between
from .answer import exact_match
from .judged import verdicts


@block
async def vine_values(*, group: Group, cast: Any, deadline: float, judge: Part | None = None, role: str = "vine") -> Scores:
    """The verdict on each answer, and the mean verdict on the vines at each place that they leave it at (Kazemnejad et al. 2024, eq. 4).

        V(s) = 1/K sum_k R(s, vine_k)

    judge: a judge of answers (exact_match unless named). Columns: `reward` at the answer's end; `start_value` there too, the value of the
    prompt; `step_value` at places inside the turn. A vine without a verdict, or for which the episode's limits left no token, does not count.
    """
    said: list[tuple[Ref, Any]] = []
    roots: dict[Ref, tuple[Ref, int]] = {}  # a vine's end -> where it begins, as the answer's leaf and tokens of it before (0: the prompt)
    for episode in group.episodes:
        own = [t for t in episode.trajectories if t.learn is not None]
        said += [(t.leaf, episode.answer) for t in own]
        for t in (t for t in episode.trajectories if t.role == role and t.status != "limit"):
            node = t.leaf.node
            parent, cut = episode.tree.parent[node], episode.tree.cut[node]
            home = next((o.leaf for o in own if o.leaf.node == parent), None)
            roots[t.leaf] = (home, cut) if home is not None else (own[0].leaf, 0)
            text = cast.text(t.leaf)
            said.append((t.leaf, last_between(text, "answer", text.strip())))
    found = await verdicts(judge or exact_match(), group, said, cast, deadline)
    values: dict[tuple[Ref, int], list[float]] = {}
    for leaf, where in roots.items():
        values.setdefault(where, []).extend(v for v in [found[leaf].value] if v is not None)
    out: Scores = {"reward": {at: s for at, s in found.items() if at not in roots}, "start_value": {}, "step_value": {}}
    for (leaf, cut), known in values.items():
        verdict = Score(sum(known) / len(known) if known else None)
        if cut:
            out["step_value"][Ref(leaf.episode, leaf.node, cut)] = verdict
        else:
            out["start_value"][leaf] = verdict
    return out
