"""What a search agent said and was told, in order, read from its tokens: what came from outside is never taken for its
own words, whatever it says.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import NamedTuple

from ..core import Episode, Ref, RewardContext, Task, Trajectory
from ..core.answers import normalise
from ..core.contexts import TokenPath
from ..core.errors import BadValue
from ..core.tagged_text import last_between

INFORMATION = "information"


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


class Verdict(NamedTuple):
    """What an agent said of one search: its goal ("" where it stated none), what was found, whether that is useful."""

    goal: str
    information: str
    accepted: bool


def pieces_of(path: TokenPath, context: RewardContext) -> list[Piece]:
    """What was said and told after the prompt, in order; neighbours of one kind are one piece."""
    rows = zip(path.ids[path.prompt :], path.action_mask[path.prompt :], path.spans[path.prompt :], strict=True)
    kinds = [(INFORMATION if span == INFORMATION else "own" if own else "told", int(i)) for i, own, span in rows]
    return [
        Piece(kind, context.tokenizer.decode([i for _, i in run]))
        for kind, run in itertools.groupby(kinds, key=lambda row: row[0])
    ]


def count_searches(pieces: Sequence[Piece]) -> int:
    """How many results an agent got."""
    return sum(p.kind == INFORMATION for p in pieces)


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


def keywords_of(task: Task) -> list[list[str]]:
    """For each sub-question of a task the ways of asking it (tag `keywords`). Raises BadValue for a task without."""
    if "keywords" not in task.tags:
        raise BadValue(f"task {task.id}: has no sub-questions (tag keywords); take a task that has, such as factworld")
    return [list(ways) for ways in task.tags["keywords"]]


def sub_question(query: str, task: Task) -> int | None:
    """Which sub-question of its task a query asks, in whatever order of words; None where it is none of them.

    >>> ann = Task("t", "", tags={"keywords": (("home of Ann", "Ann home"), ("mayor of Ulm", "Ulm mayor"))})
    >>> sub_question("home Ann", ann), sub_question("mayor of Ulm", ann), sub_question("river of Ulm", ann)
    (0, 1, None)
    """
    asked = _words(query)
    return next((n for n, ways in enumerate(keywords_of(task)) if any(asked == _words(w) for w in ways)), None)


def _words(query: str) -> set[str]:
    return set(normalise(query).split()) - {"of"}


def verdicts_of(pieces: Sequence[Piece], tag: str, yes: str, no: str) -> list[Verdict | None]:
    """Of each result the verdict that the agent gave before its next search, in a tag; None where it gave none.

    >>> told = Piece("information", "<information>the home of Ann is Ulm.</information>")
    >>> verdicts_of([Piece("own", "<search>home of Ann</search>"), told, Piece("own", "<judge> Yes</judge>")],
    ... "judge", "Yes", "No")[0].accepted
    True
    """
    out, said = list[Verdict | None](), ""
    verdict = re.compile(rf"<{tag}>\s*({yes}|{no})\s*</{tag}>", re.IGNORECASE)
    for n, piece in enumerate(pieces):
        if piece.kind == "own":
            said = piece.text
        if piece.kind != INFORMATION:
            continue
        after = next((p.text for p in pieces[n + 1 :] if p.kind in ("own", INFORMATION)), "")
        match = verdict.search(after.partition("<search>")[0])
        found = piece.text.removeprefix("<information>").removesuffix("</information>").strip()
        goal = last_between(said, "goal", "")
        out.append(Verdict(goal, found, match[1].lower() == yes.lower()) if match else None)
    return out


def own_text(pieces: Sequence[Piece]) -> str:
    """All that the agent said itself."""
    return "".join(p.text for p in pieces if p.kind == "own")


def fault(pieces: Sequence[Piece]) -> str:
    """The first fault of form in what an agent said: a turn that was neither a query nor an answer, a tag that is not
    closed, no answer or more than one; empty where there is none.

    >>> fault([Piece("own", "<think>so<answer> Ulm</answer>")])
    'think is not closed'
    """
    if any(p.kind == "told" and "neither a query nor an answer" in p.text for p in pieces):
        return "a turn with neither a query nor an answer"
    said = own_text(pieces)
    for tag in dict.fromkeys(re.findall(r"</?(\w+)>", said)):
        if tag != INFORMATION and said.count(f"<{tag}>") != said.count(f"</{tag}>"):
            return f"{tag} is not closed"
    if (answers := said.count("</answer>")) != 1:
        return "no answer" if not answers else "more than one answer"
    return ""
