"""Credit assignment: which sequences are learned from, and the advantage of each token. NumPy, float64.

Composers, (groups) -> examples, and assigners, (columns) -> columns, are pure functions. Not here: torch, models,
files, random draws without an RNG key, and what one paper alone needs (it is in its method's file). An unknown score is
NaN and stays NaN; sequences are dropped only by a composer's rule, which the loop counts, or by a `keep` column.
"""

from .advantages import center, moving_baseline, norm, whiten
from .composers import per_trajectory, preference_pairs
from .keep import drop_zero_variance_groups
from .replay import replay
from .returns import gae, gae_shaped, kl_per_token
from .shaping import kl_in_reward, overlong

__all__ = [
    "center",
    "drop_zero_variance_groups",
    "gae",
    "gae_shaped",
    "kl_in_reward",
    "kl_per_token",
    "moving_baseline",
    "norm",
    "overlong",
    "per_trajectory",
    "preference_pairs",
    "replay",
    "whiten",
]
