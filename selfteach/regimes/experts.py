"""Regimes in which demonstrations of an expert show what the policy does not find by itself."""

from __future__ import annotations

from ..core.claim import premise
from ..core.regime import Regime, regime
from .digits import BATCH, ESTIMATED, LADDER, RUN, WARM, beginnings, ways


@regime
def taught() -> Regime:
    """An expert's way that the policy could go and never does: RL alone does not find it, imitation copies its slips.

    The policy leaves out the last digit, hurries or guesses; no demonstration was careful, and careful steps are known
    from practice alone. The expert is, but two of five of its demonstrations hold a wrong addition, which nobody has
    marked. RL alone ends where leaving out is right (the last digit is 0), imitation alone with the expert's slips.
    """
    return Regime(
        task="digit_sum",
        task_options={
            **ways(slowly=0.0, skipping=0.3, quickly=0.3, guess=0.4),
            "expert": "slowly",
            "slips": 0.4,
        },
        model="tiny-s",
        settings={**WARM, **RUN, "lr": 1e-4, "steps": 120, "eval_every": 12},
        args={**BATCH, "pool": 256, "slips": True},
        ways=beginnings("slowly", "skipping", "quickly", "guess"),
        search={"lr": (3e-5, 1e-4, 3e-4)},
        admits="failure",
        shows="at its best learning rate GRPO does not find the way that an expert shows",
        failure=premise("accuracy", "baseline", 0.5, relation="<", fails_at=0.6),
    )


@regime
def taught_long() -> Regime:
    """`taught` by an expert without slips that works everything out twice: right, and twice as long as it need be."""
    return Regime(
        task="digit_sum",
        task_options={**ways(slowly=0.0, skipping=0.3, quickly=0.3, guess=0.4), "expert": "twice"},
        model="tiny-s",
        settings={**WARM, **RUN, "lr": 1e-4, "steps": 100, "eval_every": 10},
        args=BATCH,
        ways=beginnings("slowly", "twice", "skipping", "quickly", "guess"),
        search={"lr": (3e-5, 1e-4, 3e-4)},
        admits="failure",
        shows="at its best learning rate GRPO does not find the way that an expert shows",
        failure=premise("accuracy", "baseline", 0.5, relation="<", fails_at=0.6),
    )


@regime
def tutored() -> Regime:
    """`ladder` with an expert who estimates nothing, at any length: who imitates it knows more than RL alone reaches.

    Of the demonstrations of `ladder` itself none of eight digits is without an estimate, so that nobody can learn from
    them how to do these.
    """
    return Regime(**{**LADDER, "task_options": {**LADDER["task_options"], "expert": "slowly"}}, **ESTIMATED)
