"""Credit: what is learned from, and how much each token deserves. NumPy, float64.

Here live composers, (groups) -> examples, and assigners, (columns) -> columns, as pure functions.
Not here: torch, models, files, randomness without an address, and what one paper alone needs (that is in its method's file).
An unknown score is NaN and stays NaN; nothing is filtered but by a composer's rule, which the loop's account counts, or by a `keep` column.
"""

from .baseline import batch_whiten, center, moving_baseline, norm, scale, whiten
from .compose import each, pairs
from .keep import drop_truncated, keep_informative, mark_wrong
from .replay import recall, recompose, replay
from .returns import gae, gae_shaped, kl_per_token
from .shaping import kl_in_reward, overlong

__all__ = [
    "batch_whiten",
    "center",
    "drop_truncated",
    "each",
    "gae",
    "gae_shaped",
    "keep_informative",
    "kl_in_reward",
    "kl_per_token",
    "mark_wrong",
    "moving_baseline",
    "norm",
    "overlong",
    "pairs",
    "recall",
    "recompose",
    "replay",
    "scale",
    "whiten",
]
