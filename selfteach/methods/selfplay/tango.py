"""RL Tango."""

from __future__ import annotations

from ...core import Check, Claim, Member, Method, Stage, Term, Update, Weights, method
from ...credit.baseline import norm
from ...credit.compose import each
from ...credit.verdicts import balance_classes, fuse_steps, with_verdicts
from ...curriculum.select import demonstrations, reviewed
from ...objective.likelihood import nll
from ...objective.policy import clipped_ratio
from ...objective.schedules import every
from ...objective.weigh import sequence_mean, token_mean
from ...reward.answer import exact_match
from ...reward.combine import by_program
from ...reward.noted import noted
from ...rollout.single import single
from ...rollout.verification import read_verdict, verify


@method(
    family="selfplay",
    paper="2505.15034",
    catalogue=259,
    claim=Claim(
        (
            Check("accuracy", "self", "grpo", by=0.0),
            Check("late:reward/caught", "self", "early:reward/caught of self", by=0.05),
            Check("late:reward/passed", "self", "early:reward/passed of self", by=0.05),
            Check("late:reward/agreed", "self", 0.6),
            Check("late:reward/passed", "self", "unbalanced", by=0.0),
        ),
        arms={"grpo": "grpo", "unbalanced": ("tango", {"balance": False})},
        task="chain_sum",
        steps=40,
        because="a verifier that is paid for its verdict alone learns to see where answers go wrong, and what it sees helps who writes them",
    ),
)
def tango(
    groups: int = 16,
    rollouts: int = 8,
    verdicts: int = 4,
    cycle: int = 3,
    clip: float = 0.2,
    fused: float = 0.5,
    kept: float = 0.1,
    decay: int = 40,
    balance: bool = True,
    warm: int = 60,
    warm_lr: float = 5e-4,
    verifier_lr: float = 5e-4,
    minibatches: int = 4,
) -> Method:
    """Generator and verifier, two policies taught by RL in turns: the verifier marks each step and is paid for its final verdict alone.

        generator: A_t = (1 - a) norm(outcome) + a sum over later steps of norm(mark), a from `fused` to `kept` over `decay` steps
        verifier:  r = [verdict is right] + 0.1 [in form], norm over the verdicts on one answer, / sqrt(2 share of the answer's class)

    Zha et al. 2025. The generator is updated every step, the verifier each `cycle`-th, when it gives `verdicts` on each answer (else one):
    3:1 as there. In place of their 40 steps of warm-up the first step shows the verifier the form (`warm` minibatches of 64, marks and
    verdict drawn by lot: no label is seen). Chosen: the decay's ends and the smoothing of class shares; and that the verifier, which cannot check
    a sum to begin with as the paper's can, takes larger steps (`verifier_lr`) and more of them (`minibatches`). balance=False leaves those out.
    """
    form = Stage(
        name="form",
        select=demonstrations(),
        programs={"main": read_verdict()},
        reward=(),
        credit=(each(member=None),),
        updates=(Update(("verifier",), (Term(nll(), on=("verdict",), weigh=token_mean()),), minibatches=warm, lr=warm_lr),),
        groups=64 * warm,
        rollouts=1,
        until=1,
        data=True,
    )
    term = clipped_ratio(low=clip, high=clip)
    duet = Stage(
        select=reviewed(program="verify", times=verdicts, every=cycle),
        programs={"main": single(), "verify": verify()},
        reward=(by_program(parts=(("main", exact_match()), ("verify", noted(parts=("agreed", "formed", "caught", "passed"))))),),
        credit=(with_verdicts(), norm(), *((balance_classes(),) if balance else ()), fuse_steps(start=fused, stop=kept, steps=decay)),
        updates=(
            Update(("policy",), (Term(term, weigh=sequence_mean()),)),
            Update(
                ("verifier",),
                (Term(term, on=("verdict",), weigh=sequence_mean()),),
                minibatches=minibatches,
                lr=verifier_lr,
                when=every(steps=cycle),
            ),
        ),
        groups=groups,
        rollouts=rollouts,
    )
    return Method(
        stages=(form, duet),
        weights={"policy": Weights(), "verifier": Weights()},
        cast={"policy": Member(("policy",)), "verifier": Member(("verifier",))},
    )
