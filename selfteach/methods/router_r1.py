"""Router-R1, multi-round routing and aggregation (Zhang et al. 2025, arXiv 2506.09033).

The router is a language model that thinks, asks models of different knowledge and price by name, and answers from what
they reply. Its reward has a format, an outcome, and a cost that is relative to what routing cost of late.

    R = -1                                where the form is wrong
    R = (1 - alpha) EM + alpha C          where the answer is right, C = 1 - norm(sqrt(price of the replies)); else 0
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core import (
    Claim,
    Home,
    Method,
    RewardContext,
    RolloutGroup,
    Score,
    Scores,
    block,
    mechanism,
    method,
    outcome,
    premise,
    stateful,
)
from ..core.search_record import own_text, pieces_of
from ..core.tool_calls import SEARCH
from ..reward.agent_record import fault
from ..reward.answer import exact_match
from ..rollout.search import search_agent
from .ppo import ppo

ROUTES = {"ways": (0.0, 0.6, 0.0, 0.0, 0.2, 0.2), "hops": (1,), "says": "route"}


@method(family="search", paper="2506.09033", catalogue=357, home=Home("factworld", 40, ROUTES))
def router_r1(
    groups: int = 64,
    rollouts: int = 1,
    turns: int = 4,
    alpha: float = 0.0,
    window: int = 1000,
    beta: float = 0.001,
    critic_lr: float = 1e-3,
    minibatches: int = 2,
    critic_epochs: int = 1,
) -> Method:
    """PPO on a router that asks models by name, with the price of what it asked in the reward of right answers.

        R = -1 where the form is wrong; else, where the answer is right, (1 - alpha) + alpha C; else 0
        C = 1 - clip((x - q05) / (q95 - q05), 0, 1),   x = sqrt(price of the episode's replies)

    Zhang et al. 2025, section 3.2, with the constants of the released code: up to four calls, batches of 64 in
    minibatches of 32, KL 0.001 in the reward, quantiles over the last 1,000 episodes, C = 1/2 while they are equal. In
    the paper C counts whether the answer is right or not; in the code, and here, where it is right. The models are the
    task's tool `experts` (tools/experts.py): two that know half of the relations each, one dear that knows all, one
    cheap that knows none; a reply costs its expert's price a word. Their prompt describes the models; a tiny router has
    to find out. An unknown name is answered by an error, and is wrong in form, as are a query without a name, a tag
    left open, no thought, and no answer. A turn with neither a query nor an answer ends the episode; theirs goes on.
    """
    base = ppo(
        groups=groups,
        rollouts=rollouts,
        beta=beta,
        critic_lr=critic_lr,
        minibatches=minibatches,
        critic_epochs=critic_epochs,
    )
    return base.replace(
        programs={"main": search_agent(answerer="experts", turns=turns)},
        reward=(routed(alpha=alpha, window=window),),
    )


@block
@stateful(lambda: {"costs": []})
def routed(
    *,
    groups: Sequence[RolloutGroup],
    context: RewardContext,
    state: dict[str, Any],
    alpha: float = 0.0,
    window: int = 1000,
) -> tuple[Scores, dict[str, Any]]:
    """Form, exact match, and the price of what was asked, relative to that of the last `window` episodes (see
    `router_r1`).

    State: the square roots of their prices. Parts: answer, format, price (of the episode's replies), calls; cheap, C.
    """
    costs, out = [float(c) for c in state["costs"]], Scores({"reward": {}})
    for group, episode in ((g, e) for g in groups for e in g.episodes):
        price = float(episode.cost.get(f"{SEARCH}price", 0.0))
        costs = [*costs, price**0.5][-window:]
        cheap = cheapness(costs)
        for t in episode.learned:
            pieces = pieces_of(context.path(t.leaf), context)
            why = fault(pieces) or (
                "" if own_text(pieces).startswith("<think>") else "it does not begin with a thought"
            )
            if any("there is no such expert" in p.text for p in pieces if p.kind != "own"):
                why = why or "no such expert"
            right = exact_match(answer=episode.answer, task=group.request.task).value or 0.0
            value = -1.0 if why else right * ((1 - alpha) + alpha * cheap)
            calls = float(episode.cost.get("calls", 0))
            parts = {"answer": right, "format": float(not why), "price": price, "calls": calls, "cheap": cheap}
            out["reward"][t.leaf] = Score(value, parts, why)
    return out, {"costs": costs}


def cheapness(costs: Sequence[float]) -> float:
    """How cheap the last of some costs is among them: 1 at their 5 % quantile or below, 0 at their 95 % or above.

    >>> round(cheapness([0.0, 1.0, 0.5]), 4), cheapness([2.0, 2.0])
    (0.5, 0.5)
    """
    low, high = np.percentile(costs, [5, 95])
    if high - low < 1e-8:
        return 0.5
    return 1.0 - float(np.clip((costs[-1] - low) / (high - low), 0.0, 1.0))


WHOLE = {"minibatches": 1, "critic_epochs": 4}  # one update of the policy to a batch, as in all regimes

router_r1.claim = Claim(
    (
        premise("late:reward/price", "free", 5.0, fails_at=0.0),  # without a price the dear expert is asked
        mechanism("late:reward/price", "self", "free", relation="<", scale="ratio", by=0.2, fails_at=0.0),
        mechanism("late:reward/price", "dear", "self", relation="<", scale="ratio", by=0.1, fails_at=0.0),
        outcome("accuracy", "self", "start", by=0.2, fails_at=0.85),
        outcome("accuracy", "self", "free", by=0.05, relation=">=", fails_at=1.0),
    ),
    arms={
        "free": ("router_r1", {"alpha": 0.0, **WHOLE}),
        "dear": ("router_r1", {"alpha": 0.9, **WHOLE}),
    },
    args={"alpha": 0.5, **WHOLE},
    regime="search_experts",
    settings={"eval_every": 12},
    idea=("main.reward",),
    because="an expert that knows as much for less is worth more, and what is cheap follows what is asked of late",
)
