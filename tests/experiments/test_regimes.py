"""Regimes measured and admitted: the rule by hand, what is run for it, and how it is shown."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.runs import BANDIT

from selfteach import run_cache
from selfteach.analysis import regime_evidence, regime_page
from selfteach.analysis.regime_evidence import admission, definition, read_evidence, status
from selfteach.cli import main
from selfteach.core import BadCheckpoint, BadValue, Regime, SelfteachError, UnknownName, outcome, premise, registry
from selfteach.core.serial import write_json
from selfteach.core.task import Task, TaskSource
from selfteach.experiments import admission as measuring
from selfteach.experiments import measure_regime
from selfteach.experiments import runs as runs_module
from selfteach.experiments.arms import regime_config
from selfteach.methods import grpo, rlsc, vineppo
from selfteach.reward.answer import exact_match
from selfteach.rollout.single import single

# ---- what a regime says


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ways": {"slowly": ""}}, "way 'slowly' must have a name"),
        ({"ways": {"main": "a"}}, "way 'main' must have a name other than 'main'"),
        ({"search": {"lr": 0.1}}, "search of lr must be a tuple"),
        ({"search": {"lr": ()}}, "search of lr must be a tuple"),
        ({"search": {"seed": (1, 2)}}, "search of seed must be a tuple of values that no seed decides"),
        ({"admits": "hope"}, "admits must be 'gain' or 'failure', not 'hope'"),
        ({"admits": "failure", "shows": "it collapses"}, "`failure`, a check that it is there"),
        ({"admits": "failure", "failure": premise("accuracy", "baseline", 0.5)}, "needs `shows`"),
        ({"failure": premise("accuracy", "self", 0.5)}, "names an arm 'self', and has only baseline, start"),
        ({"failure": premise("accuracy", "baseline", "pass@8 of other")}, "names an arm 'other'"),
    ],
)
def test_what_a_regime_cannot_be(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadValue, match=f"regime chain_sum: .*{message}"):
        Regime(task="chain_sum", **change)


def test_a_regime_s_reward_stands_for_exact_match_where_a_method_has_it() -> None:
    evens = registry.blocks.get("evens")()
    home = replace(registry.regimes.get("bandit_small"), reward=evens)
    assert regime_config(home, "grpo").method.stage.reward == (evens,)
    inside = regime_config(home, "ssrl").method.stage.reward[0]
    assert "evens()" in str(inside) and "search_format(" in str(inside) and "exact_match" not in str(inside)
    own = regime_config(home, "bandit_reinforce", {"paid": "alike"}).method  # has no exact_match
    assert [str(r) for r in own.stage.reward] == ["alike()"]
    with pytest.raises(BadValue, match="has no reward exact_match"):
        own.with_reward(evens)
    # a judge for metrics alone is no reward: what learns without labels is not given the regime's
    with pytest.raises(BadValue, match="has no reward exact_match"):
        rlsc().with_reward(evens)
    assert "evens()" in str(vineppo().with_reward(evens).stage.reward[0])
    assert grpo().with_reward(evens, required=False).stage.reward == (evens,)


# ---- the rule, by hand


def summary(mean: float | None, low: float | None = None, high: float | None = None) -> dict[str, Any]:
    return {"mean": mean, "interval": None if low is None else [low, high]}


def value(v: float, figure: float | None, stated: bool = False) -> dict[str, Any]:
    return {"value": v, "stated": stated, "greedy": figure, "sampled": figure, "figure": figure, "failed": ""}


def learned(seeds: int, before: float, gain: dict[str, Any]) -> dict[str, Any]:
    points = [{"step": 0, "mean": before, "low": None, "high": None}]
    points.append({"step": 10, "mean": before + gain["mean"], "low": before, "high": before + 2 * gain["mean"]})
    return {
        "seeds": list(range(seeds)),
        "before": {"greedy": before, "sampled": before},
        "after": {"greedy": before + gain["mean"], "sampled": before + gain["mean"]},
        "gain": {"greedy": copy.deepcopy(gain), "sampled": copy.deepcopy(gain)},
        "curve": {"greedy": points, "sampled": points},
    }


def good() -> dict[str, Any]:
    """The evidence of a regime that is admitted, at the edge of every bound."""
    way = {"greedy": 1.0, "sampled": 0.98, "length": 30.0}
    flat = learned(4, 0.5, summary(0.01, -0.01, 0.03))
    cost = {"seconds": 21.5, "seconds_warm": 60.0, "seconds_all": 40.0, "steps": 60, "tokens": 123456}
    return {
        "format": 1,
        "regime": "bandit_small",
        "method": "bandit_reinforce",
        "admits": "gain",
        "definition": definition(registry.regimes.get("bandit_small")),
        "search": [{"name": "lr", "seeds": [0, 1], "values": [value(0.001, 0.7, True), value(0.01, 0.72)]}],
        "baseline": {
            **learned(8, 0.5, summary(0.7 - 0.5, 0.001, 0.4)),
            "spread": {"greedy": 0.05, "sampled": 0.04},
            "cost": cost,
            "failure": None,
        },
        "start": {
            "greedy": 0.5,
            "sampled": 0.5,
            "length": 12.0,
            "pass_at_k": {"1": 0.5, "64": 0.9},
            "ways": {
                "slowly": {"prefix": "<think> slowly", **way},
                "guess": {"prefix": "<think> guess", "greedy": 0.1, "sampled": 0.09, "length": 4.0},
            },
            "ceiling": "slowly",
            "floor": "guess",
            "seeds": [0, 1, 2, 3],
        },
        "control": {**flat, "change": flat["gain"]["sampled"]},
    }


def set_in(evidence: dict[str, Any], path: str, to: Any) -> dict[str, Any]:
    *way, last = path.split(".")
    at: Any = evidence
    for name in way:
        at = at[int(name) if name.isdigit() else name]
    at[last] = to
    return evidence


def failure(verdict: str, why: str = "") -> dict[str, Any]:
    said = {"text": "accuracy of baseline is below that before training by 0.1", "verdict": verdict, "why": why}
    return {**said, "measure": "accuracy", "scale": "abs", "effect": -0.2, "interval": [-0.3, -0.1], "per_seed": []}


def test_a_regime_at_the_edge_of_every_bound_is_admitted() -> None:
    admitted, why = admission(good())
    assert admitted and why == (
        "greedy 50.0 to 70.0 %; sampled 50.0 to 70.0 %; with shuffled rewards sampled accuracy changes by +1.0 points"
        " [-1.0, 3.0]"
    )


@pytest.mark.parametrize(
    ("path", "to", "why"),
    [
        ("control", None, "not measured yet: control"),
        ("search", None, "not measured yet: search"),
        ("baseline.seeds", list(range(7)), "7 seeds, and at least 8 are needed"),
        ("search", [], "no search, so nothing says that the baseline is tuned"),
        ("search.0.values", [value(1, 0.7, True), value(2, 0.721)], "lr=2 is better by 2.1 points than what is stated"),
        ("search.0.values", [value(1, None, True), value(2, 0.1)], "lr as stated could not be measured"),
        (
            "baseline.gain.greedy",
            summary(0.199, 0.1, 0.3),
            "greedy accuracy gains +19.9 points [10.0, 30.0], and 20 are needed",
        ),
        (
            "baseline.gain.sampled",
            summary(0.3, 0.0, 0.6),
            "sampled accuracy gains +30.0 points [0.0, 60.0], and the interval must lie above 0",
        ),
        ("baseline.gain.sampled", summary(None), "sampled accuracy was not measured"),
        ("baseline.failure", failure("does not hold here"), f"that {failure('')['text']}: does not hold here"),
        ("baseline.failure", failure("undecided", "2 seeds"), f"that {failure('')['text']}: undecided (2 seeds)"),
        ("admits", "failure", "it is to be admitted by a failure, and none was measured"),
        ("control.change", summary(0.01), "the control needs at least two seeds"),
        (
            "control.change",
            summary(0.031, -0.01, 0.072),
            "with shuffled rewards sampled accuracy changes by +3.1 points [-1.0, 7.2]: at most 3 are let pass, with an"
            " interval that reaches 0",
        ),
        (
            "control.change",
            summary(0.02, 0.01, 0.03),
            "with shuffled rewards sampled accuracy changes by +2.0 points [1.0, 3.0]: at most 3 are let pass, with an"
            " interval that reaches 0",
        ),
    ],
)
def test_what_keeps_a_regime_out(path: str, to: Any, why: str) -> None:
    assert admission(set_in(good(), path, to)) == (False, why)


def test_where_what_is_rewarded_is_not_what_is_right_a_search_is_by_the_reward() -> None:
    after = [{"greedy": 0.5, "accuracy": 0.4}, {"greedy": 0.3, "accuracy": 0.2}]
    runs = {s: {"after": a, "logged": {"late:reward/mean": 0.8 + s / 10}} for s, a in enumerate(after)}
    pool: Any = SimpleNamespace(failed={}, results={"lr=1": runs})
    found = measuring.search_figures(pool, "lr=1", (0, 1))
    assert (found["greedy"], found["sampled"], found["figure"]) == pytest.approx((0.4, 0.3, 0.35))
    assert measuring.search_figures(pool, "lr=1", (0, 1), "late:reward/mean")["figure"] == pytest.approx(0.85)
    with pytest.raises(BadValue, match="no figure late:reward/men; those that it has: accuracy, greedy, late:reward"):
        measuring.search_figures(pool, "lr=1", (0, 1), "late:reward/men")


def test_a_value_of_the_search_that_failed_is_no_better_one() -> None:
    values = [value(1, 0.7, True), value(2, None)]
    assert admission(set_in(good(), "search.0.values", values))[0]


def test_a_regime_of_a_failure_need_not_gain() -> None:
    evidence = set_in(set_in(good(), "admits", "failure"), "baseline.failure", failure("holds"))
    admitted, why = admission(set_in(evidence, "baseline.gain.sampled", summary(-0.2, -0.3, -0.1)))
    assert admitted and "it shows that accuracy of baseline is below that before training by 0.1" in why


def test_all_reasons_are_told_at_once() -> None:
    evidence = set_in(set_in(good(), "search", []), "baseline.seeds", [0])
    assert (
        admission(evidence)[1]
        == "1 seed, and at least 8 are needed; no search, so nothing says that the baseline is tuned"
    )


# ---- what is run


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Regime]:
    """A changed copy of the small regime, in the registry for one test."""

    def put(**change: Any) -> Regime:
        made = replace(registry.regimes.get("bandit_small"), name="changed", **change)
        monkeypatch.setitem(registry.regimes._entries, "changed", made)
        return made

    return put


def test_the_baseline_is_evaluated_ten_times_on_the_way(home: Callable[..., Regime]) -> None:
    settings = {**home().settings, "steps": 60}
    assert measuring.baseline_config(home(settings=settings)).settings.eval_every == 2  # as stated: 29 times
    made = measuring.baseline_config(home(settings={**settings, "eval_every": 0, "eval_samples": 0}))
    assert (made.settings.eval_every, made.settings.eval_samples) == (5, 4)  # after 5, 10 ... 55 steps: 11 times
    assert measuring.baseline_config(home()).settings.eval_every == 1 and made.final_eval.k == 0
    assert measuring.baseline_config(home(failure=premise("pass@8", "baseline"))).final_eval.k == 64


def test_the_search_takes_every_value_with_the_others_as_stated(home: Callable[..., Regime]) -> None:
    made = home(search={"lr": (0.001, 0.01), "rollouts": (2, 4)})
    base = measuring.baseline_config(made)
    tried = measuring.searched_configs(made, base)
    assert [(v, stated) for v, stated, _ in tried["lr"]] == [(0.001, False), (0.01, True)]
    assert [(v, stated) for v, stated, _ in tried["rollouts"]] == [(3, True), (2, False), (4, False)]  # 3 is stated
    assert tried["lr"][1][2] is base and tried["lr"][0][2].settings.lr == 0.001
    assert tried["lr"][0][2].method == base.method and tried["lr"][0][2].settings.eval_every == 0
    assert tried["rollouts"][2][2].method.stage.rollouts == 4 and tried["rollouts"][2][2].settings.lr == 0.01
    with pytest.raises(UnknownName, match="lrr"):
        measuring.searched_configs(home(search={"lrr": (1,)}), base)


def test_what_is_stated_as_a_setting_is_searched_as_one_whatever_the_baseline_has(home: Callable[..., Regime]) -> None:
    made = home(
        baseline="co_reward", args={"lr": None}, settings={"lr": 0.01, "steps": 1}, search={"lr": (0.001, 0.01)}
    )
    base = measuring.baseline_config(made)
    (low, stated, other), (high, is_stated, same) = measuring.searched_configs(made, base)["lr"]
    assert (low, stated, other.settings.lr, other.method) == (0.001, False, 0.001, base.method)
    assert (high, is_stated) == (0.01, True) and same is base


def test_the_start_is_measured_by_forcing_each_way_and_the_control_by_shuffling_every_reward(
    home: Callable[..., Regime],
) -> None:
    made = home(baseline="grpo", ways={"slowly": "<think> slowly"}, reward=registry.blocks.get("evens")())
    base = measuring.baseline_config(made)
    start = measuring.start_config(made, base)
    assert (start.settings.steps, start.final_eval.k, start.final_eval.tasks) == (0, 64, 4)
    assert {k: str(v) for k, v in start.method.decode.items()} == {
        "main": "single()",
        "slowly": "single(prefix='<think> slowly')",
    }
    control = measuring.control_config(base)
    assert [str(r) for r in control.method.stage.reward] == ["shuffled(reward=evens())"]
    stateful = measuring.control_config(measuring.baseline_config(registry.regimes.get("search_experts")))
    assert str(stateful.method.stage.reward[0]).startswith("shuffled_stateful(reward=routed(")
    assert replace(control, method=base.method) == base


def test_every_search_is_of_what_the_regime_states_or_its_baseline_has() -> None:
    for name, _ in registry.regimes.items():
        home = registry.regimes.get(name)
        tried = measuring.searched_configs(home, measuring.baseline_config(home))
        assert all(sum(stated for _, stated, _ in rows) == 1 for rows in tried.values()), name


def test_an_agent_s_ways_are_forced_in_its_own_program() -> None:
    made = registry.regimes.get("half_known")
    forced = measuring.start_config(made, measuring.baseline_config(made)).method.decode["carefully"]
    assert forced.name == "search_agent"
    assert forced.hyper_parameters["prefix"] == "<decision> search</decision><think>carefully"


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Runs that are made up, as they were asked for; one with a learning rate of 9 fails."""
    asked: list[Any] = []

    def run_once(run_config: Any, store: Path, observer: Any = None, key: Any = None) -> Path:
        asked.append(run_config)
        s, shuffled = run_config.settings, "shuffled" in str(run_config.method.stage.reward)
        if s.lr == 9:
            raise SelfteachError("the gradient is not finite")
        folder = store / run_cache.run_key(run_config)
        folder.mkdir(parents=True)
        off = 0.01 if s.seed % 2 else -0.01
        before = {"accuracy": 0.3 + off, "greedy": 0.2, "length": 5.0, "pass@1": 0.3, "pass@64": 0.8}
        before |= {f"{k}+{w}": v for k in ("accuracy", "greedy", "length") for w, v in (("fast", 0.1), ("slow", 0.9))}
        up = 0.0 if shuffled else 20 * s.lr if s.steps else 0.0
        after = {**before, "accuracy": 0.3 + 2 * off + up, "greedy": 0.2 + up}
        seconds = {"all": 3.0, "training": 1.0 + s.seed, "warm": 2.0}
        told = {"before": before, "after": after, "seconds": seconds, "steps": s.steps, "tokens": 100 * s.seed}
        (folder / "figures.json").write_text(json.dumps(told))
        return folder

    monkeypatch.setattr(runs_module, "run_once", run_once)
    return asked


def test_a_regime_is_measured_part_by_part_and_goes_on_from_the_cache(
    home: Callable[..., Regime], pretended: list[Any], tmp_path: Path
) -> None:
    made = home(
        search={"lr": (0.01, 0.0105, 9.0)},
        ways={"fast": "a", "slow": "b"},
        failure=outcome("accuracy", "baseline", "pass@64 of start", by=0.1, relation="<"),
        shows="it stays below what sixty-four samples find",
    )
    states: list[str] = []
    out = tmp_path / "out"

    def hear(event: Any) -> None:
        if event["event"] == "part":
            states.append(json.loads((out / "changed.json").read_text())["why"])

    result = measure_regime("changed", out=out, store=tmp_path / "store", observer=hear)
    assert states[0] == "not measured yet: baseline, start, control" and states[3] == result["why"]
    # two seeds of three values, of which the failing one is given up at its first; the stated one is the baseline
    seeds = [c.settings.seed for c in pretended]
    assert seeds == [0, 1, 0, 1, 0, 1, *range(2, 8), *range(4), *range(8)]
    assert {c.warm.seed for c in pretended} == {*range(8)} and all(
        c.final_eval.seed == c.settings.seed for c in pretended
    )
    figures = [v["figure"] for v in result["search"][0]["values"]]
    # accuracy at the end is 0.3 +- 0.02 + 20 lr, greedy 0.2 + 20 lr
    assert figures[:2] == pytest.approx([0.45, 0.46]) and figures[2] is None
    assert result["search"][0]["values"][2]["failed"] == "the gradient is not finite"
    baseline, start, control = result["baseline"], result["start"], result["control"]
    assert baseline["gain"]["greedy"]["mean"] == pytest.approx(0.2)
    assert baseline["gain"]["sampled"]["mean"] == pytest.approx(0.2)
    # +-0.02 over eight seeds: sd = 0.02 sqrt(8 / 7)
    assert baseline["spread"]["sampled"] == pytest.approx(0.02 * (8 / 7) ** 0.5) and baseline["spread"]["greedy"] == 0
    assert baseline["cost"]["seconds"] == 4.5 and baseline["cost"]["seconds_warm"] == 2.0
    assert (baseline["cost"]["tokens"], baseline["cost"]["steps"]) == (350, 4)
    assert baseline["failure"]["verdict"] == "holds" and baseline["failure"]["effect"] == pytest.approx(-0.3)
    assert (start["ceiling"], start["floor"]) == ("slow", "fast") and start["ways"]["slow"]["sampled"] == 0.9
    assert start["pass_at_k"] == {"1": 0.3, "64": 0.8} and start["sampled"] == pytest.approx(0.3)
    assert control["change"]["mean"] == pytest.approx(0.0) and control["seeds"] == [*range(8)]
    # changes of -0.01, 0.01, -0.01 ...: 2.365 * 0.01 sqrt(8 / 7) / sqrt(8) = 0.0089
    assert control["change"]["interval"][1] == pytest.approx(0.0089, abs=1e-4)
    assert result["admitted"] and read_evidence([out])["changed"] == result
    assert status(made, result) == "admitted" and status(home(warm_seeds=3), result) == "changed since measured"
    done = len(pretended)
    home(**{k: getattr(made, k) for k in ("search", "ways", "failure", "shows")})
    again = measure_regime("changed", out=None, store=tmp_path / "store")
    assert len(pretended) == done + 2 and again["why"] == result["why"]  # only what failed is tried again


def test_a_run_that_fails_outside_the_search_stops_the_measurement(
    home: Callable[..., Regime], pretended: list[Any], tmp_path: Path
) -> None:
    made = home(settings={**home().settings, "lr": 9.0}, search={"lr": (0.01,)})
    with pytest.raises(SelfteachError, match="not finite"):
        measure_regime("changed", out=tmp_path / "out", store=tmp_path / "store")
    found = json.loads((tmp_path / "out" / "changed.json").read_text())
    assert not found["admitted"] and found["why"] == "not measured yet: baseline, start, control"
    assert found["search"][0]["values"][0]["failed"] and status(made, found) == "not admitted"


def test_a_regime_is_measured_from_end_to_end(home: Callable[..., Regime], tmp_path: Path) -> None:
    home(ways={"a": "a", "ab": "ab"})
    result = measure_regime("changed", seeds=1, out=None, store=tmp_path, use=[str(BANDIT)])
    assert not result["admitted"] and result["why"].startswith("1 seed, and at least 8 are needed")
    baseline = result["baseline"]
    assert [p["step"] for p in baseline["curve"]["sampled"]] == [0, 1, 2, 3, 4] and baseline["cost"]["seconds_warm"] > 0
    assert baseline["runs"]["0"]["counts"]["after"]["samples"] == 3 and baseline["cost"]["optimiser_steps"] == 4
    assert set(result["start"]["ways"]) == {"a", "ab"} and result["start"]["pass_at_k"].keys() >= {"1", "64"}
    assert all(w["sampled"] is not None and w["length"] > 0 for w in result["start"]["ways"].values())
    assert [p["step"] for p in result["control"]["curve"]["greedy"]] == [0, 1, 2, 3, 4]
    json.dumps(result)


# ---- how it is shown


def measured() -> dict[str, Any]:
    evidence = set_in(good(), "baseline.failure", failure("holds"))
    evidence["admitted"], evidence["why"] = admission(evidence)
    return evidence


def test_the_page_of_a_hand_made_result(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra selfteach[plot]")
    small = registry.regimes.get("bandit_small")
    other = replace(small, name="other", shows="nothing happens", search={"lr": (0.1, 0.2)}, ways={"b": "<b>"})
    file = regime_page.write_page([small, other], {"bandit_small": measured()}, tmp_path / "docs" / "regimes.md")
    text = file.read_text()
    row = "bandit | tiny | 50.0 → 70.0 | 50.0 → 70.0 | 21.5 | admitted |"
    assert f"[`bandit_small`](#bandit_small) | {registry.regimes.get('bandit_small').doc} | {row}" in text
    assert "bandit | tiny | - | - | - | not measured |" in text and "**Not measured**.\n" in text
    assert "**Admitted**: greedy 50.0 to 70.0 %" in text and "It shows that nothing happens." in text
    assert "| bandit_reinforce, 8 seeds | greedy | 50.0 | 70.0 | +20.0 [+0.1, +40.0] | 5.0 |" in text
    assert "| rewards shuffled, 4 seeds | sampled | 50.0 | 51.0 | +1.0 [-1.0, +3.0] | - |" in text
    assert "| slowly, the ceiling | <think> slowly | 100.0 | 98.0 | 30.0 |" in text
    assert "| guess, the floor | <think> guess | 10.0 | 9.0 | 4.00 |" in text and "| 50.0 | 90.0 |" in text
    assert "| lr | 0.001 | 70.0 | 70.0 | stated |" in text and "| lr | 0.01 | 72.0 | 72.0 |  |" in text
    assert "| 21.5 | 60 | 40 | 60 | 123,000 | - | - |" in text
    assert "| accuracy of baseline is below that before training by 0.1 | -20.0 [-30.0, -10.0] | holds |" in text
    assert "| tuned over | lr 0.1, 0.2 |" in text and "| ways | b ('<b>') |" in text
    assert "](regimes/bandit_small.png)" in text and "](regimes/other.png)" not in text
    assert (tmp_path / "docs/regimes/bandit_small.png").read_bytes().startswith(b"\x89PNG")
    assert "There is none yet." in regime_page.page([], {})

    by_reward = set_in(measured(), "definition.tuned_by", "late:reward/mean")
    text = regime_page.page([small], {"bandit_small": by_reward})
    assert "| value | greedy % | sampled % | tuned by late:reward/mean | stated |" in text
    assert "| lr | 0.001 | 70.0 | 70.0 | 0.70 | stated |" in text


@pytest.fixture
def out(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Run a command in an empty folder: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str, str]:
        code = main(list(words))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_regimes_are_listed_with_what_is_known_of_them(out: Any, tmp_path: Path) -> None:
    found = next(r for r in json.loads(out("regimes", "--json")[1]) if r["name"] == "bandit_small")
    assert found["status"] == "not measured" and found["greedy"] is None and found["task"] == "bandit"
    code, text, _ = out("regimes", "bandit_small")
    assert code == 0 and "bandit (n_test=12)" in text
    assert text.endswith("not measured: selfteach regimes bandit_small --measure\n")
    write_json(tmp_path / "results/regimes/bandit_small.json", measured())
    found = next(r for r in json.loads(out("regimes", "--json")[1]) if r["name"] == "bandit_small")
    assert found["status"] == "admitted" and found["sampled"] == [0.5, 0.7] and found["seconds"] == 21.5
    code, text, _ = out("regimes")
    assert code == 0 and "50.0 → 70.0" in text and "admitted" in text
    code, text, _ = out("regimes", "bandit_small")
    assert "slowly, the ceiling" in text and "\nadmitted: greedy 50.0 to 70.0 %" in text
    whole = json.loads(out("regimes", "bandit_small", "--json")[1])
    assert whole["evidence"]["control"]["seeds"] == [0, 1, 2, 3] and whole["definition"]["task"] == "bandit"


def test_a_page_that_cannot_be_written_and_a_file_that_is_no_result(out: Any, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    code, _, error = out("regimes", "--page", "taken/regimes.md")
    assert code == 2 and "taken/regimes.md: cannot be written" in error and error.count("\n") == 1
    assert out("regimes", "--page", "regimes.md", "--json")[0] == 0 and (tmp_path / "regimes.md").is_file()
    (tmp_path / "results/regimes").mkdir(parents=True)
    (tmp_path / "results/regimes/x.json").write_text("{}")
    code, _, error = out("regimes")
    assert code == 2 and "not a result of selfteach regimes --measure" in error
    with pytest.raises(BadCheckpoint):
        read_evidence([tmp_path / "results/regimes"])
    assert regime_evidence.regime_folders()[0] == Path("results/regimes")


def test_measuring_from_the_command_line(
    out: Any, home: Callable[..., Regime], pretended: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SELFTEACH_CACHE", str(tmp_path / "cache"))
    home(search={"lr": (0.01, 0.0105)})
    code, text, error = out("regimes", "changed", "--measure", "--jobs", "1", "--seeds", "2", "--out", "found")
    assert code == 0 and text.endswith("result  found/changed.json\n") and "control is measured" in error
    assert "not admitted: 2 seeds, and at least 8 are needed" in text.replace("\n", " ")
    code, text, _ = out("regimes", "changed", "--measure", "--jobs", "1", "--seeds", "2", "--out", "found", "--json")
    assert code == 0 and json.loads(text) == json.loads((tmp_path / "found/changed.json").read_text())
    assert len(pretended) == 2 + 2 + 2 + 2  # nothing is run twice


def test_the_commonest_answer_of_the_test_questions_needs_no_skill():
    tasks = [Task("a", "", "7"), Task("b", "", ("seven", "7.0")), Task("c", "", "8")]

    def found(*tasks: Task, **more: Any) -> Any:
        return measuring.constant_answer(TaskSource("t", tasks.__getitem__, tasks, **more))

    assert found(*tasks) == {"answer": "7", "share": 2 / 3}
    assert found(*tasks, Task("d", "")) is found(*tasks[:2]) is found(*tasks, program=single()) is None
    assert found(*tasks, Task("d", "", "7", verifier=exact_match())) is None
