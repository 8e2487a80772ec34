"""SSRL, self-search reinforcement learning (Fan et al. 2025, arXiv 2508.10874), and its answer-only baseline.

In one generation the policy thinks, writes a query, writes the search result itself, and answers. It is trained by GRPO
on exact match and format, with the generated information masked out; a real search engine can be used afterwards.

    R = (1 - format) exact match + format F
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np

from ..core import Claim, Method, RolloutContext, RolloutRequest, Score, Turn, block, method, unsorted
from ..credit.advantages import norm
from ..credit.composers import per_trajectory
from ..reward.answer import exact_match
from ..reward.combine import weighted
from ..rollout.search import OWN_MEMORY, append_information, search_agent, self_search
from ..rollout.single import single
from .grpo import grpo

PLACEHOLDERS = ("your thoughts", "your query", "your information", "your answer")


@method(family="search", paper="2508.10874", catalogue=1)
def ssrl(groups: int = 48, rollouts: int = 5, format: float = 0.1, mask: bool = True, beta: float = 0.001) -> Method:
    """Self-search RL: GRPO on single generations in which the policy writes both the queries and their results.

        R = (1 - format) exact match + format F,   F the format score

    Fan et al. 2025. With `mask` the <information> spans are masked out of every loss term. The decoders `search` and
    `entropy_guided` search with a real engine afterwards: at every query, or where the policy is uncertain.
    """
    return (
        grpo(groups=groups, rollouts=rollouts, beta=beta)
        .replace(
            programs={"main": self_search()},
            reward=(weighted(parts=((1 - format, exact_match()), (format, search_format()))),),
            credit=(per_trajectory(mask=("information",) if mask else ()), norm()),
        )
        .override(
            decode={
                "self": self_search(),
                "search": search_agent(answerer="search"),
                "entropy_guided": entropy_guided(),
            }
        )
    )


@method(family="search", paper="2508.10874")
def answer_only(groups: int = 48, rollouts: int = 5, beta: float = 0.001) -> Method:
    """SSRL's baseline: GRPO on direct answers, without thoughts or search; the reward is exact match alone."""
    return grpo(groups=groups, rollouts=rollouts, beta=beta).replace(programs={"main": single(prefix="<answer>")})


@block
def search_format(*, text: str, thoughts: int = 8) -> Score:
    """SSRL's format score (Fan et al. 2025, appendix), 0 for a malformed text.

        F = min(T / 2, 1) min(T, S + 1) / max(T, S + 1)        T thoughts, S searches

    Well formed: only the four tags, from <think> to </answer>, at least four of them, none empty or a placeholder, a
    query in one line, every search followed at once by its information, as many of one as of the other, at most
    `thoughts` thoughts.
    """
    why, value = "", 0.0
    tags = tagged_pieces(text.strip())
    if tags is None:
        why = "tags are nested, left open, or have text between them"
    else:
        why = _fault(tags, thoughts)
        t, s = sum(p.tag == "think" for p in tags), sum(p.tag == "search" for p in tags)
        if not why:
            value = min(0.5 * t, 1.0) * min(t, s + 1) / max(t, s + 1)
    return Score(value, {"format": value}, why)


def _fault(pieces: list[Piece], thoughts: int) -> str:
    """The first fault of a sequence of tags; empty where it is well formed."""
    tags = [p.tag for p in pieces]
    strange = sorted(set(tags) - {"think", "search", "information", "answer"})
    after = [tags[n + 1] if n + 1 < len(tags) else "" for n, tag in enumerate(tags) if tag == "search"]
    faults = {
        f"strange tags: {', '.join(strange)}": bool(strange),
        "it does not run from <think> to </answer>": not tags or tags[0] != "think" or tags[-1] != "answer",
        "fewer than four tags": len(tags) < 2,  # an opening and a closing one each
        "an empty tag": any(not p.inside for p in pieces),
        "a placeholder left in": any(w in p.inside.lower() for p in pieces for w in PLACEHOLDERS),
        "a query of more than one line": any("\n" in p.inside for p in pieces if p.tag == "search"),
        "a search without its information": any(a != "information" for a in after)
        or tags.count("search") != tags.count("information"),
        f"more than {thoughts} thoughts": tags.count("think") > thoughts,
    }
    return next((fault for fault, is_there in faults.items() if is_there), "")


def tagged_pieces(text: str) -> list[Piece] | None:
    """The closed, unnested tags of a text with only white space between them; None where there is anything else."""
    out: list[Piece] = []
    at = 0
    for m in re.finditer(r"<(\w+)>((?:(?!</?\w+>).)*)</\1>", text, flags=re.DOTALL):
        if text[at : m.start()].strip():
            return None
        out.append(Piece(m.group(1), m.group(2).strip()))
        at = m.end()
    return None if text[at:].strip() else out


class Piece(NamedTuple):
    """One <tag>inside</tag> of a text."""

    tag: str
    inside: str


@block
async def entropy_guided(
    *, request: RolloutRequest, rollout: RolloutContext, answerer: str = "search", turns: int = 4
) -> str | None:
    """Search with the engine only where the policy is uncertain (section 5, sim-to-real).

        uncertainty of a query = mean over its tokens of -p log2 p

    The engine answers the first query, and later ones whose uncertainty is above that of the query before; the policy
    itself answers the others. answerer, turns: see `search_agent`.
    """
    context, previous, answer = rollout.policy.begin(request.task.prompt), -np.inf, None
    for _ in range(turns + 1):
        turn = await context.sample(stop=("</search>", "</answer>"))
        query, answer = turn.between("search"), turn.between("answer")
        if query is None or answer is not None or turn.status == "limit":
            break
        uncertainty = query_uncertainty(context, turn)
        await append_information(rollout, context, turn, answerer if uncertainty > previous else OWN_MEMORY)
        previous = uncertainty
    context.close()
    return answer


def query_uncertainty(context: Any, turn: Turn) -> float:
    """The mean of -p log2 p over the tokens of a turn's <search> span, p each token's probability when sampled."""
    context.mark(turn, "search")
    tree, node = context.tree, turn.at.node
    rows = slice(tree.begin[node], tree.stop(node))
    inside = tree.span[rows] == tree.spans.index("search")
    logp = tree.logp[rows][inside].astype(np.float64)
    return float(np.mean(-np.exp(logp) * logp / np.log(2))) if len(logp) else 0.0


ssrl.claim = Claim(
    (
        unsorted("accuracy", "self", "answer_only", by=0.0),
        unsorted("accuracy", "self", "format_only", by=0.0),
        unsorted("accuracy", "self", "no_mask", by=0.0),
        unsorted("accuracy", "self", "no_format", by=0.0),
        unsorted("accuracy+search", "self", "accuracy of self", by=0.05),
        unsorted("accuracy+entropy_guided", "self", "accuracy+search of self", by=-0.05, scale="ratio"),
        unsorted("calls+entropy_guided", "self", "calls+search of self", by=0.20, relation="<", scale="ratio"),
        unsorted("pass@64", "self", "pass@8 of self", by=0.0),
    ),
    arms={
        "answer_only": "answer_only",
        "format_only": ("ssrl", {"format": 1.0}),
        "no_mask": ("ssrl", {"mask": False}),
        "no_format": ("ssrl", {"format": 0.0}),
    },
    task="atlas",
    steps=40,
    because=(
        "a model that writes both queries and results learns to use its own knowledge, and can then use a real "
        "engine without further training"
    ),
)
