"""SubSearch, intermediate rewards for guided reasoning in complex retrieval (Petcu et al. 2026, arXiv 2604.07415).

Inside one search the agent may ask several sub-queries, divided by ##, each of which is answered by itself. Where the
answer is wrong, it is paid for how well it divided the question and for how well the results answer the sub-queries,
both measured without any judge.

    R = r + b_t (A / 2 + D / 2) (1 - r)                                         r = 1 for a right answer, else 0
    D = cos(q, mean c) / 2 + mean_i cos(q, c_i) (1 - mean_j cos(c_i, c_j)) / 2     over the sub-queries c of a search
    A = mean over sub-queries of the mean cos with the first documents that it found
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

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
    Task,
    block,
    mechanism,
    method,
    outcome,
    premise,
    stateful,
)
from ..core.answers import gold_answers, normalise
from ..core.search_record import Search, documents_of, own_text, pieces_of, searches_of
from ..core.tagged_text import SPLIT, last_message
from ..reward.agent_record import fault, sub_question
from ..reward.answer import exact_match
from ..rollout.search import RETRY, search_agent, self_search
from .search_r1 import search_r1

PARTS = {"hops": (1,), "parts": 2, "ways": (0.1, 0.1, 0.4, 0.4)}
AT_MOST = 4  # sub-queries of one search that are answered
FIRST = 3  # documents of a result that are compared with its sub-query
REPHRASED = 0.85  # how like the question a single query is at best: the same in other words
# b_t: the weight's first steps, to the share of it that is left after them, and those of its decay to what is kept
WARMUP, LEFT, DECAY, KEPT = 200, 0.75, 2000, 0.02
# The gate on it: a mean of right answers that forgets slowly, the share of them that is good, how much it must move to
# move at all, and by how much it moves b_t at most.
FORGETS, GOOD, STILL, RATE, MOST = 0.98, 0.65, 5e-4, 0.2, 0.01
# Words that any two questions share: in a bag of words these are no likeness.
FUNCTION_WORDS = frozenset(["of", "is", "are", "what", "which", "who", "whose", "and"])


@method(family="search", paper="2604.07415", catalogue=58, home=Home("fact_graph", 40, PARTS))
def subsearch(
    groups: int = 48,
    rollouts: int = 5,
    turns: int = 4,
    weight: float = 0.2,
    split: float = 0.5,
    answerable: float = 0.5,
    adaptive: bool = True,
    structure: float = 0.2,
    retrieved: float = 0.1,
    unformed: float = 0.1,
    beta: float = 0.001,
) -> Method:
    """Search-R1 with several sub-queries to a search, and intrinsic rewards for dividing and for being answerable.

        R = r + b_t (answerable A + split D) (1 - r)
        D   of one query c: max(0, 1 - |cos(q, c) - 0.85| / 0.15), best where it says the question in other words; of
            several: cos(q, mean c) / 2 + mean_i cos(q, c_i) (1 - mean_{j /= i} cos(c_i, c_j)) / 2
        A   mean over sub-queries of the mean cos(c, d) of its first three documents d
        form   of what R is above 0: at most 1 with `retrieved` more where a gold answer was found, in right form, and
            `structure` less in wrong form; else `structure` (and `retrieved`) in right form, `unformed` in wrong form,
            0 without an answer

    Petcu et al. 2026; formulas and constants are the released code's. D and A are means over the searches of an
    episode, 0 without any (there with those of their prompt's examples). b_t begins at `weight`, falls to three
    quarters of it in 200 steps and by a cosine to 0.02 in 2,000 more; `adaptive`, it is moved by at most 0.01: up where
    few answers are right and that stands still, down where more than 65 % are and that rises, by a running mean over
    answers one by one. Their encoder of sentences is MiniLM; here texts are bags of words without those that all
    questions share. split=0 and answerable=0 leave the outcome alone. The form is theirs: every turn has a thought.

    Metrics: reward/divided (an episode has a search that asks two sub-questions of the task and nothing else),
    reward/splittability (D), reward/answerability (A), reward/splits, reward/weight (b_t).
    """
    engine = search_agent(answerer=sub_queries(), turns=turns, invalid=RETRY)
    reward = outcome_and_split(
        weight=weight,
        split=split,
        answerable=answerable,
        adaptive=adaptive,
        structure=structure,
        retrieved=retrieved,
        unformed=unformed,
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
@stateful(lambda: {"step": 0, "right": None})
def outcome_and_split(
    *,
    groups: Sequence[RolloutGroup],
    context: RewardContext,
    state: dict[str, Any],
    weight: float = 0.2,
    split: float = 0.5,
    answerable: float = 0.5,
    adaptive: bool = True,
    structure: float = 0.2,
    retrieved: float = 0.1,
    unformed: float = 0.1,
) -> tuple[Scores, dict[str, Any]]:
    """The reward of an episode (see `subsearch`).

    State: how many steps there were, and the running mean of right answers. Parts: answer, format, searches, splits
    (searches with sub-queries), weight; where there are searches, splittability and answerability; where the task has
    sub-questions, divided: whether some search asks two of them and nothing else.
    """
    mean, out = state["right"], Scores({"reward": {}})
    planned = scheduled(weight, state["step"])
    for group, episode, t in ((g, e, t) for g in groups for e, t in g.learned):
        task = group.request.task
        searches = searches_of(episode, t, context)
        pieces = pieces_of(context.path(t.leaf), context)
        why = fault(pieces) or _thoughtless(own_text(pieces))
        right = exact_match(answer=episode.answer, task=task).value or 0.0
        said = " ".join(s.found for s in searches)
        is_found = any(all(part in said for part in gold.split(" and ")) for gold in gold_answers(task))
        now, mean = gated(planned, weight, right, mean) if adaptive else (planned, mean)
        split_of = [divided(s.query) for s in searches]
        parts = {
            "answer": right,
            "format": float(not why),
            "searches": float(len(searches)),
            "splits": float(sum(len(p) > 1 for p in split_of)),
            "weight": now,
        }
        intermediate = 0.0
        if searches:
            question = _question(task)
            parts["splittability"] = sum(splittability(question, p) for p in split_of) / len(searches)
            parts["answerability"] = sum(answerability(s) for s in searches) / len(searches)
            intermediate = split * parts["splittability"] + answerable * parts["answerability"]
        value = right + now * intermediate * (1.0 - right)
        found = retrieved * (is_found and not why)
        if episode.answer is None:
            value = 0.0
        elif value > 0:
            value = max(0.0, value - structure) if why else min(1.0, value + found)
        else:
            value = unformed if why else structure + found
        if "keywords" in task.tags:
            asked = [[sub_question(p, task) for p in of] for of in split_of if len(of) > 1]
            parts["divided"] = float(any(None not in of and len(set(of)) == len(of) for of in asked))
        out["reward"][t.leaf] = Score(value, parts, why)
    return out, {"step": state["step"] + 1, "right": mean}


def scheduled(weight: float, step: int) -> float:
    """What the intermediate rewards weigh at a step (from 0): less and less, by WARMUP, LEFT, DECAY and KEPT.

    >>> [round(scheduled(0.2, n), 4) for n in (0, 200, 1200, 2200)]
    [0.2, 0.15, 0.085, 0.02]
    """
    least = min(KEPT, weight)
    after = max(least, LEFT * weight)
    if step < WARMUP:
        return weight + (after - weight) * (step / WARMUP) ** 1.5
    passed = min(1.0, (step - WARMUP) / DECAY)
    return least + (after - least) * 0.5 * (1.0 + math.cos(math.pi * passed))


def gated(planned: float, weight: float, right: float, mean: float | None) -> tuple[float, float]:
    """The weight of the intermediate rewards after one more answer, and the running mean of right answers.

    More of it while few answers are right and their mean stands still, less while many are and it rises.

    >>> gated(0.15, 0.2, 0.0, 0.0)  # nothing right yet: 0.2 0.65 of the way up to 0.2
    (0.1565, 0.0)
    """
    after = right if mean is None else FORGETS * mean + (1.0 - FORGETS) * right
    slope = 0.0 if mean is None else after - mean
    moved, least = 0.0, min(KEPT, weight)
    if after < GOOD and abs(slope) <= STILL:
        moved = RATE * (GOOD - after) * (weight - planned)
    elif after > GOOD and slope > STILL:
        moved = -RATE * (after - GOOD) * (planned - least)
    return min(max(weight, least), max(least, planned + max(-MOST, min(MOST, moved)))), after


def _question(task: Task) -> str:
    """The text of a task's question."""
    return last_message(task.prompt).strip().removeprefix("question:")


def _thoughtless(said: str) -> str:
    """What is wrong where a search or the answer has no thought before it."""
    turns = re.findall(r"(</think>)?\s*<(search|answer)>", said)
    return next((f"a {tag} without a thought" for thought, tag in turns if not thought), "")


def splittability(question: str, queries: Sequence[str]) -> float:
    """How well the queries of a search divide a question, from 0 to 1.

    Of one query, how near it is to being the question in other words; of several, how well they cover it together, and
    how much each is about it without being like the others, in equal parts.

    >>> both = ["home of ann", "guild of bob"]  # they cover it, each is half of it, and they have nothing in common
    >>> round(splittability("home of ann, guild of bob", both), 3), round(splittability("home of ann", both[:1]), 3)
    (0.854, 0.0)
    """
    whole, bags = _bag(question), [_bag(q) for q in queries]
    if len(bags) == 1:
        return max(0.0, 1.0 - abs(_dot(whole, bags[0]) - REPHRASED) / (1.0 - REPHRASED))
    mean = dict[str, float]()
    for word, n in ((word, n) for bag in bags for word, n in bag.items()):
        mean[word] = mean.get(word, 0.0) + n
    coverage = _dot(whole, mean) / (math.hypot(*mean.values()) or 1.0)
    others = [sum(_dot(bag, b) for m, b in enumerate(bags) if m != n) / (len(bags) - 1) for n, bag in enumerate(bags)]
    own = sum(_dot(whole, bag) * (1.0 - alike) for bag, alike in zip(bags, others, strict=True)) / len(bags)
    return 0.5 * coverage + 0.5 * own


def answerability(search: Search) -> float:
    """How well the documents of a search fit its sub-queries: the mean over these of their mean cosine."""
    parts, found = divided(search.query), search.found.split(SPLIT.strip())
    documents = [documents_of(text.strip())[:FIRST] for text in found]
    documents += [list[str]()] * (len(parts) - len(documents))
    fits = [
        sum(_dot(_bag(part), _bag(d)) for d in of) / len(of) if of else 0.0
        for part, of in zip(parts, documents, strict=False)
    ]
    return sum(fits) / len(fits)


def _bag(text: str) -> dict[str, float]:
    """The words of a text but those of function, how often each is in it, of length 1."""
    counts = Counter(word for word in normalise(text).split() if word not in FUNCTION_WORDS)
    norm = math.hypot(*counts.values()) or 1.0
    return {word: n / norm for word, n in counts.items()}


def _dot(a: dict[str, float], b: dict[str, float]) -> float:
    return sum(n * b.get(word, 0.0) for word, n in a.items())


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
