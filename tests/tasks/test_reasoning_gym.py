"""reasoning-gym's sets: test and training share no question, answers are judged by their own scorers, and none of them
runs code.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from selfteach.cli import main
from selfteach.configuration import task_source
from selfteach.core import BadValue, UnknownName
from selfteach.reward import reasoning, worker_process
from selfteach.reward.answer import exact_match
from selfteach.reward.reasoning import CODE_SETS, harmless, reasoning_score
from selfteach.reward.worker_process import WorkerProcess
from selfteach.tasks.reasoning_gym import EXCLUDED, options_of

SMALL = "min_terms=2,max_terms=2,min_digits=1,max_digits=1"


def test_of_the_sets_that_evaluate_an_answer_only_plain_values_reach_the_scorer():
    for name in CODE_SETS:
        for code in (
            "__import__('os').system('touch x')",
            "[].__class__",
            "9**9**9**9",
            "print(1)",
            "exec('1')",
            "x.y",
        ):
            assert not harmless(name, code), (name, code)
    assert harmless("simple_integration", "-34*x**8/15 - 5*x/4 + C")
    assert harmless("intermediate_integration", "-4*(-2*x - 8)**(3/2)/3 + C")
    assert harmless("intermediate_integration", "-2*x**3*cos(x) + 6*x**2*sin(x) + C")
    assert harmless("binary_matrix", "[[0, 1], [1, 0]]") and harmless("n_queens", "_ Q _\nQ _ _")
    assert harmless("leg_counting", "anything (at) all")


pytest.importorskip("reasoning_gym", reason="the extra selfteach[reasoning] is not installed")


def test_no_question_of_the_test_is_trained_on():
    for options in (
        {"dataset": ("chain_sum",), "config": SMALL},
        {"dataset": ("chain_sum", "leg_counting"), "n_test": 20},
    ):
        source = task_source("reasoning_gym", options)
        assert source.demos is not None
        trained = {source.train(i).prompt for i in range(500)} | {source.demos(i).prompt for i in range(500)}
        assert len({t.prompt for t in source.test}) == len(source.test) >= 20
        assert not trained & {t.prompt for t in source.test}


def test_levels_and_options_make_questions_harder():
    easy, hard = (task_source("reasoning_gym", {"dataset": ("chain_sum",), "level": n}).train(0).prompt for n in (0, 4))
    assert len(hard) > len(easy)
    mixed = task_source("reasoning_gym", {"dataset": ("leg_counting", "chain_sum"), "config": '{"max_animals": 3}'})
    assert [mixed.train(i).tags["dataset"] for i in range(3)] == ["leg_counting", "chain_sum", "leg_counting"]


@pytest.mark.parametrize(
    "name",
    [*sorted(CODE_SETS.keys() - EXCLUDED), "leg_counting", "gcd", "prime_factorization"],
)
def test_its_own_scorer_judges(name):
    tasks = task_source("reasoning_gym", {"dataset": (name,), "n_test": 8}).test
    for task in tasks:
        right = exact_match(answer=f"  {task.answer[0]}\n", task=task)
        assert right.value == 1.0 and right.error is None, task.answer
    task = tasks[0]
    for rubbish in ("xyz", "", None, "__import__('os')"):
        assert exact_match(answer=rubbish, task=task).value == 0.0


def test_partial_scores_are_asked_for():
    source = task_source("reasoning_gym", {"dataset": ("countdown",), "n_test": 1, "partial": True})
    assert 0 < (exact_match(answer="1+1", task=source.test[0]).value or 0) < 1
    verdict = exact_match(
        answer="1+1", task=task_source("reasoning_gym", {"dataset": ("countdown",), "n_test": 1}).test[0]
    )
    assert verdict.value == 0.0 and 0 < verdict.parts["scorer"] < 1


def test_a_scorer_that_hangs_is_killed_and_the_next_call_has_another(tmp_path: Path, monkeypatch):
    task = task_source("reasoning_gym", {"dataset": ("leg_counting",), "n_test": 1}).test[0]
    (tmp_path / "slow.py").write_text(
        "import sys, time\nfor line in sys.stdin:\n    time.sleep(30 if 'hang' in line else 0)\n"
        "    print('{\"score\": 1}', flush=True)\n"
    )
    scorer = WorkerProcess("reward.reasoning_worker", "reasoning-gym")
    popen = worker_process.subprocess.Popen
    monkeypatch.setattr(
        worker_process.subprocess, "Popen", lambda args, **more: popen([args[0], str(tmp_path / "slow.py")], **more)
    )
    monkeypatch.setattr(reasoning, "_scorer", scorer)
    judge = reasoning_score(config=json.dumps({"leg_counting": {}}), seconds=0.5)
    late = judge(answer="hang", task=task)
    assert late.value is None and "killed" in (late.error or "")
    assert judge(answer="4", task=task).value == 1.0
    scorer.stop()


def test_every_set_can_be_made_and_the_others_are_refused_with_the_reason():
    from reasoning_gym.factory import DATASETS

    for name in EXCLUDED:
        with pytest.raises(BadValue, match="is left out, because"):
            options_of(name, None, {}, 0)
    assert len(DATASETS.keys() - EXCLUDED) >= 97
    with pytest.raises(UnknownName, match="did you mean leg_counting"):
        options_of("leg_count", None, {}, 0)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("dataset=leg_countin", "did you mean leg_counting"),
        ("dataset=codeio", "is left out"),
        ("dataset=leg_counting config=max_animal=3", "max_animals"),
        ("dataset=leg_counting config=max_animals=0", "cannot be made"),
        ("dataset=leg_counting level=-1", "level must be a whole number"),
        ("dataset=leg_counting,leg_counting", "each once"),
        ("config={", "is no JSON"),
    ],
)
def test_what_is_wrong_is_one_line(words, why, capsys):
    assert main(["train", "grpo", "--task", "reasoning_gym", "--set", *words.split()]) == 2
    error = capsys.readouterr().err.strip()
    assert why in error and "\n" not in error
