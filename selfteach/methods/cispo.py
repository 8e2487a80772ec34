"""CISPO (2506.13585): clip the importance weight, not the update.

PPO's clip removes the gradient of every token whose ratio leaves the range. Here the ratio is a constant weight that is
clipped, so that every token keeps its gradient.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from ..core import Claim, Method, Term, mechanism, method, outcome, premise
from ..objective.policy import clipped_importance
from .base import tokens_over
from .dapo import dapo


@method(family="objective", paper="2506.13585")
def cispo(
    groups: int = 16,
    rollouts: int = 8,
    low: float = 1.0,
    high: float = 4.0,
    limit: int = 128,
    cache: int = 32,
    penalty: float = 0.5,
    rounds: int = 4,
    dynamic: bool = True,
    epochs: int = 1,
    minibatches: int = 4,
    over: Literal["batch", "group"] = "batch",
) -> Method:
    """Clipped importance-sampling policy optimisation: REINFORCE weighted by the clipped ratio, held constant.

        loss = -mean over the tokens of the batch of sg(clip(r, 1 - low, 1 + high)) A logp

    MiniMax 2025 (M1), section 3.1, equations 4 and 5; low = 1 sets no lower bound, as there, and `high` is not printed
    there. Dynamic sampling and the price of long answers are DAPO's (see `dapo`), as there; dynamic=False and penalty=0
    leave them out. There is no KL. M1 makes 16 updates of a batch. over: "group" is the mean over groups of their token
    means, as equation 4 is printed; the mean over all tokens of the batch is what trainers do.
    """
    base = dapo(
        groups=groups,
        rollouts=rollouts,
        limit=limit,
        cache=cache,
        penalty=penalty,
        rounds=rounds,
        dynamic=dynamic,
        epochs=epochs,
        minibatches=minibatches,
    )
    (update,) = base.stage.updates
    term = Term(clipped_importance(low=low, high=high), loss_weights=tokens_over(over))
    return base.replace(updates=(replace(update, terms=(term,)),))


cispo.claim = Claim(
    (
        premise("mean:policy/clip_fraction", "equal_clip", 0.005, fails_at=0.001),  # tokens lose their gradient
        # rare tokens keep theirs, so that they grow more within a batch that the same policy sampled,
        mechanism("first:policy/rare_growth", "self", "equal_clip", by=0.03, fails_at=5.0),
        outcome("mean:policy/entropy_estimate", "self", "dapo", by=0.05, scale="ratio", fails_at=10.0),  # and stay
        outcome("accuracy", "self", "equal_clip", by=0.03, fails_at=0.98),
        outcome("auc", "self", "equal_clip", by=0.02, fails_at=0.99),
        outcome("auc", "self", "dapo", by=0.02, fails_at=0.99),
    ),
    arms={"equal_clip": ("dapo", {"high": 0.2}), "dapo": "dapo"},  # GRPO's clip, and DAPO's; all else is equal
    regime="reused_rare",
    first_seed=700,
    corrected=(
        "on seeds 200 to 207 the regime had a larger learning rate, at which fewer tokens lost their gradient to the "
        "clip than its premise asks for; on seeds 300 to 307 it was without DAPO's sampling and shaping, beside a GRPO "
        "whose mean was over answers, and had only to clip fewer weights than GRPO clips ratios: mechanism shown; on "
        "seeds 500 to 507 its mechanism was an entropy above DAPO's, which the paper does not say and which is 21 % "
        "lower here: mechanism not shown. What it does say is that rare tokens keep their gradient; entropy is an "
        "outcome now. On seeds 600 to 607, in `reused`, rare tokens with an advantage were mostly lucky, and grew as "
        "little in every arm: mechanism not shown. What was rare in one arm is no longer so in the other a few steps "
        "on, so that their growth is compared in the first step, of which all arms have the samples"
    ),
    idea=("main.update",),
    because="no token's gradient is dropped: the weight is clipped, not the update",
)
