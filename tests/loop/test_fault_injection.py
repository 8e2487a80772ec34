"""Every callable of a user's, and every await of a program, goes wrong in every way, in training and in evaluation.

Whatever it is: the run goes on, and counts what it cost; or it stops with one line that names what was called, and
resumed without the fault it ends with the same bits as a run that nobody disturbed. Every step is learned once, and
every sampled token is learned or dropped. TORTURE=1 tries all pairs of place and fault, not a sample.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import faulty  # type: ignore[import-not-found]
from support.runs import same_run

from selfteach import api
from selfteach.configuration import RunConfig, plan
from selfteach.core import registry
from selfteach.core.errors import ScoringFailed, SelfteachError
from selfteach.loop.log import read_events

FILE = Path(faulty.__file__)
AWAITS = ["begin", "sample", "tool", "tool_async", "score", "sample_again", "end"]
IN_EPISODES = [f"program.{name}" for name in AWAITS] + ["tool", "tool_async"]
# What costs its own episode, or its scores; everything else is the step's.
OF_AN_EPISODE = {*IN_EPISODES, *faulty.REWARDS, "judge"}
OF_THE_STEP = ["task", "select", "composer", "assigner", "loss", "loss_weights", "observer"]
NAMES = {"task": "faulty_select", "loss_weights": "faulty_weights"}  # by what a message names them
PLACES = [(place, "step 1") for place in (*faulty.REWARDS, *IN_EPISODES, *OF_THE_STEP)]
PLACES += [(place, "before") for place in ("judge", *IN_EPISODES)]
PAIRS = [(p, phase, f) for p, phase in PLACES for f in faulty.FAULTS]
TAKEN = [
    pair
    for n, pair in enumerate(PAIRS)
    if "TORTURE" in os.environ or (n // len(faulty.FAULTS) + n % len(faulty.FAULTS)) % 7 == 0
]


def module() -> Any:
    """The user's file as the registry has imported it: the one whose state its blocks read."""
    registry.load_file(FILE)
    return __import__("sys").modules["selfteach_user_faulty"]


def run_config_of(model: Path, place: str, fault: str) -> RunConfig:
    """Two steps with a checkpoint after each, and an evaluation before and after."""
    kind = place if place in faulty.REWARDS else "reward"
    short = {"tool_seconds": 0.5, "reward_seconds": 0.5} if fault == "hangs" else {}
    method = registry.methods.get("faulty")(scored_by=kind)
    given = {"steps": 2, "lr": 0.01, "eval_every": 0, "checkpoint_every": 1, "max_unscored": 1.0}
    run_config = plan(method, "faulty_task", model=str(model), settings={**given, **short}, use=[str(FILE)])
    evaluation = api.EvalConfig(tasks=2, pass_at_k_tasks=0, k=0, decoder_samples=1)
    return replace(run_config, final_eval=evaluation)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, mini_folder: Path) -> Callable[[str], Path]:
    """The run that nothing happens to, by its reward."""
    made: dict[str, Path] = {}

    def of(place: str) -> Path:
        kind = place if place in faulty.REWARDS else "reward"
        if kind not in made:
            made[kind] = tmp_path_factory.mktemp("undisturbed") / kind
            module().arm()
            assert api.train(run_config_of(mini_folder, place, ""), made[kind], module().said).done
        return made[kind]

    return of


def check_steps(out: Path) -> tuple[list[dict[str, Any]], float]:
    """The events of the run and what it counted as failed; that each step is there once and no token is lost."""
    events = read_events(out / "log")
    steps = [e for e in events if e["event"] == "step"]
    assert [e["step"] for e in steps] == [0, 1]
    for e in steps:
        dropped = sum(v for k, v in e.items() if k.startswith("dropped/"))
        assert e["tokens/sampled"] == e["tokens/learned"] + dropped
    figures = json.loads((out / "figures.json").read_text())
    lost = sum(e["rollout/unscored"] + e["rollout/failed_episodes"] for e in steps)
    return events, lost + sum(figures[w][k] for w in ("before", "after") for k in ("failed", "unscored"))


@pytest.mark.parametrize(("place", "phase", "fault"), TAKEN, ids=[f"{p}, {w}: {f}" for p, w, f in TAKEN])
def test_whatever_goes_wrong_anywhere(
    place: str,
    phase: str,
    fault: str,
    tmp_path: Path,
    mini_folder: Path,
    undisturbed: Callable[[str], Path],
    capfd: pytest.CaptureFixture[str],
) -> None:
    user, run_config, out = module(), run_config_of(mini_folder, place, fault), tmp_path / "run"
    expected = undisturbed(place)
    capfd.readouterr()
    user.arm(place, fault, phase)
    error: BaseException | None = None
    try:
        done = api.train(run_config, out, user.said).done
    except BaseException as raised:
        error, done = raised, False
    finally:
        happened, child = user.armed.happened, user.armed.child
        user.arm()
    assert happened == 1
    if fault == "forks":
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1, "it was ended, and did not live on"
    assert "Traceback" not in "".join(capfd.readouterr())
    harmless = fault in ("forks", "prints") or (place == "observer" and fault in faulty.NONSENSE)
    if harmless:
        assert done, error
    if not done:
        stops(place, fault, error)
        assert api.resume(out, user.said).done
        check_steps(out)
        same_run(expected, out)
        return
    assert place in OF_AN_EPISODE or harmless or fault == "changes its arguments" or fault in faulty.NONSENSE
    _, lost = check_steps(out)
    if harmless:
        same_run(expected, out)
    elif (
        fault in faulty.RAISES
        or (fault == "hangs" and place in OF_AN_EPISODE)
        or (fault in faulty.NONSENSE and place in ("judge", *faulty.REWARDS))
    ):
        assert lost > 0
    elif not lost and fault == "changes its arguments":
        same_run(expected, out)  # what it changed was its own copy


def stops(place: str, fault: str, error: BaseException | None) -> None:
    """A run that could not go on has said so in one line, with what it called by name."""
    if fault == "hangs" and not isinstance(error, SelfteachError):
        assert isinstance(error, KeyboardInterrupt)  # Ctrl-C, twice
        return
    if place == "observer":
        return  # the caller's own function: what it raises is the caller's
    assert isinstance(error, SelfteachError), repr(error)
    text = str(error)
    assert "\n" not in text or isinstance(error, ScoringFailed)
    if fault in (*faulty.RAISES, *faulty.NONSENSE) and "not finite" not in text:
        assert NAMES.get(place, f"faulty_{place}") in text
