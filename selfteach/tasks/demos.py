"""Demonstrations in the tags of SSRL (arXiv 2508.10874): think, search, information, answer; right and wrong ones.

A wrong one errs in a way that sampling can correct: too few searches, a wrong query, an intermediate answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..reward.answer import ABSTENTIONS
from ..tools.search import NO_RESULT
from .world import Chain, Hop, World

TAGS = ("<think>", "</think>", "<search>", "</search>", "<information>", "</information>", "<answer>", "</answer>")
# Relative frequency of each kind of slip. A false sentence is rare: it teaches a false fact, the others behaviour only.
SLIPS = {
    "guess": 6,
    "early": 5,
    "intermediate": 4,
    "astray": 1,
    "false": 1,
    "unclosed": 1,
    "repeated": 1,
    "thoughtless": 1,
}


@dataclass(frozen=True, eq=False)
class DemoWriter:
    """Writes demonstrations.

    shown     numbers of the facts that may be shown
    held_out  entities that no hop of a demonstration starts from
    """

    world: World
    shown: frozenset[int]
    held_out: frozenset[str] = frozenset()

    def memory(self, fact: int, hop: Hop) -> tuple[str, str]:
        """(prompt, completion) of one item of memory: a note of what is sought; its query and the fact's sentence.

        The query is copied from the note, so that names which no question is about are copied somewhere too.
        """
        f = self.world.facts[fact]
        entity = f.subject if hop.forward else f.objects[0]
        return f"note: {self.world.phrase(hop, entity)}.\n", search(self.world.query(hop, entity)) + information(
            self.world.sentence(fact)
        )

    def correct(self, chain: Chain) -> str:
        """One thought and one search per hop, then the answer of the chain's path."""
        return self._steps(chain, len(chain.hops)) + _end(chain.golds[0])

    def with_slip(self, chain: Chain, slip: str, draw: np.random.Generator) -> tuple[str, str]:
        """(text, slip) with a slip of SLIPS; one that this chain cannot have (an early stop of one hop) is a guess."""
        n = len(chain.hops)
        write: dict[str, Callable[[], str | None]] = {
            "early": lambda: (
                self._steps(chain, int(draw.integers(1, n))) + answer(self._other(chain, draw)) if n > 1 else None
            ),
            "intermediate": lambda: (
                self._steps(chain, n) + _end(chain.path[int(draw.integers(1, n))]) if n > 1 else None
            ),
            "astray": lambda: self._astray(chain, draw),
            "false": lambda: self._false(chain, draw),
            "unclosed": lambda: _nth(self.correct(chain), "</information>", int(draw.integers(n)), ""),
            "repeated": lambda: self._repeated(chain, int(draw.integers(n))),
            "thoughtless": lambda: "".join(self._hop(chain, i) for i in range(n)) + answer(chain.golds[0]),
        }
        text = write[slip]() if slip in write else None
        if text is None:
            return self._thought(chain.hops[0], 0) + answer(self._other(chain, draw)), "guess"
        return text, slip

    def abstaining(self, chain: Chain, at: int) -> str:
        """The right completion where the fact of hop `at` is missing: a search without result, then an abstention."""
        query = search(self.world.query(chain.hops[at], chain.path[at]))
        return (
            self._steps(chain, at) + self._thought(chain.hops[at], at) + query + information(NO_RESULT) + abstention()
        )

    def over_abstaining(self, chain: Chain) -> str:
        """An abstention although every fact was found."""
        return self._steps(chain, len(chain.hops)) + abstention()

    def _hop(self, chain: Chain, i: int) -> str:
        return search(self.world.query(chain.hops[i], chain.path[i])) + information(self.world.sentence(chain.facts[i]))

    def _thought(self, hop: Hop, i: int) -> str:
        return think(f"{'first' if i == 0 else 'then'} the {self.world.noun(hop)}.")

    def _steps(self, chain: Chain, n: int) -> str:
        return "".join(self._thought(chain.hops[i], i) + self._hop(chain, i) for i in range(n))

    def _repeated(self, chain: Chain, i: int) -> str:
        """The right completion, with one search made twice in a row."""
        before = self._steps(chain, i + 1)
        return before + self._hop(chain, i) + self.correct(chain).removeprefix(before)

    def _other(self, chain: Chain, draw: np.random.Generator, at: int | None = None) -> str:
        """A wrong entity of the type of the answer (or of what hop `at` leads to)."""
        hop = chain.hops[-1 if at is None else at]
        right = chain.golds if at is None else self.world.targets(chain.facts[at], hop)
        options = [e for e in self.world.types[self.world.types_at(hop)[1]] if e not in right]
        return options[int(draw.integers(len(options)))] if options else chain.start

    def _astray(self, chain: Chain, draw: np.random.Generator) -> str | None:
        """One search for another relation or another entity; the rest follows from its result. None: not possible."""
        at = int(draw.integers(len(chain.hops)))
        hop, entity = chain.hops[at], chain.path[at]
        if draw.random() < 0.5:
            hops = [h for h in self.world.hops if h != hop and self.world.types_at(h)[0] == self.world.types_at(hop)[0]]
            options = [(h, n) for h in hops if (n := self.world.fact_at(entity, h)) in self.shown]
        else:
            numbers = [
                (e, self.world.fact_at(e, hop))
                for e in self.world.starts(hop)
                if e != entity and self._is_allowed(e, hop)
            ]
            e, n = numbers[int(draw.integers(len(numbers)))] if numbers else ("", None)
            entity, options = e, [(hop, n)] if n in self.shown else []
        if not options:
            return None
        strayed, fact = options[int(draw.integers(len(options)))]
        text = (
            self._steps(chain, at)
            + self._thought(hop, at)
            + search(self.world.query(strayed, entity))
            + information(self.world.sentence(fact or 0))
        )
        here = self.world.targets(fact or 0, strayed)[0]
        for i in range(at + 1, len(chain.hops)):
            n = self.world.fact_at(here, chain.hops[i])
            if n is None or n not in self.shown or not self._is_allowed(here, chain.hops[i]):
                break
            text += (
                self._thought(chain.hops[i], i)
                + search(self.world.query(chain.hops[i], here))
                + information(self.world.sentence(n))
            )
            here = self.world.targets(n, chain.hops[i])[0]
        return text + _end(here)

    def _is_allowed(self, entity: str, hop: Hop) -> bool:
        """True where neither the entity nor the subject of the fact that a hop from it uses is held out."""
        n = self.world.fact_at(entity, hop)
        return entity not in self.held_out and (n is None or self.world.facts[n].subject not in self.held_out)

    def _false(self, chain: Chain, draw: np.random.Generator) -> str | None:
        """The last sentence is false, and the answer follows it; None where it happens to state a fact."""
        fact, hop = self.world.facts[chain.facts[-1]], chain.hops[-1]
        other = self._other(chain, draw, len(chain.hops) - 1)
        claim = fact._replace(objects=(other,)) if hop.forward else fact._replace(subject=other)
        true = self.world.fact_of_subject.get((claim.subject, claim.relation))
        if true is not None and set(claim.objects) <= set(self.world.facts[true].objects):
            return None
        query = search(self.world.query(hop, chain.path[-2]))
        n = len(chain.hops)
        return (
            self._steps(chain, n - 1)
            + self._thought(hop, n - 1)
            + query
            + information(self.world.sentence(claim))
            + _end(other)
        )


def think(text: str) -> str:
    """A thought in its tags."""
    return f"<think>{text}</think>"


def search(text: str) -> str:
    """A query in its tags."""
    return f"<search>{text}</search>"


def information(text: str) -> str:
    """A search result in its tags."""
    return f"<information>{text}</information>"


def answer(text: str) -> str:
    """An answer in its tags."""
    # The space makes the answer the same tokens here as in the middle of a sentence, so that it can be copied from one.
    return f"<answer> {text}</answer>"


def abstention() -> str:
    """A thought and an answer that abstain."""
    return think("I am not sure.") + answer(ABSTENTIONS[0])


def _end(text: str) -> str:
    return think(f"so it is {text}.") + answer(text)


def _nth(text: str, old: str, n: int, new: str) -> str:
    """`text` with the n-th `old` replaced."""
    parts = text.split(old)
    return old.join(parts[: n + 1]) + new + old.join(parts[n + 1 :])
