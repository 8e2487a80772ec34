"""Rollouts read from a log as they were: text, turns, rewards with parts and reasons, advantages, failures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.runs import run_config_of

from selfteach import api
from selfteach.cli import main
from selfteach.core import BadValue, Method, Score, UnknownName, registry
from selfteach.core.errors import BadCheckpoint
from selfteach.core.task import Ref, RolloutRequest, Task
from selfteach.core.tree import Episode, RolloutGroup, Trajectory, Tree
from selfteach.loop.log import RunLog, logged_steps
from selfteach.loop.rollout_records import best_and_worst, of_task, read_rollouts
from selfteach.model.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def run(mini_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shown") / "run"
    method: Method = registry.methods.get("bandit_reinforce")(groups=3, rollouts=4, paid="spread")
    api.train(run_config_of(mini_folder, method, steps=2), folder)
    return folder


def test_records_are_what_was_logged(run: Path) -> None:
    tokenizer = Tokenizer.load(run / "last")
    assert logged_steps(run / "log") == [0, 1]
    records = read_rollouts(run / "log", 1, tokenizer)
    assert len(records) == 12 and len({r.group for r in records}) == 3
    for r in records:
        assert r.prompt == "say" and r.reference == ["a"] and [t.kind for t in r.turns] == ["prompt", "sampled"]
        assert r.turns[1].text == r.response and r.reward == r.parts["spread"] and r.tokens == 5
        group = [o.reward for o in records if o.group == r.group and o is not r]
        assert r.advantage == pytest.approx(r.reward - np.mean(group), abs=1e-5), "leave-one-out"
    best = best_and_worst(records, best=2, worst=1)
    rewards = sorted(r.reward for r in records)
    assert [r.reward for r in best] == [rewards[-1], rewards[-2], rewards[0]]
    assert {r.task for r in of_task(records, records[0].task)} == {records[0].task}
    with pytest.raises(UnknownName, match="no task of this step"):
        of_task(records, "train/x")
    with pytest.raises(BadValue, match="no rollouts of step 9; it has 0 to 1"):
        read_rollouts(run / "log", 9, tokenizer)


def test_context_failures_and_forms_of_prompts(letters: Tokenizer, tmp_path: Path) -> None:
    def episode(name: str, closed: bool, **more: Any) -> Episode:
        tree = Tree()
        root = tree.add(-1, letters.encode("ask"))
        turn = tree.add(root, letters.encode("say "), action_mask=True, role="policy")
        seen = tree.add(turn, letters.encode("seen "), span="information")
        last = tree.add(seen, letters.encode("end"), action_mask=True)
        ends = [Trajectory(Ref(name, last), "policy", "g")] if closed else []
        return Episode(name, tree, ends, **more)

    task = Task("t", [{"role": "user", "content": "ask"}], {"a": (1, 2)})
    group = RolloutGroup(
        RolloutRequest(task),
        [episode("e/0", True), episode("e/1", False, status="error", why="ValueError: no")],
        {"reward": {Ref("e/0", 3): Score(0.5, {"form": 1.0}, "half right")}, "truth": {Ref("e/0", 3): Score(1.0)}},
        "g",
    )
    RunLog(tmp_path).rollouts(3, [group], None)
    good, bad = read_rollouts(tmp_path, 3, letters)
    assert [(t.kind, t.span, t.text) for t in good.turns] == [
        ("prompt", "", "ask"),
        ("sampled", "", "say "),
        ("context", "information", "seen "),
        ("sampled", "", "end"),
    ]
    assert good.response == "say end" and good.tokens == 7 and good.advantage is None
    assert (good.reward, good.parts, good.why) == (0.5, {"form": 1.0}, "half right")
    assert good.scores[0]["column"] == "truth" and good.reference == {"a": [1, 2]}
    assert good.prompt == [{"role": "user", "content": "ask"}]
    assert bad.reward is None and bad.error == "ValueError: no" and bad.status == "error" and bad.tokens == 7
    assert best_and_worst([good, bad], worst=5) == [good]


def test_a_file_that_is_not_as_it_was_written_is_named(run: Path, tmp_path: Path) -> None:
    (tmp_path / "rollouts").mkdir()
    with np.load(run / "log" / "rollouts" / "000001.npz") as data:
        arrays = dict(data)
    arrays["parent"] = arrays["parent"][:3]
    np.savez(tmp_path / "rollouts" / "000001.npz", **arrays)
    with pytest.raises(BadCheckpoint, match=r"000001\.npz: not as a run wrote it"):
        read_rollouts(tmp_path, 1, Tokenizer.load(run / "last"))


def shown(capsys: Any, *words: str) -> str:
    assert main(["show", *words]) == 0
    return capsys.readouterr().out


def test_the_command_shows_a_list_and_rollouts_whole(run: Path, capsys: Any) -> None:
    assert len(shown(capsys, str(run)).splitlines()) >= 12
    text = shown(capsys, str(run), "--step", "0", "--worst", "2")
    assert text.count("--- train/0/") == 2 and "[prompt]\n  say" in text and "parts      spread" in text
    rows = [json.loads(line) for line in shown(capsys, str(run), "--best", "3", "--json").splitlines()]
    assert len(rows) == 3 and rows[0]["reward"] >= rows[1]["reward"] >= rows[2]["reward"]
    task = rows[0]["task"]
    assert shown(capsys, str(run), "--task", task).count(f"task {task}") == 4


def test_rows_go_into_files(run: Path, capsys: Any, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    assert main(["show", str(run), "--step", "all", "--jsonl", str(file)]) == 0
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(rows) == 24 and {r["step"] for r in rows} == {0, 1} and not capsys.readouterr().out
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra selfteach[data]")
    table_file = tmp_path / "rows.parquet"
    assert main(["show", str(run), "--step", "all", "--parquet", str(table_file)]) == 0
    table = parquet.read_table(table_file).to_pylist()
    assert [r["reward"] for r in table] == [r["reward"] for r in rows]
    assert table[0]["turns"] == rows[0]["turns"] and json.loads(table[0]["parts"]) == rows[0]["parts"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["nowhere"], "holds no run"),
        (["{run}", "--step", "99"], "no rollouts of step 99"),
        (["{run}", "--step", "x"], "--step must be"),
        (["{run}", "--best", "0"], "--best must be"),
        (["{run}", "--task", "x"], "no task of this step"),
        (["{run}", "--jsonl", "/nowhere/x"], "/nowhere/x"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], why: str, run: Path, capsys: Any) -> None:
    assert main(["show", *(w.replace("{run}", str(run)) for w in words)]) == 2
    out, err = capsys.readouterr()
    assert why in err and err.count("\n") == 1 and not out


def test_without_pyarrow_it_says_so(run: Path, capsys: Any, monkeypatch: Any) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert main(["show", str(run), "--parquet", "x"]) == 2
    assert "selfteach[data]" in capsys.readouterr().err
