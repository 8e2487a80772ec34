"""PRIME: dense rewards from outcomes alone."""

from __future__ import annotations

from ...core import Check, Claim, Member, Method, Term, Update, Weights, method
from ...credit.baseline import whiten
from ...credit.compose import each
from ...credit.keep import keep_informative
from ...credit.process import implicit_process
from ...objective.outcome import outcome_cross_entropy
from ...objective.policy import clipped_ratio
from ...objective.weigh import token_mean
from ..objective.grpo import policy_method


@method(
    family="credit",
    paper="2502.01456",
    catalogue=206,
    claim=Claim(
        (Check("accuracy", "self", "outcome", by=0.0), Check("accuracy", "self", "start", by=0.05)),
        arms={"outcome": ("prime", {"process": 0.0})},
        task="chain_sum",
        steps=40,
        because="a reward model that learns from the outcomes of the same rollouts pays every token, and so needs fewer steps",
    ),
)
def prime(
    groups: int = 32,
    rollouts: int = 4,
    clip: float = 0.2,
    beta: float = 0.05,
    process: float = 1.0,
    low: float = 0.2,
    high: float = 0.8,
    prm_lr: float = 3e-4,
) -> Method:
    """A process reward model learned inside the loop: the log-ratio of a second model to the reference, taught by outcomes only.

        r_t = beta log(prm / ref)_t        S = sum_t r_t        prm: cross-entropy of sigmoid(S) with the outcome
        A_t = sum_{s >= t} (r_s - mean over siblings of their mean r) + R - mean over siblings of R        policy: PPO's clip

    Cui et al. 2025, equations 3 to 5 and algorithm 1; K = 4, prompts with an accuracy in [0.2, 0.8], beta 0.05, no KL. The reward model
    begins as the start, moves first, and then pays the same rollouts. Advantages are whitened over the batch, as the released code does;
    the paper's reward model learns at twice the policy's rate, here at three times chain_sum's. process = 0: leave-one-out on outcomes.
    """
    base = policy_method(
        credit=(each(), keep_informative(low=low, high=high, closed=True)), term=Term(clipped_ratio()), groups=groups, rollouts=rollouts
    )
    learn = Update(("prm",), (Term(outcome_cross_entropy(beta=beta)),), lr=prm_lr)
    act = Update(
        ("policy",),
        (Term(clipped_ratio(low=clip, high=clip), weigh=token_mean()),),
        assign=(implicit_process(beta=beta, process=process), whiten()),
    )
    return base.but(updates=(learn, act)).with_(weights={"prm": Weights("start")}, cast={"prm": Member(("prm",))})
