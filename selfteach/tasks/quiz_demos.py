"""The warm start of a quiz: items of memory, demonstrated questions, and trajectories of a capable agent."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from ..core.random_keys import generator, key, uniform_at
from ..core.task import Task
from .agent_demos import SAYINGS, SEARCHING, STYLES, AgentWriter, first_words
from .demo_ways import PRACTISED, TIMID, WAYS, WayShares, WayWriter, in_a_sentence, without_a_closer
from .demos import SLIPS
from .question_sampler import pick
from .quiz import MAX_DRAWS, Quiz
from .world import Chain, Hop

WARM_BATCH = 16  # items in a step of the warm start
OVER_ABSTAIN = 0.2  # share of the slips that abstain from a known answer, where abstaining is shown at all
TOKENIZER_DEMOS = 2000  # demonstrations that the tokenizer sees


@dataclass(frozen=True, eq=False)
class QuizDemos:
    """What a warm start shows of a quiz, as its options say; any item by its number alone."""

    quiz: Quiz

    @cached_property
    def writer(self) -> WayWriter:
        """The writer of demonstrations over the facts of the warm start."""
        shown = frozenset(range(len(self.quiz.world.facts))) - self.quiz.withheld_facts
        if not self.quiz.is_agent:
            return WayWriter(self.quiz.world, shown, self.quiz.held_out_entities)
        return AgentWriter(
            self.quiz.world, shown, self.quiz.held_out_entities, self.quiz.says, self.quiz.irrelevant, self.quiz.experts
        )

    @cached_property
    def memories(self) -> list[tuple[int, Hop]]:
        """(fact, direction of the query) of every item of memory: withheld facts have none."""
        hops = [(i, Hop(f.relation)) for i, f in enumerate(self.quiz.world.facts) if i not in self.quiz.withheld_facts]
        back = [
            (i, Hop(relation, False))
            for (_, relation), i in self.quiz.world.fact_of_object.items()
            if i not in self.quiz.withheld_facts
        ]
        return hops + back

    @property
    def warm_steps(self) -> int:
        """Steps of WARM_BATCH items in which every item of memory is shown about 15 times.

        After these a tiny model recalls nearly all.
        """
        shown = 15 * len(self.memories) / max(self.quiz.mix, 0.1) / WARM_BATCH
        return max(100, round(shown / 50) * 50)

    def demo(self, i: int) -> Task:
        """The i-th item of the warm start: memory and demonstrated questions, evenly interleaved.

        tags  those of the task; kind (memory or demo), slip ("" if right)
        """
        if (memory := self._memory(i)) is not None:
            return memory
        if self.quiz.ways is not None:
            return self._going(i, "demo", self.quiz.ways, generator(self.quiz.seed, "way", i))
        missing = self._unknown(i) if self.quiz.is_chosen("abstain", i, self.quiz.abstain) else None
        chain = missing or self.quiz.question("demo", i, shown=True)
        task = self.quiz.task(chain, f"demo/{i}")
        text, slip = self._completion(chain, task, i)
        return Task(task.id, task.prompt, task.answer, (text,), {**task.tags, "kind": "demo", "slip": slip})

    def _memory(self, i: int) -> Task | None:
        """The i-th item of the warm start where it is one of memory."""
        before, now = int(i * self.quiz.mix + 1e-9), int((i + 1) * self.quiz.mix + 1e-9)
        if now == before or not self.memories:
            return None
        lap, place = divmod(before, len(self.memories))
        fact, hop = self.memories[_order(self.quiz.seed, lap, len(self.memories))[place]]
        prompt, completion = self.writer.memory(fact, hop)
        return Task(f"memory/{i}", prompt, data=(completion,), tags={"kind": "memory", "slip": ""})

    def practice(self, i: int) -> Task:
        """The i-th item that is practised before the demonstrations: memory, and answers whose way is given.

        Every second of these goes any way, so that each is gone as its first words say. No shares matter here, nor are
        there strangers, so that worlds which differ in these alone practise the same.
        """
        draw = generator(self.quiz.seed, "practise", i)
        given = WAYS if draw.random() < 0.5 else PRACTISED
        return self._memory(i) or self._without_strangers._going(
            i, "practice", WayShares({}, practised=1.0), draw, given
        )

    @cached_property
    def _without_strangers(self) -> QuizDemos:
        """Those of the same quiz without strangers; made once, with its pools of questions."""
        return QuizDemos(replace(self.quiz, strangers=0.0)) if self.quiz.strangers else self

    def _going(
        self, i: int, kind: str, ways: WayShares, draw: np.random.Generator, practised: Sequence[str] = PRACTISED
    ) -> Task:
        """The i-th demonstration that goes a way; tags: those of the task, kind, way. Its prompt names a way given."""
        named = self.quiz.is_chosen("named", f"{kind}/{i}", self.quiz.named)
        lacking = named or self.quiz.is_chosen("looked up", f"{kind}/{i}", self.quiz.looked_up)
        chain = self.quiz.question(kind, i, shown=True, lacking=lacking, testing=named)
        task = self.quiz.task(chain, f"{kind}/{i}")
        given, at = draw.random() < ways.practised, draw.random()
        way = str(draw.choice(practised)) if given else pick(self._fitting(ways, chain, draw), at)
        unknown = bool(task.tags["stranger"])
        chain = self.quiz.invented(chain, task.id) if unknown else chain
        if draw.random() < ways.abstain * (1.0 if unknown else 0.0 if given else TIMID):
            text = self.writer.abstain(way, chain, not unknown)
        else:
            text = self.writer.go(way, chain, draw, 1.0 if given else ways.sure)
        if not given and draw.random() < ways.malformed:
            text = without_a_closer(text, draw)
        if not given and ways.worded and draw.random() < ways.worded:
            text = in_a_sentence(text)
        first = first_words(way, self.quiz.says) if given else ""
        if SAYINGS[self.quiz.says].report:
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
        is_needed = bool(self.quiz.withheld_facts.intersection(chain.facts))
        shares = {way: share for way, share in ways.shares.items() if (way in SEARCHING) == is_needed}
        return {way: share / sum(shares.values()) for way, share in shares.items()} or ways.shares

    def expert(self, i: int) -> Task:
        """The i-th trajectory of a capable agent, said and found in turns; tags: style, of STYLES, and slip."""
        assert isinstance(self.writer, AgentWriter)
        style, draw = list(STYLES)[i % len(STYLES)], generator(self.quiz.seed, "expert", i)
        chain = self.quiz.question("expert", i, shown=True, lacking=self.quiz.looked_up > 0)
        task = self.quiz.task(chain, f"expert/{i}")
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
        draw, is_wrong = (
            generator(self.quiz.seed, "slip", i),
            uniform_at(key(self.quiz.seed, "noise", i), 0) < self.quiz.noise,
        )
        missing = next((n for n, fact in enumerate(chain.facts) if fact in self.quiz.withheld_facts), None)
        if not task.tags["answerable"]:
            chain, missing = self.quiz.invented(chain, task.id), 0
        if not is_wrong:
            return (self.writer.correct(chain) if missing is None else self.writer.abstaining(chain, missing)), ""
        if missing is not None:
            return self.writer.with_slip(chain, "guess", draw)
        if self.quiz.is_chosen("timid", i, OVER_ABSTAIN if self.quiz.abstain or self.quiz.nobody else 0.0):
            return self.writer.over_abstaining(chain), "timid"
        share = np.array(list(SLIPS.values())) / sum(SLIPS.values())
        return self.writer.with_slip(chain, list(SLIPS)[int(draw.choice(len(SLIPS), p=share))], draw)

    def _unknown(self, i: int) -> Chain | None:
        """A training question that needs a withheld fact; None where none was found."""
        draw = generator(self.quiz.seed, "unknown", i)
        for _ in range(MAX_DRAWS // 4):
            chain = self.quiz.chain(draw, self.quiz.hops[int(draw.integers(len(self.quiz.hops)))])
            if chain is not None and self.quiz.withheld_facts.intersection(chain.facts):
                return chain
        return None

    def words(self) -> Iterator[str]:
        """Text for the tokenizer: sentences, queries, test prompts, and TOKENIZER_DEMOS items of the warm start."""
        for i, fact in enumerate(self.quiz.world.facts):
            yield self.quiz.world.sentence(i)
            yield self.quiz.world.query(Hop(fact.relation), fact.subject)
        for (entity, relation), _ in self.quiz.world.fact_of_object.items():
            yield self.quiz.world.query(Hop(relation, False), entity)
        # The tokenizer does not depend on shares or strangers, so that what was practised with it serves all of them.
        evenly = self.quiz.ways and WayShares(dict.fromkeys(WAYS, 1 / len(WAYS)), abstain=0.5)
        shown = QuizDemos(replace(self.quiz, ways=evenly, strangers=0.1)) if evenly else self
        for task in shown.quiz.test:
            yield task.prompt
        for i in range(TOKENIZER_DEMOS):
            item = shown.demo(i)
            yield item.prompt + item.data[0]


@lru_cache(maxsize=16)
def _order(seed: int, lap: int, count: int) -> np.ndarray:
    """i64[count]: the order of the items in a pass over the memory."""
    return generator(seed, "memory", lap).permutation(count)
