"""DeepDive, deep search agents from knowledge graphs and multi-turn RL (Lu et al. 2025, arXiv 2509.10446).

Hard questions from walks over a knowledge graph, whose names are blurred; GRPO over whole episodes with a reward that
is all or nothing, where an episode ends at its first fault of form; and of many answers the one that took fewest calls.

    R = 1 if every step is well formed and the answer is right, else 0
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from typing import Any, Literal

from ..core import (
    Claim,
    Home,
    Method,
    ModelContext,
    RewardContext,
    RolloutContext,
    RolloutGroup,
    RolloutRequest,
    Score,
    Scores,
    Term,
    Turn,
    Update,
    block,
    mechanism,
    method,
    outcome,
    premise,
)
from ..core.answers import canonical, normalise
from ..core.search_record import own_text, pieces_of, searches_of
from ..objective.kl import kl
from ..objective.loss_weights import token_mean
from ..objective.policy import clipped_ratio
from ..reward.agent_record import fault
from ..reward.answer import exact_match
from ..rollout.search import append_information, search_agent, search_on, self_search
from .grpo import grpo

GRAPH = {"hops": (2, 3), "ways": (0.3, 0.0, 0.3, 0.4)}


@method(family="search", paper="2509.10446", catalogue=225, home=Home("fact_graph", 40, GRAPH))
def deepdive(
    groups: int = 16,
    rollouts: int = 8,
    turns: int = 32,
    strict: bool = True,
    redundancy: float = 0.0,
    candidates: int = 8,
    low: float = 0.2,
    high: float = 0.28,
    beta: float = 0.0,
) -> Method:
    """GRPO on episodes of many searches, rewarded only where every step is well formed and the answer is right.

        R = 1[form] 1[answer] - redundancy S,   S = mean over pairs of queries of the share of their words in both

    Lu et al. 2025, section 3.2, and the released scripts: 16 questions of 8 episodes, clip 0.2 and 0.28, the mean over
    tokens, no KL; a turn that is neither a query nor an answer ends the episode (theirs may have 64 turns). Form is
    here that each turn has a closed thought and one query or answer. strict=False: the answer alone, and faults of form
    do not count. S is the penalty of their later version, of weight 0.1 there, which wrong answers pay too; 0 leaves it
    out, as the released reward does. Their questions are walks of five to nine steps with blurred attributes
    that a strong model fails; the task `fact_graph` grows such walks of any length. The decoders sample `candidates`
    answers: `fewest` takes that of fewest calls, which the paper finds better than the vote, `vote`.
    """
    terms = (
        Term(clipped_ratio(low=low, high=high), loss_weights=token_mean()),
        *((Term(kl(), loss_weights=token_mean(), coef=beta),) if beta else ()),
    )
    engine = search_agent(turns=turns)
    several = several_answers(turns=turns, candidates=candidates)
    return (
        grpo(groups=groups, rollouts=rollouts)
        .replace(
            programs={"main": engine},
            reward=(all_or_nothing(strict=strict, redundancy=redundancy),),
            updates=(Update(("policy",), terms),),
        )
        .override(
            decode={
                "fewest": several,
                "vote": several.replace(choose="vote"),
                "self": self_search(),
            }
        )
    )


@block
def all_or_nothing(
    *, group: RolloutGroup, context: RewardContext, strict: bool = True, redundancy: float = 0.0
) -> Scores:
    """1 where every step is well formed and the answer is right, else 0, less what repeated queries cost.

    Parts: answer, format, searches; where there are two searches, alike: how alike its queries are.
    """
    task, out = group.request.task, Scores({"reward": {}})
    for episode, t in group.learned:
        pieces = pieces_of(context.path(t.leaf), context)
        queries = [s.query for s in searches_of(episode, t, context)]
        said = own_text(pieces)
        why = fault(pieces) or ("" if said.count("<think>") > len(queries) else "a step without a thought")
        right = exact_match(answer=episode.answer, task=task).value or 0.0
        parts = {"answer": right, "format": float(not why), "searches": float(len(queries))}
        likeness = alike(queries)
        if len(queries) > 1:
            parts["alike"] = likeness
        value = 0.0 if strict and why else right
        out["reward"][t.leaf] = Score(value - redundancy * likeness, parts, why)
    return out


def alike(queries: Sequence[str]) -> float:
    """The mean over pairs of queries of the share of their words that both have; 0 for fewer than two.

    >>> alike(["home of Ann", "home Ann"]), alike(["home of Ann"])  # of three words two
    (0.6666666666666666, 0.0)
    """
    words = [set(normalise(q).split()) for q in queries]
    shares = [len(a & b) / max(len(a | b), 1) for a, b in combinations(words, 2)]
    return sum(shares) / len(shares) if shares else 0.0


@block
async def several_answers(
    *,
    request: RolloutRequest,
    rollout: RolloutContext,
    answerer: str = "search",
    turns: int = 32,
    candidates: int = 8,
    choose: Literal["fewest", "vote"] = "fewest",
) -> str | None:
    """One of several independent answers: that of fewest calls among those that answer at all, or the most frequent.

    Of answers that took as many calls, or have as many votes, the first.
    """
    calls = [0] * candidates

    async def attempt(n: int) -> str | None:
        context = rollout.policy.begin(request.task.prompt)

        async def answer_query(context: ModelContext, turn: Turn) -> None:
            calls[n] += 1
            await append_information(rollout, context, turn, answerer)

        answer = await search_on(context, turns, "", answer_query)
        context.close()
        return answer

    answers = await asyncio.gather(*(attempt(n) for n in range(candidates)))
    given = [(n, a) for n, a in enumerate(answers) if a is not None]
    if not given:
        return None
    if choose == "fewest":
        return min(given, key=lambda one: calls[one[0]])[1]
    votes = Counter[Any](canonical(a) for _, a in given)
    return max(given, key=lambda one: votes[canonical(one[1])])[1]


deepdive.claim = Claim(
    (
        premise("early:reward/format", "lenient", 0.97, relation="<", fails_at=0.99),  # form is not always right
        # and comes to be so sooner. In the end answers alone teach it as well, where the paper's stagnates without.
        mechanism("mean:reward/format", "self", "lenient", by=0.01, fails_at=0.98),
        outcome("accuracy", "self", "start", by=0.2, fails_at=0.85),
        outcome("accuracy", "self", "lenient", by=0.03, relation=">=", fails_at=1.0),
        outcome("accuracy+fewest", "self", "accuracy+vote of self", by=0.02, relation=">=", fails_at=1.0),
        outcome("calls", "frugal", "self", by=0.1, relation="<", scale="ratio", fails_at=0.0),
    ),
    arms={
        "lenient": ("deepdive", {"strict": False}),
        "frugal": ("deepdive", {"redundancy": 0.1}),
    },
    regime="search_hops",
    settings={"eval_every": 12, "final_eval_decoder_samples": 2},
    idea=("main.reward",),
    because="a reward that neither form nor answer earns alone leaves nothing to be had but both",
)
