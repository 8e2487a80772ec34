"""What can be known is checked before any work and before a folder is taken, which the corrected command may have."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.caches import own_cache

from selfteach import api
from selfteach.configuration import RunConfig, plan
from selfteach.core.errors import SelfteachError
from selfteach.loop import checkpoint, method_on_task
from selfteach.model import devices

EVENTS_OF_WORK = {"warm_step", "warm_found", "step", "measuring"}


def fresh(**change: Any) -> RunConfig:
    settings = {"steps": 1, "warm_steps": 2, "warm_batch": 2, "eval_every": 0, "threads": 1, **change}
    made = plan("rloo", "chain_sum", {"terms": (2, 2), "n_test": 4}, args={"groups": 2, "rollouts": 2}, model="tiny-s",
                settings=settings)  # fmt: skip
    return replace(made, final_eval=api.EvalConfig(tasks=0, pass_at_k_tasks=0, k=0, decoder_samples=0))


def no_home(patch: pytest.MonkeyPatch, folder: Path) -> None:
    patch.delenv("SELFTEACH_CACHE")
    patch.delenv("HOME")

    def nobody(uid: int) -> Any:
        raise KeyError(uid)

    patch.setattr(pwd, "getpwuid", nobody)


def cache_is_a_file(patch: pytest.MonkeyPatch, folder: Path) -> None:
    (folder / "file").touch()
    patch.setenv("SELFTEACH_CACHE", str(folder / "file"))


def cache_below_a_file(patch: pytest.MonkeyPatch, folder: Path) -> None:
    (folder / "file").touch()
    patch.setenv("SELFTEACH_CACHE", str(folder / "file" / "cache"))


def cache_is_read_only(patch: pytest.MonkeyPatch, folder: Path) -> None:
    patch.setenv("SELFTEACH_CACHE", str(folder / "cache"))
    patch.setattr(os, "access", lambda path, mode: False)  # root may write where the mode says no


def no_memory(patch: pytest.MonkeyPatch, folder: Path) -> None:
    patch.setattr(devices, "free_memory", lambda device: 1000)


def no_tool(patch: pytest.MonkeyPatch, folder: Path) -> None:
    patch.setattr(method_on_task, "lacking", lambda *_: "oracle")


def nothing(patch: pytest.MonkeyPatch, folder: Path) -> None:
    pass


FAULTS: dict[str, tuple[Callable[[pytest.MonkeyPatch, Path], None], dict[str, Any], str]] = {
    "no home": (no_home, {}, "no home folder; set SELFTEACH_CACHE"),
    "cache is a file": (cache_is_a_file, {}, "set SELFTEACH_CACHE"),
    "cache below a file": (cache_below_a_file, {}, "set SELFTEACH_CACHE"),
    "cache is read-only": (cache_is_read_only, {}, "set SELFTEACH_CACHE"),
    "no memory": (no_memory, {}, "memory"),
    "no such tool": (no_tool, {}, "no such tool"),
    "context": (nothing, {"context": 100_000}, "context"),
    "a turn longer than the context": (nothing, {"context": 64, "max_tokens": 64}, "max_tokens"),
    "adapters' layers": (nothing, {"lora_rank": 4, "lora_targets": ("nowhere",)}, "nowhere"),
    "an adapter that is not there": (nothing, {"adapter": "/nowhere"}, "/nowhere"),
    "device": (nothing, {"device": "cuda:99"}, "cuda"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_can_be_known_is_refused_before_any_work(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    spoil, change, says = FAULTS[fault]
    monkeypatch.setenv("SELFTEACH_CACHE", str(tmp_path / "fresh"))
    out, events = tmp_path / "run", list[str]()
    with monkeypatch.context() as patch, pytest.raises(SelfteachError) as caught:
        spoil(patch, tmp_path)
        api.train(fresh(**change), out, lambda e: events.append(e["event"]))
    assert says in str(caught.value) and "\n" not in str(caught.value)
    assert not EVENTS_OF_WORK & set(events) and not out.exists()
    checkpoint.check_folder(out, fresh().to_json(), resume=False)


@pytest.mark.parametrize("setting", ["slots", "threads", "steps", "keep", "checkpoint_every"])
def test_a_setting_out_of_range_is_refused_as_it_is_made(setting: str):
    with pytest.raises(SelfteachError, match=setting):
        fresh(**{setting: -1})


def test_a_run_that_failed_at_its_start_leaves_its_folder_to_the_corrected_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Whatever happens between the folder's claim and the first checkpoint, also a kill."""
    monkeypatch.setenv("SELFTEACH_CACHE", str(own_cache(tmp_path)))
    out = tmp_path / "run"

    class Death(Exception):
        pass

    def die(event: Any) -> None:
        if event["event"] == "warm_step":
            raise Death

    with pytest.raises(Death):
        api.train(fresh(), out, die)
    assert (out / "config.json").exists()
    assert api.train(fresh(seed=3, steps=0), out).done  # another configuration
    with pytest.raises(SelfteachError, match="another configuration"):
        api.train(fresh(), out)


def test_a_read_only_cache_that_holds_the_warm_start_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SELFTEACH_CACHE", str(own_cache(tmp_path)))
    assert api.train(fresh(steps=0), tmp_path / "first").done
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    events = list[str]()
    assert api.train(fresh(steps=0), tmp_path / "second", lambda e: events.append(e["event"])).done
    assert "warm_found" in events and "warm_step" not in events
