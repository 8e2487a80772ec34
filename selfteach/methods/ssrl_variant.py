"""SSRL with one of its pieces exchanged (Fan et al. 2025, arXiv 2508.10874): what its further experiments compare.

The algorithm, the labels, who writes the information, and how one answer is reached (at once; in turns, each result in
a context of its own; with a reflection after the answer; with thoughts that are made longer).
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Literal

from ..core import (
    BadValue,
    Block,
    Home,
    Method,
    ModelContext,
    ModelRole,
    Ref,
    RewardContext,
    RolloutContext,
    RolloutRequest,
    Score,
    Stage,
    Term,
    TokenPath,
    Turn,
    Update,
    WeightSpec,
    block,
    method,
    own_tokens,
)
from ..core.tagged_text import last_between, split_points
from ..credit.advantages import norm, whiten
from ..credit.composers import per_trajectory
from ..credit.keep import drop_zero_variance_groups
from ..credit.returns import gae
from ..curriculum.select import demonstrations, pool, refill
from ..objective.likelihood import nll
from ..objective.loss_weights import token_mean
from ..objective.policy import clipped_ratio
from ..reward.answer import exact_match
from ..reward.vote import majority_vote
from ..rollout.search import RETRY, append_found, search_agent, search_turns, self_search
from ..rollout.single import read
from .ppo import ppo
from .ssrl import format_score, policy_update, ssrl

Algorithm = Literal["grpo", "dapo", "ppo", "reinforce_pp"]
Provider = Literal["self", "frozen", "other"]
Protocol = Literal["once", "turns", "reflect", "longer"]


@method(family="search", paper="2508.10874", home=Home("atlas", steps=40))
def ssrl_variant(
    groups: int = 48,
    rollouts: int = 5,
    algorithm: Algorithm = "grpo",
    labels: bool = True,
    labelled_steps: int = 0,
    questions: int = 400,
    provider: Provider = "self",
    provider_model: str = "",
    provider_steps: int = 150,
    provider_lr: float = 1e-3,
    batch: int = 32,
    protocol: Protocol = "once",
    beta: float = 0.001,
    critic_lr: float = 1e-3,
) -> Method:
    """SSRL with one of its pieces exchanged; as it stands, SSRL.

    algorithm  dapo: clip-higher, dynamic sampling, no KL; ppo: a critic and GAE, one answer a prompt and as many
               answers a step; reinforce_pp: REINFORCE++ (2501.03262), advantages over all answers of the batch (verl's:
               over its tokens), one answer a prompt. Reward, mask and loss are SSRL's
    labels     False: TTRL's reward in the place of exact match. The majority of a group is the label, on `questions`
               test questions; all who vote are learned. Before it are `labelled_steps` steps of SSRL
    provider   frozen: what the model was at the start writes the information, from all that the policy would write it
               from (section 4, on-policy self-search); it counts in the format score like the policy's own. other:
               another model does so, with weights of its own: the one at the path `provider_model` (of the same
               tokenizer), or else the run's, taught in a first stage of `provider_steps` steps, in which the policy
               stands still, on `batch` demonstrations of the task a step. RL does not change it either
    protocol   how an answer is reached, in training and in the test. once: a single generation. turns: every result is
               written by the policy in a context of its own, of the query alone (which a small start has never seen by
               itself). reflect: when it has answered, it begins another thought, and answers again. longer: where it
               would answer, another thought is begun
    """
    if provider != "other" and provider_model:
        raise BadValue(f"ssrl_variant: provider_model {provider_model} is read with provider='other' alone; give that")
    base = _with_algorithm(algorithm, groups, rollouts, beta, critic_lr)
    programs: dict[Protocol, Block] = {
        "once": self_search(),
        "turns": search_agent(answerer="policy", invalid=RETRY),
        "reflect": search_again(),
        "longer": search_again(unanswered=True),
    }
    main = programs[protocol] if provider == "self" else search_written_by()
    base = base.replace(programs={"main": main})
    if provider != "self":
        weights = {"provider": WeightSpec(provider_model or "start")}
        base = base.override(weights=weights, models={"provider": ModelRole(("provider",))})
        base = base.with_reward(format_with_found(), instead_of="search_format")
    taught = provider == "other" and not provider_model and provider_steps > 0
    before = (_lessons(provider_steps, provider_lr, batch),) if taught else ()
    if not labels:
        labelled = replace(base.stage, name="labelled", until=labelled_steps)
        before += (labelled,) if labelled_steps else ()
        votes = majority_vote(metric_judge=exact_match())
        base = base.replace(select=pool(size=questions, held_out=True)).with_reward(votes)
    return base.override(stages=(*before, *base.stages)) if before else base


def _with_algorithm(algorithm: Algorithm, groups: int, rollouts: int, beta: float, critic_lr: float) -> Method:
    """SSRL with the credit and the updates of another algorithm, and as many answers a step."""
    own = ssrl(groups=groups, rollouts=rollouts, beta=beta)
    masked = per_trajectory(mask=("information",))
    if algorithm == "dapo":
        higher = Update(("policy",), (Term(clipped_ratio(high=0.28), loss_weights=token_mean()),))
        return own.replace(
            select=refill(rounds=4), credit=(masked, drop_zero_variance_groups(), norm()), updates=(higher,)
        )
    alone = {"groups": groups * rollouts, "rollouts": 1}
    if algorithm == "reinforce_pp":
        return own.replace(credit=(masked, norm(by="batch")), **alone)
    if algorithm == "ppo":
        base = ppo(**alone, critic_lr=critic_lr)
        critic = base.stage.updates[0]
        return own.replace(
            credit=(masked, gae(lam=1.0), whiten()), updates=(critic, policy_update(beta)), **alone
        ).override(weights=dict(base.weights), models=dict(base.models))
    return own


def _lessons(steps: int, lr: float, batch: int) -> Stage:
    """The stage in which another provider than the policy's start is taught, by what a warm start learns from."""
    return Stage(
        name="provider",
        select=demonstrations(),
        programs={"main": read(model_role="provider")},
        reward=(),
        credit=(per_trajectory(model_role="provider"),),
        updates=(Update(("provider",), (Term(nll(), loss_weights=token_mean()),), lr=lr),),
        groups=batch,
        rollouts=1,
        until=steps,
        data=True,
    )


@block
async def search_again(*, request: RolloutRequest, rollout: RolloutContext, unanswered: bool = False) -> str | None:
    """Self-search that thinks once more, after its answer, which it may then change; or, `unanswered`, in its place."""
    context = rollout.policy.begin(request.task.prompt)
    beginning = context.at
    turn = await context.sample(stop=("</answer>",))
    context.mark(turn, "information")
    text = turn.text
    if ("<answer>" if unanswered else "</answer>") in text:
        if unanswered:
            text = text.partition("<answer>")[0]
            places = split_points(context.pieces(turn), "<answer>", before=True)
            context = context.fork(Ref(turn.at.episode, turn.at.node, places[0]) if text else beginning)
        context.append("<think>")
        again = await context.sample(stop=("</answer>",))
        context.mark(again, "information")
        text += f"<think>{again.text}"
    context.close()
    return last_between(text, "answer", None)


@block
async def search_written_by(
    *,
    request: RolloutRequest,
    rollout: RolloutContext,
    turns: int = 4,
    invalid: str = RETRY,
    provider: str = "provider",
) -> str | None:
    """Self-search in which another model writes the information, from all that was read and written before it."""

    async def write(context: ModelContext, turn: Turn) -> None:
        before = rollout.text(context.at).rpartition("</search>")[0]  # the last token may extend past the tag
        other = rollout.model_role(provider).begin(request.task.prompt)
        other.append(f"{before}</search><information>")
        found = (await other.sample(stop=("</information>",))).text.removesuffix("</information>")
        append_found(context, turn, found)

    return await search_turns(request, rollout, turns, invalid, write)


@block
def format_with_found(*, path: TokenPath, context: RewardContext) -> Score:
    """`search_format` of a response in which another model wrote the information.

    What stands there is not read, so that nobody but the policy earns anything: each piece counts as found, and closed.
    """
    own, spans, pieces = own_tokens(path), path.spans, list[str]()
    rows = range(path.prompt, len(path.ids))
    for source, run in itertools.groupby(rows, lambda i: "own" if own[i] else spans[i]):
        text = context.tokenizer.decode(path.ids[list(run)])
        pieces.append(text if source == "own" else f"<{source}>found</{source}>" if source == "information" else "")
    return format_score("".join(pieces))
