"""Questions of many shapes over a fictional world, synthesised from its graph of facts and checked against it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np

from ..core.errors import BadValue
from ..core.random_keys import generator
from ..core.registry import task
from ..core.tagged_text import SPLIT
from ..core.task import Document, Task, TaskSource
from ..tools.search import search
from .agent_demos import statements_of, states_what_is_sought
from .demo_ways import beginning
from .demos import TAGS, answer, information, think
from .demos import search as searched
from .factworld import fiction
from .options import check_at_least, check_number, check_share
from .question_graphs import GraphQuestion, Term, grow, query_of, question_of, versions
from .question_sampler import MAX_DRAWS, QuestionSampler
from .world import World

WAYS = ("carefully", "together", "hastily", "directly")
EVENLY, CAREFULLY = (0.25, 0.25, 0.25, 0.25), (1.0, 0.0, 0.0, 0.0)
PRACTISED = ("carefully", "together", "directly")  # those in which there is something to get right


@task
def fact_graph(
    entities: int = 200,
    relations: int = 8,
    hops: tuple[int, ...] = (2, 3),
    joints: int = 0,
    parts: int = 1,
    dispersion: float = 0.0,
    ways: tuple[float, ...] = (0.4, 0.0, 0.3, 0.3),
    practised: float = 0.3,
    misaligned: float = 0.0,
    edits: int = 0,
    unheld: bool = False,
    top: int = 1,
    n_test: int = 400,
    seed: int = 0,
) -> TaskSource:
    """Questions grown from their answers over the world of `factworld`, each with one answer that documents lead to.

    Tags as those of `factworld`: hops, kind, entities (the answers), chain (the sentences it needs), sub_questions,
    keywords, rubrics; and topology (facts + joints), dispersion, verified (whether the search tool, asked for each fact
    in turn, finds what it says).

    entities    of the world, as in factworld; relations: kinds of fact
    hops        numbers of facts that lead to a part of the answer, 1 to 6; what is named is one fact away from what
                it hides, so a further hop obfuscates it
    joints      intersections in a part (`the person whose home is Ulm and whose guild is ...`), at most 2; the search
                tool finds them with `top` of 3 or more
    parts       answers that are asked for together, which have nothing to do with each other: 1 to 3
    dispersion  least share of the facts that stand on pages of their own
    ways        shares of the demonstrations that look for every fact in turn; for those of all parts at once, in one
                search whose queries `##` divides; for the first fact alone; and that answer at once
    practised   share of the demonstrations whose way is given with the question
    misaligned  share of the documents that state another object than the fact has, as a snapshot of a corpus does;
                test questions need none of these
    edits       each question is made harder, an edit at a time, up to so often: training tasks come in runs of
                edits + 1, a question and what became of it; their answers are none of the test's. 0 to 6
    unheld      whether what demonstrations find is drawn anew each time, so that no fact is learned by heart
    top         documents in an answer of the search tool
    n_test      test questions
    seed        of every random draw; the world is that of factworld's
    """
    given = dict(locals())
    for name in ("dispersion", "practised", "misaligned"):
        check_share("fact_graph", name, given[name])
    for name in ("n_test", "top", "parts"):
        check_at_least("fact_graph", name, given[name], 1)
    if not 0 <= check_number("fact_graph", "edits", edits) <= 6 or (edits and parts > 1):
        raise BadValue("task fact_graph: edits must be 0 to 6, and a question of several parts has none")
    if not 0 <= check_number("fact_graph", "joints", joints) <= 2 or parts > 3:
        raise BadValue("task fact_graph: joints must be 0 to 2, and parts 1 to 3")
    if unheld and joints:
        raise BadValue("task fact_graph: unheld is of chains; leave joints at 0")
    if not hops or any(not 1 <= h <= 6 or h < 2 * joints for h in hops):
        raise BadValue(f"task fact_graph: hops must be from {max(1, 2 * joints)} to 6, not {hops!r}")
    if len(ways) != len(WAYS) or abs(sum(check_share("fact_graph", "ways", w) for w in ways) - 1) > 1e-6:
        raise BadValue(f"task fact_graph: ways must be 4 shares that sum to 1 ({', '.join(WAYS)}), not {ways!r}")
    world, seeds = fiction(entities, relations, seed), tuple(hops) if edits else ()
    quiz = GraphQuiz(
        world, seed, joints, parts, dispersion, tuple(ways), practised, misaligned, top, edits, seeds, unheld
    )
    kinds, unit = (tuple(range(edits + 1)), "edit") if edits else (tuple(hops), "hop")

    def identity(question: GraphQuestion) -> str:
        return " and ".join(question.golds) if edits else question.text

    sampler = QuestionSampler[GraphQuestion]("fact_graph", kinds, quiz.draw, identity, quiz.task, unit, n_test, seed)

    def train(i: int) -> Task:
        version, number = i % (edits + 1), i // (edits + 1)
        return quiz.task(sampler.sample("train", number, kinds=(version,)), f"train/{i}")

    # made once, so that each keeps what its engine finds
    evenly, careful = (replace(quiz, ways=w, practised=p) for w, p in ((EVENLY, 1.0), (CAREFULLY, 0.0)))
    return TaskSource(
        name="fact_graph",
        train=train if edits else sampler.train,
        test=tuple(t for t in sampler.test if t.tags["verified"]) if misaligned else sampler.test,
        demos=lambda i: quiz.demo(sampler.sample("demo", i), i),
        practice=lambda i: evenly.demo(sampler.sample("practice", i), i),
        experts=lambda i: careful.expert(sampler.sample("expert", i), i),
        words=lambda: quiz.words(sampler),
        tags=TAGS,
        corpus=quiz.corpus,
        tools={"search": search(top=top)},
        defaults={
            "max_tokens": 40 * (max(hops) + edits) * parts + 32,
            "by": "hops",
            "words": True,
            "lr": 2e-4,
            "warm_steps": 1500,
            "warm_batch": 16,
            "warm_lr": 2e-3,
        },
        task_options=given,
        about={"entities": len(quiz.world.entities), "facts": len(quiz.world.facts)},
        columns=("chain", "keywords", "rubrics", "sub_questions"),
    )


@dataclass(frozen=True, eq=False)
class GraphQuiz:
    """Draws questions of a world, and writes demonstrations of how they are answered."""

    world: World
    seed: int
    joints: int
    parts: int
    dispersion: float
    ways: tuple[float, ...]
    practised: float = 0.0
    misaligned: float = 0.0
    top: int = 1
    edits: int = 0
    seeds: tuple[int, ...] = ()  # facts of the questions that are edited
    unheld: bool = False  # whether demonstrations find what is drawn anew

    @cached_property
    def _finds(self) -> Callable[[str], str]:
        """What the search tool finds, each query asked once."""
        source = TaskSource("fact_graph", train=lambda i: Task("", ""), test=(), corpus=self.corpus)
        return cache(search(top=self.top)(source=source))

    @cached_property
    def statements(self) -> dict[str, str]:
        """Phrase of a hop -> the sentence of its fact."""
        return statements_of(self.world)

    def draw(self, draw: np.random.Generator, kind: int) -> GraphQuestion:
        """A random question of so many facts to each part, or where questions are edited, edited so often: the same
        draws edited otherwise are the same question. Raises BadValue where none is found.
        """
        world, documented = self.world, range(len(self.world.facts))
        for _ in range(MAX_DRAWS):
            hops = self.seeds[int(draw.integers(len(self.seeds)))] if self.seeds else kind
            terms = list[Term]()
            for _ in range(self.parts):
                answer = world.entities[int(draw.integers(len(world.entities)))]
                term = grow(world, answer, hops, self.joints, draw)
                terms += [] if term is None else [term]
            if self.seeds and terms:
                terms = versions(world, terms[0], self.edits, draw, documented)[kind : kind + 1]
            made = question_of(world, terms, documented) if len(terms) == self.parts else None
            if made is not None and made.dispersion >= self.dispersion:
                return made
        raise BadValue(
            f"task fact_graph: no question of {kind} {'edits' if self.seeds else 'hops'}, {self.joints} joints and"
            f" dispersion {self.dispersion} was found; make the world larger, or ask for less"
        )

    def task(self, question: GraphQuestion, name: str) -> Task:
        """The task of a question."""
        hops = len(question.facts) // self.parts
        tags: dict[str, Any] = {
            "hops": hops,
            "category": f"{hops} hops",
            "difficulty": len(question.facts),
            "kind": f"{self.parts} x {hops} facts, {self.joints} joints",
            "entities": question.golds,
            "chain": tuple(self.world.sentence(n) for n in question.facts),
            "sub_questions": question.sub_questions,
            "keywords": question.keywords,
            "rubrics": question.rubrics,
            "topology": len(question.facts) + self.joints * self.parts,
            "dispersion": question.dispersion,
            "verified": all(
                self.world.sentence(n) in self._finds(ways[0])
                for n, ways in zip(question.facts, question.keywords, strict=True)
            ),
        }
        judges = {"states": states_what_is_sought(statements=self.statements)}
        return Task(
            name, f"question: what is {question.text}?\n", (" and ".join(question.golds),), tags=tags, judges=judges
        )

    def demo(self, question: GraphQuestion, i: int) -> Task:
        """A demonstration that goes one of WAYS, which the prompt of some gives."""
        draw, task = generator(self.seed, "way", i), self.task(question, f"demo/{i}")
        given = draw.random() < self.practised
        way = str(draw.choice(PRACTISED)) if given else str(draw.choice(WAYS, p=self.ways))
        rounds = self._rounds(way, question)
        found = sum(len(facts) for facts in rounds)
        asked, golds = self._imagined(question, draw) if self.unheld else (self._documented(question), question.golds)
        text = ""
        for n, facts in enumerate(rounds):
            queries, sentences = (SPLIT.join(asked[k][which] for k in facts) for which in (0, 1))
            text += think(f"{way}." if n == 0 else "then.") + searched(queries) + information(sentences)
        said = " and ".join(golds if found == len(question.facts) else self._guessed(question, draw))
        text += (think(f"so it is {said}.") if rounds else "") + answer(said)
        first = beginning(way) if given else ""
        tags = {**task.tags, "kind": "demo", "way": way}
        return replace(task, prompt=task.prompt + first, data=(text.removeprefix(first),), tags=tags)

    def expert(self, question: GraphQuestion, i: int) -> Task:
        """A demonstration as a trajectory, said and found in turns."""
        task = self.demo(question, i)
        turns = tuple(re.split(r"(<information>.*?</information>)", task.data[0]))
        return replace(task, id=f"expert/{i}", data=turns, tags={**task.tags, "kind": "expert"})

    def _rounds(self, way: str, question: GraphQuestion) -> list[list[int]]:
        """The facts that each search of a way looks for, by their numbers in the question."""
        count = len(question.facts)
        if way == "together":
            each = count // self.parts
            return [[part * each + n for part in range(self.parts)] for n in range(each)]
        return [[n] for n in range({"carefully": count, "hastily": 1}.get(way, 0))]

    def _documented(self, question: GraphQuestion) -> list[tuple[str, str]]:
        """(query, what is found) of each fact of a question."""
        sentences = [self.world.sentence(n) for n in question.facts]
        return [(ways[0], found) for ways, found in zip(question.keywords, sentences, strict=True)]

    def _imagined(
        self, question: GraphQuestion, draw: np.random.Generator
    ) -> tuple[list[tuple[str, str]], tuple[str, ...]]:
        """As `_documented`, and the answers, in a world where each fact leads to another entity of its type."""
        asked, golds, each = list[tuple[str, str]](), list[str](), len(question.needs) // self.parts
        for n, (number, hop, start) in enumerate(question.needs):
            here = golds.pop() if n % each else start
            options = [e for e in self.world.types[self.world.types_at(hop)[1]] if e != here]
            golds.append(options[int(draw.integers(len(options)))])
            s, o = (here, golds[-1]) if hop.forward else (golds[-1], here)
            relation = self.world.relations[self.world.facts[number].relation]
            asked.append((query_of(self.world, hop, here), relation.sentence.format(s=s, o=o)))
        return asked, tuple(golds)

    def _guessed(self, question: GraphQuestion, draw: np.random.Generator) -> list[str]:
        """Entities of the answers' types, at random."""
        out = list[str]()
        for gold in question.golds:
            options = next(es for es in self.world.types.values() if gold in es)
            out.append(options[int(draw.integers(len(options)))])
        return out

    def words(self, sampler: QuestionSampler[GraphQuestion]) -> Iterator[str]:
        """Text for the tokenizer."""
        sentences = [self.world.sentence(n) for n in range(len(self.world.facts))]
        return sampler.words(lambda i: self.demo(sampler.sample("demo", i), i), sentences)

    def corpus(self) -> list[Document]:
        """A document per fact, under its subject; a share of them states another object."""
        out = list[Document]()
        for n, f in enumerate(self.world.facts):
            draw = generator(self.seed, "misaligned", n)
            if draw.random() < self.misaligned:
                options = [o for o in self.world.types[self.world.relations[f.relation].object] if o not in f.objects]
                f = f._replace(objects=(options[int(draw.integers(len(options)))],))
            out.append(Document(f.subject, self.world.sentence(f)))
        return out
