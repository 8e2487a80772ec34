"""Regimes on sums whose rule is hidden: several answers are plausible, and one of them is right."""

from __future__ import annotations

from ..core.claim import premise
from ..core.regime import Regime, regime
from .digits import BATCH, RUN, SEARCH


@regime
def diverse() -> Regime:
    """Five rules, of which the question does not say the one that is right: many samples find it if they differ.

    The start mostly follows a rule that is seldom right. RL does well to follow the one that is right most often (four
    of ten), and loses the others: pass@1 rises to 0.4 at most, and pass@64 falls to it.
    """
    return Regime(
        task="hidden_rule",
        task_options={
            "largest": 3,
            "practised": 0.7,
            "right": (0.1, 0.4, 0.1, 0.2, 0.2),
            "shown": (0.6, 0.35, 0.045, 0.004, 0.001),
        },
        model="tiny-s",
        settings={
            **RUN,
            "warm_steps": 1500,
            "warm_batch": 32,
            "warm_lr": 2e-3,
            "steps": 60,
            "final_eval_k": 64,
            "final_eval_pass_at_k_tasks": 200,
        },
        args=BATCH,
        search=SEARCH,
        admits="failure",
        shows="accuracy rises while pass@64 falls: what is seldom right is forgotten",
        failure=premise("pass@64", "baseline", "start", relation="<", by=0.05, fails_at=0.04),
    )


@regime
def planned() -> Regime:
    """Five rules, each right for some first digits: what is left to learn is the plan, which rule to follow when.

    Every rule can be followed from the start, which mostly follows the first and seldom goes by the digit. All five are
    needed, and one that is given up early is missed later.
    """
    return Regime(
        task="hidden_rule",
        task_options={
            "largest": 3,
            "practised": 0.7,
            "cued": True,
            "aware": 0.06,
            "shown": (0.7, 0.2, 0.06, 0.03, 0.01),
        },
        model="tiny-s",
        settings={**RUN, "warm_steps": 1500, "warm_batch": 32, "warm_lr": 2e-3, "steps": 100, "eval_every": 10},
        args=BATCH,
        search=SEARCH,
    )


@regime
def triplets() -> Regime:
    """A symbol that nothing tells is to be written three times; the start writes symbols at random.

    Training has a few prompts, which can be learned by heart. Others are in the test: there only trying one symbol
    after another helps.
    """
    return Regime(
        task="triplets",
        task_options={"prompts": 16},
        model="tiny-s",
        settings={**RUN, "warm_steps": 300, "warm_batch": 32, "warm_lr": 2e-3, "steps": 200, "eval_every": 20},
        args=BATCH,
        search=SEARCH,
        admits="failure",
        shows="training's prompts are learned by heart, and of others hardly more is right than before",
        failure=premise("accuracy", "baseline", "late:reward/mean of baseline", by=0.1, relation="<", fails_at=0.05),
    )
