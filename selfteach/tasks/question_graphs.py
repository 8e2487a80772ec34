"""Questions synthesised from a graph of facts: terms that name an entity by others, their answers, facts and wording.

A question is a term grown backwards from its answer: an entity is hidden behind a fact that leads to it (a chain, and
where it was named, an obfuscation), or behind two facts that it alone has (an intersection). What a term means is
computed from the whole graph, so that a question is kept only where it has one answer, and every fact that it needs has
a document.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import NamedTuple

import numpy as np

from .agent_demos import wordings
from .world import Hop, World


class Along(NamedTuple):
    """What a hop leads to from what a term means: `the home of ...`, `the town whose mayor is ...`."""

    hop: Hop
    of: Term


class Meeting(NamedTuple):
    """What has some relations to what some terms mean: `the person whose home is Ulm and whose guild is Kraft`."""

    kind: str
    sides: tuple[tuple[str, Term], ...]


Term = str | Along | Meeting  # a name, or one of these


def meant(world: World, term: Term) -> set[str]:
    """All entities that a term means, over the whole graph."""
    if isinstance(term, str):
        return {term}
    if isinstance(term, Along):
        numbers = [world.fact_at(e, term.hop) for e in meant(world, term.of)]
        return {there for n in numbers if n is not None for there in world.targets(n, term.hop)}
    out: set[str] | None = None
    for relation, of in term.sides:
        objects = meant(world, of)
        having = {f.subject for f in world.facts if f.relation == relation and objects.intersection(f.objects)}
        out = having if out is None else out & having
    return {e for e in out or set() if world.type_of.get(e) == term.kind}


def needed(world: World, term: Term) -> list[tuple[int, Hop, str]]:
    """(fact, hop, entity that it is taken from) of each fact that a term with one meaning is found by, in the order in
    which an agent can look for them: what is named first.
    """
    if isinstance(term, str):
        return []
    if isinstance(term, Along):
        (here,) = meant(world, term.of)
        number = world.fact_at(here, term.hop)
        return [*needed(world, term.of), *([(number, term.hop, here)] if number is not None else [])]
    (subject,) = meant(world, term)
    out = [row for _, of in term.sides for row in needed(world, of)]
    for relation, of in term.sides:
        (there,) = meant(world, of)
        out.append((world.fact_of_subject[subject, relation], Hop(relation, False), there))
    return out


def phrase(world: World, term: Term) -> str:
    """A term in words; an intersection within another stands in brackets, so that it is seen where it ends."""
    if isinstance(term, str):
        return term
    if isinstance(term, Along):
        return world.phrase(term.hop, phrase(world, term.of))
    within = [f"({text})" if " and " in text else text for text in (phrase(world, of) for _, of in term.sides)]
    sides = zip(term.sides, within, strict=True)
    return f"the {term.kind} " + " and ".join(f"whose {relation} is {text}" for (relation, _), text in sides)


def names(term: Term) -> list[str]:
    """The entities that a term names."""
    if isinstance(term, str):
        return [term]
    return names(term.of) if isinstance(term, Along) else [name for _, of in term.sides for name in names(of)]


@dataclass(frozen=True)
class GraphQuestion:
    """A question made of terms, asked for together. What it says of itself is made when it is read: most are drawn only
    to be found among those that were drawn before.

    terms   what is asked for: one, or several that have nothing to do with each other
    golds   the one entity that each means
    needs   (fact, hop, entity that it is taken from) of each fact that it needs, in the order in which they can be
            looked for
    """

    world: World = field(repr=False, compare=False)
    terms: tuple[Term, ...]
    golds: tuple[str, ...]
    needs: tuple[tuple[int, Hop, str], ...]

    @cached_property
    def text(self) -> str:
        """What is asked for, in words."""
        return ", and ".join(phrase(self.world, term) for term in self.terms)

    @cached_property
    def facts(self) -> tuple[int, ...]:
        """Numbers of the facts that it needs, in the order in which they can be looked for."""
        return tuple(number for number, _, _ in self.needs)

    @cached_property
    def sub_questions(self) -> tuple[str, ...]:
        """The question of each of its facts."""
        return tuple(_sub_question(self.world, hop, here) for _, hop, here in self.needs)

    @cached_property
    def keywords(self) -> tuple[tuple[str, ...], ...]:
        """Ways of asking an engine for each of its facts."""
        return tuple(wordings(query_of(self.world, hop, here), hop.relation, here) for _, hop, here in self.needs)

    @cached_property
    def rubrics(self) -> tuple[str, ...]:
        """What each of its facts states, with <E0> for the (first) answer and <E1>, <E2> ... for what is neither an
        answer nor named.
        """
        hidden = [*self.golds, *self.unnamed]
        return tuple(_rubric(self.world.sentence(n), hidden) for n in self.facts)

    @cached_property
    def unnamed(self) -> list[str]:
        """The entities of its facts that are neither answers nor named, the last first."""
        known = {*self.golds, *(name for term in self.terms for name in names(term))}
        facts = [self.world.facts[n] for n in self.facts]
        entities = dict.fromkeys(e for f in facts for e in (f.subject, *f.objects))
        return [e for e in reversed(entities) if e not in known]

    @cached_property
    def dispersion(self) -> float:
        """The share of its facts that stand on pages of their own."""
        return len({self.world.facts[n].subject for n in self.facts}) / len(self.facts)


def question_of(world: World, terms: Sequence[Term], documented: Collection[int]) -> GraphQuestion | None:
    """The question of some terms; None where it is not solvable and unambiguous.

    Each term means one entity, and so does every term within it; each fact that is needed is needed once, and is
    `documented`; no answer is named.
    """
    meanings = [meant(world, term) for term in terms]
    if any(len(m) != 1 for m in meanings) or not all(_is_clear(world, term) for term in terms):
        return None
    golds = tuple(next(iter(m)) for m in meanings)
    rows = tuple(row for term in terms for row in needed(world, term))
    facts = {number for number, _, _ in rows}
    named = {name for term in terms for name in names(term)}
    if len(facts) < len(rows) or not facts or any(n not in documented for n in facts) or named.intersection(golds):
        return None
    return GraphQuestion(world, tuple(terms), golds, rows)


def _is_clear(world: World, term: Term) -> bool:
    """Whether every term within a term means one entity."""
    if isinstance(term, str):
        return True
    within = [term.of] if isinstance(term, Along) else [of for _, of in term.sides]
    return len(meant(world, term)) == 1 and all(_is_clear(world, of) for of in within)


def _sub_question(world: World, hop: Hop, here: str) -> str:
    r = world.relations[hop.relation]
    asked = r.phrase.format(s=here) if hop.forward else r.inverse.format(o=here) if r.inverse else ""
    return asked or f"the {r.subject} whose {hop.relation} is {here}"


def query_of(world: World, hop: Hop, here: str) -> str:
    """How an engine is asked for what a hop leads to."""
    return _sub_question(world, hop, here).removeprefix("the ").removeprefix("a ")


def _rubric(sentence: str, hidden: Sequence[str]) -> str:
    for n, entity in enumerate(hidden):
        sentence = re.sub(rf"\b{re.escape(entity)}\b", f"<E{n}>", sentence)
    return sentence


def grow(world: World, answer: str, hops: int, joints: int, draw: np.random.Generator) -> Term | None:
    """A random term that means an entity, which needs `hops` facts, with `joints` intersections; None: none was found.

    An intersection counts as two facts.
    """
    if hops <= 0:
        return answer if not joints and hops == 0 else None
    if joints and (meeting := _meeting(world, answer, hops, joints, draw)) is not None:
        return meeting
    if hops <= 2 * joints:
        return None
    leading = [*world.leading_to.get(answer, ()), *world.descriptions.get(answer, ())]
    for i in draw.permutation(len(leading))[:4]:
        hop, before = leading[int(i)]
        if (of := grow(world, before, hops - 1, joints, draw)) is not None:
            return Along(hop, of)
    return None


def edited(world: World, term: Term, draw: np.random.Generator, documented: Collection[int]) -> Term | None:
    """A term after one edit that makes it harder and leaves its meaning: a name in it gives way to a fact that leads to
    it (inject), or to a description of what it names (fuzz); None where no edit leaves a good question.

    Gao et al. 2025, ASearcher (2508.07976). Which of the two is tried first, at which name and by which fact is drawn.
    An edit counts where `question_of` keeps the question: still one meaning, and every fact documented and new.
    """
    named = list(dict.fromkeys(names(term)))
    for i in draw.permutation(len(named)):
        name, kinds = named[int(i)], (world.leading_to, world.descriptions)
        for kind in draw.permutation(2):
            options = kinds[int(kind)].get(name, [])
            for k in draw.permutation(len(options)):
                made = _with(term, name, Along(*options[int(k)]))
                if question_of(world, [made], documented) is not None:
                    return made
    return None


def versions(
    world: World, term: Term, edits: int, draw: np.random.Generator, documented: Collection[int]
) -> list[Term]:
    """A term and what becomes of it by so many edits, one after the other; [] where it cannot be edited so often."""
    out = [term]
    for _ in range(edits):
        made = edited(world, out[-1], draw, documented)
        if made is None:
            return []
        out.append(made)
    return out


def _with(term: Term, name: str, by: Term) -> Term:
    """A term with another in the place of a name."""
    if isinstance(term, str):
        return by if term == name else term
    if isinstance(term, Along):
        return term._replace(of=_with(term.of, name, by))
    return term._replace(sides=tuple((relation, _with(of, name, by)) for relation, of in term.sides))


def _meeting(world: World, answer: str, hops: int, joints: int, draw: np.random.Generator) -> Meeting | None:
    """An intersection of two facts that no other entity has both of."""
    own = [f for f in world.facts if f.subject == answer and len(f.objects) == 1]
    pairs = list(combinations(own, 2))
    for i in draw.permutation(len(pairs))[:4]:
        one, other = pairs[int(i)]
        more = int(draw.integers(0, hops - 1)) if hops > 2 else 0
        first = grow(world, one.objects[0], more, 0, draw)
        second = grow(world, other.objects[0], hops - 2 - more, joints - 1, draw)
        if first is None or second is None:
            continue
        term = Meeting(world.type_of[answer], ((one.relation, first), (other.relation, second)))
        if meant(world, term) == {answer}:
            return term
    return None
