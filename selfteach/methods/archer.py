"""ArCHer (2402.19446): an agent with a critic of whole turns, learned off-policy, and a policy gradient in each turn.

Over turns, values are learned by temporal differences from a replay buffer, with two critics and their slowly following
targets. Within a turn every token has the turn's advantage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core import (
    Claim,
    Column,
    Example,
    Method,
    ModelRole,
    RolloutGroup,
    Seq,
    Step,
    Term,
    Token,
    Update,
    WeightSpec,
    block,
    mechanism,
    method,
    outcome,
    premise,
    provides,
    stateful,
)
from ..core.blocks import logged
from ..core.lazy import torch
from ..credit import segments as seg
from ..credit.advantages import whiten
from ..credit.composers import per_trajectory
from ..credit.replay import replay, to_stored
from ..credit.returns import at_last_token
from ..objective.loss_weights import sequence_mean
from ..objective.policy import clipped_ratio
from ..objective.schedules import after
from .base import policy_method

CRITICS = ("critic", "critic2")


@method(
    family="credit",
    paper="2402.19446",
    catalogue=29,
    ignores_reward="its advantages are those of critics, which know nothing before they have learned",
)
def archer(
    groups: int = 16,
    rollouts: int = 8,
    gamma: float = 0.95,
    tau: float = 1.0,
    buffer: int = 256,
    replayed: int = 32,
    critic_epochs: int = 2,
    critic_minibatches: int = 8,
    critic_lr: float = 3e-4,
    critic_warmup: int = 40,
    clip: float = 0.2,
) -> Method:
    """An actor-critic over turns: twin critics by temporal differences off-policy, a policy gradient per token.

        Q(s, u):  (Q - r - gamma Vbar(s'))^2,    Vbar 0 after the last turn
        V(s):     (V - Q(s, u))^2
        A(s, u) = min(Q1, Q2) - min(V1, V2), whitened over the batch, replayed turns among it
        policy:   -A(s, u) log pi(u_h | s, u_<h) for each token u_h of a turn, by PPO's clip

    Zhou et al. 2024, section 3 and the released code. A critic is a copy of the start model: V is its head before a
    turn's first token, Q one after its last; bars are target networks, which move by the share `tau` of the way to
    their critic at every step. r is what a turn is paid, the return at the last turn where turns are not paid. The
    critics learn from the step's episodes and from `replayed` groups of the `buffer` newest, drawn anew each step, all
    turns alike; the policy from the step's own, after the `critic_warmup` first steps. replayed = 0: critics on the
    step's own episodes alone.

    Chosen here: targets move once a step. The authors' move by 0.1 after each of 50 updates of an iteration, which
    leaves 0.9^50 = 0.5 % of the old target, so that tau is 1. For the same reason V learns from what its critic's Q is
    now, where theirs has Qbar: with a V of the step before, what Q has just learned is an advantage of every turn. A
    value so travels back one turn a step, where theirs makes up to 25 such backups an iteration. That is why the
    warm-up is long: a policy that learns before values have come back to an episode's first turns loses its successes.
    Advantages are whitened, where theirs are as they are and gradients are clipped to a norm of 0.01. V learns from
    turns of the buffer, where the code samples new ones of the present policy. The policy learns from this step's
    states and actions, where theirs samples a new action in each of the buffer's states; theirs has no clip, and sums
    over the tokens of a turn, where here each episode weighs the same and each token in it. Theirs is one encoder with
    a head for each Q and V. The token-level baseline is left out, as in the code's default.
    """
    base = policy_method(credit=(per_trajectory(),), term=Term(clipped_ratio()), groups=groups, rollouts=rollouts)
    old = (replay_turns(size=buffer, take=replayed),) if replayed else ()
    learn_critics = tuple(
        Update(
            (c,),
            (
                Term(
                    turn_td(gamma=gamma).reading(
                        critic_scalar_after=f"{c}_scalar_after",
                        critic_value=f"{c}_value",
                        target_value=f"{c}_target_value",
                    ),
                    on=("main", "replayed"),
                ),
            ),
            epochs=critic_epochs,
            minibatches=critic_minibatches,  # dealt out for each critic anew, so that the two differ
            lr=critic_lr,
        )
        for c in CRITICS
    )
    learn_policy = Update(
        ("policy",),
        (Term(clipped_ratio(low=clip, high=clip), loss_weights=sequence_mean()),),
        assign=(turn_advantage(), whiten()),
        when=after(step=critic_warmup),
    )
    own = per_trajectory(tokens=("turn_reward",))
    return base.replace(credit=(own, *old, paid()), updates=(*learn_critics, learn_policy)).override(
        weights={c: WeightSpec("start") for c in CRITICS}
        | {f"{c}_target": WeightSpec(c, follow=c, rate=tau) for c in CRITICS},
        models={c: ModelRole((c,), heads=("value", "scalar")) for c in CRITICS}
        | {f"{c}_target": ModelRole((f"{c}_target",), heads=("value",)) for c in CRITICS},
    )


@block
@stateful(lambda: {"groups": []})
def replay_turns(
    *, groups: Sequence[RolloutGroup], state: dict[str, Any], size: int = 128, take: int = 16
) -> tuple[list[Example], dict[str, Any]]:
    """`replay` of `take` random groups of the newest `size`, which keep the rewards of their turns.

    Per token, and there where no turn is paid, as `per_trajectory` gives them for the step's own episodes: a batch has
    a column at one unit only.
    """
    old, state = replay(
        groups=groups,
        state=state,
        size=size,
        take=take,
        order="random",
        again=True,
        drop_zero_variance=False,
        loss_stream="replayed",
    )
    new = {e.name: to_stored(e)["given"] for e in per_trajectory(groups=groups, tokens=("turn_reward",))}
    for example in (e for g in state["groups"] for e in g["examples"]):
        example["given"] = new.get(example["name"], example["given"])
    return old, state


@block
@provides("token_reward")
def paid(*, turn_reward: Token, reward: Seq, seq: Token) -> dict[str, Column]:
    """What each turn is paid, at its last token: its own reward, and at the end what is left of the return.

    That is all of the return where turns are not paid, and nothing where it is the sum of their rewards.

    Args: turn_reward f64[N], NaN: none; reward f64[S]; seq i64[N]. Returns: token_reward f64[N]. Scope: seq.

    A return of 1, of which the first of two turns is paid 0.25; and one of 1 where no turn is.

    >>> paid(turn_reward=[0.25, np.nan, np.nan, np.nan], reward=[1.0, 1.0], seq=[0, 0, 1, 1])["token_reward"].values
    array([0.25, 0.75, 0.  , 1.  ])
    """
    own = np.nan_to_num(np.asarray(turn_reward, np.float64))
    rest = np.asarray(reward, np.float64) - seg.total(own, seq, len(reward))
    return {"token_reward": Column("token", own + at_last_token(rest, seq))}


def ends(step: torch.Tensor) -> torch.Tensor:
    """bool[N]: the last row of each turn; rows of a turn in order."""
    return torch.cat([step[1:] != step[:-1], torch.ones_like(step[:1], dtype=torch.bool)])


def after_turn(value: torch.Tensor, seq: torch.Tensor) -> torch.Tensor:
    """f[N]: at a turn's last row the value before the next turn of its sequence, 0 after the last one.

    value f[N] is the value before each row.
    """
    follows = torch.cat([seq[1:] == seq[:-1], torch.zeros_like(seq[:1], dtype=torch.bool)])
    return torch.where(follows, torch.cat([value[1:], value[:1]]), 0.0)


def q_right(
    *, critic_scalar_after: torch.Tensor, step: torch.Tensor, reward: torch.Tensor, seq: torch.Tensor
) -> torch.Tensor:
    """Q of the turns of episodes with a reward above 1/2."""
    return critic_scalar_after[ends(step) & (reward[seq] > 0.5)]


def q_wrong(
    *, critic_scalar_after: torch.Tensor, step: torch.Tensor, reward: torch.Tensor, seq: torch.Tensor
) -> torch.Tensor:
    """Q of the turns of all other episodes."""
    return critic_scalar_after[ends(step) & (reward[seq] <= 0.5)]


@block
@logged("q_right", q_right)
@logged("q_wrong", q_wrong)
def turn_td(
    *,
    critic_scalar_after: Token,
    critic_value: Token,
    target_value: Token,
    token_reward: Token,
    reward: Seq,
    step: Token,
    seq: Token,
    gamma: float = 0.95,
) -> Step:
    """Temporal differences of whole turns (equations 2 and 3).

        l_k = (Q_k - r_k - gamma Vbar_{k+1})^2 + (V_k - Q_k)^2,    the Q_k of V's error without gradient

    Q_k is the scalar head after the turn's last token, V_k the value head before its first, r_k what the turn is paid.
    Logs Q of the turns of episodes that went well, and of others. Args: heads, token_reward f[N]; reward f[S], for what
    is logged; step, seq i64[N]. Returns: l f[K]. Scope: seq.
    """
    end = ends(step)
    begin = torch.cat([torch.ones_like(end[:1]), end[:-1]])
    target = (token_reward + gamma * after_turn(target_value, seq)).detach()
    q_error = (critic_scalar_after - target)[end] ** 2
    v_error = (critic_value[begin] - critic_scalar_after[end].detach()) ** 2
    return q_error + v_error


@block
def turn_advantage(
    *,
    critic_scalar_after: Token,
    critic2_scalar_after: Token,
    critic_value: Token,
    critic2_value: Token,
    step: Token,
) -> dict[str, Column]:
    """The advantage of each turn by two critics: min(Q1, Q2) after its last token, min(V1, V2) before its first.

    Args: heads f64[N]; step i64[N]. Returns: adv f64[N], the same for all tokens of a turn. Scope: step.

    >>> turns = {"critic_value": [0.5, 9.0], "critic2_value": [0.25, 9.0], "step": [0, 0]}
    >>> turn_advantage(critic_scalar_after=[9.0, 1.0], critic2_scalar_after=[9.0, 0.75], **turns)["adv"].values
    array([0.5, 0.5])
    """
    step = np.asarray(step)
    q = np.minimum(critic_scalar_after, critic2_scalar_after)
    v = np.minimum(critic_value, critic2_value)
    last = seg.last(step, seg.count(step))
    first = np.searchsorted(step, np.arange(seg.count(step)))
    return {"adv": Column("token", (q[last] - v[np.minimum(first, len(v) - 1)])[step])}


archer.claim = Claim(
    (
        premise("accuracy", "grpo", "start", by=0.1, fails_at=0.95),  # there is something to learn from
        # the critic knows which turns lead to the goal
        mechanism("late:critic/q_right", "self", "late:critic/q_wrong of self", by=0.05, fails_at=1.0),
        mechanism("mean:policy/step_auc", "self", 0.5, by=0.05, fails_at=0.5),
        outcome("auc", "self", "grpo", by=0.03, fails_at=0.98),
        outcome("steps_to@0.5", "self", "grpo", relation="<", scale="ratio", by=0.2, fails_at=0.0),
        outcome("auc", "self", "fresh", by=0.02, fails_at=0.99),
    ),
    arms={"grpo": ("grpo", {}, {"lr": 3e-4}), "fresh": ("archer", {"replayed": 0})},
    regime="turns_practised",
    settings={"lr": 1e-4},
    idea=("main.credit", "main.update.*", "models.*", "weights.*"),
    differs={
        "settings.lr": "each its own: at 3e-4 the policy is another before the critics know it, and forgets to succeed"
    },
    because="a critic of whole turns that learns from old episodes too says what a turn was worth, where the return of"
    " an episode of ten turns does not",
)
