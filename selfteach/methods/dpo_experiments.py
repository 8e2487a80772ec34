"""DPO where it is hardly held to where it began: a reward model that is right of pairs, and a policy that is wrong.

Rafailov et al. 2024 (arXiv 2406.02900): who learns from pairs directly over-optimises as who learns from a reward model
does. What falls is the likelihood of the answers themselves, of chosen ones too; where they go nothing says.
"""

from __future__ import annotations

from ..core import Claim, mechanism, outcome, premise
from .dpo import dpo

assert dpo.claim is not None
EXPERIMENTS = {
    "weak_anchor": Claim(
        (
            premise("accuracy", "self", "start", by=0.2, fails_at=0.9),  # a strong anchor makes it better
            mechanism("late:policy/reward_accuracy", "loose", 0.5, by=0.2, fails_at=0.5),  # a weak one too, of pairs
            mechanism("late:policy/reward_chosen", "loose", 0.0, relation="<", by=0.1, fails_at=0.0),
            outcome("accuracy", "loose", "start", relation="<", by=0.1, fails_at=0.05),
            outcome("accuracy", "self", "loose", by=0.2, fails_at=0.9),
        ),
        arms={"loose": ("dpo", {"batch": 64, "beta": 0.1})},
        args=dpo.claim.args,
        settings=dpo.claim.settings,
        regime="skill",
        idea=("main.update.0.term.*",),
        because="a loss on pairs asks that chosen answers gain on rejected ones, and is content where both become rare",
    ),
}
