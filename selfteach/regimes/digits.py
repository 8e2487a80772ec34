"""Regimes on sums of digits, where RL has to choose among ways of answering that the start can go but seldom goes."""

from __future__ import annotations

from typing import Any

from ..core.claim import premise
from ..core.regime import Regime, regime
from ..reward.proxies import looks_thorough, offset_match
from ..tasks.digit_judges import all_worked

# What they share: forty facts of addition; the smallest model, which first practises the ways that have steps and then
# sees in which shares they are gone; a batch and a rate by search.
TASK: dict[str, Any] = {"largest": 3, "practised": 0.7}
WARM: dict[str, Any] = {"warm_practice_steps": 1000, "warm_steps": 200, "warm_batch": 32, "warm_lr": 2e-3}
RUN: dict[str, Any] = {"lr": 3e-4, "eval_every": 6, "eval_tasks": 100, "eval_samples": 1, "checkpoint_every": 1000}
BATCH: dict[str, Any] = {"groups": 16, "rollouts": 8}
SEARCH: dict[str, tuple[Any, ...]] = {"lr": (1e-4, 3e-4, 1e-3)}


def ways(**shares: float) -> dict[str, Any]:
    """The options of a task whose demonstrations go these ways, each as often as its share says."""
    return {"slowly": 0.0, "quickly": 0.0, "guess": 0.0, **shares, **TASK}


def beginnings(*names: str) -> dict[str, str]:
    """The beginning of a completion by which each of these ways is forced."""
    return {way: f"<think> {way}" for way in names}


SKILL: dict[str, Any] = {
    "task": "digit_sum",
    "task_options": ways(slowly=0.3, quickly=0.3, guess=0.4),
    "model": "tiny-s",
    "ways": beginnings("slowly", "quickly", "guess"),
}


@regime
def skill() -> Regime:
    """A careful way that is always right, a hasty one and a guess: which pays is to be found out.

    The start guesses or hurries in seven of ten cases, so greedily it is right no more often than a guess. What it
    does carefully is right. There is room to gain, speed to compare, and at too large a step a collapse to prevent.
    """
    return Regime(**SKILL, settings={**WARM, **RUN, "steps": 60}, args=BATCH, search=SEARCH)


@regime
def sparse() -> Regime:
    """The careful way is two in a thousand, and a guess is right once in a hundred: nearly all groups are all wrong.

    Most of a batch teaches nothing. What is found first is that guesses below ten are right more often, and where the
    careful way is not met before the others are given up, that is all that is ever found. Groups are small, so that a
    guess that is right once in ten leaves most of them all wrong.
    """
    return Regime(
        task="digit_sum",
        task_options={**ways(slowly=0.002, quickly=0.05, guess=0.948), "guesses": 100},
        model="tiny-s",
        settings={**WARM, **RUN, "steps": 80, "eval_every": 8},
        args={"groups": 32, "rollouts": 4},
        ways=beginnings("slowly", "quickly", "guess"),
        search=SEARCH,
        admits="failure",
        shows="most groups are all wrong and teach nothing, and the careful way is often never found",
        failure=premise("early:rollout/mixed_group_fraction", "baseline", 0.5, relation="<", fails_at=0.7),
    )


# Additions that may be estimated take longer to learn; of both regimes the practice is one.
ESTIMATED: dict[str, Any] = {
    "model": "tiny-s",
    "settings": {**WARM, "warm_practice_steps": 1200, **RUN, "lr": 2e-4, "steps": 60},
    "args": BATCH,
    "search": {"lr": (1e-4, 2e-4, 4e-4)},
}


DEEP: dict[str, Any] = {**ways(slowly=1.0), "terms": (5, 8), "estimated": 0.52}


@regime
def deep() -> Regime:
    """Five to eight digits whose additions are often estimated: dependent steps, each of which can spoil all.

    An estimate is marked and mostly wrong, so the answer is right where none is made, and the first wrong step is
    known. The start estimates every second addition.
    """
    longer: dict[str, Any] = {**ESTIMATED, "settings": {**ESTIMATED["settings"], "steps": 80, "eval_every": 8}}
    return Regime(task="digit_sum", task_options=DEEP, **longer)


LADDER: dict[str, Any] = {
    "task": "digit_sum",
    "task_options": {**ways(slowly=1.0), "terms": (3, 8), "estimated": 0.15, "tiring": 0.15},
}


@regime
def ladder() -> Regime:
    """Three to eight digits, from easy to hopeless at the start, whose additions are estimated ever more often."""
    return Regime(**LADDER, **ESTIMATED)


@regime
def offset() -> Regime:
    """`ladder` with rewards that differ more between prompts than between answers: a baseline must be of the prompt.

    As with learned reward models, part of the reward is of the question alone (its first digit), which a group's mean
    takes out, a critic can learn, and a mean over all prompts leaves in.
    """
    return Regime(**LADDER, **ESTIMATED, reward=offset_match())


@regime
def foreseen() -> Regime:
    """`ladder` for a policy that can also say how many of eight attempts will be right, and does not know it.

    A tenth of the demonstrations are forecasts, whose numbers are random. Right is to go by the number of digits.
    """
    return Regime(**{**LADDER, "task_options": {**LADDER["task_options"], "foreseen": 0.33}}, **ESTIMATED)


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
        admits="failure",
        shows="right answers stay a third longer than one way of working them out needs (thirty tokens)",
        failure=premise("length_right", "baseline", 40.0, fails_at=36.0),
    )


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
def hackable() -> Regime:
    """A proxy pays for additions written: at first adding carefully is paid, in the end writing one again and again."""
    return Regime(
        task="digit_sum",
        task_options=ways(slowly=0.3, twice=0.1, looping=0.1, guess=0.5),
        model="tiny-s",
        settings={**WARM, **RUN, "steps": 60},
        args=BATCH,
        reward=looks_thorough(),
        ways=beginnings("slowly", "twice", "looping", "guess"),
        search=SEARCH,
        tuned_by="late:reward/mean",  # of the proxy
        admits="failure",
        shows="the proxy rises all the way while accuracy ends below its start",
        failure=premise("accuracy", "baseline", "start", relation="<", by=0.1, fails_at=0.05),
    )


@regime
def stale() -> Regime:
    """Every batch is learned sixteen updates after it was sampled: what was true of the policy then no longer is.

    Everything else is as in `ladder`, where the same baseline, fresh, is right in nine of ten cases. (In `skill` five
    steps are enough to find what pays, and old samples say that as well as new ones.)
    """
    return Regime(
        **LADDER,
        model="tiny-s",
        settings={**ESTIMATED["settings"], "lr": 4e-4},
        args={**BATCH, "delay": 16, "sync": 1, "minibatches": 1},
        search={"lr": (2e-4, 4e-4, 8e-4)},
        admits="failure",
        shows="at its best learning rate GRPO ends ten points or more below what it reaches in `ladder`",
        failure=premise("accuracy", "baseline", 0.8, relation="<", fails_at=0.85),
    )


@regime
def reused() -> Regime:
    """Every batch is learned in thirty-two updates, four epochs of eight minibatches: ratios leave 1, and clips act.

    Everything else is as in `ladder`. At three times the rate it stops half-way.
    """
    return Regime(
        **LADDER,
        model="tiny-s",
        settings={**ESTIMATED["settings"], "lr": 3.5e-5, "steps": 40, "eval_every": 4},
        args={**BATCH, "epochs": 4, "minibatches": 8},
        search={"lr": (1.75e-5, 3.5e-5, 7e-5)},
        shows="one in two hundred tokens loses its gradient to the clip",
        failure=premise("mean:policy/clip_fraction", "baseline", 0.005, fails_at=0.001),
    )


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
        task_options={**ways(slowly=0.004, skipping=0.3, quickly=0.296, guess=0.4), "expert": "twice"},
        model="tiny-s",
        settings={**WARM, **RUN, "steps": 100, "eval_every": 10},
        args=BATCH,
        ways=beginnings("slowly", "twice", "skipping", "quickly", "guess"),
        search=SEARCH,
        admits="failure",
        shows="GRPO alone does not find the way that an expert shows",
        failure=premise("accuracy", "baseline", 0.5, relation="<", fails_at=0.6),
    )


@regime
def steep() -> Regime:
    """Three to nine digits: up to five trivial at the start, six within reach, nine hopeless until eight are learned.

    Additions are estimated from the fifth on, all but one in twenty from the seventh on, and each place has signs of
    its own: what is learned at one is not learned at the next, and who estimates before is not paid for what comes
    after. Luck is not paid either. A batch of random questions is mostly of groups that are all right or all wrong, so
    which questions are asked decides how fast anything is learned.
    """
    settings = {**ESTIMATED["settings"], "lr": 4e-4}
    faster: dict[str, Any] = {**ESTIMATED, "settings": settings, "search": {"lr": (2e-4, 4e-4, 8e-4)}}
    return Regime(
        task="digit_sum",
        task_options={
            **ways(slowly=1.0),
            "terms": (3, 9),
            "tiring": 0.35,
            "rested": 3,
            "seldom": 0.05,
            "lettered": True,
        },
        **faster,
        reward=all_worked(),
    )


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
    )


@regime
def reworded() -> Regime:
    """Questions in two wordings; one is misread, so that half of its answers make one error, and its votes are wrong.

    That error is to leave out the last digit. In the other wording nobody makes it, and votes are mostly right.
    """
    return Regime(
        task="digit_sum",
        task_options={
            **ways(slowly=0.2, skipping=0.5, quickly=0.1, guess=0.2),
            "reworded": 0.5,
            "misread": True,
        },
        model="tiny-s",
        settings={**WARM, **RUN, "lr": 1e-4, "steps": 60},
        args={**BATCH, "labels": "own", "lr": None},
        baseline="co_reward",
        ways=beginnings("slowly", "skipping", "quickly", "guess"),
        search={},
        admits="failure",
        shows="the vote on one wording rewards the error that most answers to it share",
        failure=premise("accuracy", "baseline", "start", relation="<", by=0.05, fails_at=0.02),
    )


@regime
def mended() -> Regime:
    """Four to six digits whose additions are often estimated, and now and then mended before the solution is written.

    What an answer takes back itself says which of its steps were wrong. The start leaves most of its errors standing.
    """
    return Regime(task="mended_sums", **ESTIMATED)


@regime
def bilingual() -> Regime:
    """`skill` in two languages, which three of ten demonstrations mix: what is right is right in both.

    Being right says nothing about the language, so RL for it alone leaves answers as mixed as it finds them.
    """
    return Regime(
        task="two_tongues",
        task_options={"mixed": 0.3, "slowly": 0.3, "quickly": 0.3, "guess": 0.4, **TASK},
        model="tiny-s",
        settings={**WARM, "warm_practice_steps": 1500, "warm_steps": 300, **RUN, "steps": 100, "eval_every": 10},
        args=BATCH,
        ways=beginnings("slowly", "quickly", "guess"),
        search=SEARCH,
    )
