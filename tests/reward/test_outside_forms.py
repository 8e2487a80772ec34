"""Rewards of users and of other libraries: told apart by their signatures, called as their libraries call them."""

from __future__ import annotations

import asyncio
import linecache
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.episodes import scripted_context
from support.models import TAGS

from selfteach.configuration import RunConfig
from selfteach.core import BadValue, Block, RolloutRequest, Score, Task, block, from_json, function_source, to_json
from selfteach.core.function_source import find_function, load_function, name_function
from selfteach.core.scoring import score
from selfteach.experiments import regime_config
from selfteach.loop.episode import play
from selfteach.model.tokenizer import Tokenizer
from selfteach.reward.answer import exact_match
from selfteach.reward.outside_forms import (
    applicable_sum,
    as_block,
    call_trl,
    check_call,
    form_of,
    trl_reward,
    unknown_columns,
    verl_reward,
)
from selfteach.rollout.single import single

ROW = {"prompt": "2 + 2?", "level": 3, "answer": "4"}
TASK = Task("train/1", "2 + 2?", "4", ("it is 4",), ROW)
TALK = Task("train/1", "2 + 2?", "4", (), {**ROW, "prompt": [{"role": "user", "content": "2 + 2?"}]})
FILE = """
import asyncio
from selfteach import block

def trl(prompts, completions, level, **kwargs):
    return [float(len(c)) + l for c, l in zip(completions, level)]

def trl_last(completions, completion_ids, trainer_state):
    return [trainer_state.global_step + len(ids) for ids in completion_ids]

def talks(completions, answer, **kwargs):
    return [1.0 if c[0]["content"] == a else 0.0 for c, a in zip(completions, answer)]

def some(completions, **kwargs):
    return [None if c == "skip" else 1.0 for c in completions]

def short(completions, **kwargs):
    return [1.0]

def one_number(completions, **kwargs):
    return 1.0

def raises(completions, **kwargs):
    return [1.0 / 0 for c in completions]

def hard(completions, difficulty, **kwargs):
    return [0.0 for c in completions]

async def later(completions, **kwargs):
    await asyncio.sleep(0)
    return [2.0 for c in completions]

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": float(ground_truth in solution_str), "length": len(solution_str), "pred": "x"}

def verl_number(solution_str, ground_truth, **kwargs):
    return 0.5 if kwargs["data_source"] == "rows" and kwargs["extra_info"]["level"] == 3 else 0.0

def no_score(solution_str, ground_truth):
    return {"acc": 1.0}

def ours(text, task):
    return float(len(text) * task.tags["level"])

def unclear(a, b):
    return 1.0

@block
def few(*, text: str, words: int = 2) -> float:
    return float(len(text.split()) <= words)
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own") / "own_rewards.py"
    path.write_text(FILE)
    return path


@pytest.fixture
def load(file: Path) -> Callable[[str], Block]:
    return lambda name: as_block(f"{file}:{name}")[0]


def trl(name: str, task: Task, *texts: str, step: int = 0) -> list[float | None]:
    return [s.value for s in call_trl(f"own_rewards.py:{name}", task, texts, [[1, 2]] * len(texts), step)]


def test_a_form_is_told_by_the_signature(load: Callable[[str], Block]) -> None:
    names = {n: load(n).name for n in ("trl", "later", "compute_score", "verl_number", "ours", "few")}
    assert names == {
        "trl": "trl_reward",
        "later": "trl_reward",
        "compute_score": "verl_reward",
        "verl_number": "verl_reward",
        "ours": "function_reward",
        "few": "few",
    }


@pytest.mark.parametrize(
    "fn",
    [
        lambda a, b: 0.0,
        lambda **kwargs: 0.0,
        lambda: 0.0,
        lambda completions, solution_str: 0.0,
        lambda solution_str, other: 0.0,
        lambda text, other: 0.0,
    ],
)
def test_an_unclear_form_is_refused_with_the_forms(fn: Any) -> None:
    with pytest.raises(BadValue, match=r"ours \(text.*TRL's \(prompts, completions.*verl's \(data_source"):
        form_of(fn)


def test_trl_gets_columns_ids_and_the_step(load: Callable[[str], Block]) -> None:
    load("trl")
    assert trl("trl", TASK, "ab", "abc") == [5.0, 6.0]
    assert trl("trl_last", TASK, "ab", step=7) == [9.0]
    assert trl("later", TASK, "ab") == [2.0]


def test_trl_gets_messages_where_the_prompt_is_messages(load: Callable[[str], Block]) -> None:
    load("talks")
    assert trl("talks", TALK, "4", "5") == [1.0, 0.0]


def test_none_of_trl_is_not_applicable_and_left_out_of_a_sum(load: Callable[[str], Block]) -> None:
    load("some")
    assert trl("some", TASK, "skip", "say") == [None, 1.0]


def test_verl_gives_a_number_or_a_dict(load: Callable[[str], Block]) -> None:
    dict_, number = load("compute_score"), load("verl_number")
    found = dict_(text="it is 4", task=TASK)
    assert found == Score(1.0, {"length": 7.0}) and dict_(text="5", task=TASK).value == 0.0
    assert number(text="", task=TASK).value == 0.5


def test_ours_is_called_by_what_it_names(load: Callable[[str], Block]) -> None:
    given = {"text": "ab", "answer": "ab", "task": TASK, "path": None}
    assert load("ours")(**given).value == 6.0
    assert load("few")(text="one two") == 1.0


def test_several_have_weights(load: Callable[[str], Block], file: Path) -> None:
    one, other = f"{file}:trl", f"{file}:ours"
    made, files = as_block([(0.8, one), (0.2, other)])
    assert made == as_block([one, other], [0.8, 0.2])[0] and files == (str(file),)
    assert str(made).startswith("applicable_sum(parts=((0.8, trl_reward(function='own_rewards.py:trl'))")
    assert from_json(to_json(made)) == made
    assert as_block([one])[0].name == "trl_reward"
    for wrong, weights in (([one, other], [1.0]), ([(1.0, one)], [1.0]), ([], None), ([("x", one)], None)):
        with pytest.raises(BadValue):
            as_block(wrong, weights)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("short", "returned 1 values for 2 completions"),
        ("one_number", "returned a float, and a reward of TRL's form returns a list of 2 numbers"),
        ("raises", "raised ZeroDivisionError: .* on row train/1, with the answer 'it is 4'"),
        ("no_score", 'returned a dict without "score"; it has acc'),
    ],
)
def test_a_reward_that_returns_nonsense_is_refused_before_any_work(
    load: Callable[[str], Block], name: str, message: str
) -> None:
    with pytest.raises(BadValue, match=f"reward own_rewards.py:{name}: {message}") as error:
        asyncio.run(check_call(load(name), TASK, 5.0))
    assert "\n" not in str(error.value)


def test_a_reward_that_is_well_passes_the_check(load: Callable[[str], Block]) -> None:
    for name in ("trl", "some", "later", "compute_score", "ours", "few"):
        asyncio.run(check_call(load(name), TASK, 5.0))


def test_an_unknown_column_is_named_with_those_there(load: Callable[[str], Block]) -> None:
    (line,) = unknown_columns(load("hard"), ["prompt", "level"], True)
    assert line == "reward own_rewards.py:hard: names the column difficulty, and the rows have prompt, level"
    assert not list(unknown_columns(load("trl"), ["prompt", "level"], False))
    assert "ground_truth" in next(unknown_columns(load("compute_score"), ["prompt"], False))


# ---- names of functions


def from_notebook(source: str, name: str, **given: Any) -> Any:
    """A function as a notebook has it: of __main__, with its source in linecache alone."""
    cell = f"<cell {abs(hash(source))}>"
    linecache.cache[cell] = (len(source), None, source.splitlines(True), cell)
    space = {"__name__": "__main__", **given}
    exec(compile(source, cell, "exec"), space)
    return space[name]


def test_a_function_of_a_notebook_is_stored_with_what_it_uses() -> None:
    source = (
        "import math\nSCALE = 3\nWORD = re.compile('a+')\n"
        "def half(x):\n    return x / 2\n"
        "def mine(completions, **kwargs):\n"
        "    return [SCALE * half(math.floor(len(c))) + len(WORD.findall(c)) for c in completions]\n"
    )
    fn = from_notebook(source, "mine", re=re)
    function, file = name_function(fn)
    assert file is not None and function == f"{file.name}:mine" and "def half" in file.read_text()
    assert find_function(function)(["aab", "b"]) == fn(["aab", "b"]) == [5.5, 1.5]
    assert name_function(fn)[0] == function


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("SEEN = []\ndef mine(completions):\n    SEEN.append(1)\n    return [1.0]\n", "uses SEEN, a list"),
        ("def outer():\n    k = 2\n    def inner(completions):\n        return [k]\n    return inner\nmine = outer()\n",
         "uses k from around it"),
        ("class A: pass\ndef mine(completions):\n    return [A()]\n", "uses A, a type"),
        ("mine = lambda completions: [1.0]\n", "is a lambda"),
    ],
    ids=["list", "closure", "class", "lambda"],
)  # fmt: skip
def test_one_that_could_not_be_found_again_is_refused_with_the_remedy(source: str, why: str) -> None:
    with pytest.raises(BadValue, match=why) as error:
        name_function(from_notebook(source, "mine"))
    assert "file" in str(error.value) or "def" in str(error.value)


def test_functions_of_packages_and_files(file: Path) -> None:
    from selfteach.core.answers import same

    assert name_function(same) == ("selfteach.core.answers:same", None)
    fn, path = load_function(f"{file}:trl")
    assert path == file and name_function(fn) == ("own_rewards.py:trl", file)
    for words, message in (
        ("nowhere.py:f", "no such file"),
        (f"{file}:nothing", "defines no nothing; its functions are"),
        ("r.py", "is no FILE.py:NAME"),
    ):
        with pytest.raises(BadValue, match=message):
            load_function(words)


# ---- scored


def test_rewards_of_a_group_are_scored_and_summed(load: Callable[[str], Block]) -> None:
    from selfteach.model.tokenizer import train_tokenizer

    letters = train_tokenizer(["ab"], TAGS, 256 + len(TAGS) + 1)
    context = scripted_context(single(), lambda text, key: "skip", letters)
    some, few = load("some"), load("few")

    async def scored(reward: Block) -> list[Score]:
        (group,) = await play(context, [RolloutRequest(TASK, 2)])
        return list((await score(reward, [group], context))["reward"].values())

    assert [s.value for s in asyncio.run(scored(load("trl")))] == [7.0, 7.0]
    both = asyncio.run(scored(applicable_sum(parts=((0.5, some), (0.25, few)))))
    assert [s.value for s in both] == [0.25, 0.25]
    alone = asyncio.run(scored(applicable_sum(parts=((0.5, some), (0.5, some)))))
    assert all(s.value is None and "no reward applies" in str(s.error) for s in alone)
    wrong = asyncio.run(scored(load("short")))
    assert all(s.value is None and "returned 1 values for 2 completions" in str(s.error) for s in wrong)


def test_blocks_are_taken_as_they_are(load: Callable[[str], Block]) -> None:
    assert as_block(exact_match) == (exact_match(), ())
    assert as_block(exact_match())[0] == exact_match()
    assert trl_reward(function="a:b").name == "trl_reward" and verl_reward().name == "verl_reward"
    assert block and Block


@pytest.mark.parametrize("name", ["builtins:exec", "os:system", "runpy:run_path", "textwrap:dedent", "no.such:thing"])
def test_a_configuration_cannot_name_any_function_there_is(name: str) -> None:
    data = regime_config("skill", "grpo").to_json() | {
        "reward": {"block": "function_reward", "args": {"function": name}}
    }
    with pytest.raises(BadValue, match=r"config\.json: names"):
        RunConfig.from_json(data)
    with pytest.raises(BadValue, match="named by nobody"):
        find_function(name)


def test_what_the_user_trusts_may_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(function_source, "ALLOWED", set[str]())
    data = {"args": [{"function": "textwrap:dedent"}]}
    with pytest.raises(BadValue, match="give --trust"):
        function_source.allow_functions(data, "config.json", False)
    function_source.allow_functions(data, "config.json", True)
    assert find_function("textwrap:dedent")("  a") == "a"


def test_the_trainer_state_has_the_step_in_which_the_completions_were_sampled(file: Path, letters: Tokenizer) -> None:
    context = scripted_context(single(), ["ab"], letters)
    for step in (0, 7):
        (group,) = asyncio.run(play(replace(context, where=("train", step)), [RolloutRequest(TASK, 1)]))
        (found,) = asyncio.run(score(trl_reward(function=f"{file}:trl_last"), [group], context))["reward"].values()
        assert found.value == step + 3  # tokens: a, b, and the end
