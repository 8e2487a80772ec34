"""DeepResearcher, RL of a research agent on a live web (Zheng et al. 2025, arXiv 2504.03160).

The agent learns where it will work: results that are beside the point, pages that do not open, long pages with adverts.
What it asks for is read for it by a second agent, a segment of a page at a time, which notes what is new and stops
where it has what was asked for, or sees that the page has nothing.

    r = -1              where the form is wrong
    r = F1(answer, gold)    else
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from ..core import (
    BadValue,
    Block,
    Claim,
    Home,
    Method,
    RewardContext,
    RolloutContext,
    RolloutGroup,
    RolloutRequest,
    Score,
    Scores,
    TaskSource,
    block,
    mechanism,
    method,
    outcome,
    premise,
    stateful,
)
from ..core.answers import normalise
from ..core.random_keys import generator, key, uniform_at
from ..core.search_record import INFORMATION, Piece, documents_of, facts_of, pieces_of, searches_of
from ..curriculum.select import is_answered, next_tasks, uniform
from ..reward.agent_record import fault
from ..reward.answer import exact_match
from ..reward.overlap import word_f1
from ..rollout.search import closed_book, search_agent
from .search_r1 import search_r1

JUDGED = {"ways": (0.1, 0.3, 0.2, 0.1, 0.1, 0.2), "hops": (1,), "irrelevant": 0.4, "says": "judge"}
NOTHING = "nothing found."
Reader = Literal["segments", "pages"]


@method(family="search", paper="2504.03160", catalogue=114, home=Home("factworld", 40, JUDGED))
def deep_researcher(
    groups: int = 16,
    rollouts: int = 16,
    turns: int = 10,
    live: bool = True,
    reader: Reader = "segments",
    irrelevant: float = 0.4,
    broken: float = 0.1,
    adverts: int = 1,
    checks: int = 10,
    penalty: float = 1.0,
    beta: float = 0.001,
) -> Method:
    """GRPO of a search agent on a web that is not to be relied on, whose pages a reader reads for it.

        r = -penalty where the form is wrong, else F1

    Zheng et al. 2025, section 3, and the released configuration: 256 questions of 16 episodes, 10 turns, a KL of 0.001,
    one update of a batch; a turn that is neither a query nor an answer ends the episode, and every turn has a thought
    (they write its first tag, and a turn that does not close it is at fault). Of the questions those are
    left out that the model answers without a search in one of `checks` attempts (theirs: the model as it was at the
    start, once; here in each step, as it is then). checks=0: all are asked. Their F1 is of sets of words, with
    articles, their form does not mind a second answer, and they have an entropy bonus of 0.001, which is left out here.

    Their web is the real one; here it is made of the task's documents, or of a user's engine (--corpus). A page is what
    they say of one thing, a sentence to a segment (of a corpus a passage), with `adverts` sentences of other pages
    before it; of the results the share `irrelevant` is another page, and the share `broken` does not open, the same
    ones for the same query. Searching and reading are one turn here, two tools there. Their reader is a language model;
    here it is a rule (`read_page`). reader="pages": what is found is told as it stands. live=False: training is on the
    passages of an engine that finds what it is asked for; both are tested on the web, and by `passages` on passages.
    """
    on_web = search_agent(answerer=web_research(reader=reader), turns=turns)
    on_passages = search_agent(answerer="passages", turns=turns)
    made = search_r1(groups=groups, rollouts=rollouts, turns=turns, beta=beta).replace(
        select=not_by_heart(checks=checks) if checks else uniform(),
        programs={"main": on_web if live else on_passages, **({"closed": closed_book()} if checks else {})},
        reward=(f1_or_penalty(penalty=penalty),),
    )
    tools = {"web": web(irrelevant=irrelevant, broken=broken, adverts=adverts), "passages": passages()}
    return replace(made, tools=tools, decode={"main": on_web, "passages": on_passages})


@block
@stateful(int)
def not_by_heart(
    *,
    n: int,
    rollouts: int,
    finished_rounds: list[list[RolloutGroup]],
    source: TaskSource,
    seed: int,
    state: int,
    checks: int = 10,
    rounds: int = 3,
    program: str = "closed",
) -> tuple[list[RolloutRequest], int]:
    """The next `n` training tasks that none of `checks` episodes of a program answers, `rollouts` episodes of each.

    The program answers without tools, so that what is asked is what has to be found. Each round checks as many tasks
    as are missing; after `rounds` of them those that passed are asked, however few, or where none did, the last ones.
    """
    checked = [g for round_ in finished_rounds for g in round_ if g.request.program == program]
    if len(checked) < sum(map(len, finished_rounds)):
        return [], state
    passed = [g.request.task for g in checked if not is_answered(g, exact_match())]
    if finished_rounds and (len(passed) >= n or len(finished_rounds) >= rounds):
        asked = passed or [g.request.task for g in finished_rounds[-1]]
        return [RolloutRequest(task, rollouts) for task in asked[:n]], state
    missing = n - len(passed)
    tasks = next_tasks(source, seed, state, missing)
    return [RolloutRequest(task, checks, program) for task in tasks], state + missing


class Page(NamedTuple):
    """A page that was found: its title, and its segments, each some sentences; none where it does not open."""

    title: str
    segments: tuple[str, ...]


@block
def web(
    *,
    source: TaskSource,
    results: int = 3,
    irrelevant: float = 0.4,
    broken: float = 0.1,
    adverts: int = 1,
    engine: Block | None = None,
) -> Callable[[str], list[Page] | str]:
    """The pages that a query finds, best first; the same ones for the same query always.

    results     passages among whose pages these are
    irrelevant  share of them in whose place another page is found
    broken      share of them that do not open
    adverts     sentences of other pages before each segment of a page
    engine      a user's search tool in place of the task's; of a server no other pages can be drawn, so both must be 0
    """
    if engine is not None and engine.hyper_parameters["url"] and (irrelevant or adverts):
        raise BadValue("web: a server has no other pages to draw; set irrelevant and adverts to 0")
    pages = _engine(source, results, engine).pages

    def page(name: str) -> Page:
        draw, segments = generator("adverts", name), list[str]()
        for text in pages.segments(name):
            shown = [pages.sentence(other) for other in pages.drawn(draw, adverts, but=name)] if adverts else []
            segments.append(" ".join([*shown, text]))
        return Page(name, tuple(segments))

    def found(query: str) -> list[Page] | str:
        out, names = list[Page](), pages.find(query)
        if isinstance(names, str):
            return names
        for name in names:
            if uniform_at(key("irrelevant", query, name), 0) < irrelevant:
                (name,) = pages.drawn(generator("irrelevant", query, name), 1)
            opens = uniform_at(key("broken", query, name), 0) >= broken
            out.append(page(name) if opens else Page(name, ()))
        return out

    return found


@block
def passages(*, source: TaskSource, results: int = 1, engine: Block | None = None) -> Callable[[str], str]:
    """What the task's engine, or a user's, finds where it misunderstands no query."""
    return _engine(source, results, engine)


def _engine(source: TaskSource, results: int, engine: Block | None) -> Any:
    """A search tool, undisturbed, with its `pages`: a user's, or the task's."""
    if engine is not None:
        return engine.replace(top=results)()
    if source.corpus is None or "search" not in source.tools:
        raise BadValue(
            f"task {source.name}: has no documents to make a web of; give a corpus (--corpus FILE), or take a task"
            " that has some, such as factworld"
        )
    return source.tools["search"].replace(top=results, noise=0.0)(source=source)


@block
async def web_research(
    *, query: str, request: RolloutRequest, rollout: RolloutContext, tool: str = "web", reader: Reader = "segments"
) -> str:
    """What a query's pages say of it, as a reader notes it (see `read_page`), or as they stand (reader="pages")."""
    del request
    pages: list[Page] | str = await rollout.tool(tool)(query)
    if isinstance(pages, str):  # the engine did not answer, and says so
        return pages
    if reader == "pages":
        return " ".join(text for page in pages for text in page.segments) or NOTHING
    note = ""
    for page in pages:
        note = read_page(query, page.segments, note)
        if likeness(query, note) == 1:
            break
    return note or NOTHING


def read_page(query: str, segments: Sequence[str], note: str = "", relevance: float = 0.5, patience: int = 2) -> str:
    """The note after reading a page segment by segment: the sentence with the most words of the query so far.

    Only what has more of them than the last note is new. Reading stops where a sentence has all of them, and after
    `patience` segments without one that has the share `relevance`.

    >>> ann = ["the guild of Ann is Smiths.", "the home of Ann is Ulm.", "the home of Ann is Bonn."]
    >>> read_page("home of Ann", ann), read_page("craft of Bob", ann)
    ('the home of Ann is Ulm.', '')
    """
    useless = 0
    for segment in segments:
        nearest = max(documents_of(segment), key=lambda sentence: likeness(query, sentence), default="")
        useless = useless + 1 if likeness(query, nearest) < relevance else 0
        if likeness(query, nearest) >= relevance and likeness(query, nearest) > likeness(query, note):
            note = nearest
        if useless == patience or likeness(query, note) == 1:
            break
    return note


def likeness(query: str, sentence: str) -> float:
    """The share of a query's words, but for `of`, that a sentence has; 0 for a query without words.

    >>> likeness("home of Ann", "the guild of Ann is Smiths.")
    0.5
    """
    words = set(normalise(query).split()) - {"of"}
    return len(words & set(normalise(sentence).split())) / len(words) if words else 0.0


@block
def f1_or_penalty(*, group: RolloutGroup, context: RewardContext, penalty: float = 1.0) -> Scores:
    """The F1 of an answer, or -penalty where the form is wrong.

    Parts: answer, whether it is right; format, searches; told, words that a search brought in the mean; where a search
    found no fact that the question needs (tag `chain`): vain, their share, and again, the share of these after which it
    searched once more.
    """
    task, out = group.request.task, Scores({"reward": {}})
    facts = facts_of(task)
    for episode, t in group.learned:
        pieces, searches = pieces_of(context.path(t.leaf), context), searches_of(episode, t, context)
        why = fault(pieces) or unthought(pieces)
        fit = word_f1(answer=episode.answer, task=task).value or 0.0
        parts = {"answer": float(fit >= 1.0), "format": float(not why), "searches": float(len(searches))}
        vain = [n for n, s in enumerate(searches) if not any(fact in s.found for fact in facts)]
        if searches:
            parts["told"] = sum(len(s.found.split()) for s in searches) / len(searches)
            parts["vain"] = len(vain) / len(searches)
        if vain:
            parts["again"] = sum(n + 1 < len(searches) for n in vain) / len(vain)
        out["reward"][t.leaf] = Score(-penalty if why else fit, parts, why)
    return out


def unthought(pieces: Sequence[Piece]) -> str:
    """Why the form is wrong of a response in which a turn has no closed thought; "" where all have one.

    >>> found = [Piece("own", "<think>so</think><search>a</search>"), Piece("information", "b")]
    >>> unthought([*found, Piece("own", "<answer>b</answer>")])
    'a turn without a thought'
    """
    turns = "".join({"own": p.text, INFORMATION: "\0"}.get(p.kind, "") for p in pieces).split("\0")
    return "a turn without a thought" if any(t and "</think>" not in t for t in turns) else ""


WEB: dict[str, Any] = {"checks": 0, "turns": 4}  # the model of this regime knows no fact by heart

deep_researcher.claim = Claim(
    (
        # on passages, on which it was trained, the clean arm is good; on the web some searches come to nothing
        premise("accuracy+passages", "clean", 0.7, fails_at=0.6),
        premise("late:reward/vain", "self", 0.15, fails_at=0.1),
        # who met failures goes on after one
        mechanism("late:reward/again", "self", "clean", by=0.1, fails_at=0.95),
        mechanism("late:reward/told", "self", "pages", by=0.5, relation="<", scale="ratio", fails_at=0.0),
        outcome("accuracy", "self", "clean", by=0.05, fails_at=0.96),
        outcome("accuracy+passages", "self", "clean", by=0.03, relation=">=", fails_at=1.0),
        outcome("accuracy", "self", "pages", by=0.02, relation=">=", fails_at=1.0),
    ),
    arms={
        "clean": ("deep_researcher", {**WEB, "live": False}),
        "pages": ("deep_researcher", {**WEB, "reader": "pages"}),
    },
    args=WEB,
    settings={"steps": 150},  # on the web it learns more slowly
    regime="search_noisy",
    idea=("main.program", "decode"),
    first_seed=400,
    corrected="on seeds 200 to 207 it learned for 60 steps and was compared with its own start, not with who met no "
    "failures; on 300 to 307 an answer without a thought was of good form, unlike theirs: mechanism not shown",
    because="what fails on the way is met in training, so that going on after a failure is what is rewarded",
)
