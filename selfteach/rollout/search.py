"""Episodes that search: in the policy's own memory, with an engine, or by asking another model."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core import Request, Turn, block
from ..core.text import last_between

OWN = "own memory"


@block
async def self_search(*, request: Request, cast: Any) -> str | None:
    """One free-running turn in which the policy writes its queries and what they find (Fan et al. 2025, SSRL, section 3).

    What it writes between <information> tags is marked as that span, so that credit can leave it out.
    """
    context = cast.policy.begin(request.task.prompt)
    turn = await context.sample(stop=("</answer>",))
    context.mark(turn, "information")
    context.close()
    return last_between(turn.text, "answer", None)


@block
async def search_agent(
    *, request: Request, cast: Any, answerer: str = "search", turns: int = 4, invalid: str = "", teach: bool = False
) -> str | None:
    """Speak until a query or an answer; answer the query; and again, up to `turns` queries, then one last turn to answer in.

    answerer  a tool's name (a real engine), "own memory" (the policy goes on and writes what is found), or another member
    invalid   what to say to a turn that neither asks nor answers; empty: the episode ends there
    teach     hand what is found over as tokens to learn too (with unknown log-probability), as ablations do
    (Jin et al. 2025, Search-R1, algorithm 1)
    """
    context = cast.policy.begin(request.task.prompt)
    for _ in range(turns):
        turn = await context.sample(stop=("</search>", "</answer>"))
        query, answer = turn.between("search"), turn.between("answer")
        if answer is not None or turn.status == "limit":
            break
        if query is not None:
            await inform(cast, context, turn, answerer, teach)
        elif invalid and turn.status == "stop":
            context.append(invalid)
        else:
            break
    else:
        turn = await context.sample(stop=("</answer>",))
        answer = turn.between("answer")
    context.close()
    return answer


@block
async def entropy_guided(*, request: Request, cast: Any, answerer: str = "search", turns: int = 4) -> str | None:
    """Search outside only where the policy is unsure: the first query, and later ones whose uncertainty rose over the one before.

    Uncertainty of a query: the mean of -p log2 p over its tokens (SSRL, section 5, sim-to-real). Otherwise the policy informs itself.
    """
    context, before, answer = cast.policy.begin(request.task.prompt), -1.0, None
    for _ in range(turns + 1):
        turn = await context.sample(stop=("</search>", "</answer>"))
        query, answer = turn.between("search"), turn.between("answer")
        if query is None or answer is not None or turn.status == "limit":
            break
        now = query_uncertainty(context, turn)
        await inform(cast, context, turn, answerer if now > before else OWN)
        before = now
    context.close()
    return answer


async def inform(cast: Any, context: Any, asked: Turn, answerer: str, teach: bool = False) -> None:
    """Add <information> for the query that a turn asks: from a tool, from the policy itself, or from another member of the cast.

    A model that talks in messages was shown a space between tags (tasks/ask.py), so a document stands between spaces there. Where the last
    token drawn runs on past </search>, what it holds of what follows is not written twice.
    """
    if answerer == OWN:
        turn: Turn = await context.sample(stop=("</information>", "</answer>"))
        context.mark(turn, "information")
        return
    query = asked.between("search")
    if answerer in cast.members:
        other = cast.member(answerer).begin(f"<search>{query}</search><information>")
        found = (await other.sample(stop=("</information>",))).text.removesuffix("</information>")
    else:
        found = await cast.tool(answerer)(query)
    told = f"{' ' if context.talks else ''}<information>{found}</information>"
    beyond = asked.text.rpartition("</search>")[2]
    told = told[len(beyond) :] if told.startswith(beyond) else told
    if teach:
        context.adopt(told, span="information")
    else:
        context.append(told, span="information")


def query_uncertainty(context: Any, turn: Turn) -> float:
    """Mean of -p log2 p over the tokens of a turn's <search> span, p the chance with which each was drawn."""
    context.mark(turn, "search")
    tree, node = context.tree, turn.at.node
    rows = slice(tree.begin[node], tree.stop(node))
    inside = tree.span[rows] == tree.spans.index("search")
    logp = tree.logp[rows][inside].astype(np.float64)
    return float(np.mean(-np.exp(logp) * logp / np.log(2))) if len(logp) else 0.0
