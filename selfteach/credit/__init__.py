"""Credit: what is learned from, and how much each token deserves. NumPy, float64.

Here live composers, (groups) -> examples, and assigners, (columns) -> columns, as pure functions.
Not here: torch, models, files, randomness without an address, and what one paper alone needs (that is in its method's file).
An unknown score is NaN and stays NaN; nothing is filtered but by a composer's rule, which the loop's account counts, or by a `keep` column.
"""

from .baseline import batch_whiten, center, lowered, moving_baseline, norm, role_baseline, scale, tilted, whiten
from .compose import each, pairs
from .keep import drop_truncated, keep_balanced, keep_informative
from .replay import recall, replay
from .returns import gae, gae_shaped, kl_per_token, paid_at_end, paid_at_steps
from .shaping import kl_in_reward, overlong
from .values import remember_rewards, soft_advantage, success_rate

__all__ = [
    "batch_whiten",
    "center",
    "drop_truncated",
    "each",
    "gae",
    "gae_shaped",
    "keep_balanced",
    "keep_informative",
    "kl_in_reward",
    "kl_per_token",
    "lowered",
    "moving_baseline",
    "norm",
    "overlong",
    "paid_at_end",
    "paid_at_steps",
    "pairs",
    "recall",
    "remember_rewards",
    "replay",
    "role_baseline",
    "scale",
    "soft_advantage",
    "success_rate",
    "tilted",
    "whiten",
]
