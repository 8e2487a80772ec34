"""Trackers: the same metrics under the same names, each step once, whatever becomes of the run or of the tracker."""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.runs import STEPS, run_config_of, same_run

from selfteach import api, tracking
from selfteach.cli import main
from selfteach.core import BadValue, UnknownName
from selfteach.loop.log import read_events
from selfteach.tracking import feed
from selfteach.tracking.feed import evaluation_in

Curves = Mapping[str, list[tuple[int, float]]]
STOPPED_AT = 5


class Stop(RuntimeError):
    """What ends a run in the middle."""


def stop_in_the_middle(event: Mapping[str, Any]) -> None:
    if event["event"] == "step" and event["step"] == STOPPED_AT:
        raise Stop


def read_jsonl(folder: Path) -> tuple[Curves, int]:
    curves: dict[str, list[tuple[int, float]]] = {}
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        for name, value in row.items():
            if name != "step" and "warning" not in row:
                curves.setdefault(name, []).append((row["step"], value))
    return curves, len({json.loads(x)["step"] for x in (folder / "completions.jsonl").read_text().splitlines()})


def read_tensorboard(folder: Path) -> tuple[Curves, int]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    seen = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0}).Reload()
    curves = {name: [(e.step, e.value) for e in seen.Scalars(name)] for name in seen.Tags()["scalars"]}
    assert "config/text_summary" in seen.Tags()["tensors"]
    return curves, len(seen.Tensors("completions/text_summary"))


def wandb_records(file: Path) -> list[Any]:
    """The records of an offline file: LevelDB's log format after a header of 7 bytes, each a message of wandb's own."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, parts, found = file.read_bytes(), 7, b"", []
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:  # no room for a header: the rest of the block is zeros
            at += 32768 - at % 32768
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        parts += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last of its parts
            found.append(Record.FromString(parts))
            parts = b""
    return found


def read_wandb(folder: Path) -> tuple[Curves, int]:
    curves: dict[str, list[tuple[int, float]]] = {}
    ids, tables = set(), 0
    for file in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        due = time.monotonic() + 20
        while not wandb_records(file)[-1].HasField("exit") and time.monotonic() < due:
            time.sleep(0.1)  # wandb's own process writes the end a moment after `finish`
        for record in wandb_records(file):
            if record.HasField("run"):
                ids.add(record.run.run_id)
            if record.HasField("history"):
                for item in record.history.item:
                    name, value = item.key or "/".join(item.nested_key), json.loads(item.value_json)
                    tables += value == "table-file"
                    if not name.startswith(("_", "completions/")) and isinstance(value, int | float):
                        curves.setdefault(name, []).append((record.history.step.num, value))
    assert len(ids) == 1  # one run, in the one file or the two
    return curves, tables


def read_mlflow(folder: Path) -> tuple[Curves, int]:
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{folder.parent / 'mlflow.db'}")
    runs = client.search_runs([client.get_experiment_by_name("selfteach").experiment_id])
    assert len(runs) == 1 and runs[0].info.status == "FINISHED" and runs[0].data.params["steps"] == str(STEPS)
    key = runs[0].info.run_id
    curves = {n: [(m.step, m.value) for m in client.get_metric_history(key, n)] for n in runs[0].data.metrics}
    return curves, len(client.list_artifacts(key, "completions"))


def read_trackio(folder: Path) -> tuple[Curves, int]:
    from trackio.sqlite_storage import SQLiteStorage

    (name,) = SQLiteStorage.get_runs("selfteach")
    curves: dict[str, list[tuple[int, float]]] = {}
    tables = 0
    for row in SQLiteStorage.get_logs("selfteach", name):
        tables += "completions" in row
        for metric, value in row.items():
            if metric not in ("step", "timestamp") and isinstance(value, int | float):
                curves.setdefault(metric, []).append((row["step"], value))
    return curves, tables


READ: Mapping[str, Callable[[Path], tuple[Curves, int]]] = {
    "jsonl": read_jsonl,
    "tensorboard": read_tensorboard,
    "wandb": read_wandb,
    "mlflow": read_mlflow,
    "trackio": read_trackio,
}


def logged(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """The curves that the run's own log holds, by the names that trackers get."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for e in read_events(folder / "log"):
        if e["event"] == "step":
            values = {k: v for k, v in e.items() if k not in ("event", "step", "steps", "first", "seconds", "stage")}
        elif e["event"] in ("eval", "final_eval"):
            values = evaluation_in(e)
        else:
            continue
        for name, value in values.items():
            if isinstance(value, int | float):
                curves.setdefault(name, []).append((e["step"], value))
    return curves


@pytest.fixture(autouse=True)
def local(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores in folders of the test, and nothing asked of a service."""
    for name in ("WANDB_MODE", "WANDB_PROJECT", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "TRACKIO_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = tmp_path_factory.mktemp("trackio")
    monkeypatch.setenv("TRACKIO_DIR", str(folder))
    for module in [m for n, m in sys.modules.items() if n.startswith("trackio")]:
        if hasattr(module, "TRACKIO_DIR"):
            monkeypatch.setattr(module, "TRACKIO_DIR", folder)


@pytest.mark.parametrize("name", READ)
def test_a_run_that_was_stopped_and_resumed_is_one_run_in_the_tracker_with_each_step_once(name, mini_folder, tmp_path):
    if name != "jsonl":
        pytest.importorskip(name, reason=f"the package {name} is not installed")
    folder = tmp_path / "run"
    # The checkpoint is older than the stop, so that steps are played again.
    config = run_config_of(mini_folder, eval_samples=2, checkpoint_every=4)
    with pytest.raises(Stop):
        api.train(config, folder, stop_in_the_middle, progress=False, log=name)
    api.resume(folder, progress=False, trust=True)
    curves, tables = READ[name](folder)
    expected = logged(folder)
    assert [s for s, _ in expected["reward/mean"]] == list(range(STEPS))
    alike = {n: tracking.trackers._plain_name(n) if name == "mlflow" else n for n in expected}
    for metric, points in expected.items():
        if metric.startswith("time/") or metric == "tokens_per_s":  # of the step as it was first played
            assert [s for s, _ in curves[metric]] == [s for s, _ in points], metric
        else:
            found = sorted(curves[alike[metric]])
            assert found == [(s, pytest.approx(v, rel=1e-5)) for s, v in points], metric
    assert curves.keys() == set(alike.values())
    assert tables == STEPS


def test_a_tracker_that_joins_late_is_told_what_was_before(mini_folder, tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(Stop):
        api.train(run_config_of(mini_folder), folder, stop_in_the_middle, progress=False)
    api.resume(folder, progress=False, trust=True, log="jsonl")
    assert read_jsonl(folder)[0]["reward/mean"] == logged(folder)["reward/mean"]


class Recorder:
    """A tracker of a user's own."""

    def __init__(self, start: Callable[[], None] = lambda: None, log: Callable[[], None] = lambda: None) -> None:
        self._start, self._log, self.steps, self.status = start, log, list[int](), ""

    def start(self, about: tracking.RunAbout) -> str:
        self._start()
        return "mine"

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._log()
        self.steps += [step] * ("reward/mean" in values)

    def table(self, step: int, rows: Any) -> None:
        self.rows = rows

    def warning(self, step: int, rule: str, text: str) -> None: ...

    def finish(self, status: str) -> None:
        self.status = status


def test_a_tracker_of_one_s_own_hears_of_every_step_and_of_rollouts(mini_folder, tmp_path):
    mine = Recorder()
    api.train(run_config_of(mini_folder), tmp_path / "run", progress=False, log=[mine])
    assert mine.steps == list(range(STEPS)) and mine.status == "done"
    rewards = [row["reward"] for row in mine.rows]
    assert rewards == sorted(rewards, reverse=True) and len(rewards) == 4
    assert set(tracking.trackers.COLUMNS) == mine.rows[0].keys()
    assert all(isinstance(row["prompt"], str) and row["advantage"] is not None for row in mine.rows)


def fail() -> None:
    raise SystemExit("no")  # even that


@pytest.mark.parametrize("when", ["start", "log"])
def test_a_tracker_that_raises_is_said_once_and_the_run_is_as_without_it(when, mini_folder, tmp_path):
    notes: list[str] = []
    bad = Recorder(**{when: fail})

    def observe(e: Mapping[str, Any]) -> None:
        notes.extend([e["text"]] if e["event"] == "note" else [])

    class Good(Recorder):
        """Another name."""

    good = Good()
    with pytest.warns(UserWarning, match=r"log Recorder: .*no; the run goes on without it"):
        api.train(run_config_of(mini_folder), tmp_path / "run", observe, progress=False, log=[bad, good])
    api.train(run_config_of(mini_folder), tmp_path / "without", progress=False)
    assert len([n for n in notes if n.startswith("log ")]) == 1
    assert good.steps == list(range(STEPS)) and bad.status == ""
    same_run(tmp_path / "run", tmp_path / "without")


@pytest.mark.parametrize("waiting", [feed.WAITING, 3])
def test_a_tracker_that_hangs_is_left_behind(waiting, mini_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(feed, "WAITING", waiting)
    monkeypatch.setattr(feed, "FINISH_SECONDS", 0.2)
    released = threading.Event()
    began = time.monotonic()
    why = "has not ended in time" if waiting > 3 else "does not keep up"
    with pytest.warns(UserWarning, match=f"log Recorder: {why}.*goes on without it"):
        hung = Recorder(log=lambda: bool(released.wait(30)) or None)
        run = api.train(run_config_of(mini_folder), tmp_path / "run", progress=False, log=[hung])
    assert run.done and time.monotonic() - began < 20
    released.set()


def test_what_is_not_there_is_one_line_before_any_work(mini_folder, tmp_path, monkeypatch, capsys):
    config, folder = run_config_of(mini_folder), tmp_path / "run"
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(BadValue, match=r"log wandb: the package wandb is not installed; .*selfteach\[wandb\]"):
        api.train(config, folder, progress=False, log=["jsonl", "wandb"])
    with pytest.raises(UnknownName, match="did you mean tensorboard"):
        api.train(config, folder, progress=False, log="tensorbord")
    with pytest.raises(BadValue, match="log: object is no tracker"):
        api.train(config, folder, progress=False, log=[object()])
    assert not folder.exists()
    monkeypatch.chdir(tmp_path)
    assert main(["train", "grpo", "--task", "chain_sum", "--log", "jsonl,wandb"]) == 2
    assert "selfteach[wandb]" in capsys.readouterr().err and not list(tmp_path.glob("runs/*"))


def test_each_name_of_an_evaluation_has_one_meaning():
    on_the_way = {"event": "eval", "step": 3, "questions": 2, "samples": 0, "accuracy": 0.5, "reward": math.nan}
    assert evaluation_in(on_the_way) == {"eval/greedy": 0.5}
    sampled = on_the_way | {"samples": 4, "greedy": 0.5, "sampled": 0.25, "reward": 1.0}
    sampled |= {"reward_greedy": 1.0, "reward_sampled": 2.0}
    assert evaluation_in(sampled) == {
        "eval/greedy": 0.5,
        "eval/accuracy": 0.25,
        "eval/reward_greedy": 1.0,
        "eval/reward": 2.0,
    }
    last = {"event": "final_eval", "figures": {"greedy": 0.5, "accuracy": 0.25, "pass@2": None}}
    assert evaluation_in(last) == {"eval/greedy": 0.5, "eval/accuracy": 0.25}
