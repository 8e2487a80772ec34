"""SAR."""

from __future__ import annotations

from ...core import Check, Claim, Method, method
from ...credit.baseline import norm
from ...credit.shaping import self_aligned
from ...credit.views import each_blind
from ..objective.grpo import grpo


@method(
    family="efficiency",
    paper="2509.05489",
    catalogue=152,
    claim=Claim(
        (
            Check("length", "self", "grpo", by=0.25, relation="<", scale="ratio"),
            Check("accuracy", "self", "grpo", by=-0.01),
        ),
        arms={"grpo": "grpo"},
        task="chain_sum",
        steps=40,
        because="what is said twice could be told without the question, so words that only fill cost the answer its tie to it",
    ),
)
def sar(groups: int = 16, rollouts: int = 8, alpha: float = 0.2, beta: float = 0.0) -> Method:
    """Self-aligned reward (SA-GRPO): to being right is added how much of the answer's perplexity the question explains.

        R = r + alpha clip((ppl(a) - ppl(a|q)) / ppl(a), -1, 1);   ppl(a) = exp(-1/n sum_t log pi(a_t | a_<t)), the question taken out

    Han et al. 2025, equations 3 to 5. ppl(a|q) is of the log-probabilities that drew the answer, ppl(a) of one more pass with what the
    template says around a question, or the end of a text, in its place. alpha=0 is GRPO.
    """
    return grpo(groups=groups, rollouts=rollouts, beta=beta).but(credit=(each_blind(), self_aligned(alpha=alpha).reading(logp="old_logp"), norm()))
