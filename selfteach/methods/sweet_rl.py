"""SWEET-RL (Zhou et al. 2025, arXiv 2503.15478): turns are judged by a critic that is told what the agent is not.

In training more is known than in play: the object that is sought, the reference solution. A critic that reads it learns
from the outcomes of whole episodes what each turn was worth, and the agent learns, by DPO on turns, from what the
critic prefers. The critic is a language model whose advantage is a log-ratio, so that nothing new has to be learned but
what is different.

    A(o, a, c) = mean over the tokens of turn a of log critic(a_l | c, o, a_<l) - log ref(a_l | c, o, a_<l)
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from ..core import (
    BadValue,
    Block,
    Claim,
    Example,
    Method,
    ModelContext,
    ModelRole,
    Pair,
    RewardContext,
    RolloutContext,
    RolloutGroup,
    RolloutRequest,
    Seq,
    Stage,
    Step,
    Task,
    Term,
    Token,
    Trajectory,
    Update,
    WeightSpec,
    block,
    mechanism,
    method,
    outcome,
    premise,
    provides,
)
from ..core.blocks import asks_engine, logged
from ..core.lazy import torch
from ..core.task import Ref
from ..credit.composers import by_key, per_trajectory
from ..credit.example_recipes import labels, segments_of
from ..curriculum.select import uniform
from ..objective import preference
from ..objective.likelihood import nll
from ..objective.loss_weights import token_mean
from ..objective.schedules import after
from ..objective.segments import turn_sums
from ..reward.answer import exact_match
from ..rollout.branching import Branching
from ..rollout.single import single

CRITIC, PREFERRED = "critic", "preferred"


@method(
    family="credit",
    paper="2503.15478",
    catalogue=342,
    ignores_reward="the policy learns from what the critic prefers, and the critic from the reward",
)
def sweet_rl(
    groups: int = 16,
    rollouts: int = 8,
    candidates: int = 4,
    tell: str = "object",
    informed: bool = True,
    by: Literal["turn", "episode"] = "turn",
    critic_beta: float = 0.1,
    critic_lr: float = 1e-3,
    critic_epochs: int = 4,
    critic_minibatches: int = 4,
    critic_warmup: int = 8,
    beta: float = 0.1,
    likelihood: float = 0.01,
) -> Method:
    """DPO on single turns, of which a critic with training-time information says which of several is better.

        critic:  -log sigmoid(critic_beta (sum_k A(o_k, a_k, c) of the better episode - the same of the worse))
        policy:  -log sigmoid(beta (log-ratio of the preferred turn - of the other)) + likelihood NLL(preferred turn)

    Zhou et al. 2025, equations 2 to 4, and the released scripts (means over tokens, both betas 0.1, 0.01). At each turn
    `candidates` turns are sampled (16 there), ranked by A; the preferred is a random one of the upper half, the other
    of the lower. c is the task's tag `tell`, or its answer, in front of the prompt; the policy never sees it. Chosen
    here: where the paper samples once, fits the critic, then the policy, every step samples from the present policy and
    the critic goes on learning; the policy begins after `critic_warmup` steps. The reference of both is the start. The
    scripts take one mean over all agent tokens of a trajectory, paper and we the sum of turns' means; in their ranking
    the reference does not see c, in the paper and here it does. informed=False: a critic that reads what the agent
    reads. by="episode": DPO on whole episodes by their rewards, in all steps, without a critic (the paper's baseline).
    """
    if candidates < 2:
        raise BadValue(f"sweet_rl: candidates must be at least 2, not {candidates}: a pair is made of two of them")
    reading = {} if informed else {"critic_logp_informed": "critic_logp", "ref_logp_informed": "ref_logp"}
    told = tell if informed else ""
    critic = Update(
        (CRITIC,),
        (Term(episode_preference(beta=critic_beta).reading(**reading), on=("episodes",)),),
        epochs=critic_epochs,
        minibatches=critic_minibatches,
        lr=critic_lr,
    )
    turns = Term(preference.dpo(beta=beta), on=("chosen", "rejected"))
    close = (Term(nll(), on=("chosen",), loss_weights=token_mean(), coef=likelihood),) if likelihood else ()
    whole = Method(
        stages=(
            Stage(
                select=uniform(),
                programs={"main": single()},
                reward=(exact_match(),),
                credit=(better_episodes(tell=""),),
                updates=(Update(("policy",), (Term(preference.dpo(beta=beta), on=("episodes",)),)),),
                groups=groups,
                rollouts=rollouts,
            ),
        ),
        decode={"main": single()},
    )
    if by == "episode":
        return whole
    return whole.replace(
        programs={"main": with_candidates(play=single(), candidates=candidates, tell=told)},
        credit=(better_episodes(tell=told), preferred_turns()),
        updates=(critic, Update(("policy",), (turns, *close), when=after(step=critic_warmup))),
    ).override(weights={CRITIC: WeightSpec("start")}, models={CRITIC: ModelRole((CRITIC,))})


def information(task: Task, tell: str) -> str:
    """What the critic is told of a task, a line; "" for no tag at all."""
    return f"{task.tags.get(tell, task.answer[0] if task.answer else '')}\n" if tell else ""


@block
@asks_engine("logp")
async def with_candidates(
    *,
    request: RolloutRequest,
    rollout: RolloutContext,
    play: Block | None = None,
    candidates: int = 4,
    tell: str = "object",
    critic: str = CRITIC,
    reference: str = "ref",
) -> Any:
    """A program in which the policy's every turn is sampled `candidates` times, and one of the upper half is noted as
    preferred to one of the lower.

    It goes on from the first sample, so that episodes are the policy's own; limits of an episode count all samples.
    play: None: a single turn. Notes, at the two turns: `preferred`, 1 and -1; none where they say the same.
    """
    told = information(request.task, tell)
    judges = [rollout.model_role(name) for name in (critic, reference)]

    async def choose(context: ModelContext, n: int, forks: Sequence[ModelContext]) -> None:
        before = context.ids
        tails = [f.ids[len(before) :] for f in forks]
        asked = [judge.begin(told if told else before) for judge in judges]
        for judge in asked if told else ():
            judge.append(before)
        known = await asyncio.gather(*(j.score(t) for t in tails for j in asked))
        logp = [float(np.mean(found["logp"])) for found in known]
        order = np.argsort([-(logp[2 * i] - logp[2 * i + 1]) for i in range(len(tails))], kind="stable")
        draw, half = rollout.random(f"turn {n}"), len(order) // 2
        best, worst = int(draw.choice(order[:half])), int(draw.choice(order[len(order) - half :]))
        if not np.array_equal(tails[best], tails[worst]):
            forks[best].note(**{PREFERRED: 1.0})
            forks[worst].note(**{PREFERRED: -1.0})

    return await (play or single())(request=request, rollout=Branching(rollout, candidates, choose))


@block
@provides("informed")
def better_episodes(*, groups: Sequence[RolloutGroup], context: RewardContext, tell: str = "object") -> list[Example]:
    """`per_trajectory` in the stream `episodes`, each preferred to all of its group with a smaller reward.

    With the view `informed`: after what the critic is told (none where `tell` is "").
    """
    examples = per_trajectory(groups=groups, loss_stream="episodes", model_role="policy")
    rewards = [float(np.sum(e.given["reward"][1])) for e in examples]
    known: Mapping[str, tuple[Task, Trajectory]] = {
        t.leaf.name: (g.request.task, t) for g in groups for e in g.episodes for t in e.trajectories
    }
    for rows in by_key(examples).values():
        for i in rows:
            worse = tuple(j for j in rows if rewards[j] < rewards[i])
            examples[i] = replace(examples[i], preferred_over=worse)
    if not tell:
        return examples
    for i, example in enumerate(examples):
        task, t = known[example.name]
        path = context.path(t.leaf)
        told = context.tokenizer.render(information(task, tell))
        prefix = (*told.tolist(), *path.ids[: int(np.argmax(path.action_mask))].tolist())
        examples[i] = replace(example, views={"informed": prefix})
    return examples


@block
def preferred_turns(*, groups: Sequence[RolloutGroup]) -> list[Example]:
    """The noted turns (`with_candidates`) in pairs: streams `chosen` and `rejected`, all before them context."""
    out: list[Example] = []
    for group, episode in [(g, e) for g in groups for e in g.episodes]:
        tree, pairs = episode.tree, dict[tuple[int, int], dict[float, int]]()
        for node in tree.notes:
            if (side := tree.number(node, PREFERRED)) is not None:
                pairs.setdefault((tree.parent[node], tree.cut[node]), {})[side] = node
        for place, pair in pairs.items():
            if len(pair) < 2:
                continue
            for side, stream in ((1.0, "chosen"), (-1.0, "rejected")):
                t = Trajectory(Ref(episode.id, pair[side]), "policy", f"{group.key}/{place[0]}", stream)
                segments, _ = segments_of(episode, t, stream, (), 1)
                name, over = f"{episode.id}:{pair[side]}/{stream}", (len(out) + 1,) if side > 0 else ()
                out.append(Example(segments, "policy", t.key, name, labels=labels(group, stream), preferred_over=over))
    return out


def has_right(
    critic_logp_informed: Any, ref_logp_informed: Any, step: Any, seq: Any, group: Any, win: Any, lose: Any
) -> Any:
    """bool[P]: whether the critic gives the better episode the larger sum."""
    h = turn_sums(critic_logp_informed - ref_logp_informed, step, seq, len(group))
    return h[win] > h[lose]


@block
@logged("pair_accuracy", has_right)
def episode_preference(
    *,
    critic_logp_informed: Token,
    ref_logp_informed: Token,
    step: Token,
    seq: Step,
    group: Seq,
    win: Pair,
    lose: Pair,
    beta: float = 0.1,
) -> Pair:
    """Bradley-Terry on episodes, whose score is the sum of their turns' advantages (equation 2).

        l = -log sigmoid(beta (h(win) - h(lose))),   h = sum over turns of the mean over tokens of critic - ref

    Logs the share of pairs that the critic has right. Args: log-probabilities f[N] after what the critic is told; step
    i64[N]; seq i64[K] of each turn; group i64[S]; win, lose i64[P]. Returns: l f[P]. Scope: pair.

    Turns of two tokens and of one against one turn: h = (1 + 3) / 2 + 1 = 3 and 1; -log sigmoid(2)

    >>> at = {"step": torch.tensor([0, 0, 1, 2]), "seq": torch.tensor([0, 0, 1]), "group": torch.tensor([0, 0])}
    >>> given = {"critic_logp_informed": torch.tensor([1.0, 3.0, 1.0, 1.0]), "ref_logp_informed": torch.zeros(4), **at}
    >>> episode_preference(**given, win=torch.tensor([0]), lose=torch.tensor([1]), beta=1.0)
    tensor([0.1269])
    """
    h = turn_sums(critic_logp_informed - ref_logp_informed, step, seq, len(group))
    return -torch.nn.functional.logsigmoid(beta * (h[win] - h[lose]))


ONCE = {"critic_epochs": 1, "critic_minibatches": 16}  # so that what the critic says of a pair is not what it remembers

sweet_rl.claim = Claim(
    (
        premise("accuracy", "grpo", "start", by=0.1, fails_at=0.95),  # there is something to learn
        premise("late:critic/pair_accuracy", "uninformed", 0.9, relation="<", fails_at=0.95),  # hard without the object
        mechanism("late:critic/pair_accuracy", "self", 0.5, by=0.1, fails_at=0.5),  # the critic orders episodes
        mechanism("late:critic/pair_accuracy", "self", "uninformed", by=0.02, fails_at=0.99),  # better with it
        outcome("accuracy", "self", "start", by=0.1, fails_at=0.95),
        outcome("accuracy", "self", "uninformed", by=0.03, fails_at=0.98),
        outcome("accuracy", "self", "whole", by=0.03, fails_at=0.98),
    ),
    arms={
        "grpo": "grpo",
        "uninformed": ("sweet_rl", {"informed": False, **ONCE}),
        "whole": ("sweet_rl", {"by": "episode"}),  # without a critic to wait for, it trains its policy in all steps
    },
    args=ONCE,
    regime="twenty_questions",
    settings={"steps": 40, "eval_every": 5},
    idea=("main.*", "weights*", "models*", "decode*"),
    because="who knows the object can say which question was a good one, and an agent learns that without knowing it",
)
