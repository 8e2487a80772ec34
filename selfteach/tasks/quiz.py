"""Multi-hop questions over a world: held-out entities, withheld facts, train and test questions, corpus."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import zip_longest
from typing import Any

import numpy as np

from ..core.blocks import Block
from ..core.errors import BadValue
from ..core.random_keys import generator, key, uniform_at
from ..core.task import Document, Task
from ..reward.answer import ABSTENTIONS
from ..tools.experts import experts_named
from .agent_demos import statements_of, states_what_is_sought, wordings
from .demo_ways import WayShares, names_answer
from .world import Chain, Fact, Hop, World

MAX_DRAWS = 400  # before a number of hops is given up for one question


@dataclass(frozen=True, eq=False)
class Quiz:
    """Questions over a world, and how they are shown (tasks/quiz_demos.py).

    Draws are by RNG key, so that any training task can be made alone.

    hops       numbers of hops asked, each as often as the others
    held_out   share of the subjects (per type) that no training or demonstrated question starts from, passes or is
               about
    withheld   share of the facts that the warm start never shows
    mix        share of items of memory in the warm start; the rest are demonstrated questions
    noise      share of the demonstrated questions that are done wrong
    conflicts  share of the facts that the corpus also contradicts
    noisy      distractors in the corpus, as a share of the facts
    abstain    share of the demonstrated questions whose fact is missing, so that the right answer is: I don't know
    nobody     share of all questions that are about an entity that does not exist: I don't know is the gold answer
    strangers  share of all questions that are about an entity of which neither memory nor corpus says anything, but
               which have an answer
    missing    share of the facts without a document
    apart      whether no question that is demonstrated is asked in training: the two get a half of the questions each
    ways       how demonstrations go, in place of right ones and slips (`noise`, `abstain`)
    unheld     relations of which the warm start shows no fact
    looked_up  with `ways`, share of the demonstrations that need a fact which the warm start does not show
    named      with `ways`, share of the demonstrations that are about a held-out subject and need such a fact
    irrelevant  share of the engine's results that are another document
    says       with `ways`, what demonstrations say besides (tasks/agent_demos.py, SAYINGS)
    experts    names of the experts that there are to ask; (): all
    across     whether a question of several hops needs facts of more than one of these experts
    """

    world: World
    seed: int = 0
    hops: tuple[int, ...] = (1, 2, 3)
    held_out: float = 0.2
    withheld: float = 0.1
    mix: float = 0.6
    noise: float = 0.5
    n_test: int = 400
    conflicts: float = 0.0
    noisy: float = 0.0
    abstain: float = 0.0
    nobody: float = 0.0
    strangers: float = 0.0
    missing: float = 0.0
    apart: bool = False
    ways: WayShares | None = None
    unheld: tuple[str, ...] = ()
    looked_up: float = 0.0
    named: float = 0.0
    irrelevant: float = 0.0
    says: str = ""
    experts: tuple[str, ...] = ()
    across: bool = False

    @cached_property
    def held_out_entities(self) -> frozenset[str]:
        """The entities held out for the test."""
        out: set[str] = set()
        for kind in dict.fromkeys(self.world.type_of.values()):
            subjects = [e for e in self.world.subjects if self.world.type_of[e] == kind]
            order = generator(self.seed, "held out", kind).permutation(len(subjects))
            out.update(subjects[i] for i in order[: round(self.held_out * len(subjects))])
        return frozenset(out)

    @cached_property
    def withheld_facts(self) -> frozenset[int]:
        """Numbers of the withheld facts."""
        order = generator(self.seed, "withheld").permutation(len(self.world.facts))
        unheld = [i for i, f in enumerate(self.world.facts) if f.relation in self.unheld]
        return frozenset([*(int(i) for i in order[: round(self.withheld * len(order))]), *unheld])

    @cached_property
    def contradicted(self) -> frozenset[int]:
        """Numbers of the facts that the corpus also contradicts."""
        order = generator(self.seed, "conflicts").permutation(len(self.world.facts))
        return frozenset(int(i) for i in order[: round(self.conflicts * len(order))])

    @cached_property
    def undocumented(self) -> frozenset[int]:
        """Numbers of the facts that the corpus leaves out."""
        order = generator(self.seed, "missing").permutation(len(self.world.facts))
        return frozenset(int(i) for i in order[: round(self.missing * len(order))])

    @property
    def is_agent(self) -> bool:
        """Whether demonstrations are those of an agent with an engine (tasks/agent_demos.py)."""
        return self.ways is not None and bool(self.says or self.looked_up or self.irrelevant)

    @cached_property
    def judges(self) -> dict[str, Block]:
        """`states`: whether search results state the fact that is sought."""
        return {"states": states_what_is_sought(statements=statements_of(self.world))} if self.is_agent else {}

    @cached_property
    def _pools(self) -> dict[tuple[bool, Hop], list[str]]:
        """(for the test, first hop) -> entities to start from."""
        out: dict[tuple[bool, Hop], list[str]] = {}
        for hop in self.world.hops:
            for e in self.world.starts(hop):
                number = self.world.fact_at(e, hop)
                assert number is not None
                testing = self.world.facts[number].subject in self.held_out_entities
                if testing or e not in self.held_out_entities:
                    out.setdefault((testing, hop), []).append(e)
        return out

    @lru_cache(maxsize=64)  # noqa: B019  (a quiz lives as long as its run)
    def templates(self, hops: int, testing: bool) -> list[tuple[Hop, ...]]:
        """The kinds of question of so many hops: of several `across` experts where that is asked for."""
        found = [t for t in self.world.templates(hops) if (testing, t[0]) in self._pools]
        if not self.across or hops == 1:
            return found
        there = experts_named(self.experts)
        return [t for t in found if not any(all(e.knows(hop.relation) for hop in t) for e in there)]

    def chain(self, draw: np.random.Generator, hops: int, testing: bool = False, shown: bool = False) -> Chain | None:
        """A random question of so many hops; None where none was found.

        testing  False: no held-out entity is reached; True: the first fact is about one
        shown    only over facts of the warm start
        """
        templates = self.templates(hops, testing)
        for _ in range(MAX_DRAWS if templates else 0):
            template = templates[int(draw.integers(len(templates)))]
            pool = self._pools[testing, template[0]]
            chain = self.world.walk(pool[int(draw.integers(len(pool)))], template, draw)
            if (
                chain is None
                or (not testing and chain.reach & self.held_out_entities)
                or (shown and self.withheld_facts.intersection(chain.facts))
            ):
                continue
            return chain
        return None

    def question(self, *rng_key: Any, shown: bool = False, lacking: bool = False, testing: bool = False) -> Chain:
        """The training question of an RNG key; shown: for a demonstration, over facts of the warm start, or `lacking`
        one of them; testing: about an entity held out.
        """
        draw = generator(self.seed, *rng_key)
        for hops in draw.permutation(np.array(self.hops)):
            for _ in range(MAX_DRAWS if self.apart or lacking else 1):
                chain = self.chain(draw, int(hops), testing, shown and not lacking)
                if chain is None:
                    break
                if lacking and not self.withheld_facts.intersection(chain.facts):
                    continue
                if not self.apart or self._is_demonstrated(chain) == shown:
                    return chain
        raise BadValue(
            f"no training question of {any_of(self.hops)} hops exists in this world; make it larger, or held_out or "
            "withheld smaller"
        )

    def _is_demonstrated(self, chain: Chain) -> bool:
        """Of questions kept apart, whether this one is for demonstrations: a function of its text and the seed."""
        return uniform_at(key(self.seed, "apart", self.world.question(chain)), 0) < 0.5

    def task(self, chain: Chain, name: str) -> Task:
        """The task of a chain; with probability `nobody` its question about an entity that does not exist.

        tags  hops, category, difficulty, kind, entities, chain (sentences), sub_questions (the phrase of each hop),
              keywords (of each hop, the ways of asking an engine), rubrics (the sentence of each hop, with <E0> for the
              answer and <E1>, <E2> ... for the entities before it), known (not withheld from the warm start; a policy
              without one is shown none, preparation.source_of), multiple, held_out, conflict, hint (the first step),
              answerable (False for an entity that does not exist), stranger
        """
        tags = {
            "hops": len(chain.hops),
            "category": f"{len(chain.hops)} hops",
            "difficulty": len(chain.hops),
            "kind": " > ".join(h.relation if h.forward else f"{h.relation} of" for h in chain.hops),
            "entities": chain.path,
            "chain": tuple(self.world.sentence(i) for i in chain.facts),
            "sub_questions": tuple(self.world.phrase(h, e) for h, e in zip(chain.hops, chain.path, strict=False)),
            "keywords": tuple(
                wordings(self.world.query(h, e), h.relation, e) for h, e in zip(chain.hops, chain.path, strict=False)
            ),
            "rubrics": self._rubrics(chain),
            "known": not self.withheld_facts.intersection(chain.facts),
            "multiple": len(chain.golds) > 1,
            "held_out": bool(chain.reach & self.held_out_entities),
            "conflict": bool(self.contradicted.intersection(chain.facts)),
            "answerable": True,
            "stranger": False,
            "hint": f"first look for the {self.world.query(chain.hops[0], chain.start)}.",
        }
        verifier = names_answer() if self.ways and self.ways.worded else None
        task = Task(
            name,
            self.world.question(chain),
            self.world.accepted(chain.golds),
            tags=tags,
            verifier=verifier,
            judges=self.judges,
        )
        nobody = self.is_chosen("nobody", name, self.nobody)
        if not nobody and not self.is_chosen("stranger", name, self.strangers):
            return task
        invented = self.invented(chain, name)
        tags |= self._missing(invented) | {"answerable": not nobody, "stranger": not nobody}
        return replace(
            task, prompt=self.world.question(invented), answer=ABSTENTIONS if nobody else task.answer, tags=tags
        )

    def _rubrics(self, chain: Chain) -> tuple[str, ...]:
        """The single-hop statements that lead to the answer, their hidden entities as <E0> (the answer), <E1> ..."""
        last = len(chain.hops)
        out = list[str]()
        for i, fact in enumerate(chain.facts):
            text = self.world.sentence(fact)
            for place in (i, i + 1):
                if place:
                    text = re.sub(rf"\b{re.escape(chain.path[place])}\b", f"<E{last - place}>", text)
            out.append(text)
        return tuple(out)

    def _missing(self, invented: Chain) -> dict[str, Any]:
        """The tags of a question about an entity that does not exist."""
        return {
            "entities": invented.path[:1],
            "chain": (),
            "sub_questions": (),
            "rubrics": (),
            "keywords": (),
            "known": False,
            "multiple": False,
            "conflict": False,
            "answerable": False,
            "hint": f"first look for the {self.world.query(invented.hops[0], invented.start)}.",
        }

    def invented(self, chain: Chain, name: str) -> Chain:
        """The same question about an entity that does not exist; test and training use different names."""
        start = unknown_name(self.seed, name, not name.startswith("test"), self.world.taken)
        return chain._replace(start=start, path=(start, *chain.path[1:]))

    def is_chosen(self, purpose: str, name: str | int, share: float) -> bool:
        """True for a share of the (purpose, name) keys."""
        return share > 0 and uniform_at(key(self.seed, purpose, name), 0) < share

    def train(self, i: int) -> Task:
        """The i-th training task."""
        return self.task(self.question("train", i), f"train/{i}")

    @cached_property
    def test(self) -> tuple[Task, ...]:
        """Test questions without repeats, numbers of hops in turns, equally many of each where the world has them."""
        rows: list[list[Task]] = []
        for rank, hops in enumerate(self.hops):
            want = self.n_test // len(self.hops) + (rank < self.n_test % len(self.hops))
            seen: set[str] = set()
            rows.append([])
            for k in range(4 * want):
                chain = (
                    self.chain(generator(self.seed, "test", hops, k), hops, testing=True) if len(seen) < want else None
                )
                if chain is not None and (text := self.world.question(chain)) not in seen:
                    seen.add(text)
                    rows[-1].append(self.task(chain, f"test/{hops}-hop/{len(seen)}"))
        return tuple(t for turn in zip_longest(*rows) for t in turn if t is not None)

    def corpus(self) -> list[Document]:
        """A document per fact, withheld ones too, shuffled with the conflicts and distractors where there are any.

        Facts without a document have a contradicting one only where `conflicts` says so.
        """
        w = self.world
        out = [Document(f.subject, w.sentence(f)) for i, f in enumerate(w.facts) if i not in self.undocumented]
        for i in sorted(self.contradicted):
            fact, draw = w.facts[i], generator(self.seed, "conflict", i)
            options = [e for e in w.types[w.relations[fact.relation].object] if e not in fact.objects]
            if options:
                out.append(
                    Document(
                        fact.subject, w.sentence(fact._replace(objects=(options[int(draw.integers(len(options)))],)))
                    )
                )
        for i in range(round(self.noisy * len(w.facts))):
            draw = generator(self.seed, "distractor", i)
            fact = w.facts[int(draw.integers(len(w.facts)))]
            out.append(Document(fact.subject, _distractor(w, fact, draw)))
        if len(out) == len(w.facts) or not (self.contradicted or self.noisy):
            return out
        return [out[i] for i in generator(self.seed, "corpus").permutation(len(out))]


def any_of(hops: tuple[int, ...]) -> str:
    """The numbers, joined by "or"."""
    return " or ".join(str(h) for h in hops)


def _distractor(world: World, fact: Fact, draw: np.random.Generator) -> str:
    """A sentence that matches a query about a fact and does not answer it."""
    about = world.phrase(Hop(fact.relation), fact.subject)
    forms = (
        "{} is often talked about.",
        "many people ask about {} every year.",
        "little has been written about {} so far.",
    )
    return forms[int(draw.integers(len(forms)))].format(about)


def unknown_name(seed: int, rng_key: str, training: bool, taken: Collection[str]) -> str:
    """A name that is not in `taken`, by RNG key; whether it is for training or the test is a function of the name."""
    draw = generator(seed, "nobody", rng_key)
    while True:
        syllables = ["bdfgklmnprstvz"[int(draw.integers(14))] + "aeiou"[int(draw.integers(5))] for _ in range(3)]
        name = "".join(syllables).capitalize()
        if name not in taken and (uniform_at(key(seed, "nobody's side", name), 0) >= 0.2) == training:
            return name
