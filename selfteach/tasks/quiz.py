"""Multi-hop questions over a world: held-out entities, withheld facts, train and test questions, warm start, corpus."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import zip_longest
from typing import Any

import numpy as np

from ..core.blocks import Block
from ..core.errors import BadValue
from ..core.random_keys import generator, key, uniform_at
from ..core.task import Document, Task, TaskSource
from ..reward.answer import ABSTENTIONS
from ..tools.experts import ask_expert, experts_named
from ..tools.search import search
from .agent_demos import (
    SAYINGS,
    SEARCHING,
    STYLES,
    AgentWriter,
    first_words,
    statements_of,
    states_what_is_sought,
    wordings,
)
from .demo_ways import (
    PRACTISED,
    TIMID,
    WAYS,
    WayShares,
    WayWriter,
    in_a_sentence,
    names_answer,
    without_a_closer,
)
from .demos import SLIPS, TAGS
from .options import check_at_least, check_number, check_share
from .question_sampler import pick
from .questions import FactQuestions
from .world import Chain, Fact, Hop, World

MAX_DRAWS = 400  # before a number of hops is given up for one question
WARM_BATCH = 16  # items in a step of the warm start
OVER_ABSTAIN = 0.2  # share of the slips that abstain from a known answer, where abstaining is shown at all
TOKENIZER_DEMOS = 2000  # demonstrations that the tokenizer sees


@dataclass(frozen=True, eq=False)
class Quiz:
    """Questions over a world. Draws are by RNG key, so that any training task can be made alone.

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

    @cached_property
    def writer(self) -> WayWriter:
        """The writer of demonstrations over the facts of the warm start."""
        shown = frozenset(range(len(self.world.facts))) - self.withheld_facts
        if not self.is_agent:
            return WayWriter(self.world, shown, self.held_out_entities)
        return AgentWriter(self.world, shown, self.held_out_entities, self.says, self.irrelevant, self.experts)

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
    def _templates(self, hops: int, testing: bool) -> list[tuple[Hop, ...]]:
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
        templates = self._templates(hops, testing)
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

    def _question(self, *rng_key: Any, shown: bool = False, lacking: bool = False, testing: bool = False) -> Chain:
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
              answer and <E1>, <E2> ... for the entities before it), known, multiple, held_out, conflict, hint (the
              first step), answerable (False for an entity that does not exist), stranger
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
        nobody = self._is_chosen("nobody", name, self.nobody)
        if not nobody and not self._is_chosen("stranger", name, self.strangers):
            return task
        invented = self._invented(chain, name)
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

    def _invented(self, chain: Chain, name: str) -> Chain:
        """The same question about an entity that does not exist; test and training use different names."""
        start = unknown_name(self.seed, name, not name.startswith("test"), self.world.entities)
        return chain._replace(start=start, path=(start, *chain.path[1:]))

    def _is_chosen(self, purpose: str, name: str | int, share: float) -> bool:
        """True for a share of the (purpose, name) keys."""
        return share > 0 and uniform_at(key(self.seed, purpose, name), 0) < share

    def train(self, i: int) -> Task:
        """The i-th training task."""
        return self.task(self._question("train", i), f"train/{i}")

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

    @cached_property
    def memories(self) -> list[tuple[int, Hop]]:
        """(fact, direction of the query) of every item of memory: withheld facts have none."""
        hops = [(i, Hop(f.relation)) for i, f in enumerate(self.world.facts) if i not in self.withheld_facts]
        back = [
            (i, Hop(relation, False))
            for (_, relation), i in self.world.fact_of_object.items()
            if i not in self.withheld_facts
        ]
        return hops + back

    @property
    def warm_steps(self) -> int:
        """Steps of WARM_BATCH items in which every item of memory is shown about 15 times.

        After these a tiny model recalls nearly all.
        """
        shown = 15 * len(self.memories) / max(self.mix, 0.1) / WARM_BATCH
        return max(100, round(shown / 50) * 50)

    def demo(self, i: int) -> Task:
        """The i-th item of the warm start: memory and demonstrated questions, evenly interleaved.

        tags  those of the task; kind (memory or demo), slip ("" if right)
        """
        if (memory := self._memory(i)) is not None:
            return memory
        if self.ways is not None:
            return self._going(i, "demo", self.ways, generator(self.seed, "way", i))
        missing = self._unknown(i) if self._is_chosen("abstain", i, self.abstain) else None
        chain = missing or self._question("demo", i, shown=True)
        task = self.task(chain, f"demo/{i}")
        text, slip = self._completion(chain, task, i)
        return Task(task.id, task.prompt, task.answer, (text,), {**task.tags, "kind": "demo", "slip": slip})

    def _memory(self, i: int) -> Task | None:
        """The i-th item of the warm start where it is one of memory."""
        before, now = int(i * self.mix + 1e-9), int((i + 1) * self.mix + 1e-9)
        if now == before or not self.memories:
            return None
        lap, place = divmod(before, len(self.memories))
        fact, hop = self.memories[_order(self.seed, lap, len(self.memories))[place]]
        prompt, completion = self.writer.memory(fact, hop)
        return Task(f"memory/{i}", prompt, data=(completion,), tags={"kind": "memory", "slip": ""})

    def practice(self, i: int) -> Task:
        """The i-th item that is practised before the demonstrations: memory, and answers whose way is given.

        Every second of these goes any way, so that each is gone as its first words say. No shares matter here, nor are
        there strangers, so that worlds which differ in these alone practise the same.
        """
        draw = generator(self.seed, "practise", i)
        given = WAYS if draw.random() < 0.5 else PRACTISED
        return self._memory(i) or self._without_strangers._going(
            i, "practice", WayShares({}, practised=1.0), draw, given
        )

    @cached_property
    def _without_strangers(self) -> Quiz:
        """The same quiz, which only asks about entities that there are; made once, with its pools of questions."""
        return replace(self, strangers=0.0) if self.strangers else self

    def _going(
        self, i: int, kind: str, ways: WayShares, draw: np.random.Generator, practised: Sequence[str] = PRACTISED
    ) -> Task:
        """The i-th demonstration that goes a way; tags: those of the task, kind, way. Its prompt names a way given."""
        named = self._is_chosen("named", f"{kind}/{i}", self.named)
        lacking = named or self._is_chosen("looked up", f"{kind}/{i}", self.looked_up)
        chain = self._question(kind, i, shown=True, lacking=lacking, testing=named)
        task = self.task(chain, f"{kind}/{i}")
        given, at = draw.random() < ways.practised, draw.random()
        way = str(draw.choice(practised)) if given else pick(self._fitting(ways, chain, draw), at)
        unknown = bool(task.tags["stranger"])
        chain = self._invented(chain, task.id) if unknown else chain
        if draw.random() < ways.abstain * (1.0 if unknown else 0.0 if given else TIMID):
            text = self.writer.abstain(way, chain, not unknown)
        else:
            text = self.writer.go(way, chain, draw, 1.0 if given else ways.sure)
        if not given and draw.random() < ways.malformed:
            text = without_a_closer(text, draw)
        if not given and ways.worded and draw.random() < ways.worded:
            text = in_a_sentence(text)
        first = first_words(way, self.says) if given else ""
        if SAYINGS[self.says].report:
            seen, text = self._round(way, chain, draw, text)
            task = replace(task, prompt=task.prompt + seen)
        tags = {**task.tags, "kind": kind, "way": way, "slip": ""}
        return replace(task, prompt=task.prompt + first, data=(text.removeprefix(first),), tags=tags)

    def _fitting(self, ways: WayShares, chain: Chain, draw: np.random.Generator) -> dict[str, float]:
        """The shares among which a demonstration's way is drawn: with the chance `aware` only those of ways that search
        where the question needs a fact which the warm start does not show, and of the others else.
        """
        if not ways.aware or draw.random() >= ways.aware:
            return ways.shares
        is_needed = bool(self.withheld_facts.intersection(chain.facts))
        shares = {way: share for way, share in ways.shares.items() if (way in SEARCHING) == is_needed}
        return {way: share / sum(shares.values()) for way, share in shares.items()} or ways.shares

    def expert(self, i: int) -> Task:
        """The i-th trajectory of a capable agent, said and found in turns; tags: style, of STYLES, and slip."""
        assert isinstance(self.writer, AgentWriter)
        style, draw = list(STYLES)[i % len(STYLES)], generator(self.seed, "expert", i)
        chain = self._question("expert", i, shown=True, lacking=self.looked_up > 0)
        task = self.task(chain, f"expert/{i}")
        text, is_right = self.writer.expert(style, chain, draw)
        turns = tuple(re.split(r"(<information>.*?</information>)", text))
        tags = {**task.tags, "kind": "expert", "style": style, "slip": "" if is_right else "misled"}
        return replace(task, data=turns, tags=tags)

    def _round(self, way: str, chain: Chain, draw: np.random.Generator, text: str) -> tuple[str, str]:
        """(workspace, completion) of any round of a way; of one that does not search the text itself."""
        if not isinstance(self.writer, AgentWriter) or way not in SEARCHING:
            return "", text
        rounds = self.writer.rounds(way, chain, draw)
        return rounds[int(draw.integers(len(rounds)))]

    def _completion(self, chain: Chain, task: Task, i: int) -> tuple[str, str]:
        """The completion of the i-th demonstration, and its slip."""
        draw, is_wrong = generator(self.seed, "slip", i), uniform_at(key(self.seed, "noise", i), 0) < self.noise
        missing = next((n for n, fact in enumerate(chain.facts) if fact in self.withheld_facts), None)
        if not task.tags["answerable"]:
            chain, missing = self._invented(chain, task.id), 0
        if not is_wrong:
            return (self.writer.correct(chain) if missing is None else self.writer.abstaining(chain, missing)), ""
        if missing is not None:
            return self.writer.with_slip(chain, "guess", draw)
        if self._is_chosen("timid", i, OVER_ABSTAIN if self.abstain or self.nobody else 0.0):
            return self.writer.over_abstaining(chain), "timid"
        share = np.array(list(SLIPS.values())) / sum(SLIPS.values())
        return self.writer.with_slip(chain, list(SLIPS)[int(draw.choice(len(SLIPS), p=share))], draw)

    def _unknown(self, i: int) -> Chain | None:
        """A training question that needs a withheld fact; None where none was found."""
        draw = generator(self.seed, "unknown", i)
        for _ in range(MAX_DRAWS // 4):
            chain = self.chain(draw, self.hops[int(draw.integers(len(self.hops)))])
            if chain is not None and self.withheld_facts.intersection(chain.facts):
                return chain
        return None

    def words(self) -> Iterator[str]:
        """Text for the tokenizer: sentences, queries, test prompts, and TOKENIZER_DEMOS items of the warm start."""
        for i, fact in enumerate(self.world.facts):
            yield self.world.sentence(i)
            yield self.world.query(Hop(fact.relation), fact.subject)
        for (entity, relation), _ in self.world.fact_of_object.items():
            yield self.world.query(Hop(relation, False), entity)
        # The tokenizer does not depend on shares or strangers, so that what was practised with it serves all of them.
        evenly = self.ways and WayShares(dict.fromkeys(WAYS, 1 / len(WAYS)), abstain=0.5)
        quiz = replace(self, ways=evenly, strangers=0.1) if evenly else self
        for task in quiz.test:
            yield task.prompt
        for i in range(TOKENIZER_DEMOS):
            item = quiz.demo(i)
            yield item.prompt + item.data[0]

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

    def source(self, name: str, task_options: Mapping[str, Any], top: int = 1, some: bool = False) -> TaskSource:
        """The TaskSource of this quiz; `top` results from its search tool, or the first `some` of them."""
        for lacking in {self.looked_up > 0, self.looked_up >= 1}:
            self._question("train", 0, shown=True, lacking=lacking)
        if self.named:
            self._question("train", 0, shown=True, lacking=True, testing=True)
        if not self.test:
            raise BadValue(f"task {name}: held_out={self.held_out!r} leaves nothing to test on; make it larger")
        longest, with_names = max(self.hops), {"experts": self.experts} if self.experts else {}
        by_hops = {n: sum(t.tags["hops"] == n for t in self.test) for n in self.hops}
        return TaskSource(
            name=name,
            train=self.train,
            test=self.test,
            demos=self.demo,
            practice=self.practice if self.ways else None,
            experts=self.expert if self.is_agent and SAYINGS[self.says].verdict else None,
            words=self.words,
            tags=(*TAGS, *SAYINGS[self.says].tags),
            corpus=self.corpus,
            questions=FactQuestions(name, self.corpus, [t.prompt for t in self.test]),
            tools={
                "search": search(top=top, some=some, **({"noise": self.irrelevant} if self.irrelevant else {})),
                **({"experts": ask_expert(**with_names)} if SAYINGS[self.says].route else {}),
            },
            defaults={
                "max_tokens": (64 if self.irrelevant else 32) * longest + 32,
                "by": "hops",
                "lr": 2e-4,
                "warm_steps": self.warm_steps,
                "warm_batch": WARM_BATCH,
                "warm_lr": 2e-3,
            },
            task_options=dict(task_options),
            about={
                "entities": len(self.world.entities),
                "facts": len(self.world.facts),
                "withheld facts": len(self.withheld_facts),
                "held-out entities": len(self.held_out_entities),
                "items of memory": len(self.memories),
                "test questions by hops": by_hops,
                "kinds of question by hops": {n: len(self._templates(n, False)) for n in self.hops},
            },
        )


def check(task: str, **options: Any) -> None:
    """Check the options that worlds share. Raises BadValue naming the option, its value and the range."""
    for name in ("held_out", "withheld", "mix", "noise", "conflicts", "abstain", "nobody"):
        check_share(task, name, options[name])
    if check_number(task, "noisy", options["noisy"]) < 0:
        raise BadValue(
            f"task {task}: noisy must be 0 or more (distractors as a share of the facts), not {options['noisy']!r}"
        )
    for name in ("n_test", "top"):
        check_at_least(task, name, options[name], 1)
    hops = options["hops"]
    if (
        not isinstance(hops, tuple | list)
        or not hops
        or any(h not in (1, 2, 3, 4) for h in hops)
        or len(set(hops)) != len(hops)
    ):
        raise BadValue(f"task {task}: hops must be different numbers from 1 to 4, such as (1, 2, 3), not {hops!r}")


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


def unknown_name(seed: int, rng_key: str, training: bool, taken: Sequence[str]) -> str:
    """A name that is not in `taken`, by RNG key; whether it is for training or the test is a function of the name."""
    draw = generator(seed, "nobody", rng_key)
    while True:
        syllables = ["bdfgklmnprstvz"[int(draw.integers(14))] + "aeiou"[int(draw.integers(5))] for _ in range(3)]
        name = "".join(syllables).capitalize()
        if name not in taken and (uniform_at(key(seed, "nobody's side", name), 0) >= 0.2) == training:
            return name


@lru_cache(maxsize=16)
def _order(seed: int, lap: int, count: int) -> np.ndarray:
    """i64[count]: the order of the items in a pass over the memory."""
    return generator(seed, "memory", lap).permutation(count)
