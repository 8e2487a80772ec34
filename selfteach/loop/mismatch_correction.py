"""Correcting for a sampler that computes other probabilities than the learner, under the same weights.

    rho = p_learner / p_sampler          of a token, or the product over a sequence's tokens

    token_truncate     w min(rho_t, cap)                      Yao et al. 2025 (truncated importance sampling)
    token_mask         w rho_t  where floor <= rho_t <= cap, else 0      IcePop (Ring-1T, 2510.18855, section 3)
    sequence_truncate  w min(rho_s, cap)
    sequence_mask      w rho_s  where floor <= rho_s <= cap, else 0      Liu et al. 2025 (masked importance sampling)

The loss weights w are multiplied, and the old policy of every ratio (`old_logp`) becomes the learner's before the
update: p_new / p_sampler = (p_new / p_learner) rho, of which the first factor is what a method clips.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..core.batch import Batch, shallow_copy
from ..core.blocks import Array, Unit
from ..core.errors import BadValue
from ..core.method import Method
from ..core.protocols import Learner

WEIGHT = "mismatch_weight"  # the column of weights per token, and with this end those per sequence
PER_SEQUENCE = WEIGHT + "_seq"


@dataclass(frozen=True)
class MismatchCorrection:
    """mode: token_truncate, token_mask, sequence_truncate, sequence_mask; cap, floor: bounds of the ratio."""

    mode: str
    cap: float = 2.0
    floor: float = 0.5

    def weights(self, ratio: Array) -> Array:
        """What loss weights are multiplied by, of importance ratios."""
        if self.mode.endswith("_truncate"):
            return np.minimum(ratio, self.cap)
        return np.where((ratio >= self.floor) & (ratio <= self.cap), ratio, 0.0)

    def corrected(self, batch: Batch, learner: Learner, version: int) -> tuple[Batch, dict[str, float]]:
        """(the batch with weights and with the learner's log-probabilities as the old ones, figures).

        Rows of other versions, adopted rows and those whose draw cannot be replayed keep theirs, at weight 1. Call it
        before the first optimiser step, under the weights that sampled. Figures: mean ratio, share of the tokens or
        sequences whose ratio a bound acted on.
        """
        old, seq = np.asarray(batch.get("old_logp"), np.float64), np.asarray(batch.get("seq"))
        rows = np.isfinite(old) & np.isfinite(batch.get("temperature")) & (batch.get("version") == version)
        batch = shallow_copy(batch)
        if not rows.any():
            return batch, {}
        replayed = shallow_copy(batch.take(rows))
        learner.forward(replayed, ["logp"])
        own = np.full(len(rows), np.nan)
        own[rows] = replayed.get("logp")
        log_ratio = np.where(rows, own - old, 0.0)
        of_sequence = np.bincount(seq, weights=log_ratio, minlength=batch.size("seq"))
        sampled = np.bincount(seq[rows], minlength=batch.size("seq")) > 0
        with np.errstate(over="ignore"):
            token_ratio, sequence_ratio = np.exp(log_ratio), np.exp(of_sequence)
        by_sequence = self.mode.startswith("sequence")
        sequence_weight = np.where(sampled, self.weights(sequence_ratio), 1.0)
        token_weight = sequence_weight[seq] if by_sequence else np.where(rows, self.weights(token_ratio), 1.0)
        batch.put(WEIGHT, "token", token_weight)
        batch.put(PER_SEQUENCE, "seq", sequence_weight)
        batch.put("old_logp", "token", np.where(rows, own, old).astype(np.asarray(batch.get("old_logp")).dtype))
        ratio = sequence_ratio[sampled] if by_sequence else token_ratio[rows]
        weight = sequence_weight[sampled] if by_sequence else token_weight[rows]
        return batch, {
            "policy/mismatch_ratio_mean": float(ratio.mean()),
            "policy/mismatch_ratio_max": float(ratio.max()),
            "policy/mismatch_clipped_fraction": float((weight != ratio).mean()),
        }

    def check(self, method: Method) -> None:
        """Raise BadValue for a method with a term over units that no such weight is of, and for a floor above the
        cap.
        """
        if self.floor >= self.cap:
            raise BadValue(
                f"mismatch_floor: {self.floor:g} is not below mismatch_cap, {self.cap:g}; nothing would be kept"
            )
        for stage in method.stages:
            for term in (t for u in stage.updates for t in u.terms):
                if not stage.data and term.fn.unit in ("pair", "group", "batch", "episode"):
                    raise BadValue(
                        f"mismatch_correction: the term {term.fn.name} of method {method.name} is per {term.fn.unit},"
                        " which has no importance weight; leave it out"
                    )


def mismatch_weight(batch: Batch, unit: Unit) -> Array | float:
    """What loss weights at a unit are multiplied by: 1 where nothing is corrected. A step has its sequence's."""
    if WEIGHT not in batch:
        return 1.0
    return batch.get(WEIGHT) if unit == "token" else batch.get(PER_SEQUENCE, unit)
