"""Claims run in a regime: what arms may differ in, looks, equal seconds, and many runs at once that are killed and
resumed.
"""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.runs import BANDIT

from selfteach import experiments, run_cache
from selfteach.analysis import claim_curves, claim_results, claim_section, ledger
from selfteach.analysis.verdict import FAILS, HOLDS, NOT_TESTED, UNDECIDED
from selfteach.commands import reproduce as reproduce_command
from selfteach.core import BadValue, Claim, SelfteachError, mechanism, outcome, premise, registry
from selfteach.core.method import Method, MethodEntry
from selfteach.core.serial import plain
from selfteach.experiments import arms as arms_module
from selfteach.experiments import runs as runs_module
from selfteach.experiments.arms import (
    arm_differences,
    claim_arms,
    config_rows,
    figures_of,
    reasons_without_a_difference,
    refuse_unexplained,
    regime_config,
)
from selfteach.experiments.null_trials import null_trials
from selfteach.experiments.reproduce import arm_cost
from selfteach.experiments.runs import RunPool, RunRequest
from selfteach.loop import checkpoint
from selfteach.loop.log import logged_steps

registry.load_all()
CLAIMED = [entry for _, entry in registry.methods.items() if entry.claim]
CLAIMED += [entry.with_experiment(name) for _, entry in registry.methods.items() for name in entry.experiments]
CLAIMED.sort(key=lambda entry: str(entry.claim.regime))  # so that the task of each is made once
CHECK = outcome("accuracy", "self", "other", by=0.05, fails_at=0.97)


def entry_of(claim: Claim) -> MethodEntry[...]:
    build = registry.methods.get("bandit_reinforce").build
    return MethodEntry("claimed", build, "test", "none", claim=claim)


@pytest.fixture
def claimed(monkeypatch):
    """A method with a claim, put in the registry for one test."""

    def put(claim: Claim) -> str:
        registry.load_all()
        monkeypatch.setitem(registry.methods._entries, "claimed", entry_of(claim))
        return "claimed"

    return put


# ---- arms


def test_a_run_in_a_regime_has_its_task_model_settings_and_hyper_parameters():
    made = regime_config("bandit_small", "bandit_reinforce", {"rollouts": 5}, {"lr": 0.5})
    assert (made.task, made.task_options, made.model) == ("bandit", {"n_test": 12}, "tiny")
    assert made.method.args == {"groups": 2, "rollouts": 5} and made.settings.lr == 0.5 and made.settings.threads == 1
    assert made.warm.steps == 2 and made.final_eval.decoder_samples == 3 and made.settings.steps == 4
    assert regime_config("bandit_small", "grpo", model="tiny-s").model == "tiny-s"


@pytest.mark.parametrize("entry", CLAIMED, ids=lambda entry: entry.name)
def test_the_arms_of_a_claim_differ_in_its_idea_or_for_a_reason_given_and_each_reason_is_of_a_difference(
    entry: MethodEntry[...],
) -> None:
    arms = claim_arms(entry)
    assert next(iter(arms)) == "self" and all(isinstance(a.run_config.method, Method) for a in arms.values())
    found = arm_differences(entry.claim, arms)
    refuse_unexplained(entry.name, found)
    assert not reasons_without_a_difference(entry.claim, found)


@pytest.mark.parametrize("entry", CLAIMED, ids=lambda entry: entry.name)
def test_the_arms_of_a_claim_are_evaluated_by_the_program_that_their_method_says(
    entry: MethodEntry[...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def programs() -> dict[str, list[Any]]:
        methods = {name: arm.run_config.method for name, arm in claim_arms(entry).items()}
        return {name: [plain(m.eval_program(stage)) for stage in m.stages] for name, m in methods.items()}

    measured = programs()
    monkeypatch.setattr(arms_module, "with_decoders", lambda run_config, names: run_config)
    assert measured == programs()


def test_of_an_arm_only_what_checks_read_of_it_before_or_after_training_is_read():
    checks = (
        outcome("accuracy", "self", "accuracy+best of start", by=0.1, fails_at=0.95),
        outcome("accuracy", "self", "accuracy+vote of other", by=0.1, fails_at=0.95),
        outcome("length+search", "other", by=0.1, scale="ratio", fails_at=1e6),
        mechanism("late:reward/mean", "third", 0.5, fails_at=0.4),
    )
    claim = Claim(checks, {"other": ("grpo", {}), "third": ("grpo", {})}, regime="bandit_small")
    read = {arm: figures_of(claim, arm) for arm in ("self", "other", "third")}
    assert read == {
        "self": {"accuracy", "accuracy+best"},
        "other": {"accuracy+vote", "length+search"},
        "third": {"late:reward/mean"},
    }


def test_rows_name_stage_and_update_so_that_methods_can_be_compared():
    rows = config_rows(regime_config("bandit_small", "grpo"))
    assert rows["main.groups"] == "2" and "main.update.0.term.0" in rows and rows["settings.warm_steps"] == "2"
    assert rows["task.n_test"] == "12" and rows["model"] == "tiny"


def test_what_arms_differ_in_is_the_idea_explained_or_refused(claimed, tmp_path):
    arms = {"other": ("bandit_reinforce", {"paid": "alike", "rollouts": 6}, {"lr": 0.02})}
    bare = Claim((CHECK,), arms, regime="bandit_small")
    found = arm_differences(bare, claim_arms(entry_of(bare)))["other"]
    assert [(d.row, d.own, d.other, d.kind) for d in found] == [
        ("main.reward.0", "evens()", "alike()", "unexplained"),
        ("main.rollouts", "3", "6", "unexplained"),
        ("settings.lr", "0.01", "0.02", "unexplained"),
    ]
    why = {"main.rollouts": "it needs twice as many", "settings.l?": "tuned"}
    whole = Claim((CHECK,), arms, regime="bandit_small", idea=("main.reward",), differs=why)
    found = arm_differences(whole, claim_arms(entry_of(whole)))["other"]
    assert [(d.kind, d.because) for d in found] == [
        ("idea", ""),
        ("explained", "it needs twice as many"),
        ("explained", "tuned"),
    ]
    part = Claim((CHECK,), arms, regime="bandit_small", idea=("main.reward",), differs={"settings.*": "tuned"})
    with pytest.raises(BadValue, match=r"arm other differs from self in main\.rollouts \(6, self: 3\)"):
        experiments.reproduce(claimed(part), store=tmp_path, out=None)
    assert not list(tmp_path.iterdir())  # before any run


def test_a_check_of_the_curve_needs_five_evaluations_on_the_way():
    def claim(**settings):
        check = outcome("auc", "self", "other", by=0.05, fails_at=0.97)
        return Claim((check,), {"other": "grpo"}, regime="bandit_small", settings=settings)

    with pytest.raises(BadValue, match=r"reads auc, which needs at least 5 evaluations on the way.* has 1 with 2"):
        claim_arms(entry_of(claim()))
    with pytest.raises(BadValue, match="with 0 samples"):
        claim_arms(entry_of(claim(steps=12, eval_samples=0)))
    assert claim_arms(entry_of(claim(steps=12)))


# ---- looks, with runs that are made up


@pytest.fixture
def pretended(monkeypatch):
    """A function of arm and seed stands for training; what was asked for is collected."""
    asked: list[tuple[str, int, Any]] = []
    value: dict[str, Any] = {"accuracy": lambda arm, seed: 0.5}

    def run_once(run_config, store, observer=None, key=None):
        method, s = run_config.method, run_config.settings
        name = "other" if method.args.get("paid") == "alike" else "self"
        asked.append((name, s.seed, run_config))
        folder = store / run_cache.run_key(run_config)
        folder.mkdir(parents=True)
        told = {
            "before": {"accuracy": 0.1},
            "after": {"accuracy": value["accuracy"](name, s.seed)},
            "seconds": {"all": 2.0, "training": 1.5 if name == "self" else 1.0},
            "steps": 4,
            "tokens": 100 + s.seed,
        }
        (folder / "figures.json").write_text(json.dumps(told))
        return folder

    monkeypatch.setattr(runs_module, "run_once", run_once)
    return SimpleNamespace(asked=asked, value=value)


ARMS = {"other": ("bandit_reinforce", {"paid": "alike"})}


def claim_of(*checks, **more: Any) -> Claim:
    return Claim(checks or (CHECK,), ARMS, regime="bandit_small", idea=("main.reward",), because="so", **more)


def noise(seed: int, size: float = 0.01) -> float:
    return size if seed % 2 else -size


def test_a_claim_that_is_clear_is_decided_at_the_first_look(claimed, pretended, tmp_path):
    pretended.value["accuracy"] = lambda arm, seed: (0.8 if arm == "self" else 0.6) + noise(seed) * (arm == "self")
    heard: list[Any] = []
    name = claimed(claim_of())
    result = experiments.reproduce(name, out=tmp_path / "out", store=tmp_path / "s", observer=heard.append)
    assert result["verdict"] == HOLDS and result["seeds"] == list(range(200, 208)) and len(pretended.asked) == 16
    assert result["checks"][0]["effect"] == pytest.approx(0.2) and result["checks"][0]["level"] == 0.0226
    assert json.loads((tmp_path / "out" / "claimed.json").read_text()) == json.loads(json.dumps(result))
    seeded = {(r.settings.seed, r.warm.seed, r.final_eval.seed) for _, _, r in pretended.asked}
    assert seeded == {(s, s - 200, s) for s in range(200, 208)}
    differences = next(e for e in heard if e["event"] == "differences")["arms"]["other"]
    assert [d["row"] for d in differences] == ["main.reward.0"] and result["arms"]["other"]["differs"] == differences
    assert result["arms"]["self"]["cost"]["seconds"] == 1.5 and result["arms"]["self"]["cost"]["tokens"] == 303.5


def test_a_claim_that_is_open_is_looked_at_again_and_stops_when_decided(claimed, pretended, tmp_path):
    # +0.06 with a spread of 0.1: too wide with eight seeds, and narrower with more
    pretended.value["accuracy"] = lambda arm, seed: 0.5 if arm == "other" else 0.56 + noise(seed, 0.1)
    result = experiments.reproduce(claimed(claim_of()), out=None, store=tmp_path)
    assert [look["seeds"] for look in result["looks"]] == [8, 12, 16, 24] and result["verdict"] == HOLDS
    first = experiments.reproduce("claimed", out=None, store=tmp_path, max_seeds=12)
    assert [look["seeds"] for look in first["looks"]] == [8, 12] and len(pretended.asked) == 48
    check = first["checks"][0]
    assert check["verdict"] == UNDECIDED and check["smaller_than"] == check["interval"][1] > 0.06
    with pytest.raises(BadValue, match="at least 8"):
        experiments.reproduce("claimed", out=None, store=tmp_path, max_seeds=4)


def test_without_its_premise_a_claim_is_not_tested(claimed, pretended, tmp_path):
    pretended.value["accuracy"] = lambda arm, seed: 0.8 if arm == "self" else 0.95
    low = premise("accuracy", "other", 0.9, relation="<", fails_at=0.95)
    acts = mechanism("accuracy", "self", "start", by=0.1, fails_at=0.95)
    result = experiments.reproduce(claimed(claim_of(low, acts, CHECK)), out=None, store=tmp_path)
    assert result["verdict"] == NOT_TESTED and [c["verdict"] for c in result["checks"]] == [FAILS, HOLDS, FAILS]
    assert [c["kind"] for c in result["checks"]] == ["premise", "mechanism", "outcome"]


@pytest.mark.parametrize(("equal", "limit"), [("tokens", {"budget": 300}), ("seconds", {"max_seconds": 1.5})])
def test_with_equal_tokens_or_seconds_the_others_get_what_self_took(claimed, pretended, tmp_path, equal, limit):
    experiments.reproduce(claimed(claim_of(equal=equal)), seeds=2, out=None, store=tmp_path)
    order = [("self", 200), ("self", 201), ("other", 200), ("other", 201)]
    by_seed = sorted(order, key=lambda run: run[1])  # a machine may be slower later
    assert [(a, s) for a, s, _ in pretended.asked] == (by_seed if equal == "seconds" else order)
    mine, other = (next(r.settings for a, s, r in pretended.asked if a == name) for name in ("self", "other"))
    assert {k: getattr(other, k) for k in limit} == limit and all(getattr(mine, k) is None for k in limit)
    assert (mine.steps, other.steps) == (4, 80)


def test_where_seconds_are_compared_the_arms_of_a_seed_run_together_and_no_other_claims_runs_are_taken(
    claimed, pretended, tmp_path
):
    timed = outcome("sum:time/step_s", "self", "other", by=0.1, relation="<", scale="ratio", fails_at=0.0)
    for check, order in (
        (CHECK, [("self", 200), ("self", 201), ("other", 200), ("other", 201)]),
        (timed, [("self", 200), ("other", 200), ("self", 201), ("other", 201)]),
    ):
        pretended.asked.clear()
        experiments.reproduce(claimed(claim_of(check)), seeds=2, out=None, store=tmp_path)
        assert [(a, s) for a, s, _ in pretended.asked] == order


def test_no_run_is_begun_after_the_time_is_spent(claimed, pretended, tmp_path, monkeypatch):
    clock = iter(range(0, 100_000, 600))  # ten minutes between any two looks at the clock
    monkeypatch.setattr(runs_module.time, "monotonic", lambda: next(clock))
    heard: list[str] = []
    name = claimed(claim_of())
    result = experiments.reproduce(
        name, out=None, store=tmp_path, hours=1.0, observer=lambda e: heard.append(e["event"])
    )
    assert "out_of_time" in heard and result["verdict"] == UNDECIDED and len(pretended.asked) < 16
    monkeypatch.undo()


def test_what_was_corrected_since_it_was_measured_is_no_verdict(claimed, pretended, tmp_path):
    name = claimed(claim_of())
    experiments.reproduce(name, seeds=8, out=tmp_path / "out", store=tmp_path / "s")
    assert claim_results.verdicts([tmp_path / "out"])[name] != claim_results.NOT_YET
    claimed(replace(claim_of(), first_seed=300, corrected="it was upside down: holds"))
    results = claim_results.read_results(tmp_path / "out")
    assert claim_results.verdicts([tmp_path / "out"])[name] == claim_results.NOT_YET
    assert not claim_results.is_decided(results[0])
    assert "| `claimed` | it was upside down: holds |" in ledger.page(results)
    experiments.reproduce(name, seeds=8, out=tmp_path / "out", store=tmp_path / "s")  # and on fresh seeds it is one
    assert claim_results.is_decided(claim_results.read_results(tmp_path / "out")[0])


def test_what_was_measured_in_another_regime_is_no_verdict(claimed, pretended, tmp_path):
    name = claimed(claim_of())
    experiments.reproduce(name, seeds=8, out=tmp_path / "out", store=tmp_path / "s")
    claimed(replace(claim_of(), regime="steep"))
    results = claim_results.read_results(tmp_path / "out")
    assert not claim_results.is_decided(results[0])
    was = results[0]["regime"]
    assert f"| `claimed` | measured in `{was}`, and not yet in `steep` |" in ledger.page(results)


def test_what_was_measured_of_other_checks_is_no_verdict(claimed, pretended, tmp_path):
    name = claimed(claim_of())
    experiments.reproduce(name, seeds=8, out=tmp_path / "out", store=tmp_path / "s")
    (result,) = claim_results.read_results(tmp_path / "out")
    assert claim_results.is_decided(result)
    claimed(replace(claim_of(), checks=tuple(replace(c, by=c.by + 0.01) for c in claim_of().checks)))
    assert not claim_results.is_decided(result)
    assert "| `claimed` | its checks are others now |" in ledger.page([result])


def test_the_ledger_shows_three_kinds_effects_costs_and_what_differs(claimed, pretended, tmp_path):
    pretended.value["accuracy"] = lambda arm, seed: (0.8 if arm == "self" else 0.6) + noise(seed) * (arm == "self")
    acts = mechanism("accuracy", "self", "start", by=0.1, fails_at=0.95)
    name = claimed(claim_of(acts, CHECK, outcome("accuracy", "self", "other", by=0.2, relation="~", fails_at=0.5)))
    experiments.reproduce(name, seeds=8, out=tmp_path / "out", store=tmp_path / "s")
    text = ledger.page(claim_results.read_results(tmp_path / "out"))
    row = "| [`claimed`](#claimed) | test | none | - | holds | 1 of 2 hold | **mechanism shown** | `bandit_small`, 4"
    assert row in text and "Of 1 claim of 1 the mechanism is shown and the outcome is open. Premise and" in text
    assert "\n**mechanism shown** in [`bandit_small`](regimes.md#bandit_small), 4 steps, 8 seeds; test, none.\n" in text
    noted = ledger.page(claim_results.read_results(tmp_path / "out"), unadmitted={"bandit_small": "not measured"})
    assert "| `bandit_small` (regime not measured), 4 steps," in noted
    # 0.2 +- 0.01 in eight seeds: error 0.01 sqrt(8 / 7) / sqrt(8) = 0.00378; t at the first look's level 2.92, at 80 %
    # 0.90: intervals reach 0.0110, and 0.0144 could have been found
    assert "| outcome | accuracy of self is above that of other by 0.05 | +20.0 [+18.9, +21.1] | 1.4 | holds |" in text
    assert "| undecided (smaller than 20.9) |" in text  # t at twice that level: 2.43
    assert "| `other` | `bandit_reinforce(groups=2, rollouts=3, paid='alike')` | the idea (reward) |" in text
    assert "| `other` | 10.0 → 60.0 | - | 304 | - | - | 1 |" in text
    effect = "accuracy of self is above that of other by 0.05 | +20.0 [+18.9, +21.1] | holds |"
    assert "In [`bandit_small`](regimes.md#bandit_small):" in text and f"| [`claimed`](#claimed) | {effect}" in text
    assert "What held, with" not in text and "Not equal" not in text
    assert "| family | mechanism shown |\n| --- | --- |\n| test | 1 |" in text and ".png" not in text
    assert ledger.write_page([tmp_path / "out"], tmp_path / "page" / "ledger.md").read_text().count(".png") == 1
    assert (tmp_path / "page" / "ledger" / "claimed.png").stat().st_size > 5000
    assert claim_results.verdicts([tmp_path / "out"]) == {"claimed": "mechanism shown"}


def test_the_ledger_names_the_methods_that_another_value_serves_better(claimed, pretended, tmp_path):
    name = claimed(claim_of())
    experiments.reproduce(name, seeds=8, out=tmp_path, store=tmp_path / "s")
    results = claim_results.read_results(tmp_path)
    assert "and none was searched by itself." in " ".join(ledger.page(results).split())
    stated, other = (
        {"values": {"lr": v}, "figure": f, "stated": s} for v, f, s in ((0.1, 0.5, True), (0.2, 0.53, False))
    )
    found: dict[str, Any] = {"method": name, "grid": {"lr": [0.1, 0.2]}, "seeds": [0, 1]}
    text = " ".join(
        ledger.page(results, {name: {**found, "arms": {"self": [stated, other], "other": [stated]}}}).split()
    )
    assert "and 1 of them were run with all values" in text
    assert "points for [`claimed`](#claimed), and for an arm beside none:" in text
    assert "Best: self lr 0.2 (53.0 %; as stated 50.0), other lr 0.1 (50.0 %, as stated)." in text


def test_what_was_tuned_is_read_while_the_claim_is_the_same(claimed, tmp_path):
    claim = claim_of(settings={"lr": 0.1})
    (tmp_path / "tuning").mkdir()
    found = {"arms": {"self": []}, "claim": claim_results.tuned_claim(claim, ["self"])}
    (tmp_path / "tuning" / "claimed.json").write_text(json.dumps(found))
    claimed(claim)
    assert claim_results.read_tuning([tmp_path]) == {"claimed": found}
    claimed(claim_of(settings={"lr": 0.2}))
    assert claim_results.read_tuning([tmp_path]) == {}
    (tmp_path / "tuning" / "claimed.json").write_text(json.dumps({"arms": {"self": []}}))  # of an earlier version
    assert claim_results.read_tuning([tmp_path]) == {}


def test_several_claims_go_one_after_another_and_those_with_a_result_are_left_out(
    claimed, pretended, tmp_path, monkeypatch, capsys
):
    pretended.value["accuracy"] = lambda arm, seed: (0.8 if arm == "self" else 0.6) + noise(seed)
    monkeypatch.setenv("SELFTEACH_CACHE", str(tmp_path / "cache"))
    words = [claimed(claim_of()), "grpo_trl", "--out", str(tmp_path / "out"), "--jobs", "1", "--json"]
    with pytest.raises(BadValue, match="makes no claim"):
        reproduce_command.run("reproduce", ["grpo_trl", *words])
    assert reproduce_command.run("reproduce", words) == 1  # one of them makes no claim
    said = capsys.readouterr()
    assert list(json.loads(said.out)) == ["claimed"] and len(pretended.asked) == 16
    assert "grpo_trl: " in said.err and "\nnot measured: grpo_trl" in said.err
    again = ["claimed", "--undecided", *words[2:]]
    assert reproduce_command.run("reproduce", again) == 0 and json.loads(capsys.readouterr().out) == {}
    claimed(claim_of(outcome("accuracy", "self", "other", by=0.1, fails_at=0.9)))  # what it says is another thing now
    assert reproduce_command.run("reproduce", again) == 0 and list(json.loads(capsys.readouterr().out)) == ["claimed"]


def test_results_made_of_the_same_runs_say_so():
    def result(method, *keys):
        return {"method": method, "arms": {"self": {"seeds": {str(i): {"key": k} for i, k in enumerate(keys)}}}}

    found = ledger.shared_runs([result("a", "k1", "k2"), result("b", "k2"), result("c", "k3"), result("d", None)])
    assert found == {"a": ["b"], "b": ["a"], "c": [], "d": []}


def test_costs_are_medians_over_seeds():
    def run(tokens, steps, seconds):
        logged = {
            "sum:tokens/in_loss": tokens / 2,
            "sum:policy/optimiser_steps": steps,
            "sum:critic/optimiser_steps": 1.0,
        }
        return {"tokens": tokens, "logged": logged, "seconds": {"training": seconds}}

    assert arm_cost([run(10, 3.0, 1.0), run(30, 5.0, 9.0), run(20, 4.0, 2.0)]) == {
        "tokens": 20.0,
        "learned": 10.0,
        "optimiser_steps": 5.0,
        "seconds": 2.0,
    }


# ---- real runs, several at once


def requests(count: int = 3, **change: Any) -> list[RunRequest]:
    home = registry.regimes.get("bandit_small")
    config = regime_config(home, "bandit_reinforce", None, {"steps": 4, **change}, use=(str(BANDIT),))
    return [RunRequest("self", s, config.override(**home.seeded(s))) for s in range(count)]


def test_runs_at_once_are_those_of_one_after_another(tmp_path: Path):
    heard: list[Any] = []
    with RunPool(tmp_path / "many", heard.append, jobs=2, measures=["auc"]) as many:
        many.run(requests())
        workers = {w.process.pid for w in many._workers}
        many.run(requests())  # all read back
        with pytest.raises(SelfteachError, match=r"self seed \d: .*differ by"):  # an error names its run
            many.run(requests(2, max_logprob_mismatch=1e-30))
    with RunPool(tmp_path / "one", jobs=1, measures=["auc"]) as one:
        one.run(requests())
    for seed in range(3):
        a, b = many.results["self"][seed], one.results["self"][seed]
        assert {k: a[k] for k in ("before", "after", "counts", "tokens", "key", "curves")} == {
            k: b[k] for k in ("before", "after", "counts", "tokens", "key", "curves")
        }
        assert "auc" in a["logged"] and [s for s, _ in a["curves"]["sampled"]] == [0, 2, 4]
    assert len(workers) == 2  # kept alive over runs
    begun = [e for e in heard if e["event"] == "arm"]
    assert [e["reused"] for e in begun[:6]] == [False] * 3 + [True] * 3
    assert begun[5]["number"] == begun[5]["total"] == 6
    assert {e["run"] for e in heard if e["event"] == "step"} == {"self seed 0", "self seed 1", "self seed 2"}


def test_a_run_that_never_finds_a_gradient_is_a_result(tmp_path: Path):
    home = registry.regimes.get("bandit_small")
    config = regime_config(home, "bandit_reinforce", {"paid": "alike"}, {"steps": 24}, use=(str(BANDIT),))
    with RunPool(tmp_path) as pool:
        pool.run([RunRequest("self", 0, config)])
    assert logged_steps(tmp_path / pool.results["self"][0]["key"] / "log")[-1] == 23


def test_of_a_finished_run_in_the_cache_a_few_steps_can_be_looked_at(tmp_path: Path):
    for shown, kept in ((None, [0, 1, 2, 3]), (3, [0, 2, 3]), (1, [0])):
        with RunPool(tmp_path, steps_shown=shown) as pool:  # the second and third read the run back
            pool.run(requests(1))
        (run,) = pool.results["self"].values()
        assert logged_steps(tmp_path / run["key"] / "log") == kept
        assert [s for s, _ in run["curves"]["sampled"]] == [0, 2, 4]


def test_of_a_finished_run_in_the_cache_the_last_weights_are_kept_alone(tmp_path: Path):
    with RunPool(tmp_path) as pool:
        pool.run(requests(1, checkpoint_every=1))
    (run,) = pool.results["self"].values()
    folder = tmp_path / run["key"]
    assert [f.name for f in (folder / "checkpoints").iterdir()] == ["000004"]
    held = {f.name for f in (folder / "last").iterdir()}
    assert "model.safetensors" in held and "optimiser.safetensors" not in held
    assert checkpoint.read(folder)[1] == 4  # what it says that it holds is what it holds
    with RunPool(tmp_path) as again:
        again.run(requests(1, checkpoint_every=1))
    assert again.results == pool.results


def test_processes_that_waited_for_the_same_run_clear_up_after_it_one_at_a_time(tmp_path: Path, monkeypatch):
    held: list[bool] = []

    def another_comes(run: Path) -> None:
        with pytest.raises(BlockingIOError), run_cache.folder_lock(run, busy):
            pass

    def busy(event: Any) -> None:
        held.append(event["event"] == "waiting")
        raise BlockingIOError

    monkeypatch.setattr(runs_module, "thin_checkpoints", another_comes)
    with RunPool(tmp_path) as pool:
        pool.run(requests(1))
    assert held == [True]


def test_a_worker_that_is_killed_is_reported_and_its_run_tried_once_more(tmp_path: Path):
    heard: list[Any] = []
    killed: list[int] = []

    def kill_first(event):
        heard.append(event)
        if event["event"] == "step" and event["step"] == 1 and not killed:
            worker = next(w for w in pool._workers if w.request and w.request.name == event["run"])
            killed.append(worker.process.pid)
            os.kill(worker.process.pid, signal.SIGKILL)

    with RunPool(tmp_path, kill_first, jobs=2) as pool:
        pool.run(requests(2, checkpoint_every=1))
    died = [e for e in heard if e["event"] == "worker_died"]
    assert len(died) == 1 and died[0]["why"] == "killed by signal 9" and died[0]["again"]
    assert set(pool.results["self"]) == {0, 1}
    resumed = [e for e in heard if e["event"] == "start" and e["run"] == died[0]["run"]]
    assert [e["resumed"] for e in resumed] == [False, True]


def test_a_run_whose_process_dies_twice_stops_the_experiment(tmp_path: Path):
    heard: list[Any] = []
    pool = RunPool(tmp_path, heard.append, jobs=2)
    request, queue = requests(1)[0], runs_module.deque()
    process = SimpleNamespace(join=lambda seconds: None, exitcode=1)
    tried = runs_module.Counter({"k": 1})
    for again in (True, False):
        worker = runs_module.Worker(process, None, request, "k")
        pool._workers = [worker]
        if again:
            pool._bury(worker, queue, tried)
            assert list(queue) == [(request, "k")] and not pool._workers
            tried["k"] += 1
        else:
            with pytest.raises(SelfteachError, match=r"self seed 0: its process died 2 times \(exit status 1\)"):
                pool._bury(worker, queue, tried)
    assert [e["again"] for e in heard] == [True, False]


def test_ctrl_c_stops_all_runs_and_they_go_on_where_they_were(tmp_path: Path):
    heard: list[Any] = []

    def interrupt(event):
        heard.append(event)
        if event["event"] == "step" and event["step"] == 3:
            raise KeyboardInterrupt

    long = requests(2, steps=60, eval_every=0, checkpoint_every=50)
    with pytest.raises(KeyboardInterrupt), RunPool(tmp_path, interrupt, jobs=2) as pool:
        pool.run(long)
    again: list[Any] = []
    with RunPool(tmp_path, again.append) as pool:  # in this process
        pool.run(long)
    begun = {e["run"] for e in heard if e["event"] == "step"}  # the other may have been about to begin
    resumed = sum(e["event"] == "start" and e["resumed"] for e in again)
    assert begun and resumed >= len(begun)
    assert any(e["step"] >= 3 for e in again if e["event"] == "start") and set(pool.results["self"]) == {0, 1}


def test_a_claim_is_run_in_its_regime_from_end_to_end(claimed, tmp_path: Path):
    claim = Claim(
        (
            mechanism("late:reward/mean", "self", "early:reward/mean of self", by=0.0, fails_at=1.0),
            outcome("auc", "self", "other", by=0.01, fails_at=0.995),
        ),
        ARMS,
        regime="bandit_small",
        settings={"steps": 7, "eval_every": 1},
        idea=("main.reward",),
    )
    name, out = claimed(claim), tmp_path / "out"
    result = experiments.reproduce(name, seeds=2, out=out, store=tmp_path / "s", use=[str(BANDIT)])
    assert result["verdict"] == "mechanism not shown" and "2 seeds" in result["checks"][0]["why"]
    run = result["arms"]["self"]["seeds"]["201"]
    assert len(run["counts"]["after"]["sampled"]) == 4 and len(result["questions"]["201"]) == 4
    assert sum(int(c, 36) for c in run["counts"]["after"]["sampled"]) / 12 == pytest.approx(run["after"]["accuracy"])
    assert result["arms"]["self"]["cost"]["optimiser_steps"] == 7 and result["samples"] == 3
    assert run["logged"]["auc"] is not None and len(run["curves"]["sampled"]) == 8

    # what the runs warned of is counted for each arm: no answer ends by itself, and one arm pays all alike
    warned = [[r["warnings"] for r in arm["seeds"].values()] for arm in result["arms"].values()]
    assert warned == [[["truncated"]] * 2, [["constant_reward", "truncated"]] * 2]
    text = "self truncated in 2 of 2; other constant reward in 2 of 2, truncated in 2 of 2"
    assert claim_section.formatted_warnings(result) == text

    def again(seeds: int, out: Path) -> tuple[dict[str, Any], list[bool]]:
        heard: list[Any] = []
        found = experiments.reproduce(
            name, seeds, out, store=tmp_path / "elsewhere", observer=heard.append, use=[str(BANDIT)]
        )
        return found, [e["reused"] for e in heard if e["event"] == "arm"]

    # where no run is cached, the runs of the earlier result are those of its first seeds
    more, reused = again(3, out)
    assert sorted(reused) == [False] * 2 + [True] * 4
    for arm, old in result["arms"].items():
        assert {s: more["arms"][arm]["seeds"][s] for s in old["seeds"]} == plain(old["seeds"])
    assert {s: more["questions"][s] for s in result["questions"]} == plain(result["questions"])
    (out / f"{name}.json").write_text("{}", encoding="utf-8")  # no result: nothing is known of it
    assert again(1, out)[1] == [False] * 2


# ---- pictures, and A against A


def test_curves_of_a_result_are_drawn(tmp_path: Path):
    pytest.importorskip("matplotlib", reason="needs the extra selfteach[plot]")
    points = {"sampled": [[0, 0.1], [10, 0.5]], "greedy": [[0, 0.2], [10, 0.7]]}
    seeds = {"200": {"curves": points}, "201": {"curves": points}}
    arms = {"self": {"seeds": seeds}, "other": {"seeds": seeds}}
    result = {"method": "m", "regime": "r", "seeds": [200, 201], "arms": arms}
    assert claim_curves.draw_curves(result, tmp_path / "m.png").read_bytes().startswith(b"\x89PNG")


def test_pairs_of_runs_that_differ_in_nothing_but_their_seed(monkeypatch, tmp_path: Path):
    asked: list[Any] = []

    def run(self, requests):
        for r in requests:
            asked.append(r.run_config)
            value = (r.run_config.settings.seed * 7919 % 1009) / 1009
            self.results.setdefault(r.arm, {})[r.seed] = {"after": {"accuracy": value}, "logged": {}}

    monkeypatch.setattr(RunPool, "run", run)
    found = null_trials("bandit_small", trials=6, store=tmp_path, slots=8)
    # 4 runs of a slot make 6 pairs; each slot has one warm start and one set of questions
    assert len(asked) == 32 and len({c.settings.seed for c in asked}) == 32
    assert {(c.warm.seed, c.final_eval.seed) for c in asked} == {(s, s) for s in range(8)}
    assert len(found["trials"]) == 6 and all(len(t["per_seed"]) == 8 for t in found["trials"])
    assert all(0 not in t["per_seed"] for t in found["trials"])
    assert found["false"] == sum(t["p"] <= 0.05 for t in found["trials"])
