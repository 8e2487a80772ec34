"""A graph of facts for multi-hop questions: entities, relations, one sentence per fact, and chains of hops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np


@dataclass(frozen=True)
class Relation:
    """One kind of fact, and its wording, with {s} for the subject and {o} for the objects.

    name      what a thought calls the object: "capital"
    subject   type of the subject; `object`: type of the objects
    sentence  never begins with an entity, so that a name is always the same tokens (after a space)
    phrase    noun phrase of the object: "the capital of {s}"; the query is the phrase without its article
    inverse   noun phrase of the subject: "the country whose capital is {o}"; used where only one subject has that
              object; "": never
    """

    name: str
    subject: str
    object: str
    sentence: str
    phrase: str
    inverse: str = ""


class Fact(NamedTuple):
    """A subject, a relation (by name) and the objects, all of which are right answers."""

    subject: str
    relation: str
    objects: tuple[str, ...]


class Hop(NamedTuple):
    """One step of a question: along a relation, or against it."""

    relation: str
    forward: bool = True


class Chain(NamedTuple):
    """The hops of a question, and one path over them.

    start  the entity that the question names; `hops`: the steps from it
    facts  numbers of the facts on the path, one per hop
    path   entities on it, start and final answer included: hops + 1 of them
    reach  every entity that some path of the question starts from or passes, and the subject of every fact used
    golds  all right answers, that of the path first
    """

    start: str
    hops: tuple[Hop, ...]
    facts: tuple[int, ...]
    path: tuple[str, ...]
    reach: frozenset[str]
    golds: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class World:
    """Facts and their relations; entities have unique names.

    aliases  name -> other accepted spellings
    reserved  names, besides those of its entities, that something which does not exist in it may not have either
    """

    relations: Mapping[str, Relation]
    facts: tuple[Fact, ...]
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    reserved: frozenset[str] = frozenset()

    @cached_property
    def fact_of_subject(self) -> dict[tuple[str, str], int]:
        """(subject, relation) -> number of the fact."""
        return {(f.subject, f.relation): i for i, f in enumerate(self.facts)}

    @cached_property
    def fact_of_object(self) -> dict[tuple[str, str], int]:
        """(object, relation) -> number of the fact, where one subject alone has that object.

        Only for relations with an inverse.
        """
        numbers: dict[tuple[str, str], list[int]] = {}
        for i, f in enumerate(self.facts):
            if self.relations[f.relation].inverse:
                for o in f.objects:
                    numbers.setdefault((o, f.relation), []).append(i)
        return {key: facts[0] for key, facts in numbers.items() if len(facts) == 1}

    @cached_property
    def leading_to(self) -> dict[str, list[tuple[Hop, str]]]:
        """Entity -> (hop, subject) of each fact that it is the one object of."""
        out: dict[str, list[tuple[Hop, str]]] = {}
        for f in self.facts:
            if len(f.objects) == 1:
                out.setdefault(f.objects[0], []).append((Hop(f.relation), f.subject))
        return out

    @cached_property
    def descriptions(self) -> dict[str, list[tuple[Hop, str]]]:
        """Entity -> (hop, object) of each fact by which alone it is known without its name: `the town whose ...`."""
        out: dict[str, list[tuple[Hop, str]]] = {}
        for (o, relation), n in self.fact_of_object.items():
            if self.facts[n].objects == (o,):
                out.setdefault(self.facts[n].subject, []).append((Hop(relation, False), o))
        return out

    @cached_property
    def subjects(self) -> list[str]:
        """Entities that some fact is about, in order of their first fact."""
        return list(dict.fromkeys(f.subject for f in self.facts))

    @cached_property
    def entities(self) -> list[str]:
        """Subjects and objects, in order of their first fact."""
        return list(dict.fromkeys(e for f in self.facts for e in (f.subject, *f.objects)))

    @cached_property
    def taken(self) -> frozenset[str]:
        """Names that something which does not exist may not have: those of entities, and the reserved ones."""
        return self.reserved.union(self.entities)

    @cached_property
    def types(self) -> dict[str, list[str]]:
        """Type -> its entities, in order of first appearance.

        An entity can be of several types (a capital, a largest city).
        """
        out: dict[str, dict[str, None]] = {}
        for f in self.facts:
            r = self.relations[f.relation]
            out.setdefault(r.subject, {})[f.subject] = None
            for o in f.objects:
                out.setdefault(r.object, {})[o] = None
        return {t: list(es) for t, es in out.items()}

    @cached_property
    def type_of(self) -> dict[str, str]:
        """Subject -> its type."""
        return {f.subject: self.relations[f.relation].subject for f in self.facts}

    def renamed(self, names: Mapping[str, str], reserved: frozenset[str] = frozenset()) -> World:
        """The same graph under other names: facts keep their numbers and order, so that draws by number are the same.

        names  entity -> its name, a different one for each; who has a new name has no other spelling; who is not in it
               keeps its own, and its spellings
        """
        facts = tuple(
            Fact(names.get(f.subject, f.subject), f.relation, tuple(names.get(o, o) for o in f.objects))
            for f in self.facts
        )
        kept = {e: self.aliases[e] for e in self.entities if e not in names and e in self.aliases}
        return World(self.relations, facts, kept, reserved)

    def sentence(self, fact: Fact | int) -> str:
        """The one sentence that states a fact."""
        f = self.facts[fact] if isinstance(fact, int) else fact
        return self.relations[f.relation].sentence.format(s=f.subject, o=listing(f.objects))

    def phrase(self, hop: Hop, of: str) -> str:
        """The noun phrase of what a hop leads to: `of` is an entity, or the phrase of one."""
        r = self.relations[hop.relation]
        return r.phrase.format(s=of) if hop.forward else r.inverse.format(o=of)

    def query(self, hop: Hop, of: str) -> str:
        """The search query of a hop: its phrase without the article."""
        phrase = self.phrase(hop, of)
        return phrase.split(" ", 1)[1] if phrase.split(" ", 1)[0] in ("the", "a", "an") else phrase

    def noun(self, hop: Hop) -> str:
        """What a thought calls the thing a hop leads to."""
        return hop.relation if hop.forward else self.relations[hop.relation].subject

    def types_at(self, hop: Hop) -> tuple[str, str]:
        """(type it starts from, type it leads to) of a hop."""
        r = self.relations[hop.relation]
        return (r.subject, r.object) if hop.forward else (r.object, r.subject)

    def fact_at(self, entity: str, hop: Hop) -> int | None:
        """The number of the fact that a hop from an entity uses; None where there is none."""
        return (self.fact_of_subject if hop.forward else self.fact_of_object).get((entity, hop.relation))

    def targets(self, fact: int, hop: Hop) -> tuple[str, ...]:
        """The entities that a hop over a fact leads to."""
        return self.facts[fact].objects if hop.forward else (self.facts[fact].subject,)

    @cached_property
    def hops(self) -> list[Hop]:
        """Every hop that some entity can take."""
        used = {f.relation for f in self.facts}
        inverse = {relation for _, relation in self.fact_of_object}
        return [
            h for r in self.relations for h in (Hop(r), Hop(r, False)) if (r in used if h.forward else r in inverse)
        ]

    def templates(self, length: int) -> list[tuple[Hop, ...]]:
        """All sequences of so many hops whose types fit, none of which reverses the hop before it."""
        out: list[tuple[Hop, ...]] = [(h,) for h in self.hops]
        for _ in range(length - 1):
            out = [
                (*t, h)
                for t in out
                for h in self.hops
                if self.types_at(t[-1])[1] == self.types_at(h)[0] and not _reverses(t[-1], h)
            ]
        return out

    def starts(self, hop: Hop) -> list[str]:
        """Entities from which a hop can be taken, in order."""
        return [
            e
            for e, relation in (self.fact_of_subject if hop.forward else self.fact_of_object)
            if relation == hop.relation
        ]

    def walk(self, start: str, hops: Sequence[Hop], draw: np.random.Generator) -> Chain | None:
        """The chain of hops from an entity: all paths are followed, and one is drawn.

        None where some path ends early (the gold answers would be incomplete) or the one drawn returns to an entity.
        """
        frontier, entity = [start], start
        path, facts, reach = [start], [], {start}
        for hop in hops:
            numbers = [self.fact_at(e, hop) for e in frontier]
            if any(n is None for n in numbers):
                return None
            reach.update(frontier, (self.facts[n].subject for n in numbers if n is not None))
            number = self.fact_at(entity, hop)
            assert number is not None
            options = self.targets(number, hop)
            entity = options[int(draw.integers(len(options)))]
            if entity in path:
                return None
            frontier = list(dict.fromkeys(e for n in numbers if n is not None for e in self.targets(n, hop)))
            path.append(entity)
            facts.append(number)
        golds = (entity, *(e for e in frontier if e != entity))
        return Chain(start, tuple(hops), tuple(facts), tuple(path), frozenset(reach), golds)

    def question(self, chain: Chain) -> str:
        """The question's prompt."""
        text = chain.start
        for hop in chain.hops:
            text = self.phrase(hop, text)
        return f"question: what is {text}?\n"

    def accepted(self, entities: Sequence[str]) -> tuple[str, ...]:
        """The accepted strings of some entities: their names first, then their other spellings."""
        return tuple(dict.fromkeys([*entities, *(a for e in entities for a in self.aliases.get(e, ()))]))


def listing(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _reverses(last: Hop, hop: Hop) -> bool:
    return last.relation == hop.relation and last.forward != hop.forward
