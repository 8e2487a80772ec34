"""ConfClip (Zhang et al. 2025, arXiv 2509.17730) on SmolLM2: how sure it is of answers, beside whether they hold."""

from __future__ import annotations

from ..core import Claim, mechanism, outcome, premise

EXPERIMENTS = {
    "smollm2": Claim(
        (
            premise("mean:rollout/mixed_group_fraction", "plain", 0.7, relation="<", fails_at=0.8),
            mechanism("mean:rollout/mixed_group_fraction", "self", "plain", by=0.1, fails_at=1.0),
            outcome("auc", "self", "plain", by=0.02, fails_at=0.99),
            outcome("accuracy", "self", "plain", by=0.02, fails_at=0.99),
            outcome("accuracy", "self", "unclipped", by=0.02, fails_at=0.99),
        ),
        arms={"plain": ("confclip", {"confidence": False}), "unclipped": ("confclip", {"low": 0.0})},
        regime="real_language",
        idea=("main.reward",),
        because="a reward that says how sure the policy was tells answers of one outcome apart, so that no group is "
        "without a gradient",
    )
}
