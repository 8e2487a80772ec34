"""What SSRL's paper (Fan et al. 2025, arXiv 2508.10874) shows beside its main claim, each as an experiment of `ssrl`.

Its pieces are exchanged one at a time: the algorithm, the labels, who writes the information, and how one answer is
reached (at once; in turns, each result in a context of its own; with a reflection after the answer; with thoughts that
are made longer). `selfteach reproduce ssrl --full` measures them all, and writes them on one page.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Literal

from ..core import (
    Block,
    Claim,
    Home,
    Method,
    ModelContext,
    ModelRole,
    Ref,
    RewardContext,
    RolloutContext,
    RolloutRequest,
    Score,
    Term,
    TokenPath,
    Turn,
    Update,
    WeightSpec,
    block,
    mechanism,
    method,
    outcome,
    own_tokens,
    premise,
)
from ..core.tagged_text import last_between, split_points
from ..credit.advantages import norm, whiten
from ..credit.composers import per_trajectory
from ..credit.keep import drop_zero_variance_groups
from ..credit.returns import gae
from ..curriculum.select import pool, refill
from ..objective.loss_weights import token_mean
from ..objective.policy import clipped_ratio
from ..reward.answer import exact_match
from ..reward.vote import majority_vote
from ..rollout.search import RETRY, append_found, search_agent, search_turns, self_search
from .ppo import ppo
from .ssrl import format_score, policy_update, ssrl

Algorithm = Literal["grpo", "dapo", "ppo", "reinforce_pp"]
Protocol = Literal["once", "turns", "reflect", "longer"]


@method(family="search", paper="2508.10874", home=Home("atlas", steps=40))
def ssrl_variant(
    groups: int = 48,
    rollouts: int = 5,
    algorithm: Algorithm = "grpo",
    labels: bool = True,
    labelled_steps: int = 0,
    questions: int = 400,
    provider: Literal["self", "frozen"] = "self",
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
               from (section 4, on-policy self-search); it counts in the format score like the policy's own
    protocol   how an answer is reached, in training and in the test. once: a single generation. turns: every result is
               written by the policy in a context of its own, of the query alone (which a small start has never seen by
               itself). reflect: when it has answered, it begins another thought, and answers again. longer: where it
               would answer, another thought is begun
    """
    base = _with_algorithm(algorithm, groups, rollouts, beta, critic_lr)
    programs: dict[Protocol, Block] = {
        "once": self_search(),
        "turns": search_agent(answerer="policy", invalid=RETRY),
        "reflect": search_again(),
        "longer": search_again(unanswered=True),
    }
    main = programs[protocol] if provider == "self" else search_written_by()
    base = base.replace(programs={"main": main})
    if provider == "frozen":
        base = base.override(weights={"provider": WeightSpec()}, models={"provider": ModelRole(("provider",))})
        base = base.with_reward(format_with_found(), instead_of="search_format")
    if labels:
        return base
    votes = majority_vote(metric_judge=exact_match())
    voted = base.replace(select=pool(size=questions, held_out=True)).with_reward(votes)
    if not labelled_steps:
        return voted
    return voted.override(stages=(replace(base.stage, name="labelled", until=labelled_steps), *voted.stages))


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


SIMULATOR_HOT = "on seeds 200 to 207 ZeroSearch's simulator wrote at temperature 1, where its release has 0.8: "
# Noise in a quarter of the documents, as its authors begin, ends all searching here: a policy of this size soon knows
# by heart what it is asked in training. 60 steps of the policy are too few for their share to grow in.
EASIER_AT_FIRST = ("zerosearch", {"noise_start": 0.0, "noise_steps": 120})
EXPERIMENTS = {
    "engines": Claim(
        (
            premise("accuracy", "search_r1", "start", by=0.2, fails_at=0.9),  # to search with the engine can be learned
            mechanism("accuracy+search", "self", "accuracy of self", by=0.02, fails_at=0.99),  # it takes the engine up
            outcome("accuracy+search", "self", "accuracy of search_r1", relation=">=", by=0.05, fails_at=1.0),
            outcome("accuracy+search", "self", "accuracy of zerosearch", relation=">=", by=0.05, fails_at=1.0),
            outcome("accuracy", "self", "accuracy+self of search_r1", by=0.03, fails_at=0.98),
        ),
        arms={"search_r1": "search_r1", "zerosearch": EASIER_AT_FIRST},
        regime="search",
        equal="tokens",
        idea=("main.*", "simulator.*", "weights.*", "models.*", "decode.*"),
        because="what was trained in its own memory searches as well with a real engine as what was trained with one, "
        "or with a model in its place, at as many sampled tokens",
        first_seed=300,
        corrected=f"{SIMULATOR_HOT}mechanism shown",
    ),
    "seconds": Claim(
        (
            premise("accuracy", "search_r1", "start", by=0.2, fails_at=0.9),
            mechanism("sum:tokens/sampled", "self", "zerosearch", by=0.2, scale="ratio", fails_at=1e9),  # none waits
            outcome("accuracy+search", "self", "accuracy of search_r1", relation=">=", by=0.05, fails_at=1.0),
            outcome("accuracy+search", "self", "accuracy of zerosearch", by=0.03, fails_at=0.98),
        ),
        arms={"search_r1": "search_r1", "zerosearch": EASIER_AT_FIRST},
        regime="search",
        equal="seconds",
        idea=("main.*", "simulator.*", "weights.*", "models.*", "decode.*"),
        because="without an engine or a simulator to wait for, the same time trains further",
        first_seed=300,
        corrected=f"{SIMULATOR_HOT}holds",
    ),
    "sampling": Claim(
        (
            premise("pass@1024", "self", "accuracy of self", by=0.1, fails_at=0.95),  # it holds more than it says
            mechanism("pass@64", "self", "pass@8 of self", by=0.05, fails_at=0.96),
            outcome("pass@1024", "self", "pass@64 of self", by=0.02, fails_at=0.99),
            # votes do not tell what is right of what is often said
            outcome("maj@1024", "self", "maj@8 of self", relation="<=", by=0.05, fails_at=0.0),
            outcome("pass@1024", "self", "maj@1024 of self", by=0.1, fails_at=0.95),
        ),
        settings={"steps": 0},
        regime="search",
        because="more samples find ever more of what a model knows, along exp(a k^b), and a vote does not choose it",
    ),
    "protocols": Claim(
        (
            mechanism("length", "reflect", "self", by=0.2, scale="ratio", fails_at=1e6),  # more is thought
            mechanism("length", "longer", "self", by=0.05, scale="ratio", fails_at=1e6),
            # of twice as many tokens an answer half as many answers
            outcome("pass@64", "self", "pass@32 of reflect", relation=">=", by=0.02, fails_at=1.0),
            outcome("pass@64", "self", "pass@32 of longer", relation=">=", by=0.02, fails_at=1.0),
            outcome("pass@64", "self", "pass@64 of turns", relation=">=", by=0.02, fails_at=1.0),
        ),
        arms={p: ("ssrl_variant", {"protocol": p}) for p in ("turns", "reflect", "longer")},
        settings={"steps": 0},
        regime="search",
        idea=("main.program.main",),
        because="of as many tokens, single answers find as much as longer thoughts, rounds of search and reflection",
    ),
    "labels": Claim(
        (
            premise("early:reward/label", "ttrl", 0.5, fails_at=0.4),  # most votes are right where they take over
            mechanism("late:reward/hit", "ttrl", 0.6, fails_at=0.5),  # its rewards are right where labels' would be
            outcome("accuracy", "ttrl", "half", by=0.03, fails_at=0.98),
            outcome("accuracy", "ttrl", "self", relation=">=", by=0.03, fails_at=1.0),
        ),
        arms={
            "ttrl": ("ssrl_variant", {"labels": False, "labelled_steps": 60}),
            "half": ("ssrl", {}, {"steps": 60}),
        },
        settings={"steps": 120},
        regime="search",
        idea=("main.select", "main.reward", "labelled", "labelled.*"),
        differs={"settings.steps": "half is what TTRL begins with, and ends there"},
        because="what has learned to search itself goes on by the vote of what it says, on the test's own questions",
    ),
    "provider": Claim(
        (
            premise("accuracy", "frozen", "start", by=0.03, fails_at=0.98),  # it can be learned from
            # what it writes for itself is written by what has learned
            mechanism("late:dropped/masked:information", "self", 128.0, fails_at=0.0),
            outcome("accuracy", "self", "frozen", by=0.03, fails_at=0.98),
            outcome("accuracy+search", "self", "accuracy+search of frozen", relation=">=", by=0.03, fails_at=1.0),
        ),
        arms={"frozen": ("ssrl_variant", {"provider": "frozen"})},
        regime="search",
        idea=("main.program.main", "main.reward*", "weights.provider", "models.provider"),
        because="a policy that writes its own information learns what to write, and a frozen one does not",
        first_seed=500,
        corrected=(
            "on seeds 200 to 207 the provider was first asked with a query alone, which a small start has never seen by"
            " itself; there and on seeds 300 to 307 the format score did not see what it wrote, so that who never"
            " searched was paid more: not tested here"
        ),
    ),
    "algorithms": Claim(
        (
            premise("accuracy", "self", "start", by=0.2, fails_at=0.9),
            mechanism("late:reward/format", "self", "early:reward/format of self", by=0.05, fails_at=1.0),
            outcome("accuracy", "self", "ppo", by=0.03, fails_at=0.98),
            outcome("accuracy", "self", "reinforce_pp", by=0.03, fails_at=0.98),
            outcome("accuracy", "dapo", "self", relation=">=", by=0.03, fails_at=1.0),
        ),
        arms={a: ("ssrl_variant", {"algorithm": a}) for a in ("dapo", "ppo", "reinforce_pp")},
        regime="search",
        idea=("main.select", "main.credit*", "main.update*", "main.groups", "main.rollouts", "weights.*", "models.*"),
        because="groups are a better baseline than a critic or the batch, also for self-search",
    ),
}
