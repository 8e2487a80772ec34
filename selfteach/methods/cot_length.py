"""How long a chain of thought should be (Wu et al. 2025, arXiv 2502.07266): longer helps at first and then harms.

A task of T operations in N steps: fewer operations a step are easier, more steps are more chances to err. Accuracy is
an inverted U of N, and the best N grows with T and falls with the model's capability M: proved for an error that is
linear in a step's operations, as here, and in general only for a lower bound of N*.

    A(N) = ((1 - sigma) (1 - T / (M N)))^N,   N* = T Z / (M (Z + 1)),   Z = W_{-1}(-(1 - sigma) / e)

RL moves lengths to where answers are right; without training, a vote among the lengths whose answers agree does.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from ..core import (
    BadValue,
    Claim,
    Method,
    RolloutContext,
    RolloutRequest,
    block,
    mechanism,
    method,
    outcome,
    premise,
)
from ..core.answers import canonical
from ..core.extras import optional
from ..rollout.single import single
from ..rollout.vote import sample_answers
from .grpo import grpo


@method(family="efficiency", paper="2502.07266", catalogue=350)
def cot_length(
    groups: int = 16,
    rollouts: int = 8,
    votes: int = 16,
    width: int = 4,
    keep: int = 1,
    beginnings: tuple[str, ...] = (),
) -> Method:
    """GRPO, with a vote among answers of the lengths whose answers agree, and a vote among all.

        filtered   of `votes` answers, in bins of `width` tokens, the majority of the `keep` bins of least entropy
        vote       the majority of all
        forced_i   the answer after the i-th of `beginnings`, each of which says how long a step is, from 1 on

    Wu et al. 2025 (v3), sections 4 and 5 (length-filtered vote), and `best_steps`, their formula. There a chain's
    length is its number of steps, which appendix C.1 prefers to tokens, bins are 2 wide, and 3 are kept; here it is
    tokens, 4 wide, and 1 is kept. A bin of one answer has no entropy: here bins of fewer than two answers are kept
    last. Training is GRPO unchanged, whose lengths the paper explains.
    """
    return grpo(groups=groups, rollouts=rollouts).override(
        decode={
            "main": single(),
            "vote": length_filtered_vote(k=votes, keep=0),
            "filtered": length_filtered_vote(k=votes, width=width, keep=keep),
            **{f"forced_{i}": single(prefix=beginning) for i, beginning in enumerate(beginnings, 1)},
        }
    )


def accuracy_in_steps(steps: float, operations: float, capability: float, noise: float) -> float:
    """The chance that a task of T operations is solved in N steps (proposition 4.2, a linear error in each step).

        A(N) = ((1 - sigma) (1 - T / (M N)))^N,   0 where N <= T / M

    Args: N steps; T operations; M capability, the operations at which a step always fails; sigma noise, the chance that
    a step is misread, in [0, 1). The paper's is sigma(T) = T / C: noise = T / C gives it. Its factor
    alpha = (1 - sigma)^(2 T) is left out: it is the same for every N, so that the best N is unchanged.

    >>> accuracy_in_steps(4, operations=4, capability=2, noise=0.5)  # (1/2 * 1/2)^4
    0.00390625
    """
    load = operations / (capability * steps)
    return 0.0 if load >= 1 else ((1 - noise) * (1 - load)) ** steps


def best_steps(operations: float, capability: float, noise: float) -> float:
    """The number of steps at which `accuracy_in_steps` is largest (theorem 4.3).

        N* = T Z / (M (Z + 1)),   Z = W_{-1}(-(1 - sigma) / e), the lower branch of Lambert's W

    Raises BadValue for noise outside of (0, 1), without which ever more steps are better.

    Where 1 - sigma = 2 / e, Z = -2, so that a step has half of the operations that it fails at.

    >>> round(best_steps(6, 3, 1 - 2 / math.e), 6)
    4.0
    """
    if not 0 < noise < 1:
        raise BadValue(f"best_steps: noise must be in (0, 1), not {noise}; without any, more steps are always better")
    special = optional("scipy.special", "claims", "best_steps")
    z = float(special.lambertw(-(1 - noise) / math.e, -1).real)
    return operations * z / (capability * (z + 1))


@block
async def length_filtered_vote(
    *,
    request: RolloutRequest,
    rollout: RolloutContext,
    k: int = 16,
    width: int = 4,
    keep: int = 1,
    model_role: str = "policy",
    stop: tuple[str, ...] = ("</answer>",),
) -> str | None:
    """`k` answers, and the majority of those whose length is in one of the `keep` bins of least entropy (0: of all)."""
    sampled = await sample_answers(request, rollout, k, model_role, stop)
    lengths = [len(rollout.response_ids(turn.at)) for turn in sampled.turns]
    return sampled.voted(in_steady_bins(lengths, sampled.answers, width, keep) if keep else None)


def in_steady_bins(lengths: Sequence[int], answers: Sequence[str], width: int, keep: int) -> list[float]:
    """1 for the answers in the `keep` bins of lengths in which answers differ least, 0 for the others.

    A bin is `width` lengths from a multiple of it; its entropy is that of its answers' shares. Of equal ones the one
    with more answers is kept, then the shorter one; those with a single answer come last.

    Lengths 10 to 19 have 7, 7 and 8, those from 20 to 29 have 5 twice, and 30 stands alone.

    >>> in_steady_bins([12, 15, 19, 20, 29, 30], ["7", "7", "8", "5", "5.0", "9"], 10, 1)
    [0.0, 0.0, 0.0, 1.0, 1.0, 0.0]
    """
    bins: dict[int, list[str | None]] = {}
    for length, answer in zip(lengths, answers, strict=True):
        bins.setdefault(length // width, []).append(canonical(answer))
    ranked = sorted(bins, key=lambda b: (len(bins[b]) < 2, entropy(bins[b]), -len(bins[b]), b))
    return [float(length // width in ranked[:keep]) for length in lengths]


def entropy(answers: Sequence[str | None]) -> float:
    """The entropy of the answers' shares, in nats; rounded, so that equal shares are equal.

    >>> entropy(["7", "7", "8", "8"])
    0.69314718056
    """
    shares = [n / len(answers) for n in Counter(answers).values()]
    return round(-sum(p * math.log(p) for p in shares), 12)


SIZES = ("<think> by 1", "<think> by 2", "<think> by 4")  # the ways of `stepped`, from the longest to the shortest

cot_length.claim = Claim(
    (
        # accuracy is an inverted U: more is right in between than at either end
        premise("accuracy+forced_2", "self", "accuracy+forced_1 of self", by=0.03, fails_at=0.98),
        premise("accuracy+forced_2", "self", "accuracy+forced_3 of self", by=0.05, fails_at=0.96),
        # the longest way errs more, the more there is to do
        mechanism(
            "accuracy/terms=9+forced_1",
            "self",
            "accuracy/terms=4+forced_1 of self",
            by=0.1,
            relation="<",
            fails_at=0.05,
        ),
        # RL has no reward for length, and moves it to where answers are right (lengths of forced answers leave out the
        # three tokens that force them)
        outcome("length", "trained", "length+forced_2 of self", by=3.0, relation="~", fails_at=1e9),
        outcome("accuracy", "trained", "accuracy+forced_2 of self", by=0.02, relation=">=", fails_at=1.0),
        outcome("accuracy+filtered", "self", "accuracy+vote of self", by=0.02, fails_at=0.99),
    ),
    args={"beginnings": SIZES},
    arms={"trained": ("cot_length", {"beginnings": SIZES}, {"steps": 60})},
    settings={"steps": 0},
    regime="stepped",
    idea=("settings.steps",),
    because="steps that hold too much are wrong and so are too many steps, so lengths at which answers agree are right",
)
