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
    """Three to eight digits, from sure to hopeless at the start, for a policy that also says how many attempts succeed.

    From the fourth addition on estimates are ever more frequent. A tenth of the demonstrations are forecasts: half of
    them any number of eight, half by the number of digits, as who has seen many problems knows the long ones for hard.
    How hard they are to this policy, and ever less so, it has to learn.
    """
    sums: dict[str, Any] = {**ways(slowly=1.0), "terms": (3, 8), "tiring": 0.25, "rested": 2}
    return Regime(task="digit_sum", task_options={**sums, "foreseen": 0.33, "sensed": 0.5}, **ESTIMATED)


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


STALE: dict[str, Any] = {
    "model": "tiny-s",
    "settings": {**ESTIMATED["settings"], "lr": 4e-4},
    "args": {**BATCH, "delay": 16, "sync": 1, "minibatches": 1},
    "search": {"lr": (2e-4, 4e-4, 8e-4)},
    "admits": "failure",
    "shows": "at its best learning rate GRPO ends ten points or more below what it reaches in `ladder`",
    "failure": premise("accuracy", "baseline", 0.8, relation="<", fails_at=0.85),
}


@regime
def stale() -> Regime:
    """Every batch is learned sixteen updates after it was sampled: what was true of the policy then no longer is.

    It is sixteen steps after: the first sixteen teach nothing, so that 44 of 60 do, and the first sixteen batches that
    are learned are 0, 1 ... 15 updates old. Everything else is as in `ladder`, where the same baseline, fresh, is right
    in nine of ten cases. (In `skill` five steps are enough to find what pays, and old samples say that as well as new
    ones.)
    """
    return Regime(**LADDER, **STALE)


@regime
def doubted() -> Regime:
    """`stale`, where who estimates doubts: every estimate is written four times, so that wrong answers are longest.

    Of a group whose answers are right and wrong, those that are wrong have most of the tokens, and so of the loss. Half
    the rate of `stale` is best here.
    """
    task = {**LADDER, "task_options": {**LADDER["task_options"], "doubted": 3}}
    return Regime(**task, **{**STALE, "settings": ESTIMATED["settings"], "search": ESTIMATED["search"]})


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
def reused_rare() -> Regime:
    """The careful way is three in a hundred, and a batch is learned in thirty-two updates: clips act on what is rare.

    Guesses are right once in a hundred, so what is paid is nearly always the careful way, whose first word a bound on
    its ratio lets grow only so far in a step. GRPO finds it within twenty steps.
    """
    return Regime(
        task="digit_sum",
        task_options={**ways(slowly=0.03, quickly=0.47, guess=0.5), "guesses": 100},
        model="tiny-s",
        settings={**WARM, **RUN, "lr": 5e-5, "steps": 20, "eval_every": 2},
        args={**BATCH, "epochs": 4, "minibatches": 8},
        ways=beginnings("slowly", "quickly", "guess"),
        search={"lr": (2.5e-5, 5e-5, 1e-4)},
    )


STEEP: dict[str, Any] = {"terms": (3, 9), "tiring": 0.35, "rested": 3, "seldom": 0.05, "lettered": True}
FASTER: dict[str, Any] = {
    **ESTIMATED,
    "settings": {**ESTIMATED["settings"], "lr": 4e-4},
    "search": {"lr": (2e-4, 4e-4, 8e-4)},
}


@regime
def steep() -> Regime:
    """Three to nine digits: up to five trivial at the start, six within reach, nine hopeless until eight are learned.

    Additions are estimated from the fifth on, all but one in twenty from the seventh on, and each place has signs of
    its own: what is learned at one is not learned at the next, and who estimates before is not paid for what comes
    after. Luck is not paid either. A batch of random questions is mostly of groups that are all right or all wrong, so
    which questions are asked decides how fast anything is learned.
    """
    return Regime(task="digit_sum", task_options={**ways(slowly=1.0), **STEEP}, **FASTER, reward=all_worked())


@regime
def steep_unseen() -> Regime:
    """`steep` with signs that are the same at every place, whose longest sums, of nine digits, are in the test alone.

    What is learned at one place serves the next, as far as a policy takes it there by itself.
    """
    options = {**ways(slowly=1.0), **STEEP, "lettered": False, "unseen": 1}
    return Regime(task="digit_sum", task_options=options, **FASTER, reward=all_worked())


@regime
def agreed() -> Regime:
    """`steep` with estimates that all come to one too many: wrong answers to a long sum are mostly the same.

    A vote is wrong until most answers are right, and what an answer looks like says whether it is. Nine digits are
    learned last, so at a small rate there are questions within the budget on which the vote errs.
    """
    return Regime(task="overestimated_sums", task_options={**TASK, **STEEP}, **FASTER, reward=all_worked())


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
