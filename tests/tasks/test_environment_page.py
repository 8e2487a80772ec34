"""The commands of the page on environments run, each for a step of few short turns, if their extras are installed."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from support.models import mini

from selfteach.cli import main
from selfteach.loop.log import read_events
from selfteach.model import files
from selfteach.model.tokenizer import Tokenizer

PAGE = (Path(__file__).parents[2] / "docs" / "environments.md").read_text(encoding="utf-8")
COMMANDS = [line.partition("#")[0].strip() for line in re.findall(r"^    selfteach (train .*)$", PAGE, re.MULTILINE)]
LAKE = re.findall(r"```python\n(# lake\.py\n.*?)```", PAGE, re.DOTALL)[0]
EXTRAS = {  # task -> its extra, and a package of it
    "dialog_graph": ("", "selfteach"),  # which is ours
    "gym": ("gym", "gymnasium"),
    "minigrid": ("minigrid", "minigrid"),
    "reasoning_core": ("reasoning-core", "reasoning_core"),
    "reasoning_gym": ("reasoning", "reasoning_gym"),
    "textarena": ("games", "textarena"),
    "textworld": ("textworld", "textworld"),
    "gem": ("gem", "gem"),
    "verifiers": ("verifiers", "verifiers"),
    "pettingzoo": ("pettingzoo", "rlcard"),
}
SHORT = {  # else max_turns=2
    "reasoning_core": ["items=6", "n_test=2"],
    "reasoning_gym": ["n_test=4"],
    "textworld": ["games=1", "test_games=1"],
    "verifiers": [],
}
MINE = """
def cautious(text, moves):
    return moves[0]


def load_environment():
    import verifiers as vf
    from datasets import Dataset

    rows = Dataset.from_list([{"question": f"{i} + 1 = ?", "answer": str(i + 1)} for i in range(9)])
    return vf.SingleTurnEnv(dataset=rows, eval_dataset=rows, rubric=vf.Rubric(funcs=[lambda completion, answer: 1.0]))
"""


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory, letters: Tokenizer) -> Path:
    """A model that was not trained, with room for what games say, which needs no demonstrations."""
    folder = tmp_path_factory.mktemp("reader")
    files.save(folder, mini(264, max_length=8192), letters)
    return folder


def test_the_page_has_a_command_for_every_environment() -> None:
    named = {re.search(r"--task (\w+)", c)[1] for c in COMMANDS if "--task" in c}  # type: ignore[index]
    assert named == EXTRAS.keys() and len(COMMANDS) >= 13


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_runs(command: str, reader: Path, tmp_path: Path, monkeypatch: Any) -> None:
    words = shlex.split(command)
    task = words[words.index("--task") + 1] if "--task" in words else ""
    if task and importlib.util.find_spec(EXTRAS[task][1]) is None:
        pytest.skip(f"the extra selfteach[{EXTRAS[task][0]}] is not installed")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lake.py").write_text(LAKE, encoding="utf-8")
    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")
    for name in ("--model", "--steps", "--warm-steps"):
        if name in words:
            del words[(at := words.index(name)) : at + 2]
    if task:
        words += ["--set", *SHORT.get(task, ["max_turns=2"])]
    small = {"steps": 1, "groups": 2, "max_tokens": 6, "final_eval_tasks": 1, "final_eval_k": 0, "eval_every": 0}
    small |= {"threads": 1, "max_unscored": 1.0, "final_eval_decoder_samples": 1, "checkpoint_every": 9}
    if "spiral" not in words:
        small["rollouts"] = 2
    words += [w for k, v in small.items() for w in (f"--{k.replace('_', '-')}", str(v))]
    assert main([*words, "--model", str(reader), "--out", "run", "--json"]) == 0
    (step,) = [e for e in read_events(tmp_path / "run" / "log") if e["event"] == "step"]
    assert step["rollout/episodes"] >= 2 and step["tokens/sampled"] > 0 and not step["rollout/failed_episodes"]
    assert json.loads((tmp_path / "run" / "figures.json").read_text(encoding="utf-8"))["steps"] == 1
