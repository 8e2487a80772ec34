"""Beginning a run from Python: inside an event loop, step by step, with callbacks, with its progress shown."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import signal
import sys
import textwrap
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.runs import BANDIT, run_config_of, same_run

import selfteach
from selfteach import api, methods
from selfteach.api import Step
from selfteach.api.rollouts import Rollout
from selfteach.core import BadValue
from selfteach.core.errors import UserCodeFailed
from selfteach.core.loops import run_to_end
from selfteach.loop import checkpoint
from selfteach.progress import Cell, in_notebook, show_progress


@pytest.fixture(scope="module")
def whole(mini_folder, tmp_path_factory) -> Path:
    """Twelve steps at once, with which others are compared."""
    return api.train(run_config_of(mini_folder), tmp_path_factory.mktemp("whole") / "run", progress=False).folder


# ---- event loops


def test_train_works_inside_an_event_loop_with_the_same_bits(mini_folder, tmp_path, whole):
    async def notebook() -> Any:
        return api.train(run_config_of(mini_folder), tmp_path / "run", progress=False)

    assert asyncio.run(notebook()).done
    same_run(tmp_path / "run", whole)


def test_train_async_leaves_the_event_loop_to_others(mini_folder, tmp_path, whole):
    async def program() -> tuple[Any, int]:
        beats: list[int] = []

        async def beat() -> None:
            while True:
                await asyncio.sleep(0.005)
                beats.append(1)

        other = asyncio.create_task(beat())
        run = await api.train_async(run_config_of(mini_folder), tmp_path / "run", progress=False)
        other.cancel()
        return run, len(beats)

    run, beats = asyncio.run(program())
    assert run.done and beats > 10
    same_run(tmp_path / "run", whole)


def test_a_cancelled_train_async_stops_with_a_checkpoint(mini_folder, tmp_path, whole):
    async def program() -> None:
        task: asyncio.Task[Any]
        loop = asyncio.get_running_loop()

        def cancel(step: Step) -> None:
            if step.number == 4:
                loop.call_soon_threadsafe(task.cancel)
                time.sleep(0.2)

        config = run_config_of(mini_folder, checkpoint_every=100)
        task = asyncio.create_task(api.train_async(config, tmp_path / "run", progress=False, callbacks=[cancel]))
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(program())
    run = selfteach.load(tmp_path / "run")
    assert not run.done and 5 <= run.steps_done < 12
    assert run.resume(progress=False).done


def test_an_error_inside_an_event_loop_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    async def notebook() -> None:
        api.train(methods.grpo(), task="chain_sum", model="nowhere/at-all/x")

    with pytest.raises(BadValue, match="no such folder"):
        asyncio.run(notebook())
    assert not list((tmp_path / "runs").glob("*"))


def test_ctrl_c_while_another_thread_works_asks_it_to_end_and_then_cancels_it():
    ended: list[str] = []

    async def work(until: threading.Event) -> str:
        try:
            while not until.is_set():
                await asyncio.sleep(0.01)
            return "asked"
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async def notebook(goes_on: Any, until: threading.Event) -> str:
        # a signal while the main thread waits, as a notebook's "interrupt" sends it
        threading.Timer(0.2, lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)).start()
        return run_to_end(work(until), goes_on)

    def asked(until: threading.Event) -> bool:
        until.set()
        return True

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        until = threading.Event()
        loop = asyncio.new_event_loop()
        assert loop.run_until_complete(notebook(lambda: asked(until), until)) == "asked"
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(notebook(lambda: False, threading.Event()))
        loop.close()
        assert ended == ["cancelled"]
    finally:
        signal.signal(signal.SIGINT, before)


# ---- steps


def test_steps_taken_one_by_one_are_the_same_run(mini_folder, tmp_path, whole):
    taken = selfteach.steps(run_config_of(mini_folder), tmp_path / "run", progress=False)
    with pytest.raises(BadValue, match="has not begun"):
        _ = taken.run
    numbers = []
    for step in taken:
        numbers.append(step.number)
        assert step.metrics["step"] == step.number and len(step.rollouts) == 16
        assert not taken.run.done
    assert numbers == list(range(12)) and taken.run.done and taken.run.figures["after"]
    same_run(tmp_path / "run", whole)
    with pytest.raises(BadValue, match="begun already"):
        iter(taken)


def leave_by_break(taken: Any) -> None:
    for step in taken:
        if step.number == 4:
            break


def leave_by_error(taken: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        for step in taken:
            if step.number == 4:
                raise ZeroDivisionError


def leave_by_close(taken: Any) -> None:
    with taken as inside:
        steps = iter(inside)
        while next(steps).number < 4:
            pass


@pytest.mark.parametrize("leave", [leave_by_break, leave_by_error, leave_by_close])
def test_a_loop_that_is_left_early_leaves_a_checkpoint(leave, mini_folder, tmp_path, whole):
    config = run_config_of(mini_folder, checkpoint_every=100)
    gc.disable()  # the end is that of the loop, not of the collector
    try:
        leave(selfteach.steps(config, tmp_path / "run", progress=False))
        run = selfteach.load(tmp_path / "run")
        assert run.steps_done == 5 and not run.done
        with checkpoint.held(run.folder):
            pass
    finally:
        gc.enable()
    assert run.resume(progress=False).done
    rows = [{k: v for k, v in r.items() if not k.startswith("time/") and k != "tokens_per_s"} for r in run.metrics]
    others = selfteach.load(whole).metrics
    assert rows == [{k: v for k, v in r.items() if not k.startswith("time/") and k != "tokens_per_s"} for r in others]


def test_steps_inside_an_event_loop(mini_folder, tmp_path):
    async def notebook() -> list[int]:
        config = run_config_of(mini_folder, steps=2)
        return [step.number for step in selfteach.steps(config, tmp_path / "run", progress=False)]

    assert asyncio.run(notebook()) == [0, 1]


def test_steps_that_fail_raise_and_give_the_folder_back(mini_folder, tmp_path):
    def die(event: Any) -> None:
        if event["event"] == "step" and event["step"] == 2:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(selfteach.steps(run_config_of(mini_folder), tmp_path / "run", die, progress=False))
    run = selfteach.load(tmp_path / "run")
    assert run.steps_done == 2 and run.resume(progress=False).done


# ---- callbacks


def test_callbacks_are_called_with_each_step(mini_folder, tmp_path):
    seen: list[Step] = []
    run = api.train(run_config_of(mini_folder, steps=3), tmp_path / "run", progress=False, callbacks=[seen.append])
    assert [s.number for s in seen] == [0, 1, 2] and [s.metrics for s in seen] == list(run.metrics)
    assert seen[1].rollouts[0].id == run.rollouts(1)[0].id and seen[0].run.folder == run.folder


@pytest.mark.parametrize("raised", [ValueError("too hot"), BadValue("too hot"), SystemExit("too hot")])
def test_a_callback_that_raises_ends_the_run_and_is_named(raised, mini_folder, tmp_path):
    def watch(step: Step) -> None:
        if step.number == 3:
            raise raised

    with pytest.raises(UserCodeFailed, match=r"callback .*watch raised .*too hot.*after step 3.*selfteach\.resume"):
        api.train(run_config_of(mini_folder), tmp_path / "run", progress=False, callbacks=[watch])
    run = selfteach.load(tmp_path / "run")
    assert run.steps_done == 4 and run.resume(progress=False).done


async def of_a_loop(step: Step) -> None:
    """A callback that would never be awaited."""


@pytest.mark.parametrize("callback", [of_a_loop, "print"])
def test_what_is_no_function_is_no_callback(callback, mini_folder, tmp_path):
    with pytest.raises(BadValue, match=r"callbacks: .* give functions of a step"):
        api.train(run_config_of(mini_folder), tmp_path / "run", callbacks=[callback])
    assert not (tmp_path / "run").exists()


# ---- progress


def test_progress_is_lines_where_stderr_is_no_terminal_and_can_be_turned_off(mini_folder, tmp_path, capsys):
    api.train(run_config_of(mini_folder, steps=2), tmp_path / "a")
    shown = capsys.readouterr()
    assert "steps 2/2" in shown.err and not shown.out
    api.train(run_config_of(mini_folder, steps=2), tmp_path / "b", progress=False)
    assert not any(capsys.readouterr())


def test_a_bar_in_a_notebook_is_drawn_in_its_place(monkeypatch, capsys):
    drawn: list[tuple[str, dict[str, str]]] = []

    class Handle:
        def update(self, bundle: dict[str, str], raw: bool) -> None:
            drawn.append(("update", bundle))

    def display(bundle: dict[str, str], raw: bool, display_id: bool = False) -> Handle:
        drawn.append(("new", bundle))
        return Handle()

    monkeypatch.setitem(sys.modules, "IPython.display", type("display", (), {"display": staticmethod(display)}))
    times = iter([0.0, 0.1, 1.0, 1.1, 1.2])
    cell = Cell(clock=lambda: next(times))
    cell.line("task <b>")
    for name, done in (("steps", 1), ("steps", 2), ("steps", 3), ("steps", 4), ("measuring", 1)):
        cell.bar(name, done, 4, "reward <b>")
    assert [how for how, _ in drawn] == ["new", "update", "update", "new"]  # the second came too soon
    assert drawn[2][1]["text/plain"] == "steps 4/4: reward <b>" and "&lt;b&gt;" in drawn[2][1]["text/html"]
    assert capsys.readouterr().out == "task <b>\n" and not in_notebook()


def test_a_kernel_of_a_notebook_is_seen(monkeypatch, capsys):
    shown: list[dict[str, str]] = []
    display = type("display", (), {"display": staticmethod(lambda bundle, raw: shown.append(bundle))})
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    for shell, is_notebook in ((None, False), (SimpleNamespace(), False), (SimpleNamespace(kernel=1), True)):
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda shell=shell: shell))
        assert in_notebook() == is_notebook
        with show_progress() as progress:
            assert isinstance(progress.view, Cell) == is_notebook
    rollout = Rollout("e", "g", "t", "2 + 3", None, "done", "", {}, ())
    rollout.show()
    assert shown == [{"text/html": rollout._repr_html_(), "text/plain": str(rollout)}] and not capsys.readouterr().out


def test_in_a_notebook_s_kernel_it_works_as_in_a_script(tmp_path):
    """A notebook of one cell, where nbclient and a kernel are installed."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    code = f"""
        from selfteach import methods, train
        from selfteach.core import registry
        registry.load_file({str(BANDIT)!r})
        run = train(methods.grpo(groups=2, rollouts=2), task="chain_sum", model="tiny-s", steps=1, warm_steps=2)
        run.metrics
    """
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(textwrap.dedent(code))])
    nbclient.NotebookClient(notebook, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert any("text/html" in out.get("data", {}) for out in notebook.cells[0].outputs)


# ---- arguments


@pytest.mark.parametrize("fn", [api.train, api.train_async, api.steps, api.plan])
def test_the_arguments_of_a_run_are_shown_and_told_once(fn):
    shown = inspect.signature(fn).parameters
    assert {"task", "task_options", "model", "train", "reward", "settings", "download"} <= shown.keys()


def test_a_complete_configuration_takes_no_more(mini_folder, tmp_path):
    with pytest.raises(BadValue, match="complete, so lr cannot be given"):
        api.train(run_config_of(mini_folder), tmp_path / "run", lr=0.1)
    assert not (tmp_path / "run").exists()


def test_ctrl_c_in_a_loop_of_steps_ends_it_after_the_step(mini_folder, tmp_path, capsys):
    def press(event):
        if event["event"] == "step" and event["step"] == 3:
            os.kill(os.getpid(), signal.SIGINT)

    config = run_config_of(mini_folder, checkpoint_every=100)
    done = len(list(selfteach.steps(config, tmp_path / "run", press)))
    assert done == selfteach.load(tmp_path / "run").steps_done and done in (4, 5)
    assert "stopping after this step" in capsys.readouterr().err
