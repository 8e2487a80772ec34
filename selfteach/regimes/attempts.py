"""Regimes in which what an answer says is gone on from: second attempts, rounds, drafts."""

from __future__ import annotations

from ..core.claim import premise
from ..core.regime import Regime, regime
from .digits import BATCH, RUN, SEARCH, WARM, beginnings, ways

# A guess is right once in ten times.
GUESSES = premise("accuracy", "baseline", 0.25, relation="<", fails_at=0.4)


@regime
def second_attempts() -> Regime:
    """Two attempts in one context, of which the second mostly repeats the first: the start corrects hardly anything.

    Half of the demonstrations are second attempts. Four of five copy what stands before them; the others go one of the
    ways anew, so that the careful one is there to be found in either attempt.
    """
    return Regime(
        task="digit_sum",
        task_options={**ways(slowly=0.3, quickly=0.3, guess=0.4), "again": 0.5, "copied": 0.8},
        model="tiny-s",
        settings={**WARM, **RUN, "steps": 60},
        args=BATCH,
        ways=beginnings("slowly", "quickly", "guess"),
        search=SEARCH,
    )


@regime
def drafted() -> Regime:
    """Sums of which most are too long for one answer, for a policy that goes on from drafts of its own.

    One answer in three says what it has added and what is left, so that of several drafts one mostly does. Alone only
    the shortest sums can be ended; for the others a guess is as good as anything, and better than to say what is left.
    """
    return Regime(
        task="sums_in_rounds",
        task_options={"terms": (3, 5), "rounds": 2, "drafts": 4},
        model="tiny-s",
        settings={**WARM, **RUN, "steps": 40, "eval_every": 4},
        args=BATCH,
        ways=beginnings("partly", "vaguely", "guess"),
        search=SEARCH,
        admits="failure",
        shows="rewarded for answers alone, a policy learns to guess in place of saying how far it came",
        failure=GUESSES,
    )


@regime
def rounds() -> Regime:
    """Sums too long for one round, of which an answer alone is carried on: one way in three leaves all that is needed.

    For what a round answers itself a guess is as good as anything, as no round can end the sum.
    """
    return Regime(
        task="sums_in_rounds",
        model="tiny-s",
        settings={**WARM, **RUN, "lr": 1e-4, "steps": 30, "eval_every": 3},
        args=BATCH,
        ways=beginnings("partly", "vaguely", "guess"),
        search=SEARCH,
        admits="failure",
        shows="rewarded for what one round answers, a policy learns to guess, where no round can end the sum",
        failure=GUESSES,
    )
