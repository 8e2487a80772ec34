"""Demystifying Long Chain-of-Thought (Yeo et al. 2025, arXiv 2502.03373): a cosine length reward, and no repetition.

PPO. Of right answers the shortest has the largest reward, of wrong ones the longest, both along a cosine. As wrong
answers then get long by repeating themselves, every token inside a repeated n-gram costs, discounted apart.

    R_t = 1[t is last] R + r_t,   r_t = -repetition inside an n-gram that came before
    A_t = sum_{s >= t} gamma^(s-t) 1[s is last] R + sum_{s >= t} gamma_repetition^(s-t) r_s - V_t
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..core import (
    BadValue,
    Claim,
    Column,
    Method,
    Seq,
    Term,
    Token,
    block,
    mechanism,
    method,
    outcome,
    premise,
    provides,
)
from ..credit.advantages import whiten
from ..credit.composers import per_trajectory
from ..credit.returns import at_last_token, reward_to_go
from ..objective.kl import kl
from ..objective.loss_weights import token_mean
from ..reward.answer import exact_match
from ..reward.length import cosine_scaled, repeated_tokens
from .ppo import ppo


@method(family="efficiency", paper="2502.03373", catalogue=282)
def demystify(
    groups: int = 16,
    rollouts: int = 8,
    cosine: bool = True,
    limit: int = 128,
    right_short: float = 2.0,
    right_long: float = 1.0,
    wrong_short: float = -10.0,
    wrong_long: float = 0.0,
    exceeded: float | None = -10.0,
    repetition: float = 0.05,
    ngram: int = 6,
    gamma: float = 1.0,
    gamma_repetition: float = 0.99,
    critic_lr: float = 1e-3,
    minibatches: int = 1,
    critic_epochs: int = 4,
    beta: float = 0.0,
) -> Method:
    """PPO with a cosine length reward, and a penalty on repeated n-grams that has a discount of its own.

        R   = cosine over the length from right_short to right_long, or wrong_short to wrong_long; `exceeded` if cut
        A_t = gamma-discounted R + gamma_repetition-discounted penalties - V_t,   lam = 1

    Yeo et al. 2025, section 4 and the released scripts: these values, 1 for gamma and 0.99 for gamma_repetition; there
    n-grams have 40 tokens, the KL coefficient in the reward is 0.01 (here `beta` is of a loss term), the batch 512 of
    16 samples a prompt, learned twice, and advantages are whitened as here. cosine=False: 1 and 0, the classic reward.
    repetition=0: without the penalty.
    """
    base = ppo(
        groups=groups,
        rollouts=rollouts,
        critic_lr=critic_lr,
        minibatches=minibatches,
        critic_epochs=critic_epochs,
    )
    critic, policy = base.stage.updates
    if beta:
        policy = replace(policy, terms=(*policy.terms, Term(kl(kind="k3"), loss_weights=token_mean(), coef=beta)))
    scaled = cosine_scaled(
        judge=exact_match(),
        limit=limit,
        right_short=right_short,
        right_long=right_long,
        wrong_short=wrong_short,
        wrong_long=wrong_long,
        exceeded=exceeded,
    )
    apart = discounted_apart(repetition=repetition, ngram=ngram, gamma=gamma, gamma_repetition=gamma_repetition)
    return base.replace(
        reward=(scaled if cosine else exact_match(),),
        credit=(per_trajectory(), apart, whiten()),
        updates=(critic, policy),
    )


@block
@provides("returns")
def discounted_apart(
    *,
    critic_value: Token,
    reward: Seq,
    id: Token,
    seq: Token,
    repetition: float = 0.05,
    ngram: int = 6,
    gamma: float = 1.0,
    gamma_repetition: float = 0.99,
) -> dict[str, Column]:
    """Advantages over a critic from the reward and from penalties on repeated n-grams, each with its own discount.

        R_t = sum_{s >= t} gamma^(s-t) 1[s is last] R - repetition sum_{s >= t} gamma_repetition^(s-t) 1[s is repeated]
        A_t = R_t - V_t

    Args: critic_value f64[N]; reward f64[S]; id, seq i64[N]. A token is repeated where it is inside an n-gram of
    `ngram` learned tokens that the sequence had before. Returns: adv, returns f64[N]. Scope: seq. Equals: `gae` at
    lam = 1 with repetition = 0.

    The second token of two that are the same is repeated: it costs 1/2, and the first half of that.

    >>> rows = dict(critic_value=[0.0, 0.0], reward=[1.0], id=[7, 7], seq=[0, 0], repetition=0.5, ngram=1)
    >>> discounted_apart(**rows, gamma_repetition=0.5)["adv"].values
    array([0.75, 0.5 ])
    """
    if ngram < 1:
        raise BadValue(f"discounted_apart: ngram must be at least 1, not {ngram}")
    id, seq = np.asarray(id), np.asarray(seq)
    penalty = np.zeros(len(seq))
    for rows in np.split(np.arange(len(seq)), np.flatnonzero(np.diff(seq)) + 1) if len(seq) else ():
        penalty[rows] = -repetition * repeated_tokens(id[rows], ngram)
    returns = reward_to_go(at_last_token(reward, seq), seq, gamma) + reward_to_go(penalty, seq, gamma_repetition)
    return {
        "adv": Column("token", returns - np.asarray(critic_value, np.float64)),
        "returns": Column("token", returns),
    }


demystify.claim = Claim(
    (
        premise("length_right", "classic", 30.0, by=0.0, fails_at=29.0),  # 28 tokens write every addition once
        # right answers are shorter for the cosine alone than under the classic reward, none paying for repetition
        mechanism("length_right", "repeating", "classic", by=0.1, relation="<", scale="ratio", fails_at=28.0),
        outcome("length", "repeating", "classic", by=0.1, relation="<", scale="ratio", fails_at=30.0),
        outcome("accuracy", "self", "classic", by=0.03, relation=">=", fails_at=1.0),
        # without the penalty wrong answers repeat themselves, and are longer
        outcome("length_wrong", "self", "repeating", by=0.05, relation="<", scale="ratio", fails_at=4.0),
    ),
    arms={
        "classic": ("demystify", {"cosine": False, "repetition": 0.0, "limit": 81}),
        "repeating": ("demystify", {"repetition": 0.0, "limit": 81}),
    },
    args={"limit": 81},  # tokens of an answer, at most
    regime="verbose",
    first_seed=300,
    corrected="on seeds 200 to 207 what has cosine and penalty was compared with what has neither, and the penalty "
    "alone shortens right answers as much there: holds",
    idea=("main.reward", "main.credit"),
    because="a short right answer and a long wrong one are the better of their kind, so that thinking grows where it "
    "has to; and what grows by repetition costs",
)
