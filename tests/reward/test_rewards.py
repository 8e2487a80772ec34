"""Rewards by value, rewards made of rewards, and what becomes of a reward at fault: recorded, counted, and past a share
the end.
"""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.episodes import scripted_context
from support.models import mini
from support.scores import Reader, ask, by_sample, group_of

from selfteach.core import BadValue, Block, Ref, RolloutRequest, Score, ScoringFailed, Task, Trajectory, scoring
from selfteach.core.answers import normalise
from selfteach.core.blocks import block as registry_block
from selfteach.core.registry import tasks
from selfteach.core.scoring import nested, score, whole_step
from selfteach.loop import assemble
from selfteach.loop.episode import play
from selfteach.loop.metrics_history import summary
from selfteach.methods.grpo import grpo
from selfteach.methods.ssrl import search_format
from selfteach.model.catalog import StartModel
from selfteach.reward.answer import exact_match, same_text
from selfteach.reward.combine import clip, gate, over_episode, weighted
from selfteach.rollout.single import single

# ---- the format score of SSRL: F = min(T/2, 1) * min(T, S+1) / max(T, S+1), T thoughts, S searches


# ---- answers


def test_the_same_text_is_the_same_but_for_white_space():
    for said, gold, value in (
        ("a b  c", "abc", 1),
        ("abc", ("xyz", "a bc"), 1),
        ("Abc", "abc", 0),
        ("abc.", "abc", 0),
        (None, "None", 0),  # no answer is no text
        ("None", "None", 1),
    ):
        got = same_text(answer=said, task=Task("t", "", gold))
        assert got.value == got.parts["answer"] == value and bool(got.why) is not bool(value)


@pytest.mark.parametrize(
    "answer,gold,value",
    [
        ("Paris", "paris", 1),
        (" The  Paris. ", ("Rome", "Paris"), 1),
        ("U.S.A.", "usa", 1),
        ("theatre", "theatre", 1),  # an article inside a word stays
        ("an apple a day", "apple day", 1),
        ("Paris!", ["Berlin"], 0),
        ("", "", 1),
        ("", "x", 0),
        (None, "none", 0),  # no answer is a wrong answer, whatever it is called
        (12, (12,), 1),
        ("12", 12, 1),
        ("12.0", 12, 1),  # numbers by value
        ("1,200", 1200, 1),
        ("-7", 7, 0),
        ("-7", -7, 1),
        ("- 7.0", "-7", 1),
        ("\N{MINUS SIGN}7", "-7", 1),
        ("-7 apples", "7 apples", 0),  # among words too
        ("-$7", "$7", 0),
        ("$12", 12, 1),
        ("3.5 km", "35 km", 0),
        ("1990-1995", "1990 1995", 0),
        ("well-known", "wellknown", 1),  # a hyphen is no sign
        ("1e999999999", "7", 0),
        ("São Tomé", "são tomé", 1),
    ],
)
def test_exact_match(answer, gold, value):
    assert exact_match(answer=answer, task=Task("t", "", gold)).value == value


def test_normalise_is_stable():
    for text in ("The  U.S. Dollar!", "a an the", "x-y", "A.B", "-$7.50 each", "(-7)", "1.2.3"):
        assert normalise(normalise(text)) == normalise(text)


def test_a_task_s_own_verifier_goes_before_its_answer():
    @registry_block
    def longer(*, answer: Any, than: int = 3) -> float:
        """Is it longer?"""
        return float(len(answer) > than)

    task = Task("t", "", "abcd", verifier=longer(than=2))
    assert [exact_match(answer=a, task=task).value for a in ("xyz", "xy")] == [1.0, 0.0]
    assert exact_match(answer="Abcd", task=Task("t", "", "abcd")).value == 1.0
    assert exact_match(answer="Abcd", task=Task("t", "", "abcd", verifier=same_text())).value == 0.0


# ---- rewards made of rewards


def test_weighted_is_the_sum_and_keeps_parts_and_reasons():
    half = by_sample(*(Score(v, {"h": v}, f"why{v}") for v in (0.0, 1.0, 0.5, 1.0)))
    got = ask(weighted(parts=((0.5, half), (2.0, by_sample(1, 1, 0, 0)))))
    assert [s.value for s in got] == [2.0, 2.5, 0.25, 0.5]
    assert got[1].parts == {"h": 1.0} and got[1].why == "why1.0"


def test_an_unknown_part_makes_the_whole_unknown():
    known = by_sample(1, 1, 1, 1)
    odd = by_sample(1, None, math.nan, ValueError("x"))
    for made in (
        weighted(parts=((1.0, known), (0.1, odd))),
        gate(by=odd, then=known),
        gate(by=known, then=odd),
        clip(reward=odd),
    ):
        got = ask(made)
        assert [s.value is None for s in got] == [False, True, True, True], str(made)
        assert [bool(s.error) for s in got] == [False, True, True, True]


def test_a_part_that_hangs_costs_its_sample_not_its_group():
    def hangs(*, text: str) -> float:
        time.sleep(0.5 if text == "1" else 0)
        return 1.0

    got = ask(weighted(parts=((1.0, by_sample(1, 1, 1, 1)), (1.0, clip(reward=Block(hangs))))), deadline=0.2)
    assert [s.value for s in got] == [2.0, None, 2.0, 2.0] and "no score within 0.2 s" in got[1].error


@pytest.mark.parametrize("name", ["text", "path"])
def test_what_an_episode_said_in_several_contexts_is_scored_as_one(tags, name):
    async def contexts(*, request: RolloutRequest, rollout: Any) -> str:
        for learn, asked in (("main", "A: "), (None, "B: "), ("main", "C: ")):
            context = rollout.policy.begin(asked)
            await context.sample()
            context.append(f"told {asked}", span="told")
            context.close(learn=learn)
        return "c"

    def reads(text: str) -> Score:
        return Score(float(len(text)), {"length": float(len(text))}, text)

    def of_text(*, text: str) -> Score:
        return reads(text)

    def of_path(*, path: Any, context: Any) -> Score:
        assert len(path.ids) == len(path.action_mask) == len(path.spans) == len(path.logp) and path.prompt == 3
        assert context.tokenizer is tags and path.spans.count("told") == 2 * len("told A: ")
        assert tags.decode(path.ids) == "A: onetold A: threetold C: "  # no prompt but the first
        return reads(context.tokenizer.decode(path.ids[path.action_mask]))

    played = scripted_context(Block(contexts), ["one", "unseen", "three"], tags)
    (group,) = asyncio.run(play(played, [RolloutRequest(Task("t", "Q"), key="t")]))
    reward = over_episode(reward=Block(of_text if name == "text" else of_path))
    found = asyncio.run(score(reward, [group], played))["reward"]
    first, _, last = (t.leaf for t in group.episodes[0].trajectories)
    assert {*found} == {first, last}  # of what is not learned there is no score
    assert found[first] == Score(8.0) and found[last] == Score(
        8.0, {"length": 8.0}, "onethree"
    )  # parts and reason once


def test_a_failure_in_a_whole_episode_is_one_at_each_of_its_ends():
    def odd(*, text: str) -> str:
        return "odd"

    assert all(s.value is None and "odd" in (s.error or "") for s in ask(over_episode(reward=Block(odd))))
    assert all("BadValue: over_episode: it has no reward" in (s.error or "") for s in ask(over_episode()))

    def early(*, group: Any) -> Any:
        return {"reward": {Ref(e.id, 0): Score(1.0) for e in group.episodes}}

    assert all("places before the end" in (s.error or "") for s in ask(over_episode(reward=Block(early))))


def test_a_gate_is_open_above_zero_unless_told_otherwise():
    part = gate(by=by_sample(0, 0.01, -1, 1), then=by_sample(2, 2, 2, 2))
    assert [s.value for s in ask(part)] == [0, 2, 0, 2]


def test_gate_and_clip():
    assert [s.value for s in ask(gate(by=by_sample(0, 1, 2, 0.5), then=by_sample(5, 6, 7, 8), above=0.5))] == [
        0,
        6,
        7,
        0,
    ]
    for part in (clip(reward=by_sample(-1, 0.5, 2, 1), low=0.0, high=1.0), clip(reward=by_sample(-1, 0.5, 2, 1))):
        assert [s.value for s in ask(part)] == [0, 0.5, 1, 1]
    assert all("BadValue: gate: it needs two rewards" in (s.error or "") for s in ask(gate(by=by_sample(1, 1, 1, 1))))


def test_a_whole_step_reward_is_known_through_what_is_made_of_it():
    late = Block(lambda *, groups: {})
    assert whole_step(late) and not whole_step(exact_match())
    assert whole_step(weighted(parts=((1.0, exact_match()), (1.0, clip(reward=late)))))


def test_the_rewards_in_a_reward_are_known_at_any_depth():
    inner = weighted(parts=((1.0, exact_match()), (1.0, search_format())))
    assert [b.name for b in nested(weighted(parts=((1.0, clip(reward=inner)),)))] == [
        "clip",
        "weighted",
        "exact_match",
        "search_format",
    ]


# ---- rewards at fault


@pytest.mark.parametrize(
    "given,says",
    [
        ("0.5", "returned str '0.5', not a number"),
        (torch.tensor([0.5]), "returned Tensor"),
        (None, "returned None: no score"),
        (math.nan, "value is nan"),
        (np.float64("inf"), "value is inf"),
        (Score(1.0, {"x": "y"}), "part 'x' is a str"),
        (ValueError("division of sheep"), "raised ValueError: division of sheep"),
        (TimeoutError("its own"), "raised TimeoutError: its own"),
        ({"reward": 1}, "returned dict"),
    ],
    ids=lambda v: type(v).__name__,
)
def test_a_fault_is_recorded_with_its_sample_and_costs_no_other(given, says):
    got = ask(by_sample(1.0, given, 0.5, 0.25))
    assert [s.value for s in got] == [1.0, None, 0.5, 0.25]
    assert says in (got[1].error or "") and all(s.error is None for s in (got[0], got[2], got[3]))


def test_an_async_reward_is_awaited_and_its_faults_are_recorded():
    async def given(*, text: str) -> Any:
        await asyncio.sleep(0 if text != "1" else 60)
        return {"0": 1.0, "2": "high", "3": 0.25}[text]

    got = ask(Block(given), deadline=0.2)
    assert [s.value for s in got] == [1.0, None, None, 0.25]
    assert "within 0.2 s" in got[1].error and "returned str" in got[2].error


def test_a_reward_that_hangs_is_given_up_and_those_after_it_are_asked():
    late = []

    def hangs(*, text: str) -> float:
        if text in ("1", "2"):
            time.sleep(0.7)
            late.append(text)
        return float(text)

    async def main() -> Any:
        group = group_of()
        found = await score(Block(hangs), [group], Reader(), 0.3)
        before = dict(found["reward"])
        await asyncio.sleep(1.0)  # the lost threads wake up and find that nobody waits
        return before, found["reward"]

    before, after = asyncio.run(main())
    assert [s.value for s in before.values()] == [0.0, None, None, 3.0]
    assert all("no score within 0.3 s" in s.error for s in list(before.values())[1:3])
    assert before == after and late, "a verdict that came too late changed what was already told"


def test_the_deadline_is_for_one_call_not_for_all_of_them():
    def slow(*, text: str) -> float:
        time.sleep(0.15)
        return float(text)

    assert [s.value for s in ask(Block(slow), deadline=0.4)] == [0, 1, 2, 3]  # 0.6 s in all


def test_scores_that_are_all_there_are_taken_though_their_thread_has_not_come_back(monkeypatch):
    """As after a stop of the whole process, in which the deadline went by: what waits hears of that first."""

    def never_back(fn: Any) -> asyncio.Future[Any]:
        fn()
        return asyncio.get_running_loop().create_future()

    monkeypatch.setattr(scoring, "run_in_thread", never_back)
    assert [s.value for s in ask(by_sample(1.0, 0.0, 0.5, 2.0), deadline=0.05)] == [1.0, 0.0, 0.5, 2.0]


def test_a_path_closed_twice_is_scored_once():
    group = group_of(2)
    first = group.episodes[0].trajectories[0]
    group.episodes[0].trajectories.append(Trajectory(first.leaf, "policy", "other"))
    found = asyncio.run(asyncio.wait_for(score(by_sample(1.0, 2.0), [group], Reader(), 5.0), 5))["reward"]
    assert [s.value for s in found.values()] == [1.0, 2.0]


@pytest.mark.parametrize(
    "fn,says",
    [
        (lambda *, group: 1.0, "AttributeError"),
        (lambda *, group: None, "AttributeError"),
        (lambda *, group: {"reward": 1.0}, "AttributeError"),
        (lambda *, group: {"reward": {"e/0": 1.0}}, "'e/0', which is no place"),
        (lambda *, group: {"reward": {Ref("somewhere", 1): 1.0}}, "which is no place in these groups"),
        (lambda *, group: time.sleep(60), "no score within 0.2 s"),
        (lambda *, group: 1 / 0, "ZeroDivisionError"),
    ],
    ids=["number", "None", "no places", "strange place", "foreign place", "hangs", "raises"],
)
def test_a_group_reward_at_fault_leaves_its_group_without_verdicts(fn, says):
    got = ask(Block(fn), deadline=0.2)
    assert len(got) == 4 and all(s.value is None and says in s.error for s in got)


def test_what_teaches_nothing_is_not_scored():
    group = group_of(2)
    leaf = group.episodes[0].trajectories[0].leaf
    group.episodes[0].trajectories[0] = Trajectory(leaf, "judge", "k", learn=None)
    assert [s.value for s in ask(by_sample(7.0, 2.0), group)] == [2.0]


# ---- in the loop


def loop_with(
    reward: Block, letters: Any, unscored: float = 0.1, seconds: float = 5.0, groups: int = 4, rollouts: int = 5
) -> Any:
    method = grpo(groups=groups, rollouts=rollouts).replace(reward=(reward,))
    start = StartModel(mini(264), letters, False, {})
    settings = assemble.RunSettings(steps=3, max_tokens=3, max_unscored=unscored, reward_seconds=seconds)
    return assemble.loop(method, tasks.get("bandit")(), start, settings)


def numbered(values: Any) -> Block:
    """A reward that gives the n-th call its n-th value."""
    calls = iter(range(10**9))

    def given(*, text: str) -> Any:
        value = values(next(calls))
        if isinstance(value, Exception):
            raise value
        return value

    return Block(given)


def test_a_few_faults_are_counted_and_the_rest_is_learned(letters):
    loop = loop_with(numbered(lambda n: None if n == 7 else float(n % 2)), letters)
    metrics, groups, batch = asyncio.run(loop.advance())
    assert metrics["rollout/unscored"] == 1 and metrics["rollout/episodes"] == 20
    lost = metrics["dropped/unscored"]
    assert lost > 0 and metrics["tokens/sampled"] == metrics["tokens/learned"] + lost
    assert batch is not None and batch.size("seq") == 19
    errors = [s.error for g in groups for s in g.scores["reward"].values() if s.error]
    assert errors == ["the reward returned None: no score"]
    assert summary(groups)["rollout/unscored"] == 1


@pytest.mark.parametrize(
    "fault", ["text", torch.tensor(1.0), None, math.nan, ValueError("boom")], ids=lambda f: type(f).__name__
)
def test_past_a_share_the_run_stops_with_five_examples(fault, letters):
    loop = loop_with(numbered(lambda n: fault if n % 2 else 1.0), letters)
    with pytest.raises(ScoringFailed) as caught:
        asyncio.run(loop.advance())
    first, *examples, last = str(caught.value).splitlines()
    assert first == "step 0: 10 of 20 trajectories have no score (limit 10%)"
    assert len(examples) == 5 and all(e.startswith("  train/0/0/") for e in examples) and "--max-unscored" in last


def test_the_share_may_be_allowed(letters):
    loop = loop_with(numbered(lambda n: None if n % 2 else float(n % 4)), letters, unscored=0.6)
    metrics, _, _ = asyncio.run(loop.advance())
    assert metrics["rollout/unscored"] == 10


def test_episodes_that_fail_count_too(letters):
    async def half(*, request: RolloutRequest, rollout: Any) -> str:
        if rollout.random("fail").random() < 0.5:
            raise RuntimeError("the environment fell over")
        context = rollout.policy.begin("a")
        await context.sample()
        context.close()
        return ""

    loop = loop_with(numbered(lambda n: float(n % 2)), letters)
    loop.method = replace(loop.method, stages=(replace(loop.method.stage, programs={"main": Block(half)}),))
    with pytest.raises(
        ScoringFailed, match=r"\d+ of 20 .*\n  train/0/0/\d/\d: RuntimeError: the environment fell over"
    ):
        asyncio.run(loop.advance())


def test_a_share_is_of_trajectories_not_of_episodes(letters):
    async def five(*, request: RolloutRequest, rollout: Any) -> str:
        for _ in range(5):
            context = rollout.policy.begin("a")
            await context.sample()
            context.close()
        return ""

    loop = loop_with(numbered(lambda n: None if n % 25 == 0 else float(n % 2)), letters, groups=2, rollouts=5)
    loop.method = replace(loop.method, stages=(replace(loop.method.stage, programs={"main": Block(five)}),))
    metrics, _, _ = asyncio.run(loop.advance())  # 2 of 50 is within a tenth, though it is a fifth of the 10 episodes
    assert metrics["rollout/unscored"] == 2


def test_two_rewards_may_not_score_the_same_column(letters):
    loop = loop_with(numbered(lambda n: 1.0), letters)
    loop.method = replace(loop.method, stages=(replace(loop.method.stage, reward=(exact_match(), same_text())),))
    with pytest.raises(BadValue, match="two rewards score 'reward' at the same place"):
        asyncio.run(loop.advance())


def test_a_reward_of_the_whole_step_sees_all_groups_and_runs_last(letters):
    order = []

    def early(*, group: Any) -> Any:
        order.append(1)
        return {"early": {t.leaf: 1.0 for e in group.episodes for t in e.trajectories}}

    def ranked(*, groups: Any) -> Any:
        order.append(len(groups))
        leaves = [t.leaf for g in groups for e in g.episodes for t in e.trajectories]
        assert all("early" in g.scores for g in groups)
        return {"reward": {at: i / len(leaves) for i, at in enumerate(leaves)}}

    loop = loop_with(Block(ranked), letters)
    loop.method = replace(loop.method, stages=(replace(loop.method.stage, reward=(Block(ranked), Block(early))),))
    metrics, _, batch = asyncio.run(loop.advance())
    assert order == [1] * 4 + [4] and metrics["reward/mean"] == pytest.approx(sum(range(20)) / 20 / 20)
    assert batch is not None and set(batch.get("early", "seq")) == {1.0}


def test_real_texts_are_scored_with_a_step_context(tags):
    context = scripted_context(single(), ["<think>t</think><answer>a</answer>", "nothing"], tags)
    (group,) = asyncio.run(play(context, [RolloutRequest(Task("t", "Q: ", "a"), 2, key="t")]))
    found = asyncio.run(score(weighted(parts=((0.9, exact_match()), (0.1, search_format()))), [group], context))[
        "reward"
    ]
    assert [s.value for s in found.values()] == pytest.approx([0.9 + 0.1 * 0.5, 0.0])
    assert [dict(s.parts) for s in found.values()] == [{"answer": 1.0, "format": 0.5}, {"answer": 0.0, "format": 0.0}]
