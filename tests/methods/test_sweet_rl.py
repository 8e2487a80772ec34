"""SWEET-RL: the critic's loss by hand, what it is told, the pairs of turns of an episode, and how they are sampled."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch
from support.battery import Study, of
from support.episodes import scripted_context, single_turn_group

from selfteach.configuration import task_source
from selfteach.core import Block, RolloutGroup, Score, Task, collate
from selfteach.core.blocks import measures
from selfteach.core.env import Env
from selfteach.core.task import RolloutRequest
from selfteach.loop.episode import play
from selfteach.loop.method_on_task import for_task
from selfteach.loop.step_context import StepContext
from selfteach.methods.sweet_rl import (
    better_episodes,
    episode_preference,
    information,
    preferred_turns,
    with_candidates,
)
from selfteach.rollout.act import act
from selfteach.tools.environment import environment


class Doors(Env):
    """Two turns: `left` in both of them succeeds."""

    def reset(self, task: Task) -> str:
        self.said = list[str]()
        return "where"

    def step(self, text: str) -> tuple[str, float, bool]:
        self.said.append(text)
        done = len(self.said) == 2
        return "and then", float(done and self.said == ["left", "left"]), done


# The words of a turn's four samples, by the text before it: a function of the text, since turns run at once.
WORDS = ("left\n", "right\n", "left\n", "stay\n")


class Engine:
    """Samples the next of four words at each place; the critic finds `left` likely after being told so."""

    def __init__(self, tokenizer) -> None:
        self.tokenizer, self.asked, self.told = tokenizer, dict[bytes, int](), list[str]()

    async def generate(self, model_role, context, sampling, at):
        from selfteach.core.protocols import Completion

        n = self.asked[context.tobytes()] = self.asked.get(context.tobytes(), -1) + 1
        ids = self.tokenizer.encode(WORDS[n % 4])
        return Completion(ids, np.full(len(ids), -1.0, np.float32), "stop", 0, {})

    async def score(self, model_role, context, tokens, want=("logp",)):
        before, said = self.tokenizer.decode(context), self.tokenizer.decode(tokens)
        self.told.append(before)
        likes = model_role == "critic" and before.startswith("left\n") and said == "left\n"
        return {"logp": np.full(len(tokens), -0.5 if likes else -1.0)}


def played(tokenizer, program: Block) -> tuple[RolloutGroup, Engine, StepContext]:
    context = scripted_context(program, {}, tokenizer)
    engine = Engine(tokenizer)
    context.engine = engine  # type: ignore[assignment]
    context.model_roles = ("policy", "critic", "ref")
    context.tools = {"environment": environment(make=Doors, name="doors")()}
    request = RolloutRequest(
        Task("t", "go\n", ("success",), tags={"object": "left", "environment": "doors"}), 1, key="t"
    )
    (group,) = asyncio.run(play(context, [request]))
    assert group.episodes[0].status == "done", group.episodes[0].why
    return group, engine, context


def test_every_turn_is_sampled_several_times_and_two_of_them_are_a_pair(letters):
    group, engine, context = played(letters, with_candidates(play=act(), candidates=4, tell="object"))
    (episode,) = group.episodes
    # It goes on from the first sample: `left` twice, a success.
    assert context.whole_text(episode.trajectories[0].leaf).count("left\n") == 2
    assert all(text.startswith("left\n") for text in engine.told), "both judges are told"
    examples = preferred_turns(groups=[group])
    assert [e.labels["role"] for e in examples] == ["chosen", "rejected"] * 2
    assert [e.preferred_over for e in examples] == [(1,), (), (3,), ()]
    batch = collate(examples, {episode.id: episode.tree}.__getitem__)
    said = [letters.decode(batch.get("id")[batch.get("seq") == s]) for s in range(4)]
    # The critic prefers `left`, by half a nat: both are in the upper half, `right` and `stay` in the lower.
    assert said[0] == said[2] == "left\n" and {said[1], said[3]} <= {"right\n", "stay\n"}
    assert batch.index["win"].tolist() == [0, 2] and batch.index["lose"].tolist() == [1, 3]


def test_a_critic_that_is_told_nothing_reads_what_the_agent_reads(letters):
    _, engine, _ = played(letters, with_candidates(play=act(), candidates=2, tell=""))
    assert all(text.startswith("where\n") for text in engine.told)
    task = Task("t", "p", ("yes",), tags={"object": "bell"})
    assert [information(task, tell) for tell in ("object", "colour", "")] == ["bell\n", "yes\n", ""]


def scored(group: RolloutGroup, rewards: list[float]) -> RolloutGroup:
    at = [t.leaf for e in group.episodes for t in e.trajectories]
    return RolloutGroup(group.request, group.episodes, {"reward": dict(zip(at, map(Score, rewards), strict=True))}, "t")


def test_whole_episodes_are_preferred_by_reward_and_read_after_what_the_critic_is_told(letters):
    one, _, context = played(letters, with_candidates(play=act(), candidates=2))
    (example,) = better_episodes(groups=[scored(one, [1.0])], context=context, tell="object")
    # what it is told, and all before the first word that was sampled
    assert letters.decode(example.views["informed"]).startswith("left\nwhere\n")
    assert not better_episodes(groups=[scored(one, [1.0])], context=context, tell="")[0].views


def test_an_episodes_score_is_the_sum_of_its_turns_means():
    # h(0) = (2 + 0) / 2 + 1 = 2, h(1) = 1 / 2: beta 1/2: -log sigmoid(0.75) = log(1 + e^-0.75)
    given = {
        "critic_logp_informed": torch.tensor([2.0, 0.0, 1.0, 0.5]),
        "ref_logp_informed": torch.zeros(4),
        "step": torch.tensor([0, 0, 1, 2]),
        "seq": torch.tensor([0, 0, 1]),
        "group": torch.tensor([0, 0]),
        "win": torch.tensor([0]),
        "lose": torch.tensor([1]),
    }
    assert episode_preference(**given, beta=0.5).tolist() == pytest.approx([np.log1p(np.exp(-0.75))])
    assert measures(episode_preference(), given)["pair_accuracy"].tolist() == [True]


def test_the_program_of_an_environment_is_played_inside():
    source = task_source("twenty_questions", {"n_test": 2})
    method = for_task(of("sweet_rl", candidates=3, tell="unsure"), source, source.defaults["judge"])
    assert str(method.stage.programs["main"]) == "with_candidates(play=act(max_turns=8), candidates=3, tell='unsure')"
    assert method.decode["main"].name == "act" and method.stage.reward[0].name == "episode_return"
    whole = of("sweet_rl", by="episode")
    assert [u.params for u in whole.stage.updates] == [("policy",)] and "critic" not in whole.models


def test_a_batch_in_which_no_episode_is_better_than_another_teaches_nothing():
    study = Study(of("sweet_rl"), [single_turn_group([(5, 6), (7,)], [1.0, 1.0])])
    assert not any(g.abs().max() for g in study.gradient.values())
