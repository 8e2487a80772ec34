"""R1-Searcher's rewards of an answer, where answers have several words."""

from __future__ import annotations

from ..core import Claim, mechanism, outcome, premise

EXPERIMENTS = {
    "rewards": Claim(
        (
            premise("accuracy", "exact", 0.9, relation="<", fails_at=0.95),  # exact match leaves something to gain
            # what is partly right tells answers apart of which exact match rejects all
            mechanism("mean:rollout/mixed_group_fraction", "self", "exact", by=0.03, fails_at=1.0),
            outcome("accuracy", "self", "exact", by=0.03, fails_at=0.98),
            outcome("accuracy", "self", "cover", by=0.03, fails_at=0.98),
        ),
        arms={"exact": ("r1_searcher", {"match": "exact"}), "cover": ("r1_searcher", {"match": "cover"})},
        regime="search_parts",
        settings={"eval_every": 12},
        idea=("main.reward*",),
        because="an answer that is partly right is worth something, so that it is not learned all at once",
    ),
}
