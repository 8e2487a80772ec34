"""Where claims are measured: a task with its options, a model, a warm start and a tuned baseline, under one name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from .errors import BadValue
from .registry import regimes

if TYPE_CHECKING:
    from .claim import Claim

# A seed sets these, for all arms alike (`Regime.seeded`).
OF_THE_SEED = ("seed", "warm_seed", "final_eval_seed")


@dataclass(frozen=True, kw_only=True)
class Regime:
    """One setting of the proving ground.

    task, task_options, model  what is learned, from what
    shows       the failure of the baseline that it is made for; "": that the baseline learns
    settings    of its runs, by their flat names (steps, lr, warm_steps, final_eval_tasks ...)
    args        hyper-parameters of every arm whose method has that name (groups, rollouts, beta ...)
    baseline    the method that it was tuned for
    warm_seeds  how many warm starts there are: that of a seed is seed % warm_seeds
    name, doc, build  set by `@regime`

    Raises BadValue for a setting that the seed decides.
    """

    task: str
    task_options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    model: str = "tiny"
    shows: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    args: Mapping[str, Any] = field(default_factory=dict[str, Any])
    baseline: str = "grpo"
    warm_seeds: int = 8
    name: str = ""
    doc: str = ""
    build: Callable[[], Regime] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if taken := [n for n in OF_THE_SEED if n in self.settings]:
            raise BadValue(f"regime {self.name or self.task}: {taken[0]} is decided by the seed of a run; leave it out")
        if self.warm_seeds < 1:
            raise BadValue(f"regime {self.name or self.task}: warm_seeds must be at least 1, not {self.warm_seeds}")

    def seeded(self, seed: int) -> dict[str, int]:
        """The settings of a run with this seed: its own randomness, its warm start and its test questions.

        >>> Regime(task="chain_sum").seeded(203)
        {'seed': 203, 'warm_seed': 3, 'final_eval_seed': 203}
        """
        return {"seed": seed, "warm_seed": seed % self.warm_seeds, "final_eval_seed": seed}


def regime(fn: Callable[[], Regime]) -> Regime:
    """Register what a function without arguments returns as a regime; the function gives it name and description."""
    if inspect.signature(fn).parameters:
        raise BadValue(f"regime {fn.__name__}: takes no arguments; another setting is another regime")
    made = replace(fn(), name=fn.__name__, doc=inspect.getdoc(fn) or "", build=fn)
    return regimes.add(made.name, made)


def claim_home(claim: Claim) -> tuple[str, int]:
    """(task, steps) of a claim: its regime's, or those that it names itself where it has none.

    Steps are 0 where neither the claim nor its regime says how many.
    """
    if not claim.regime:
        return claim.task, claim.steps
    home: Regime = regimes.get(claim.regime)
    return home.task, int({**home.settings, **claim.settings}.get("steps", 0))
