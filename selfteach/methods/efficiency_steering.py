"""Efficiency Steering (Zhao et al. 2025, arXiv 2506.15647): one direction of the hidden states shortens reasoning.

A model's right answers to one question differ much in length, and so do the states that they are drawn from. The mean
difference between the shortest and the longest right answer is a direction; adding it as tokens are sampled makes
answers shorter, and its opposite makes them longer, without training.

    h_l(a) = mean over the states that answer a's tokens are drawn from, of the residual stream after layer l
    v_l    = mean over questions (h_l(shortest right) - h_l(longest right))
    x_l   <- x_l + lambda v_l     at every state that a token is drawn from
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core import (
    Block,
    Claim,
    Method,
    Ref,
    RewardContext,
    RolloutContext,
    RolloutGroup,
    RolloutRequest,
    Scores,
    Stage,
    Steering,
    block,
    mechanism,
    method,
    outcome,
    premise,
)
from ..core.blocks import asks_engine, stateful
from ..core.contexts import own_tokens
from ..core.random_keys import generator
from ..core.tagged_text import last_between
from ..curriculum.select import pool
from ..reward.answer import exact_match
from ..reward.answer_verdicts import judge_groups
from ..reward.length import tokens_of
from ..rollout.single import single
from .self_rewarded_efficiency import self_rewarded_efficiency

DIRECTION = "efficiency direction"  # under which blocks share it


@method(family="efficiency", paper="2506.15647", catalogue=43)
def efficiency_steering(
    groups: int = 16,
    rollouts: int = 8,
    tasks: int = 100,
    samples: int = 8,
    scale: float = 2.0,
    depth: float = 1.0,
    alpha: float = 0.5,
) -> Method:
    """Directions from the shortest and the longest right answer, added as tokens are sampled; then the paper's RL.

        v_l = mean over questions (h_l(shortest right) - h_l(longest right)),   x_l <- x_l + lambda v_l

    Zhao et al. 2025, a reading of the abstract, which says one direction; no code is released. The first stage
    samples `samples` answers to each of `tasks` questions and moves no weight; a question with right answers of two
    lengths counts. Programs to evaluate by add lambda v after the layer at `depth` of the way through the model:
    half, shorter and double (lambda = scale / 2, scale, 2 scale), longer (-scale), and random, a direction drawn at
    random, as long as scale v. Chosen here: the mean is over the answer's tokens; what is steered is every state that a
    token is drawn from, so also the prompt's last one and nothing before it; depth and scale, by one sweep on a tuning
    seed: of 0.5, 1, 2 and 4 the least scale that cut a fifth, which was 2 in `overlong` and 0.5 in `hesitant`. The RL
    that follows, for as many steps as are left, is `self_rewarded_efficiency` (alpha); the direction stays that of the
    start.
    """
    at_once = min(tasks, 8 * groups)
    directions = Stage(
        name="direction",
        select=pool(size=tasks),
        programs={"main": single()},
        reward=(remember_direction(judge=exact_match()),),
        credit=(),
        updates=(),
        groups=at_once,
        rollouts=samples,
        until=-(-tasks // at_once),
    )
    learning = self_rewarded_efficiency(groups=groups, rollouts=rollouts, alpha=alpha)
    return learning.override(
        stages=(directions, *learning.stages),
        decode={
            "main": single(),
            "half": steered(scale=scale / 2, depth=depth),
            "shorter": steered(scale=scale, depth=depth),
            "double": steered(scale=2 * scale, depth=depth),
            "longer": steered(scale=scale, depth=depth, reverse=True),
            "random": steered(scale=scale, depth=depth, random=True),
        },
    )


@block
@asks_engine("residuals")
@stateful(lambda: {"sum": None, "questions": 0}, shared=DIRECTION)
async def remember_direction(
    *,
    groups: Sequence[RolloutGroup],
    context: RewardContext,
    deadline: float,
    state: dict[str, Any],
    judge: Block | None = None,
) -> tuple[Scores, dict[str, Any]]:
    """The scores of a judge (right from 1 on; None: exact_match), and what its right answers add to the direction.

    state: sum f64[layers, width] of the differences, and of how many questions; None and 0 before the first.
    """
    verdicts = await judge_groups(judge, groups, context, deadline)
    total, questions = state["sum"], state["questions"]
    for group in groups:
        right = [
            (tokens_of(e, t), t.leaf)
            for e in group.episodes
            for t in e.trajectories
            if t.leaf in verdicts and (verdicts[t.leaf].value or 0.0) >= 1.0
        ]
        if (ends := shortest_and_longest(right)) is None:
            continue
        short, long = await asyncio.gather(*(mean_residuals(context, at) for at in ends))
        total = short - long if total is None else total + (short - long)
        questions += 1
    return {"reward": verdicts}, {"sum": total, "questions": questions}


def shortest_and_longest(answers: Sequence[tuple[int, Ref]]) -> tuple[Ref, Ref] | None:
    """The places of the shortest and the longest of some (length, place), the first of equals; None for one length.

    >>> shortest_and_longest([(5, Ref("a", 1)), (3, Ref("b", 1)), (9, Ref("c", 1)), (3, Ref("d", 1))])
    (Ref(episode='b', node=1, offset=-1), Ref(episode='c', node=1, offset=-1))
    """
    lengths = [n for n, _ in answers]
    if len(set(lengths)) < 2:
        return None
    return answers[lengths.index(min(lengths))][1], answers[lengths.index(max(lengths))][1]


async def mean_residuals(context: RewardContext, at: Ref) -> np.ndarray:
    """f64[layers, width]: the mean residual stream of the states that the tokens of an answer were drawn from."""
    assert context.engine is not None
    path = context.path(at)
    own = own_tokens(path)[path.prompt :]
    found = await context.engine.score("policy", path.ids[: path.prompt], path.ids[path.prompt :], ("residuals",))
    return found["residuals"][own].astype(np.float64).mean(0)


@block
@asks_engine(steering=True)
async def steered(
    *,
    request: RolloutRequest,
    rollout: RolloutContext,
    scale: float = 1.0,
    depth: float = 1.0,
    reverse: bool = False,
    random: bool = False,
    model_role: str = "policy",
    stop: tuple[str, ...] = ("</answer>",),
) -> str:
    """One turn, as `single`, sampled with `scale` times the direction; without it before there is one.

    depth    of the layer after which it is added: 1 is the last
    reverse  the direction's opposite;  random: one drawn at random in its place, of the same length
    """
    found = rollout.stored(DIRECTION)
    steering = None
    if found is not None and found["questions"]:
        direction = np.asarray(found["sum"]) / found["questions"]
        layer = layer_at(depth, len(direction))
        vector = direction[layer]
        if random:
            drawn = generator(rollout.shared_rng_key("random direction")).standard_normal(len(vector))
            vector = drawn * np.linalg.norm(vector) / np.linalg.norm(drawn)
        steering = Steering(layer, tuple(((-scale if reverse else scale) * vector).tolist()))
    context = rollout.model_role(model_role).begin(request.task.prompt)
    turn = await context.sample(stop=stop, steering=steering)
    context.close()
    return last_between(turn.text, "answer", turn.text.strip())


def layer_at(depth: float, layers: int) -> int:
    """The layer, from 0, that ends at least `depth` of the way through so many layers.

    >>> [layer_at(depth, 4) for depth in (0.0, 0.25, 0.5, 0.6, 1.0)]
    [0, 0, 1, 2, 3]
    """
    return max(math.ceil(depth * layers) - 1, 0)


efficiency_steering.claim = Claim(
    (
        premise("length_right", "self", 36.0, fails_at=30.0),  # right answers are longer than they need to be
        # the more of it, the shorter; its opposite is longer
        mechanism("length+half", "self", "length of self", by=0.03, relation="<", scale="ratio", fails_at=1.0),
        mechanism("length+shorter", "self", "length+half of self", by=0.03, relation="<", scale="ratio", fails_at=1.0),
        mechanism("length+longer", "self", "length of self", by=0.03, scale="ratio", fails_at=1.0e3),
        outcome("length+shorter", "self", "length of self", by=0.2, relation="<", scale="ratio", fails_at=1.0),
        outcome("length+shorter", "self", "length+random of self", by=0.2, relation="<", scale="ratio", fails_at=1.0),
        outcome("accuracy+shorter", "self", "accuracy of self", by=0.01, relation=">=", fails_at=1.0),
    ),
    args={"scale": 0.5},
    regime="hesitant",
    # Nothing is learned: the direction of the start, and the start. A guess that is right by luck would be shortest.
    settings={"steps": 1, "task.guess": 0.0},
    first_seed=300,
    corrected=(
        "on seeds 200 to 223, in overlong, right answers had two lengths, and no direction between them made answers "
        "a little shorter: mechanism not shown"
    ),
    because="how long a right answer becomes lies along one direction of the hidden states",
)
