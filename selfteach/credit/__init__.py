"""Credit: what is learned from, and how much each token deserves. NumPy, float64.

Here live composers, (groups) -> examples, and assigners, (columns) -> columns, as pure functions.
Not here: torch, models, files, randomness without an address, and what one paper alone needs (that is in its method's file).
An unknown score is NaN and stays NaN; nothing is filtered but by a composer's rule, which the loop's account counts, or by a `keep` column.
"""

from .baseline import batch_whiten, center, lowered, moving_baseline, norm, scale, tilted, whiten
from .compose import each, pairs
from .confidence import own_probability, self_mixed
from .keep import drop_truncated, keep_balanced, keep_first, keep_informative, keep_spread
from .marks import mark_wrong
from .prompts import first_rows, group_mean
from .replay import recall, recompose, replay
from .returns import gae, gae_shaped, kl_per_token, paid_at_end, paid_at_steps
from .shaping import kl_in_reward, overlong, self_aligned
from .values import remember_rewards, soft_advantage, success_rate
from .views import each_blind, each_probed

__all__ = [
    "batch_whiten",
    "center",
    "drop_truncated",
    "each",
    "each_blind",
    "each_probed",
    "first_rows",
    "gae",
    "gae_shaped",
    "group_mean",
    "keep_balanced",
    "keep_first",
    "keep_informative",
    "keep_spread",
    "kl_in_reward",
    "kl_per_token",
    "lowered",
    "mark_wrong",
    "moving_baseline",
    "norm",
    "overlong",
    "own_probability",
    "paid_at_end",
    "paid_at_steps",
    "pairs",
    "recall",
    "recompose",
    "remember_rewards",
    "replay",
    "scale",
    "self_aligned",
    "self_mixed",
    "soft_advantage",
    "success_rate",
    "tilted",
    "whiten",
]
