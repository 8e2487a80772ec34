"""Demonstrations that answer a question in one of several ways, of which it is for RL to find out which pays.

Each way is known by its first words. Whether an answer is right and whether its form is are drawn independently.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.answers import gold_answers, same
from ..core.blocks import block
from ..core.task import Task
from ..reward.answer import ABSTENTIONS
from .demos import DemoWriter, answer, information, search, think
from .world import Chain

WAYS = ("carefully", "hastily", "absently", "astray", "briefly", "directly")
PRACTISED = ("carefully", "briefly", "directly")  # those in which there is something to get right
CLOSERS = ("</think>", "</information>")
TIMID = 0.3  # how much less often what is known is answered by "I don't know" than what nobody can know


@dataclass(frozen=True)
class WayShares:
    """How often demonstrations go each way, and what is right about them.

    shares     way -> share; they sum to 1
    practised  share of the demonstrations whose way is given with the question: they teach how to go it, not when
    sure       chance that an answer that follows from no search is shown right
    malformed  chance that a tag is not closed, whatever the answer
    abstain    chance of "I don't know" where nobody can know the answer; TIMID times that elsewhere
    worded     chance that the answer is a sentence (`it is Ulm`), which is as right as the name alone
    aware      chance that the way is one that fits what the model holds: one without a search where that is all it
               takes, one with a search else
    """

    shares: dict[str, float]
    practised: float = 0.0
    sure: float = 0.6
    malformed: float = 0.0
    abstain: float = 0.0
    worded: float = 0.0
    aware: float = 0.0


@dataclass(frozen=True, eq=False)
class WayWriter(DemoWriter):
    """Writes demonstrations that go a way.

    carefully  searches hop by hop, and copies what it found          right
    hastily    searches the first hop alone, and answers with that    right where there is no other
    absently   searches as it should, and answers something else      wrong
    astray     searches something else, and goes on from there        wrong
    briefly    thinks without a search, and answers                   right with probability `sure`
    directly   answers at once, without a thought                     right with probability `sure`
    """

    def go(self, way: str, chain: Chain, draw: np.random.Generator, sure: float = 1.0) -> str:
        """The completion of a way."""
        if way in ("briefly", "directly"):
            given = chain.golds[0] if draw.random() < sure else self._other(chain, draw)
            return without_search(way, given)
        n = len(chain.hops)
        if way == "carefully":
            return named(way, self.correct(chain))
        if way == "hastily":
            return named(way, self._steps(chain, 1) + _conclusion(chain.path[1]))
        if way == "astray" and (text := self._astray(chain, draw)) is not None:
            return named(way, text)
        return named("absently", self._steps(chain, n) + _conclusion(self._other(chain, draw)))

    def abstain(self, way: str, chain: Chain, found: bool) -> str:
        """The completion of a way that ends with "I don't know": after nothing was found, or although it was."""
        if way in ("briefly", "directly"):
            return without_search(way, ABSTENTIONS[0])
        return named(way, self.over_abstaining(chain) if found else self.abstaining(chain, 0))

    def _hop(self, chain: Chain, i: int) -> str:
        """Query and sentence of a hop; where the path's entity is no part of the fact, the sentence is made up."""
        fact, hop, here = self.world.facts[chain.facts[i]], chain.hops[i], chain.path[i]
        if hop.forward and fact.subject != here:
            fact = fact._replace(subject=here)
        elif not hop.forward and here not in fact.objects:
            fact = fact._replace(objects=(here,))
        return search(self.world.query(hop, here)) + information(self.world.sentence(fact))


def beginning(way: str) -> str:
    """The first words of a completion, by which its way is known.

    >>> beginning("carefully"), beginning("directly")
    ('<think>carefully', '<answer>')
    """
    return "<answer>" if way == "directly" else f"<think>{way}"


def named(way: str, text: str) -> str:
    """A completion that begins with the way's name in place of "first"."""
    return f"{beginning(way)}:{text.removeprefix('<think>first')}"


def without_search(way: str, given: str) -> str:
    """A completion that answers from memory: at once, or after a thought."""
    return answer(given) if way == "directly" else think(f"{way}.") + answer(given)


def _conclusion(entity: str) -> str:
    return think(f"so it is {entity}.") + answer(entity)


def in_a_sentence(text: str) -> str:
    """A completion whose answer is worded.

    >>> in_a_sentence("<answer> Ulm</answer>")
    '<answer> it is Ulm</answer>'
    """
    return text.replace("<answer>", "<answer> it is")


@block
def names_answer(*, answer: Any, task: Task) -> bool:
    """Whether an answer is a gold answer, by its name alone or in a sentence: `it is Ulm`.

    >>> names_answer(answer="it is Ulm", task=Task("t", "", ("Ulm",)))
    True
    """
    return answer is not None and any(same(str(answer).removeprefix("it is "), gold) for gold in gold_answers(task))


def without_a_closer(text: str, draw: np.random.Generator) -> str:
    """The text without one of its closing tags of a thought or a search result; as it is where it has none."""
    places = [(i, c) for c in CLOSERS for i in range(len(text)) if text.startswith(c, i)]
    if not places:
        return text
    at, closer = places[int(draw.integers(len(places)))]
    return text[:at] + text[at + len(closer) :]
