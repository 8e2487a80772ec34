"""PIPO, policy improvement policy optimisation (2604.00860): each update is verified by the next batch, and corrected.

The mean reward of a new batch against those of the last K batches tells whether the last update helped. One more step
on the batch that it learned goes the same way again where it did, and a little back where it did not.

    xi_t = (mu_t - mean of the last K means) / their std
    A'_i = G A_i / sum_j |A_j| phi(xi_t),   phi(x) = x where x >= 0, else lam x
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..core import (
    BadValue,
    Claim,
    Column,
    Example,
    Method,
    RolloutGroup,
    Seq,
    Term,
    Token,
    Update,
    block,
    logged,
    mechanism,
    method,
    outcome,
    premise,
    provides,
    stateful,
    zero_when,
)
from ..credit import segments as seg
from ..credit.advantages import norm
from ..credit.composers import per_trajectory
from ..credit.replay import from_stored, to_stored
from ..objective.loss_weights import sequence_mean
from ..objective.policy import clipped_ratio, clipped_tokens
from .base import policy_method


@method(family="objective", paper="2604.00860", catalogue=179)
def pipo(
    groups: int = 16,
    rollouts: int = 8,
    window: int = 8,
    lam: float = 0.1,
    verify: bool = True,
    clip: float = 0.2,
    minibatches: int = 1,
) -> Method:
    """GRPO that verifies each update by the next batch's rewards, and learns the batch before once more accordingly.

        xi_t = (mu_t - mean of the last `window` batches' means) / their std
        A'_i = G A_i / sum_j |A_j| phi(xi_t),   phi(x) = x where x >= 0, else lam x
        loss = -min(r A', clip(r, 1 - clip, 1 + clip) A') on the batch before, then GRPO's on the new one

    The formulas are the paper's (2604.00860, K 8, lam 0.1): std over n - 1, the means of the steps before the new
    batch, the ratio to the policy that sampled the batch, clipped on both sides. Until `window` means are known nothing
    is learned twice. verify=False learns every batch again, phi = 1, without looking whether it helped. Chosen here: of
    equal means xi is 0, and A' is bounded to 10, which the paper does not do. Metrics: policy/xi, policy/phi, and
    policy/setback, 1 where xi is below 0.

    The released code (JacckMa/pipo_verl) differs. Its loss on the batch before is -min(r, 1 + clip) A': where A' is
    below 0, r goes on down below 1 - clip, and is left alone above 1 + clip (core_algos.py, grpo_layback). A step
    stores its mean twice, before and after it learns, so that a window of 8 has the new batch and four before it; std
    is over n, and 1 where that is 0. G A_i / sum_j |A_j| xi is bounded to 10 before lam multiplies it
    (layback_utils.py). The loss is a mean over tokens, of two minibatches, with a KL penalty of 1e-3 (grpo_pipo.yaml).
    """
    base = policy_method(
        credit=(new_batch(), previous_batch(), norm(), verified_improvement(window=window, lam=lam, verify=verify)),
        term=Term(clipped_ratio(low=clip, high=clip), loss_weights=sequence_mean()),
        groups=groups,
        rollouts=rollouts,
        minibatches=minibatches,
    )
    again = Update(
        ("policy",),
        (Term(reinforced_ratio(low=clip, high=clip), loss_weights=sequence_mean()),),
        where=previous_rows(),
        minibatches=minibatches,
    )
    (new,) = base.stage.updates
    return base.replace(updates=(again, replace(new, where=previous_rows(wanted=False))))


@block
@provides("previous")
def new_batch(
    *, groups: Sequence[RolloutGroup], mask: tuple[str, ...] = (), model_role: str | None = "policy"
) -> list[Example]:
    """`per_trajectory` with the column `previous` 0, beside `previous_batch`."""
    return [_marked(e, 0.0) for e in per_trajectory(groups=groups, mask=mask, model_role=model_role)]


@block
@stateful(lambda: {"batch": []})
@provides("previous")
def previous_batch(
    *,
    groups: Sequence[RolloutGroup],
    state: dict[str, Any],
    mask: tuple[str, ...] = (),
    model_role: str | None = "policy",
) -> tuple[list[Example], dict[str, Any]]:
    """The examples of the step before once more, in groups of their own, with the column `previous` 1.

    Ids, versions and old_logp come from the log. In the first step there are none.
    """
    new = per_trajectory(groups=groups, mask=mask, model_role=model_role)
    old = [_marked(from_stored(e, f"{e['key']}@previous"), 1.0) for e in state["batch"]]
    return old, {"batch": [to_stored(e) | {"key": e.key} for e in new]}


def _marked(example: Example, previous: float) -> Example:
    return replace(example, given={**example.given, "previous": ("seq", previous)})


@block
@stateful(lambda: {"means": []})
@provides("xi", "phi")
def verified_improvement(
    *,
    adv: Seq,
    reward: Seq,
    previous: Seq,
    group: Seq,
    state: dict[str, Any],
    window: int = 8,
    lam: float = 0.1,
    bound: float = 10.0,
    verify: bool = True,
) -> tuple[dict[str, Column], dict[str, Any]]:
    """Advantages of the batch before, scaled by whether learning it has raised the mean reward.

        xi   = (mu - m) / s,   mu the new batch's mean reward, m and s the mean and std (n - 1) of the last `window`
        A'_i = clip(G A_i / sum_j |A_j| phi(xi), -bound, bound),   phi(x) = x where x >= 0, else lam x

    Args: adv, reward, previous f64[S] (1: of the batch before); group i64[S]; state {"means"}. verify=False: phi = 1.
    Returns: (adv f64[S], unchanged for the new batch; xi and phi f64[S], the same for all; the next state). Until
    `window` means are known the batch before has the advantage 0.

    xi is (0.75 - 0.25) / 0.3536 = sqrt 2; the answers before share the advantage 2 * 1/2 and 2 * -1/2.

    >>> rows = {"previous": [0, 1, 1], "reward": [0.75, 1, 0], "group": [0, 1, 1]}
    >>> out, _ = verified_improvement(adv=[1.0, 0.7, -0.7], **rows, state={"means": [0.0, 0.5]}, window=2)
    >>> out["adv"].values.round(4)
    array([ 1.    ,  1.4142, -1.4142])
    """
    if window < 2:
        raise BadValue(f"verified_improvement: window must be at least 2, not {window}")
    adv, reward, group = np.asarray(adv, np.float64), np.asarray(reward, np.float64), np.asarray(group)
    old, means = np.asarray(previous) > 0, [*state["means"]]
    xi = np.nan
    if len(means) >= window and not old.all():
        spread = float(np.std(means, ddof=1))
        xi = float((reward[~old].sum() / (~old).sum() - sum(means) / len(means)) / spread) if spread > 0 else 0.0
    phi = 0.0 if np.isnan(xi) else 1.0 if not verify else xi if xi >= 0 else lam * xi
    n = seg.count(group)
    size = seg.total(np.abs(adv), group, n)[group]
    share = np.divide(np.bincount(group, minlength=n)[group] * adv, size, out=adv * 0.0, where=size != 0)
    shaped = np.where(old, np.clip(share * phi, -bound, bound), adv)
    if not old.all():
        means = [*means, float(reward[~old].sum() / (~old).sum())][-window:]
    known = np.zeros(len(adv)) if np.isnan(xi) else np.full(len(adv), xi)
    columns = {"adv": shaped, "xi": known, "phi": np.full(len(adv), phi)}
    return {name: Column("seq", values) for name, values in columns.items()}, {"means": means}


@block
def previous_rows(*, previous: Token, wanted: bool = True) -> Token:
    """True for the tokens of the batch before (wanted=False: of the new one), for `Update.where`.

    Args: previous f64[N]. Returns: bool[N].
    """
    return (np.asarray(previous) > 0) == wanted


@block
@zero_when("adv")
@logged("clip_fraction", clipped_tokens)
@logged("xi", lambda xi: xi, "The rise of the mean reward since the batch before, in deviations of the last means.")
@logged("phi", lambda phi: phi, "What the advantages of the batch before are multiplied by: xi, or lam xi below 0.")
@logged("setback", lambda xi: xi < 0, "How often xi is below 0.")
def reinforced_ratio(
    *, logp: Token, old_logp: Token, adv: Token, xi: Token, phi: Token, low: float = 0.2, high: float = 0.2
) -> Token:
    """`clipped_ratio` on the batch before, which reports `xi`, `phi`, and how often xi is below 0 (`setback`).

    Args: logp, old_logp, adv, xi, phi f[N]. Returns: l f[N]. Scope: token.
    """
    del xi, phi
    return clipped_ratio(logp=logp, old_logp=old_logp, adv=adv, low=low, high=high)


pipo.claim = Claim(
    (
        # at this rate updates do harm: GRPO falls back from the best that it was
        premise("accuracy", "grpo", 0.8, relation="<", by=0.0, fails_at=0.9),
        premise("mean:policy/setback", "self", 0.1, fails_at=0.05),
        # batches are learned again where they had helped, and hardly where they had not
        mechanism("mean:policy/phi", "self", 0.0, by=0.2, fails_at=0.1),
        outcome("accuracy", "self", "grpo", by=0.05, fails_at=0.96),
        outcome("accuracy", "self", "unverified", by=0.05, fails_at=0.96),
        outcome("auc", "self", "grpo", relation=">=", by=0.03, fails_at=1.0),
    ),
    arms={"grpo": "grpo", "unverified": ("pipo", {"verify": False})},
    settings={"lr": 1.4e-3},  # more than four times what is best for GRPO
    regime="verbose",
    first_seed=300,
    corrected="on seeds 200 to 207, at 1e-3, GRPO fell back on one seed of eight: not tested here",
    idea=("main.credit*", "main.update.*"),
    because="the next batch's rewards tell whether an update helped, so that it can be reinforced or taken back",
)
