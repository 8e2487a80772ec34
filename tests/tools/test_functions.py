"""The program of typed functions: how prompts say them, how calls are answered and counted, and runs with `tools`."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.episodes import full_text, scripted_context, spans
from support.templates import TOKENIZERS, user

from selfteach import api, plan
from selfteach.cli import main
from selfteach.configuration import run_config_of
from selfteach.core import Episode, RolloutRequest, Sampling, Task
from selfteach.core.errors import BadValue
from selfteach.loop.episode import play
from selfteach.loop.log import Rollouts
from selfteach.loop.metrics_history import summary
from selfteach.loop.step_context import EpisodeLimits
from selfteach.methods import grpo, sft, ssrl
from selfteach.model.tokenizer import Tokenizer
from selfteach.rollout.functions import call_functions
from selfteach.rollout.single import read
from selfteach.tools.functions import function_tools


def add(a: int, b: int = 0) -> int:
    """Add two numbers."""
    return a + b


async def fail(why: str) -> str:
    """Fail."""
    raise RuntimeError(why)


def hang() -> None:
    """Hang."""
    time.sleep(20)


TOOLS = {name: block() for name, block in function_tools([add, fail, hang])[0].items()}
NAMES = tuple(TOOLS)


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def played(replies: list[str], tokenizer: Tokenizer, prompt: Any = "2 + 3 = ", **more: Any) -> Episode:
    program = more.pop("program", call_functions(tools=NAMES))
    limits = EpisodeLimits(tool_seconds=0.2)
    task = more.pop("task", Task("t", prompt))
    context = scripted_context(program, replies, tokenizer, tools=TOOLS, limits=limits, length=8192, **more)
    (group,) = asyncio.run(play(context, [RolloutRequest(task, 1)]))
    return group.episodes[0]


def test_a_prompt_of_text_says_the_tools_and_a_call_is_answered(letters: Tokenizer) -> None:
    episode = played([call("add", a=2, b="3"), "<answer>5</answer>"], letters)
    text = full_text(episode, letters)
    assert text.startswith("tools:\nadd(a: int, b: int = 0): Add two numbers.\nfail(why: str): Fail.\n")
    assert text.partition("2 + 3 = ")[2].startswith(
        call("add", a=2, b="3") + "<tool_response>5</tool_response><answer>"
    )
    assert spans(episode, letters, "tool_response") == "<tool_response>5</tool_response>"
    assert episode.answer == "5" and episode.cost["calls"] == 1 and "wrong_tool_calls" not in episode.cost


@pytest.mark.parametrize(
    ("said", "answered", "count"),
    [
        ("<tool_call>add(2, 3)</tool_call>", "error: the call is not JSON; write <tool_call>", "wrong_tool_calls"),
        (call("sum", a=1), "error: no tool is called 'sum'; there are: add, fail, hang", "wrong_tool_calls"),
        (call("add", b=1), "error: add: argument a is missing; it takes a: int, b: int = 0", "wrong_tool_calls"),
        (call("add", a="x"), 'error: add: argument a is "x", and must be int', "wrong_tool_calls"),
        (call("fail", why="no luck"), "error: RuntimeError: no luck", "failed_tool_calls"),
        (call("hang"), "error: SelfteachError: tool hang: no answer within 0.2 s", "failed_tool_calls"),
    ],
)
def test_a_wrong_call_costs_itself_and_is_answered(letters: Tokenizer, said: str, answered: str, count: str) -> None:
    episode = played([said, call("add", a=2, b=3), "<answer>5</answer>"], letters)
    first, second = spans(episode, letters, "tool_response").split("</tool_response>")[:2]
    assert first.startswith(f"<tool_response>{answered}") and "\n" not in first and second == "<tool_response>5"
    assert episode.status == "done" and episode.answer == "5" and episode.cost[count] == 1
    *wrong, right = episode.calls  # what was no call of a tool took no time
    assert (right.tool, right.error) == ("add", "") and len(wrong) == (count == "failed_tool_calls")
    assert all(c.error in answered and (c.seconds >= 0.2) == (c.tool == "hang") for c in wrong)


def test_wrong_calls_are_in_the_metrics_of_a_step(letters: Tokenizer) -> None:
    context = scripted_context(
        call_functions(tools=NAMES), [call("sum"), call("add", a=1), "<answer>1</answer>"], letters, tools=TOOLS
    )
    groups = asyncio.run(play(context, [RolloutRequest(Task("t", "1 = "), 1)]))
    found = summary(groups)
    assert found["rollout/wrong_tool_calls_mean"] == 1 and found["rollout/tool_calls_mean"] == 1
    assert "rollout/failed_tool_calls_mean" not in found


def test_turns_and_calls_are_bounded(letters: Tokenizer) -> None:
    endless = played([call("add", a=1)], letters, program=call_functions(tools=NAMES, turns=2))
    assert endless.cost["turns"] == 3 and endless.cost["calls"] == 2 and endless.status == "done"
    many = played(
        [call("add", a=1) * 5, "x"],
        letters,
        program=call_functions(tools=NAMES, stop=()),
        sampling=Sampling(max_tokens=999),
    )
    assert many.cost["calls"] == 4 and "at most 4 calls in a turn" in spans(many, letters, "tool_response")


HERMES = """{%- if tools %}<|im_start|>system
# Tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ 'user' if m.role == 'tool' else m.role }}
{% if m.role == 'tool' %}<tool_response>
{{ m.content }}
</tool_response>{% else %}{{ m.content }}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def test_a_template_with_a_place_for_tools_gets_their_schemas() -> None:
    tokenizer = Tokenizer(TOKENIZERS["chatml"].inner, TOKENIZERS["chatml"].eos_token_ids, {"chat_template": HERMES})
    assert tokenizer.chat is not None and tokenizer.chat.says_tools
    episode = played([call("add", a=2, b=3), "It is 5."], tokenizer, [user("2 + 3?")])
    text = full_text(episode, tokenizer)
    schema = json.loads(text.split("# Tools\n")[1].split("\n")[0])
    assert schema["function"]["name"] == "add" and schema["function"]["parameters"]["required"] == ["a"]
    assert "<|im_start|>user\n<tool_response>\n5\n</tool_response>\n<|im_start|>assistant\nIt is 5." in text
    assert episode.answer == "It is 5." and not any("re_rendered" in name for name in episode.cost)


@pytest.mark.parametrize("family", ["chatml", "mistral", "gemma"])
def test_a_template_without_one_is_told_in_words(family: str) -> None:
    tokenizer = TOKENIZERS[family]
    episode = played([call("add", a=2, b=3), "5"], tokenizer, [user("2 + 3?")])
    text = full_text(episode, tokenizer)
    before = text.partition("2 + 3?")[0]
    assert "add(a: int, b: int = 0): Add two numbers." in before and ("system" in before) == (family == "chatml")
    assert "5" in spans(episode, tokenizer, "tool_response") and episode.answer == "5"
    assert ("<tool_response>" in text) == (family != "chatml")  # where there is no role for what a tool says


def test_a_demonstration_says_the_tools_and_learns_no_answer_of_theirs(letters: Tokenizer) -> None:
    shown = call("add", a=2, b=3) + "<tool_response>5</tool_response><answer>5</answer>"
    episode = played([], letters, program=read(tools=NAMES), task=Task("t", "2 + 3 = ", data=(shown,)))
    tree = episode.tree
    learned = letters.decode(tree.id[tree.action_mask])
    assert learned.startswith(call("add", a=2, b=3) + "<answer>5</answer>") and "tools:" in full_text(episode, letters)


ROWS = [{"prompt": f"{a} + {b} = ", "answer": str(a + b), "completion": [
    {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": {"a": a, "b": b}}}]},
    {"role": "tool", "content": str(a + b)},
    {"role": "assistant", "content": f"<answer>{a + b}</answer>"},
]} for a in range(5) for b in range(5)]  # fmt: skip
SMALL = {"steps": 1, "warm_steps": 2, "threads": 1, "eval_every": 0, "final_eval_tasks": 2, "final_eval_k": 0}


def test_a_run_with_tools_from_python_is_found_again(tmp_path: Path) -> None:
    """Rows whose demonstrations call a tool; the function is this file's, so a later process finds it there."""
    method = grpo(groups=2, rollouts=2)
    run = api.train(method, model="tiny-s", train=ROWS, tools=[add], out=tmp_path / "run", progress=False, **SMALL)
    assert run.done and run.steps_done == 1
    stored = run_config_of(run.folder)
    assert str(stored.method.stage.programs["main"]) == "call_functions(tools=('add',))"
    assert stored.method.tools["add"].args["function"].endswith("test_functions:add")
    episode = run.rollouts(step=0)[0]
    assert "add(a: int, b: int = 0)" in str(episode)
    stored = Rollouts(run.folder / "log" / "rollouts" / "000000.npz")
    gaps = np.concatenate(list(stored.learned("gap").values()))
    measured = run.metrics[0]["policy/logprob_mismatch_max"]
    assert np.nanmax(np.abs(gaps)) == pytest.approx(measured, abs=1e-9) and np.isnan(gaps).any()
    assert stored.learner_version == 0 and stored.learned("entropy") == {}, "nothing is computed for the log"


def test_tools_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tools.py").write_text('def add(a: int, b: int) -> int:\n    """Add."""\n    return a + b\n')
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    words = [
        "--data",
        "rows.jsonl",
        "--tools",
        "tools.py:add",
        "--model",
        "tiny-s",
        "--steps",
        "1",
        "--warm-steps",
        "2",
    ]
    small = ["--final-eval-tasks", "2", "--final-eval-k", "0", "--eval-every", "0", "--threads", "1", "--out", "run"]
    assert main(["train", "grpo", "--groups", "2", "--rollouts", "2", *words, *small]) == 0
    assert (tmp_path / "run/use/tools.py").is_file()
    (tmp_path / "tools.py").write_text("def add(a, b):\n    return a + b\n")
    monkeypatch.setattr("sys.modules", {k: v for k, v in __import__("sys").modules.items() if "user_tools" not in k})
    capsys.readouterr()
    assert main(["train", "grpo", *words, "--out", "other"]) == 2
    assert "tool add: has no docstring" in capsys.readouterr().err


def search(query: str) -> str:
    """Search."""
    return query


@pytest.mark.parametrize(
    ("method", "given", "line"),
    [
        (ssrl(), {"task": "atlas"}, "its program self_search is its own, and tools are called in turns"),
        (grpo(), {"task": "gym", "task_options": {"id": "FrozenLake-v1"}}, "task gym is played by act"),
        (grpo(), {"task": "atlas", "tools": [search]}, "tool search: the task or the method has one of that name"),
        (grpo(), {"tools": [add, add]}, "tool add: is given twice"),
        (grpo(), {"tools": add}, r"tools: is no list; give tools=\[function, ...\]"),
        (grpo(), {"tools": ["nothing.py:f"]}, "tool nothing.py:f: nothing.py: no such file"),
    ],
)
def test_tools_that_cannot_be_are_refused_before_work(method: Any, given: dict[str, Any], line: str) -> None:
    if given.get("task") == "gym":
        pytest.importorskip("gymnasium")
    with pytest.raises(BadValue, match=line):
        plan(method, **({"task": "chain_sum", "tools": [add]} | given))


def test_supervised_training_says_the_tools_too() -> None:
    method = plan(sft(), train=ROWS, tools=[add]).method
    assert str(method.stage.programs["main"]) == "read(tools=('add',))"
    assert str(method.decode["answer"]) == "call_functions(tools=('add',))"
