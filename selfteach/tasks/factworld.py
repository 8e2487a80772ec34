"""A fictional world of any size, so that nothing about it can be known from pre-training."""

from __future__ import annotations

from functools import cache

import numpy as np

from ..core.errors import BadValue, unknown
from ..core.random_keys import generator
from ..core.registry import task
from ..core.task import TaskSource
from ..tools.experts import experts_named
from .agent_demos import SAYINGS
from .demo_ways import WAYS, WayShares
from .fictional_names import fictional_names
from .options import check_number, check_share
from .quiz import Quiz
from .quiz_source import check, source_of
from .world import Fact, Relation, World

# In the order in which `relations` takes them, so that few of them already make chains.
RELATIONS = {
    r.name: r
    for r in (
        Relation("home", "person", "town", "the home of {s} is {o}.", "the home of {s}"),
        Relation(
            "mayor", "town", "person", "the mayor of {s} is {o}.", "the mayor of {s}", "the town whose mayor is {o}"
        ),
        Relation("mentor", "person", "person", "the mentor of {s} is {o}.", "the mentor of {s}"),
        Relation("guild", "person", "guild", "the guild of {s} is {o}.", "the guild of {s}"),
        Relation("seat", "guild", "town", "the seat of {s} is {o}.", "the seat of {s}", "the guild whose seat is {o}"),
        Relation("river", "town", "river", "the river of {s} is {o}.", "the river of {s}"),
        Relation("friend", "person", "person", "a friend of {s} is {o}.", "a friend of {s}"),
        Relation(
            "craft", "guild", "craft", "the craft of {s} is {o}.", "the craft of {s}", "the guild whose craft is {o}"
        ),
        Relation("realm", "town", "realm", "the realm of {s} is {o}.", "the realm of {s}"),
        Relation("sea", "river", "sea", "the sea of {s} is {o}.", "the sea of {s}"),
    )
}
SHARES = {"person": 0.5, "town": 0.2, "guild": 0.1, "craft": 0.1, "river": 0.06, "realm": 0.02, "sea": 0.02}
ONE_TO_ONE = ("mayor", "seat", "craft")  # no object twice, so that their inverses are unique


@task
def factworld(
    entities: int = 200,
    relations: int = 8,
    hops: tuple[int, ...] = (1, 2, 3),
    held_out: float = 0.2,
    withheld: float = 0.1,
    mix: float = 0.6,
    noise: float = 0.6,
    conflicts: float = 0.0,
    noisy: float = 0.0,
    abstain: float = 0.0,
    nobody: float = 0.0,
    strangers: float = 0.0,
    missing: float = 0.0,
    apart: bool = False,
    ways: tuple[float, ...] = (),
    practised: float = 0.5,
    sure: float = 0.6,
    malformed: float = 0.0,
    worded: float = 0.0,
    aware: float = 0.0,
    unheld: tuple[str, ...] = (),
    looked_up: float = 0.0,
    named: float = 0.0,
    irrelevant: float = 0.0,
    says: str = "",
    experts: tuple[str, ...] = (),
    across: bool = False,
    top: int = 1,
    some: bool = False,
    n_test: int = 400,
    seed: int = 0,
) -> TaskSource:
    """Multi-hop questions, as in `atlas`, about fictional people, towns, guilds and rivers in a world of any size.

    entities   how many people, towns, guilds, crafts, rivers, realms and seas together (half are people), at least 40
    relations  how many kinds of fact, in this order: home, mayor, mentor, guild, seat, river, friend, craft, realm, sea
    hops       numbers of hops asked, 1 to 4
    held_out   share of the subjects that only test questions are about
    withheld   share of facts that the warm start never shows: only the search engine has them
    mix        share of items of memory in the warm start; the rest are demonstrated questions
    noise      share of the demonstrations that are done wrong
    conflicts  share of facts that the search engine's documents also contradict
    noisy      distractors among the documents, as a share of the facts
    abstain    share of the demonstrated questions that a withheld fact is needed for, which it is right to answer with:
               I don't know. With `ways`: chance of that answer where nobody can know the right one, and now and then
               where it is known
    nobody     share of all questions that are about an entity that does not exist, whose gold answer is: I don't know
    strangers  share of all questions that are about an entity of which neither memory nor documents say anything; they
               have an answer of the right type, which nobody can know
    missing    share of facts without a document
    apart      whether no question that is demonstrated is asked in training: the two get a half of the questions each
    ways       shares of the demonstrations that answer carefully (a search for every hop, and what it found), hastily
               (the first search alone), absently (all searches, and another answer), astray (another search), briefly
               (a thought, no search) and directly (neither); they sum to 1. (): right ones, and wrong ones by `noise`
    practised  with `ways`, share of the demonstrations whose way is given with the question
    sure       with `ways`, chance that an answer without a search is shown right
    malformed  with `ways`, chance that a tag is not closed, whether the answer is right or not
    worded     with `ways`, chance that the answer is a sentence, `it is ...`, which counts as right too where this is
               above 0
    aware      with `ways`, chance that a demonstration goes a way that fits what the warm start holds: without a search
               where that is all it takes, with a search else
    unheld     relations of which the warm start shows no fact: only documents have these
    looked_up  with `ways`, share of the demonstrations that need a fact which the warm start does not show; what they
               find is drawn anew each time
    named      with `ways`, share of the demonstrations that are about held-out subjects and need a fact which the warm
               start does not show, so that it knows these names as names, and nothing of them
    irrelevant  share of the engine's results that are another document; with `ways`, demonstrations have such results
               too, and the careful way searches again, in other words
    says       with `ways`, what demonstrations say besides: judge (whether what was found is what was sought), reflect
               (a goal before, the same after), decide (first of all, whether to search or to answer from memory),
               report (each turn is a round of its own, which begins from what the last one reported; half of what was
               found is asked for once more), cite (the pages that led to the answer), route (which expert a query is
               for; adds the tool `experts`), refine (after the answer, whether all was right, and which step went wrong
               first; asks in any wording)
    experts    with says=route, names of the experts that there are (tools/experts.py); (): all
    across     with `experts`, whether questions of several hops are those that none of them can answer alone
    top        documents in an answer of the search tool
    some       an answer of the search tool has 1 to `top` documents, as its query says (SSRL's tests: the first 1 to 3)
    n_test     test questions
    seed       of every random draw, the world included
    """
    task_options = dict(locals())
    check("factworld", **task_options)
    for name in ("strangers", "missing", "looked_up", "named", "irrelevant"):
        check_share("factworld", name, task_options[name])
    if not 40 <= check_number("factworld", "entities", entities) <= 100_000:
        raise BadValue(f"task factworld: entities must be from 40 to 100000, not {entities!r}")
    if not 2 <= check_number("factworld", "relations", relations) <= len(RELATIONS):
        raise BadValue(f"task factworld: relations must be from 2 to {len(RELATIONS)}, not {relations!r}")
    _check_agent(ways, withheld, unheld, max(looked_up, named), says)
    experts_named(experts)
    if (experts or across) and says != "route":
        raise BadValue("task factworld: experts and across are of queries that name an expert; give says=route")
    quiz = Quiz(
        fiction(entities, relations, seed),
        seed,
        tuple(hops),
        held_out,
        withheld,
        mix,
        noise,
        n_test,
        conflicts,
        noisy,
        abstain,
        nobody,
        strangers,
        missing,
        apart,
        way_shares(
            tuple(ways),
            practised=practised,
            sure=sure,
            malformed=malformed,
            abstain=abstain,
            worded=worded,
            aware=aware,
        ),
        tuple(unheld),
        looked_up,
        named,
        irrelevant,
        says,
        tuple(experts),
        across,
    )
    return source_of(quiz, "factworld", task_options, top, some)


def _check_agent(ways: tuple[float, ...], withheld: float, unheld: tuple[str, ...], lacking: float, says: str) -> None:
    """Check the options of an agent's demonstrations. Raises BadValue naming the option."""
    for name in unheld:
        if name not in RELATIONS:
            raise unknown("relation (option unheld) of task factworld", name, RELATIONS)
    if says not in SAYINGS:
        raise unknown("value of option says of task factworld", says, SAYINGS)
    if not ways and (says or lacking):
        raise BadValue("task factworld: says, looked_up and named need ways; give the six shares")
    if lacking and not (withheld or unheld):
        raise BadValue(
            "task factworld: looked_up and named need facts that the warm start does not show; give withheld or unheld"
        )


def way_shares(shares: tuple[float, ...], **chances: float) -> WayShares | None:
    """The ways of demonstrations; None where no shares are given. Raises BadValue naming the option."""
    for name, value in chances.items():
        check_share("factworld", name, value)
    if not shares:
        return None
    if len(shares) != len(WAYS) or abs(sum(check_share("factworld", "ways", s) for s in shares) - 1) > 1e-6:
        raise BadValue(
            f"task factworld: ways must be {len(WAYS)} shares that sum to 1 ({', '.join(WAYS)}), not {shares!r}"
        )
    return WayShares({way: share for way, share in zip(WAYS, shares, strict=True) if share}, **chances)


@cache
def fiction(entities: int, relations: int, seed: int) -> World:
    """The world of a seed; a larger one is a different world, not an extension."""
    kinds = dict(list(RELATIONS.items())[:relations])
    # Two syllables while there are plenty, three in large worlds.
    names = fictional_names(generator(seed, "names", entities), 2 if entities <= 2000 else 3)
    by_type: dict[str, list[str]] = {
        k: [next(names) for _ in range(max(2, round(share * entities)))] for k, share in SHARES.items()
    }
    facts: list[Fact] = []
    for name, r in kinds.items():
        draw = generator(seed, "facts", name, entities)
        subjects, objects = by_type[r.subject], by_type[r.object]
        if name in ONE_TO_ONE:
            targets = [(objects[i],) for i in draw.permutation(len(objects))[: len(subjects)]]
            facts += [Fact(s, name, o) for s, o in zip(subjects, targets, strict=False)]
        else:
            facts += [
                Fact(s, name, _sample_objects(s, objects, (2, 3) if name == "friend" else (1, 1), draw))
                for s in subjects
            ]
    return World(kinds, tuple(facts))


def _sample_objects(
    subject: str, objects: list[str], count: tuple[int, int], draw: np.random.Generator
) -> tuple[str, ...]:
    """Between count[0] and count[1] different objects, never the subject itself."""
    picked = draw.choice(len(objects), size=min(count[1] + 1, len(objects)), replace=False)
    others = [objects[i] for i in picked if objects[i] != subject]
    return tuple(others[: int(draw.integers(count[0], count[1] + 1))])
