"""REDSearcher, a long-horizon search agent at low cost (Chu et al. 2026, arXiv 2602.14234).

Questions are chosen by two constraints: the shape of the graph behind them, and how scattered their evidence is. Before
an agent is shown whole trajectories, which are dear, it is taught what they are made of, which costs nothing: to see
what to look for next, to put it as a call, and to read what was asked for out of a page.

    mid-training    loss = mean over tokens of -logp      of atomic skills
    then            the same                              of `pool` trajectories of an expert, what was found left out
    then            GRPO, R = EM                          in a local web
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any, Literal

import numpy as np

from ..core import (
    BadValue,
    Claim,
    Home,
    Method,
    RewardContext,
    RolloutGroup,
    RolloutRequest,
    Score,
    Scores,
    Stage,
    Task,
    TaskSource,
    Term,
    Update,
    block,
    mechanism,
    method,
    outcome,
    premise,
    stateful,
)
from ..core.random_keys import generator, key
from ..credit.composers import per_trajectory
from ..curriculum.select import experts, first_task_index, suiting_tasks
from ..objective.likelihood import nll
from ..objective.loss_weights import token_mean
from ..reward.agent_record import facts_of, fault, keywords_of, pieces_of, searches_of
from ..reward.answer import exact_match
from ..rollout.single import read
from .search_r1 import search_r1

SCATTERED = {"hops": (2, 3), "dispersion": 1.0, "ways": (0.3, 0.0, 0.3, 0.4)}
SKILLS = ("plan", "call", "ground")
Skill = Literal["plan", "call", "ground"]


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
    easiest: int = 2,
    hardest: int = 6,
    dispersion: float = 0.5,
    beta: float = 0.0,
) -> Method:
    """Mid-training on atomic skills, supervised training on trajectories, then GRPO on questions of a certain shape.

        asked: easiest <= topology <= hardest and dispersion >= the threshold
        topology = facts + intersections;   dispersion = pages that the facts stand on / facts

    Chu et al. 2026, from their abstract and the released description; training code was not released, and steps, rates
    and bounds are chosen here. The atomic skills are made of a task's questions, documents and keywords: to plan (what
    is to be found first, and next), to call (a sub-question as a query), to ground (an answer read off a
    page that has `distractors` other sentences). They also simulate long interactions.
    Their questions are also rewritten so that only a tool answers a part of them (maps, calculation, images), and those
    left out that a model answers without searching; `fact_graph` has one tool and nothing that is known by heart.
    Trajectories are the task's experts', theirs a strong model's (10,000). mid_steps=0 or sft_steps=0: without that
    stage; easiest=1 and dispersion=0: all questions of up to `hardest`.
    """
    shape = shaped_tasks(easiest=easiest, hardest=hardest, dispersion=dispersion)
    main = search_r1(groups=groups, rollouts=rollouts, turns=turns, beta=beta).replace(
        select=shape, reward=(right_and_searches(),)
    )
    taught = Stage(
        name="trajectories",
        select=experts(pool=pool),
        programs={"main": read()},
        reward=(),
        credit=(per_trajectory(),),
        updates=(Update(("policy",), (Term(nll(), loss_weights=token_mean()),), lr=teach_lr),),
        groups=batch,
        rollouts=1,
        until=sft_steps,
        data=True,
    )
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
    easiest: int = 2,
    hardest: int = 6,
    dispersion: float = 0.5,
) -> tuple[list[RolloutRequest], int]:
    """The next `n` training tasks whose tags `topology` and `dispersion` are within bounds (see `red_searcher`).

    A task without these tags suits. Raises BadValue where of very many tasks fewer do.
    """
    if finished_rounds:
        return [], state

    def suits(task: Task) -> bool:
        scattered = float(task.tags.get("dispersion", 1.0)) >= dispersion
        return scattered and easiest <= float(task.tags.get("topology", easiest)) <= hardest

    tasks, seen = suiting_tasks(source, first_task_index(seed) + state, n, suits)
    if len(tasks) < n:
        raise BadValue(
            f"task {source.name}: of {seen} questions only {len(tasks)} have a topology from {easiest} to {hardest} and"
            f" a dispersion of at least {dispersion}; move the bounds, or make the task's questions so"
        )
    return [RolloutRequest(task, rollouts) for task in tasks], state + seen


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
        draw, task = generator(seed, "skill", i), source.train(first + i)
        skill: Skill = SKILLS[i % len(SKILLS)]

        def others(draw: np.random.Generator = draw) -> list[str]:
            return [documents[int(k)] for k in draw.integers(len(documents), size=distractors)]

        prompt, said = skill_item(task, skill, draw, others)
        out.append(RolloutRequest(Task(f"{skill}/{i}", prompt, data=said, tags={"kind": skill}), 1))
    return out, state + n


def skill_item(
    task: Task, skill: Skill, draw: np.random.Generator, others: Callable[[], Sequence[str]]
) -> tuple[Any, tuple[str, ...]]:
    """(prompt, what is said and found in turns) of one skill on a task, `call` and `ground` at a fact that is drawn.

        plan    the question                                    all queries, each after what those before it found
        call    the question of one fact                        its query
        ground  its query, and a page that states the fact      what the page says of it

    others  sentences of other pages, among which the fact stands
    """
    queries = [f"<search>{ways[0]}</search>" for ways in keywords_of(task)]
    at, facts = int(draw.integers(len(queries))), [str(fact) for fact in task.tags["chain"]]
    if skill == "plan":
        found = [f"<information>{fact}</information>" for fact in facts[:-1]]
        return task.prompt, tuple(text for pair in zip_longest(queries, found) for text in pair if text)
    if skill == "call":
        return _as_prompt(task, f"question: what is {task.tags['sub_questions'][at]}?\n"), (queries[at],)
    page = [*others(), facts[at]]
    shuffled = " ".join(page[int(k)] for k in draw.permutation(len(page)))
    answer = stated(keywords_of(task)[at][0], facts[at])
    asked = f"{queries[at]}<information>{shuffled}</information>"
    return _as_prompt(task, asked), (f"<answer> {answer}</answer>",)


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
