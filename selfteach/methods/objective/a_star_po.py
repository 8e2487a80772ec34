"""A*-PO."""

from __future__ import annotations

from ...core import Check, Claim, Method, Stage, Term, Update, method
from ...credit.baseline import center
from ...credit.compose import each
from ...credit.values import remember_rewards, soft_advantage
from ...curriculum.select import pool
from ...objective.regression import advantage_regression
from ...reward.answer import exact_match
from ...rollout.single import single


@method(
    family="objective",
    paper="2505.20686",
    catalogue=317,
    claim=Claim(
        (
            Check("accuracy", "self", "grpo", by=-0.02),
            Check("sum:tokens/sampled", "self", "grpo", by=0.4, relation="<", scale="ratio"),
            Check("sum:seconds/step", "self", "grpo", by=0.4, relation="<", scale="ratio"),
            Check("accuracy", "self", "no_value", by=0.02),
        ),
        arms={"grpo": "grpo", "no_value": ("a_star_po", {"value": False})},
        task="chain_sum",
        steps=40,
        because="the optimal value of a prompt can be had from the reference beforehand, and one answer a prompt is then enough",
    ),
)
def a_star_po(groups: int = 32, samples: int = 8, tasks: int = 128, beta1: float = 0.5, beta2: float = 1e-3, value: bool = True) -> Method:
    """Optimal advantage regression: values of a fixed set of prompts from reference samples first, then one answer a prompt on-policy.

        V(x) = beta1 log mean_j exp(r_j / beta1)        loss = (beta2 sum_t log (pi / ref) - (r - V(x)))^2, mean over answers

    Brantley et al. 2025, equations 3 to 5, and the released constants. The first stage draws `samples` answers of the reference for each
    of `tasks` prompts, 8 x `groups` prompts a step, and moves no weight; the second walks round them, `groups` a step. value=False is the
    ablation V = 0. Prompts that the reference never solves are kept (dropping them is an option there).
    """
    wide = min(tasks, 8 * groups)
    measure = Stage(
        name="value",
        select=pool(size=tasks),
        programs={"main": single(member="ref")},
        reward=(exact_match(),),
        credit=(remember_rewards(),),
        updates=(),
        groups=wide,
        rollouts=samples,
        until=-(-tasks // wide),
    )
    learn = Stage(
        select=pool(size=tasks),
        programs={"main": single()},
        reward=(exact_match(),),
        credit=(each(), soft_advantage(beta=beta1) if value else center(by="none")),
        updates=(Update(("policy",), (Term(advantage_regression(beta=beta2)),)),),
        groups=groups,
        rollouts=1,
    )
    return Method(stages=(measure, learn))
