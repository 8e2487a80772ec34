"""Rules of a run's health: each speaks where it should, and none where a run goes well."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.runs import run_config_of, same_run

import selfteach
from selfteach import api
from selfteach.analysis.health import RECOVERED, HealthWatch, warnings_of
from selfteach.analysis.health_rules import ADVICE, RULES
from selfteach.loop.log import read_events

LOGS = json.loads((Path(__file__).parents[1] / "data" / "health_logs.json").read_text())
HEALTHY = {
    "rollout/episodes": 128,
    "rollout/groups": 16,
    "rollout/mixed_group_fraction": 0.8,
    "rollout/truncated_fraction": 0.02,
    "rollout/length_mean": 30.0,
    "rollout/tool_calls_mean": 1.0,
    "rollout/failed_episodes": 0,
    "rollout/unscored": 0,
    "reward/mean": 0.4,
    "policy/entropy_estimate": 0.5,
    "policy/logprob_mismatch_mean": 1e-6,
    "policy/grad_norm": 0.2,
    "policy/approx_kl": 0.01,
    "policy/clip_fraction": 0.1,
    "policy/loss/kl": 0.001,
    "policy/optimiser_steps": 4.0,
}
Series = Callable[[int], float]


def steps(count: int = 20, evaluations: Mapping[int, Mapping[str, Any]] | None = None, **series: Any) -> list[Any]:
    """Events of a run whose metrics are healthy but for some; names with __ for /."""
    out: list[Any] = []
    for n in range(count):
        if evaluations and n in evaluations:
            out.append({"event": "eval", "step": n, "questions": 96, **evaluations[n]})
        own = {k.replace("__", "/"): v(n) if callable(v) else v for k, v in series.items()}
        row = {k: v for k, v in {**HEALTHY, **own}.items() if v is not None}
        # A little up and down, as in any run; a healthy reward rises.
        row |= {} if "reward__mean" in series else {"reward/mean": 0.4 + 0.01 * n + 0.02 * (n % 3)}
        out.append({"event": "step", "step": n, "stage": "main", **row})
    return out


def warned(events: list[Any]) -> dict[str, int]:
    """Rule -> the step at which it first spoke."""
    watch, out = HealthWatch(), {}
    for event in events:
        for found in watch(event):
            if found["event"] == "warning":
                out.setdefault(found["rule"], found["step"])
    return out


def after(step: int, value: float, before: float) -> Series:
    return lambda n: value if n >= step else before


FALLS = {4: {"accuracy": 0.6}, 8: {"accuracy": 0.62}, 12: {"accuracy": 0.3}, 16: {"accuracy": 0.25}}
SICK: Mapping[str, list[Any]] = {
    "constant_reward": steps(reward__mean=0.0, rollout__mixed_group_fraction=0.0),
    "groups_alike": steps(rollout__mixed_group_fraction=0.03, reward__mean=lambda n: 0.02 + 0.001 * (n % 2)),
    "no_gradient": steps(policy__grad_norm=None, policy__optimiser_steps=0.0),
    "entropy_collapse": steps(policy__entropy_estimate=after(10, 0.02, 0.5), reward__mean=lambda n: 0.3 - 1e-4 * n),
    "entropy_rise": steps(policy__entropy_estimate=after(10, 3.0, 0.5)),
    "truncated": steps(rollout__truncated_fraction=after(10, 0.5, 0.02)),
    "longer_not_better": steps(rollout__length_mean=lambda n: 30.0 + 10 * n, reward__mean=lambda n: 0.3 - 1e-4 * n),
    "logprob_mismatch": steps(policy__logprob_mismatch_mean=lambda n: 1e-6 * 3**n if n < 10 else 0.02),
    "reward_hacked": steps(evaluations=FALLS),
    "accuracy_fall": steps(evaluations=FALLS, reward__mean=0.4),
    "gradient_rise": steps(policy__grad_norm=after(10, 5.0, 0.2)),
    "kl_rise": steps(policy__approx_kl=after(10, 0.5, 0.01)),
    "clipped": steps(policy__clip_fraction=after(10, 0.8, 0.1), policy__approx_kl=after(10, 0.1, 0.01)),
    "policy_stands_still": steps(policy__approx_kl=0.0, policy__clip_fraction=0.0),
    "failing": steps(rollout__failed_episodes=5),
    "tools_unused": steps(rollout__tool_calls_mean=after(10, 0.0, 1.0)),
    "reward_fall": steps(reward__mean=after(10, 0.1, 0.8)),
}


@pytest.mark.parametrize("rule", [rule.name for rule in RULES])
def test_each_rule_speaks_of_what_it_is_for_and_no_other_does(rule):
    assert warned(SICK[rule]).keys() == {rule}


def test_a_healthy_run_is_left_alone():
    assert not warned(steps(60)) and not warned(steps(3))
    solved = steps(40, {10: {"accuracy": 0.95}}, reward__mean=lambda n: min(1.0, 0.2 + 0.05 * n))
    for event in solved:
        if event["event"] == "step" and event["step"] > 17:  # all is right: groups are alike and nothing is uncertain
            event |= {"rollout/mixed_group_fraction": 0.0, "policy/entropy_estimate": 0.001, "policy/grad_norm": 0.0}
    assert not warned(solved)


def test_what_looks_sick_and_is_not():
    assert not warned(steps(rollout__length_mean=lambda n: 30.0 + 10 * n))  # longer, and better
    assert not warned(steps(policy__grad_norm=lambda n: 5.0 if n == 12 else 0.2))  # one step alone
    assert not warned(steps(rollout__mixed_group_fraction=0.0, rollout__episodes=16))  # no groups to compare in
    assert not warned(steps(rollout__mixed_group_fraction=0.0, critic__grad_norm=0.1, reward__mean=lambda n: 0.01 * n))
    assert not warned(steps(policy__clip_fraction=0.7))  # of sequences
    assert not warned(steps(policy__grad_norm=after(10, 0.2, 0.002)))  # small, and smaller before
    curriculum = steps(reward__mean=after(10, 0.1, 0.8), select__difficulty=2.0)
    assert not warned(curriculum)
    dip = {k: {"accuracy": 0.62 if k < 12 else 0.5} for k in FALLS}  # within the noise of 96 questions
    assert not warned(steps(evaluations=dip))
    flatter = {k: {"accuracy": 0.95 if k < 12 else 0.75} for k in FALLS}  # greedy answers of a policy that learns
    assert not warned(steps(evaluations=flatter))
    sampled = {k: {"accuracy": 0.9, "greedy": 0.9, "sampled": 0.6 if k < 12 else 0.3} for k in FALLS}
    assert warned(steps(evaluations=sampled)).keys() == {"reward_hacked"}


def test_a_warning_is_given_once_and_ends():
    watch, out = HealthWatch(), list[Any]()
    for event in steps(40, rollout__truncated_fraction=lambda n: 0.9 if 5 <= n < 12 else 0.0):
        out += watch(event)
    assert [e["event"] for e in out] == ["warning", "warning_over"]
    held = [e["step"] for e in out]
    (found,) = warnings_of(out)
    assert (found.step, found.until) == tuple(held) and found.advice == ADVICE["truncated"]
    assert held[1] - 13 == RECOVERED and "--max-tokens" in str(found)


def test_stages_are_compared_with_themselves():
    events = [e | {"stage": "ab"[n % 2], "policy/grad_norm": (0.1, 9.0)[n % 2]} for n, e in enumerate(steps(40))]
    assert not warned(events)


def test_a_watch_that_reads_what_was_logged_says_nothing_twice():
    events, watch = SICK["truncated"], HealthWatch()
    log = [e for event in events for e in [event, *watch(event)]]
    resumed = HealthWatch()
    for event in log:
        resumed(event)
    more = [e | {"step": 20 + n} for n, e in enumerate(steps(10, rollout__truncated_fraction=0.5))]
    assert not [e for event in more for e in resumed(event)]


@pytest.mark.parametrize("name", LOGS)
def test_logs_of_real_runs(name):
    """Metrics of short runs as they were measured, with the rules that were to speak."""
    log = LOGS[name]
    assert warned(log["events"]).keys() == set(log["rules"])


def test_a_run_logs_its_warnings_and_is_the_same_run(mini_folder, tmp_path, monkeypatch):
    config = run_config_of(mini_folder, max_idle_steps=50)
    seen: list[Any] = []
    run = api.train(config, tmp_path / "run", seen.append, progress=False)
    expected = [w for w in seen if w["event"].startswith("warning")]
    logged = [e for e in read_events(run.folder / "log") if e["event"].startswith("warning")]
    assert logged == expected and selfteach.load(run.folder).warnings == warnings_of(logged)
    assert [w.rule for w in run.warnings] == ["truncated"]  # five tokens are all that it may say
    with monkeypatch.context() as without:
        without.setattr(HealthWatch, "__call__", lambda self, event: [])
        api.train(config, tmp_path / "other", progress=False)
    same_run(run.folder, tmp_path / "other")
