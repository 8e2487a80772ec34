"""Environments: a user's class is played, what it does wrong costs its own episode, and is one line where it is seen
before any work.
"""

from __future__ import annotations

import asyncio
import json
import re
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.episodes import full_text, scripted_context

from selfteach import Env, api
from selfteach.cli import main
from selfteach.configuration import plan, task_source
from selfteach.core import BadValue, RolloutRequest, SelfteachError, Task, registry
from selfteach.core.scoring import score
from selfteach.credit.composers import per_trajectory
from selfteach.loop.assemble import with_chat_prompts
from selfteach.loop.episode import play
from selfteach.loop.evaluate import evaluate
from selfteach.loop.step_context import EpisodeLimits
from selfteach.methods import grpo, rloo, ssrl, ttrl
from selfteach.reward.payoff import episode_return
from selfteach.rollout.act import act
from selfteach.tasks.environment import environment, environment_source
from selfteach.tools.environment import environment as tool

ROOT = Path(__file__).parents[2]


class Count(Env):
    """Say up until three."""

    def reset(self, task: Task) -> str:
        self.at = 0
        return "count to 3"

    def step(self, text: str) -> tuple[str, float, bool]:
        self.at += text == "up"
        return f"{self.at}", 0.25 if text == "up" else -1.0, self.at == 3

    def actions(self):
        return ["up", "no"]

    def expert(self):
        return "up"


def played(cls: type[Env], replies: Any, tags: Any, n: int = 1, **more: Any) -> Any:
    """One group of episodes of an environment, with scripted replies."""
    limits = more.pop("limits", EpisodeLimits())
    tools = {"environment": tool(make=cls, name=cls.__name__)()}
    context = scripted_context(act(**more), replies, tags, tools=tools, limits=limits)
    task = Task("t", "play.", ("success",), tags={"environment": cls.__name__, "seed": 0})
    return context, asyncio.run(play(context, [RolloutRequest(task, n)]))[0]


@pytest.mark.parametrize("in_thread", [True, False])
def test_an_environment_that_never_waits_can_do_without_a_thread(tags, in_thread):
    threads = set[str]()

    class Noted(Count):
        def step(self, text: str) -> tuple[str, float, bool]:
            threads.add(threading.current_thread().name)
            return super().step(text)

    Noted.in_thread = in_thread
    options = {"n_test": 1, "noise": 0.0, "seed": 0, "max_turns": 0}
    source = environment_source("environment", lambda: Noted(), "Noted", options, Noted)
    context = scripted_context(source.program, ["up\n"] * 3, tags, tools={"environment": source.tools["environment"]()})
    threads.clear()  # of the demonstration by which the source tried it
    (group,) = asyncio.run(play(context, [RolloutRequest(source.train(0), 1)]))
    assert group.episodes[0].answer == "success"
    assert (threading.main_thread().name in threads) is not in_thread


def scored(group: Any, context: Any) -> Any:
    return asyncio.run(score(episode_return(), [group], context))


def test_an_episode_is_played_and_its_turns_are_rewarded(tags):
    context, group = played(Count, ["up\n", "<answer>no</answer>\n", "up\n", "up\n"], tags)
    episode = group.episodes[0]
    assert full_text(episode, tags) == "count to 3\nup\n1\n<answer>no</answer>\n1\nup\n2\nup\n"
    assert episode.answer == "success"
    scores = scored(group, context)
    (verdict,) = scores["reward"].values()
    assert verdict.value == -0.25 and verdict.parts == {"success": 1.0, "turns": 4}
    group.scores.update(scores)
    (example,) = per_trajectory(groups=[group])
    unit, values = example.given["turn_reward"]
    assert unit == "step" and [v for v in np.ravel(values) if v == v] == [0.25, -1.0, 0.25, 0.25]
    learned = tags.decode(episode.tree.id[episode.tree.action_mask])
    assert learned == "up\n<answer>no</answer>\nup\nup\n"  # observations are not


def test_an_episode_that_never_ends_is_cut_off(tags):
    context, group = played(Count, lambda *_: "no\n", tags, max_turns=5)
    (verdict,) = scored(group, context)["reward"].values()
    assert verdict.value == -5 and verdict.parts == {"success": 0.0, "turns": 5}


def test_a_token_limit_ends_an_episode(tags):
    context, group = played(Count, lambda *_: "no\n", tags, limits=EpisodeLimits(tokens=7))
    assert group.episodes[0].answer == "failure"
    (verdict,) = scored(group, context)["reward"].values()
    assert verdict.value is not None and verdict.parts["success"] == 0.0


def faulty(**methods: Any) -> type[Env]:
    return type("Faulty", (Count,), methods)


def hangs(self: Any, text: str) -> Any:
    time.sleep(20)


FAULTS = {
    "reset raised KeyError": faulty(reset=lambda self, task: {}["x"]),
    "reset returned a int": faulty(reset=lambda self, task: 3),
    "step raised ZeroDivisionError": faulty(step=lambda self, text: 1 / 0),
    "step returned 2 values": faulty(step=lambda self, text: ("a", 1.0)),
    "step returned a str": faulty(step=lambda self, text: "a"),
    "reward 'nan'": faulty(step=lambda self, text: ("a", float("nan"), False)),
    "reward 'much'": faulty(step=lambda self, text: ("a", "much", False)),
    "neither True nor False": faulty(step=lambda self, text: ("a", 1.0, "yes")),
    "1,000,000 characters": faulty(step=lambda self, text: ("a" * 1_000_000, 1.0, False)),
    "cannot be encoded": faulty(step=lambda self, text: ("\ud800", 1.0, False)),
    "success raised ValueError": faulty(
        step=lambda self, text: ("a", 1.0, True), success=lambda self, rewards: int("x")
    ),
    "no dict of numbers": faulty(step=lambda self, text: ("a", 1.0, True), notes=lambda self: {"progress": "far"}),
    "progress = nan": faulty(step=lambda self, text: ("a", 1.0, True), notes=lambda self: {"progress": float("nan")}),
    "SystemExit": faulty(step=lambda self, text: exit(3)),
    "no answer within 0.2 s": faulty(step=hangs),
}


@pytest.mark.parametrize("why", FAULTS)
def test_what_an_environment_does_wrong_costs_its_own_episode(why, tags):
    limits = EpisodeLimits(tool_seconds=0.2 if "answer" in why else 30)
    _, group = played(FAULTS[why], lambda *_: "up\n", tags, limits=limits)
    episode = group.episodes[0]
    assert episode.status == "error" and not episode.trajectories
    assert "environment Faulty" in episode.why and why in episode.why and "\n" not in episode.why


def test_evaluation_counts_success_and_has_the_mean_return(tags):
    tools = {"environment": tool(make=Count, name="Count")()}
    context = scripted_context(act(max_turns=3), ["up\n", "up\n", "up\n", "no\n", "up\n", "up\n"], tags, tools=tools)
    tasks = [Task(str(i), "p", ("success",), tags={"seed": i}) for i in range(2)]
    result = asyncio.run(evaluate(context, tasks, episode_return(), wave=1))
    assert result.accuracy == 0.5 and result.score == pytest.approx((0.75 - 0.5) / 2) and result.failed == 0


# ---- a class as a task


def test_a_class_is_a_task_with_demonstrations(tmp_path):
    run_config = plan(grpo(), env=Count, task_options={"noise": 0.0})
    assert run_config.task == "environment" and run_config.method.stage.programs["main"].name == "act"
    assert run_config.method.stage.reward == (episode_return(),)
    source = task_source("environment", run_config.task_options)
    assert source.demos is not None
    assert {source.demos(i).data for i in range(20)} == {("up\n",)}
    assert source.demos(0).prompt.startswith("count to 3\n")
    seeds = {source.train(i).tags["seed"] for i in range(500)}
    assert len(seeds) > 490 and not seeds & {t.tags["seed"] for t in source.test}
    again = type(run_config).from_json(json.loads(json.dumps(run_config.to_json())))
    assert again == run_config


def test_methods_with_programs_of_their_own_are_refused():
    assert plan(rloo(), env=Count).method.stage.programs["main"].name == "act"
    with pytest.raises(BadValue, match=r"method ssrl on task environment: its program self_search is its own"):
        plan(ssrl(), env=Count)
    with pytest.raises(BadValue, match="ttrl"):  # its reward is a vote on answers
        plan(ttrl(), env=Count)


def test_a_conversation_gets_observations_as_messages():
    source = task_source("environment", plan(grpo(), env=Count).task_options)

    class Chat:
        chat = object()

    task = with_chat_prompts(source, Chat()).train(0)  # pyright: ignore
    assert task.prompt == [{"role": "user", "content": "play Count."}]  # so that `act` says observations


def test_a_class_without_demonstrations_has_none():
    class Silent(Env):
        def reset(self, task):
            return "say"

        def step(self, text):
            return "", float(text == "a"), True

    source = task_source("environment", plan(grpo(), env=Silent).task_options)
    assert source.demos is None and source.words is not None and "say\n" in list(source.words())


class NoStep(Env):
    def reset(self, task: Task) -> str:
        return "a"


WRONG = {
    "is a function and no selfteach.Env": lambda: Count(),
    "is a class and no selfteach.Env": dict,
    "has no step of its own": NoStep,
    r"reset\(self\) cannot be called": faulty(reset=lambda self: "a"),
    r"step\(self\) cannot be called": faulty(step=lambda self: "a"),
    "its constructor raised TypeError": faulty(__init__=lambda self, size: None),
    "reset returned a NoneType": faulty(reset=lambda self, task: None),
    "step returned 2 values": faulty(step=lambda self, text: ("a", 1.0)),
    "expert raised KeyError": faulty(expert=lambda self: {}["x"]),
}


async def asynchronous(self: Any, text: str) -> Any:
    return "a", 1.0, True


WRONG["step is async"] = faulty(step=asynchronous)


@pytest.mark.parametrize("why", WRONG)
def test_what_is_wrong_with_a_class_shows_before_any_work(why):
    with pytest.raises(BadValue, match=why) as error:
        plan(grpo(), env=WRONG[why])
    assert "\n" not in str(error.value)


def test_an_environment_takes_the_place_of_a_task():
    with pytest.raises(BadValue, match="chain_sum cannot be given beside it"):
        plan(grpo(), "chain_sum", env=Count)
    with pytest.raises(BadValue, match="max_turns must be at most 60"):
        plan(grpo(), env=Count, task_options={"max_turns": 70})
    with pytest.raises(BadValue, match="which one"):
        environment()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--env lake.py", "give FILE.py:Class"),
        ("--env nowhere.py:Lake", "no such file"),
        ("--env lake.py:Lac", "did you mean Lake"),
        ("--env lake.py:Task", "no Env"),
        ("--env lake.py:Lake --set config=depth=3", "argument of Lake"),
        ("--env lake.py:Lake --set noise=2", "noise must be a share"),
    ],
)
def test_the_command_line_says_what_is_wrong_in_a_line(words, why, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lake.py").write_text(snippets()[0] + "\n\nclass Task:\n    pass\n")
    assert main(f"train grpo {words}".split()) == 2
    error = capsys.readouterr().err.strip()
    assert why in error.replace("no selfteach.Env", "no Env") and "\n" not in error


def snippets() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs/environments.md").read_text(), re.DOTALL)


def test_the_documented_environment_is_trained_resumed_and_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    first, second, _ = snippets()
    (tmp_path / "lake.py").write_text(first)
    registry.load_file("lake.py")
    scope: dict[str, Any] = {"Lake": __import__("sys").modules["selfteach_user_lake"].Lake}
    small = second.replace("final_eval_k=0", "final_eval_k=0, final_eval_tasks=2, eval_every=0, max_unscored=1.0")
    exec(textwrap.dedent(small), scope)
    assert scope["run"].done
    assert api.resume("runs/lake").done
    figures = api.evaluate("runs/lake", api.EvalConfig(tasks=2, k=0, decoder_samples=1, pass_at_k_tasks=0))
    assert {"accuracy", "score"} <= figures.keys()


def test_the_documented_packages_are_there():
    for package in ("gymnasium", "minigrid", "reasoning_gym", "textarena"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    scope: dict[str, Any] = {}
    exec(snippets()[2], scope)
    assert all(scope[name].train(0).prompt for name in ("lake", "taxi", "grid", "sums", "hanoi"))


def test_an_environment_that_fails_later_is_named(tmp_path):
    class Later(Count):
        def reset(self, task):
            if task.id.startswith("demo"):
                raise RuntimeError("no demonstration today")
            return super().reset(task)

    with pytest.raises(SelfteachError, match="environment Later: reset raised RuntimeError: no demonstration today"):
        plan(grpo(), env=Later)
