"""What a search agent said, was told and cites, read from its tokens: what came from outside is never taken for its own
words, whatever it says, and its own words never for what came from outside.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import NamedTuple

from .contexts import RewardContext, TokenPath, own_tokens
from .tagged_text import last_between
from .task import Ref, Task
from .tree import Episode, Trajectory

INFORMATION = "information"
TOLD = (INFORMATION, "tool_response")  # the spans of what engines and tools found


class Piece(NamedTuple):
    """A stretch of an episode after its prompt: `kind` is own, information, or told (a reply of the program)."""

    kind: str
    text: str


class Search(NamedTuple):
    """One search: what the agent said in that turn, its query, what was found, and the place where the turn ends."""

    said: str
    query: str
    found: str
    at: Ref


def pieces_of(path: TokenPath, context: RewardContext) -> list[Piece]:
    """What was said and told after the prompt, in order; neighbours of one kind are one piece."""
    rows = zip(path.ids[path.prompt :], path.action_mask[path.prompt :], path.spans[path.prompt :], strict=True)
    kinds = [(INFORMATION if span == INFORMATION else "own" if own else "told", int(i)) for i, own, span in rows]
    return [
        Piece(kind, context.tokenizer.decode([i for _, i in run]))
        for kind, run in itertools.groupby(kinds, key=lambda row: row[0])
    ]


def told_by_tools(trajectory: Trajectory, context: RewardContext) -> list[str]:
    """What engines and tools told on a trajectory's path, in order: the stretches of their spans that the model did not
    sample itself, as it samples what it knows where it answers its own queries.
    """
    out = list[str]()
    for at in (*trajectory.before, trajectory.leaf):
        path = context.path(at)
        rows = zip(path.ids, path.spans, own_tokens(path), strict=True)
        told = [(not own and span in TOLD, int(i)) for i, span, own in rows][path.prompt :]
        runs = itertools.groupby(told, key=lambda row: row[0])
        out += [context.tokenizer.decode([i for _, i in run]) for is_told, run in runs if is_told]
    return out


def own_text(pieces: Sequence[Piece]) -> str:
    """All that the agent said itself."""
    return "".join(p.text for p in pieces if p.kind == "own")


def searches_of(episode: Episode, trajectory: Trajectory, context: RewardContext) -> list[Search]:
    """The searches on a trajectory's path, in order: sampled turns with a query that information follows."""
    tree, leaf = episode.tree, trajectory.leaf
    nodes = [(node, tree.id[tree.begin[node] : tree.begin[node] + upto]) for node, upto in tree.path(*leaf[1:])]
    out = list[Search]()
    for (node, said), (then, found) in itertools.pairwise(nodes):
        if tree.sampling[node] < 0 or tree.spans[tree.span[tree.begin[then]]] != INFORMATION:
            continue
        text = context.tokenizer.decode(said)
        if not (query := last_between(text, "search", "")):
            continue
        # the last token of a turn may extend past </search>, into the information
        told = (text.rpartition("</search>")[2] + context.tokenizer.decode(found)).strip()
        result = told.removeprefix("<information>").removesuffix("</information>").strip()
        out.append(Search(text, query, result, Ref(episode.id, node)))
    return out


def documents_of(found: str) -> list[str]:
    """The documents of a result: its lines where they are numbered (tools/retrieve.py), else its sentences.

    >>> documents_of("the home of Ann is Ulm. the river of Ulm is Po.")
    ['the home of Ann is Ulm.', 'the river of Ulm is Po.']
    """
    by_line = found.startswith("Doc 1(")
    return [d for d in (found.splitlines() if by_line else re.split(r"(?<=[.!?]) ", found)) if d]


def documents_found(searches: Sequence[Search]) -> list[str]:
    """The documents of all results, in order."""
    return [d for s in searches for d in documents_of(s.found)]


def facts_of(task: Task) -> list[str]:
    """The facts that a question's answer needs, in the order in which one leads to the next (tag `chain`); empty where
    nobody says.
    """
    return [str(fact) for fact in task.tags.get("chain", ())]


def cited_by(pieces: Sequence[Piece]) -> list[str]:
    """The names of pages that an agent cites in its last <cite>, between commas."""
    return [name.strip() for name in last_between(own_text(pieces), "cite", "").split(",") if name.strip()]


def citation_precision(cited: Sequence[str], found: Sequence[str], facts: Sequence[str]) -> dict[str, float]:
    """The part `citation_precision`: of the pages that an answer cites, the share that support it, each counted once.

    A page supports where a document of it was found that states a fact which the answer needs. Empty where nothing is
    cited, or nobody says what the answer needs.

    Args: cited: names of pages; found: documents; facts: sentences (tag `chain`).

    >>> both = ["the home of Ann is Ulm.", "the mayor of Ulm is Bob."]
    >>> citation_precision(["Ann", "Cid"], both, both), citation_precision(["Ann"], both[1:], both)
    ({'citation_precision': 0.5}, {'citation_precision': 0.0})
    """
    pages = list(dict.fromkeys(cited))
    stated = [fact for fact in facts if fact in found]
    supporting = [name for name in pages if any(re.search(rf"\b{re.escape(name)}\b", fact) for fact in stated)]
    return {"citation_precision": len(supporting) / len(pages)} if pages and facts else {}
