"""ASearcher, long search episodes by asynchronous RL on synthesised questions (Gao et al. 2025, arXiv 2508.07976).

Episodes may have dozens of turns, since nobody waits for the longest: rollouts run ahead of learning, as in AReaL. The
questions are made by an agent that edits simple ones: a name gives way to a fact that leads to it (inject), or to a
vaguer description (fuzz), until the model without tools fails.

Where a context grows too long the agent can sum it up and go on from that (`summarise`).

    R = F1 where every turn is well formed, else 0
    A = (R - mean of the group), whitened over the batch; groups of equal rewards are left out
"""

from __future__ import annotations

import numpy as np

from ..core import (
    Claim,
    Column,
    Home,
    Method,
    RolloutGroup,
    RolloutRequest,
    Seq,
    TaskSource,
    block,
    mechanism,
    method,
    outcome,
    premise,
    stateful,
)
from ..core.random_keys import generator
from ..credit import segments as seg
from ..credit.advantages import center, whiten
from ..credit.composers import per_trajectory
from ..credit.keep import drop_zero_variance_groups
from ..curriculum.select import first_task_index, is_answered
from ..reward.answer import exact_match
from ..reward.combine import over_episode
from ..reward.overlap import formed_f1
from ..rollout.search import closed_book, search_agent, self_search
from .areal import areal

EDITED = {"hops": (1,), "edits": 3, "ways": (0.3, 0.0, 0.3, 0.4)}


@method(family="system", paper="2508.07976", catalogue=8, home=Home("fact_graph", 40, EDITED))
def asearcher(
    groups: int = 16,
    rollouts: int = 16,
    turns: int = 32,
    tested: int = 32,
    synthesis: bool = True,
    checks: int = 8,
    clip: float = 0.4,
    weight_cap: float = 5.0,
    minibatches: int = 1,
    decoupled: bool = True,
    summarise: int = 0,
) -> Method:
    """AReaL's asynchronous GRPO of a search agent with a long limit of turns, on questions that were made harder.

        R = F1 [form];   A = whiten(R - group mean);   loss of `areal` with clip 0.4

    Gao et al. 2025, sections 3 and 4, and the released configuration of the 7B model (128 questions of 16 episodes, 32
    turns, versions at most 4 behind, no KL). `synthesis`: a question is taken at some number of edits, drawn evenly,
    and edited on as long as any of `checks` answers without a search is right; checks=0: it is taken as drawn.
    synthesis=False: questions before any edit. The edits, and that they leave one answer, are the task's
    (`fact_graph`, option `edits`), where theirs are a language model's; who fails without tools is there a stronger
    model, here the policy as it is. A task without edits gives its questions as they are.

    A turn is a search or the answer, and none comes after the last for it. `tested`: the turns that an agent is
    evaluated with, however few it learned with.

    summarise: a context of more tokens is summed up by the policy, which goes on from the question and that; each
    context, with the summary that ends it, is an example of its own, has the episode's reward, and is compared with the
    mean over the group's episodes, however many contexts they have. 0: one context, whole. In theirs a page of 25,000
    characters is cut to 100 once the agent has written what it takes from it, which makes a new example likewise; a
    result here is a sentence, so what grows is the history.

    Rollouts run 4 versions ahead unless the run's `--staleness` says otherwise. The share of prompts that let it call a
    question invalid is left out, as is the reward of -0.5 where it does so otherwise.
    """
    engine = search_agent(turns=turns - 1, summarise=summarise)  # and one turn for the answer
    versions = edited_questions(synthesis=synthesis, checks=checks)
    made = areal(
        groups=groups,
        rollouts=rollouts,
        clip=clip,
        weight_cap=weight_cap,
        minibatches=minibatches,
        decoupled=decoupled,
    )
    return made.replace(
        select=versions,
        programs={"main": engine, **({"closed": closed_book()} if synthesis and checks else {})},
        reward=(over_episode(reward=formed_f1()) if summarise else formed_f1(),),
        credit=(
            per_trajectory(),
            drop_zero_variance_groups(),
            center_episodes() if summarise else center(),
            whiten(),
        ),
    ).override(decode={"main": search_agent(turns=tested - 1, summarise=summarise), "self": self_search()})


@block
def center_episodes(*, reward: Seq, episode: Seq, group: Seq) -> dict[str, Column]:
    """Advantage as the reward less the mean over the episodes of the group, of which each may be several sequences.

        A_i = R_i - sum_j (R_j / n_j) / sum_j (1 / n_j)        n_j: the sequences of j's episode

    Args: reward f64[S]; episode, group i64[S]. Returns: adv f64[S]; exactly 0 where all of a group are equal.
    Equals: `center` where every episode is one sequence. Scope: group.

    >>> center_episodes(reward=[1.0, 1.0, 0.0], episode=[0, 0, 1], group=[0, 0, 0])["adv"].values
    array([ 0.5,  0.5, -0.5])
    """
    reward, n = np.asarray(reward, np.float64), seg.count(group)
    share = 1.0 / np.bincount(episode)[episode]
    mean = seg.total(reward * share, group, n) / seg.total(share, group, n)
    return {"adv": Column("seq", np.where(seg.same(reward, group, n)[group], 0.0, reward - mean[group]))}


@block
@stateful(int)
def edited_questions(
    *,
    n: int,
    rollouts: int,
    finished_rounds: list[list[RolloutGroup]],
    source: TaskSource,
    seed: int,
    state: int,
    synthesis: bool = True,
    checks: int = 8,
    program: str = "closed",
) -> tuple[list[RolloutRequest], int]:
    """One version of each of the next `n` questions of a task that edits them (its option `edits`).

    A round asks `checks` episodes of `program` about a version of each question, the first drawn, and the next round
    about the next version where one of them was right. What none was right about is asked `rollouts` times, in the last
    round, and what there is no further version of. synthesis=False: the versions before any edit, and no checks.
    """
    versions = int(source.task_options.get("edits", 0)) + 1
    first = (first_task_index(seed) + state) * versions
    if finished_rounds and finished_rounds[-1][0].request.program != program:
        return [], state
    if not finished_rounds:
        drawn = [int(generator(seed, "edits", state + i).integers(versions)) if synthesis else 0 for i in range(n)]
        if synthesis and checks:
            return [_check(source, first + i * versions + at, checks, program) for i, at in enumerate(drawn)], state
        return [RolloutRequest(source.train(first + i * versions + at), rollouts) for i, at in enumerate(drawn)], (
            state + n
        )
    known = [g for g in finished_rounds[-1] if is_answered(g, exact_match())]
    further = [at + 1 for g in known if ((at := int(g.request.help["index"])) + 1) % versions]
    if further:
        return [_check(source, at, checks, program) for at in further], state
    latest = dict[int, RolloutGroup]()  # question -> its last version that was checked
    for group in (g for finished in finished_rounds for g in finished):
        latest[int(group.request.help["index"]) // versions] = group
    return [RolloutRequest(latest[i].request.task, rollouts) for i in sorted(latest)], state + n


def _check(source: TaskSource, index: int, checks: int, program: str) -> RolloutRequest:
    return RolloutRequest(source.train(index), checks, program, help={"index": index})


FEW = {"checks": 0, "turns": 8, "tested": 8, "rollouts": 8}  # no check of memory, which holds nothing here

asearcher.claim = Claim(
    (
        # some questions take more than the short arm's two searches, also of an agent that may search as long as self
        premise("accuracy", "short", 0.9, relation="<", fails_at=0.95),
        premise("accuracy", "self", "start", by=0.2, fails_at=0.85),
        mechanism("mean:reward/facts", "self", "seeds", by=0.5, fails_at=3.6),
        mechanism("calls", "self", "short", by=0.2, fails_at=8.0),  # longer episodes are learned by long ones
        outcome("accuracy", "self", "short", by=0.05, fails_at=0.96),
        outcome("accuracy", "self", "seeds", by=0.05, fails_at=0.96),
        outcome("accuracy", "self", "waiting", by=0.04, relation=">=", fails_at=1.0),
    ),
    arms={
        "short": ("asearcher", {**FEW, "turns": 3}),
        "seeds": ("asearcher", {**FEW, "synthesis": False}),
        "waiting": ("asearcher", FEW, {"staleness": 0}),
    },
    args=FEW,
    regime="search_edited_unheld",
    idea=("main.program", "main.select"),
    differs={"settings.staleness": "the waiting arm learns from fresh samples, which stale ones are to match"},
    first_seed=300,
    corrected=(
        "on seeds 200 to 207 the model had learned by heart, from demonstrations, what the engine finds, a turn after "
        "the last let every episode answer, and agents that learned with two searches were tested with two: mechanism "
        "shown"
    ),
    because="what is asked decides how long an agent learns to search, if its episodes may be that long",
)
