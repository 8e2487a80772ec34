"""Tables, pictures and the ledger by hand-worked numbers; the bookkeeping of experiments on runs that are made up."""

from __future__ import annotations

import doctest
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from selfteach import experiments, run_cache, training
from selfteach.analysis import claim_results, claim_section, comparison, curves, figures, ledger, regime_evidence
from selfteach.analysis.experiments_page import write_experiments
from selfteach.analysis.regime_evidence import unadmitted_regimes
from selfteach.analysis.verdict import HOLDS, UNDECIDED
from selfteach.configuration import RunConfig, plan
from selfteach.core import Claim, Sampling, SelfteachError, outcome, registry, unsorted
from selfteach.core.method import MethodEntry
from selfteach.experiments import arms
from selfteach.loop.log import read_events
from selfteach.loop.session import ignore_events

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("module", [figures, ledger, regime_evidence, arms])
def test_the_examples_in_the_docstrings_are_true(module):
    found = doctest.testmod(module)
    assert found.attempted and not found.failed


# ---- figures, tables, pictures


def test_figures_names_come_apart_and_together():
    for name in ("accuracy", "pass@64", "greedy/hops=2", "calls+search", "accuracy/hops=3+entropy_guided"):
        assert figures.figure_name(*figures.parse(name)) == name


def test_tables_show_before_and_after_by_way_and_hops():
    before = {"greedy": 0.31, "accuracy": 0.3, "pass@1": 0.3, "pass@2": 0.4, "accuracy/hops=1": 0.5, "length": 40.0}
    after = {
        "greedy": 0.5,
        "accuracy": 0.525,
        "pass@1": 0.52,
        "pass@2": 0.6,
        "accuracy/hops=1": 0.7,
        "accuracy+search": 0.7,
        "length": 112.0,
    }
    accuracy, passes, hops = figures.tables(before, after)
    assert accuracy.columns == ["", "greedy %", "sampled %", "tokens"]
    assert accuracy.rows == [
        ["own program", "31.0 → 50.0", "30.0 → 52.5", "40.0 → 112"],
        ["with search", "-", "70.0", "-"],
    ]
    assert passes.rows == [["before", "30.0", "40.0"], ["after", "52.0", "60.0"]]
    assert hops.rows[0] == ["own program", "50.0 → 70.0"]


def events(steps: int = 15) -> list[dict]:
    told = {
        "accuracy": 0.3,
        "greedy": 0.32,
        "pass@1": 0.3,
        "pass@2": 0.4,
        "accuracy/hops=1": 0.5,
        "accuracy/hops=2": 0.2,
        "accuracy+search": 0.6,
    }
    out = [{"event": "final_eval", "when": "start", "step": 0, "figures": told}]
    for s in range(steps):
        out.append(
            {
                "event": "step",
                "step": s,
                "steps": steps,
                "reward/mean": 0.3 + s / 50,
                "rollout/length_mean": 40.0,
                "rollout/tool_calls_mean": 1.0,
                "policy/logprob_mismatch_mean": 1e-6,
            }
        )
    out.append({"event": "eval", "step": 10, "accuracy": 0.4})
    return [
        *out,
        {"event": "final_eval", "when": "end", "step": steps, "figures": {k: v + 0.1 for k, v in told.items()}},
    ]


def test_a_log_becomes_curves_and_a_step_told_twice_counts_once():
    made = curves.curves_of([*events(), {"event": "step", "step": 14, "steps": 15, "reward/mean": 0.9}])
    x, y = made.column("reward/mean")
    assert list(x) == list(range(1, 16)) and y[-1] == 0.9
    assert made.before["accuracy"] == 0.3 and made.after["accuracy"] == pytest.approx(0.4)


@pytest.mark.parametrize("keep", ["all", "steps", "one", "end"])
def test_curves_are_drawn_from_a_whole_log_and_from_parts_of_one(tmp_path, keep):
    said = {"all": events(), "steps": events()[1:-2], "one": events(1)[1:2], "end": events()[-1:]}[keep]
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in said))
    file = curves.draw_run(tmp_path)
    assert file == tmp_path / "curves.png" and file.read_bytes().startswith(b"\x89PNG")


def test_nothing_is_drawn_from_nothing(tmp_path):
    assert curves.draw_run(tmp_path) is None and read_events(tmp_path / "log") == []


def test_a_contrast_has_means_intervals_paired_differences_and_bands(tmp_path):
    runs = {
        "a": [{"figures": {"accuracy": v}, "evals": {0: 0.1, 10: v, 20: v}} for v in (0.3, 0.5, 0.7)],
        "b": [{"figures": {"accuracy": v + 0.1}, "evals": {0: 0.1, 10: v}} for v in (0.3, 0.5, 0.7)],
    }
    found = comparison.compare_arms(runs)
    assert found["a"]["accuracy"]["mean"] == pytest.approx(0.5)
    assert found["b"]["against_first"]["interval"] == pytest.approx([0.1, 0.1])
    assert [p["step"] for p in found["b"]["curve"]] == [0, 10] and found["a"]["curve"][0]["mean"] == pytest.approx(0.1)
    assert comparison.table(found, "t").rows[1][-1] == "10.0 [10.0, 10.0]"
    assert comparison.draw(found, "t", tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


# ---- experiments, with runs that are made up


@pytest.fixture
def pretended(monkeypatch):
    """Runs that take no time: what an arm measures is a function of its clip and seed."""
    done: list[RunConfig] = []

    def train(run_config, out, observer=ignore_events, resume=False, watch=training.no_warnings, measured=None):
        done.append(run_config)
        value = 0.5 + run_config.settings.seed / 1000 + run_config.method.args.get("clip", 0.2)
        tokens = min(700, run_config.settings.budget or 700)
        told = {
            "before": {"accuracy": 0.5},
            "after": {"accuracy": value},
            "seconds": {"all": 2.0, "training": 1.0},
            "steps": 3,
            "tokens": tokens,
        }
        out.mkdir(parents=True)
        (out / "config.json").write_text("{}")
        (out / "figures.json").write_text(json.dumps(told))
        return training.Outcome(out, told, True, 2.0)

    monkeypatch.setattr(run_cache.training, "carry_out", train)
    return done


@pytest.fixture
def claimed(monkeypatch):
    """A method with a claim, put in the registry for one test."""

    def put(claim: Claim, build=None) -> str:
        entry = MethodEntry(
            "claimed", build or registry.methods.get("grpo").build, "objective", "2402.03300", claim=claim
        )
        registry.load_all()
        monkeypatch.setitem(registry.methods._entries, "claimed", entry)
        return "claimed"

    return put


CLAIM = Claim(
    (unsorted("accuracy", by=0.1), unsorted("accuracy", "self", "low", by=0.05)),
    arms={"low": ("grpo", {"clip": 0.1})},
    steps=3,
    because="so",
)


def test_a_claim_is_run_judged_and_written(tmp_path, pretended, claimed):
    result = experiments.reproduce(claimed(CLAIM), seeds=8, out=tmp_path / "results", store=tmp_path / "store")
    assert result["verdict"] == HOLDS and result["seeds"] == list(range(200, 208)) and len(pretended) == 16
    assert [c["effect"] for c in result["checks"]] == pytest.approx([0.4035, 0.1])
    assert json.loads((tmp_path / "results" / "claimed.json").read_text()) == json.loads(json.dumps(result))
    assert result["arms"]["low"]["args"] == {"clip": "0.1"} and result["arms"]["low"]["seeds"]["201"]["after"][
        "accuracy"
    ] == pytest.approx(0.801)


def test_a_corrected_claim_is_reported_on_seeds_of_its_own(tmp_path, pretended, claimed):
    name = claimed(replace(CLAIM, first_seed=300, corrected="the baseline could not learn"))
    result = experiments.reproduce(name, seeds=2, out=tmp_path / "results", store=tmp_path / "store")
    assert result["seeds"] == [300, 301]
    assert "corrected since: the baseline could not learn." in claim_section.claim_section(result, name)
    assert experiments.reproduce(name, seeds=1, first_seed=0, out=None, store=tmp_path / "store")["seeds"] == [0]


def test_runs_are_kept_by_content_and_shared(tmp_path, pretended, claimed):
    name = claimed(CLAIM)
    heard: list[bool] = []
    for seeds, fresh in ((2, 4), (2, 0), (3, 2)):
        before = len(pretended)
        experiments.reproduce(
            name,
            seeds=seeds,
            out=None,
            store=tmp_path,
            observer=lambda e: heard.append(e["reused"]) if e["event"] == "arm" else None,
        )
        assert len(pretended) - before == fresh
    assert sorted(heard) == [False] * 6 + [True] * 8
    experiments.reproduce(name, seeds=1, out=None, store=tmp_path, settings={"lr": 1e-5})
    assert len(pretended) == 8


def test_code_that_is_edited_while_an_experiment_runs_loses_no_run(tmp_path, pretended, claimed, monkeypatch):
    """What has begun is found where it was looked for, though the same configuration has another key by now."""
    monkeypatch.setattr(run_cache, "run_key", lambda run_config: "of-edited-code")
    result = experiments.reproduce(claimed(CLAIM), seeds=2, out=None, store=tmp_path)
    assert result["checks"][0]["per_seed"] == pytest.approx([0.4, 0.401]) and len(pretended) == 4


def test_the_name_of_a_method_is_no_part_of_its_content():
    one, other = plan("grpo", "chain_sum"), plan("grpo", "chain_sum", args={"clip": 0.2})
    assert run_cache.run_key(one) == run_cache.run_key(other)
    assert run_cache.run_key(one) != run_cache.run_key(plan("grpo", "chain_sum", args={"clip": 0.3}))
    assert run_cache.run_key(one) != run_cache.run_key(one.override(seed=1))


def test_with_equal_tokens_the_others_stop_where_self_did(tmp_path, pretended, claimed):
    claim = Claim((unsorted("accuracy", "self", "low"),), arms=dict(CLAIM.arms), steps=3, equal="tokens")
    experiments.reproduce(claimed(claim), seeds=1, out=None, store=tmp_path)
    assert [j.settings.budget for j in pretended] == [None, 700] and pretended[1].settings.steps > 3


def test_an_experiment_that_was_stopped_goes_on(tmp_path, pretended, claimed, monkeypatch):
    real, calls = run_cache.training.carry_out, []

    def stopped(run_config, out, observer=ignore_events, resume=False, watch=training.no_warnings, measured=None):
        calls.append(resume)
        return (
            training.Outcome(out, {}, False, 0.0)
            if len(calls) == 2
            else real(run_config, out, observer, resume, watch=watch)
        )

    monkeypatch.setattr(run_cache.training, "carry_out", stopped)
    with pytest.raises(KeyboardInterrupt):
        experiments.reproduce(claimed(CLAIM), seeds=1, out=None, store=tmp_path)
    assert (
        experiments.reproduce("claimed", seeds=1, out=None, store=tmp_path)["verdict"] == UNDECIDED and len(calls) == 3
    )


@pytest.mark.parametrize(
    ("claim", "said"),
    [
        (None, "makes no claim"),
        (Claim((unsorted("accuracy", "self", "nobody"),)), "names an arm 'nobody'"),
    ],
)
def test_a_claim_that_cannot_be_run_is_refused_at_once(claim, said, claimed, tmp_path, pretended):
    with pytest.raises(SelfteachError, match=said):
        experiments.reproduce(claimed(claim), out=None, store=tmp_path)
    assert not pretended


def test_a_claim_and_an_arm_of_it_may_set_options_of_the_task(claimed):
    more = {"low": ("grpo", {"clip": 0.1}, {"task.n_test": 5})}
    name = claimed(replace(CLAIM, settings={"task.n_test": 7, "task.style": "terse"}, arms=more))
    own, low = arms.claim_arms(registry.methods.get(name)).values()
    assert own.run_config.task_options == {"n_test": 7, "style": "terse"} and own.run_config.settings.steps == 3
    assert low.run_config.task_options == {"n_test": 5, "style": "terse"}
    rows = arms.arm_differences(registry.methods.get(name).claim, {"self": own, "low": low})["low"]
    assert "task.n_test" in {d.row for d in rows}
    # over those of a regime, of which no other run hears
    home = registry.regimes.get("real_search")
    checks = (outcome("accuracy", "self", "low", by=0.05, fails_at=0.97),)
    name = claimed(replace(CLAIM, checks=checks, regime="real_search", settings={"task.held_out": 0.3}))
    made = arms.claim_arms(registry.methods.get(name))["self"].run_config
    assert made.task_options == {**home.task_options, "held_out": 0.3} and "held_out" not in home.task_options


def test_samples_are_drawn_deep_only_where_a_check_asks():
    assert arms.samples_per_task(arms.measures_of(Claim((unsorted("accuracy"),)))) == 0
    assert arms.samples_per_task(arms.measures_of(Claim((unsorted("accuracy", right="pass@8 of self"),)))) == 64
    assert arms.samples_per_task(arms.measures_of(Claim((unsorted("pass@256"),)))) == 256


def test_compare_writes_a_table_and_a_chart(tmp_path, pretended):
    pytest.importorskip("matplotlib", reason="needs the extra selfteach[plot]")
    sides = [experiments.Arm(f"clip{c}", plan("grpo", "chain_sum", steps=3, args={"clip": c})) for c in (0.1, 0.2)]
    result = experiments.compare(sides, range(3), tmp_path)
    assert result["arms"]["clip0.2"]["against_first"]["mean"] == pytest.approx(0.1)
    assert Path(result["chart"]).is_file() and json.loads(Path(result["file"]).read_text())["seeds"] == [0, 1, 2]
    other = experiments.Arm("more", plan("grpo", "chain_sum", steps=4))
    with pytest.raises(SelfteachError, match="budget"):
        experiments.compare([*sides, other], range(1), tmp_path)


# ---- the ledger


def test_the_ledger_is_what_the_committed_results_make():
    results = claim_results.read_results(claim_results.SHIPPED_RESULTS)
    drawn = [r["method"] for r in results if claim_results.is_decided(r)]
    further = claim_results.experimented([claim_results.SHIPPED_RESULTS])
    text = ledger.page(
        results, claim_results.read_tuning([claim_results.SHIPPED_RESULTS]), drawn, further, unadmitted_regimes()
    )
    assert (ROOT / "docs" / "ledger.md").read_text() == text
    beside = ROOT / "docs" / "ledger"
    pages = [beside / f"{method}.md" for method in further]
    assert all(f"(ledger/{page.name})" in text for page in pages)
    shown = set(re.findall(r"]\(([\w.]+png)\)", "".join(page.read_text() for page in pages)))
    assert {f.name for f in beside.iterdir()} == {f"{m}.png" for m in drawn} | {p.name for p in pages} | shown


def test_the_page_of_experiments_is_what_the_committed_results_make(tmp_path):
    pytest.importorskip("matplotlib", reason="needs the extra selfteach[plot]")
    for method in claim_results.experimented([claim_results.SHIPPED_RESULTS]):
        own = registry.methods.get(method).experiments
        page = write_experiments(method, own, [claim_results.SHIPPED_RESULTS], tmp_path / f"{method}.md", "../")
        assert page.read_text() == (ROOT / "docs" / "ledger" / page.name).read_text()


def test_claims_of_the_first_edition_are_named_and_wait(tmp_path, pretended, claimed):
    experiments.reproduce(claimed(CLAIM), seeds=8, out=tmp_path / "results", store=tmp_path / "store")
    text = ledger.page(claim_results.read_results(tmp_path / "results"))
    assert "No claim has been decided yet" in text and "| `claimed` | first edition |" in text
    assert claim_results.verdicts([tmp_path / "none", tmp_path / "results"]) == {"claimed": claim_results.NOT_YET}
    (tmp_path / "results" / "bad.json").write_text("{}")
    with pytest.raises(SelfteachError, match=r"bad\.json"):
        claim_results.read_results(tmp_path / "results")


def test_compare_without_matplotlib_has_no_chart(tmp_path, pretended, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    sides = [experiments.Arm(f"clip{c}", plan("grpo", "chain_sum", steps=3, args={"clip": c})) for c in (0.1, 0.2)]
    result = experiments.compare(sides, range(3), tmp_path)
    assert result["chart"] is None and Path(result["file"]).is_file()


def test_what_a_policy_is_before_training_is_measured_once_for_runs_that_only_learn_otherwise(tmp_path: Path):
    """The second run reads what the first one found, which is what it would have found; its folder has it as well."""
    more: dict[str, Any] = {"steps": 1, "groups": 2, "rollouts": 2, "warm_steps": 2, "warm_practice_steps": 0}
    small = {"model": "tiny-s", "final_eval_tasks": 6, "final_eval_k": 0, "final_eval_decoder_samples": 2}
    first, second = (
        run_cache.run_once(plan("grpo", "chain_sum", args={"clip": clip}, **more, **small), tmp_path / store)
        for clip, store in ((0.2, "a"), (0.3, "a"))
    )
    alone = run_cache.run_once(plan("grpo", "chain_sum", args={"clip": 0.3}, **more, **small), tmp_path / "b")
    assert len(list((tmp_path / "a" / "starts").iterdir())) == 1
    figures = [json.loads((folder / "figures.json").read_text()) for folder in (first, second, alone)]
    assert figures[0]["before"] == figures[1]["before"] == figures[2]["before"]
    assert figures[0]["counts"] == figures[1]["counts"] | {"after": figures[0]["counts"]["after"]}
    assert {k: v for k, v in figures[1].items() if k != "seconds"} == {
        k: v for k, v in figures[2].items() if k != "seconds"
    }


def test_a_start_is_keyed_by_what_is_played_and_measured():
    start = run_cache.start_key
    one = plan("grpo", "chain_sum")
    assert start(one) == start(one.override(lr=1e-5, steps=3)) == start(plan("grpo", "chain_sum", args={"clip": 0.3}))
    others = [
        one.override(seed=1),
        one.override(final_eval_tasks=7),
        one.override(max_tokens=9),
        plan("grpo", "chain_sum", model="tiny-s"),
        plan("grpo", "chain_sum", {"terms": (2, 3)}),
        replace(one, method=one.method.replace(sampling=Sampling(temperature=0.5))),
        plan("ssrl", "chain_sum"),
    ]
    assert len({start(one), *map(start, others)}) == 1 + len(others)
