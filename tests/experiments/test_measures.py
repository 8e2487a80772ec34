"""What a run measures for claims: counts by question, curves of sampled accuracy, drawn questions, seconds."""

from __future__ import annotations

import asyncio
import doctest
import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.runs import run_config_of

from selfteach import api, preparation
from selfteach.analysis import learning_curve
from selfteach.analysis.learning_curve import curve, curve_figures
from selfteach.configuration import task_source
from selfteach.loop.evaluate import Result
from selfteach.loop.log import read_events
from selfteach.loop.session import ignore_events


def test_the_examples_in_the_docstrings_are_true():
    found = doctest.testmod(learning_curve)
    assert found.attempted and not found.failed


EVENTS = [
    {"event": "final_eval", "when": "start", "step": 0, "figures": {"accuracy": 0.2, "greedy": 0.1}},
    {"event": "step", "step": 0},
    {"event": "eval", "step": 10, "accuracy": 0.5, "greedy": 0.5, "sampled": 0.4},
    {"event": "eval", "step": 20, "accuracy": 0.9, "greedy": 0.9, "sampled": 0.9},
    {"event": "final_eval", "when": "end", "step": 40, "figures": {"accuracy": 0.8, "greedy": 1.0}},
]


def test_figures_of_a_curve_by_hand():
    assert curve(EVENTS) == [(0, 0.2), (10, 0.4), (20, 0.9), (40, 0.8)]
    names = ["auc", "auc:greedy", "steps_to@0.8", "steps_to@0.95", "steps_to@0.1", "steps_to@0.95:greedy", "accuracy"]
    found = curve_figures(EVENTS, names)
    # sampled: (10 * 0.3 + 10 * 0.65 + 20 * 0.85) / 40; greedy: (10 * 0.3 + 10 * 0.7 + 20 * 0.95) / 40
    assert found["auc"] == pytest.approx(26.5 / 40) and found["auc:greedy"] == pytest.approx(29 / 40)
    # from 0.4 at 10 to 0.9 at 20: 0.8 is four fifths of the way
    assert found["steps_to@0.8"] == pytest.approx(18.0)
    assert found["steps_to@0.95"] == 40.0 and found["steps_to@0.1"] == 0.0  # never; from the start
    assert found["steps_to@0.95:greedy"] == pytest.approx(30.0)
    assert "accuracy" not in found


def test_a_run_without_samples_on_the_way_has_no_area():
    without = [{k: v for k, v in e.items() if k not in ("sampled", "greedy")} for e in EVENTS]
    assert curve_figures(without, ["auc", "steps_to@0.5"]) == {}
    assert curve_figures(without, ["auc:greedy"])["auc:greedy"] == pytest.approx(29 / 40)  # accuracy there is greedy


def test_counts_are_a_digit_a_question():
    assert Result([], [0, 8, 3], [8, 8, 8], []).counts() == "083"
    assert Result([], [10, 35], [35, 35], []).counts() == "az"
    assert Result([], [2, 3], [3, 2], []).counts() == "2-"  # one sample without a verdict
    assert Result([], [36, 35], [40, 40], []).counts() == "-z"


def test_figures_can_be_computed_again_from_counts(tmp_path: Path, mini_folder: Path):
    run_config = run_config_of(mini_folder, steps=4, eval_every=2, eval_samples=3, task_options={"n_test": 12})
    run_config = replace(
        run_config, final_eval=api.EvalConfig(tasks=5, pass_at_k_tasks=0, k=0, decoder_samples=4, seed=7)
    )
    run = api.train(run_config, tmp_path / "run")
    told = json.loads((run.folder / "figures.json").read_text())
    for when in ("before", "after"):
        counts, figures = told["counts"][when], told[when]
        assert len(set(counts["questions"])) == 5 and max(counts["questions"]) < 12 and counts["samples"] == 4
        assert counts["questions"] != list(range(5))
        sampled = [int(c, 36) for c in counts["sampled"]]
        assert len(sampled) == 5 and sum(sampled) / 20 == pytest.approx(figures["accuracy"])
        assert sum(map(int, counts["greedy"])) / 5 == pytest.approx(figures["greedy"])
    assert told["counts"]["before"]["questions"] == told["counts"]["after"]["questions"]
    evals = [e for e in read_events(run.folder / "log") if e["event"] == "eval"]
    assert [e["step"] for e in evals] == [2] and {"greedy", "sampled", "accuracy"} <= evals[0].keys()
    assert 0 < told["seconds"]["training"] < told["seconds"]["all"]


def test_questions_are_drawn_by_their_seed_alone(mini_folder: Path):
    def asked(**change):
        run_config = run_config_of(mini_folder, task_options={"n_test": 30}).override(**change)
        source = task_source(run_config.task, run_config.task_options)
        start = asyncio.run(preparation.start_model(run_config, source, ignore_events))
        session = preparation.make_session(run_config, source, start, None, ignore_events)
        return [t.id for t in session.test_tasks()]

    one = asked(final_eval_seed=3)
    assert one == asked(final_eval_seed=3, seed=9) and sorted(one) == sorted(asked()) and len(set(one)) == 30
    assert one != asked(final_eval_seed=4) and asked() == [f"test/{i}" for i in range(30)]


def test_seconds_of_training_end_a_run_and_are_counted_on_after_a_resume(tmp_path: Path, mini_folder: Path):
    run_config = run_config_of(mini_folder, steps=10_000, max_seconds=0.5, eval_every=0)
    run = api.train(run_config, tmp_path / "run")
    took = run.figures["seconds"]["training"]
    assert run.done and 1 <= run.figures["steps"] < 10_000 and 0.5 <= took < 30
    longer = run_config.override(max_seconds=took + 0.1)
    (run.folder / "config.json").write_text(json.dumps(longer.to_json()))
    (run.folder / "figures.json").unlink()
    more = api.resume(run.folder)
    assert more.figures["steps"] > run.figures["steps"] and took + 0.1 <= more.figures["seconds"]["training"] < took + 5
