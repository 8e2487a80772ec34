"""What goes wrong outside: folders, files and disks.

Each is one clear line that names the file, and nothing is lost.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.models import mini
from support.runs import BANDIT

from selfteach import api
from selfteach.configuration import RunConfig, plan
from selfteach.core import BadCheckpoint, BadValue, SelfteachError, registry
from selfteach.loop import checkpoint
from selfteach.loop.log import Rollouts, RunLog, read_events
from selfteach.model import files
from selfteach.model.tokenizer import train_tokenizer


def run_config_of(model: Path, **change: Any) -> RunConfig:
    method = registry.methods.get("bandit_reinforce")(groups=2, rollouts=4)
    run_config = plan(
        method,
        "bandit",
        model=str(model),
        **{"steps": 2, "max_tokens": 4, "eval_every": 0, "checkpoint_every": 1, **change},
    )
    return replace(
        run_config, final_eval=api.EvalConfig(tasks=1, pass_at_k_tasks=1, k=2, decoder_samples=1), use=(str(BANDIT),)
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, mini_folder: Path) -> Path:
    out = tmp_path_factory.mktemp("finished") / "run"
    assert api.train(run_config_of(mini_folder), out).done
    return out


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A finished run of which this test may break what it likes."""
    shutil.copytree(finished, tmp_path / "run", symlinks=True)
    return tmp_path / "run"


def one_line(error: BaseException) -> str:
    assert isinstance(error, SelfteachError)
    text = str(error)
    assert "\n" not in text and "Traceback" not in text
    return text


# ---- folders


def test_a_folder_of_another_configuration_is_refused(run: Path, mini_folder: Path):
    with pytest.raises(BadValue) as caught:
        api.train(run_config_of(mini_folder, lr=0.5), run)
    assert f"{run}: holds a run of another configuration (other: settings)" in one_line(caught.value)


def test_the_same_run_again_is_pointed_to_resume(run: Path, mini_folder: Path):
    with pytest.raises(BadValue) as caught:
        api.train(run_config_of(mini_folder), run)
    assert f"{run}: holds this run already" in one_line(caught.value) and f"--resume {run}" in str(caught.value)


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path, mini_folder: Path):
    (tmp_path / "thesis.txt").write_text("all I have")
    with pytest.raises(BadValue) as caught:
        api.train(run_config_of(mini_folder), tmp_path)
    assert "is not empty and holds no run" in one_line(caught.value) and [p.name for p in tmp_path.iterdir()] == [
        "thesis.txt"
    ]


def test_a_folder_without_a_run_cannot_be_resumed(tmp_path: Path):
    with pytest.raises(BadValue) as caught:
        api.resume(tmp_path / "nowhere")
    assert "holds no run" in one_line(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written(tmp_path: Path, mini_folder: Path):
    tmp_path.chmod(0o500)
    with pytest.raises(SelfteachError) as caught:
        api.train(run_config_of(mini_folder), tmp_path / "run")
    assert "cannot be written to" in one_line(caught.value)


@pytest.mark.parametrize(
    "number,says",
    [(errno.EACCES, "cannot be written to"), (errno.EROFS, "cannot be written to"), (errno.ENOSPC, "the disk is full")],
)
def test_a_folder_that_cannot_be_made(
    number: int, says: str, tmp_path: Path, mini_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(self: Path, *args: Any, **more: Any) -> None:
        raise OSError(number, os.strerror(number), str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(SelfteachError) as caught:
        api.train(run_config_of(mini_folder), tmp_path / "run")
    assert says in one_line(caught.value) and str(tmp_path / "run") in str(caught.value)


def test_a_file_where_the_runs_should_lie(tmp_path: Path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(SelfteachError, match=r"is a file|Not a directory"):
        api.new_run_folder("grpo", tmp_path / "runs")


def test_a_free_folder_is_never_shared(tmp_path: Path):
    assert [api.new_run_folder("a", tmp_path).name for _ in range(3)] == ["a-1", "a-2", "a-3"]


# ---- broken checkpoints


def cut(file: Path, size: int = 100) -> None:
    file.write_bytes(file.read_bytes()[:size])


def change_state(run: Path, **change: Any) -> None:
    file = run / "last" / "state.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))


BREAKS = {
    "weights cut short": (lambda r: cut(r / "last" / "model.safetensors"), "model.safetensors", "cut short"),
    "weights missing": (lambda r: (r / "last" / "model.safetensors").unlink(), "model.safetensors", "missing"),
    "weights of another model": (
        lambda r: files.write_tensors(r / "last" / "model.safetensors", mini(264, width=64).named_tensors()),
        "model.safetensors",
        "has shape",
    ),
    "optimiser cut short": (lambda r: cut(r / "last" / "optimiser.safetensors"), "optimiser.safetensors", "cut short"),
    "state is no JSON": (lambda r: (r / "last" / "state.json").write_text("{'step': 1"), "state.json", "broken"),
    "state is a list": (lambda r: (r / "last" / "state.json").write_text("[]"), "state.json", "format None"),
    "state missing": (lambda r: (r / "last" / "state.json").unlink(), "state.json", "broken"),
    "state of an older format": (
        lambda r: change_state(r, format=1),
        "state.json",
        "format 1, this selfteach reads 3",
    ),
    "state of a newer format": (
        lambda r: change_state(r, format=99),
        "state.json",
        "format 99, this selfteach reads 3",
    ),
    "state without its inside": (lambda r: change_state(r, state={"list": []}), "state.json", "not a state"),
    "state of strange fields": (
        lambda r: change_state(r, state={"map": [["moon", {"value": 1}]]}),
        "state.json",
        "not a state",
    ),
    "state of a strange kind": (
        lambda r: change_state(r, state={"map": [["step", {"value": {"kind": "Moon"}}]]}),
        "state.json",
        "",
    ),
    "arrays cut short": (lambda r: cut(r / "last" / "state.safetensors", 3), "state.safetensors", "broken"),
    "tokenizer missing": (
        lambda r: (r / "last" / "tokenizer.json").unlink(),
        "tokenizer.json",
        "there is no tokenizer",
    ),
    "tokenizer garbled": (
        lambda r: (r / "last" / "tokenizer.json").write_text("{}"),
        "tokenizer.json",
        "not a tokenizer",
    ),
    "another tokenizer": (
        lambda r: train_tokenizer(["abab"] * 9, (), 258).save(r / "last"),
        "tokenizer.json",
        "not the tokenizer",
    ),
    "learner's own file garbled": (
        lambda r: (r / "last" / "learner.json").write_text("[]"),
        "learner.json",
        "not what a learner wrote",
    ),
}


@pytest.mark.parametrize("how", BREAKS)
def test_a_broken_checkpoint_is_named(how: str, run: Path):
    breaks, file, _ = BREAKS[how]
    breaks(run)
    with pytest.raises(BadCheckpoint) as caught:
        api.resume(run)
    assert file in one_line(caught.value)


def sign(checkpoint_folder: Path) -> None:
    """Let a checkpoint that was changed pass for one that was written so, where its state can be read."""
    try:
        data = json.loads((checkpoint_folder / "state.json").read_text())
        content = {k: v for k, v in data.items() if k not in ("files", "checksum")}
    except (OSError, ValueError, AttributeError):
        return
    checkpoint.write_state(checkpoint_folder, content)


@pytest.mark.parametrize("how", BREAKS)
def test_a_checkpoint_that_was_written_wrong_is_named(how: str, run: Path):
    breaks, file, says = BREAKS[how]
    breaks(run)
    sign(run / "last")
    with pytest.raises(BadCheckpoint) as caught:
        api.resume(run)
    text = one_line(caught.value)
    assert says in text and (file in text or not says)


def test_a_broken_configuration_is_named(run: Path):
    for text, says in [("{", "JSONDecodeError"), ('{"format": 7}', "format 7")]:
        (run / "config.json").write_text(text)
        with pytest.raises(BadCheckpoint) as caught:
            api.resume(run)
        assert "config.json" in one_line(caught.value) and says in str(caught.value)


def test_an_older_checkpoint_can_be_gone_on_with(run: Path, finished: Path):
    """What the error for a broken one advises: remove it, point `last` to an older one."""
    shutil.rmtree((run / "last").resolve())
    (run / "last").unlink()
    (run / "last").symlink_to(Path("checkpoints") / "000001")
    assert api.resume(run).done
    a, b = (
        files.read_tensors(run / "last" / "model.safetensors"),
        files.read_tensors(finished / "last" / "model.safetensors"),
    )
    assert all((a[n] == b[n]).all() for n in a)


def flip(file: Path, share: float) -> None:
    data = bytearray(file.read_bytes())
    data[min(int(share * len(data)), len(data) - 1)] ^= 4
    file.write_bytes(bytes(data))


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.999])
def test_a_flipped_bit_in_any_file_of_a_checkpoint_is_found(share: float, run: Path):
    folder = (run / "last").resolve()
    found = sorted(f.name for f in folder.rglob("*") if f.is_file())
    assert {"model.safetensors", "optimiser.safetensors", "learner.json", "state.json", "tokenizer.json"} <= {*found}
    for name in found:
        whole = (folder / name).read_bytes()
        flip(folder / name, share)
        with pytest.raises(BadCheckpoint) as caught:
            checkpoint.read(run)
        assert name in one_line(caught.value)
        (folder / name).write_bytes(whole)
    assert checkpoint.read(run) is not None


@pytest.mark.parametrize("how", ["no link", "a link to nowhere", "a file", "a folder"])
def test_a_run_whose_link_was_lost_goes_on_from_its_newest_checkpoint(how: str, run: Path, finished: Path):
    """A copy without symbolic links: it never silently begins anew."""
    last = run / "last"
    shutil.rmtree(last.resolve())
    newest = run / "checkpoints" / "000001"
    last.unlink()
    if how == "a link to nowhere":
        last.symlink_to("checkpoints/000099")
    elif how == "a file":
        last.write_text("checkpoints/000001")
    elif how == "a folder":
        shutil.copytree(newest, last)
        shutil.rmtree(run / "checkpoints")
    events: list[Any] = []
    done = api.resume(run, events.append)
    warnings = [e["text"] for e in events if e["event"] == "notice" and "missing: continues with" in e["text"]]
    assert done.done and len(warnings) == (how != "a folder")
    assert [e["step"] for e in events if e["event"] == "step"] == [1] and last.is_symlink()
    assert last.resolve().name == "000002"


def test_a_folder_is_trained_in_by_one_process(run: Path, finished: Path, mini_folder: Path, tmp_path: Path):
    refused: list[str] = []

    def intrude(event: Any) -> None:
        if event["event"] == "step":
            again = lambda: api.train(run_config_of(mini_folder), tmp_path / "new")  # noqa: E731
            for attempt in (lambda: api.resume(tmp_path / "new"), again):
                with pytest.raises(BadValue) as caught, ThreadPoolExecutor() as pool:
                    pool.submit(attempt).result()
                refused.append(one_line(caught.value))

    assert api.train(run_config_of(mini_folder), tmp_path / "new", intrude).done
    assert len(refused) == 4 and "another process is training in this folder" in refused[0]
    assert [e["step"] for e in read_events(tmp_path / "new" / "log") if e["event"] == "step"] == [0, 1]


# ---- full disks


def full(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("place", ["the model", "the state", "events.jsonl", "000001.new", "the link"])
def test_a_full_disk_is_one_clear_error_and_costs_no_checkpoint(
    place: str, tmp_path: Path, mini_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    out, run_config, opened = tmp_path / "run", run_config_of(mini_folder), Path.open

    def fill(event: Any) -> None:  # after the first step, and its checkpoint before it
        if event["event"] == "step" and event["step"] == 0:
            if place == "the model":
                monkeypatch.setattr(files, "write_tensors", full)
            elif place == "the state":
                monkeypatch.setattr(checkpoint, "save_file", full)
            elif place in ("events.jsonl", "000001.new"):
                monkeypatch.setattr(
                    Path, "open", lambda self, *a, **k: full() if self.name == place else opened(self, *a, **k)
                )
            else:
                monkeypatch.setattr(Path, "symlink_to", full)

    with pytest.raises(SelfteachError) as caught:
        api.train(run_config, out, fill)
    assert "the disk is full" in one_line(caught.value) and str(out) in str(caught.value)
    monkeypatch.undo()
    assert json.loads((out / "last" / "state.json").read_text())["step"] in (0, 1)
    assert api.resume(out).done and [e["step"] for e in read_events(out / "log") if e["event"] == "step"] == [0, 1]


def test_a_write_that_is_cut_off_leaves_the_last_checkpoint(tmp_path: Path):
    checkpoint.write(tmp_path, 1, {"a": 1}, lambda folder: None)

    def die(folder: Path) -> None:
        (folder / "model.safetensors").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        checkpoint.write(tmp_path, 2, {"a": 2}, die)
    found = checkpoint.read(tmp_path)
    assert found is not None and found[1:] == (1, {"a": 1})
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["000001"]


@pytest.mark.parametrize(
    "state",
    [
        {"a": 1, "b": [1.5, None, True, "x"], "c": (1, (2,))},
        {"mean": float("nan"), "best": float("inf")},
        {1: "one", (2, "b"): "two", "kind": {"kind": "demo"}},
        {
            "rows": np.arange(6).reshape(2, 3),
            "one": np.array(3.0),
            "none": np.zeros((0, 2), np.float32),
            "deep": [{"x": np.ones(2, np.int8)}],
        },
        {},
    ],
    ids=["plain", "not finite", "keys", "arrays", "nothing"],
)
def test_a_state_comes_back_as_it_was(state: dict[Any, Any], tmp_path: Path):
    def alike(a: Any, b: Any) -> bool:
        if isinstance(a, np.ndarray):
            return isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b)
        if isinstance(a, dict):
            return list(a) == list(b) and all(alike(a[k], b[k]) for k in a)
        if isinstance(a, list | tuple):
            return type(a) is type(b) and len(a) == len(b) and all(map(alike, a, b))
        return type(a) is type(b) and (a == b or a != a)

    checkpoint.write(tmp_path, 3, state, lambda folder: None)
    found = checkpoint.read(tmp_path)
    assert found is not None and found[1] == 3 and alike(found[2], state)


# ---- logs


def test_a_log_with_a_half_line_is_read_up_to_it(tmp_path: Path):
    log = RunLog(tmp_path)
    log.event("step", step=0, loss=float("nan"), more={"a": np.float32(0.5), "b": (1, float("inf"))})
    with (tmp_path / "events.jsonl").open("a") as f:
        f.write('{"event": "st')
    assert read_events(tmp_path) == [{"event": "step", "step": 0, "loss": None, "more": {"a": 0.5, "b": [1, None]}}]
    RunLog(tmp_path).event("done")  # opened again, the half line is gone
    assert [e["event"] for e in read_events(tmp_path)] == ["step", "done"]
    assert read_events(tmp_path / "nowhere") == []


def test_a_file_that_holds_no_rollouts_is_named(tmp_path: Path):
    (tmp_path / "000000.npz").write_bytes(b"not a zip")
    with pytest.raises(BadCheckpoint) as caught:
        Rollouts(tmp_path / "000000.npz")
    assert "000000.npz: not a rollout file" in one_line(caught.value)
    with pytest.raises(BadCheckpoint):
        Rollouts(tmp_path / "000001.npz")
