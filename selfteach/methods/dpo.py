"""DPO, direct preference optimisation (Rafailov et al. 2023, arXiv 2305.18290).

A policy learns from stored pairs of answers by a loss that a reward model would have had, with the policy itself as
that model: its reward is the log-ratio to where it began.

    l = -log sigmoid(beta ((logp_c - ref_c) - (logp_r - ref_r)))        c the preferred answer, r the rejected one
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..core import (
    Claim,
    Example,
    Home,
    Method,
    ModelRole,
    RolloutContext,
    RolloutGroup,
    RolloutRequest,
    Stage,
    TaskSource,
    Term,
    Update,
    WeightSpec,
    block,
    mechanism,
    method,
    outcome,
    premise,
    reads_items,
    stateful,
)
from ..credit.composers import by_key, per_trajectory
from ..objective import preference
from ..objective.likelihood import nll
from ..objective.loss_weights import token_mean
from ..reward.pairwise import reward_model
from ..rollout.single import single
from .grpo import grpo


@method(family="preference", paper="2305.18290", home=Home("preference", 100))
def dpo(batch: int = 16, beta: float = 0.1, label_smoothing: float = 0.0) -> Method:
    """Direct preference optimisation on stored pairs: rows with `prompt`, `chosen` and `rejected`.

        l = -log sigmoid(beta ((logp_c - ref_c) - (logp_r - ref_r)))

    Rafailov et al. 2023, eq. 7; logp are sums over an answer's tokens, its EOS token too, and `ref` is the model that
    the run starts from. Nothing is sampled. beta: how dear it is to leave the reference. label_smoothing: the share of
    preferences that are taken to be wrong (Mitchell 2023); the authors' is 0. They first fine-tune the reference on the
    preferred answers, and train by RMSprop at 5e-7 with a warm-up of 150 steps.
    """
    return Method(
        stages=(
            Stage(
                select=stored_pairs(),
                programs={"main": read_pair()},
                reward=(),
                credit=(chosen_over_rejected(),),
                updates=(Update(("policy",), (Term(preference.dpo(beta=beta, label_smoothing=label_smoothing)),)),),
                groups=batch,
                rollouts=1,
                data=True,
            ),
        ),
        decode={"answer": single()},
    )


@method(family="preference", paper="2305.18290", home=Home("preference", 100))
def preferred_ft(batch: int = 16) -> Method:
    """Preferred-FT, an opponent of DPO: maximum likelihood of the preferred answers, whatever they were preferred to.

        loss = mean over the tokens of the preferred answers of -logp

    Rafailov et al. 2023, section 6.
    """
    base = dpo(batch=batch)
    update = Update(("policy",), (Term(nll(), loss_weights=token_mean()),))
    return base.replace(credit=(per_trajectory(roles=("chosen",)),), updates=(update,))


@method(family="preference", paper="2203.02155", home=Home("preference", 100))
def rlhf(
    groups: int = 16,
    rollouts: int = 8,
    beta: float = 0.01,
    pairs: int = 3840,
    rm_minibatches: int = 60,
    rm_lr: float = 1e-3,
) -> Method:
    """The opponent of DPO: a reward model learns from stored pairs, then RL on it, kept near the start.

        reward model:  -log sigmoid(R(chosen) - R(rejected)),   R the scalar head after an answer's last token
        policy:        r_i = R(y_i) in GRPO, + beta KL to the start (k3)

    Ouyang et al. 2022, equations 1 and 2, whose policy gradient is PPO's, with a critic and the KL in its rewards. The
    run's first step is the reward model's: `rm_minibatches` updates, each on so many of `pairs` stored pairs that all
    are read once. R is the run's model with a head and weights of its own, and reads answers without an EOS token,
    which those lack that a tag ends. Each pair is one of those that `dpo` reads. rm_lr: for a tiny model; a real one
    wants a hundredth of that.
    """
    first = Stage(
        name="reward model",
        select=stored_pairs(),
        programs={"main": read_pair(model_role="rm", eos=False)},
        reward=(),
        credit=(chosen_over_rejected(model_role="rm"),),
        updates=(Update(("rm",), (Term(preference.bradley_terry()),), minibatches=rm_minibatches, lr=rm_lr),),
        groups=pairs,
        rollouts=1,
        until=1,
        data=True,
    )
    base = grpo(groups=groups, rollouts=rollouts, beta=beta).replace(reward=(reward_model(eos=False),))
    return replace(base, stages=(first, *base.stages)).override(
        weights={"rm": WeightSpec("start")}, models={"rm": ModelRole(("rm",), heads=("scalar",))}
    )


@block
@reads_items("pairs")
@stateful(int)
def stored_pairs(
    *, n: int, finished_rounds: list[list[RolloutGroup]], source: TaskSource, state: int
) -> tuple[list[RolloutRequest], int]:
    """The next `n` preference pairs of the source, for a program that reads them."""
    if finished_rounds or source.pairs is None:
        return [], state
    return [RolloutRequest(source.pairs(state + i), 1) for i in range(n)], state + n


@block
async def read_pair(
    *,
    request: RolloutRequest,
    rollout: RolloutContext,
    model_role: str = "policy",
    tools: tuple[str, ...] = (),
    eos: bool = True,
) -> str:
    """Both answers of a pair after its prompt, each with the EOS token: trajectories of the roles chosen and rejected.

    tools: typed functions that the prompt says, as in `call_functions`. eos: False leaves the EOS token out.
    """
    specs = [rollout.function(name) for name in tools]
    for role, text in zip(("chosen", "rejected"), request.task.data, strict=False):
        context = rollout.model_role(model_role).begin(request.task.prompt, tools=specs)
        context.adopt(text)
        if eos:
            context.finish()
        context.close(role=role)
    return request.task.data[0]


@block
def chosen_over_rejected(*, groups: Sequence[RolloutGroup], model_role: str = "policy") -> list[Example]:
    """The answers of pairs as examples of a model: of a key's trajectories the first is preferred over the second,
    the third over the fourth ...
    """
    examples = per_trajectory(groups=groups, model_role=model_role)
    lost = {rows[i]: rows[i + 1] for rows in by_key(examples).values() for i in range(0, len(rows) - 1, 2)}
    return [replace(e, preferred_over=(lost[i],)) if i in lost else e for i, e in enumerate(examples)]


dpo.claim = Claim(
    (
        premise("accuracy", "grpo", "start", by=0.2, fails_at=0.95),  # what is preferred can be learned
        # what it says of pairs that it has not seen is what was preferred: it is a reward model
        mechanism("late:policy/reward_accuracy", "self", 0.5, by=0.2, fails_at=0.5),
        outcome("accuracy", "self", "start", by=0.2, fails_at=0.9),
        outcome("accuracy", "self", "preferred_ft", by=0.03, fails_at=0.98),
        outcome("accuracy", "self", "rlhf", by=0.03, relation=">=", fails_at=1.0),
    ),
    arms={
        "grpo": ("grpo", {}, {"lr": 3e-4}),
        "preferred_ft": ("preferred_ft", {"batch": 64}, {"lr": 3e-4}),
        "rlhf": ("rlhf", {"beta": 0.2}),
    },
    args={"batch": 64, "beta": 1.0},
    settings={"lr": 1e-4},
    regime="skill",
    differs={"settings.lr": "each at the rate that is best for it"},
    idea=("main.*", "reward model.*", "weights*", "models*", "decode*"),
    because="a policy is a reward model too, so that a loss on stored pairs does what a reward model and RL on it do, "
    "and sampling nothing",
)
