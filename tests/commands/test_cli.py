"""The command line: help that teaches, mistakes answered in one line, JSON for machines, progress, and one tiny run in
a process of its own.
"""

from __future__ import annotations

import inspect
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, fields
from pathlib import Path
from typing import Literal

import pytest
from support.caches import own_cache

from selfteach import api, training
from selfteach.cli import COMMANDS, main
from selfteach.commands import arguments
from selfteach.commands.arguments import assignments, convert
from selfteach.commands.common import read_method
from selfteach.configuration import plan
from selfteach.core import SelfteachError, registry
from selfteach.loop.settings import SETTING_GROUPS
from selfteach.progress import Lines, Progress, step_summary


@pytest.fixture
def out(capsys):
    """Run a command in this process: (exit code, stdout, stderr)."""

    def run(*words: str) -> tuple[int, str, str]:
        code = main(list(words))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


# ---- help


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_teaches(out, command):
    code, text, _ = out(command, "--help")
    assert code == 0 and "examples:" in text and "what comes out:" in text and "--json" in text
    assert text.count(f"selfteach {command}") >= 2


@pytest.mark.parametrize("words", [[], ["--help"], ["help"]])
def test_the_front_page_names_every_command(out, words):
    code, text, _ = out(*words)
    assert code == 0 and all(f"  {c} " in text for c in COMMANDS)


def test_a_method_shows_its_own_page(out):
    code, text, _ = out("train", "grpo", "--help")
    assert (
        code == 0
        and "--rollouts N" in text
        and "(default: 8)" in text
        and "A_i  = (r_i - mean(r)) / std(r)" in text
        and "update.term.0" in text
    )


def test_every_method_has_a_page(out):
    for name in registry.methods:
        assert out("train", name, "--help")[0] == 0


def test_every_setting_is_explained():
    for _, cls in SETTING_GROUPS.values():
        assert all(f.metadata["help"] and f.metadata["help"][:40] in cls.__doc__ for f in fields(cls))


def test_version(out):
    assert out("--version")[1].startswith("selfteach 0.")


def test_python_m_selfteach_is_the_command():
    done = subprocess.run([sys.executable, "-m", "selfteach", "--version"], capture_output=True, text=True)
    assert done.stdout.startswith("selfteach 0.") and done.returncode == 0


# ---- mistakes


MISTAKES = [
    ("trian", "no command is called 'trian'; did you mean train?"),
    ("train", "a method is missing"),
    ("train grppo", "no method is called 'grppo'; did you mean grpo"),
    ("train grpo --betta 3", "no option is called --betta; did you mean --beta"),
    ("train grpo --steps many", "--steps: must be a whole number, not 'many'"),
    ("train grpo --decay up", "--decay: must be one of constant, linear, cosine, not 'up'"),
    ("train m2po --budget 0.04", "budget: both a hyper-parameter of m2po and a setting of the run"),
    ("train ttrl --keep 16", "(train: --method.keep) or --run.keep"),
    ("train spiral --decay 3", "decay: both a hyper-parameter"),
    ("train grpo --steps 3 --run.steps 4", "steps: given twice"),
    ("compare grpo guide --steps 3", "guide:steps=..."),
    ("reproduce guide --steps 3", "guide:steps=..."),
    ("reproduce grpo --run.seed 3", "takes --seeds N"),
    ("train grpo --keep 0", "keep: must be at least 1, not 0"),
    ("train grpo --task chain_sam", "no task is called 'chain_sam'; did you mean chain_sum?"),
    ("train grpo --task chain_sum --set tems=2,3", "no option of task chain_sum is called 'tems'; did you mean terms"),
    ("train grpo --task chain_sum --set digits=two", "digits must be a whole number, not 'two'"),
    ("train grpo --task chain_sum --set digits", "'digits' is not KEY=VALUE"),
    ("train grpo rloo", "'rloo' is not expected here"),
    ("train grpo --task.hops 2", "(an option of the task: --set hops=...)"),
    ("train grpo --task atlas hops=2", "(an option of the task: --set hops=2)"),
    ("train --betta 3 grpo", "comes first"),
    ("train grpo:beta=much", "beta must be a number, not 'much'"),
    ("train grpo:bet=1", "no hyper-parameter of grpo is called 'bet'; did you mean beta"),
    ("train missing.py:mine", "missing.py: no such file"),
    ("train --resume nowhere", "nowhere: holds no run"),
    ("train grpo --resume run --lr 1", "leave out grpo, --lr"),
    ("train --config nowhere.json", "nowhere.json: cannot be read"),
    ("train grpo --config run/config.json", "leave grpo out"),
    ("train --config run/config.json --task atlas", "--task cannot go with --config"),
    ("eval", "RUN"),
    ("eval nowhere", "nowhere is neither a run's folder nor a method"),
    ("eval grpo --model tiny --task nothing", "nothing"),
    ("eval nowhere --k -1", "k: must be at least 0, not -1"),
    ("compare grpo --seed 3", "takes --seeds N"),
    ("compare grpo --seeds 0", "--seeds must be 1 or more"),
    ("reproduce grpo_trl", "makes no claim"),
    ("reproduce grpo --seeds 0", "seeds must be 1 or more"),
    ("reproduce grpo --seed 3", "takes --seeds N"),
    ("reproduce", "which claim? name a method, or give --all"),
    ("reproduce grpo --all", "--all is every method; leave the names out"),
    ("reproduce ssrl grpo --full", "--full is of one method; name one alone"),
    ("reproduce --all --tune lr=1,2", "--tune is of one method"),
    ("reproduce grpo dapo:high=0.3", "leave out what follows the name"),
    ("methods grppo", "did you mean grpo"),
    ("methods --family objectiv", "no family is called 'objectiv'; did you mean objective?"),
    ("methods --diff grpo", "needs a NAME"),
    ("tasks atlass", "no task is called 'atlass'; did you mean atlas?"),
    ("models extra", "'extra' is not expected here"),
    ("ledger --results nowhere", "nowhere: no such folder"),
    ("regimes bandit_smal", "no regime is called 'bandit_smal'; did you mean bandit_small?"),
    ("regimes --measure", "--measure needs the NAME of a regime, or --all"),
    ("regimes --all", "--all goes with --measure and without a NAME"),
    ("regimes bandit_small --all --measure", "--all goes with --measure and without a NAME"),
    ("regimes bandit_small --jobs 2", "--jobs needs a NAME and --measure"),
    ("regimes bandit_small --first-seed 2", "--first-seed needs a NAME and --measure"),
    ("regimes bandit_small --measure --seeds 0", "0 seeds from 0 on are not any of the tuning seeds, 0 to 99"),
    ("regimes bandit_small --measure --first-seed 95", "8 seeds from 95 on are not 8 of the tuning seeds"),
    ("regimes bandit_small --measure --results x", "leave --results out"),
    ("regimes bandit_small --page x.md", "--page is of all regimes; leave bandit_small out"),
    ("regimes --results nowhere", "nowhere: no such folder"),
]


@pytest.mark.parametrize(("words", "message"), MISTAKES)
def test_a_mistake_is_answered_in_one_line(out, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    code, text, error = out(*words.split())
    assert code == 2 and message in error and error.count("\n") == 1 and "Traceback" not in error and not text
    assert not list(tmp_path.iterdir())


def test_a_run_folder_that_was_not_used_does_not_stay(out, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def fail(*_, **__):
        raise SelfteachError("no")

    monkeypatch.setattr(training, "carry_out", fail)
    assert out("train", "grpo", "--task", "chain_sum")[0] == 2
    assert not list((tmp_path / "runs").iterdir())


# ---- values


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("3", int, 3),
        ("1e3", int, 1000),
        ("1e-4", float, 1e-4),
        ("no", bool, False),
        ("true", bool, True),
        ("2,4", tuple[int, int], (2, 4)),
        ("(1, 2, 3)", tuple[int, ...], (1, 2, 3)),
        ("capital,currency", tuple[str, ...], ("capital", "currency")),
        ("none", int | None, None),
        ("7", int | None, 7),
        ("b", Literal["a", "b"], "b"),
        ("2", Literal[1, 2], 2),
        ("text", str, "text"),
    ],
)
def test_values_are_read_by_their_kind(text, kind, value):
    assert convert(text, kind) == value


@pytest.mark.parametrize(
    ("text", "kind"),
    [("1.5", int), ("x", float), ("maybe", bool), ("1,2,3", tuple[int, int]), ("c", Literal["a", "b"])],
)
def test_a_value_of_the_wrong_kind_is_refused(text, kind):
    with pytest.raises((ValueError, KeyError)):
        convert(text, kind)


def test_task_options_are_typed_by_the_task():
    known = inspect.signature(registry.tasks.get("chain_sum"), eval_str=True).parameters
    assert assignments("option", ["terms=2,3", "noise=0.1", "style=terse"], known) == {
        "terms": (2, 3),
        "noise": 0.1,
        "style": "terse",
    }


def test_options_that_lines_of_a_docstring_explain():
    assert arguments.doc_options("Title.\n\nterms   how many\n        numbers\nseed  of it") == {
        "terms": "how many",
        "seed": "of it",
    }


def test_a_method_may_carry_hyperparameters_and_come_from_a_file(tmp_path):
    entry, args, used = read_method("grpo:beta=0.04,rollouts=4")
    assert entry.name == "grpo" and args == {"beta": 0.04, "rollouts": 4} and used == ()
    file = tmp_path / "mine.py"
    file.write_text(
        "from selfteach.core import method\nfrom selfteach.methods.grpo import grpo\n"
        "@method(family='objective')\ndef cli_test_mine(clip: float = 0.3):\n    '''Mine.'''\n    return"
        " grpo(clip=clip)\n"
    )
    entry, args, used = read_method(f"{file}:cli_test_mine:clip=0.1")
    assert entry.name == "cli_test_mine" and args == {"clip": 0.1} and used == (str(file),)
    del registry.methods._entries["cli_test_mine"]


@pytest.fixture
def planned(monkeypatch, tmp_path):
    """The job that `selfteach train ...` would do, which is then refused."""
    seen = []

    def train(run_config, *_, **__):
        seen.append(run_config)
        raise SelfteachError("enough")

    monkeypatch.setattr(training, "carry_out", train)
    monkeypatch.chdir(tmp_path)

    def plan(*words: str):
        assert main(["train", *words]) == 2
        return seen.pop()

    return plan


def test_options_reach_the_method_the_task_and_the_run(planned):
    run_config = planned(
        "grpo",
        "--task",
        "chain_sum",
        "--set",
        "terms=2,3",
        "noise=0.2",
        "--clip",
        "0.3",
        "--grad-clip",
        "2",
        "--lr",
        "1e-5",
        "--steps",
        "7",
    )
    assert (
        run_config.method.args == {"clip": 0.3}
        and run_config.settings.grad_clip == 2.0
        and run_config.settings.lr == 1e-5
        and run_config.settings.steps == 7
    )
    assert run_config.task_options == {"terms": (2, 3), "noise": 0.2} and run_config.task == "chain_sum"


def test_words_may_come_in_any_order_and_flags_in_three_ways(planned):
    assert planned("--steps", "3", "ssrl", "--no-mask").method.args == {"mask": False}
    assert planned("ssrl", "--mask", "no", "--warm-steps", "5").warm.steps == 5
    assert planned("ssrl", "--mask").method.args == {"mask": True}


def test_a_name_that_method_and_run_share_is_shown_with_what_it_belongs_to(planned):
    run_config = planned("m2po", "--method.budget", "0.5", "--run.budget", "1e5", "--run.lr", "1e-5")
    assert (
        run_config.method.args == {"budget": 0.5}
        and run_config.settings.budget == 100_000
        and run_config.settings.lr == 1e-5
    )
    assert planned("spiral:decay=0.5", "--run.decay", "linear").settings.decay == "linear"


def test_a_configuration_is_done_again_with_changes(planned, tmp_path):
    run_config = plan("grpo", "chain_sum", {"terms": (2, 3)}, args={"clip": 0.3}, steps=9)
    (tmp_path / "config.json").write_text(json.dumps(run_config.to_json()))
    again = planned("--config", "config.json", "--seed", "5", "--final-eval-k", "0")
    assert again == run_config.override(seed=5, final_eval_k=0) and again.settings.steps == 9
    run_config = plan("ttrl", "chain_sum", settings={"keep": 3})
    (tmp_path / "config.json").write_text(json.dumps(run_config.to_json()))
    assert planned("--config", "config.json", "--run.keep", "5").settings.keep == 5
    assert main(["train", "--config", "config.json", "--keep", "5"]) == 2


# ---- lists


def test_methods_as_json(out):
    code, text, _ = out("methods", "--json")
    found = {m["name"]: m for m in json.loads(text)}
    assert code == 0 and set(found) == set(registry.methods)
    assert all({"name", "family", "catalogue", "paper", "claim", "verdict"} <= m.keys() for m in found.values())
    assert found["ssrl"]["catalogue"] == [1] and found["ssrl"]["claim"]["checks"] and found["ssrl"]["claim"]["because"]


def test_a_verdict_is_found_in_the_results(out, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    results = {
        "method": "grpo",
        "family": "objective",
        "paper": "x",
        "claim": {},
        "verdict": "holds",
        "checks": [asdict(c) for c in registry.methods.get("grpo").claim.checks],
        "steps": 1,
        "seeds": [],
        "task": "t",
        "format": 2,
        "regime": "offset",
    }
    (tmp_path / "results" / "grpo.json").write_text(json.dumps(results))
    assert next(m for m in json.loads(out("methods", "--json")[1]) if m["name"] == "grpo")["verdict"] == "holds"


def test_one_method_and_a_difference(out):
    text = out("methods", "dr_grpo")[1]
    assert "constant_length(limit=128)" in text and "accuracy of self is at most 0.03 below that of grpo" in text
    rows = json.loads(out("methods", "dr_grpo", "--diff", "grpo", "--json")[1])
    assert {r["place"] for r in rows} == {"credit.1", "update.term.0"}
    assert json.loads(out("methods", "grpo", "--json")[1])["value"]["kind"] == "Method"


def test_a_hyper_parameter_is_shown_as_the_option_that_train_takes(out):
    text = out("methods", "m2po")[1]  # `budget` is a setting of the run too, `groups` is not
    assert "  --method.budget " in text and "  --budget " not in text and "  --groups " in text


def test_tasks_and_models(out):
    found = {t["name"]: t for t in json.loads(out("tasks", "--json")[1])}
    assert {"atlas", "factworld", "chain_sum"} <= set(found) and found["chain_sum"]["options"]["terms"]["doc"]
    one = json.loads(out("tasks", "chain_sum", "--set", "terms=2,2", "--json")[1])
    assert one["example"]["prompt"].startswith("compute:") and one["about"]
    assert "a held-out task" in out("tasks", "chain_sum")[1]
    assert {m["name"] for m in json.loads(out("models", "--json")[1])} >= {"tiny", "tiny-s"}
    for command in ("methods", "tasks", "models"):
        assert out(command)[0] == 0


# ---- progress


def test_plain_progress_tells_the_first_last_and_now_and_then_with_time_left():
    stream, now = io.StringIO(), [0.0]
    seen = Progress(Lines(stream, every=5.0, clock=lambda: now[0]))
    for step in range(20):
        seen(
            {
                "event": "step",
                "step": step,
                "steps": 20,
                "reward/mean": 0.5,
                "rollout/length_mean": 30.0,
                "tokens_per_s": 200.0,
            }
        )
        now[0] += 1.0
    lines = stream.getvalue().splitlines()
    assert lines[0] == "steps 1/20: reward 0.50, length 30, 200 tok/s"
    assert lines[1].startswith("steps 6/20, 14 s left") and lines[-1].startswith("steps 20/20") and len(lines) == 5


def test_progress_hears_every_event_of_a_run():
    stream = io.StringIO()
    seen = Progress(Lines(stream, every=0.0))
    events = [
        {"event": "arm", "arm": "grpo", "seed": 100, "number": 1, "total": 2, "reused": False},
        {"event": "source", "task": "atlas", "facts": 10},
        {"event": "warm_found", "folder": "x"},
        {"event": "warm_step", "step": 0, "steps": 2, "policy/loss": 1.5},
        {"event": "start", "folder": "runs/a-1", "resumed": True, "step": 3, "model": {"parameters": 2_000_000}},
        {"event": "measuring", "when": "start", "what": "own program, greedy", "done": 1, "total": 2},
        {"event": "final_eval", "when": "start", "step": 0, "figures": {"greedy": 0.25, "accuracy": 0.2}},
        {"event": "step", "step": 0, "steps": 2, "reward/mean": None, "policy/loss": 0.5},
        {"event": "eval", "step": 1, "accuracy": 0.5},
        {"event": "stopping"},
        {"event": "something new"},
    ]
    for event in events:
        seen(event)
    text = stream.getvalue()
    assert (
        "[1/2] grpo, seed 100" in text
        and "grpo seed 100: steps 1/2" in text
        and "continues after step 3" in text
        and "held-out 25 %" in text
    )
    assert step_summary({"reward/mean": 0.5, "policy/logprob_mismatch_mean": 1e-6}, 0.4) == (
        "reward 0.50, held-out 40 %, mismatch 1e-06"
    )


def test_kernels_that_torch_computes_are_said_of_a_run_alone():
    kernels = {"decode.cpp": "torch: SELFTEACH_NATIVE is 0", "layer_ops.cpp": "ab12"}
    stream = io.StringIO()
    Progress(Lines(stream, every=0.0))({"event": "kernels", "kernels": kernels})
    assert "kernels: decode.cpp computed by torch, slower (SELFTEACH_NATIVE is 0)" in stream.getvalue()


def test_an_evaluation_that_cannot_be_believed_is_no_figure_and_no_success(out, tmp_path, mini_folder):
    file = tmp_path / "broken_judge.py"
    file.write_text(
        "from dataclasses import replace\n"
        "from selfteach.core import TaskSource, block, registry, task\n"
        "@block\n"
        "def judge_that_is_down(*, answer):\n"
        "    raise ValueError('the judge is down')\n"
        "@task\n"
        "def unjudged() -> TaskSource:\n"
        "    source = registry.tasks.get('bandit')()\n"
        "    return replace(source, defaults={**source.defaults, 'judge': judge_that_is_down()})\n"
    )
    words = f"eval bandit_reinforce --use {file} --task unjudged --model {mini_folder} --tasks 4 --k 0 --threads 1"
    code, printed, error = out(*words.split(), "--json")
    assert code == 2 and not printed and "cannot be believed" in error and error.count("the judge is down") == 4
    code, printed, error = out(*words.split(), "--json", "--max-unscored", "1")
    figures = json.loads(printed)["figures"]
    assert code == 0 and figures["unscored"] == 20 and figures["greedy"] is figures["accuracy"] is None
    assert "own program: 20 answers have no score" in error and "Traceback" not in error


# ---- the whole way, in a process of its own


RUN = (
    "--task chain_sum --model tiny-s --steps 2 --warm-steps 2 --groups 2 --rollouts 4 --max-tokens 24"
    " --eval-every 1 --eval-tasks 4 --max-unscored 1"
)
TINY = (
    f"{RUN} --final-eval-tasks 6 --final-eval-pass-at-k-tasks 2 --final-eval-k 4"
    " --final-eval-decoder-samples 1 --threads 1"
).split()


def with_own_cache(folder: Path) -> dict[str, str]:
    return {**os.environ, "SELFTEACH_CACHE": str(own_cache(folder)), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A tiny run by the command line: (its working folder, its process)."""
    folder = tmp_path_factory.mktemp("cli")
    words = [sys.executable, "-m", "selfteach.cli", "train", "grpo", *TINY, "--json"]
    env = with_own_cache(folder)
    return folder, subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=120)


def test_train_ends_with_one_line_of_json_and_leaves_a_model(trained):
    folder, result = trained
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("\n") == 1
    last = json.loads(result.stdout)
    run = folder / last["folder"]
    assert last["done"] is True and last["folder"] == "runs/grpo-1" and {"before", "after"} <= last["figures"].keys()
    assert {"accuracy", "greedy", "pass@1", "pass@4"} <= last["figures"]["after"].keys()
    assert (
        (run / "last" / "model.safetensors").is_file()
        and (run / "curves.png").is_file()
        and "steps 2/2" in result.stderr
    )


def test_what_was_trained_is_measured_and_resumed(trained, out, monkeypatch):
    monkeypatch.chdir(trained[0])
    given = ("--model", "runs/grpo-1/last", "--k", "0", "--tasks", "2", "--decoder-samples", "0")
    _, cold, _ = out("eval", "grpo", "--task", "chain_sum", *given, "--json")
    assert 0 <= json.loads(cold.splitlines()[-1])["figures"]["greedy"] <= 1
    code, found, error = out("eval", "runs/grpo-1", "--k", "2", "--tasks", "4", "--pass-at-k-tasks", "2", "--json")
    assert code == 0, error
    assert {"accuracy", "pass@2"} <= json.loads(found)["figures"].keys()
    code, again, _ = out("train", "--resume", "runs/grpo-1", "--json")
    assert code == 0 and json.loads(again)["done"] is True


def test_a_run_is_given_more_steps_and_never_fewer(trained, tmp_path, out, monkeypatch):
    run = shutil.copytree(trained[0] / "runs" / "grpo-1", tmp_path / "run", symlinks=True)
    monkeypatch.chdir(tmp_path)
    code, _, fewer = out("train", "--resume", "run", "--steps", "1")
    assert code == 2 and "steps=1, and run has 2 behind it; give more to go on" in fewer
    assert "Traceback" not in fewer and json.loads((run / "config.json").read_text())["settings"]["steps"] == 2
    code, more, error = out("train", "--resume", "run", "--steps", "3", "--json")
    assert code == 0, error
    assert json.loads(more.splitlines()[-1])["figures"]["steps"] == 3
    assert (run / "log" / "events.jsonl").read_text().count('"event": "step"') == 3


def test_a_folder_of_another_run_and_a_tool_that_is_not_there_are_refused(trained, out, monkeypatch):
    monkeypatch.chdir(trained[0])
    code, _, error = out("train", "grpo", "--task", "chain_sum", "--out", "runs/grpo-1")
    assert code == 2 and "another configuration" in error
    code, _, error = out("eval", "runs/grpo-1", "--decoder", "search")
    assert code == 2 and "no decoder besides" in error


@pytest.mark.parametrize("number,code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_with_a_checkpoint_and_says_how_to_continue(number, code, tmp_path):
    env = {**with_own_cache(tmp_path), "PYTHONUNBUFFERED": "1"}
    words = ["train", "grpo", *TINY, "--steps", "5000", "--eval-every", "0", "--out", "a run"]
    process = subprocess.Popen(
        [sys.executable, "-m", "selfteach.cli", *words], cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True
    )
    log = tmp_path / "a run" / "log" / "events.jsonl"
    deadline = time.monotonic() + 60
    while (
        time.monotonic() < deadline
        and process.poll() is None
        and not (log.exists() and '"event": "step"' in log.read_text())
    ):
        time.sleep(0.1)
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    assert process.returncode == code, error
    assert "continue with: selfteach train --resume 'a run'" in error and "Traceback" not in error
    steps = (tmp_path / "a run" / "log" / "events.jsonl").read_text().count('"event": "step"')
    assert steps and (tmp_path / "a run" / "last").resolve().name == f"{steps:06d}"


def test_the_python_api_has_what_it_lists():
    import selfteach as door

    for name in door.__all__:
        assert getattr(door, name) is not None
    assert door.train is api.train and door.__version__
    with pytest.raises(AttributeError):
        _ = door.nothing


@pytest.mark.parametrize("words", ["methods", "methods --json", "tasks", "models", "train --help", "train ssrl --help"])
def test_what_there_is_is_listed_without_torch(words: str):
    code = f"import sys; from selfteach.cli import main; main({words.split()!r}); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60).returncode == 0


def test_an_error_is_one_line_whatever_it_repeats(capsys: pytest.CaptureFixture[str]):
    assert main(["ledger", "--results", "a\nb\x1b[31m"]) == 2
    assert capsys.readouterr().err.startswith("selfteach: a\\nb\\x1b[31m: no such folder; ")


@pytest.mark.parametrize(
    "words", [["show", "x", "--best=--"], ["view", "x", "--port=--"], ["train", "grpo", "--lr=--"]]
)
def test_two_dashes_are_no_value(words: list[str], capsys: pytest.CaptureFixture[str]):
    assert main(words) == 2
    assert "-- is no value that can be given" in capsys.readouterr().err
