"""ReST-MCTS*: tree search that makes training data and a value model."""

from __future__ import annotations

from ...core import Check, Claim, Member, Method, Stage, Term, Update, Weights, method
from ...credit.compose import each
from ...credit.searched import line_values, right_only
from ...curriculum.select import uniform
from ...objective.likelihood import weighted_nll
from ...objective.value import success_loss
from ...objective.weigh import sequence_mean, token_mean
from ...reward.answer import answered
from ...rollout.lines import best_of, line_search
from ...rollout.single import single


@method(
    family="treesearch",
    paper="2406.03816",
    catalogue=38,
    claim=Claim(
        (
            Check("accuracy+answer", "self", "start", by=0.05),
            Check("accuracy+answer", "self", "filtered", by=0.0),
            Check("accuracy+mcts", "self", "accuracy+best_of of self", by=0.0),
            Check("length+mcts", "self", "length+best_of of self", by=0.15, relation="~", scale="ratio"),
            Check("late:0/loss/success_loss", "self", "early:0/loss/success_loss of self", by=0.0, relation="<"),
        ),
        arms={"filtered": ("rest_mcts", {"search": False})},
        task="chain_sum",
        steps=40,
        because="lines that a right answer was reached from say where answers go wrong, so search finds what sampling misses and its finds teach",
    ),
)
def rest_mcts(groups: int = 16, tokens: int = 160, branch: int = 3, iteration: int = 5, value_lr: float = 1e-3, search: bool = True) -> Method:
    """Self-training on searched traces: the policy imitates right answers of a tree search, a value model learns what its lines were worth.

        v_k = max(0, v_{k-1} + (1 - v_{k-1}) r_k / m_k)        losses: -log pi(right traces);  (sigmoid(V(x, lines)) - v)^2

    Zhang et al. 2024, section 3.1 to 3.3 (rollout.lines, credit.searched). Chosen: the answer's own end stands for the self-critic, one
    batch is one step, and an `iteration` is so many steps that search with the weights of its beginning (Stage.sync).

    tokens  drawn for each question, then no line is begun. search=False: whole answers until as many are drawn, filtered by being right
    (ReST-EM), the value model taught by what it can be: each right and wrong answer gives no lines, so it stays as it began.
    """
    main = line_search(tokens=tokens, branch=branch, whole=True) if search else best_of(tokens=tokens, n=32)
    return Method(
        stages=(
            Stage(
                select=uniform(),
                programs={"main": main},
                reward=(answered(),),
                credit=(each(), line_values(), right_only()),
                updates=(
                    Update(("vm",), (Term(success_loss().reading(critic_value="vm_scalar_after"), on=("value",), weigh=token_mean()),), lr=value_lr),
                    Update(("policy",), (Term(weighted_nll(), weigh=sequence_mean()),)),
                ),
                groups=groups,
                rollouts=1,
                sync=iteration,
            ),
        ),
        weights={"policy": Weights(), "ref": Weights(), "vm": Weights("start")},
        cast={"policy": Member(("policy",)), "ref": Member(("ref",)), "vm": Member(("vm",), heads=("scalar",))},
        decode={"answer": single(), "mcts": line_search(tokens=tokens, branch=branch), "best_of": best_of(tokens=tokens, n=32)},
    )
