"""LaSeR by hand: the policy's verdict on itself, its regression, its share of the advantage, and the weighted vote."""

from __future__ import annotations

import asyncio
import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.answers import answered_group
from support.battery import VOCAB, Study, groups_of, of, same_gradient, start
from support.episodes import scripted_context, single_turn_group
from support.tensors import f64, slope

from selfteach.core import (
    Episode,
    History,
    Ref,
    RolloutRequest,
    Score,
    Task,
)
from selfteach.core.scoring import score
from selfteach.loop.engine_roles import engine_model_roles
from selfteach.loop.episode import play
from selfteach.loop.method_on_task import needed
from selfteach.methods.laser import (
    constant_regression,
    from_step,
    per_trajectory_probed,
    probed,
    sampled_vote,
    self_mixed,
    verdict_regression,
)
from selfteach.model.attention import causal_attention
from selfteach.reward.answer import exact_match


def test_the_policy_s_word_on_its_own_answer(letters):
    # levels -12 after "7" and -19 after "8", c_ref -20, beta 0.1: 0.8 and 0.1. Of "7", right, it accepts; of "8",
    # wrong, it rejects.
    say = lambda text: [-12.0] if "7" in text else [-19.0]  # noqa: E731
    group, context, _ = answered_group(["7", "8", "7"], "7", letters, say)
    found = asyncio.run(score(probed(reward=exact_match(), beta=0.1, c_ref=-20.0), [group], context, 5.0))
    assert [s.value for s in found["reward"].values()] == [1, 0, 1] and [
        s.value for s in found["self_reward"].values()
    ] == pytest.approx([0.8, 0.1, 0.8])
    first, second, _ = found["reward"].values()
    plain = asyncio.run(
        score(probed(reward=exact_match()), [group], context, 5.0)
    )  # beta 0.1 and c_ref -20 are its own
    assert [s.value for s in plain["self_reward"].values()] == pytest.approx([0.8, 0.1, 0.8])
    for level, agrees in ((-15.0, 1), (-15.1, 0)):  # 0.5 is a verdict of right
        edge, edge_context, _ = answered_group(["7"], "7", letters, lambda text, v=level: [v])
        (found,) = asyncio.run(score(probed(reward=exact_match()), [edge], edge_context, 5.0))["reward"].values()
        assert found.parts["verified"] == found.parts["accepts"] == agrees
    assert (
        first.parts["accepts"] == 1
        and "rejects" not in first.parts
        and second.parts["rejects"] == 1
        and second.parts["level"] == -19
    )
    cut, context, engine = answered_group(["7"], "7", letters, say, status="length")
    assert (
        asyncio.run(score(probed(reward=exact_match()), [cut], context, 5.0))["self_reward"] == {} and not engine.asked
    )


def test_right_answers_are_ranked_among_the_wrong_ones_to_the_same_question(letters):
    # wrong ones at -19 and -18; right ones at -12, above both, and at -19: level with one and below the other
    say = lambda text: [-18.0 if "9" in text else -12.0 if text.rstrip()[-1] == "7" else -19.0]  # noqa: E731
    group, context, _ = answered_group(["7", "8", "7.0", "9"], "7", letters, say)
    found = asyncio.run(score(probed(reward=exact_match()), [group], context, 5.0))["reward"].values()
    assert [(s.value, s.parts.get("ranked")) for s in found] == [(1, 1.0), (0, None), (1, 0.25), (0, None)]
    alone, context, _ = answered_group(["7", "7"], "7", letters, say)
    found = asyncio.run(score(probed(reward=exact_match()), [alone], context, 5.0))["reward"].values()
    assert not any("ranked" in s.parts for s in found), "nothing to be ranked among"


def test_without_a_constant_the_reference_is_asked(letters):
    # the policy gives -12 after "7", the reference -18 there: 0.1 * 6
    group, context, engine = answered_group(["7"], "7", letters, lambda text: [0.0])

    async def levels(model_role: str, context: Any, tokens: Any, want: Any = ()) -> Any:
        return {"raw_logp": np.array([{"policy": -12.0, "ref": -18.0}[model_role]])}

    engine.score = levels  # type: ignore[method-assign]
    found = asyncio.run(score(probed(reward=exact_match(), reference="ref"), [group], context, 5.0))
    assert [s.value for s in found["self_reward"].values()] == pytest.approx([0.6])


def test_one_token_more_after_what_ended_by_itself():
    whole, cut = single_turn_group([(5, 6), (7,)], [1.0, 0.0]), single_turn_group([(8,)], [0.0], "c")
    (t,) = cut.episodes[0].trajectories
    cut.episodes[0].trajectories[0] = replace(t, status="length")
    whole.scores["self_reward"] = {whole.episodes[1].trajectories[0].leaf: Score(0.7)}

    class Names:
        reserved_token = 9

    found = per_trajectory_probed(groups=[whole, cut], context=type("Cast", (), {"tokenizer": Names}))
    assert [e.segments[-1].source for e in found] == [(9,), (9,), Ref(t.leaf.episode, t.leaf.node)]
    assert [e.segments[-1].learn for e in found] == ["verify", "verify", "main"]
    assert [float(e.given["self_reward"][1]) for e in found][1] == 0.7 and np.isnan(
        [found[0].given["self_reward"][1], found[2].given["self_reward"][1]]
    ).all()


def test_the_verdict_is_regressed_on_the_reward():
    # (0.1 (-14 + 20) - 1)^2 = 0.16; its slope 2 * 0.1 * -0.4
    lp = f64(-14.0, -25.0)
    assert constant_regression(raw_logp=lp, reward=f64(1, 0)).tolist() == pytest.approx([0.16, 0.25])
    # against a reference of -18 and -25: (0.4 - 1)^2 and (0 - 0)^2
    ref = f64(-18.0, -25.0)
    assert verdict_regression(raw_logp=lp, ref_raw_logp=ref, reward=f64(1, 0)).tolist() == pytest.approx([0.36, 0.0])
    got = slope(lambda x: constant_regression(raw_logp=x, reward=f64(1, 0), c_ref=-20.0), lp)
    assert got.tolist() == pytest.approx([-0.08, -0.1])
    got = slope(lambda x: verdict_regression(raw_logp=x, ref_raw_logp=ref, reward=f64(1, 0)), lp)
    assert got.tolist() == pytest.approx([-0.12, 0.0])


def test_laser_before_its_warm_up_is_grpo_and_after_it_has_the_regression_beside():
    groups = groups_of()
    late, early, plain = (
        Study(of("laser"), groups),
        Study(of("laser", verify_from=0, alpha=0.5, c_ref=-3.0), groups_of()),
        Study(of("grpo"), groups_of()),
    )
    same_gradient(late, plain, 1e-12)
    model = copy.deepcopy(start())
    rewards = [s.value for g in groups for s in g.scores["reward"].values()]
    right = sum(r >= 0.5 for r in rewards)
    loss = torch.zeros((), dtype=torch.float64)
    for e, r in zip([e for g in groups for e in g.episodes], rewards, strict=True):
        ids = torch.tensor(e.tree.id[e.tree.places(e.trajectories[0].leaf.node)].astype(np.int64))
        level = model.logits(model(ids[None], causal_attention))[0, -1].log_softmax(-1)[VOCAB - 1]
        loss = loss + 0.5 * (0.1 * (level + 3.0) - r) ** 2 / (2 * (right if r >= 0.5 else 12 - right))
    loss.backward()
    for name, p in model.named_tensors().items():
        assert torch.allclose(early.gradient[f"policy/{name}"] - plain.gradient[f"policy/{name}"], p.grad, atol=1e-9), (
            name
        )


def test_self_reward_enters_the_advantage_where_it_tells_siblings_apart():
    # s = (1, 0 | .5, .5), clipped; the first group's std is .7071: -+ .7071 at a tenth; the second's is none
    rows: dict[str, Any] = {
        "adv": [1.0, -1.0, 1.0, -1.0],
        "self_reward": [3.0, math.nan, 0.5, 0.5],
        "group": [0, 0, 1, 1],
        "history": History(),
    }
    assert self_mixed(**rows, step=0)["adv"].values.tolist() == pytest.approx(
        [0.9 + 0.0707107, -0.9 - 0.0707107, 1.0, -1.0]
    )
    assert self_mixed(**rows, step=1)["adv"].values.tolist() == [1, -1, 1, -1]
    assert self_mixed(**rows, step=0, gate=0.8)["adv"].values.tolist() == [1, -1, 1, -1]


def test_a_vote_in_which_each_sample_has_the_weight_of_its_own_word(tags):
    # two say 4 and one says 5; of 5 the policy thinks 0.9, of 4 0.2 each, so 5 wins where words weigh
    replies = ["<answer> 4</answer>", "<answer> 5</answer>", "<answer>4</answer>"]

    def won(**hyper_parameters: Any) -> tuple[Any, Episode]:
        context = scripted_context(sampled_vote(k=3, **hyper_parameters), replies, tags)

        async def levels(model_role: str, context: np.ndarray, tokens: np.ndarray, want: Sequence[str]) -> Any:
            assert tokens.tolist() == [tags.reserved_token]
            return {n: np.array([-11.0 if "5" in tags.decode(context) else -18.0]) for n in want}

        context.engine.score = levels  # type: ignore[union-attr, method-assign]
        (group,) = asyncio.run(play(context, [RolloutRequest(Task("t", "q", ("5",)))]))
        return group.episodes[0].answer, group.episodes[0]

    assert won()[0] == "4"
    assert won(weighted=True)[0] == "5"  # beta 0.1 and c_ref -20 are its own
    answer, episode = won(weighted=True, c_ref=-20.0)
    assert answer == "5" and [t.learn for t in episode.trajectories] == [None, "main", None]


def test_the_regression_joins_in_later():
    # nothing up to step 2, then 0.5: the step of `verify_from` itself counts
    assert [from_step(history=History(step=s), step=3, value=0.5) for s in (2, 3, 4)] == [0.0, 0.5, 0.5]
    (verify,) = [t for u in of("laser").stage.updates for t in u.terms if t.on == ("verify",)]
    assert str(verify.coef) == "from_step(step=8, value=0.1)"


def test_self_rewards_are_mixed_in_from_a_step_on_where_they_differ_enough():
    rows: dict[str, Any] = {"adv": [1.0, -1.0], "group": [0, 0], "self_reward": [0.2, -5.0]}
    assert self_mixed(**rows, history=History(step=15))["adv"].values.tolist() == [1.0, -1.0]
    # std .7071 is above a gate of a tenth, .05 sqrt 2 = .0707 is not
    later = {**rows, "history": History(step=16)}
    near = self_mixed(**later | {"self_reward": [0.6, 0.5]})["adv"].values
    assert near.tolist() == [1.0, -1.0]
    # the mean .1, the std .1414: 0.9 + 0.1 * 0.7071
    far = self_mixed(**later)["adv"].values
    assert far.tolist() == pytest.approx([0.9707107, -0.9707107])


def test_eight_samples_vote_and_a_truncated_one_has_no_weight(tags):
    table = scripted_context(sampled_vote(), ["<answer>4</answer>"], tags)
    (group,) = asyncio.run(play(table, [RolloutRequest(Task("t", "q", ("4",)))]))
    assert group.episodes[0].cost["turns"] == 8 and group.episodes[0].answer == "4"
    # of 4 the policy thinks 0.1 (-19), of 5 3 (10, which counts as 1), of 6, which never ends, 1 as well
    replies = ["<answer>6</answer>" + "x" * 300, "<answer>4</answer>", "<answer>5</answer>"]
    for level, winner in ((-10.0, "5"), (-20.0, "4"), (-25.0, "4")):
        table = scripted_context(sampled_vote(k=3, weighted=True, stop=()), replies, tags)

        async def levels(role: str, context: np.ndarray, tokens: Any, want: Any, five: float = level) -> Any:
            value = -10.0 if "6" in tags.decode(context) else five if "5" in tags.decode(context) else -19.0
            return {n: np.array([value]) for n in want}

        table.engine.score = levels  # type: ignore[union-attr, method-assign]
        (group,) = asyncio.run(play(table, [RolloutRequest(Task("t", "q", ("5",)))]))
        assert group.episodes[0].why == "" and group.episodes[0].answer == winner


def test_where_nobody_answered_the_first_sample_is_scored(tags):
    table = scripted_context(sampled_vote(k=3), [""], tags)
    (episode,) = asyncio.run(play(table, [RolloutRequest(Task("t", "q", ("5",)))]))[0].episodes
    assert (
        episode.why == "" and episode.answer == "" and [t.learn for t in episode.trajectories] == ["main", None, None]
    )


def test_two_doubtful_samples_weigh_less_than_one_of_a_little_more_than_both(tags):
    # s = (20 - 17) / 10 = 0.3 of each 4, (20 - 13.5) / 10 = 0.65 of 5
    replies = ["<answer>4</answer>", "<answer>5</answer>", "<answer>4</answer>"]
    table = scripted_context(sampled_vote(k=3, weighted=True), replies, tags)

    async def levels(role: str, context: np.ndarray, tokens: Any, want: Any) -> Any:
        return {n: np.array([-13.5 if "5" in tags.decode(context) else -17.0]) for n in want}

    table.engine.score = levels  # type: ignore[union-attr, method-assign]
    (episode,) = asyncio.run(play(table, [RolloutRequest(Task("t", "q", ("5",)))]))[0].episodes
    assert episode.why == "" and episode.answer == "5"


def test_the_reference_is_held_unless_a_constant_stands_for_it():
    exact, constant = needed(of("laser")), needed(of("laser", c_ref=-9.0))
    assert "ref" in engine_model_roles(exact) and "ref" not in constant.models
    assert [t.fn.name for t in exact.stage.updates[0].terms][1:] == ["verdict_regression"]
    assert "c_ref=-9.0" in str(constant) and "reference='ref'" in str(exact.decode["weighted_vote"])
