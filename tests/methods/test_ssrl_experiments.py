"""SSRL's experiments: what runs of them are, and the page on which they stand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from selfteach import experiments
from selfteach.analysis import claim_results
from selfteach.analysis.claim_section import arms_of
from selfteach.analysis.experiments_page import fit_power, main_claim, write_experiments
from selfteach.configuration import task_source
from selfteach.core import registry
from selfteach.core.claim import Claim
from selfteach.core.errors import UnknownName
from selfteach.experiments.arms import reasons_without_a_difference
from selfteach.methods import ssrl


def test_the_power_law_of_samples() -> None:
    """By hand: log(-log p) of exp(-2 k^-1/2) is log 2 - log(k) / 2; of two points no line is worth anything."""
    points = {k: math.exp(-2 * k**-0.5) for k in (1, 4, 16)}
    fit = fit_power({**points, 64: 1.0})  # a certain one says nothing
    assert fit is not None and (fit.a, fit.b) == pytest.approx((-2.0, -0.5))
    assert fit.at(4) == pytest.approx(math.exp(-1)) and fit_power({1: 0.5, 2: 0.6}) is None


def test_every_experiment_can_be_run() -> None:
    found = {name: entry for name, entry in registry.methods.items() if entry.experiments}
    assert {"ssrl", "dapo", "barl"} <= found.keys() and registry.methods.get("grpo").experiments == {}
    for method, own in found.items():
        for name, claim in own.experiments.items():
            entry = own.with_experiment(name)
            assert isinstance(claim, Claim) and entry.claim is claim and own.claim is not claim
            differences = experiments.arm_differences(claim, experiments.claim_arms(entry))
            assert all(row.kind != "unexplained" for rows in differences.values() for row in rows), (method, name)
    with pytest.raises(UnknownName, match="no experiment of ssrl is called 'scalin'; did you mean sampling"):
        ssrl.with_experiment("scalin")


def test_on_smollm2_arms_are_asked_the_same_three_hundred_questions_and_sample_as_many_tokens() -> None:
    entry = ssrl.with_experiment("smollm2")
    arms = experiments.claim_arms(entry)
    assert [*arms] == ["self", "search_r1", "answer_only"] and entry.claim.equal == "tokens"
    tests = list[list[tuple[str, object]]]()
    for arm in arms.values():
        made = arm.run_config
        assert made.model == "smollm2-135m" and made.final_eval.tasks == 300 and made.settings.steps == 20
        tests.append([(t.prompt, t.answer) for t in task_source(made.task, made.task_options).test])
    assert tests[0] == tests[1] == tests[2] and len(tests[0]) == 370
    # only who answers at once is shown answers; the regime's own runs are asked as they were
    assert [arm.run_config.task_options["ask"] for arm in arms.values()] == ["search", "search", "answer"]
    assert registry.regimes.get("real_search").task_options == {"hops": (1,), "ask": "search"}
    assert [arm.run_config.final_eval.k for arm in arms.values()] == [16, 0, 0]  # what more samples find, of one alone
    assert reasons_without_a_difference(entry.claim, experiments.arm_differences(entry.claim, arms)) == []


def test_another_provider_is_taught_before_as_many_steps_of_the_policy() -> None:
    own, other = experiments.claim_arms(ssrl.with_experiment("other_provider")).values()
    taught = other.run_config.method.stages[0]
    assert (taught.name, taught.until) == ("provider", 150)
    assert other.run_config.settings.steps - 150 == own.run_config.settings.steps == 60
    frozen = experiments.claim_arms(ssrl.with_experiment("provider"))["frozen"].run_config.method
    assert other.run_config.method.stage == frozen.stage  # its runs differ from a frozen copy's in that alone


def test_an_experiment_is_measured_and_stands_on_the_page(tmp_path: Path) -> None:
    small = {"warm_practice_steps": 0, "warm_steps": 2, "final_eval_tasks": 2, "final_eval_pass_at_k_tasks": 2}
    more = {"final_eval_k": 16, "final_eval_decoder_samples": 2, "max_tokens": 8}
    result = experiments.reproduce(
        "ssrl", 1, tmp_path, 0, store=tmp_path / "runs", settings={**small, **more}, experiment="sampling"
    )
    written = json.loads((tmp_path / "experiments/ssrl.sampling.json").read_text())
    assert written["experiment"] == "sampling" and written["verdict"] == result["verdict"]
    after = next(iter(result["arms"]["self"]["seeds"].values()))["after"]
    assert {"pass@16", "maj@2", "maj@8", "maj@16"} <= after.keys()
    for arm in written["arms"].values():  # figures of a model that knows something
        for run in arm["seeds"].values():
            run["after"] |= {f"pass@{k}": math.exp(-2 * k**-0.5) for k in (1, 2, 4, 8, 16)}
    (tmp_path / "experiments/ssrl.sampling.json").write_text(json.dumps(written))
    some = {name: ssrl.experiments[name] for name in ("sampling", "labels")}
    page = write_experiments("ssrl", some, [tmp_path], tmp_path / "page" / "ssrl.md").read_text()
    assert "| `self` | -2.000 | -0.500 | 0.00 |" in page
    assert ": labels (`selfteach reproduce ssrl --experiment NAME`).\n" in page
    assert f"| labels | {some['labels'].because} | not measured yet | `search`, 120 steps |\n" in page
    assert "\n## labels" not in page and "\nIts main claim is not measured yet: `selfteach reproduce ssrl`.\n" in page
    assert (tmp_path / "page/ssrl.sampling.samples.png").stat().st_size > 10_000


def run_of(length: float, accuracy: float, **more: float) -> dict[str, object]:
    after = {"length": length, "accuracy": accuracy, **more}
    return {"before": {"length": 8.0, "accuracy": 0.125}, "after": after}


def result_of(steps: int) -> dict[str, Any]:
    """A result of two arms and two seeds, whose answers are of 10 and 30, and of 20 and 25 tokens."""
    cost = {"tokens": 640.0, "learned": 320.0, "optimiser_steps": 4.0, "seconds": 1.5}
    searching = {"length+search": 5.0, "accuracy+search": 0.75}
    other = {"row": "settings.steps", "own": "4", "other": "2", "kind": "explained", "because": "so"}
    own = {"200": run_of(10.0, 0.25, **searching), "201": run_of(30.0, 0.5, **searching)}
    arms = {
        "self": {"method": "ssrl", "args": {"groups": "4"}, "differs": [], "cost": cost, "seeds": own},
        "loud": {
            "method": "zerosearch",
            "args": {"noise_start": "0.0", "base": "2.0"},
            "differs": [other],
            "cost": cost,
            "seeds": {"200": run_of(20.0, 0.5), "201": run_of(25.0, 0.5)},
        },
    }
    of = {"regime": "search", "model": "tiny-s", "task": "atlas", "task_options": {"hops": [1, 2]}, "samples": 8}
    return {**of, "steps": steps, "starts": [3, 3], "questions": {"200": ["a", "b", "c"]}, "arms": arms}


def test_of_each_arm_stands_what_it_was_given_the_tokens_of_an_answer_and_where_it_began() -> None:
    text = arms_of(result_of(4), "../")
    assert "| `loud` | `zerosearch(noise_start=0.0, base=2.0)` | settings.steps: 2, self 4 (so) |\n" in text
    assert "| `self` | 12.5 → 37.5 | 8.00 → 20.0 | 640 | 320 | 4 | 1.5 |\n" in text  # (10 + 30) / 2 tokens
    assert "| `self` with `search` | 75.0 | 5.00 |  |  |  |  |\n| `loud` | 12.5 → 50.0 | 8.00 → 22.5 | 640 |" in text
    assert "in [`search`](../regimes.md#search), and begin from the same: `tiny-s` after the warm start of" in text
    assert "the seed, one of 1. 3 held-out questions, each sampled 8 times, of `atlas` with `hops=[1, 2]`.\n" in text
    # where nothing was learned there are no costs, and one figure
    still = arms_of({**result_of(0), "starts": []})
    assert "| arm | accuracy, % | tokens an answer |\n" in still and "| `self` | 37.5 | 20.0 |\n" in still
    assert "All arms run in `search`, and begin from the same: `tiny-s`. 3 held-out" in still


def test_a_page_of_experiments_begins_with_the_main_claim() -> None:
    """Of every method that has one; the ledger has the section that is linked to."""
    shipped = [claim_results.SHIPPED_RESULTS]
    ledger = (Path(__file__).parents[2] / "docs" / "ledger.md").read_text()
    for name in claim_results.experimented(shipped):
        said = main_claim(name, shipped, "../")
        result = claim_results.read_result(name, shipped)
        assert result is not None and result["claim"]["because"] in said
        place = name if claim_results.is_decided(result) else "to-be-measured-again"
        assert f"[the ledger](../ledger.md#{place})" in said
        assert f"\n## {place.replace('-', ' ')}\n" in ledger.lower()
    assert "**does not hold here** (`search_unclosed`, 60 steps, 8 seeds)" in main_claim("ssrl", shipped, "../")
    assert "[ssrl.json](../ssrl.json)" in main_claim("ssrl", shipped, None)
    assert "[the ledger](ledger.md#ssrl)" in main_claim("ssrl", shipped, "")
