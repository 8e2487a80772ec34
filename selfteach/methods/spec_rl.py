"""SPEC-RL, speculative rollouts (Liu et al. 2025, arXiv 2509.23232).

The rollouts of a prompt in the last epoch are drafts: the current policy verifies a draft in one forward pass, accepts
it up to the first rejected token, and continues from there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..core import (
    BadValue,
    Claim,
    Method,
    Ref,
    RolloutContext,
    RolloutGroup,
    RolloutRequest,
    TaskSource,
    block,
    mechanism,
    method,
    outcome,
    premise,
    quantity,
    random_keys,
    stateful,
)
from ..core.blocks import Array, asks_engine
from ..core.lazy import torch
from ..core.tagged_text import ends_in_part_of, last_between
from ..curriculum.select import pool, pool_tasks
from .grpo import grpo


@method(family="system", paper="2509.23232", catalogue=260)
def spec_rl(
    groups: int = 16, rollouts: int = 8, size: int = 128, lenience: float = 1.6487, reuse: bool = True
) -> Method:
    """GRPO whose rollouts begin with the accepted part of the same prompt's rollouts of the epoch before.

        P(accept token t) = min(1, lenience pi(x_t) / pi_draft(x_t))        for lenience > 1

    From the first rejected token on, the current policy samples. Liu et al. 2025, section 3 and algorithm 1, default
    lenience e^0.5; learning is GRPO, with the log-probabilities of the current policy. That rule has no residual
    distribution, so it only approximates the policy's distribution. lenience=1 is unbiased, which the paper's is not:
    every token keeps its uniform number over all visits and is accepted while inverse CDF sampling still gives it
    (`same_draw`). Their GRPO has a KL penalty of 1e-4, an entropy bonus of 0.001 and four minibatches besides, and
    accepts by the same random numbers in every step. Like all speculative sampling this assumes a policy that does not
    depend on the drafts; here it was trained on them.

    size: prompts in the pool, visited epoch by epoch. reuse=False: GRPO over the same pool. Metrics: tokens/generated,
    time/rollout_s.
    """
    base = grpo(groups=groups, rollouts=rollouts)
    if not reuse:
        return base.replace(select=pool(size=size))
    program = same_draw() if lenience == 1 else from_draft(lenience=lenience)
    return base.replace(select=revisit(size=size), programs={"main": program})


@block
@stateful(lambda: {"asked": 0, "last": {}})
def revisit(
    *,
    n: int,
    rollouts: int,
    finished_rounds: list[list[RolloutGroup]],
    source: TaskSource,
    seed: int,
    state: dict[str, Any],
    size: int = 128,
) -> tuple[list[RolloutRequest], dict[str, Any]]:
    """The next `n` tasks as in `pool`, with the rollouts of each task's last visit as drafts.

    A request's help holds `shared_rng_key`, the name of its random numbers, the same at every visit (a task that occurs
    twice in a step has two), and `drafts`, for each episode the Ref of its rollout at the last visit, None where there
    is none. The state holds Refs into the run's log.
    """
    if finished_rounds:
        last = {
            g.request.help["shared_rng_key"]: [
                list(e.trajectories[-1].leaf) if e.trajectories else None for e in g.episodes
            ]
            for g in finished_rounds[0]
        }
        return [], {**state, "last": {**state["last"], **last}}
    out: list[RolloutRequest] = []
    for task in pool_tasks(source, seed, state["asked"], n, size):
        shared_rng_key = f"{task.id}/{sum(r.task.id == task.id for r in out)}"
        drafts = [Ref(*d) if d else None for d in state["last"].get(shared_rng_key, ())]
        out.append(
            RolloutRequest(
                task,
                rollouts,
                help={"shared_rng_key": shared_rng_key, "drafts": (*drafts, *[None] * (rollouts - len(drafts)))},
            )
        )
    return out, {**state, "asked": state["asked"] + n}


@block
@asks_engine("logp")
async def from_draft(
    *,
    request: RolloutRequest,
    rollout: RolloutContext,
    lenience: float = 1.6487,
    stop: tuple[str, ...] = ("</answer>",),
) -> str:
    """One turn as in `single`, begun with the accepted part of the draft in the request's help (`revisit`).

        accept token t with probability min(1, lenience p_now / p_draft)        (algorithm 1)

    After the first rejection the rest is sampled with new random numbers; without the residual distribution this is
    biased, even as lenience goes to 1. Accepted tokens are learned with their log-probability under the current policy.
    Raises BadValue for a lenience below 1, and for a draft at another temperature than 1 or with a truncated
    vocabulary.
    """
    if lenience < 1:
        raise BadValue(f"from_draft: lenience must be 1 or more, not {lenience}")

    def accept(now: Mapping[str, Array], draft_logp: Array) -> Array:
        return is_accepted(now["logp"], draft_logp, rollout.random("drafts").random(len(draft_logp)), lenience)

    return await _from_draft(request, rollout, stop, ("logp",), accept)


@block
@asks_engine("logp", "cdf_below", keyed_samples=True)
async def same_draw(*, request: RolloutRequest, rollout: RolloutContext, stop: tuple[str, ...] = ("</answer>",)) -> str:
    """As `from_draft`, but unbiased: the turn is, token by token, a new sample with the uniforms of the draft.

        accept token t while F(x_t -) <= u_t < F(x_t),        F the current policy's CDF over token ids

    The uniforms u_t belong to the task and the number of the episode, at every visit; after the first rejection the
    rest is sampled with the remaining ones. Raises BadValue as `from_draft` does of a draft.
    """
    name = request.help.get("shared_rng_key")
    key = None if name is None else rollout.shared_rng_key(name, rollout.number)  # None: an evaluation, without drafts

    def accept(now: Mapping[str, Array], draft_logp: Array) -> Array:
        assert key is not None
        return is_same_draw(now["cdf_below"], now["logp"], random_keys.uniform(key, np.arange(len(draft_logp))))

    return await _from_draft(request, rollout, stop, ("logp", "cdf_below"), accept, key)


async def _from_draft(
    request: RolloutRequest,
    rollout: RolloutContext,
    stop: tuple[str, ...],
    want: tuple[str, ...],
    accept: Callable[[Mapping[str, Array], Array], Array],
    shared_rng_key: int | None = None,
) -> str:
    """A turn begun with the tokens of the draft that `accept` keeps, of what the engine says and the draft's logp."""
    context = rollout.policy.begin(request.task.prompt)
    drafts = request.help.get("drafts", ())
    draft = drafts[rollout.number] if drafts else None
    if draft is None:
        turn = await context.sample(stop=stop, shared_rng_key=shared_rng_key)
        context.close()
        return last_between(turn.text, "answer", turn.text.strip())
    if rollout.sampling.temperature != 1 or not rollout.sampling.untruncated:
        raise BadValue("drafts can be verified only at temperature 1 and on the whole vocabulary; set temperature=1")
    path = rollout.path(draft)
    ids, draft_logp = path.ids[path.prompt :], path.logp[path.prompt :]
    max_tokens = rollout.sampling.max_tokens or len(ids)
    now = await context.score(ids, want=want)
    kept = accept(now, draft_logp)
    accepted = len(ids) if kept.all() else int(np.argmin(kept))
    while 0 < accepted < len(ids) and ends_in_part_of(stop, rollout.decode(ids[:accepted])):
        accepted -= 1
    context.note(kept=float(accepted), draft=float(len(ids)))
    context.adopt(ids[:accepted], logp=now["logp"][:accepted], status="length" if len(ids) >= max_tokens else "stop")
    text = rollout.decode(ids[:accepted])
    if accepted < len(ids):
        rest = None if shared_rng_key is None else random_keys.skipped(shared_rng_key, accepted)
        left = max(1, max_tokens - accepted)
        text += (await context.sample(stop=stop, max_tokens=left, shared_rng_key=rest)).text
    context.close()
    return last_between(text, "answer", text.strip())


def is_same_draw(below: Array, logp: Array, uniform: Array) -> Array:
    """bool[T]: whether inverse CDF sampling over the ids in their order gives each token at its uniform.

    >>> is_same_draw(np.array([0.5, 0.5]), np.log([0.25, 0.25]), np.array([0.7, 0.8]))
    array([ True, False])
    """
    low = np.asarray(below, np.float64)
    return (low <= uniform) & (uniform < low + np.exp(np.asarray(logp, np.float64)))


def is_accepted(logp: Array, draft_logp: Array, uniform: Array, lenience: float) -> Array:
    """bool[T]: u < min(1, lenience p_now / p_draft).

    >>> is_accepted(np.log([0.5, 0.25]), np.log([0.5, 0.5]), np.array([0.99, 0.7]), 1.2)  # min(1, 1.2), 0.6
    array([ True, False])
    """
    return np.log(uniform) < math.log(lenience) + np.asarray(logp, np.float64) - np.asarray(draft_logp, np.float64)


@quantity
def cdf_below(*, logprobs: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Probability of all ids below the token's own: f64[N].

    A uniform draw u gives this token where cdf_below <= u < cdf_below + exp(logp).
    """
    below = torch.arange(logprobs.shape[-1], device=logprobs.device) < ids[:, None]
    return torch.where(below, logprobs, -torch.inf).exp().sum(-1, dtype=torch.float64)


spec_rl.claim = Claim(
    (
        premise("accuracy", "no_reuse", "start", by=0.2, fails_at=0.9),  # it learns, so that drafts do get old
        mechanism("sum:tokens/generated", "self", "no_reuse", relation="<", scale="ratio", by=0.3, fails_at=0.0),
        mechanism("sum:tokens/generated", "unbiased", "no_reuse", relation="<", scale="ratio", by=0.1, fails_at=0.0),
        outcome("accuracy", "self", "no_reuse", relation="~", by=0.03, fails_at=0.5),
        outcome("auc", "self", "no_reuse", relation="~", by=0.05, fails_at=0.5),
        outcome("sum:time/rollout_s", "self", "no_reuse", relation="<", scale="ratio", by=0.1, fails_at=0.0),
    ),
    arms={
        "no_reuse": ("spec_rl", {"reuse": False, "size": 64}),
        "unbiased": ("spec_rl", {"lenience": 1.0, "size": 64}),
    },
    args={"size": 64},  # an epoch is four steps
    settings={"steps": 32, "eval_every": 4},
    regime="skill",
    first_seed=300,
    corrected="on seeds 200 to 207 the arms had run at different times on a machine that was not always as fast, by "
    "which rollouts took half as long again as without reuse: does not hold here",
    idea=("main.select", "main.program"),
    because="between two epochs a policy changes little, so it would sample most of its drafts again",
)
