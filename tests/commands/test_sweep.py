"""sweep, and arms of compare with settings: what is run, what is found again, the order, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from selfteach.analysis import comparison
from selfteach.cli import main
from selfteach.commands.common import read_arm
from selfteach.commands.sweep import read_grid
from selfteach.core import SelfteachError, registry
from selfteach.experiments import runs
from selfteach.experiments.compare import file_name

SMALL = ["--task", "bandit", "--steps", "2", "--max-tokens", "4", "--eval-every", "1", "--eval-tasks", "2"]
SMALL += ["--final-eval-tasks", "2", "--final-eval-decoder-samples", "1", "--threads", "1"]


def swept(capsys: Any, mini_folder: Path, *more: str) -> dict[str, Any]:
    words = ["sweep", "bandit_reinforce:groups=2", "--model", str(mini_folder), *SMALL, "--json", *more]
    assert main(words) == 0
    return json.loads(capsys.readouterr().out)


def test_a_sweep_runs_what_is_missing_and_shows_the_best_first(
    mini_folder: Path, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    pytest.importorskip("scipy", reason="needs the extra selfteach[claims]")
    made: list[Any] = []
    once = runs.run_once

    def counted(run_config: Any, *args: Any) -> Any:
        made.append(run_config)
        return once(run_config, *args)

    monkeypatch.setattr(runs, "run_once", counted)
    out = ["--out", str(tmp_path / "out")]
    first = swept(capsys, mini_folder, "--grid", "lr=0.01,0.1", "--seeds", "2", *out)
    assert len(made) == 4 and set(first["arms"]) == {"lr=0.01", "lr=0.1"}
    assert {c.settings.lr for c in made} == {0.01, 0.1} and all(c.method.args["groups"] == 2 for c in made)
    means = [arm["accuracy"]["mean"] for arm in first["arms"].values()]
    assert means == sorted(means, reverse=True) and not first["failed"]
    assert Path(first["file"]).is_file()
    more = swept(capsys, mini_folder, "--grid", "lr=0.01,0.1", "rollouts=2,4", "--seeds", "2", *out)
    assert len(more["arms"]) == 4 and len(made) == 8, "those of rollouts=4, which is the default, were there"
    assert (
        main(["sweep", "bandit_reinforce:groups=2", "--model", str(mini_folder), *SMALL, "--grid", "lr=0.01", *out])
        == 0
    )
    text = capsys.readouterr().out
    assert "lr=0.01" in text and "sampled %" in text and len(made) == 9


def test_a_run_that_fails_is_named_and_the_others_go_on(
    mini_folder: Path, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    once = runs.run_once

    def fails(run_config: Any, *args: Any) -> Any:
        if run_config.settings.lr == 0.1:
            raise SelfteachError("the loss is not finite")
        return once(run_config, *args)

    monkeypatch.setattr(runs, "run_once", fails)
    found = swept(capsys, mini_folder, "--grid", "lr=0.1,0.01", "--seeds", "1", "--out", str(tmp_path))
    assert list(found["arms"]) == ["lr=0.01", "lr=0.1"] and "not finite" in found["failed"]["lr=0.1 seed 0"]


@pytest.mark.parametrize("words", [["compare", "used_only"], ["sweep", "used_only", "--grid", "lr=0.1"]])
def test_a_method_may_come_from_a_file(words: list[str], tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "from selfteach import method\nfrom selfteach.methods import grpo\n\n"
        "@method(family='mine')\ndef used_only():\n    return grpo()\n"
    )

    def stop(*_: Any, **__: Any) -> Any:
        raise SelfteachError("planned")

    monkeypatch.setattr(runs.RunPool, "run", stop)
    monkeypatch.setattr(registry.methods, "_entries", {k: v for k, v in registry.methods.items() if k != "used_only"})
    assert main([*words, "--use", str(file), "--task", "bandit", "--steps", "2", "--out", str(tmp_path / "out")]) == 2
    assert "planned" in capsys.readouterr().err


def test_arms_have_settings_and_hyper_parameters() -> None:
    entry, args, settings, _ = read_arm("grpo:lr=3e-4,beta=0.04,run.grad_clip=0.5,warm_steps=9")
    assert entry.name == "grpo" and args == {"beta": 0.04}
    assert settings == {"lr": 3e-4, "grad_clip": 0.5, "warm_steps": 9}
    _, args, settings, _ = read_arm("m2po:budget=0.04,run.budget=100")
    assert args == {"budget": 0.04} and settings == {"budget": 100}, "a name of both is the method's"


def test_a_grid_is_typed() -> None:
    entry = registry.methods.get("grpo")
    grid = read_grid(entry, ["lr=1e-5,3e-5", "beta=0", "rollouts=4, 8", "run.decay=cosine"])
    assert grid == {"lr": [1e-5, 3e-5], "beta": [0.0], "rollouts": [4, 8], "run.decay": ["cosine"]}


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("sweep grpo", "--grid"),
        ("sweep grpo --grid lr", "'lr' is not NAME=VALUE"),
        ("sweep grpo --grid lr=", "lr must be a number"),
        ("sweep grpo --grid lr=1e-4,1e-4", "lr has 0.0001 twice"),
        ("sweep grpo --grid lr=1 lr=2", "lr is given twice"),
        ("sweep grpo --grid lr=1 run.lr=2", "lr and run.lr are the same"),
        ("sweep grpo --grid betta=1", "did you mean beta"),
        ("sweep grpo --grid seed=1,2", "leave seed out"),
        ("sweep grpo --grid steps=1,2", "give --steps"),
        ("sweep grpo:lr=1 --grid lr=1,2", "is given by grpo:lr=1 too"),
        ("sweep grpo --grid beta=" + ",".join(map(str, range(1001))), "1001 combinations"),
        ("sweep grpo --grid lr=1e-4 --seed 3", "takes --seeds N"),
        ("sweep grpo --grid lr=-1", "lr: must be"),
        ("compare grpo:seed=3", "leave seed out"),
        ("compare grpo:lr=much", "lr must be a number"),
    ],
)
def test_a_mistake_is_one_line(words: str, why: str, capsys: Any) -> None:
    assert main(words.split()) == 2
    out, err = capsys.readouterr()
    assert why in err and err.count("\n") == 1 and not out


def test_an_arm_of_which_nothing_is_known_is_last() -> None:
    arms = {
        "a": [{"figures": {}, "evals": {}}],
        "b": [{"figures": {"accuracy": 0.2}, "evals": {1: 0.1}}, {"figures": {}, "evals": {}}],
        "c": [{"figures": {"accuracy": 0.3}, "evals": {}}],
    }
    assert list(comparison.sorted_arms(arms)) == ["c", "b", "a"]
    assert comparison.compare_arms({"b": arms["b"]})["b"]["curve"][0]["mean"] == 0.1


def test_names_of_files_are_short_and_do_not_meet() -> None:
    assert file_name("a b/c") == "a_b_c"
    one, other = file_name("x" * 200 + "1"), file_name("x" * 200 + "2")
    assert one != other and len(one) < 130
