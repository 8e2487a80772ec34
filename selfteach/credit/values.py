"""What a prompt is worth: the rate at which it is solved in its group, and its value from samples that were drawn once and are remembered."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..core import BadValue, Column, Example, Group, Seq, block, remembers
from ..core.part import Array
from . import segments as seg


@block
def success_rate(*, reward: Seq, group: Seq) -> dict[str, Column]:
    """The mean reward of the group, for each of its sequences. Args: reward f64[S]; group i64[S]. Returns: rate f64[S]; NaN with a NaN in it.

    >>> success_rate(reward=[1, 0, 0, 0, 1], group=[0, 0, 0, 0, 1])["rate"].values
    array([0.25, 0.25, 0.25, 0.25, 1.  ])
    """
    return {"rate": Column("seq", seg.mean(reward, group, seg.count(group))[group])}


@block
@remembers(dict, shared="rewards")
def remember_rewards(*, groups: Sequence[Group], state: dict[str, list[float]]) -> tuple[list[Example], dict[str, list[float]]]:
    """A composer that teaches nothing: it keeps the known rewards of every task, for stages that only measure. `soft_advantage` reads them."""
    found = dict(state)
    for group in groups:
        known = [s.value for s in group.scores.get("reward", {}).values() if s.value is not None]
        found[group.request.task.id] = [*found.get(group.request.task.id, []), *known]
    return [], found


@block
@remembers(dict, shared="rewards")
def soft_advantage(*, reward: Seq, task: Seq, state: dict[str, list[float]], beta: float = 0.5) -> tuple[dict[str, Column], dict[str, list[float]]]:
    """The reward over the optimal value of its prompt, from remembered samples of the reference (Brantley et al. 2025, A*-PO, 2505.20686, eq. 4).

        A_i = r_i - V(x),   V(x) = beta log(1/N sum_j exp(r_j / beta)): the mean of r_j for a large beta, their largest for a small one

    Args: reward f64[S]; task, words per sequence; state, task -> rewards. Returns: adv f64[S]; NaN for a task without any.
    """
    if beta <= 0:
        raise BadValue(f"soft_advantage: beta must be above 0, not {beta}")
    value = {name: soft_value(state.get(name, []), beta) for name in dict.fromkeys(task)}
    return {"adv": Column("seq", np.asarray(reward, np.float64) - np.array([value[name] for name in task], np.float64))}, state


def soft_value(rewards: Array, beta: float) -> float:
    """beta log mean exp(r / beta); NaN without rewards.

    >>> round(soft_value([1.0, 0.0], 0.5), 4)  # log((e^2 + 1) / 2) / 2
    0.7169
    """
    if not len(rewards):
        return float("nan")
    return float(beta * (np.logaddexp.reduce(np.asarray(rewards, np.float64) / beta) - np.log(len(rewards))))
