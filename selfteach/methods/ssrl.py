"""SSRL, self-search reinforcement learning (Fan et al. 2025, arXiv 2508.10874), and its answer-only baseline.

In one generation the policy thinks, writes a query, writes the search result itself, and answers. It is trained by GRPO
on exact match and format, with the generated information masked out; a real search engine can be used afterwards.

    R = (1 - format) exact match + format F
"""

from __future__ import annotations

import re

import numpy as np

from ..core import (
    Claim,
    Home,
    Method,
    ModelContext,
    Ref,
    RolloutContext,
    RolloutRequest,
    Score,
    Term,
    Turn,
    Update,
    block,
    mechanism,
    method,
    outcome,
    premise,
)
from ..core.tagged_text import pieces_before
from ..credit.advantages import norm
from ..credit.composers import per_trajectory
from ..objective.kl import kl
from ..objective.loss_weights import sequence_mean, token_mean
from ..objective.policy import clipped_ratio
from ..reward.answer import exact_match
from ..reward.combine import weighted
from ..rollout.search import OWN_MEMORY, RETRY, append_information, search_agent, search_turns, self_search
from ..rollout.single import single
from .grpo import grpo

# The tags, and what a model that copies its instruction leaves in them.
PLACEHOLDERS = {
    "think": "your thoughts",
    "search": "your query",
    "information": "your information",
    "answer": "your answer",
}


@method(family="search", paper="2508.10874", catalogue=1, home=Home("atlas", steps=40))
def ssrl(
    groups: int = 48,
    rollouts: int = 5,
    format: float = 0.1,
    mask: bool = True,
    beta: float = 0.001,
    strict: bool = False,
    verl: bool = True,
) -> Method:
    """Self-search RL: GRPO on single generations in which the policy writes both the queries and their results.

        R = (1 - format) exact match + format F,   F the format score

    Fan et al. 2025, and verl's loss as in their code: a mean over tokens, dual clip at 3. With `mask` the closed
    <information> spans are masked out of every loss term (in their code those of one line alone). A response ends with
    its answer; theirs goes on to the end of the text. The decoders `search` and `entropy_guided` search with a real
    engine afterwards, in at most three turns before the last: at every query, or where the policy is uncertain. An
    engine shows as many results as it is asked for, there a random number of the first three. strict: of
    `search_format`. verl=False: GRPO's own loss, a mean over answers of the means over their tokens, without dual clip.
    """
    return (
        grpo(groups=groups, rollouts=rollouts)
        .replace(
            programs={"main": self_search()},
            reward=(weighted(parts=((1 - format, exact_match()), (format, search_format(strict=strict)))),),
            credit=(per_trajectory(mask=("information",) if mask else ()), norm()),
            updates=(policy_update(beta, verl),),
        )
        .override(
            decode={
                "self": self_search(),
                "search": search_agent(turns=3, invalid=RETRY),
                "entropy_guided": entropy_guided(turns=3, invalid=RETRY),
            }
        )
    )


@method(family="search", paper="2508.10874", home=Home("atlas", steps=40))
def answer_only(groups: int = 48, rollouts: int = 5, beta: float = 0.001) -> Method:
    """A baseline chosen here: GRPO on direct answers, without thoughts or search; the reward is exact match alone."""
    return grpo(groups=groups, rollouts=rollouts).replace(
        programs={"main": single(prefix="<answer>")}, updates=(policy_update(beta),)
    )


@method(family="search", paper="2508.10874", home=Home("atlas", steps=40))
def think_then_answer(groups: int = 48, rollouts: int = 5, beta: float = 0.001) -> Method:
    """Another: GRPO on a thought and an answer (R1 in Search-R1's tables); a search ends the answer, which is wrong."""
    return grpo(groups=groups, rollouts=rollouts).replace(
        programs={"main": single(prefix="<think>", stop=("</answer>", "<search>"))}, updates=(policy_update(beta),)
    )


def policy_update(beta: float, verl: bool = True) -> Update:
    """The policy's update, with the KL to the reference where `beta` is above 0; verl: with the means of its loss."""
    mean = token_mean() if verl else sequence_mean()
    ratio = Term(clipped_ratio(dual=3.0 if verl else None), loss_weights=mean)
    return Update(("policy",), (ratio, Term(kl(), loss_weights=mean, coef=beta)) if beta else (ratio,))


@block
def search_format(*, text: str, thoughts: int = 8, strict: bool = False) -> Score:
    """SSRL's format score, 0 for a malformed text.

        F = min(T / 2, 1) min(T, S + 1) / max(T, S + 1)        T thoughts, S searches

    As in the authors' code, what is checked are tags, in order: no others, from <think>...</think> to
    <answer>...</answer>, none empty or with its placeholder left in, a query in one line (line breaks beside its tags
    count), every search followed at once by its information, as many of one as of the other, at most `thoughts`
    thoughts. Text between tags is free, and so is what other tags stand in the middle. With `strict` (a looser form of
    a check that is switched off in their code) tags must be closed and not nested, with only white space between them.
    """
    return format_score(text, thoughts, strict)


def format_score(text: str, thoughts: int = 8, strict: bool = False) -> Score:
    """The score of `search_format`."""
    found = text.strip()
    why = _fault(found, thoughts) or (_looseness(found) if strict else "")
    t, s = found.count("<think>"), found.count("<search>")
    value = 0.0 if why else min(0.5 * t, 1.0) * min(t, s + 1) / max(t, s + 1)
    return Score(value, {"format": value}, why)


def _fault(text: str, thoughts: int) -> str:
    """The first fault of a text; empty where it is well formed."""
    named = re.findall(r"<([^>]+)>", text)
    strange = sorted({t.removeprefix("/") for t in named} - set(PLACEHOLDERS))
    tags = [t for t in named if t.removeprefix("/") in PLACEHOLDERS]
    middle = tags[2:-2]
    after = [middle[n + 1 : n + 4] for n, tag in enumerate(middle) if tag == "search"]
    inside = {tag: re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL) for tag in PLACEHOLDERS}
    faults = {
        f"strange tags: {', '.join(strange)}": bool(strange),
        "it does not run from <think> to </answer>": tags[:2] != ["think", "/think"]
        or tags[-2:] != ["answer", "/answer"]
        or not (text.startswith("<think>") and text.endswith("</answer>")),
        "fewer than four tags": len(tags) < 4,
        "an empty tag": any(not piece.strip() for pieces in inside.values() for piece in pieces),
        "a placeholder left in": any(PLACEHOLDERS[tag] in p.lower() for tag, pieces in inside.items() for p in pieces),
        "a query of more than one line": any("\n" in piece for piece in inside["search"]),
        "a search without its information": any(a != ["/search", "information", "/information"] for a in after)
        or tags.count("search") != tags.count("information"),
        f"more than {thoughts} thoughts": tags.count("think") > thoughts,
    }
    return next((fault for fault, is_there in faults.items() if is_there), "")


def _looseness(text: str) -> str:
    """What only a strict score minds; empty where there is nothing of it."""
    closed = re.sub(r"<(\w+)>((?:(?!</?\w+>).)*)</\1>", "", text, flags=re.DOTALL)
    return "tags are nested, left open, or have text between them" if closed.strip() else ""


@block
async def entropy_guided(
    *,
    request: RolloutRequest,
    rollout: RolloutContext,
    answerer: str = "search",
    turns: int = 3,
    invalid: str = RETRY,
    with_tags: bool = False,
) -> str | None:
    """Search with the engine only where the policy is uncertain (section 5, sim-to-real).

        uncertainty of a query = mean over its tokens of -p log2 p

    The engine answers the first query, and later ones whose uncertainty is above that of the query before; the policy
    itself answers the others. answerer, turns, invalid: see `search_agent`. with_tags: the tokens of a query's tags
    count too, which sink every mean alike.
    """
    previous = -np.inf

    async def answer_query(context: ModelContext, turn: Turn) -> None:
        nonlocal previous
        uncertainty = await query_uncertainty(context, turn, with_tags, rollout.sampling.temperature == 0)
        await append_information(rollout, context, turn, answerer if uncertainty > previous else OWN_MEMORY)
        previous = uncertainty

    return await search_turns(request, rollout, turns, invalid, answer_query)


async def query_uncertainty(context: ModelContext, turn: Turn, with_tags: bool = False, greedy: bool = False) -> float:
    """The mean of -p log2 p over the tokens of a turn's query, p each token's probability when sampled.

    greedy: p at temperature 1, computed anew, since what is drawn greedily is drawn with certainty.
    """
    pieces, node = context.pieces(turn), turn.at.node
    match = re.search(rb"<search>(.*?)</search>", b"".join(pieces), re.DOTALL)
    begin, end = match.span(0 if with_tags else 1) if match else (0, 0)
    if end <= begin:
        return 0.0
    start = context.tree.begin[node]
    rows = slice(start + pieces_before(pieces, begin), start + pieces_before(pieces, end - 1) + 1)
    logp = context.tree.logp[rows]
    if greedy:
        ids = context.tree.id[start : rows.stop]
        before = context.fork(Ref(turn.at.episode, node, 0))
        logp = (await before.score(ids))["logp"][rows.start - start :]
    logp = logp.astype(np.float64)
    return float(np.mean(-np.exp(logp) * logp / np.log(2)))


ssrl.claim = Claim(
    (
        premise("accuracy", "self", "start", by=0.2, fails_at=0.9),  # there is a way to be found
        premise("accuracy", "answer_only", 0.15, fails_at=0.1),  # direct answers are no straw man
        premise("early:reward/format", "no_format", 0.7, relation="<", fails_at=0.8),  # form is to be learned
        mechanism("mean:reward/format", "self", "no_format", by=0.05, fails_at=1.0),
        # of each answer, a token at least of what it wrote to itself is left out: it searches, and the mask acts
        mechanism("late:dropped/masked:information", "self", 128.0, fails_at=0.0),
        outcome("accuracy", "self", "answer_only", by=0.05, fails_at=0.97),
        outcome("accuracy", "self", "think_then_answer", by=0.05, fails_at=0.97),
        outcome("accuracy", "self", "no_mask", by=0.02, fails_at=0.99),
        outcome("accuracy", "self", "no_format", by=0.02, fails_at=0.99),
        outcome("accuracy+search", "self", "accuracy of self", by=0.05, fails_at=0.97),
        outcome(
            "accuracy+entropy_guided",
            "self",
            "accuracy+search of self",
            relation=">=",
            scale="ratio",
            by=0.05,
            fails_at=0.5,
        ),
        # a first query always goes to the engine: of 1.63 calls an answer (+search) 39 % is the most that can be saved
        outcome(
            "calls+entropy_guided", "self", "calls+search of self", relation="<", scale="ratio", by=0.2, fails_at=0.0
        ),
    ),
    arms={
        "answer_only": "answer_only",
        "think_then_answer": "think_then_answer",
        "no_mask": ("ssrl", {"mask": False}),
        "no_format": ("ssrl", {"format": 0.0}),
    },
    regime="search_unclosed",
    first_seed=500,
    corrected=(
        "in `search`, on seeds 200 to 211, nothing could be said of its form: four demonstrations in five were well "
        "formed, and without a reward for it form was learned all the same, late as well as with one. On seeds 300 to"
        " 311 an <information> that was left open hid all that followed from the loss, where the authors mask what is"
        " closed: does not hold here"
    ),
    equal="tokens",  # a direct answer is a twentieth as long, so its arm gets more of them
    idea=("main.program", "main.reward", "main.credit", "decode"),
    because=(
        "a model that writes both queries and results learns to use its own knowledge, and can then use a real "
        "engine without further training"
    ),
)
