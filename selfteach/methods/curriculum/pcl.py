"""PCL: prompts of intermediate difficulty, chosen by a value model."""

from __future__ import annotations

from ...core import Check, Claim, Member, Method, Term, Update, Weights, method
from ...credit.baseline import center
from ...credit.compose import each
from ...credit.prompts import first_rows, group_mean
from ...curriculum.predicted import nearest_predicted
from ...objective.policy import policy_gradient
from ...objective.value import success_loss
from ...objective.weigh import sequence_mean, token_mean
from ...rollout.predict import predict
from ...rollout.single import single
from ..objective.grpo import policy_method


@method(
    family="curriculum",
    paper="2510.01135",
    catalogue=228,
    claim=Claim(
        (
            Check("mean:groups/mixed", "self", "uniform", by=0.30, scale="ratio"),
            Check("accuracy", "self", "uniform", by=0.0),
            Check("late:select/off", "self", "early:select/off of self", by=0.0, relation="<"),
            Check("late:select/difficulty", "self", "early:select/difficulty of self", by=0.0),
        ),
        arms={"uniform": ("pcl", {"candidates": 1})},
        task="chain_sum",
        knobs={"terms": (2, 8), "style": "terse"},
        steps=60,
        because="half of the answers right is where a group teaches most, and one forward pass over prompts finds where that is",
    ),
)
def pcl(groups: int = 16, rollouts: int = 8, candidates: int = 4, target: float = 0.5, critic_lr: float = 1e-4, critic_epochs: int = 1) -> Method:
    """Prompt curriculum learning: of candidates * groups prompts those are asked whose predicted success is nearest `target`.

        A = r - mean(r)        policy: -A logp, on-policy        value: (V(x) - mean(r))^2, V = sigmoid of a head at the prompt's last token

    Gao et al. 2025, algorithm 1. The value model has weights of its own, begun from the same model, and is one step behind the policy.
    candidates = 1 chooses nothing.
    """
    base = policy_method(
        select=nearest_predicted(candidates=candidates, target=target),
        credit=(each(), center(), group_mean()),
        term=Term(policy_gradient(), weigh=sequence_mean()),
        groups=groups,
        rollouts=rollouts,
    )
    value = Update(("critic",), (Term(success_loss(), weigh=token_mean()),), where=first_rows(), lr=critic_lr, epochs=critic_epochs)
    return base.but(programs={"main": single(), "predict": predict()}, updates=(value, *base.stage.updates)).with_(
        weights={"critic": Weights("start")}, cast={"critic": Member(("critic",), heads=("value",))}
    )
