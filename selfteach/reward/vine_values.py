"""Values of the states inside an answer, from the rewards of continuations (vines)."""

from __future__ import annotations

from typing import Any

from ..core import Block, Ref, RewardContext, RolloutGroup, Score, Scores, block, provides
from ..core.tagged_text import last_between
from .answer_verdicts import judge_answers


@block
@provides("start_value", "step_value", "vine_reward")
async def vine_values(
    *, group: RolloutGroup, context: RewardContext, deadline: float, judge: Block | None = None, role: str = "vine"
) -> Scores:
    """The reward of each answer, and the mean reward of the vines at each state that they start from.

        V(s) = 1/K sum_k R(s, vine_k)        VinePPO, 2410.01679, eq. 4

    judge: a judge of answers (exact_match unless given). Columns: `reward` and `start_value`, the value of the prompt,
    at the answer's end; `step_value` at places inside the turn; `vine_reward` at the vines' ends. A vine without a
    verdict, or for which the episode's limits left no token, does not count.
    """
    answers: list[tuple[Ref, Any]] = []
    # A vine's leaf -> its state: the answer's leaf, and how many of the answer's tokens precede (0: the prompt).
    roots: dict[Ref, tuple[Ref, int]] = {}
    for episode in group.episodes:
        own = episode.learned
        answers += [(t.leaf, episode.answer) for t in own]
        for t in (t for t in episode.trajectories if t.role == role and t.status != "limit"):
            node = t.leaf.node
            parent, cut = episode.tree.parent[node], episode.tree.cut[node]
            stem = next((o.leaf for o in own if o.leaf.node == parent), None)
            roots[t.leaf] = (stem, cut) if stem is not None else (own[0].leaf, 0)
            text = context.text(t.leaf)
            answers.append((t.leaf, last_between(text, "answer", text.strip())))
    scores = await judge_answers(judge, group, answers, context, deadline)
    values: dict[tuple[Ref, int], list[float]] = {}
    for leaf, state in roots.items():
        values.setdefault(state, []).extend(v for v in [scores[leaf].value] if v is not None)
    out: Scores = {
        "reward": {at: s for at, s in scores.items() if at not in roots},
        "vine_reward": {at: s for at, s in scores.items() if at in roots},
        "start_value": {},
        "step_value": {},
    }
    for (leaf, cut), known in values.items():
        value = Score(sum(known) / len(known) if known else None)
        if cut:
            out["step_value"][Ref(leaf.episode, leaf.node, cut)] = value
        else:
            out["start_value"][leaf] = value
    return out
