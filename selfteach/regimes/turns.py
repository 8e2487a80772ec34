"""Regimes of acting in an environment over many turns, rewarded at the end alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core.regime import Regime, regime
from .digits import BATCH, RUN

TURNS: dict[str, Any] = {
    "model": "tiny-s",
    "settings": {
        **RUN,
        "warm_practice_steps": 1500,
        "warm_steps": 300,
        "warm_batch": 32,
        "warm_lr": 2e-3,
        "steps": 80,
        "eval_every": 8,
    },
    "args": BATCH,
    "search": {"lr": (1e-4, 3e-4, 6e-4)},
}

# A start that only ever saw the expert succeeds in three of four episodes; from one in twenty-five, where these begin,
# GRPO is at half after eighty steps and still rises.
HOUSEHOLD: dict[str, Any] = {
    **TURNS,
    "task": "household",
    "settings": {**TURNS["settings"], "steps": 120, "eval_every": 12},
}
WAYS: dict[str, Any] = {"ways": (0.5, 0.25, 0.21, 0.04)}


@regime
def turns() -> Regime:
    """A household, where a thing is to be found, treated and brought somewhere in twelve turns.

    At each turn the start may do what leads on, wander, repeat what has just failed, or give up. Half of the episodes
    of the test ask for a thing with a treatment that training never has.
    """
    return Regime(task_options=WAYS, **HOUSEHOLD)


@regime
def turns_practised() -> Regime:
    """`turns`, from a start that seldom goes astray and succeeds in one episode of six: most groups have a success.

    For methods that divide what the turns of a group are worth by its deviation. Where none succeeds that is noise, and
    in three groups of four of `turns` none does.
    """
    return Regime(task_options={"ways": (0.72, 0.13, 0.12, 0.03)}, **HOUSEHOLD)


@regime
def turns_noisy() -> Regime:
    """A household where every eighth action fails although it could be done, and to repeat it is then right.

    It has twenty turns, of which a start that mostly wanders wastes more than half. From the start of `turns`, whose
    likeliest action mostly leads on, GRPO gains ten points greedily and stops.
    """
    options = {"ways": (0.3, 0.52, 0.16, 0.02), "slips": 0.125, "max_turns": 20}
    made = Regime(task_options=options, **HOUSEHOLD)
    return replace(made, settings={**made.settings, "steps": 96, "eval_every": 8})


@regime
def twenty_questions() -> Regime:
    """Twenty questions over objects known by heart, where the start asks at random, asks again, or guesses too early.

    The table of objects is learned before RL begins, which learns to ask for what splits the objects that are left.
    """
    return Regime(task="twenty_questions", task_options={"ways": (0.45, 0.27, 0.22, 0.06)}, **TURNS)


@regime
def guess_number() -> Regime:
    """A number to be guessed in ten turns, of which halving needs five: whoever counts or forgets mostly fails.

    Who finds it in time is paid the same however long it took.
    """
    made = Regime(task="guess_number", task_options={"ways": (0.06, 0.04, 0.45, 0.45)}, **TURNS)
    return replace(made, settings={**made.settings, "steps": 120, "eval_every": 12})


@regime
def dialog() -> Regime:
    """Conversations on a dialogue graph, where the start walks on in silence, says each text, strays or chats.

    A third of the test is on the graph of training, a third on it after edits, a third on graphs that were never seen.
    What words mean is practised on other graphs, before. A text costs nothing: where it costs a hundredth of an answer,
    and one conversation in twelve succeeds, GRPO learns in eight steps to say nothing, for a group that fails differs
    in that alone.
    """
    options = {"ways": (0.35, 0.25, 0.25, 0.15), "price": 0.0}
    made = Regime(task="dialog_graph", task_options=options, **TURNS)
    settings = {**made.settings, "lr": 6e-4, "warm_practice_steps": 2400, "warm_steps": 400}
    return replace(made, settings=settings, args={**BATCH, "beta": 0.0}, search={"lr": (3e-4, 6e-4, 1.2e-3)})
