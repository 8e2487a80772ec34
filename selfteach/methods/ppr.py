"""PPR, principle process reward with hybrid reward normalisation (Xu et al. 2025, arXiv 2509.25598).

PPO for a search agent whose turns are scored by principles. Process and outcome reward are centred and added at every
turn, so that a turn that looks good in an answer that is wrong does not pay.

    r_t = (r_p,t - 1/2) + (r_o - 1/2) = r_p,t + r_o - 1    at the last token of turn t, which is not the last
    r_T = r_o                                              at the last token
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import numpy as np

from ..core import (
    Claim,
    Column,
    Home,
    Method,
    Ref,
    RewardContext,
    RolloutGroup,
    Score,
    Scores,
    Seq,
    Task,
    Token,
    block,
    mechanism,
    method,
    outcome,
    premise,
    provides,
)
from ..core.search_record import Search, facts_of, searches_of
from ..credit.advantages import whiten
from ..credit.composers import per_trajectory
from ..credit.returns import at_last_token, gae_shaped
from ..reward.agent_record import sub_question
from ..reward.answer import exact_match
from ..rollout.search import RETRY, search_agent, self_search
from .ppo import ppo

HOPS = {"ways": (0.1, 0.0, 0.15, 0.15, 0.25, 0.35), "hops": (2, 3)}
IN_TAGS = re.compile(r"<(think|search|information|answer)>.*?</\1>", re.DOTALL)
Hybrid = Literal["renorm", "sum", "outcome"]


@method(family="search", paper="2509.25598", catalogue=178, home=Home("factworld", 40, HOPS))
def ppr(
    groups: int = 128,
    rollouts: int = 1,
    turns: int = 5,
    hybrid: Hybrid = "renorm",
    critic_lr: float = 1e-3,
    minibatches: int = 4,
    critic_epochs: int = 1,
) -> Method:
    """PPO on the outcome and on scores of every turn by principles, both centred before they are added.

        r_t = r_p,t + r_o - 1 at the last token of turn t,   r_T = r_o at the last token       hybrid="renorm"
        r_t = r_p,t                                          the same                          hybrid="sum"
        r_t = 0                                              the same                          hybrid="outcome"

    Xu et al. 2025, from their code (renorm_beta = 1). A good search before a right answer is worth 1, a good one before
    a wrong answer or a bad one before a right answer 0, a bad one before a wrong answer -1; the sum pays for every good
    search whatever comes of it. (In a right answer every search that keeps a principle still pays, so that it is no
    bound on their number.) Every turn but the last counts: one with neither a query nor an answer has r_p = 0.

    r_p is there what a model says that reads the question, the turns so far and this turn with its results: a score of
    principles that it makes up, over the most that it could be. Foremost are that right information is taken from the
    results, that the query is right, and that to search or not is; any text outside the tags makes it 0. Here these are
    exact rules, a reading (`principles`), which know the task's sub-questions and facts, as theirs does not. Settings
    there: a KL of 0.001 in the reward, none here; two minibatches; two turns before the last. Their reward stands after
    the results, here at the end of the query, the same without a discount. The outcome is exact match.
    """
    engine = search_agent(turns=turns, invalid=RETRY)
    base = ppo(
        groups=groups, rollouts=rollouts, critic_lr=critic_lr, minibatches=minibatches, critic_epochs=critic_epochs
    )
    return base.replace(
        programs={"main": engine},
        reward=(outcome_and_principles(),),
        credit=(per_trajectory(tokens=("step_value",)), hybrid_rewards(hybrid=hybrid), gae_shaped(lam=1.0), whiten()),
    ).override(decode={"search": engine, "self": self_search()})


@block
@provides("step_value")
def outcome_and_principles(*, group: RolloutGroup, context: RewardContext) -> Scores:
    """Exact match at the end of an answer, and at the end of each turn before the last what principles say of it.

    A turn without a search has 0. Columns: `reward`, `step_value`. Parts: answer; searches; where there is a turn
    before the last, process, the mean score of these.
    """
    task, out = group.request.task, Scores({"reward": {}, "step_value": {}})
    for episode, t in group.learned:
        searches, tree = searches_of(episode, t, context), episode.tree
        kept = {s.at: principles(searches[:n], s, task) for n, s in enumerate(searches)}
        turns = [Ref(episode.id, node) for node, _ in tree.path(*t.leaf[1:]) if tree.sampling[node] >= 0]
        values = [kept.get(at, 0.0) for at in turns[:-1]]
        out["step_value"].update({at: Score(value) for at, value in zip(turns[:-1], values, strict=True)})
        right = exact_match(answer=episode.answer, task=task)
        parts = {"answer": right.value or 0.0, "searches": float(len(searches))}
        if values:
            parts["process"] = sum(values) / len(values)
        out["reward"][t.leaf] = Score(right.value, parts, right.why)
    return out


def principles(before: Sequence[Search], search: Search, task: Task) -> float:
    """The share of three principles that a search keeps, each of which takes the one before; 0 for text outside tags.

        query        it asks one of the task's sub-questions
        decision     it was needed: the fact that it asks for was not found before, nor asked for in the same words
        information  the results state that fact

    A good search has 1, one to which the engine gives something else 2/3, one that was not needed 1/3, any other 0.

    >>> from selfteach.core import Ref
    >>> ann = Task("t", "", tags={"keywords": (("home of Ann", "Ann home"),), "chain": ("the home of Ann is Ulm.",)})
    >>> said = "<think>home.</think><search>home of Ann</search>"
    >>> first = Search(said, "home of Ann", "the home of Ann is Ulm.", Ref("e", 0))
    >>> principles([], first, ann), principles([first], first, ann)
    (1.0, 0.3333333333333333)
    >>> principles([], first._replace(said="x" + said), ann)
    0.0
    """
    turn = search.said.rpartition("</search>")[0] + "</search>"  # the last token may extend into the results
    asks = sub_question(search.query, task)
    if IN_TAGS.sub("", turn).strip() or asks is None:
        return 0.0
    fact = facts_of(task)[asks]
    needed = all(fact not in s.found and search.query != s.query for s in before)
    return (1 + needed + (needed and fact in search.found)) / 3


@block
@provides("token_reward")
def hybrid_rewards(
    *, reward: Seq, step_value: Token, seq: Token, hybrid: Literal["renorm", "sum", "outcome"] = "renorm"
) -> dict[str, Column]:
    """A reward for each token: the outcome at the last one, and at the ends of turns their scores.

        renorm   r_t = v_t + R - 1, both centred by 1/2
        sum      r_t = v_t
        outcome  r_t = 0

    Args: reward f64[S]; step_value f64[N], NaN where no step ends; seq i64[N]. Returns: token_reward f64[N].

    >>> rows = dict(reward=[0.0], step_value=[0.75, np.nan], seq=[0, 0])
    >>> hybrid_rewards(**rows)["token_reward"].values  # a good step, and yet a wrong answer
    array([-0.25,  0.  ])
    """
    seq, value = np.asarray(seq), np.asarray(step_value, np.float64)
    centred = value + np.asarray(reward, np.float64)[seq] - 1.0
    steps = {"renorm": centred, "sum": value, "outcome": np.zeros(len(value))}[hybrid]
    return {"token_reward": Column("token", np.nan_to_num(steps, nan=0.0) + at_last_token(reward, seq))}


WHOLE = {"minibatches": 1, "critic_epochs": 4}  # one update of the policy to a batch, as in all regimes

ppr.claim = Claim(
    (
        # scores that add up are farmed: more searches than the outcome alone teaches
        premise("late:reward/searches", "sum", "late:reward/searches of outcome", by=0.3, fails_at=0.0),
        mechanism("late:reward/searches", "self", "sum", by=0.3, relation="<", fails_at=0.0),
        outcome("accuracy", "self", "sum", by=0.05, fails_at=0.96),
        outcome("accuracy", "self", "outcome", by=0.03, fails_at=0.98),
        outcome("auc", "self", "outcome", by=0.02, fails_at=0.99),
    ),
    arms={
        "sum": ("ppr", {"hybrid": "sum", **WHOLE}),
        "outcome": ("ppr", {"hybrid": "outcome", **WHOLE}),
    },
    args=WHOLE,
    regime="search_hops",
    first_seed=300,
    corrected=(
        "on seeds 200 to 207 principles saw neither what a search found nor whether it was needed, text outside the "
        "tags cost one of them, and turns without a query had no reward: does not hold here"
    ),
    idea=("main.credit",),
    because="a turn's score is tied to what came of it, so that turns which only look good are not worth more of them",
)
