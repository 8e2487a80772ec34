"""Search-R1 (Jin et al. 2025, arXiv 2503.09516).

RL with a real search engine in the rollouts. Retrieved text is masked out of the loss; the reward is exact match.

    loss = -sum_t I_t min(r_t A, clip(r_t) A) / sum_t I_t,   I_t = 1 on tokens that the policy sampled
"""

from __future__ import annotations

from ..core import Claim, Home, Method, Term, Update, mechanism, method, outcome, premise
from ..objective.kl import kl
from ..objective.loss_weights import token_mean
from ..objective.policy import clipped_ratio
from ..rollout.search import RETRY, search_agent, self_search
from .grpo import grpo


@method(family="search", paper="2503.09516", catalogue=285, home=Home("atlas", steps=40))
def search_r1(groups: int = 48, rollouts: int = 5, turns: int = 4, beta: float = 0.001, mask: bool = True) -> Method:
    """GRPO on rollouts with a real search engine, retrieved tokens masked out of the loss; the reward is exact match.

        loss = -sum_t I_t min(r_t A, clip(r_t) A) / sum_t I_t,   I_t = 1 on tokens that the policy sampled

    Jin et al. 2025, equations 2 and 3. A turn with neither a query nor an answer is told so and costs a turn.
    mask=False trains on retrieved tokens too, as the paper's ablation does (its code also on that reply). The paper's
    main runs are of PPO, GRPO is its second; its code has an entropy bonus of 0.001 besides, and ten clipped updates to
    a batch of 512 x 5 answers (train_grpo.sh, ppo_trainer.yaml), where one is done here.
    """
    # Retrieved tokens were never sampled and have no old_logp.
    ratio = clipped_ratio() if mask else clipped_ratio().reading(old_logp="prox_logp")
    terms = (
        Term(ratio, loss_weights=token_mean()),
        *((Term(kl(), loss_weights=token_mean(), coef=beta),) if beta else ()),
    )
    engine = search_agent(turns=turns, invalid=RETRY)
    return (
        grpo(groups=groups, rollouts=rollouts)
        .replace(
            programs={"main": engine if mask else engine.replace(teach=True)}, updates=(Update(("policy",), terms),)
        )
        .override(decode={"search": engine, "self": self_search()})
    )


search_r1.claim = Claim(
    (
        premise("accuracy", "memory", 0.9, relation="<", fails_at=0.95),  # there is something that it does not know
        premise("accuracy", "answer_only", 0.15, fails_at=0.1),  # direct answers are no straw man
        mechanism(
            "late:rollout/tool_calls_mean", "self", "early:rollout/tool_calls_mean of self", by=0.2, fails_at=4.0
        ),
        outcome("accuracy", "self", "answer_only", by=0.2, fails_at=0.85),
        outcome("accuracy", "self", "memory", by=0.05, fails_at=0.96),
        outcome("accuracy", "self", "no_mask", by=0.02, fails_at=0.99),
    ),
    arms={
        "answer_only": "answer_only",
        "memory": ("ssrl", {"format": 0.0}),
        "no_mask": ("search_r1", {"mask": False}),
    },
    regime="search",
    equal="tokens",
    idea=("main.program", "main.credit", "main.reward"),
    differs={"main.update.0.term": "what was retrieved has no old_logp; SSRL's loss has a dual clip besides"},
    because="only with the engine in the rollouts can a model learn to search for what it does not know",
)
