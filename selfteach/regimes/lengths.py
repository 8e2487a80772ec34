"""Regimes on sums of digits in which answers of other lengths than the start's are as right, or more so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core.claim import premise
from ..core.regime import Regime, regime
from .digits import BATCH, RUN, SEARCH, TASK, WARM, beginnings, ways

STAYS_LONG: dict[str, Any] = {
    "admits": "failure",
    "shows": "right answers stay a third longer than one way of working them out needs (thirty tokens)",
    "failure": premise("length_right", "baseline", 40.0, fails_at=36.0),
}


@regime
def verbose() -> Regime:
    """Ways that are right and long, right and longer by a check, wrong and long (a loop), wrong and short (a guess).

    Accuracy can be had at half the length that it has where a policy checks everything.
    """
    return Regime(
        task="digit_sum",
        task_options=ways(slowly=0.15, twice=0.15, looping=0.4, guess=0.3),
        model="tiny-s",
        settings={**WARM, **RUN, "steps": 60},
        args=BATCH,
        ways=beginnings("slowly", "twice", "looping", "guess"),
        search=SEARCH,
    )


@regime
def verbose_unsure() -> Regime:
    """`verbose` with additions half as well practised: every way errs now and then, so that wrong answers remain.

    How long they are is then a part of what answers cost, up to the end.
    """
    return replace(verbose, settings={**verbose.settings, "warm_practice_steps": 500})


@regime
def overlong() -> Regime:
    """Nearly all answers are right from the start, and most are worked out twice: only length can be gained.

    A reward for being right alone does not shorten them.
    """
    return Regime(
        task="digit_sum",
        task_options=ways(slowly=0.15, twice=0.75, guess=0.1),
        model="tiny-s",
        settings={**WARM, **RUN, "lr": 1e-4, "steps": 60},
        args=BATCH,
        ways=beginnings("slowly", "twice", "guess"),
        search=SEARCH,
        **STAYS_LONG,
    )


@regime
def checked() -> Regime:
    """Half of the demonstrations are right and worked out twice, a tenth right at half the length, the others wrong.

    Of a group some answers are right and some wrong, so that being right is paid, and of those that are right nearly
    all are longer than they need be, which is not.
    """
    return Regime(
        task="digit_sum",
        task_options=ways(slowly=0.1, twice=0.5, looping=0.15, guess=0.25),
        model="tiny-s",
        settings={**WARM, **RUN, "steps": 60},
        args=BATCH,
        ways=beginnings("slowly", "twice", "looping", "guess"),
        search=SEARCH,
        **STAYS_LONG,
    )


@regime
def hesitant() -> Regime:
    """Answers are right that hesitate behind every addition, for up to twenty words; two in five guess at once.

    Right answers can become shorter a word at a time, and those to one question differ much in length. A reward for
    being right alone does not shorten them.
    """
    return Regime(
        task="hesitant_sums",
        task_options={"largest": 3, "guess": 0.4},
        model="tiny-s",
        settings={**WARM, **RUN, "lr": 1e-4, "steps": 60},
        args=BATCH,
        ways=beginnings("slowly", "guess"),
        search=SEARCH,
        **STAYS_LONG,
    )


@regime
def overthought() -> Regime:
    """Nearly all answers are right and, when all is worked out, hesitate for up to eighty words before they say it.

    What is needed comes first, so that an answer can end there, and anywhere behind it. A reward for being right alone
    does not shorten them.
    """
    options = {"largest": 3, "guess": 0.1, "hesitant": 0.97, "most": 80, "last": True}
    return replace(hesitant, task_options=options)


@regime
def unasked() -> Regime:
    """`overlong` for a policy that has also seen answers without a question, as one that was pretrained has.

    It knows what any answer looks like, so what a question adds to an answer's likelihood is what the answer takes from
    the question, and that is written once however often it is repeated.
    """
    return Regime(
        task="unasked_sums",
        task_options={"unasked": 0.25, "slowly": 0.15, "twice": 0.75, "guess": 0.1, **TASK},
        model="tiny-s",
        settings={**WARM, "warm_practice_steps": 1500, **RUN, "lr": 1e-4, "steps": 60},
        args=BATCH,
        ways=beginnings("slowly", "twice", "guess"),
        search=SEARCH,
        **STAYS_LONG,
    )


@regime
def stepped() -> Regime:
    """Four to nine digits, added one, two or four at a time: long solutions of easy steps, or short ones of hard steps.

    One step in sixteen misreads a digit, so that the longest way errs more often than the one in between; steps of four
    are hardly learned, so that the shortest does too. The start mostly goes the shortest.
    """
    return Regime(
        task="stepped_sums",
        task_options={"terms": (4, 9), "largest": 4, "misread": 0.06},
        model="tiny-s",
        settings={**WARM, "warm_practice_steps": 3000, **RUN, "steps": 60},
        args=BATCH,
        ways=beginnings("by 1", "by 2", "by 4"),
        search=SEARCH,
    )
