"""Chat templates from outside: compiled with the Hub's conventions, in a sandbox, and bounded in work, memory and time.

A template is a program of whoever made the model. It can neither reach Python nor change its inputs, and every step
that it takes (a turn of a loop, a call of a macro, function or filter) and every character that it makes is counted.
"""

from __future__ import annotations

import json
import re
import time
import types
from collections.abc import Callable, Iterable, Iterator, Sized
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache, wraps
from typing import Any, cast

from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from ..core.errors import BadValue

TODAY = datetime(2024, 7, 26)  # fixed, since a prompt must not depend on the day
MOST_STEPS = 300_000
MOST_CHARACTERS = 1 << 24  # of one text; all texts that are made have 64 times as many at most
MOST_SECONDS = 30.0  # where single steps are slow
MOST_SOURCE = 1 << 20  # characters of a template
WIDEST = 100_000  # a number that a template may hand to a function: widths, counts
WIDE = re.compile(r"\d{5}|\*|:[^}]*\{")  # a width in a format, or one that is given elsewhere


class TemplateTooLong(BadValue):
    """A template that does more than any chat template needs."""


@dataclass
class Budget:
    """What one render may still do."""

    steps: int = MOST_STEPS
    characters: int = 64 * MOST_CHARACTERS
    end: float = field(default_factory=lambda: time.monotonic() + MOST_SECONDS)

    def step(self, n: int = 1) -> None:
        """Count steps. Raises TemplateTooLong."""
        self.steps -= n
        if self.steps < 0 or time.monotonic() > self.end:
            raise TemplateTooLong(f"it takes more than {MOST_STEPS} steps or {MOST_SECONDS:g} s")

    def made(self, size: int) -> None:
        """Count the characters, or items, of what is about to be made. Raises TemplateTooLong."""
        self.characters -= size
        if size > MOST_CHARACTERS or self.characters < 0:
            raise TemplateTooLong(f"it makes a text of more than {MOST_CHARACTERS} characters")


_budget: ContextVar[Budget] = ContextVar("budget")


def budget() -> Budget:
    """The budget of the render at hand; one of its own for constants that are computed as a template is compiled."""
    return _budget.get(None) or Budget()


def _size(value: Any) -> int:
    return len(value) if isinstance(value, Sized) else 0


def _checked(name: str, of: Any, args: tuple[Any, ...]) -> None:
    """Count a call before it is made, by what it could make of a text `of`."""
    left = budget()
    left.step(1 + (_size(of) // 1000 if isinstance(of, str) else _size(of)))
    if any(isinstance(a, int) and abs(a) > WIDEST for a in args):
        raise TemplateTooLong(f"it calls {name} with a number above {WIDEST}")
    if name in ("format", "format_map") and isinstance(of, str) and WIDE.search(of):
        raise TemplateTooLong("it formats to a width above 9999")
    if name == "replace" and isinstance(of, str) and len(args) > 1:
        left.made(_size(of) + (of.count(str(args[0])) if args[0] else _size(of) + 1) * len(str(args[1])))


def _made(value: Any) -> Any:
    """What a call returned, counted; a generator is counted as it goes."""
    if isinstance(value, types.GeneratorType):
        return _counted(cast("Iterable[Any]", value))
    if isinstance(value, str | list | tuple):
        budget().made(len(cast("list[Any]", value)))
    return value


def _counted(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        budget().step()
        yield item


def _joined(items: Iterable[Any], between: str) -> Iterator[Any]:
    """Items that are to be joined, whose joint length is counted before."""
    kept = list(_counted(items))
    budget().made(sum(len(str(item)) + len(between) for item in kept))
    return iter(kept)


def _charged(name: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    """A filter whose work is counted."""
    at = 1 if hasattr(fn, "jinja_pass_arg") else 0

    @wraps(fn)
    def call(*args: Any, **named: Any) -> Any:
        _checked(name, args[at] if len(args) > at else None, (*args[at + 1 :], *named.values()))
        if name == "join" and len(args) > at:
            between = args[at + 1] if len(args) > at + 1 else named.get("d", "")
            given = args[at] if isinstance(args[at], Iterable) else ()
            args = (*args[:at], [*_joined(cast("Iterable[Any]", given), str(between))], *args[at + 1 :])
        return _made(fn(*args, **named))

    return call


def _calling(name: str, args: list[Any]) -> Any:
    """A call of a method of the environment, as a part of a template."""
    return nodes.Call(nodes.EnvironmentAttribute(name), args, [], None, None)


class Generation(Extension):
    """The block {% generation %} ... {% endgeneration %}, which changes nothing."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> Any:
        """The block as a scope of its own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class Counting(NodeTransformer):
    """Puts a counted step into every body that may be repeated, and lets joins of texts be counted."""

    def _body(self, node: Any) -> Any:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_calling("count_step", []), lineno=node.lineno))
        return node

    visit_For = visit_Macro = visit_CallBlock = _body

    def visit_Concat(self, node: Any) -> Any:
        """A join of texts as a call that counts."""
        self.generic_visit(node)
        return _calling("concatenate", node.nodes)


class Bounded(ImmutableSandboxedEnvironment):
    """The sandbox, counting."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def count_step(self) -> None:
        """Count a turn of a loop, or a call of a macro."""
        budget().step()

    def concatenate(self, *pieces: Any) -> str:
        """`a ~ b ~ c`, counted before it is made."""
        texts = [str(piece) for piece in pieces]
        budget().made(sum(map(len, texts)))
        return "".join(texts)

    def _generate(self, source: Any, *args: Any, **named: Any) -> Any:
        counted = Counting().visit(source).set_environment(self)
        return super()._generate(counted, *args, **named)

    def wrap_str_format(self, value: Any) -> Any:
        """`text.format`, with its widths looked at before."""
        made = super().wrap_str_format(value)
        if made is None:
            return None

        @wraps(made)
        def checked(*args: Any, **named: Any) -> Any:
            _checked("format", value.__self__, args)
            return made(*args, **named)

        return checked

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """An operation whose result can be large, counted before it is computed."""
        budget().step()
        numbers = isinstance(left, int) and isinstance(right, int)
        if operator == "+" and not numbers:
            budget().made(_size(left) + _size(right))
        elif operator == "*" and not numbers:
            times = right if isinstance(right, int) else left
            budget().made((_size(left) + _size(right)) * max(0, times if isinstance(times, int) else 0))
        elif operator == "%" and isinstance(left, str) and WIDE.search(left):
            raise TemplateTooLong("it formats to a width above 9999")
        elif numbers and operator in ("*", "**"):
            bits = int(left).bit_length() * (max(right, 0) if operator == "**" else 1) + right.bit_length()
            if bits > 4096:
                raise TemplateTooLong("it computes a number of more than 4096 bits")
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, obj: Any, /, *args: Any, **named: Any) -> Any:
        """A call of a function or method, counted before it is made."""
        name, of = getattr(obj, "__name__", ""), getattr(obj, "__self__", None)
        if of is self:
            return obj(*args)
        _checked(
            name, of if isinstance(of, str) else None, () if obj is self.globals["range"] else (*args, *named.values())
        )
        if name == "join" and isinstance(of, str) and args and isinstance(args[0], Iterable):
            args = ([*_joined(cast("Iterable[Any]", args[0]), of)],)
        return _made(super().call(context, obj, *args, **named))


def _refuse(message: str) -> None:
    raise BadValue(message)


def _counted_output(value: Any) -> Any:
    budget().made(_size(value))
    return value


class Compiled:
    """A compiled template."""

    def __init__(self, template: Any) -> None:
        self.template = template

    def render(self, **given: Any) -> str:
        """The text. Raises TemplateTooLong, and what the template raises."""
        token = _budget.set(Budget())
        try:
            return self.template.render(**given)
        finally:
            _budget.reset(token)


@lru_cache(maxsize=16)
def compiled(template: str) -> Compiled:
    """A compiled template with the Hub's conventions, in a sandbox.

    Blocks are trimmed; there are raise_exception, strftime_now and a tojson that does not escape letters. Raises what
    jinja2 raises for a malformed template, TemplateTooLong for one that is no chat template by its length.
    """
    if len(template) > MOST_SOURCE:
        raise TemplateTooLong(f"it has {len(template)} characters, and may have {MOST_SOURCE}")
    return Compiled(environment().from_string(template))


@lru_cache(maxsize=1)
def environment() -> Any:
    """The sandbox in which templates are compiled and rendered."""
    env = Bounded(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation], finalize=_counted_output)
    env.filters["tojson"] = lambda x, **how: json.dumps(
        x, ensure_ascii=False, **{k: v for k, v in how.items() if k != "ensure_ascii"}
    )
    env.filters.update({name: _charged(name, fn) for name, fn in env.filters.items()})
    del env.globals["lipsum"]
    functions: dict[str, Any] = {"raise_exception": _refuse, "strftime_now": TODAY.strftime}
    env.globals.update(functions)
    return env
