"""ShiQ."""

from __future__ import annotations

from typing import Literal

from ...core import Check, Claim, Method, Term, method
from ...credit.compose import each
from ...credit.returns import paid_at_end
from ...objective.bellman import soft_bellman
from ...objective.weigh import sequence_mean
from .grpo import policy_method


@method(
    family="objective",
    paper="2505.11081",
    catalogue=261,
    claim=Claim(
        (
            Check("accuracy", "self", "start", by=0.05),
            Check("accuracy", "self", "one_step", by=0.0),
            Check("mean:reward", "self", "one_step", by=0.0),
        ),
        arms={"one_step": ("shiq", {"steps": "one"})},
        task="chain_sum",
        steps=40,
        because="one-step residuals hand a reward at the end back a token an update; summed from each token on, it reaches all of them at once",
    ),
)
def shiq(
    groups: int = 128, rollouts: int = 1, beta: float = 0.1, steps: Literal["all", "one"] = "all", shift: bool = True, minibatches: int = 1
) -> Method:
    """Shifted Q: the logits, less the reference's log-partition, are soft Q-values, fitted to Bellman's equation on single trajectories.

        sum_{k>=t} (r_k - beta log (pi / ref)(a_k|s_k)) = V(s_t),   V(s) = beta (logsumexp l(s) - logsumexp l_ref(s)),   V = 0 after the end

    Clavier et al. 2025 (multi-step form; steps="one" and shift=False are its ablations). The squared gaps are averaged over the tokens of
    a sequence. Rewards may sit on any token (`paid_at_steps` for those of turns), samples may come from any policy. There are no
    groups, pairs, ratios or target networks. The paper names beta from 0.01 to 0.3.
    """
    return policy_method(
        credit=(each(), paid_at_end()),
        term=Term(soft_bellman(beta=beta, steps=steps, shift=shift), weigh=sequence_mean()),
        groups=groups,
        rollouts=rollouts,
        minibatches=minibatches,
    )
