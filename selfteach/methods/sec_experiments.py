"""SEC on problems harder than any that it trains on, where the paper finds most of its gain."""

from __future__ import annotations

from ..core import Claim, mechanism, outcome, premise

EXPERIMENTS = {
    "unseen": Claim(
        (
            # asked at random, four groups in ten at least are all right or all wrong
            premise("early:rollout/mixed_group_fraction", "grpo", 0.6, relation="<", by=0.0, fails_at=0.7),
            # what is learned of shorter sums serves those that are never trained on, and not all of them at once
            premise("accuracy/terms=9", "grpo", "start", by=0.05, fails_at=0.96),
            premise("accuracy/terms=9", "grpo", 0.95, relation="<", fails_at=0.97),
            # the easiest of six categories is asked less often than at random, which is one time in six
            mechanism("mean:select/p/2", "self", 0.167, by=0.02, relation="<", fails_at=0.16),
            outcome("accuracy/terms=9", "self", "grpo", by=0.05, fails_at=0.96),
            outcome("auc", "self", "grpo", by=0.02, fails_at=0.99),
        ),
        args={"temperature": 0.2},
        arms={"grpo": "grpo"},
        regime="steep_unseen",
        idea=("main.select",),
        because="a curriculum at the limit of what is learned reaches further beyond it, too",
    ),
}
