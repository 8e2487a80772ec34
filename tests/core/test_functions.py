"""Typed functions as tools: schemas, arguments converted by their types, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, Literal, Optional, Union

import pytest

from selfteach.core.errors import BadValue
from selfteach.core.functions import WrongCall, function_spec, result_text
from selfteach.core.tool_calls import find_tool_calls


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


def weather(
    city: str,
    days: int,
    unit: Literal["celsius", "fahrenheit"] = "celsius",
    near: Optional[float] = None,  # noqa: UP045
    tags: list[str] = [],  # noqa: B006
    limits: dict[str, int] = {},  # noqa: B006
    which: Union[int, str] = 0,  # noqa: UP007
    sure: bool = False,
) -> str:
    """The weather of a city.

    It may be wrong.

    Args:
        city: name of the city,
            in English
        days: days ahead
        unit: of temperatures
        near: how near
        tags: what to look for
        limits: at most so many
        which: of several
        sure: whether it must be sure
    """
    return city


def test_the_schema_is_that_of_transformers() -> None:
    """transformers' get_json_schema on the same function: what chat templates of the Hub were written for."""
    utils = pytest.importorskip("transformers.utils")
    theirs = utils.get_json_schema(weather)["function"]
    ours = function_spec(weather).schema["function"]
    assert ours["parameters"] == theirs["parameters"]
    assert ours["name"] == theirs["name"] and ours["description"] == theirs["description"]


def paint(colour: Colour, coats: int | None = 2) -> str:
    """Paint it."""
    return colour.name


def test_a_function_in_a_line_and_an_enum_by_its_values() -> None:
    spec = function_spec(paint)
    assert spec.line == "paint(colour: 'red' | 'blue', coats: int | None = 2): Paint it."
    assert spec.schema["function"]["parameters"]["properties"]["colour"] == {"type": "string", "enum": ["red", "blue"]}
    assert spec.bind({"colour": "blue", "coats": None}) == {"colour": Colour.BLUE, "coats": None}


@pytest.mark.parametrize(
    ("given", "bound"),
    [
        ({"city": "Rome", "days": 3}, {"city": "Rome", "days": 3}),
        ({"city": 7, "days": "3"}, {"city": "7", "days": 3}),  # a number as text, and the other way round
        ({"city": "x", "days": 3.0, "near": 1}, {"city": "x", "days": 3, "near": 1.0}),
        ({"city": "x", "days": 1, "which": "3"}, {"city": "x", "days": 1, "which": "3"}),  # as it is, where it may be
        ({"city": "x", "days": 1, "sure": "True"}, {"city": "x", "days": 1, "sure": True}),
        (
            {"city": "x", "days": 1, "tags": [1], "limits": {"a": "2"}},
            {"city": "x", "days": 1, "tags": ["1"], "limits": {"a": 2}},
        ),
    ],
)
def test_arguments_are_converted_by_their_types(given: dict[str, Any], bound: dict[str, Any]) -> None:
    found = function_spec(weather).bind(given)
    assert found == bound and [type(v) for v in found.values()] == [type(v) for v in bound.values()]


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"days": 1}, "weather: argument city is missing; it takes city: str, days: int, unit"),
        ({"city": "x", "days": "two"}, 'weather: argument days is "two", and must be int'),
        ({"city": "x", "days": 1.5}, "weather: argument days is 1.5, and must be int"),
        ({"city": "x", "days": True}, "weather: argument days is true, and must be int"),
        ({"city": "x", "days": 1, "near": "nan"}, 'weather: argument near is "nan", and must be float | None'),
        ({"city": "x", "days": 1, "unit": "K"}, "weather: argument unit is \"K\", and must be one of 'celsius', 'fahr"),
        ({"city": "x", "days": 1, "tags": "a"}, 'weather: argument tags is "a", and must be list[str]'),
        ({"city": "x", "days": 1, "limits": {"a": "b"}}, 'weather: argument limits["a"] is "b", and must be int'),
        ({"city": "x", "days": 1, "town": "y"}, 'weather: has no argument "town"; it takes city: str'),
        ({"city": None, "days": 1}, "weather: argument city is null, and must be str"),
        ([1, 2], "weather: its arguments are not an object; it takes city: str"),
        ({"city": "x", "days": "9" * 9999}, "weather: argument days is"),
        ({"city": "x", "days": 1, "near": 10**400}, "weather: argument near is"),
    ],
)
def test_what_is_wrong_with_a_call_is_one_line(given: Any, line: str) -> None:
    with pytest.raises(WrongCall) as caught:
        function_spec(weather).bind(given)
    assert str(caught.value).startswith(line) and "\n" not in str(caught.value) and len(str(caught.value)) < 400


def untyped(a, b: int = 0) -> int:
    """Add."""
    return a + b


def unsaid(a: int) -> int:
    return a


def odd(a: set[int]) -> int:
    """Add."""
    return len(a)


def many(*a: int) -> int:
    """Add."""
    return sum(a)


def elsewhere(a: Nowhere) -> int:  # noqa: F821  # pyright: ignore
    """Add."""
    return 0


@pytest.mark.parametrize(
    ("fn", "line"),
    [
        (untyped, "tool untyped: argument a has no type; write a: int"),
        (unsaid, "tool unsaid: has no docstring"),
        (odd, r"tool odd: argument a: its type is set\[int\], and a model can give int, float"),
        (many, r"tool many: argument \*a: .*int.* cannot be given by name"),
        (elsewhere, "tool elsewhere: its types cannot be read .*Nowhere"),
        (lambda a: a, "is no function made by `def`"),
        (print, "tool print: is no function made by `def`"),
    ],
)
def test_a_function_without_types_or_docstring_is_refused(fn: Callable[..., Any], line: str) -> None:
    with pytest.raises(BadValue, match=line) as caught:
        function_spec(fn)
    assert "\n" not in str(caught.value)


def test_results_are_text_or_json() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert [result_text(v) for v in ("a", 3, None, {"a": [1, True]})] == ["a", "3", "null", '{"a": [1, true]}']
    assert result_text({1}) == "{1}" and result_text(loop) == "[[...]]"


@pytest.mark.parametrize(
    ("text", "names", "wrong"),
    [
        ('<tool_call>{"name": "a", "arguments": {}}</tool_call>', ["a"], [""]),
        ("<tool_call>a(1)</tool_call>", [""], ["the call is not JSON"]),
        ("<tool_call>3</tool_call>", [""], ["the call is no object with a name and arguments"]),
        ('<tool_call>{"arguments": {}}</tool_call>', [""], ["the call has no name"]),
        ('[TOOL_CALLS] [{"name": "a"}, 3]', ["a", ""], ["", "the call is no object with a name and arguments"]),
        ('{"name": "a", "parameters": {}}', ["a"], [""]),
        ('{"name": "Lyon"}', [], []),  # JSON that is an answer
        ("It is 3.", [], []),
    ],
)
def test_calls_are_found_whether_right_or_wrong(text: str, names: list[str], wrong: list[str]) -> None:
    calls = find_tool_calls(text)[1]
    assert [c.name for c in calls] == names and [c.wrong for c in calls] == wrong
