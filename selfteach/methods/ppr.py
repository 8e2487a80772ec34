"""PPR, principle process reward with hybrid reward normalisation (Xu et al. 2025, arXiv 2509.25598).

PPO for a search agent whose turns are scored by principles. Process and outcome reward are centred and added at every
turn, so that a turn that looks good in an answer that is wrong does not pay.

    r_t = (r_p,t - 1/2) + (r_o - 1/2) = r_p,t + r_o - 1    at the last token of search t
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
    RewardContext,
    RolloutGroup,
    Score,
    Scores,
    Seq,
    Token,
    block,
    mechanism,
    method,
    outcome,
    premise,
    provides,
)
from ..core.answers import normalise
from ..credit.advantages import whiten
from ..credit.composers import per_trajectory
from ..credit.returns import at_last_token, gae_shaped
from ..reward.agent_record import Search, searches_of
from ..reward.answer import exact_match
from ..rollout.search import RETRY, search_agent, self_search
from .ppo import ppo

HOPS = {"ways": (0.1, 0.0, 0.15, 0.15, 0.25, 0.35), "hops": (2, 3)}
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
    """PPO on the outcome and on scores of every search by principles, both centred before they are added.

        r_t = r_p,t + r_o - 1 at the last token of search t,   r_T = r_o at the last token     hybrid="renorm"
        r_t = r_p,t                                            the same                        hybrid="sum"
        r_t = 0                                                the same                        hybrid="outcome"

    Xu et al. 2025, from second-hand descriptions. A good search before a right answer is worth 1, a good one before a
    wrong answer or a bad one before a right answer 0, a bad one before a wrong answer -1; the sum pays for every good
    search whatever comes of it. (In a right answer every further good search still pays, so that it is no bound on
    their number.) r_p is the share of the principles that apply to a search which it keeps; theirs are weighed by a
    model of 8B parameters, here each is a rule that knows no gold answer (`principles`): that it has a thought and a
    query of one line, that its words come from the question or from what was found, that it was not asked before, and,
    after the first, that it goes on from what was found. The outcome is exact match.
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
    """Exact match at the end of an answer, and at the end of each search the share of the principles that it keeps.

    Columns: `reward`, `step_value`. Parts: answer; searches; where there are any, process, their mean score.
    """
    task, out = group.request.task, Scores({"reward": {}, "step_value": {}})
    question = task.prompt if isinstance(task.prompt, str) else str(task.prompt[-1]["content"])
    for episode, t in group.learned:
        searches = searches_of(episode, t, context)
        kept = [principles(searches[:n], search, question) for n, search in enumerate(searches)]
        out["step_value"].update({s.at: Score(value) for s, value in zip(searches, kept, strict=True)})
        right = exact_match(answer=episode.answer, task=task)
        parts = {"answer": right.value or 0.0, "searches": float(len(searches))}
        if kept:
            parts["process"] = sum(kept) / len(kept)
        out["reward"][t.leaf] = Score(right.value, parts, right.why)
    return out


def principles(before: Sequence[Search], search: Search, question: str) -> float:
    """The share of the principles that apply to a search which it keeps: form, ground, novelty, progress.

    >>> from selfteach.core import Ref
    >>> first = Search("<think>home.</think><search>home of Ann</search>", "home of Ann", "it is Ulm.", Ref("e", 0))
    >>> ask = "what is the mayor of the home of Ann?"
    >>> principles([], first, ask), principles([first], first, ask)  # again: not new, and nothing that was found
    (1.0, 0.5)
    """
    asked, found = _words(search.query), set[str]().union(*(_words(s.found) for s in before))
    form = re.search(r"<think>[^<]+</think>.*<search>[^<\n]+</search>", search.said, re.DOTALL) is not None
    verdicts = [
        form,
        bool(asked) and asked <= _words(question) | found,
        all(asked != _words(s.query) for s in before),
        *([bool(asked & found - _words(question))] if before else []),
    ]
    return sum(verdicts) / len(verdicts)


def _words(text: str) -> set[str]:
    return set(normalise(text).split())


@block
@provides("token_reward")
def hybrid_rewards(
    *, reward: Seq, step_value: Token, seq: Token, hybrid: Literal["renorm", "sum", "outcome"] = "renorm"
) -> dict[str, Column]:
    """A reward for each token: the outcome at the last one, and at the ends of steps their scores.

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
    idea=("main.credit",),
    because="a turn's score is tied to what came of it, so that turns which only look good are not worth more of them",
)
