"""Terms that make a policy's own logits values: each token's residual of a Bellman equation, squared. Rows of a sequence stand in order."""

from __future__ import annotations

from typing import Literal

import torch

from ..core import BadValue, Token, block


@block
def uniform_bellman(
    *, logp: Token, prox_logp: Token, mean_logp: Token, prox_mean_logp: Token, adv: Token, seq: Token, rho: float = 1.0, ahead: float = 1.0
) -> Token:
    """The value of acting at random, carried by log-ratios (He et al. 2025, ROVER, 2509.24981, algorithm 1).

        (Q_t - sg[A_t + ahead V_{t+1}])^2,   Q_t = rho (logp - prox_logp),   V_t = rho (mean_logp - prox_mean_logp);   V = 0 after the end

    V is the mean of Q over the whole vocabulary, so two numbers a token stand for its two vectors of logits.
    Args: logp, mean_logp f[N] live, prox_... as the update began; adv f[N], the reward paid at each token; seq i64[N].
    ahead: 0 leaves the next state out. Returns: l f[N]. Equals: twice `policy_gradient` times rho in gradient, in an update's first
    minibatch (Q and V are 0 there). The targets are constants. Scope: seq.

    >>> two = torch.tensor([0.2, 0.5]), torch.zeros(2), torch.tensor([0.3, 0.4]), torch.zeros(2), torch.tensor([1.0, 1.0])
    >>> uniform_bellman(logp=two[0], prox_logp=two[1], mean_logp=two[2], prox_mean_logp=two[3], adv=two[4], seq=torch.tensor([0, 0]))
    tensor([1.4400, 0.2500])
    """
    following = ahead * next_row((rho * (mean_logp - prox_mean_logp)).detach(), seq)
    return (rho * (logp - prox_logp) - (adv + following).detach()) ** 2


@block
def soft_bellman(
    *,
    raw_logp: Token,
    ref_raw_logp: Token,
    lse: Token,
    ref_lse: Token,
    token_reward: Token,
    seq: Token,
    beta: float = 0.1,
    steps: Literal["all", "one"] = "all",
    shift: bool = True,
) -> Token:
    """Logits, shifted by the reference's log-partition, as soft Q-values (Clavier et al. 2025, ShiQ, 2505.11081).

        all   (sum_{k>=t} (r_k - beta d_k) - V_t)^2,   d = log pi / ref of the token,   V = beta (lse - ref_lse), and 0 after the end
        one   (r_t - beta d_t + V_{t+1} - V_t)^2;      "all" is the sum of these residuals from t on: a late reward reaches every token

    Zero for every path of every sampler only where the softmax of the logits is the optimum of E r - beta KL(pi || ref), so the samples
    may be anyone's. The gradient goes through both sides; there is no target network.
    Args: raw_logp, lse and the reference's f[N] at temperature 1; token_reward f[N]; seq i64[N]. shift=False: V = beta lse, an ablation.
    Returns: l f[N]. Scope: seq.
    """
    if steps not in ("all", "one"):
        raise BadValue(f"soft_bellman: steps must be all or one, not {steps!r}")
    value = beta * (lse - ref_lse if shift else lse)
    paid = token_reward - beta * (raw_logp - ref_raw_logp)
    return (paid + next_row(value, seq) - value if steps == "one" else from_here(paid, seq) - value) ** 2


def next_row(x: torch.Tensor, seq: torch.Tensor) -> torch.Tensor:
    """[N]: the next row of the same sequence, 0 after its last.

    >>> next_row(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 0, 1]))
    tensor([2., 0., 0.])
    """
    if not len(x):
        return x
    same = seq[1:] == seq[:-1]
    return torch.cat([torch.where(same, x[1:], 0.0), x.new_zeros(1)])


def from_here(x: torch.Tensor, seq: torch.Tensor) -> torch.Tensor:
    """[N]: the sum of a row and all that follow it in its sequence; summed in double precision.

    >>> from_here(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0, 0, 1]))
    tensor([3., 2., 4.])
    """
    if not len(x):
        return x
    sums = torch.cumsum(x.double(), 0)
    last = torch.cat([seq[1:] != seq[:-1], seq.new_ones(1, dtype=torch.bool)])
    ends = torch.nonzero(last).flatten()
    end = ends[torch.searchsorted(ends, torch.arange(len(x), device=x.device))]
    return (sums[end] - sums + x.double()).to(x.dtype)
