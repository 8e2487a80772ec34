"""Typed Python functions as tools: their JSON schemas, and arguments checked and converted by their types.

    int float str bool, list[T], dict[str, T], Literal[...], an Enum, Optional[T], unions of these

The description is the docstring up to its first section, that of an argument stands under `Args:` (Google's style).
"""

from __future__ import annotations

import inspect
import json
import math
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, Literal, Union, cast

from .errors import BadValue, SelfteachError, describe

NAMES: Mapping[type, str] = {int: "integer", float: "number", str: "string", bool: "boolean", list: "array"}
KINDS = "int, float, str, bool, list[...], dict[str, ...], Literal[...], an Enum, Optional[...] and unions of these"
SECTION = re.compile(r"^(Args|Arguments|Parameters|Returns|Raises|Yields|Examples?|Notes?):\s*$", re.MULTILINE)
SHOWN = 60  # characters of a wrong value that are said


class WrongCall(SelfteachError, ValueError):
    """A call that does not fit its function: one line that says what was wrong, for who made it."""


@dataclass(frozen=True)
class FunctionSpec:
    """A function as a tool.

    description  of the function; parameters: name -> its parameter; described: name -> what its argument means
    """

    name: str
    description: str
    parameters: Mapping[str, inspect.Parameter]
    described: Mapping[str, str]

    @property
    def schema(self) -> dict[str, Any]:
        """The function as chat templates and OpenAI's interface take it: {"type": "function", "function": ...}."""
        properties = {
            n: json_schema(p.annotation) | ({"description": self.described[n]} if n in self.described else {})
            for n, p in self.parameters.items()
        }
        arguments: dict[str, Any] = {"type": "object", "properties": properties}
        if required := [n for n, p in self.parameters.items() if p.default is p.empty]:
            arguments["required"] = required
        own = {"name": self.name, "description": self.description, "parameters": arguments}
        return {"type": "function", "function": own}

    @property
    def line(self) -> str:
        """The function in a line, as `add(a: int, b: int = 0): Add two numbers.` is."""
        return f"{self.name}({self._takes()}): {' '.join(self.description.split())}"

    def bind(self, arguments: Any) -> dict[str, Any]:
        """The arguments of a call, checked and converted by their types. Raises WrongCall."""
        if not isinstance(arguments, Mapping):
            raise WrongCall(f"{self.name}: its arguments are not an object; it takes {self._takes() or 'none'}")
        given = cast("Mapping[Any, Any]", arguments)
        for name in given:
            if name not in self.parameters:
                raise WrongCall(f"{self.name}: has no argument {_shown(name)}; it takes {self._takes() or 'none'}")
        for name, p in self.parameters.items():
            if name not in given and p.default is p.empty:
                raise WrongCall(f"{self.name}: argument {name} is missing; it takes {self._takes()}")
        return {
            n: convert(value, self.parameters[n].annotation, f"{self.name}: argument {n}") for n, value in given.items()
        }

    def _takes(self) -> str:
        return ", ".join(
            f"{n}: {_type_name(p.annotation)}" + ("" if p.default is p.empty else f" = {_plain(p.default)!r}")
            for n, p in self.parameters.items()
        )


@lru_cache(maxsize=256)
def function_spec(fn: Callable[..., Any]) -> FunctionSpec:
    """A function as a tool. Raises BadValue for one without a docstring, or with an argument whose type is missing or
    none of those above.
    """
    name = getattr(fn, "__name__", type(fn).__name__)
    if not inspect.isfunction(fn) or name == "<lambda>":
        raise BadValue(f"tool {name}: is no function made by `def`; give a function with types and a docstring")
    doc = inspect.getdoc(fn) or ""
    description = SECTION.split(doc)[0].strip()
    if not description:
        raise BadValue(f"tool {name}: has no docstring, by which a model knows what it is for; write one")
    try:
        parameters = inspect.signature(fn, eval_str=True).parameters
    except Exception as error:
        raise BadValue(f"tool {name}: its types cannot be read ({describe(error)}); define them in its file") from None
    for n, p in parameters.items():
        if p.kind not in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
            raise BadValue(f"tool {name}: argument {p} cannot be given by name; write out its arguments")
        if p.annotation is p.empty:
            raise BadValue(f"tool {name}: argument {n} has no type; write {n}: int, or another of {KINDS}")
        try:
            json_schema(p.annotation)
        except BadValue as error:
            raise BadValue(f"tool {name}: argument {n}: {error}") from None
    return FunctionSpec(name, description, dict(parameters), _described(doc))


def json_schema(annotation: Any) -> dict[str, Any]:
    """The JSON schema of a type, as transformers' get_json_schema writes it. Raises BadValue for other types."""
    if annotation in NAMES and annotation is not list:
        return {"type": NAMES[annotation]}
    origin, args = typing.get_origin(annotation) or annotation, typing.get_args(annotation)
    if origin is list:
        return {"type": "array"} | ({"items": json_schema(args[0])} if args else {})
    if origin is dict and (not args or args[0] is str):
        return {"type": "object"} | ({"additionalProperties": json_schema(args[1])} if args else {})
    if origin is Literal:
        return _choices(args)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _choices([member.value for member in annotation])
    if origin in (Union, types.UnionType):
        some = [json_schema(a) for a in args if a is not types.NoneType]
        nullable = {"nullable": True} if types.NoneType in args else {}
        if len(some) == 1:
            return some[0] | nullable
        simple = all(s.keys() == {"type"} for s in some)
        return ({"type": sorted(s["type"] for s in some)} if simple else {"anyOf": some}) | nullable
    raise BadValue(f"its type is {_type_name(annotation)}, and a model can give {KINDS}")


def _choices(values: Iterable[Any]) -> dict[str, Any]:
    values = list(values)
    if any(type(v) not in (int, float, str, bool, types.NoneType) for v in values):
        raise BadValue(f"its choices are {values!r}, and a model can give text and numbers")
    names = sorted({NAMES.get(type(v), "null") for v in values})
    return {"type": names[0] if len(names) == 1 else names, "enum": values}


def convert(value: Any, annotation: Any, what: str) -> Any:
    """A JSON value as one of a type: "3" and 3.0 are the integer 3. Raises WrongCall, which begins with `what`."""
    origin, args = typing.get_origin(annotation) or annotation, typing.get_args(annotation)
    if origin in (Union, types.UnionType):
        return _one_of(value, args, annotation, what)
    if origin is list and isinstance(value, list):
        items = cast("list[Any]", value)
        return [convert(v, args[0], f"{what}[{i}]") for i, v in enumerate(items)] if args else items
    if origin is dict and isinstance(value, Mapping):
        pairs = cast("Mapping[str, Any]", value)
        return {k: convert(v, args[1], f"{what}[{_shown(k)}]") for k, v in pairs.items()} if args else dict(pairs)
    if origin is Literal:
        return _choice(value, {a: a for a in args}, what)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _choice(value, {m.value: m for m in annotation}, what)
    found = _scalar(value, annotation)
    if found is None:
        raise WrongCall(f"{what} is {_shown(value)}, and must be {_type_name(annotation)}")
    return found


def _scalar(value: Any, kind: Any) -> Any:
    """A value as an int, float, bool or text; None where it is none."""
    if isinstance(value, bool) or kind is bool:
        known = {"true": True, "false": False}
        found = value if isinstance(value, bool) else known.get(str(value).lower())
        return found if kind is bool else None
    if kind is str:
        return value if isinstance(value, str) else str(value) if isinstance(value, int | float) else None
    try:
        if kind is int:
            whole = not isinstance(value, float) or value.is_integer()
            return int(value) if isinstance(value, int | float | str) and whole else None
        if kind is float:
            number = float(value) if isinstance(value, int | float | str) else math.nan
            return number if math.isfinite(number) else None
    except (ValueError, OverflowError):
        pass
    return None


def _one_of(value: Any, args: Sequence[Any], annotation: Any, what: str) -> Any:
    """A value as the first type of a union that it has as it is, else as the first that it can be converted to."""
    if value is None and types.NoneType in args:
        return None
    kinds = [a for a in args if a is not types.NoneType]
    for kind in sorted(kinds, key=lambda k: type(value) is not (typing.get_origin(k) or k)):
        try:
            return convert(value, kind, what)
        except WrongCall:
            continue
    raise WrongCall(f"{what} is {_shown(value)}, and must be {_type_name(annotation)}")


def _choice(value: Any, known: Mapping[Any, Any], what: str) -> Any:
    for choice, found in known.items():
        if (type(value) is type(choice) and value == choice) or (isinstance(value, str) and value == str(choice)):
            return found
    raise WrongCall(f"{what} is {_shown(value)}, and must be one of {', '.join(map(repr, known))}")


def _type_name(annotation: Any) -> str:
    if annotation is types.NoneType:
        return "None"
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (Union, types.UnionType):
        return " | ".join(map(_type_name, args))
    if origin is Literal:
        return " | ".join(map(repr, args))
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " | ".join(repr(m.value) for m in annotation)
    if origin is not None and args:
        return f"{getattr(origin, '__name__', origin)}[{', '.join(map(_type_name, args))}]"
    return getattr(annotation, "__name__", str(annotation))


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def _described(doc: str) -> dict[str, str]:
    """Argument -> its description under `Args:`; further lines of one are indented deeper."""
    parts = SECTION.split(doc)
    at = next((i for i in range(1, len(parts), 2) if parts[i] in ("Args", "Arguments", "Parameters")), None)
    if at is None:
        return {}
    out, name = dict[str, list[str]](), ""
    lines = [line for line in parts[at + 1].splitlines() if line.strip()]
    indent = min((len(line) - len(line.lstrip()) for line in lines), default=0)
    for line in lines:
        begun = re.match(r"(\w+)(?:\s*\([^)]*\))?\s*:\s*(.*)", line[indent:])
        if begun and not line[indent].isspace():
            name = begun[1]
            out[name] = [begun[2]]
        elif name:
            out[name].append(line.strip())
    return {n: " ".join(words).strip() for n, words in out.items()}


def tools_text(specs: Sequence[FunctionSpec]) -> str:
    """Functions as plain text, and how one is called, for models whose chat template does not say them."""
    lines = "".join(f"{spec.line}\n" for spec in specs)
    return f'tools:\n{lines}call: <tool_call>{{"name": ..., "arguments": {{...}}}}</tool_call>\n'


def result_text(value: Any) -> str:
    """What a function returned as a model reads it: text as it is, other values as JSON where they are."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value.tolist() if hasattr(value, "tolist") else value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return str(value)
