"""Regimes on a model of real language, which knows before any training here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core.claim import premise
from ..core.regime import Regime, regime

SMOLLM2: dict[str, Any] = {
    "steps": 16,
    "lr": 1e-5,
    "context": 256,
    "eval_every": 3,
    "eval_tasks": 50,
    "eval_samples": 1,
    "final_eval_tasks": 300,
    "final_eval_decoder_samples": 4,
    "final_eval_pass_at_k_tasks": 32,
    "checkpoint_every": 1000,
}
FEW: dict[str, Any] = {"groups": 8, "rollouts": 8}


@regime
def real_language() -> Regime:
    """SmolLM2-135M on questions of one fact about the real world's countries and cities, asked in plain English.

    What it knows it learned in pre-training; two examples show it the form of an answer. There is no warm start, and no
    test question is about a place that training names. At the start samples stray from the form, which greedy decoding
    keeps, so that pass@16 rises too.
    """
    return Regime(
        task="atlas",
        task_options={"hops": (1,), "ask": "answer"},
        model="smollm2-135m",
        settings=SMOLLM2,
        args=FEW,
        warm_seeds=1,
        search={"lr": (3e-6, 1e-5, 3e-5)},
        admits="failure",
        shows="RL sharpens: one sample comes near what sixteen held before, and not above it",
        failure=premise("accuracy", "baseline", "pass@16 of start", relation="<=", by=0.05, fails_at=0.0),
    )


@regime
def real_unknown() -> Regime:
    """As `real_language`, most of which SmolLM2 does not know; two examples of four say "I don't know"."""
    return replace(
        real_language,
        task_options={"hops": (1,), "ask": "abstain"},
        args={**FEW, "abstained": -1.0},  # as bad as a wrong answer
        baseline="truthrl",
        shows="where to abstain is as bad as to be wrong, it is forgotten, and what is not known is guessed",
        failure=premise("late:reward/abstained", "baseline", 0.03, relation="<", fails_at=0.05),
    )


@regime
def real_search() -> Regime:
    """As `real_language`, by thoughts and searches: in what SmolLM2 knows, or by an engine that finds the fact."""
    return Regime(
        task="atlas",
        task_options={"hops": (1,), "ask": "search"},
        model="smollm2-135m",
        # of answers that search, two a question: each takes as long as several that do not
        settings={**SMOLLM2, "steps": 40, "context": 512, "eval_every": 10, "final_eval_decoder_samples": 2},
        args={**FEW, "beta": 0.0, "simulator_steps": 24, "simulator_lr": 1e-4},
        baseline="search_r1",
        warm_seeds=1,
        search={"lr": (3e-6, 1e-5, 3e-5)},
    )
