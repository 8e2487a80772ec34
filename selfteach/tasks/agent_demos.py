"""Demonstrations of an agent whose searches go to an engine: what is not in memory is looked up, and what was found is
judged, in the tags that such agents have beside those of tasks/demos.py.

What a demonstration finds of a fact that the model is not to hold is drawn anew each time, so that it is learned to be
looked up, and never by heart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..core.blocks import block
from ..rollout.search import workspace
from ..tools.experts import experts_named
from .demo_ways import WayWriter, beginning, without_search
from .demos import answer, information, search, think
from .question_sampler import pick
from .world import Chain, Hop, World

SEARCHING = ("carefully", "hastily", "absently", "astray")  # the ways that search
ATTEMPTS = 3  # searches for one fact, each in other words


class Saying(NamedTuple):
    """What an agent says beside thoughts, queries and answers.

    verdict  the tag in which it judges what was found; "": it does not
    yes, no  the words of that verdict
    goal     whether it states what it looks for before it searches
    decision whether it says first where it will look: memory or search
    report   whether each turn is a round of its own, which begins from a report of what was found so far
    cite     whether it names before its answer the pages that led to it, all of them, some or none
    route    whether it addresses each query to an expert of tools/experts.py
    refine   whether it reads, after its answer, all that it did, step by step, up to the first that went wrong
    """

    verdict: str = ""
    yes: str = ""
    no: str = ""
    goal: bool = False
    decision: bool = False
    report: bool = False
    cite: bool = False
    route: bool = False
    refine: bool = False

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags that this adds, opening and closing."""
        said = {"goal": self.goal, "decision": self.decision, "report": self.report, "cite": self.cite}
        said |= {"judge": self.refine, "cut": self.refine}
        names = [self.verdict, *(name for name, is_said in said.items() if is_said)]
        return tuple(tag for name in names if name for tag in (f"<{name}>", f"</{name}>"))


SAYINGS = {
    "": Saying(),
    "judge": Saying("judge", "Yes", "No"),
    "reflect": Saying("reflect", "True", "False", goal=True),
    "decide": Saying(decision=True),
    "report": Saying(report=True),
    "cite": Saying(cite=True),
    "route": Saying(route=True),
    "refine": Saying(refine=True),
}


class Style(NamedTuple):
    """Which trajectories of a capable agent are taken.

    way      the way that they go; None: any that searches
    right    whether no search may have led astray
    recover  whether a result must have been rejected and a later one accepted
    misread  whether what is answered is another than what was found
    """

    way: str | None = None
    right: bool = False
    recover: bool = False
    misread: bool = False


STYLES = {
    "behaving": Style("carefully", right=True, recover=True),
    "misled": Style("carefully", right=True, recover=True, misread=True),
    "right": Style(right=True),
    "random": Style(),
}
EXPERT_DRAWS = 400  # trajectories among which one of a style is found
DOUBTED = 0.85  # share of its accepted results that an agent of rounds asks for once more
CITES = {"all": 0.3, "last": 0.4, "none": 0.3}  # how demonstrations that cite do it, whatever else they do


@dataclass(frozen=True, eq=False)
class AgentWriter(WayWriter):
    """Writes demonstrations that go a way, with an engine for the facts that are not in memory.

    carefully  searches hop by hop, accepts what it sought, and otherwise searches again in other words
    hastily    accepts the first result of each hop, whatever it is
    absently   accepts or rejects by a coin, and goes on from what it accepted
    astray     rejects every first result
    briefly    recalls what it would have found, sentence by sentence; a fact that is not in memory is made up
    directly   answers at once; where a fact is not in memory, by a guess

    says        of SAYINGS
    irrelevant  share of the results that are another document
    experts     names of the experts that it addresses; (): all
    """

    says: str = ""
    irrelevant: float = 0.0
    experts: tuple[str, ...] = ()

    def go(self, way: str, chain: Chain, draw: np.random.Generator, sure: float = 1.0) -> str:
        """The completion of a way."""
        if way in SEARCHING:
            text, wrong = self._searching(way, chain, draw)
        else:
            right = draw.random() < sure and self.shown.issuperset(chain.facts)
            text = (
                self._recalling(chain, right, draw)
                if way == "briefly"
                else without_search(way, chain.golds[0] if right else self._other(chain, draw))
            )
            wrong = 0 if right else 1
        text += refined(wrong, text.count("<search>")) if SAYINGS[self.says].refine else ""
        return first_words(way, self.says) + text.removeprefix(beginning(way))

    def expert(self, style: str, chain: Chain, draw: np.random.Generator) -> tuple[str, bool]:
        """(completion, whether nothing went wrong in it) of a capable agent, drawn until it is of a style of STYLES."""
        wanted, text, wrong = STYLES[style], "", 0
        for _ in range(EXPERT_DRAWS):
            way = wanted.way or str(draw.choice(SEARCHING))
            text, wrong = self._searching(way, chain, draw, wanted.misread)
            if not (wanted.right and wrong) and (not wanted.recover or recovers(text, SAYINGS[self.says])):
                break
        return text, not (wrong or wanted.misread)

    def _searching(self, way: str, chain: Chain, draw: np.random.Generator, misread: bool = False) -> tuple[str, int]:
        """The completion of a way that searches, and the number of the search that led astray first, 0: none."""
        text, here, pages, wrong = "", chain.start, [chain.start], 0
        for i, hop in enumerate(chain.hops):
            sentence, there = self._found(hop, here, chain.path[i + 1] if here == chain.path[i] else "", draw)
            thought = f"{way}: the {self.world.noun(hop)}." if i == 0 else f"then the {self.world.noun(hop)}."
            more, here = self._attempts(way, hop, here, sentence, there, draw)
            text, pages = text + think(thought) + more, [*pages, here]
            wrong = wrong or (text.count("<search>") if here != there else 0)
        cited = cite(pages, draw) if SAYINGS[self.says].cite else ""
        told = self._unlike(here, chain, draw) if misread else here
        return text + think(f"so it is {told}.") + cited + answer(told), wrong

    def _unlike(self, found: str, chain: Chain, draw: np.random.Generator) -> str:
        """An entity of the answer's type that is neither what was found nor an answer."""
        options = [
            e for e in self.world.types[self.world.types_at(chain.hops[-1])[1]] if e not in (found, *chain.golds)
        ]
        return options[int(draw.integers(len(options)))]

    def rounds(self, way: str, chain: Chain, draw: np.random.Generator) -> list[tuple[str, str]]:
        """(workspace, completion) of every round of a way that searches: each sees the question, the report of the last
        round and what its search found, and nothing else (rollout/search.py, `research_rounds`).

        A report is the last result that was accepted, so that it stays as long as it is. The careful way asks for a
        share DOUBTED of what it accepted once more, in other words: rounds that could be saved.
        """
        out, here, report, seen = list[tuple[str, str]](), chain.start, "", ""
        for i, hop in enumerate(chain.hops):
            sentence, there = self._found(hop, here, chain.path[i + 1] if here == chain.path[i] else "", draw)
            thought = think(f"{way}: the {self.world.noun(hop)}.")
            searches = list(self._searches(way, hop, here, sentence, there, draw))
            if way == "carefully" and draw.random() < DOUBTED:
                other = wordings(self.world.query(hop, here), hop.relation, here)[len(searches) % ATTEMPTS]
                searches.append((other, *searches[-1][1:]))
            for wording, result, led_to, accepted in searches:
                out.append((seen, f"{thought}<report> {report}</report>{search(wording)}"))
                seen, there = workspace(report, wording, result), led_to
                report = result if accepted else report
            here = there
        out.append((seen, f"{think(f'{way}: so it is {here}.')}<report> {report}</report>{answer(here)}"))
        return out

    def _recalling(self, chain: Chain, right: bool, draw: np.random.Generator) -> str:
        """What is in memory, said in a thought; right, or with another answer after it. No false fact is taught: what
        is made up of a fact that is not in memory is drawn anew.
        """
        recalled, here = list[str](), chain.start
        for i, hop in enumerate(chain.hops):
            sentence, here = self._found(hop, here, chain.path[i + 1] if here == chain.path[i] else "", draw)
            recalled.append(sentence)
        known = self.shown.issuperset(chain.facts)
        given = here if right or not known else self._other(chain, draw)
        return think(f"briefly: {' '.join(recalled)}") + answer(given)

    def _found(self, hop: Hop, here: str, wanted: str, draw: np.random.Generator) -> tuple[str, str]:
        """(sentence, entity that it leads to) of a hop; drawn anew where the fact is not in memory."""
        number = self.world.fact_at(here, hop)
        if number in self.shown and here not in self.held_out:
            targets = self.world.targets(number, hop)
            return self.world.sentence(number), wanted if wanted in targets else targets[0]
        options = self.world.types[self.world.types_at(hop)[1]]
        there = options[int(draw.integers(len(options)))]
        s, o = (here, there) if hop.forward else (there, here)
        return self.world.relations[hop.relation].sentence.format(s=s, o=o), there

    def _attempts(
        self, way: str, hop: Hop, here: str, sentence: str, there: str, draw: np.random.Generator
    ) -> tuple[str, str]:
        """Searches for one fact until a result is accepted, and the entity that is gone on from."""
        saying, text, seen = SAYINGS[self.says], "", there
        for n, (wording, result, led_to, yes) in enumerate(self._searches(way, hop, here, sentence, there, draw)):
            goal = f"<goal> {self.world.query(hop, here)}</goal>" if saying.goal else ""
            text += (think("again.") if n else "") + goal + search(wording) + information(result)
            if saying.verdict:
                text += f"<{saying.verdict}> {saying.yes if yes else saying.no}</{saying.verdict}>"
            seen = led_to
        return text, seen

    def _searches(
        self, way: str, hop: Hop, here: str, sentence: str, there: str, draw: np.random.Generator
    ) -> Iterator[tuple[str, str, str, bool]]:
        """(query, result, the entity that it leads to, whether it is accepted) of each search for one fact, up to the
        first that is accepted.
        """
        asked = wordings(self.world.query(hop, here), hop.relation, here)
        if SAYINGS[self.says].refine:  # so that what is done again is done in other words
            asked = tuple(asked[int(i)] for i in draw.permutation(len(asked)))
        for n, wording in enumerate(asked):
            elsewhere = self._elsewhere(sentence, draw) if draw.random() < self.irrelevant else None
            if SAYINGS[self.says].route:
                experts = experts_named(self.experts)
                expert = experts[int(draw.integers(len(experts)))]
                wording = f"{expert.name}: {wording}"
                elsewhere = None if expert.knows(hop.relation) else self._mistaken(hop, here, there, draw)
            result, seen = elsewhere or (sentence, there)
            yes = {"carefully": elsewhere is None, "hastily": True, "astray": n > 0}.get(way, draw.random() < 0.5)
            yield wording, result, seen, yes
            if yes:
                break

    def _mistaken(self, hop: Hop, here: str, there: str, draw: np.random.Generator) -> tuple[str, str]:
        """(sentence, entity) of a reply that is wrong in what is sought alone."""
        options = [e for e in self.world.types[self.world.types_at(hop)[1]] if e not in (here, there)]
        wrong = options[int(draw.integers(len(options)))]
        s, o = (here, wrong) if hop.forward else (wrong, here)
        return self.world.relations[hop.relation].sentence.format(s=s, o=o), wrong

    def _elsewhere(self, sentence: str, draw: np.random.Generator) -> tuple[str, str] | None:
        """(sentence, an object) of another fact, as an engine finds it that misunderstands: one in memory, or where
        nothing is in memory, one that is made up.
        """
        if facts := sorted(self.shown):
            fact = self.world.facts[facts[int(draw.integers(len(facts)))]]
        else:
            number = int(draw.integers(len(self.world.facts)))
            options = self.world.types[self.world.relations[self.world.facts[number].relation].object]
            fact = self.world.facts[number]._replace(objects=(options[int(draw.integers(len(options)))],))
        found = self.world.sentence(fact)
        return None if found == sentence else (found, fact.objects[0])


def recovers(text: str, saying: Saying) -> bool:
    """Whether a result was rejected, and one that came after it accepted.

    >>> judged = SAYINGS["judge"]
    >>> [recovers(text, judged) for text in ("<judge> No</judge><judge> Yes</judge>", "<judge> Yes</judge>")]
    [True, False]
    """
    verdicts = re.findall(f"<{saying.verdict}> (.*?)</{saying.verdict}>", text)
    return saying.no in verdicts and saying.yes in verdicts[verdicts.index(saying.no) :]


def cite(pages: Sequence[str], draw: np.random.Generator) -> str:
    """The pages that led to an answer: all of them, the last, or none, by CITES."""
    how = pick(CITES, draw.random())
    named = {"all": pages, "last": pages[-1:], "none": ()}[how]
    return f"<cite> {', '.join(named)}</cite>" if named else ""


def refined(wrong: int, steps: int) -> str:
    """What is said of an episode of so many searches whose step of that number (from 1) went wrong first; 0: none did.

    >>> refined(0, 1), refined(2, 3)
    ('<think>1 yes.</think><judge> Yes</judge>', '<think>1 yes, 2 no.</think><judge> No</judge><cut> 2</cut>')
    """
    read = ", ".join(f"{n} {'no' if n == wrong else 'yes'}" for n in range(1, (wrong or steps) + 1))
    said = think(f"{read}.") if read else ""
    return said + (f"<judge> No</judge><cut> {wrong}</cut>" if wrong else "<judge> Yes</judge>")


def first_words(way: str, says: str = "") -> str:
    """The first words of a completion, by which its way is known, with the decision before them where one is said.

    >>> first_words("carefully", "decide"), first_words("directly", "decide")
    ('<decision> search</decision><think>carefully', '<decision> memory</decision><answer>')
    """
    where = "search" if way in SEARCHING else "memory"
    return (f"<decision> {where}</decision>" if SAYINGS[says].decision else "") + beginning(way)


def wordings(query: str, relation: str, entity: str) -> tuple[str, ...]:
    """Ways of asking an engine for one fact.

    >>> wordings("home of Ann", "home", "Ann")
    ('home of Ann', 'Ann home', 'home Ann')
    """
    return (query, f"{entity} {relation}", f"{relation} {entity}")[:ATTEMPTS]


@block
def states_what_is_sought(*, sought: str, results: str, statements: Mapping[str, str] | None = None) -> bool | None:
    """Whether results hold the true statement of the fact that is sought; None where no fact is asked for.

    sought      the phrase of a fact, as in a query: `home of Ann`, `the home of Ann`
    statements  phrase without its article -> the sentence that states the fact

    >>> known = {"home of Ann": "the home of Ann is Ulm."}
    >>> [states_what_is_sought(sought=s, results="the home of Ann is Ulm.", statements=known) for s in ("the home of"
    ... " Ann", "home of Bob")]
    [True, None]
    """
    phrase = re.sub(r"^(the|a|an) ", "", " ".join(sought.split()))
    statement = (statements or {}).get(phrase)
    return None if statement is None else statement in results


def statements_of(world: World) -> dict[str, str]:
    """Phrase of every hop from an entity, without its article -> the sentence of the fact that it uses."""
    return {
        world.query(hop, entity): world.sentence(number)
        for hop in world.hops
        for entity in world.starts(hop)
        if (number := world.fact_at(entity, hop)) is not None
    }
