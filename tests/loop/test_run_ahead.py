"""Rollouts that run ahead: how old they may be, the account of tokens, faults, checkpoints, interruption."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.crash import carry_on
from support.loops import advance, bandit, equal, loop_of, weights_of
from support.runs import STEPS, run_config_of, same_run

from selfteach import api
from selfteach.configuration import RunConfig
from selfteach.core import registry
from selfteach.core.errors import BadValue, EngineMismatch, SelfteachError
from selfteach.core.random_keys import key, uniform
from selfteach.core.task import Sampling
from selfteach.loop.log import Rollouts, read_events

AHEAD = {"staleness": 2, "threads": 1}


def account_holds(metrics: dict[str, Any]) -> bool:
    dropped = sum(v for k, v in metrics.items() if k.startswith("dropped/"))
    return metrics["tokens/sampled"] == metrics["tokens/learned"] + dropped


@pytest.mark.parametrize("staleness", [1, 3])
def test_which_version_samples_what_is_a_function_of_the_step(letters, staleness):
    loop = loop_of(bandit(), letters, staleness=staleness)

    async def go() -> None:
        for step in range(7):
            metrics, groups, _ = await loop.advance()
            versions = {int(v) for g in groups for e in g.episodes for v in e.tree.version[e.tree.action_mask]}
            assert versions == {max(0, step - staleness)}
            age = min(step, staleness)
            assert metrics["staleness/max"] == metrics["staleness/mean"] == age
            assert metrics[f"staleness/share_{age}"] == 1.0
            assert [p.rollouts.step for p in loop.ahead.pending] == [step + 1 + i for i in range(staleness)]
            assert metrics["rollout/queued_steps"] == staleness and account_holds(metrics)

    asyncio.run(go())


def test_two_runs_give_the_same_bits_and_nothing_waits_at_the_end(letters):
    loops = [loop_of(bandit(), letters, staleness=2, steps=6) for _ in range(2)]
    logs = [[{k: v for k, v in m.items() if "time/" not in k and "_s" not in k} for m in advance(x, 6)] for x in loops]
    assert logs[0] == logs[1] and equal(weights_of(loops[0]), weights_of(loops[1]))
    assert all(loop.done and not len(loop.ahead) for loop in loops)
    fresh = loop_of(bandit(), letters, steps=6)
    advance(fresh, 6)
    assert not equal(weights_of(fresh), weights_of(loops[0])), "older data teach something else"


def test_learning_is_beside_sampling(letters, monkeypatch):
    """While a step is learned, later ones are played."""
    loop = loop_of(bandit(), letters, staleness=1)
    learn, played = loop._learn, []

    def slow(*args: Any) -> Any:
        import time

        until = time.monotonic() + 5
        while not loop.ahead.pending[0].finished and time.monotonic() < until:
            time.sleep(0.01)
        played.append(loop.ahead.pending[0].finished)
        return learn(*args)

    monkeypatch.setattr(loop, "_learn", slow)
    advance(loop, 3)
    assert played == [True] * 3


@pytest.mark.parametrize("interrupt", [False, True])
@pytest.mark.parametrize("limit", ["budget", "max_seconds"])
def test_what_nothing_will_learn_is_dropped_by_name(letters, interrupt, limit):
    loop = loop_of(bandit(), letters, staleness=3, interrupt=interrupt, **{limit: 200 if limit == "budget" else 0.05})

    async def go() -> list[dict[str, Any]]:
        out = []
        while not loop.done:
            out.append((await loop.advance())[0])
        return out

    steps = asyncio.run(go())
    assert all(account_holds(m) for m in steps) and not len(loop.ahead)
    assert loop.state.tokens == sum(m["tokens/sampled"] for m in steps) == steps[-1]["tokens/total"]
    names = {k for k in steps[-1] if k.startswith("dropped/")}
    if limit == "max_seconds":
        assert interrupt or names == {"dropped/max_seconds"}
    else:
        sync = loop_of(bandit(), letters, budget=200)
        assert len(steps) <= len(advance(sync, 30)) and names <= {"dropped/budget"}


def test_a_stage_that_ends_takes_what_was_begun_with_it(letters):
    method = bandit()
    two = replace(method, stages=(replace(method.stage, name="a", until=3), replace(method.stage, name="b")))
    loop = loop_of(two, letters, staleness=2, steps=6)
    steps = advance(loop, 6)
    assert [m["stage"] for m in steps] == ["a"] * 3 + ["b"] * 3
    # The length is known, so nothing is begun beyond it; each stage begins with fresh rollouts.
    assert not any(k.startswith("dropped/stage") for m in steps for k in m)
    assert [m["staleness/max"] for m in steps] == [0, 1, 2] * 2


# ---- checkpoints and kills


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, mini_folder: Path):
    out = tmp_path_factory.mktemp("ahead") / "run"
    run_config = run_config_of(mini_folder, **AHEAD)
    assert api.train(run_config, out).done
    return run_config, out


def test_from_every_checkpoint_it_goes_on_to_the_same_bits(whole, tmp_path):
    run_config, undisturbed = whole
    for step in (1, 4, 9):
        out = tmp_path / f"from-{step}"

        class Death(Exception):
            pass

        def die(event: Any, step: int = step) -> None:
            if event["event"] == "step" and event["step"] == step:
                raise Death

        with pytest.raises(Death):
            api.train(run_config, out, die)
        assert json.loads((out / "last" / "state.json").read_text())["step"] == step
        assert api.resume(out).done
        same_run(undisturbed, out)
    steps = [e for e in read_events(undisturbed / "log") if e["event"] == "step"]
    assert all(account_holds(e) for e in steps) and [e["staleness/max"] for e in steps] == [0, 1] + [2] * (STEPS - 2)


@contextmanager
def carried_on(run_config: RunConfig, out: Path) -> Generator[tuple[Any, Any]]:
    """A process that begins a run, or goes on with it, and a pipe that tells its events."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["selfteach.api", "torch._dynamo", "safetensors.numpy", "tokenizers"])
    ours, theirs = processes.Pipe(duplex=False)
    process = processes.Process(target=carry_on, args=(json.dumps(run_config.to_json()), out, theirs.send))
    process.start()
    theirs.close()
    try:
        yield process, ours
    finally:
        process.kill()
        process.join(60)


def words(ours: Any) -> Generator[str]:
    with suppress(EOFError):
        while True:
            yield ours.recv()


@pytest.mark.parametrize("interrupt", [False, True])
def test_killed_at_random_moments_nothing_is_lost_or_learned_twice(whole, tmp_path, interrupt):
    run_config, undisturbed = whole
    run_config = replace(run_config, settings=replace(run_config.settings, interrupt=interrupt, checkpoint_every=2))
    out, killed = tmp_path / "run", 0
    for n in range(3):
        with carried_on(run_config, out) as (process, ours):
            heard = (word for word in words(ours) if word in ("phase", "step"))
            for _ in range(4 + int(9 * float(uniform(key("kill", n), 0)))):
                next(heard, None)
            process.kill()
            process.join(60)
            killed += process.exitcode == -signal.SIGKILL
    with carried_on(run_config, out) as (process, ours):
        assert list(words(ours))[-1] == "DONE"
    assert killed >= 2
    events = [e for e in read_events(out / "log") if e["event"] == "step"]
    assert [e["step"] for e in events] == list(range(STEPS)) and all(account_holds(e) for e in events)
    assert events[-1]["tokens/total"] == sum(e["tokens/sampled"] for e in events)
    names = [name for step in range(STEPS) for name in Rollouts(out / "log" / "rollouts" / f"{step:06d}.npz")]
    assert len(names) == len(set(names)) == STEPS * 16
    if not interrupt:
        same_run(undisturbed, out)


@pytest.mark.parametrize(("number", "interrupt"), [(signal.SIGINT, True), (signal.SIGTERM, False)])
def test_a_signal_ends_it_with_a_checkpoint_of_what_waits(whole, tmp_path, number, interrupt):
    run_config, _ = whole
    settings = replace(run_config.settings, steps=400, checkpoint_every=1000, interrupt=interrupt)
    run_config, out = replace(run_config, settings=settings), tmp_path / "run"
    with carried_on(run_config, out) as (process, ours):
        heard = words(ours)
        assert "step" in heard
        os.kill(process.pid, number)
        assert list(heard)[-1] == "STOPPED"
        process.join(60)
        assert process.exitcode == 0
    state = json.loads((out / "last" / "state.json").read_text())
    step = state["step"]
    if not interrupt:
        assert [key for key, _ in state["state"]["map"] if key == "ahead"]
    config = json.loads((out / "config.json").read_text())
    config["settings"] |= {"steps": step + 3}
    (out / "config.json").write_text(json.dumps(config))
    assert api.resume(out).done
    events = [e for e in read_events(out / "log") if e["event"] == "step"]
    assert [e["step"] for e in events] == list(range(step + 3)) and all(account_holds(e) for e in events)


def test_a_reward_that_fails_ahead_stops_the_run_at_its_step(letters):
    loop = loop_of(bandit(), letters, staleness=2)
    collect = loop._collect

    async def broken(stage: Any, rollouts: Any, state: Any) -> None:
        if rollouts.step == 3:
            raise SelfteachError("the select of step 3 fails")
        await collect(stage, rollouts, state)

    loop._collect = broken  # type: ignore[method-assign]
    with pytest.raises(SelfteachError, match="step 3 fails"):
        advance(loop, 9)
    assert loop.state.step == 3, "the steps before it are learned"


# ---- refusals


@pytest.mark.parametrize(
    ("change", "settings", "line"),
    [
        ({}, {"staleness": -1}, "staleness"),
        ({}, {"interrupt": True}, "give --staleness 1 or more too"),
        ({"sync": 4}, {"staleness": 1}, "delivered every 4 updates"),
    ],
)
def test_what_cannot_run_ahead_is_refused(letters, change, settings, line):
    with pytest.raises(BadValue, match=line):
        loop_of(bandit().replace(**change), letters, **settings)
    with pytest.raises(BadValue, match="at least 0"):
        bandit().replace(staleness=-1)


@pytest.mark.parametrize(("name", "why"), [("sec", "arms' values"), ("rlpr", "keep_spread")])
def test_selects_that_must_know_the_last_step_are_refused(letters, name, why):
    from selfteach.loop.method_on_task import check_run_ahead

    method = registry.methods.get(name)()
    check_run_ahead(method, 0, False)
    with pytest.raises(BadValue, match=why):
        check_run_ahead(method, 1, False)


# ---- interruption


def test_weights_change_in_the_middle_of_an_answer(letters):
    """Each token's log-probability is that of the weights of its version, after all that precedes it."""
    loop = loop_of(bandit(), letters, max_tokens=40)
    engine = loop.engine
    assert engine is not None
    old = weights_of(loop)
    new = {n: w + 0.05 * (i + 1) * w.sign() for i, (n, w) in enumerate(old.items())}
    context = letters.encode("abc")
    drawn: list[int] = []
    changed = asyncio.Event()

    async def go() -> Any:
        def on_tokens(ids: np.ndarray) -> None:
            drawn.extend(ids.tolist())
            if len(drawn) >= 5:
                changed.set()

        sampling = Sampling(max_tokens=40)
        tasks = [
            asyncio.create_task(engine.generate("policy", context, sampling, key, on_tokens if not key else None))
            for key in range(3)
        ]
        await changed.wait()
        with pytest.raises(EngineMismatch):
            engine.load("policy", new, 7)
        engine.load_running("policy", new, 7)
        return [await t for t in tasks]

    completions = asyncio.run(go())
    mixed = [c for c in completions if not isinstance(c.version, int)]
    assert mixed
    scores = {}
    for version, weights in ((0, old), (7, new)):
        engine.load("policy", weights, version)
        scores[version] = [asyncio.run(engine.score("policy", context, c.ids, ("logp",)))["logp"] for c in completions]
    for n, c in enumerate(completions):
        versions = np.broadcast_to(c.version, len(c.ids))
        assert set(versions) <= {0, 7} and (np.diff(versions) >= 0).all()
        want = np.where(versions == 0, scores[0][n], scores[7][n])
        assert np.allclose(c.logp, want, atol=1e-5)


def test_interrupted_steps_hold_tokens_of_several_versions_within_the_bound(letters):
    loop = loop_of(bandit(), letters, staleness=3, interrupt=True, steps=9, max_tokens=30)

    async def go() -> list[Any]:
        return [await loop.advance() for _ in range(9)]

    steps = asyncio.run(go())
    for step, (metrics, groups, _) in enumerate(steps):
        versions = np.concatenate([e.tree.version[e.tree.action_mask] for g in groups for e in g.episodes])
        assert versions.min() >= step - 3 and versions.max() <= step
        assert metrics["staleness/max"] <= 3 and account_holds(metrics)
    assert loop.done and not len(loop.ahead)
