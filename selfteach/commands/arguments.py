"""Reading arguments: a parser whose errors are one line, and typed values for options and KEY=VALUE."""

from __future__ import annotations

import argparse
import ast
import inspect
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal, NoReturn

from ..core.errors import BadValue, nearest, unknown
from ..loop.settings import option_name


class Parser(argparse.ArgumentParser):
    """An argument parser that raises BadValue, and names the nearest options where one is unknown."""

    def __init__(self, command: str, **more: Any) -> None:
        super().__init__(
            prog=f"selfteach {command}",
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=30, width=110),
            allow_abbrev=False,
            argument_default=argparse.SUPPRESS,
            **more,
        )
        self.add_argument("--json", action="store_true", help="only JSON on stdout, progress on stderr")

    def error(self, message: str) -> NoReturn:
        """Raise BadValue with the message and where the help is."""
        raise BadValue(f"{self.prog}: {message.removeprefix('argument ')}; see {self.prog} --help")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """As argparse has it, but that `--name=--` is refused: older Pythons make an empty list of it."""
        for word in args or ():
            if word.startswith("--") and word.endswith("=--"):
                self.error(f"{word.removesuffix('=--')}: -- is no value that can be given")
        return super().parse_known_args(args, namespace)

    def untyped(self) -> Parser:
        """This parser without types, to find the words of a command line before its options are known."""
        for action in self._actions:
            action.type = None
        return self

    def read(self, words: Sequence[str], expect: Sequence[str] = ()) -> argparse.Namespace:
        """Parse `words`; raise BadValue for an unknown option or an extra word other than those in `expect`."""
        given, extra = self.parse_known_args(words)
        for word in expect:
            if word in extra:
                extra.remove(word)
        options = [o.lstrip("-") for o in self._option_string_actions if o.startswith("--")]
        for word in extra:
            if word.startswith("-"):
                name = word.split("=")[0]
                close = nearest(name.lstrip("-"), options)
                hint = close.replace("did you mean ", "did you mean --").replace(", ", ", --").replace(" or ", " or --")
                hint = hint if hint.startswith("did") else f"see {self.prog} --help"
                task = f" (an option of the task: --set {name.lstrip('-').removeprefix('task.')}=...)"
                raise BadValue(f"{self.prog}: no option is called {name}; {hint}{task if 'set' in options else ''}")
        if extra:
            task = f" (an option of the task: --set {extra[0]})" if "set" in options and "=" in extra[0] else ""
            raise BadValue(f"{self.prog}: {extra[0]!r} is not expected here; see {self.prog} --help{task}")
        return given


def convert(text: str, kind: Any) -> Any:
    """The value of type `kind` that `text` spells. Raises ValueError or KeyError where it spells none.

    >>> convert("2,4", tuple[int, int]), convert("none", int | None), convert("yes", bool)
    ((2, 4), None, True)
    """
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _either(text, args)
    if origin is Literal:
        for option in args:
            if str(option) == text:
                return option
        raise ValueError(text)
    if kind is bool:
        return {
            "yes": True,
            "true": True,
            "1": True,
            "on": True,
            "no": False,
            "false": False,
            "0": False,
            "off": False,
        }[text.lower()]
    if kind is int:
        return int(text) if "e" not in text.lower() else _integer(float(text))
    if kind in (float, str):
        return kind(text)
    if origin in (tuple, list) or kind in (tuple, list):
        items = [w.strip().strip("'\"") for w in text.strip().strip("()[]").split(",") if w.strip()]
        kinds = (
            [args[0] if args else str] * len(items)
            if not args or args[-1] is Ellipsis or origin is list
            else list(args)
        )
        if len(kinds) != len(items):
            raise ValueError(text)
        return (origin or kind)(convert(w, k) for w, k in zip(items, kinds, strict=True))
    try:
        return ast.literal_eval(text)
    except SyntaxError:
        return text


def _either(text: str, kinds: Iterable[Any]) -> Any:
    if type(None) in kinds and text.lower() in ("none", "null"):
        return None
    for kind in kinds:
        try:
            if kind is not type(None):
                return convert(text, kind)
        except (ValueError, KeyError):
            continue
    raise ValueError(text)


def _integer(value: float) -> int:
    if value != int(value):
        raise ValueError(value)
    return int(value)


def describe_type(kind: Any) -> str:
    """A type in words, for error messages: a whole number, yes or no ..."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return " or ".join("none" if a is type(None) else describe_type(a) for a in args)
    if origin is Literal:
        return "one of " + ", ".join(map(str, args))
    if origin in (tuple, list):
        return (
            f"values separated by commas, each {describe_type(args[0])}"
            if args[-1] is Ellipsis or origin is list
            else f"{len(args)} values separated by commas"
        )
    return {bool: "yes or no", int: "a whole number", float: "a number", str: "text"}.get(kind, "a value")


def argparse_type(kind: Any) -> Callable[[str], Any]:
    """A `type=` of argparse for a Python type."""

    def read(text: str) -> Any:
        try:
            return convert(text, kind)
        except (ValueError, KeyError, OverflowError):
            raise argparse.ArgumentTypeError(f"must be {describe_type(kind)}, not {text!r}") from None

    return read


def add_typed(
    group: Any, name: str, kind: Any, help: str, default: Any = None, of: str = "", shared: bool = False
) -> None:
    """Add the option of a typed value; a boolean one is given as --name, --name no or --no-name.

    of      "method" or "run": what the name belongs to. --method.NAME and --run.NAME are never ambiguous
    shared  the other has the name too, so there is no plain --NAME
    """
    text = f"{help} (default: {format_value(default)})" if default is not None and "(default" not in help else help
    literal = typing.get_args(kind) if typing.get_origin(kind) is Literal else ()
    metavar = "|".join(map(str, literal)) or {int: "N", float: "X", str: "TEXT"}.get(kind, "VALUE")
    more: dict[str, Any] = {"type": argparse_type(kind), "metavar": metavar, "help": text.replace("%", "%%").strip()}
    if kind is bool:
        more |= {"nargs": "?", "const": True, "metavar": "yes|no"}
    hidden = {**more, "help": argparse.SUPPRESS}
    if not shared:
        group.add_argument(option_name(name), dest=name, **more)
        if kind is bool:
            off = f"--no-{name.replace('_', '-')}"
            group.add_argument(off, dest=name, action="store_const", const=False, help=argparse.SUPPRESS)
    if of:
        group.add_argument(option_name(name, of), dest=f"{of}.{name}", **(more if shared else hidden))


def format_value(value: Any) -> str:
    """A value as one would type it on the command line."""
    if isinstance(value, tuple | list):
        return ",".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def add_fields(
    group: Any,
    cls: Any,
    prefix: str = "",
    shared: Collection[str] = (),
    only: Collection[str] | None = None,
    of: str = "run",
) -> None:
    """Add an option for each field of a dataclass of settings, or for those in `only`, with the field's help text."""
    hints = typing.get_type_hints(cls)
    for f in fields(cls):
        name = prefix + f.name
        if only is None or f.name in only:
            add_typed(group, name, hints[f.name], f.metadata["help"], f.default, of, name in shared)


def type_of(parameter: inspect.Parameter) -> Any:
    """The type of a parameter: its annotation, or that of its default where it has none."""
    if parameter.annotation is not parameter.empty:
        return parameter.annotation
    return type(parameter.default) if parameter.default is not None else str


def assignments(kind: str, words: Iterable[str], known: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    """KEY=VALUE words as typed values. Raises UnknownName for an unknown key, BadValue for a wrong value."""
    out: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise BadValue(f"{kind}: {word!r} is not KEY=VALUE; there are: {', '.join(known)}")
        if name not in known:
            raise unknown(kind, name, known)
        try:
            out[name] = convert(text, type_of(known[name]))
        except (ValueError, KeyError):
            raise BadValue(f"{kind}: {name} must be {describe_type(type_of(known[name]))}, not {text!r}") from None
    return out


def doc_options(doc: str) -> dict[str, str]:
    """Name -> text of the lines `name   text` of a docstring, as blocks and tasks explain their options."""
    out: dict[str, str] = {}
    for line in doc.splitlines()[1:]:
        name, space, text = line.strip().partition("  ")
        if space and name.isidentifier():
            out[name] = text.strip()
    return out
