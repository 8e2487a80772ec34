"""SEELE, capability-adaptive hints (Li et al. 2025, arXiv 2509.06923).

Each problem comes with a hint, the first part of its solution, of the length at which an item-response curve fitted to
its rollouts so far predicts an accuracy of one half.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..core import (
    BadValue,
    Claim,
    Example,
    Method,
    RolloutGroup,
    RolloutRequest,
    Segment,
    Seq,
    Task,
    TaskSource,
    Term,
    Token,
    Unit,
    block,
    logged,
    mechanism,
    method,
    outcome,
    premise,
    provides,
    stateful,
)
from ..core.lazy import torch
from ..credit.advantages import center
from ..credit.composers import per_trajectory
from ..curriculum.select import known_rewards, pool_tasks
from ..objective.loss_weights import constant_length
from ..objective.policy import clipped_ratio
from ..objective.segments import seq_sum
from .base import policy_method

SLOPES = np.geomspace(1.0, 50.0, 25)  # grid of a; the fitted curves of the paper's figure 3 end at 50.00
MIDDLES = np.linspace(-0.5, 1.5, 161)  # grid of b


@method(family="guidance", paper="2509.06923", catalogue=30)
def seele(
    groups: int = 16,
    rollouts: int = 8,
    rounds: int = 4,
    target: float = 0.5,
    size: int = 256,
    highest: float = 0.95,
    fixed: float | None = None,
    gamma: float = 0.001,
    clip: float = 0.2,
    limit: int = 128,
) -> Method:
    """Dr. GRPO whose rollouts come in rounds, each after the prefix of the solution that a fitted curve prescribes.

        accuracy at hint rate l:  f(l) = c + (1 - c) / (1 + exp(-a (l - b)))
        next l = f^-1(target)
        A_i  = r_i - mean(r)                                over all rounds of a problem
        loss = -[sum over tokens of min(rho A, clip(rho, 1 - clip, 1 + clip) A) + gamma pi(hint | question)] / limit

    Li et al. 2025, sections 4.2 and 4.3, equations 2, 10, 12, 13 and algorithm 1; gamma (0.001), rounds and target are
    the paper's. What follows a hint is learned after it; the hint itself is learned after the bare question, by its
    probability and not its logarithm (gamma=0: not at all). Prompts come from a pool of `size`: a first visit begins
    with the rate `highest`, later ones with the rate that the last one ended with. fixed: always this rate, in one
    round. The paper has 32 rollouts in rounds of 8, pieces of a solution that are tokens or steps, a first rate of all
    but the last piece, and a KL penalty of 0.001; here rounds are of 2, pieces are words, and there is no penalty.
    """
    select = responsive_hints(rounds=rounds, target=target, size=size, highest=highest, fixed=fixed)
    imitation = Term(hint_probability(), on=("hint",), loss_weights=hint_share(limit=limit), coef=gamma)
    return policy_method(
        credit=(per_trajectory(), *((hints_alone(),) if gamma else ()), center()),
        term=Term(clipped_ratio(low=clip, high=clip), loss_weights=constant_length(limit=limit)),
        more=(imitation,) if gamma else (),
        groups=groups,
        rollouts=rollouts,
        select=select,
    )


@block
@stateful(lambda: {"next": 0, "rates": {}})
def responsive_hints(
    *,
    n: int,
    rollouts: int,
    finished_rounds: list[list[RolloutGroup]],
    source: TaskSource,
    seed: int,
    log_metrics: Callable[..., None],
    state: dict[str, Any],
    rounds: int = 4,
    target: float = 0.5,
    size: int = 256,
    highest: float = 0.95,
    fixed: float | None = None,
) -> tuple[list[RolloutRequest], dict[str, Any]]:
    """`n` tasks of a pool of `size`, each with its `rollouts` in `rounds` rounds of different hint rates, as one group.

        l <- f^-1(target), clipped to [0, highest],   f fitted to this visit's (rate, accuracy) pairs

    Round 1 has the rate that the task's last visit ended with (`highest` where there was none). The hint is the first
    share l of the words of the tag `solution`. fixed: always this rate, in one round. Metrics: the mean rate of the
    step's rollouts (select/hint) and of its last round (select/ends), and the mean squared distance of the accuracy
    there from the target (select/off). Raises BadValue where a task has no solution. Li et al. 2025, section 4.2.
    """
    rounds = 1 if fixed is not None else min(rounds, rollouts)
    sizes = [rollouts // rounds + (i < rollouts % rounds) for i in range(rounds)]
    if not finished_rounds:
        tasks = pool_tasks(source, seed, state["next"], n, size)
        rates = [float(state["rates"].get(t.id, highest)) if fixed is None else fixed for t in tasks]
        requests = [_with_hint(t, rate, sizes[0], None) for t, rate in zip(tasks, rates, strict=True)]
        return requests, {**state, "next": state["next"] + n}
    visits = [list(groups) for groups in zip(*finished_rounds, strict=True)]  # of each task, its groups so far
    next_rates = [_next_rate(visit, target, highest) if fixed is None else fixed for visit in visits]
    if len(finished_rounds) < rounds:
        pairs = zip(finished_rounds[0], next_rates, strict=True)
        return [_with_hint(g.request.task, rate, sizes[len(finished_rounds)], g.key) for g, rate in pairs], state
    rates = [(g.request.help["rate"], g.request.n) for round_ in finished_rounds for g in round_]
    ends = [g.request.help["rate"] for g in finished_rounds[-1]]
    log_metrics(hint=math.fsum(r * k for r, k in rates) / sum(k for _, k in rates), ends=math.fsum(ends) / len(ends))
    if off := [_squared_distance(known, target) for g in finished_rounds[-1] if len(known := known_rewards(g)) > 1]:
        log_metrics(off=math.fsum(off) / len(off))
    last = {g.request.task.id: rate for g, rate in zip(finished_rounds[0], next_rates, strict=True)}
    return [], {**state, "rates": state["rates"] | last}


def _squared_distance(rewards: Sequence[float], target: float) -> float:
    """(p - target)^2 without bias, of the p that these rewards are drawn with: their mean's variance is taken out."""
    return float((np.mean(rewards) - target) ** 2 - np.var(rewards, ddof=1) / len(rewards))


def _with_hint(task: Task, rate: float, n: int, key: str | None) -> RolloutRequest:
    """A request of `n` rollouts with the hint of a rate in its `help`."""
    if "solution" not in task.tags:
        raise BadValue(
            f"responsive_hints: task {task.id} has no tag 'solution' for hints; take a task that has worked solutions"
        )
    return RolloutRequest(task, n, key=key, help={"hint": prefix(str(task.tags["solution"]), rate), "rate": rate})


def prefix(text: str, rate: float) -> str:
    """The first round(rate n) of a text's n words, spaces before them included; never the last word.

    >>> prefix("a b c d", 0.45), prefix("a b", 1.0)
    ('a b', 'a')
    """
    words = re.findall(r"\s*\S+", text)
    return "".join(words[: min(round(rate * len(words)), len(words) - 1)])


def _next_rate(visit: list[RolloutGroup], target: float, highest: float) -> float:
    """The hint rate at which the curve through one task's rounds has the target accuracy."""
    points = [
        (float(g.request.help["rate"]), math.fsum(known) / len(known)) for g in visit if (known := known_rewards(g))
    ]
    return min(max(fit(points).inverse(target), 0.0), highest)


class Curve(NamedTuple):
    """f(l) = c + (1 - c) / (1 + exp(-a (l - b))): item response theory's three-parameter logistic (Birnbaum 1968)."""

    a: float
    b: float
    c: float

    def __call__(self, rate: float) -> float:
        """The accuracy at a hint rate."""
        return self.c + (1.0 - self.c) / (1.0 + float(np.exp(-self.a * (rate - self.b))))

    def inverse(self, accuracy: float) -> float:
        """The hint rate of an accuracy below 1; minus infinity where the curve is above it everywhere."""
        if accuracy <= self.c:
            return -np.inf
        share = (accuracy - self.c) / (1.0 - self.c)
        return self.b + float(np.log(share / (1.0 - share))) / self.a


def fit(points: Sequence[tuple[float, float]]) -> Curve:
    """The least-squares curve through the (rate, accuracy) points of some rounds, and (0, 0) and (1, 1).

        minimise sum_i (f(l_i) - y_i)^2,   a in [1, 50], b in [-1/2, 3/2], c in [0, 1]

    Each of (0, 0) and (1, 1) stands in where its rate was not tried; y_i is the mean over the rounds of one rate
    (equation 13, algorithm 1). Found by a grid search over a and b, with the best c, in which f is linear, for each;
    the paper has a trust-region search from a start that it does not tell. Where accuracies jump from 0 to 1 between
    two rates, the best curve is steepest and its middle halfway between them.
    """
    tried: dict[float, list[float]] = {}
    for at, accuracy in points:
        tried.setdefault(at, []).append(accuracy)
    rows = [(at, math.fsum(tried[at]) / len(tried[at])) for at, _ in points]
    rows += [(end, end) for end in (0.0, 1.0) if end not in tried]
    rate, y = np.array(rows, np.float64).T
    a, b = SLOPES[:, None, None], MIDDLES[None, :, None]
    s = 1.0 / (1.0 + np.exp(-a * (rate - b)))  # [A, B, points]
    above = np.maximum(((1 - s) ** 2).sum(-1), 1e-300)
    c = (((y - s) * (1 - s)).sum(-1) / above).clip(0.0, 1.0)
    loss = ((s + c[..., None] * (1 - s) - y) ** 2).sum(-1)
    i, j = np.unravel_index(int(loss.argmin()), loss.shape)
    return Curve(float(SLOPES[i]), float(MIDDLES[j]), float(c[i, j]))


@block
@provides("share")
def hints_alone(*, groups: Sequence[RolloutGroup]) -> list[Example]:
    """One example per round and problem that had a hint: the question and the hint, which is the loss stream `hint`.

    Columns: share per seq, of the step's learned rollouts those that had this hint. The reward is 0, in a group of its
    own, so that hints have no advantage.
    """
    total, out = sum(len(g.learned) for g in groups), list[Example]()
    for group in (g for g in groups if g.learned):
        episode, t = group.learned[0]
        tree = episode.tree
        at = tree.places(t.leaf.node, t.leaf.offset)
        hint = np.flatnonzero(np.array([s == "hint" for s in tree.spans])[tree.span[at]])
        if len(hint):
            ids = tuple(tree.id[at].tolist())
            parts = Segment(ids[: hint[0]], None), Segment(ids[hint[0] : hint[-1] + 1], "hint")
            share = len(group.learned) / total
            given: dict[str, tuple[Unit, Any]] = {
                "reward": ("seq", 0.0),
                "truncated": ("seq", 0.0),
                "share": ("seq", share),
            }
            name = f"{episode.id}/hint"
            out.append(Example(parts, t.role, name, name, given=given))
    return out


@block
@logged("hint_probability", lambda logp, seq: seq_sum(logp, seq).exp(), "The probability of a whole hint.")
def hint_probability(*, logp: Token, seq: Token) -> Seq:
    """Minus the probability of a whole sequence (equation 10's second term): l = -exp(sum_t logp_t).

    Args: logp f[N]; seq i64[N]. Returns: l f[S]. Scope: seq.

    >>> hint_probability(logp=torch.tensor([0.5, 0.5, 0.2]).log(), seq=torch.tensor([0, 0, 1]))
    tensor([-0.2500, -0.2000])
    """
    return -torch.exp(seq_sum(logp, seq))


@block
def hint_share(*, length: Seq, share: Seq, limit: int = 128) -> Seq:
    """A sequence's whole weight is share / limit: what `constant_length` gives one token of so many sequences.

    Args: length i64[S]; share f64[S]. Returns: f64[S], per token.

    >>> hint_share(length=np.array([2, 5]), share=np.array([0.5, 0.25]), limit=10)
    array([0.025, 0.005])
    """
    return np.asarray(share) / (limit * np.asarray(length))


seele.claim = Claim(
    (
        # without hints few answers are right
        premise("early:reward/mean", "unhinted", 0.3, relation="<", by=0.0, fails_at=0.35),
        # with them half of a problem's are
        mechanism("early:select/off", "self", "unhinted", by=0.3, relation="<", scale="ratio", fails_at=0.0),
        outcome("accuracy", "self", "unhinted", by=0.05, fails_at=0.99),
        outcome("auc", "self", "unhinted", by=0.05, fails_at=0.99),
        outcome("accuracy", "self", "half", by=0.02, fails_at=0.99),
    ),
    arms={"unhinted": ("seele", {"fixed": 0.0}), "half": ("seele", {"fixed": 0.5})},
    regime="deep",
    first_seed=600,
    corrected="on seeds 500 to 507 in steep, where half of the problems are solved without a hint and no hint makes "
    "them harder: mechanism not shown; on seeds 300 to 307 there a first visit began without a hint, the fit had a "
    "prior in place of (0, 0) and (1, 1), hints were not learned, and advantages were divided by a deviation: "
    "mechanism shown",
    idea=("main.select",),
    because="a step gains most at an accuracy of one half, and an item-response curve finds the hint rate that gives "
    "it, at which none of a prompt's rollouts are in vain",
)
