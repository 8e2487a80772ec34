"""Regimes whose rewards are comparisons of two answers, by judges of whom it is known what they prefer."""

from __future__ import annotations

from typing import Any

from ..core.claim import premise
from ..core.regime import Regime, regime
from .digits import BATCH, DEEP, ESTIMATED, RUN, WARM, beginnings, ways


@regime
def preference() -> Regime:
    """Right answers are narrowly preferred to every other, and tastes in wrong ones go in a circle.

    The start mostly loops. A guess is preferred to a loop by far, and so wins more often than what is right until it is
    frequent itself; then half of the work beats it, which loses to a loop. Nothing beats what is right. A reward model
    that learns from all comparisons finds it as well where the policy does not run ahead of it: at 1e-4 it often does.
    """
    return Regime(
        task="digit_sum",
        task_options=ways(slowly=0.15, quickly=0.1, guess=0.1, looping=0.65),
        model="tiny-s",
        settings={**WARM, **RUN, "lr": 3e-5, "steps": 60},
        args=BATCH,
        baseline="iterated_rm",
        ways=beginnings("slowly", "quickly", "guess", "looping"),
        search={"lr": (1e-5, 3e-5, 1e-4), "rm_lr": (1e-4, 3e-4, 1e-3)},
    )


@regime
def marked() -> Regime:
    """`deep` with a judge in place of the answer, who sees how much was worked out rightly: once roughly, in one mark.

    Of single answers it gives one of three marks, and one wrong step of seven gets the best. Of two answers it says
    which is better, seldom wrong where one step makes the difference.
    """
    more: dict[str, Any] = {**ESTIMATED, "settings": {**ESTIMATED["settings"], "steps": 60}}
    more["args"] = {**BATCH, "judge": "coarse"}
    return Regime(task="digit_sum", task_options=DEEP, baseline="pointwise", **more)


@regime
def unforeseen() -> Regime:
    """A learned judge of few labelled answers, which lacked one kind of wrong ones that the policy often gives.

    That kind, to leave out the last digit, looks as careful as what is right. The judge has only begun to compare an
    answer with the reference: frozen, it is led to pay what is wrong, by that way or by another that it did not see.
    """
    return Regime(
        task="digit_sum",
        task_options=ways(slowly=0.2, skipping=0.4, guess=0.4),
        model="tiny-s",
        settings={**WARM, **RUN, "lr": 1.5e-4, "steps": 80, "eval_every": 8},
        args={
            **BATCH,
            "rm_warmup_steps": 40,
            "unlabelled": ("skipping",),
            "rule": "worked",
            "beta": 0.0,
            "update": False,
        },
        baseline="cooper",
        ways=beginnings("slowly", "skipping", "guess"),
        search={"lr": (7.5e-5, 1.5e-4, 3e-4)},  # a judge that was taught for longer is led astray less
        admits="failure",
        shows="the frozen judge's reward rises far above the share of right answers",
        failure=premise("late:reward/mean", "baseline", "late:reward/right of baseline", by=0.2, fails_at=0.9),
    )
