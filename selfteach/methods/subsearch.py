"""SubSearch, intermediate rewards for guided reasoning in complex retrieval (Petcu et al. 2026, arXiv 2604.07415).

Inside one search the agent may ask several sub-queries, divided by ##, each of which is answered by itself. Beside the
outcome it is paid for how well it divided the question and for how well the results answer the sub-queries, both
measured without any judge.

    R = outcome + split S + answerable A
    S = cos(question, mean of sub-queries) - mean cos of two sub-queries      coverage less redundancy
    A = mean over sub-queries of the best cos with a document that it found
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from itertools import combinations

from ..core import (
    Claim,
    Home,
    Method,
    RewardContext,
    RolloutContext,
    RolloutGroup,
    RolloutRequest,
    Score,
    Scores,
    block,
    mechanism,
    method,
    outcome,
    premise,
)
from ..core.answers import normalise
from ..core.tagged_text import SPLIT
from ..reward.agent_record import Search, documents_of, fault, own_text, pieces_of, searches_of, sub_question
from ..reward.answer import exact_match, gold_answers
from ..rollout.search import RETRY, search_agent, self_search
from .search_r1 import search_r1

PARTS = {"hops": (1,), "parts": 2, "ways": (0.1, 0.1, 0.4, 0.4)}
AT_MOST = 4  # sub-queries of one search that are answered


@method(family="search", paper="2604.07415", catalogue=58, home=Home("fact_graph", 40, PARTS))
def subsearch(
    groups: int = 48,
    rollouts: int = 5,
    turns: int = 4,
    split: float = 0.2,
    answerable: float = 0.2,
    structure: float = 0.2,
    retrieved: float = 0.1,
    unformed: float = 0.1,
    beta: float = 0.001,
) -> Method:
    """Search-R1 with several sub-queries to a search, and intrinsic rewards for dividing and for being answerable.

        R = outcome + split S + answerable A

    Petcu et al. 2026. Outcome, as in the released code (Search-R1's structured reward): 1 for a right answer of right
    form, 1 - structure of wrong form; for a wrong answer of right form `structure`, and `retrieved` more where a gold
    answer was found; else `unformed`; 0 without an answer of wrong form. The formulas of S and A are a reading of what
    their abstract names splittability and answerability, with bags of words in place of a sentence encoder; each is a
    mean over the searches of an episode, 0 without any, and their weights are chosen. split=0 and answerable=0 leave
    the outcome alone. The form that is asked for is theirs: a thought before each search and before the answer.
    """
    engine = search_agent(answerer=sub_queries(), turns=turns, invalid=RETRY)
    reward = outcome_and_split(
        split=split, answerable=answerable, structure=structure, retrieved=retrieved, unformed=unformed
    )
    return (
        search_r1(groups=groups, rollouts=rollouts, turns=turns, beta=beta)
        .replace(programs={"main": engine}, reward=(reward,))
        .override(decode={"search": engine, "self": self_search()})
    )


@block
async def sub_queries(*, query: str, request: RolloutRequest, rollout: RolloutContext, tool: str = "search") -> str:
    """What an engine finds for each sub-query of a query, divided as they are; those beyond the fourth are left out."""
    found = [str(await rollout.tool(tool)(part)) for part in divided(query)]
    return SPLIT.join(found)


def divided(query: str) -> list[str]:
    """The sub-queries of a query.

    >>> divided("home of Ann ## guild of Bob"), divided("home of Ann")
    (['home of Ann', 'guild of Bob'], ['home of Ann'])
    """
    return [part.strip() for part in query.split(SPLIT.strip()) if part.strip()][:AT_MOST] or [query]


@block
def outcome_and_split(
    *,
    group: RolloutGroup,
    context: RewardContext,
    split: float = 0.2,
    answerable: float = 0.2,
    structure: float = 0.2,
    retrieved: float = 0.1,
    unformed: float = 0.1,
) -> Scores:
    """The reward of an episode (see `subsearch`).

    Parts: answer, format, searches, splits (searches with sub-queries); where there are searches, splittability and
    answerability; where the task has sub-questions, divided: whether some search asks two of them and nothing else.
    """
    task, out = group.request.task, Scores({"reward": {}})
    question = task.prompt if isinstance(task.prompt, str) else str(task.prompt[-1]["content"])
    for episode, t in group.learned:
        searches = searches_of(episode, t, context)
        pieces = pieces_of(context.path(t.leaf), context)
        why = fault(pieces) or _thoughtless(own_text(pieces))
        right = exact_match(answer=episode.answer, task=task).value or 0.0
        said = " ".join(s.found for s in searches)
        is_found = any(all(part in said for part in gold.split(" and ")) for gold in gold_answers(task))
        if right:
            value = 1.0 - structure * bool(why)
        elif why:
            value = unformed if episode.answer is not None else 0.0
        else:
            value = structure + retrieved * is_found
        split_of = [divided(s.query) for s in searches]
        parts = {
            "answer": right,
            "format": float(not why),
            "searches": float(len(searches)),
            "splits": float(sum(len(p) > 1 for p in split_of)),
        }
        if searches:
            parts["splittability"] = sum(splittability(question, p) for p in split_of) / len(searches)
            parts["answerability"] = sum(answerability(s) for s in searches) / len(searches)
            value += split * parts["splittability"] + answerable * parts["answerability"]
        if "keywords" in task.tags:
            asked = [[sub_question(p, task) for p in of] for of in split_of if len(of) > 1]
            parts["divided"] = float(any(None not in of and len(set(of)) == len(of) for of in asked))
        out["reward"][t.leaf] = Score(value, parts, why)
    return out


def _thoughtless(said: str) -> str:
    """What is wrong where a search or the answer has no thought before it."""
    turns = re.findall(r"(</think>)?\s*<(search|answer)>", said)
    return next((f"a {tag} without a thought" for thought, tag in turns if not thought), "")


def splittability(question: str, queries: Sequence[str]) -> float:
    """How well sub-queries cover a question together, less how alike they are.

        cos(question, mean of q_i) - mean over pairs of cos(q_i, q_j)

    >>> both = ["home of ann", "guild of bob"]  # words of the question, and one in three in common
    >>> round(splittability("home of ann guild of bob", both), 3), round(splittability("home of ann", both[:1]), 3)
    (0.667, 1.0)
    """
    bags = [_bag(q) for q in queries]
    mean = dict[str, float]()
    for bag in bags:
        norm = math.sqrt(sum(n * n for n in bag.values())) or 1.0
        for word, n in bag.items():
            mean[word] = mean.get(word, 0.0) + n / norm
    pairs = [_cosine(a, b) for a, b in combinations(bags, 2)]
    return _cosine(_bag(question), mean) - (sum(pairs) / len(pairs) if pairs else 0.0)


def answerability(search: Search) -> float:
    """How well the documents of a search fit its sub-queries: the mean over these of the best cosine."""
    parts, found = divided(search.query), search.found.split(SPLIT.strip())
    documents = [documents_of(text.strip()) for text in found]
    best = [
        max((_cosine(_bag(part), _bag(d)) for d in documents[n]), default=0.0) if n < len(documents) else 0.0
        for n, part in enumerate(parts)
    ]
    return sum(best) / len(best)


def _bag(text: str) -> dict[str, float]:
    return {word: float(n) for word, n in Counter(normalise(text).split()).items()}


def _cosine(a: dict[str, float], b: dict[str, float]) -> float:
    shared = sum(n * b.get(word, 0.0) for word, n in a.items())
    return shared / (math.hypot(*a.values()) * math.hypot(*b.values())) if shared else 0.0


subsearch.claim = Claim(
    (
        premise("early:reward/divided", "outcome", 0.5, relation="<", fails_at=0.7),  # there is dividing to be learned
        mechanism("late:reward/divided", "self", "outcome", by=0.1, fails_at=0.9),
        mechanism("late:reward/splittability", "self", "no_split", by=0.05, fails_at=0.9),
        outcome("accuracy", "self", "outcome", by=0.03, fails_at=0.98),
        outcome("auc", "self", "outcome", by=0.03, fails_at=0.98),
    ),
    arms={
        "outcome": ("subsearch", {"split": 0.0, "answerable": 0.0}),
        "no_split": ("subsearch", {"split": 0.0}),
    },
    regime="search_parts",
    idea=("main.reward",),
    because="a question that is divided well is half answered, and that can be seen before the answer is judged",
)
