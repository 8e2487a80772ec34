"""The arms of a claim tuned alike: every combination, what is stated, what fails, and the command line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.runs import BANDIT

from selfteach import experiments
from selfteach.analysis.claim_section import formatted_tuning
from selfteach.analysis.regime_evidence import best_of
from selfteach.cli import main
from selfteach.core import BadValue, Claim, UnknownName, outcome, registry
from selfteach.core.method import MethodEntry

CLAIM = Claim(
    (outcome("accuracy", "self", "other", by=0.05, fails_at=0.97),),
    arms={"other": ("bandit_reinforce", {"rollouts": 3})},
    regime="bandit_small",
    idea=("main.rollouts",),
)


@pytest.fixture(autouse=True)
def claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    registry.load_all()
    registry.load_file(str(BANDIT))
    build = registry.methods.get("bandit_reinforce").build
    monkeypatch.setitem(registry.methods._entries, "claimed", MethodEntry("claimed", build, "test", "0", claim=CLAIM))


def rows_of(result: dict[str, Any], arm: str) -> list[tuple[dict[str, Any], bool]]:
    return [(r["values"], r["stated"]) for r in result["arms"][arm]]


def test_every_arm_runs_with_every_combination_that_it_has(tmp_path: Path) -> None:
    started: list[tuple[str, int]] = []

    def hear(event: Any) -> None:
        if event["event"] == "arm":
            started.append((event["arm"], event["seed"]))

    grid = {"lr": [0.1, 0.2], "rollouts": [2]}
    result = experiments.tune("claimed", grid, out=tmp_path, store=tmp_path / "runs", observer=hear)
    assert json.loads((tmp_path / "claimed.json").read_text()) == json.loads(json.dumps(result))
    combinations = [{"lr": 0.1, "rollouts": 2}, {"lr": 0.2, "rollouts": 2}]
    for arm in ("self", "other"):
        assert [values for values, _ in rows_of(result, arm)] == combinations
        for r in result["arms"][arm]:
            assert r["failed"] == "" and r["figure"] == pytest.approx((r["greedy"] + r["sampled"]) / 2)
    # With the one value of rollouts the two arms are the same run, which is carried out once for both.
    assert {a for a, _ in started} == {"self lr=0.1 rollouts=2", "self lr=0.2 rollouts=2"} and len(started) == 4


def test_what_a_claim_states_is_marked(tmp_path: Path) -> None:
    stated = registry.regimes.get("bandit_small").settings.get("lr", 0.1)
    result = experiments.tune("claimed", {"lr": [stated, 7 * stated]}, seeds=1, out=None, store=tmp_path / "runs")
    assert rows_of(result, "other") == [({"lr": stated}, True), ({"lr": 7 * stated}, False)]


def test_what_a_claim_states_runs_beside_what_its_regime_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = registry.regimes.get("bandit_small")
    monkeypatch.setitem(registry.regimes._entries, "bandit_small", replace(home, search={"lr": (0.7, 0.9)}))
    result = experiments.tune("claimed", seeds=1, out=None, store=tmp_path / "runs")
    stated = home.settings.get("lr", 0.1)
    assert rows_of(result, "self") == [({"lr": stated}, True), ({"lr": 0.7}, False), ({"lr": 0.9}, False)]


def test_the_method_alone_may_be_tuned(tmp_path: Path) -> None:
    made: dict[str, Any] = {"seeds": 1, "out": None, "store": tmp_path / "runs"}
    result = experiments.tune("claimed", {"lr": [0.1]}, arms=["self"], **made)
    assert list(result["arms"]) == ["self"]
    with pytest.raises(UnknownName, match="no arm of claimed's claim is called 'others'; did you mean other"):
        experiments.tune("claimed", {"lr": [0.1]}, arms=["others"], **made)


def test_a_run_that_fails_is_noted_and_never_the_best(tmp_path: Path) -> None:
    result = experiments.tune("claimed", {"lr": [0.1, 1e30]}, seeds=1, out=None, store=tmp_path / "runs")
    fine, broken = result["arms"]["self"]
    assert (
        broken["figure"] is None and broken["failed"] and best_of([broken, fine]) is fine and best_of([broken]) is None
    )
    text = formatted_tuning(result)
    assert text.startswith(
        "Tuned on seeds 0 over lr 0.1, 1e+30, by the mean of greedy and sampled accuracy. Best: self"
    )
    assert [part.split(" (")[0] for part in text.split("Best: ")[1].split("), ")] == ["self lr 0.1", "other lr 0.1"]


@pytest.mark.parametrize(
    ("grid", "more", "why"),
    [
        ({"lr": []}, {}, "nothing to tune"),
        ({"nonsense": [1]}, {}, "no arm has nonsense"),
        ({"lr": [0.1]}, {"first_seed": 200}, "not of the tuning seeds"),
        ({"lr": [0.1]}, {"seeds": 0}, "not of the tuning seeds"),
    ],
)
def test_what_cannot_be_tuned_is_refused_before_any_run(
    grid: dict[str, list[Any]], more: dict[str, Any], why: str, tmp_path: Path
) -> None:
    with pytest.raises(BadValue, match=why):
        experiments.tune("claimed", grid, out=tmp_path, store=tmp_path, **more)
    assert not list(tmp_path.iterdir())


def test_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SELFTEACH_CACHE", str(tmp_path / "cache"))
    words = ["reproduce", "claimed", "--tune", "lr=0.1,0.2", "--seeds", "1", "--jobs", "1", "--out", str(tmp_path)]
    assert main(words) == 0
    table = capsys.readouterr().out
    assert "lr=0.1" in table and "best" in table and str(tmp_path / "claimed.json") in table
    for bad, why in ((["lr"], "give each name once"), (["lr=1", "lr=2"], "give each name once")):
        assert main(["reproduce", "claimed", "--tune", *bad]) == 2 and why in capsys.readouterr().err
    alone = str(tmp_path / "alone")
    assert main([*words[:-1], alone, "--arms", "self"]) == 0 and "other" not in capsys.readouterr().out
    assert main(["reproduce", "claimed", "--arms", "self"]) == 2 and "goes with --tune" in capsys.readouterr().err
    assert main(["reproduce", "claimed", "--tune", "lr=1", "--hours", "1"]) == 2
    assert "--hours does not go with --tune" in capsys.readouterr().err
