"""A world of facts that questions walk: entities, relations, one sentence per fact, and chains of hops over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np


@dataclass(frozen=True)
class Relation:
    """One kind of fact, and how it is worded. {s} stands for the subject, {o} for the objects.

    sentence  never begins with an entity, so that a name is the same tokens wherever it stands (after a space)
    name      what a thought calls the object: "capital"
    subject   type of the subject; `object`: type of the objects
    phrase    noun phrase of the object: "the capital of {s}"; the query is the phrase without its article
    inverse   noun phrase of the subject: "the country whose capital is {o}"; used where only one subject has that object; "": never
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
    """A question's way through the world.

    start  the entity that the question names; `hops`: the steps from it
    facts  numbers of the facts on the chosen path, one per hop
    path   entities on it, start and final answer included: hops + 1 of them
    reach  every entity that some way through the question starts from or passes, and the subject of every fact used
    golds  all right answers, that of the chosen path first
    """

    start: str
    hops: tuple[Hop, ...]
    facts: tuple[int, ...]
    path: tuple[str, ...]
    reach: frozenset[str]
    golds: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class World:
    """Facts and the relations they belong to. Entities are named uniquely; `aliases`: name -> other accepted spellings."""

    relations: Mapping[str, Relation]
    facts: tuple[Fact, ...]
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @cached_property
    def ahead(self) -> dict[tuple[str, str], int]:
        """(subject, relation) -> number of the fact."""
        return {(f.subject, f.relation): i for i, f in enumerate(self.facts)}

    @cached_property
    def back(self) -> dict[tuple[str, str], int]:
        """(object, relation) -> number of the fact, where exactly one subject has that object and the relation has an inverse."""
        found: dict[tuple[str, str], list[int]] = {}
        for i, f in enumerate(self.facts):
            if self.relations[f.relation].inverse:
                for o in f.objects:
                    found.setdefault((o, f.relation), []).append(i)
        return {key: facts[0] for key, facts in found.items() if len(facts) == 1}

    @cached_property
    def subjects(self) -> list[str]:
        """Entities that some fact is about, in order of their first fact."""
        return list(dict.fromkeys(f.subject for f in self.facts))

    @cached_property
    def entities(self) -> list[str]:
        return list(dict.fromkeys(e for f in self.facts for e in (f.subject, *f.objects)))

    @cached_property
    def types(self) -> dict[str, list[str]]:
        """Type -> its entities, in order of first appearance. An entity can be of several types (a capital, a largest city)."""
        found: dict[str, dict[str, None]] = {}
        for f in self.facts:
            r = self.relations[f.relation]
            found.setdefault(r.subject, {})[f.subject] = None
            for o in f.objects:
                found.setdefault(r.object, {})[o] = None
        return {t: list(es) for t, es in found.items()}

    @cached_property
    def type_of(self) -> dict[str, str]:
        """Subject -> its type."""
        return {f.subject: self.relations[f.relation].subject for f in self.facts}

    def sentence(self, fact: Fact | int) -> str:
        """The one sentence that states a fact."""
        f = self.facts[fact] if isinstance(fact, int) else fact
        return self.relations[f.relation].sentence.format(s=f.subject, o=listing(f.objects))

    def phrase(self, hop: Hop, of: str) -> str:
        """The noun phrase of what a hop leads to: `of` is an entity, or the phrase of one."""
        r = self.relations[hop.relation]
        return r.phrase.format(s=of) if hop.forward else r.inverse.format(o=of)

    def query(self, hop: Hop, of: str) -> str:
        """What one asks a search engine to take a hop: the phrase without its article."""
        phrase = self.phrase(hop, of)
        return phrase.split(" ", 1)[1] if phrase.split(" ", 1)[0] in ("the", "a", "an") else phrase

    def noun(self, hop: Hop) -> str:
        """What a thought calls the thing a hop leads to."""
        return hop.relation if hop.forward else self.relations[hop.relation].subject

    def ends(self, hop: Hop) -> tuple[str, str]:
        """(type it starts from, type it leads to) of a hop."""
        r = self.relations[hop.relation]
        return (r.subject, r.object) if hop.forward else (r.object, r.subject)

    def fact_at(self, entity: str, hop: Hop) -> int | None:
        """The number of the fact that a hop from an entity uses; None where there is none."""
        return (self.ahead if hop.forward else self.back).get((entity, hop.relation))

    def leads(self, fact: int, hop: Hop) -> tuple[str, ...]:
        """Where a hop over a fact arrives."""
        return self.facts[fact].objects if hop.forward else (self.facts[fact].subject,)

    @cached_property
    def hops(self) -> list[Hop]:
        """Every hop that some entity can take."""
        used = {f.relation for f in self.facts}
        inverse = {relation for _, relation in self.back}
        return [h for r in self.relations for h in (Hop(r), Hop(r, False)) if (r in used if h.forward else r in inverse)]

    def templates(self, length: int) -> list[tuple[Hop, ...]]:
        """All sequences of hops whose types fit and that never step back along the fact just used."""
        out: list[tuple[Hop, ...]] = [(h,) for h in self.hops]
        for _ in range(length - 1):
            out = [(*t, h) for t in out for h in self.hops if self.ends(t[-1])[1] == self.ends(h)[0] and not _returns(t[-1], h)]
        return out

    def starts(self, hop: Hop) -> list[str]:
        """Entities from which a hop can be taken, in order."""
        return [e for e, relation in (self.ahead if hop.forward else self.back) if relation == hop.relation]

    def walk(self, start: str, hops: Sequence[Hop], draw: np.random.Generator) -> Chain | None:
        """Follow hops from an entity by all ways at once, and choose one of them.

        None where some way ends early (its gold answers would be incomplete) or the chosen one comes back to where it was.
        """
        here, at = [start], start
        path, facts, reach = [start], [], {start}
        for hop in hops:
            numbers = [self.fact_at(e, hop) for e in here]
            if any(n is None for n in numbers):
                return None
            reach.update(here, (self.facts[n].subject for n in numbers if n is not None))
            number = self.fact_at(at, hop)
            assert number is not None
            options = self.leads(number, hop)
            at = options[int(draw.integers(len(options)))]
            if at in path:
                return None
            here = list(dict.fromkeys(e for n in numbers if n is not None for e in self.leads(n, hop)))
            path.append(at)
            facts.append(number)
        golds = (at, *(e for e in here if e != at))
        return Chain(start, tuple(hops), tuple(facts), tuple(path), frozenset(reach), golds)

    def question(self, chain: Chain) -> str:
        """The question in words, as the policy is asked it."""
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


def _returns(last: Hop, hop: Hop) -> bool:
    return last.relation == hop.relation and last.forward != hop.forward
