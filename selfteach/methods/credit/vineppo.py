"""VinePPO: values by continuing from every step."""

from __future__ import annotations

from ...core import Check, Claim, Method, Term, method
from ...credit.baseline import whiten
from ...credit.compose import each
from ...credit.process import step_values
from ...objective.kl import kl
from ...objective.policy import clipped_ratio
from ...objective.weigh import token_mean
from ...reward.vines import vine_values
from ...rollout.single import single
from ...rollout.vines import vines
from ..objective.grpo import policy_method


@method(
    family="credit",
    paper="2410.01679",
    catalogue=270,
    claim=Claim(
        (Check("accuracy", "self", "ppo", by=0.0), Check("accuracy", "self", "one", by=0.0)),
        arms={"ppo": "ppo", "one": ("vineppo", {"k": 1})},
        task="chain_sum",
        steps=40,
        because="a mean over fresh continuations is an unbiased value of a state, where a critic is off by more than the steps differ",
    ),
)
def vineppo(
    groups: int = 16, rollouts: int = 8, k: int = 3, most: int = 6, clip: float = 0.2, beta: float = 1e-4, epochs: int = 2, minibatches: int = 2
) -> Method:
    """PPO without a critic: the value of every step's end is the mean reward of K continuations that the policy makes from there.

        V(s) = 1/K sum_k R(vine_k)        A_t = V(s_{k+1}) - V(s_k) for the tokens of step k, the reward in V's place after the last

    Kazemnejad et al. 2024, equations 4 and 5: PPO's clip, KL coefficient 1e-4, two epochs; advantages are whitened over the batch.
    The paper's K is 9, here 3 (its ablation): a step samples about k * steps times as many tokens, none of them learned. Steps end with
    sentences and lines; at most `most` places are continued from. It is measured by single answers, without vines.
    """
    return (
        policy_method(
            credit=(each(tokens=("step_value",)), step_values(), whiten()),
            term=Term(clipped_ratio(low=clip, high=clip), weigh=token_mean()),
            more=(Term(kl(kind="k3"), weigh=token_mean(), coef=beta),) if beta else (),
            groups=groups,
            rollouts=rollouts,
            epochs=epochs,
            minibatches=minibatches,
        )
        .but(programs={"main": vines(k=k, most=most)}, reward=(vine_values(),))
        .with_(decode={"main": single()})
    )
