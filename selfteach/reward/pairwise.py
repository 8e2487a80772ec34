"""Rewards from pairwise comparisons: a schedule says which answers of a group are compared, a judge which one wins.

A judge is a block that names what it needs of `first` and `second` (answers), `first_text` and `second_text` (what the
policy wrote), `task`, and `rng_key` (the RNG key of its draws); it returns the share of the win that goes to the first:
True, False, or a number from 0 to 1. It may be async.

A schedule for n answers is a generator: it yields rounds of pairs (i, j), is sent the share of i for each pair, and
returns its result. It neither calls a judge nor draws at random. A model that has learned from comparisons gives a
reward without any (`reward_model`).
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..core import BadValue, Block, Episode, Ref, RewardContext, RolloutGroup, Score, Scores, Task, block
from ..core.ranking import auc
from .answer import exact_match

Schedule = Generator[list[tuple[int, int]], Sequence[float], Any]


def verdict_on(
    judge: Block, task: Task, pair: tuple[Episode, Episode], meeting: int, context: RewardContext
) -> float | Awaitable[Any]:
    """What a judge of pairs says of two episodes that meet for so many times: a share, or what gives one if awaited.

    The RNG key is of the episodes and the meeting, so that whoever asks the same again is told the same.
    """
    a, b = pair
    given: dict[str, Callable[[], Any]] = {
        "first": lambda: a.answer,
        "second": lambda: b.answer,
        "first_text": lambda: context.text(a.trajectories[-1].leaf),
        "second_text": lambda: context.text(b.trajectories[-1].leaf),
        "task": lambda: task,
        "rng_key": lambda: (task.id, a.id, b.id, meeting),
    }
    said: Any = judge(**{n: given[n]() for n in judge.needs})
    return said if inspect.isawaitable(said) else float(said)


async def compare(
    group: RolloutGroup,
    judge: Block | str,
    schedule: Callable[[int], Schedule],
    values: Callable[[Any], Sequence[float]],
    context: RewardContext,
) -> Scores:
    """Rewards of a group's answers: `values` of what the schedule returns.

    judge: a judge of pairs, or the name of one that the task has (`Task.judges`). Failed episodes are left out.
    Parts: comparisons, the number that the answer was in, and those of `with_auc`. Raises BadValue for fewer than two
    answers.
    """
    task = group.request.task
    judge_block = task.judge(judge) if isinstance(judge, str) else judge
    players = [e for e in group.episodes if e.status != "error"]
    if len(players) < 2:
        raise BadValue(
            "a pairwise reward needs two answers of a group, and there are fewer; set rollouts to at least 2"
        )
    met = Counter[tuple[int, int]]()

    async def ask(i: int, j: int) -> float:
        met[i, j] += 1  # a noisy judge may answer differently the second time
        share = verdict_on(judge_block, task, (players[i], players[j]), met[i, j], context)
        return float(await share if isinstance(share, Awaitable) else share)

    result, asked = await run_schedule(schedule(len(players)), ask)
    counts = Counter(i for pair in asked for i in pair)
    scores = [Score(v, {"comparisons": float(counts[i])}) for i, v in enumerate(values(result))]
    found = {t.leaf: s for e, s in zip(players, scores, strict=True) for t in e.learned}
    return {"reward": with_auc(group, found)}


@block
async def reward_model(
    *, group: RolloutGroup, context: RewardContext, model_role: str = "rm", eos: bool = True
) -> Scores:
    """The scalar head of a model after an answer's last token, as its reward; unknown for an answer without tokens.

    eos: False: after the last one but an EOS token, which answers have that no tag ends. Parts: those of `with_auc`.
    """
    if context.engine is None:
        raise BadValue("reward_model needs an engine, and this stage only reads data; use it in a stage that samples")
    out: dict[Ref, Score] = {}
    for leaf in [t.leaf for _, t in group.learned]:
        path = context.path(leaf)
        prompt, answer = path.ids[: path.prompt], path.ids[path.prompt :]
        if not eos and len(answer) and answer[-1] == context.tokenizer.eos_token_id:
            answer = answer[:-1]
        if not len(answer):
            out[leaf] = Score(None, error="the answer has no token")
            continue
        scalar = (await context.engine.score(model_role, prompt, answer, ("scalar_after",)))["scalar_after"]
        out[leaf] = Score(float(scalar[-1]))
    return {"reward": with_auc(group, out)}


def with_auc(group: RolloutGroup, scores: Mapping[Ref, Score]) -> dict[Ref, Score]:
    """Scores with the parts `right`, whether the answer equals the task's, and `auc` of their group.

    auc is the chance that a right answer has a higher reward than a wrong one, 1/2 where they are equal; it is absent
    where the group has not both. A metric of how well a reward tells them apart, which no reward reads. Of tasks
    without an answer to be right, both are absent.
    """
    task = group.request.task
    if task.answer is None:
        return dict(scores)
    right = {
        t.leaf: (Score.of(exact_match()(answer=e.answer, task=task)).value or 0.0) >= 1.0
        for e in group.episodes
        for t in e.trajectories
        if t.leaf in scores
    }
    known = [(s.value, right[at]) for at, s in scores.items() if s.value is not None]
    area = auc([v for v, hit in known if hit], [v for v, hit in known if not hit])
    own = {} if area is None else {"auc": area}
    return {at: replace(s, parts={**s.parts, "right": float(right[at]), **own}) for at, s in scores.items()}


async def run_schedule(
    schedule: Schedule, ask: Callable[[int, int], Awaitable[float]]
) -> tuple[Any, list[tuple[int, int]]]:
    """Run a schedule with a judge. Returns the schedule's result and the compared pairs, in order."""
    asked: list[tuple[int, int]] = []
    try:
        pairs = next(schedule)
        while True:
            asked += pairs
            pairs = schedule.send([await ask(i, j) for i, j in pairs])
    except StopIteration as end:
        return end.value, asked


def win_rates(n: int) -> Schedule:
    """All pairs once: n (n - 1) / 2. Returns f[n]: the mean share of each answer over its n - 1 comparisons.

    Each is first in about half of its comparisons, so that a judge that favours the first favours no answer.
    """
    pairs = [(i, j) if (i + j) % 2 else (j, i) for i in range(n) for j in range(i + 1, n)]
    won = [0.0] * n
    for (i, j), share in zip(pairs, (yield pairs), strict=True):
        won[i] += share
        won[j] += 1 - share
    return [w / (n - 1) for w in won]
