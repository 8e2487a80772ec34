"""REDSearcher, a long-horizon search agent at low cost (Chu et al. 2026, arXiv 2602.14234).

Questions are chosen by two constraints: how entangled the graph behind them is, and on how many pages their evidence
stands. Before an agent is shown whole trajectories, which are dear, it is taught what they are made of, which costs
nothing: to plan what to look for, to put it as a call, and to read what was asked for out of a page.

    mid-training    loss = mean over tokens of -logp      of atomic skills
    then            the same                              of `pool` trajectories of an expert, what was found left out
    then            GRPO, clip-higher, R = EM             in a local web
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..core import (
    BadValue,
    Claim,
    Column,
    Home,
    Method,
    RewardContext,
    RolloutGroup,
    RolloutRequest,
    Score,
    Scores,
    Seq,
    Task,
    TaskSource,
    Term,
    block,
    mechanism,
    method,
    outcome,
    premise,
    stateful,
)
from ..core.random_keys import generator, key
from ..core.search_record import facts_of, pieces_of, searches_of
from ..curriculum.select import first_task_index, suiting_tasks
from ..objective.loss_weights import token_mean
from ..objective.policy import clipped_ratio
from ..reward.agent_record import fault, keywords_of
from ..reward.answer import exact_match
from .base import imitation_stage
from .search_r1 import search_r1

SCATTERED = {"hops": (2, 3), "dispersion": 1.0, "ways": (0.3, 0.0, 0.3, 0.4)}
SKILLS = ("plan", "call", "ground")


@method(family="search", paper="2602.14234", catalogue=70, home=Home("fact_graph", 40, SCATTERED))
def red_searcher(
    groups: int = 16,
    rollouts: int = 8,
    turns: int = 8,
    mid_steps: int = 400,
    sft_steps: int = 100,
    pool: int = 512,
    batch: int = 64,
    teach_lr: float = 1e-3,
    distractors: int = 2,
    width: int = 1,
    wanted_pages: int = 2,
    low: float = 0.2,
    high: float = 0.28,
    beta: float = 0.0,
) -> Method:
    """Mid-training on atomic skills, supervised training on trajectories, then GRPO on questions of a certain shape.

        asked: treewidth of a question's facts >= width, and pages that they stand on >= wanted_pages

    Chu et al. 2026, sections 3, 5, 6 and appendix A; training code was not released. The treewidth is 1 of a chain, 2
    with a cycle; the pages are the fewest that cover a question (MSD). Theirs aims at a treewidth of 2 or more in all
    its questions; here bounds are of RL questions, and `width` is 1: `fact_graph` makes chains, and of its joints one
    or two in a hundred close a cycle (hops=(4,), joints=1, top=3). Theirs are also rewritten so that a tool alone
    answers a part (maps, images), and left out where a model is right without a search, or nearly always or never.

    Mid-training there has two stages, grounding and planning, then simulated tools and long episodes (batches of 512
    and 256; then 128 of 10,000 trajectories of a strong model; rates from 5e-5 to 1e-6); here one has three skills in
    turns: to plan (all queries, before anything is found), to call (a sub-question as a query), to ground (an answer
    read off a page that has `distractors` other sentences). Trajectories are the task's experts'. Steps, rates and
    bounds are chosen here. mid_steps=0 or sft_steps=0: without that stage.

    RL there: 32 questions of 16 answers at 1e-6, `high` as here, no KL, no entropy term, an LLM judge's 0 or 1. `low`
    is DAPO's; a batch is one update here, where neither acts. What repeats itself, is overlong or often fails in its
    calls counts in advantages and has no gradient there; here, what a limit of tokens cut.
    """
    base = search_r1(groups=groups, rollouts=rollouts, turns=turns, beta=beta)
    (update,) = base.stage.updates
    ratio = Term(clipped_ratio(low=low, high=high), loss_weights=token_mean())
    main = base.replace(
        select=shaped_tasks(width=width, wanted_pages=wanted_pages),
        reward=(right_and_searches(),),
        credit=(*base.stage.credit, uncut()),
        updates=(replace(update, terms=(ratio, *update.terms[1:])),),
    )
    taught = imitation_stage("trajectories", sft_steps, pool, batch, lr=teach_lr)
    mid = replace(taught, name="mid", select=atomic_skills(distractors=distractors), until=mid_steps)
    stages = (*((mid,) if mid_steps else ()), *((taught,) if sft_steps else ()), *main.stages)
    return main.override(stages=stages)


@block
@stateful(int)
def shaped_tasks(
    *,
    n: int,
    rollouts: int,
    finished_rounds: list[list[RolloutGroup]],
    source: TaskSource,
    seed: int,
    state: int,
    width: int = 1,
    wanted_pages: int = 2,
) -> tuple[list[RolloutRequest], int]:
    """The next `n` training tasks whose facts have at least this treewidth and stand on at least so many pages.

    By the tags `chain` and `dispersion` (pages / facts); a task without one suits. Raises BadValue where of very many
    tasks fewer do.
    """
    if finished_rounds:
        return [], state

    def suits(task: Task) -> bool:
        facts, share = facts_of(task), float(task.tags.get("dispersion", wanted_pages))
        return not facts or (treewidth(facts) >= width and round(share * len(facts)) >= wanted_pages)

    tasks, seen = suiting_tasks(source, first_task_index(seed) + state, n, suits)
    if len(tasks) < n:
        raise BadValue(
            f"task {source.name}: of {seen} questions only {len(tasks)} have a treewidth of {width} or more and facts"
            f" on {wanted_pages} pages or more; move the bounds, or make the task's questions so"
        )
    return [RolloutRequest(task, rollouts) for task in tasks], state + seen


def treewidth(facts: Sequence[str]) -> int:
    """The treewidth of the graph in which a fact joins the first name in it to the others: 1 of a tree, 2 with a cycle,
    3 where four names all meet; above 2 a bound from above.

    A name of the fewest neighbours is left out and these are joined, again and again: the most that one had.

    >>> chain = ["the home of Ann is Ulm.", "the mayor of Ulm is Bob."]
    >>> treewidth(chain), treewidth([*chain, "the mentor of Bob is Ann."])
    (1, 2)
    """
    near, most = dict[str, set[str]](), 1
    for names in (re.findall(r"\b[A-Z]\w*", fact) for fact in facts):
        for other in (name for name in names[1:] if name != names[0]):
            near.setdefault(names[0], set()).add(other)
            near.setdefault(other, set()).add(names[0])
    while near:
        name = min(near, key=lambda n: len(near[n]))
        joined = near.pop(name)
        most = max(most, len(joined))
        for other in joined:
            near[other] = (near[other] | joined) - {name, other}
    return most


@block
def uncut(*, truncated: Seq) -> dict[str, Column]:
    """No gradient of answers that a limit cut, after advantages were taken: keep f64[S] = 1 - truncated."""
    return {"keep": Column("seq", 1.0 - np.asarray(truncated, np.float64))}


@block
@stateful(int)
def atomic_skills(
    *,
    n: int,
    finished_rounds: list[list[RolloutGroup]],
    source: TaskSource,
    seed: int,
    state: int,
    distractors: int = 2,
) -> tuple[list[RolloutRequest], int]:
    """`n` items of atomic skills, in turns, made of the next training tasks; for a program that reads them.

    Raises BadValue for a task without documents or keywords.
    """
    if finished_rounds:
        return [], state
    if source.corpus is None:
        raise BadValue(f"task {source.name}: has no documents to read from; take one that has, such as fact_graph")
    documents, first = [d.text for d in source.corpus()], key(seed, "skills") % 2**31
    out = list[RolloutRequest]()
    for i in range(state, state + n):
        draw, task, skill = generator(seed, "skill", i), source.train(first + i), SKILLS[i % len(SKILLS)]
        others = [documents[int(k)] for k in draw.integers(len(documents), size=distractors)]
        prompt, said = skill_item(task, skill, draw, others)
        out.append(RolloutRequest(Task(f"{skill}/{i}", prompt, data=said, tags={"kind": skill}), 1))
    return out, state + n


def skill_item(
    task: Task, skill: str, draw: np.random.Generator, others: Sequence[str] = ()
) -> tuple[Any, tuple[str, ...]]:
    """(prompt, what is said) of one skill on a task, `call` and `ground` at a fact that is drawn.

        plan    the question                                    all queries, without what any of them finds
        call    the question of one fact                        its query
        ground  its query, and a page that states the fact      what the page says of it

    others  sentences of other pages, among which the fact stands
    """
    queries = [f"<search>{ways[0]}</search>" for ways in keywords_of(task)]
    at, facts = int(draw.integers(len(queries))), [str(fact) for fact in task.tags["chain"]]
    if skill == "plan":
        return task.prompt, ("".join(f"<search>{query}</search>" for query in planned_queries(task)),)
    if skill == "call":
        return _as_prompt(task, f"question: what is {task.tags['sub_questions'][at]}?\n"), (queries[at],)
    page = [*others, facts[at]]
    shuffled = " ".join(page[int(k)] for k in draw.permutation(len(page)))
    answer = stated(keywords_of(task)[at][0], facts[at])
    asked = f"{queries[at]}<information>{shuffled}</information>"
    return _as_prompt(task, asked), (f"<answer> {answer}</answer>",)


def planned_queries(task: Task) -> list[str]:
    """The queries of a question before any is asked: what one is to find stands in the next as it is described."""
    described = {name: name for name in re.findall(r"\w+", str(task.prompt))}  # what the question itself names
    rows, out = zip(keywords_of(task), task.tags["sub_questions"], facts_of(task), strict=True), list[str]()
    for (query, *_), asked, fact in rows:
        then, wanted = (re.sub(r"\w+", lambda m: described.get(m[0], m[0]), text) for text in (query, asked))
        out.append(then)
        for name in stated(query, fact).split(" and "):
            described.setdefault(name, wanted)
    return out


def _as_prompt(task: Task, text: str) -> Any:
    """The text, or a user's message where the task's own prompts are messages."""
    return text if isinstance(task.prompt, str) else [{"role": "user", "content": text.strip()}]


def stated(query: str, sentence: str) -> str:
    """What a sentence says of a query: the rest of it, from the first name that the query does not have.

    >>> stated("home of Ann", "the home of Ann is Ulm."), stated("town whose mayor is Bob", "the mayor of Ulm is Bob.")
    ('Ulm', 'Ulm')
    """
    asked = set(re.findall(r"\w+", query))
    new = [word for word in re.findall(r"\w+", sentence) if word not in asked and word[0].isupper()]
    return " and ".join(new)


@block
def right_and_searches(*, group: RolloutGroup, context: RewardContext) -> Scores:
    """Whether the answer is right. Parts: answer, format, searches; facts, how many the question needs."""
    task, out = group.request.task, Scores({"reward": {}})
    for episode, t in group.learned:
        why = fault(pieces_of(context.path(t.leaf), context))
        right = exact_match(answer=episode.answer, task=task).value or 0.0
        searches = len(searches_of(episode, t, context))
        parts = {"answer": right, "format": float(not why), "searches": float(searches)}
        parts["facts"] = float(len(facts_of(task)))
        out["reward"][t.leaf] = Score(right, parts, why)
    return out


FEW = {"pool": 128, "mid_steps": 600, "sft_steps": 200}

red_searcher.claim = Claim(
    (
        premise("accuracy", "untaught", 0.8, relation="<", fails_at=0.9),  # trajectories alone leave something
        mechanism("early:reward/answer", "self", "untaught", by=0.1, fails_at=0.9),
        outcome("accuracy", "self", "untaught", by=0.1, fails_at=0.95),
        outcome("accuracy", "self", "twice", by=0.03, relation=">=", fails_at=1.0),
    ),
    arms={
        "untaught": ("red_searcher", {**FEW, "mid_steps": 0}, {"steps": 300}),
        "twice": ("red_searcher", {**FEW, "mid_steps": 0, "pool": 256}, {"steps": 300}),
    },
    args=FEW,
    settings={"steps": 900, "eval_every": 100},
    regime="search_untaught",
    idea=("mid", "mid.*", "trajectories", "trajectories.*"),
    differs={"settings.steps": "every arm has 200 steps on trajectories and a hundred of RL"},
    because="what a trajectory is made of is learned from what costs nothing, so that few of them are enough",
)
