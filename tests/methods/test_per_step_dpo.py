"""Per-step DPO by hand: where the pit of a wrong answer is, and the pairs that it makes."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from support.battery import of
from support.by_hand import token_gradient
from support.episodes import full_text, scripted_context, single_turn_group

from selfteach.core import RolloutRequest, Task, block, collate
from selfteach.core.scoring import score
from selfteach.loop.episode import play
from selfteach.methods.per_step_dpo import first_pit, first_pit_pairs, valued_states
from selfteach.rollout.vines import vines

NAN = math.nan
QUESTION = Task("t", "Q:", "7")


@block
def right_unless(*, step: str, contains: str = "") -> bool | None:
    """Whether a step is right; None where there is no step."""
    return contains not in step if "." in step else None


@pytest.mark.parametrize(
    "values,reward,want",
    [
        ([0.5, 0.6, 0.2, 0.4], 0.2, 1),  # the first of two that are as low
        ([0.9, 0.5, 0.9], 0.0, 2),  # over the last step the reward replaces the value
        ([0.9, 0.0, 0.9], 0.0, 0),  # where all attempts fail, though later ones do not
        ([0.5, NAN, 0.4], 0.4, 0),  # an unknown value joins two steps
        ([0.0, 0.0], 0.0, None),  # nothing to lose
        ([NAN], 0.0, 0),  # nothing known: the answer is one step
    ],
)
def test_the_first_pit(values, reward, want):
    assert first_pit(values, reward) == want


def scored(letters: Any, reply: Any, n: int = 2, k: int = 2, task: Task = QUESTION) -> tuple[Any, Any]:
    context = scripted_context(vines(k=k), reply, letters)
    group = asyncio.run(play(context, [RolloutRequest(task, n, key="k")]))[0]
    return group._replace(scores=asyncio.run(score(valued_states(), [group], context))), context


def said(example: Any, group: Any, letters: Any) -> str:
    """The text of an example."""
    trees = {e.id: e.tree for e in group.episodes}
    parts = list[str]()
    for s in example.segments:
        tree, node = trees[s.source.episode], s.source.node
        ids = tree.id[tree.begin[node] : tree.stop(node)]
        parts.append(letters.decode(ids[s.start : s.stop]))
    return "".join(parts)


@pytest.mark.parametrize(("wrong", "found"), [("2.", 1.0), ("1.", 0.0), ("3.", None)])
def test_the_pit_is_compared_with_the_first_step_that_the_task_calls_wrong(letters, wrong, found):
    """Every continuation is right until `2.` is written, and none from there: the pit is the second step."""
    asked: list[str] = []

    def reply(text: str, rng_key: int) -> str:
        asked.append(text)
        if text == "Q:" and asked.count(text) <= 2:
            return "<answer>7</answer>" if asked.count(text) == 1 else "1. 2. <answer>5</answer>"
        return " <answer>5</answer>" if text.endswith("2.") else " <answer>7</answer>"

    judged = Task("t", "Q:", "7", judges={"step": right_unless(contains=wrong)})
    group, _ = scored(letters, reply, task=judged)
    (lost,) = [s for s in group.scores["reward"].values() if s.value == 0]
    assert lost.parts.get("pit_found") == found


def test_a_wrong_answer_is_paired_with_a_right_continuation_from_before_its_pit(letters):
    """The first answer is right. The second says `1. 2. 5`: from the prompt and after `1.` every continuation is right,
    after `2.` none, so that the pit is its second step.
    """
    asked: dict[str, int] = {}

    def reply(text: str, rng_key: int) -> str:
        asked[text] = asked.get(text, 0) + 1
        if text == "Q:" and asked[text] <= 2:
            return "<answer>7</answer>" if asked[text] == 1 else "1. 2. <answer>5</answer>"
        return " <answer>5</answer>" if text.endswith("2.") else f" {'x' * asked[text]}<answer>7</answer>"

    group, context = scored(letters, reply)
    made = first_pit_pairs(groups=[group])
    batch = collate(made, context.tree)
    assert batch.index["win"].tolist() == [1, 2] and batch.index["lose"].tolist() == [0, 0]  # both vines after `1.`
    played = [(e, n, t.leaf) for e in group.episodes for n, t in enumerate(e.trajectories)]
    texts = {f"{leaf.episode}:{leaf.node}": full_text(e, letters, n) for e, n, leaf in played}
    lost, *won = (texts[e.name] for e in made)
    assert lost == "Q:1. 2. <answer>5</answer>"
    assert all(w.startswith("Q:1. ") and w.endswith("<answer>7</answer>") and "2." not in w for w in won)
    # of the wrong answer what its pit and what is before it say, and of a right one all
    assert said(made[0], group, letters) == "Q:1. 2." and said(made[1], group, letters) == won[0]
    # what both share is learned in both, and cancels
    assert made[0].segments[1].source == made[1].segments[1].source


def test_a_pit_at_the_first_step_may_be_won_by_a_sibling(letters):
    def reply(text: str, rng_key: int, seen: list[int] = []) -> str:  # noqa: B006
        seen.append(1)
        first = "<answer>7</answer>" if len(seen) % 2 else "1. <answer>5</answer>"
        return first if text == "Q:" else " <answer>5</answer>"

    group, _ = scored(letters, reply, n=2, k=1)
    wrong = [at for at, found in group.scores["reward"].items() if found.value == 0]
    made = first_pit_pairs(groups=[group])
    assert len(wrong) == 1 and [e.preferred_over for e in made] == [(), (0,)]


def test_without_steps_whole_answers_are_compared():
    # No vines. Rewards 1, 0, 0: both wrong answers lose to the right one; logp - ref is 0 so each pair has the slope
    # -beta sigmoid(0) = -1/20 per token, and two pairs weigh 1/2: 2 * 1/40 for the winner, 1/40 for each loser.
    group = single_turn_group([(5,), (6, 7), (8,)], [1.0, 0.0, 0.0])
    made = first_pit_pairs(groups=[group])
    assert [e.preferred_over for e in made] == [(), (0, 2), ()]
    assert [e.name.split(":")[0][-1] for e in made] == ["1", "0", "2"]
    got = token_gradient(of("per_step_dpo"), [group], [-1.0] * 4, ref_logp=[-1.0] * 4)
    assert got == pytest.approx([0.025, 0.025, -0.05, 0.025])
    assert first_pit_pairs(groups=[single_turn_group([(5,), (6,)], [0.0, 0.0])]) == []
    assert first_pit_pairs(groups=[single_turn_group([(5,), (6,)], [None, 0.0])]) == []


def test_a_group_whose_answers_are_all_wrong_learns_from_its_vines(letters):
    def reply(text: str, rng_key: int, seen: list[str] = []) -> str:  # noqa: B006
        seen.append(text)
        if seen.count("Q:") <= 2 and text == "Q:":
            return "1. <answer>5</answer>"
        return f" <answer>{5 if text.endswith('1.') else 7}</answer>"

    group, _ = scored(letters, reply, n=2, k=1)
    assert {found.value for found in group.scores["reward"].values()} == {0.0}
    made = first_pit_pairs(groups=[group])
    # each episode's vine from the prompt is right, and wins over its own answer
    assert sorted(e.preferred_over for e in made) == [(), (), (0,), (2,)]
    assert [float(e.given["reward"][1]) for e in made] == [0.0, 1.0, 0.0, 1.0]


def test_without_steps_continuations_start_at_the_prompt_alone(letters):
    program = of("per_step_dpo", by_step=False, k=2).stage.programs["main"]
    context = scripted_context(program, lambda text, _: "1. 2. <answer>5</answer>", letters)
    (episode,) = asyncio.run(play(context, [RolloutRequest(Task("t", "Q:", "7"), 1, key="k")]))[0].episodes
    assert [full_text(episode, letters, n) for n in range(len(episode.trajectories))] == [
        "Q:1. 2. <answer>5</answer>"
    ] * 3
