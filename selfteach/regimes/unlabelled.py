"""Regimes on sums of digits without labels: what most answers say is mostly right, or mostly wrong."""

from __future__ import annotations

from dataclasses import replace

from ..core.claim import premise
from ..core.regime import Regime, regime
from .digits import BATCH, RUN, SEARCH, WARM, beginnings, ways


@regime
def unlabelled_right() -> Regime:
    """Four dozen questions without labels, on most of which the vote of many answers is right: guesses do not agree."""
    return Regime(
        task="digit_sum",
        task_options={**ways(slowly=0.4, quickly=0.2, guess=0.4), "pool": 48},
        model="tiny-s",
        settings={**WARM, **RUN, "lr": 1e-4, "steps": 60},
        args={"groups": 16, "votes": 16, "keep": 8, "questions": 48, "temperature": 1.0},
        baseline="ttrl",
        ways=beginnings("slowly", "quickly", "guess"),
        search=SEARCH,
    )


@regime
def unlabelled_half() -> Regime:
    """Four dozen questions without labels, on half of which the vote of sixteen is wrong, and wrong answers differ.

    One answer in eight is careful, and a guess is one of a hundred: two careful ones have the most votes, and where
    there is none or one, hardly any answers agree, so that few are paid for being wrong.
    """
    return replace(
        unlabelled_right,
        task_options={**ways(slowly=0.12, quickly=0.2, guess=0.68), "guesses": 100, "pool": 48},
    )


@regime
def unlabelled_wrong() -> Regime:
    """Four dozen questions without labels, on most of which the vote is wrong: half of the answers make one error.

    That error, to leave out the last digit, gives the same wrong answer to all who make it.
    """
    return Regime(
        task="digit_sum",
        task_options={**ways(slowly=0.3, skipping=0.5, guess=0.2), "pool": 48},
        model="tiny-s",
        settings={**WARM, **RUN, "lr": 3e-4, "steps": 60},
        args={"groups": 16, "votes": 16, "keep": 8, "questions": 48, "temperature": 1.0},
        baseline="ttrl",
        ways=beginnings("slowly", "skipping", "guess"),
        search={"lr": (3e-5, 1e-4, 3e-4)},  # from 1e-3 on one answer to all is what any votes end in, shuffled ones too
        tuned_by="late:reward/mean",  # of the votes, which are wrong
        admits="failure",
        shows="the vote rewards the error that most answers share, and accuracy falls",
        failure=premise("accuracy", "baseline", "start", relation="<", by=0.1, fails_at=0.05),
    )


@regime
def reworded() -> Regime:
    """Questions in two wordings; one is misread, so that half of its answers make one error, and its votes are wrong.

    That error is to leave out the last digit. In the other wording nobody makes it, and votes are mostly right: the
    start has practised the wordings for long enough to tell them apart.
    """
    return Regime(
        task="digit_sum",
        task_options={
            **ways(slowly=0.25, skipping=0.55, quickly=0.1, guess=0.1),
            "reworded": 0.5,
            "misread": True,
        },
        model="tiny-s",
        settings={**WARM, "warm_steps": 400, **RUN, "lr": 1e-4, "steps": 60},
        args={**BATCH, "labels": "own", "lr": None},
        baseline="co_reward",
        ways=beginnings("slowly", "skipping", "quickly", "guess"),
        search={"lr": (3e-5, 1e-4, 3e-4)},
        tuned_by="late:reward/mean",  # of the votes, half of which are wrong
        admits="failure",
        shows="the vote on one wording rewards the error that most answers to it share",
        failure=premise("accuracy", "baseline", "start", relation="<", by=0.05, fails_at=0.02),
    )
