"""Rewards by an answer's length in tokens, and what an answer repeats."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..core import BadValue, Block, Episode, RewardContext, RolloutGroup, Score, Scores, Trajectory, block
from .answer_verdicts import judge_groups


def sampled_ids(episode: Episode, trajectory: Trajectory) -> np.ndarray:
    """i32[n]: the tokens of a trajectory that the policy sampled, in order; of a demonstration, all that are taught."""
    tree = episode.tree
    places = [tree.places(leaf.node, leaf.offset) for leaf in (*trajectory.before, trajectory.leaf)]
    at = np.unique(np.concatenate(places))
    chosen = at[tree.action_mask[at]]
    sampled = chosen[~np.isnan(tree.logp[chosen])]  # what others wrote and was adopted has no log-probability
    return tree.id[sampled if len(sampled) else chosen]


def tokens_of(episode: Episode, trajectory: Trajectory) -> int:
    """The number of tokens of a trajectory that the policy sampled."""
    return len(sampled_ids(episode, trajectory))


def repeated_tokens(ids: Sequence[int] | np.ndarray, n: int) -> np.ndarray:
    """bool[N]: the tokens inside an n-gram that the text before already had.

    >>> repeated_tokens([5, 6, 7, 5, 6, 8], 2)  # "5 6" comes again
    array([False, False, False,  True,  True, False])
    """
    ids = np.asarray(ids)
    out, seen = np.zeros(len(ids), bool), set[tuple[int, ...]]()
    for start in range(len(ids) - n + 1):
        gram = tuple(ids[start : start + n].tolist())
        if gram in seen:
            out[start : start + n] = True
        seen.add(gram)
    return out


def on_cosine(length: float, limit: float, short: float, long: float) -> float:
    """A value that goes from `short` at length 0 to `long` at the limit, along half a cosine.

    >>> [round(on_cosine(n, 100, 2.0, 1.0), 3) for n in (0, 50, 100, 200)]
    [2.0, 1.5, 1.0, 1.0]
    """
    return long + 0.5 * (short - long) * (1.0 + math.cos(math.pi * min(length / limit, 1.0)))


@block
async def cosine_scaled(
    *,
    group: RolloutGroup,
    context: RewardContext,
    deadline: float,
    judge: Block | None = None,
    limit: int = 128,
    right_short: float = 2.0,
    right_long: float = 1.0,
    wrong_short: float = -10.0,
    wrong_long: float = 0.0,
    exceeded: float | None = None,
) -> Scores:
    """A reward by whether an answer is right and how long it is (Yeo et al. 2025, 2502.03373, section 4.2).

        R = on_cosine(length, limit, right_short, right_long)   where the judge's score is at least 1
          = on_cosine(length, limit, wrong_short, wrong_long)   else
          = exceeded                                            where the token limit cut the answer

    judge     a reward of answers; None: exact_match
    limit     tokens at which the cosine has reached its other end
    exceeded  None: an answer that is cut is an answer like others

    Parts: those of the judge, and exceeded. Unknown stays unknown.
    """
    if limit < 1:
        raise BadValue(f"cosine_scaled: limit must be at least 1, not {limit}")
    verdicts = await judge_groups(judge, [group], context, deadline)
    out: Scores = {"reward": {}}
    for episode, t in [(e, t) for e in group.episodes for t in e.trajectories if t.leaf in verdicts]:
        verdict, cut = verdicts[t.leaf], t.status in ("length", "limit")
        value = None
        if verdict.value is not None:
            ends = (right_short, right_long) if verdict.value >= 1.0 else (wrong_short, wrong_long)
            value = on_cosine(tokens_of(episode, t), limit, *ends)
            value = exceeded if cut and exceeded is not None else value
        parts = {**verdict.parts, "exceeded": float(cut)}
        out["reward"][t.leaf] = Score(value, parts, verdict.why, verdict.error)
    return out


@block
async def with_brevity(
    *,
    group: RolloutGroup,
    context: RewardContext,
    deadline: float,
    judge: Block | None = None,
    weight: float = 1.0,
    judged: float = 1.0,
) -> Scores:
    """`judged` times a judge's reward and `weight` times the length reward (Kimi k1.5, 2501.12599, section 2.3.3).

    judge: right from 1 on; None: exact_match. Parts: those of the judge, right, brevity. Unknown rewards stay unknown.
    """
    verdicts = await judge_groups(judge, [group], context, deadline)
    ends = {t.leaf: tokens_of(e, t) for e in group.episodes for t in e.trajectories}
    known = [at for at in verdicts if verdicts[at].value is not None]
    right = [(verdicts[at].value or 0.0) >= 1.0 for at in known]
    added = length_rewards([ends[at] for at in known], right)
    out = dict(verdicts)
    for at, is_right, extra in zip(known, right, added, strict=True):
        have = verdicts[at]
        parts = {**have.parts, "right": float(is_right), "brevity": extra}
        out[at] = Score(judged * (have.value or 0.0) + weight * extra, parts, have.why, have.error)
    return {"reward": out}


def length_rewards(lengths: Sequence[int], right: Sequence[bool]) -> list[float]:
    """lambda of each right answer to a question, min(0, lambda) of each wrong one; 0 where all are of one length.

    >>> length_rewards([10, 20, 30, 10], [True, True, False, False])
    [0.5, 0.0, -0.5, 0.0]
    """
    if not lengths or max(lengths) == min(lengths):
        return [0.0] * len(lengths)
    low, high = min(lengths), max(lengths)
    found = [0.5 - (n - low) / (high - low) for n in lengths]
    return [x if good else min(0.0, x) for x, good in zip(found, right, strict=True)]
