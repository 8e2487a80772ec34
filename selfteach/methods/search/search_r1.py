"""Search-R1."""

from __future__ import annotations

from ...core import Check, Claim, Method, Term, Update, method
from ...objective.kl import kl
from ...objective.policy import clipped_ratio
from ...objective.weigh import token_mean
from ...rollout.search import search_agent, self_search
from ..objective.grpo import grpo


@method(
    family="search",
    paper="2503.09516",
    catalogue=285,
    claim=Claim(
        (
            Check("accuracy", "self", "answer_only", by=0.20),
            Check("accuracy", "self", "no_mask", by=0.0),
            Check("calls", "self", "start", by=0.0),
        ),
        arms={"answer_only": "answer_only", "no_mask": ("search_r1", {"mask": False})},
        task="atlas",
        steps=40,
        because="what the engine knows and the model does not can only be learned to be asked for with the engine there",
    ),
)
def search_r1(groups: int = 48, rollouts: int = 5, turns: int = 4, beta: float = 0.001, mask: bool = True) -> Method:
    """RL with a real search engine in the rollouts: what it retrieves is read, never learned; the reward is exact match alone.

        loss = sum_t I_t min(r_t A, clip(r_t) A) / sum_t I_t, I_t = 1 on tokens that the policy chose      (Jin et al. 2025, equations 2 and 3)

    Retrieved tokens were chosen by nobody, so they are no rows of any term. mask=False learns them too, as the paper's ablation does.
    """
    ratio = clipped_ratio() if mask else clipped_ratio().reading(old_logp="prox_logp")  # what was retrieved was never sampled
    terms = (Term(ratio, weigh=token_mean()), *((Term(kl(), weigh=token_mean(), coef=beta),) if beta else ()))
    return (
        grpo(groups=groups, rollouts=rollouts)
        .but(programs={"main": search_agent(turns=turns, teach=not mask)}, updates=(Update(("policy",), terms),))
        .with_(decode={"search": search_agent(turns=turns), "self": self_search()})
    )
