"""HierSearch, agents of two sources under a planner (Tan et al. 2025, arXiv 2508.08088).

One agent searches what is kept locally, another the web; each is trained by itself. A planner, trained last, asks them
as if they were tools. What it is told is evidence that a refiner took from their episodes, each piece with its source,
and not what they thought and concluded, so that what an agent made up is not copied.

    r = 0                              where the form is wrong
    r = F1(answer, gold)               where that is above 0
    r = usage (used / there are)       else
    evidence = of what an agent found what is nearest to its thoughts, and of the rest what is nearest to conclusions
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ..core import (
    Claim,
    Home,
    Method,
    ModelContext,
    ModelRole,
    RewardContext,
    RolloutContext,
    RolloutGroup,
    RolloutRequest,
    Score,
    Scores,
    Term,
    Turn,
    Update,
    WeightSpec,
    block,
    mechanism,
    method,
    outcome,
    premise,
)
from ..core.answers import f1, normalise
from ..core.search_record import INFORMATION, Piece, documents_of, own_text, pieces_of, searches_of
from ..core.tagged_text import last_between, without_tags
from ..core.tool_calls import asked_nobody
from ..credit.advantages import norm
from ..credit.composers import per_trajectory
from ..objective.loss_weights import token_mean
from ..objective.policy import clipped_ratio
from ..reward.agent_record import fault
from ..reward.overlap import word_f1
from ..rollout.search import search_agent, search_on
from .search_r1 import search_r1

AGENTS = {"scribe": ("local",), "herald": ("web",), "sage": ("local", "web")}  # who a planner's name for them calls
STORES = {"local": "scribe", "web": "herald"}  # whose facts an agent's own store has
NOTHING = "nothing found."
ALONE = {"both": False}  # what asks both agents at once would make a planner of one query enough
ROUTES = {"ways": (0.0, 0.6, 0.0, 0.0, 0.2, 0.2), "hops": (1,), "says": "route"}


@method(family="search", paper="2508.08088", catalogue=41, home=Home("factworld", 40, ROUTES))
def hier_search(
    groups: int = 16,
    rollouts: int = 8,
    turns: int = 4,
    low_steps: int = 15,
    refine: bool = True,
    share: float = 0.3,
    usage: float = 0.1,
    both: bool = True,
    flat: bool = False,
    beta: float = 0.0,
) -> Method:
    """GRPO of an agent for each of two sources, then of a planner that asks them and is told refined evidence.

        r = 0 where the form is wrong, else F1, else usage (kinds of tool used / kinds that there are)

    Tan et al. 2025, equations 1 to 4. First the local agent learns for `low_steps` steps to answer from its own store,
    then the web's from its own; then both are frozen, and the planner learns (there 300 steps each, and a KL of 0.001).
    The refiner keeps of an agent's documents the `share` (at least one) nearest to the thought that follows them, as in
    equation 3 (the released code: to the one before), then of the rest the `share` nearest to what the agents that were
    asked concluded. Nearness is the F1 of words in place of an encoder's cosine. An expert's reply is one fact, so a
    share is of all that an agent found for a query and not of each search, and is rounded (there down, but to at least
    one in either step). It is that of their training; in evaluation theirs is 0.4 to 0.8, by the data.

    What is told begins with its source. refine=False: the planner is told an agent's whole episode, thoughts, documents
    and conclusion (as a sentence). both=False: no name asks both agents at once. flat=True: one agent with all sources
    as its tools, trained for all steps.

    Here an agent's store is what one of the task's experts says (tools/experts.py): the scribe's is the local one, the
    herald's the web; of what a store does not cover it has mistaken copies. A planner asks `scribe`, `herald` or, both
    at once, `sage`, and there are no more; their names are those that demonstrations have. All begin as the same model.
    """
    reward = f1_or_tools(usage=usage, both=both)
    base = search_r1(groups=groups, rollouts=rollouts, turns=turns, beta=beta)
    if flat:
        engine = search_agent(answerer="experts", turns=turns)
        return base.replace(programs={"main": engine}, reward=(reward,)).override(decode={"main": engine})
    planner = search_agent(answerer=agents(turns=turns, refine=refine, share=share, both=both), turns=turns)
    main = replace(base.stage, name="planner", programs={"main": planner}, reward=(reward,))
    low = tuple(
        replace(
            main,
            name=role,
            until=low_steps,
            programs={"main": source_agent(role=role, turns=turns)},
            credit=(per_trajectory(model_role=role), norm()),
            updates=(Update((role,), (Term(clipped_ratio(), loss_weights=token_mean()),)),),
        )
        for role in STORES
        if low_steps
    )
    return base.override(
        stages=(*low, main),
        weights={role: WeightSpec() for role in STORES},
        models={role: ModelRole((role,)) for role in STORES},
        decode={"main": planner},
    )


class Evidence(NamedTuple):
    """An agent's thoughts, before each search and at the end, what each search found, its conclusion ("" for none)."""

    thoughts: Sequence[str]
    found: Sequence[Sequence[str]]
    conclusion: str


async def ask_source(
    rollout: RolloutContext, role: str, prompt: str, turns: int, learn: str | None, tool: str
) -> Evidence:
    """An episode of one source's agent, whose queries only its own store answers, whatever name they have."""
    context, thoughts, found, so_far = rollout.model_role(role).begin(prompt), list[str](), list[list[str]](), 0

    async def answer_query(context: ModelContext, turn: Turn) -> None:
        nonlocal so_far
        query = (turn.between("search") or "").rpartition(":")[2].strip()
        reply = without_tags(str(await rollout.tool(tool)(f"{STORES[role]}: {query}")))
        context.append(f"<information>{reply}</information>", span="information")
        thoughts.append(turn.between("think") or "")
        found.append(documents_of(reply))
        so_far = len(rollout.text(context.at))

    answer = await search_on(context, turns, "", answer_query)
    last = last_between(rollout.text(context.at)[so_far:], "think", "")
    context.close(learn=learn, role=role)
    return Evidence([*thoughts, last], found, answer or "")


@block
async def source_agent(
    *, request: RolloutRequest, rollout: RolloutContext, role: str = "local", turns: int = 4, tool: str = "experts"
) -> str | None:
    """An episode of one source's agent on the question itself. role: local or web."""
    return (await ask_source(rollout, role, request.task.prompt, turns, "main", tool)).conclusion or None


@block
async def agents(
    *,
    query: str,
    request: RolloutRequest,
    rollout: RolloutContext,
    turns: int = 4,
    refine: bool = True,
    share: float = 0.3,
    both: bool = True,
    tool: str = "experts",
) -> str:
    """What the agents that a planner's query names found, with its source; without a name that there is an error."""
    name, _, asked = query.partition(":")
    asked, there = asked.strip(), names_of_agents(both)
    if name.strip() not in there or not asked:
        return asked_nobody("agent", there)
    prompt = f"question: what is the {asked}?\n"
    roles = AGENTS[name.strip()]
    every = [await ask_source(rollout, role, prompt, turns, None, tool) for role in roles]
    told = [refined_evidence(one, every, share) if refine else whole_episode(one, asked) for one in every]
    return " ".join(f"{STORES[role]}: {p}" for role, ps in zip(roles, told, strict=True) for p in ps) or NOTHING


def names_of_agents(both: bool) -> list[str]:
    """The names that a planner may use, with that which asks both agents or without.

    >>> names_of_agents(False)
    ['scribe', 'herald']
    """
    return [name for name, roles in AGENTS.items() if both or len(roles) == 1]


def whole_episode(one: Evidence, asked: str) -> list[str]:
    """All that an agent thought, found and concluded, in order.

    >>> whole_episode(Evidence(["look.", "so."], [["the home of Ann is Ulm."]], "Ulm"), "home of Ann")
    ['look.', 'the home of Ann is Ulm.', 'so.', 'the home of Ann is Ulm.']
    """
    rounds = zip(one.thoughts, [*one.found, []], strict=True)
    said = [piece for thought, documents in rounds for piece in (thought, *documents) if piece]
    return [*said, *([f"the {asked} is {one.conclusion}."] if one.conclusion else [])]


def refined_evidence(own: Evidence, every: Sequence[Evidence], share: float = 0.3) -> list[str]:
    """The documents of an agent that are told: the `share`, at least one, nearest to the thought after the search that
    found them, and of the rest the `share` nearest to all agents' conclusions; in the order in which they were found.

    >>> found = [["the home of Ann is Ulm.", "the river of Bob is Po.", "the sea of Cid is Um."]]
    >>> own = Evidence(["look.", "so her home is Ulm."], found, "Po")
    >>> refined_evidence(own, [own]), refined_evidence(own, [own], share=0.2)
    (['the home of Ann is Ulm.', 'the river of Bob is Po.'], ['the home of Ann is Ulm.'])
    """
    near = dict[str, float]()
    for documents, thought in zip(own.found, own.thoughts[1:], strict=True):
        near |= {d: max(near.get(d, 0.0), f1(d, thought)) for d in documents}
    first = nearest(near, share, 1)
    concluded = " ".join(one.conclusion for one in every)
    second = nearest({d: f1(d, concluded) for d in near if d not in first}, share)
    return [d for d in near if d in first or d in second]


def nearest(nearness: Mapping[str, float], share: float, least: int = 0) -> list[str]:
    """The `share` of some documents, rounded, but at least so many, that are nearest; of equal ones the first.

    >>> nearest({"a": 0.0, "b": 0.5, "c": 0.5}, 0.5), nearest({"a": 0.0}, 0.3), nearest({"a": 0.0}, 0.3, 1)
    (['b', 'c'], [], ['a'])
    """
    return sorted(nearness, key=lambda d: -nearness[d])[: max(int(len(nearness) * share + 0.5), least)]


@block
def f1_or_tools(*, group: RolloutGroup, context: RewardContext, usage: float = 0.1, both: bool = True) -> Scores:
    """The F1 of a well formed answer, or where that is 0, `usage` times the share of the tools that were used.

    A planner's tools are the names of its agents, and a source's agent has one. Parts: answer, whether it is right;
    format, searches; copied, whether it is wrong and what an agent made up; invalid, the share of queries that name no
    agent.
    """
    task, out, there = group.request.task, Scores({"reward": {}}), names_of_agents(both)
    for episode in group.episodes:
        below = [pieces_of(context.path(t.leaf), context) for t in episode.trajectories if t.learn is None]
        made_up = {said for pieces in below if (said := unsupported(pieces))}
        for t in episode.learned:
            pieces, searches = pieces_of(context.path(t.leaf), context), searches_of(episode, t, context)
            why = fault(pieces) or ("" if "<think>" in own_text(pieces) else "no thought")
            fit = word_f1(answer=episode.answer, task=task).value or 0.0
            named = [s.query.partition(":")[0].strip() for s in searches]
            used = float(bool(searches)) if t.role in STORES else len(set(named) & set(there)) / len(there)
            parts = {
                "answer": float(fit >= 1.0),
                "format": float(not why),
                "searches": float(len(searches)),
                "copied": float(fit < 1.0 and normalise(str(episode.answer or "")) in made_up),
            }
            if searches and t.role not in STORES:
                parts["invalid"] = sum(name not in there for name in named) / len(named)
            out["reward"][t.leaf] = Score(0.0 if why else fit or usage * used, parts, why)
    return out


def unsupported(pieces: Sequence[Piece]) -> str:
    """What an agent concluded, normalised, where nothing that it found has it; else ""."""
    said = normalise(last_between(own_text(pieces), "answer", ""))
    found = normalise(without_tags(" ".join(p.text for p in pieces if p.kind == INFORMATION), " "))
    return "" if f" {said} " in f" {found} " else said


hier_search.claim = Claim(
    (
        # one agent with all tools leaves something, where both sources are needed too
        premise("accuracy", "flat", 0.95, relation="<", fails_at=0.97),
        premise("accuracy/hops=2", "flat", 0.9, relation="<", fails_at=0.95),
        premise("late:reward/copied", "unrefined", 0.03, fails_at=0.01),  # agents do make things up
        premise("accuracy/hops=2", "flat", "start", by=0.1, fails_at=0.95),  # what needs both sources can be learned
        mechanism("late:reward/copied", "self", "unrefined", by=0.02, relation="<", fails_at=0.0),
        outcome("accuracy/hops=2", "self", "flat", by=0.03, fails_at=0.98),
        outcome("accuracy/hops=2", "self", "unrefined", by=0.02, fails_at=0.99),
        outcome("accuracy/hops=2", "self", "untrained", by=0.03, fails_at=0.98),
    ),
    args=ALONE,
    arms={
        "flat": ("hier_search", {"flat": True, **ALONE}),
        "unrefined": ("hier_search", {"refine": False, **ALONE}),
        "untrained": ("hier_search", {"low_steps": 0, **ALONE}),
    },
    regime="search_sources",
    settings={"eval_every": 12, "lr": 1e-4},
    first_seed=300,
    corrected="on seeds 200 to 207 the rate was three times that which is best for the method: does not hold here",
    idea=("local", "local.*", "web", "web.*", "planner", "planner.*", "main", "main.*", "decode", "models", "weights"),
    because="each agent learns its own source, and the planner sees what they found and not what they say",
)
