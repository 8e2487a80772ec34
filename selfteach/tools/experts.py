"""Simulated experts that a router may ask: what each knows, what a word of its replies costs, and a tool that asks."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..core.blocks import block
from ..core.errors import BadValue, unknown
from ..core.random_keys import generator, key, uniform_at
from ..core.task import TaskSource
from ..core.tool_calls import SEARCH, ToolText, asked_nobody
from .search import NO_RESULT, search

PRICE = f"{SEARCH}price"  # what an episode's replies cost, as its cost is counted
_FACT = re.compile(r"the (\w+) of (\w+) is (\w+)\.")


class Expert(NamedTuple):
    """One expert: its name, the relations that it knows ("*": all of them), and the price of a word of its replies."""

    name: str
    relations: tuple[str, ...]
    price: float

    def knows(self, relation: str) -> bool:
        """Whether it knows the facts of a relation."""
        return relation in self.relations or "*" in self.relations


EXPERTS = (
    Expert("scribe", ("home", "mayor", "mentor"), 1.0),
    Expert("herald", ("guild", "seat", "river"), 1.0),
    Expert("sage", ("*",), 4.0),
    Expert("parrot", (), 0.5),
)


def experts_named(names: Sequence[str]) -> tuple[Expert, ...]:
    """The experts of some names, in the order of EXPERTS; () for all. Raises UnknownName."""
    for name in names:
        if name not in (known := [e.name for e in EXPERTS]):
            raise unknown("expert", name, known)
    return tuple(e for e in EXPERTS if not names or e.name in names)


@block
def ask_expert(*, source: TaskSource, luck: float = 0.2, experts: tuple[str, ...] = ()) -> Callable[[str], ToolText]:
    """The reply of an expert to `name: query`: the fact that is asked for where the expert knows its relation, else,
    but for a share of lucky guesses, that fact with another object.

    The same query always gets the same reply. What it cost (`price` times its words) is counted as the episode's. Needs
    a task with a corpus of facts, else raises BadValue.

    luck     share of the queries outside of what an expert knows that it answers right all the same
    experts  names of those that there are; (): all
    """
    if source.corpus is None:
        raise BadValue(f"tool ask_expert: task {source.name} has no corpus; use a task with facts, such as factworld")
    find, objects = search(source=source, top=1, title=0.25), dict[str, list[str]]()
    for document in source.corpus():
        if fact := _FACT.fullmatch(document.text):
            objects.setdefault(fact[1], []).append(fact[3])
    there = experts_named(experts)
    by_name, nobody = {e.name: e for e in there}, asked_nobody("expert", [e.name for e in there])

    def reply(query: str) -> ToolText:
        name, _, asked = str(query).partition(":")
        expert = by_name.get(name.strip())
        if expert is None or not asked.strip():
            return ToolText(nobody, {PRICE: 0.0})
        text = find(asked)
        fact = _FACT.fullmatch(text)
        if fact and not expert.knows(fact[1]) and uniform_at(key("expert", query), 0) >= luck:
            others = [o for o in dict.fromkeys(objects[fact[1]]) if o != fact[3]]
            wrong = others[int(generator("expert", query).integers(len(others)))] if others else fact[3]
            text = f"the {fact[1]} of {fact[2]} is {wrong}."
        return ToolText(text or NO_RESULT, {PRICE: expert.price * len(text.split())})

    return reply
