"""SPO by hand: win rates, and what self-play finds where preferences are intransitive."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from support.answers import answered_group
from support.battery import of
from support.comparisons import CIRCLE, choices, circle, rewards_of, settle

from selfteach.core import Score, block
from selfteach.core.random_keys import generator, uniform
from selfteach.core.scoring import score
from selfteach.credit.advantages import center
from selfteach.methods.spo import beside_exploitability, compared_pairs, queued, win_rate
from selfteach.reward.pairwise import reward_model, win_rates
from selfteach.tasks.preference import preference


def test_a_win_rate_is_the_mean_preference_over_siblings():
    # rock: loses to paper, ties with rock: (0 + 1/2) / 2; paper beats both: 2 / 2
    got = rewards_of(win_rate(judge=circle()), choices("rock", "paper", "rock"))
    assert [s.value for s in got] == [0.25, 1.0, 0.25]
    assert [s.parts["comparisons"] for s in got] == [2, 2, 2]
    one_of_each = rewards_of(win_rate(judge=circle()), choices(*CIRCLE))
    assert [s.value for s in one_of_each] == [0.5, 0.5, 0.5]  # in a circle nobody stands out


def test_how_well_rewards_tell_right_from_wrong_is_said_beside_them():
    # rock is right: 0.25 for it twice, 1 for paper, which is wrong: never above; with scissors, 3 answers: 1/2 each
    for names, gold, area in ((("rock", "paper", "rock"), "paper", 1.0), (("rock", "paper", "rock"), "rock", 0.0)):
        group = choices(*names)
        group = group._replace(request=replace(group.request, task=replace(group.request.task, answer=(gold,))))
        got = rewards_of(win_rate(judge=circle()), group)
        assert [s.parts["right"] for s in got] == [float(n == gold) for n in names]
        assert {s.parts["auc"] for s in got} == {area}
    alike = choices(*CIRCLE)
    alike = alike._replace(request=replace(alike.request, task=replace(alike.request.task, answer=("rock",))))
    assert {s.parts["auc"] for s in rewards_of(win_rate(judge=circle()), alike)} == {0.5}
    assert "auc" not in rewards_of(win_rate(judge=circle()), choices("rock", "paper"))[0].parts, "no answer is right"


def test_a_judge_may_read_what_was_written():
    group, context = choices("rock", "paper"), SimpleNamespace(text=lambda leaf: f"written {leaf.episode[-1]}")
    scores = asyncio.run(score(win_rate(judge=by_text()), [group], context))["reward"]  # type: ignore[arg-type]
    assert [scores[e.trajectories[0].leaf].value for e in group.episodes] == [0.0, 1.0]


@block
def by_text(*, first_text: str, second_text: str) -> bool:
    """The later text."""
    return first_text > second_text


@pytest.mark.parametrize("n", [2, 3, 8])
def test_every_pair_is_compared_once_and_positions_are_balanced(n):
    rates, asked = settle(win_rates(n), lambda i, j: 1.0)
    assert sorted(map(sorted, asked)) == [[i, j] for i in range(n) for j in range(i + 1, n)]
    first = [sum(p[0] == i for p in asked) for i in range(n)]
    assert max(first) - min(first) <= 1 + n % 2
    assert math.isclose(sum(rates), n / 2)  # a win for one is a loss for the other


def test_a_group_of_one_is_an_error():
    (alone,) = rewards_of(win_rate(judge=circle()), choices("rock"))
    assert alone.value is None and "set rollouts to at least 2" in (alone.error or "")
    assert "'pair'" in (rewards_of(win_rate(), choices("rock", "rock"))[0].error or "")  # the task brings no judge
    failed = choices("rock", "paper", "rock")
    failed.episodes[2].status = "error"
    scores = asyncio.run(score(win_rate(judge=circle()), [failed], None))["reward"]  # type: ignore[arg-type]
    assert sorted(s.value for s in scores.values()) == [0.0, 1.0]


def exploited(p: np.ndarray) -> float:
    """How much above a half the best answer to a mixture wins in the circle."""
    preferred_over = np.array([[circle(first=a, second=b) for b in CIRCLE] for a in CIRCLE])
    return float((preferred_over @ p).max() - 0.5)


def test_self_play_converges_to_the_minimax_winner_and_a_reward_model_to_one_choice():
    """SPO's own example.

    The minimax winner of the circle is the uniform mixture, of exploitability 0; a pure choice's is 1/2.
    """
    logits, total, steps = np.log([0.6, 0.3, 0.1]), np.zeros(3), 400
    for step in range(steps):
        p = np.exp(logits) / np.exp(logits).sum()
        total += p
        drawn = np.searchsorted(p.cumsum(), uniform(step + 1, np.arange(24)) * (1 - 1e-12))
        group = choices(*(CIRCLE[min(int(i), 2)] for i in drawn))
        reward = [s.value for s in rewards_of(win_rate(judge=circle()), group)]
        adv = center(reward=reward, group=[0] * 24, by="leave_one_out")["adv"].values
        for i, a in zip(drawn, adv, strict=True):  # the policy gradient over p: multiplicative weights
            logits[min(int(i), 2)] += 0.1 * a / 24 / p[min(int(i), 2)]
    assert exploited(total / steps) < 0.06
    # Bradley and Terry's model on the same kind of data (pairs of the first mixture): its best choice is one, and loses
    # to another
    draw, r = generator(0, "pairs"), np.zeros(3)
    pairs = [(a, b) for a, b in draw.choice(3, (600, 2), p=[0.6, 0.3, 0.1]) if a != b]
    for _ in range(300):
        slope = np.zeros(3)
        for a, b in pairs:
            chance = 1 / (1 + math.exp(r[b] - r[a]))
            won = circle(first=CIRCLE[a], second=CIRCLE[b])
            slope[a] += won - chance
            slope[b] -= won - chance
        r += 4 * slope / len(pairs)
    best = np.eye(3)[int(r.argmax())]
    assert np.sort(r)[-1] - np.sort(r)[-2] > 0.5 and exploited(best) == 0.5


def test_the_tasks_judges_prefer_as_they_should():
    # a text worth 1 beside one worth 0.4, noise near 0: the better wins both ways
    task = preference(judge=1e-3, n_test=5).train(0)
    good, poor = str(task.answer[0]), "the sea ."
    group = choices(good, poor, poor)
    group = group._replace(request=replace(group.request, task=task))
    assert rewards_of(of("spo").stage.reward[0], group)[0].value == 1.0
    assert sum(s.value for s in rewards_of(of("spo").stage.reward[0], group)[1:]) == 0.5  # equals: one of the two wins


def judged(*names: str):
    """A group of these words whose task has the judge of the circle."""
    group = choices(*names)
    task = replace(group.request.task, judges={"pair": circle()})
    return group._replace(request=replace(group.request, task=task))


def test_the_reward_model_learns_from_the_comparisons_that_make_the_win_rates():
    # paper beats rock, rock ties with rock: one pair for each rock, none between them
    pairs = compared_pairs(context=None, groups=[judged("rock", "paper", "rock"), judged("rock", "scissors")])
    assert [e.preferred_over for e in pairs] == [(), (0, 2), (), (4,), ()]
    assert [s.learn for s in pairs[0].segments] == [None, "rm"] and pairs[0].model_role == "rm"
    assert {e.given["reward"][1] for e in pairs} == {0.0} and pairs[0].key == pairs[2].key == "k/rm"
    # in a circle each wins once: no order of three numbers satisfies all, where the win rates are one half each
    circular = compared_pairs(context=None, groups=[judged(*CIRCLE)])
    assert sorted(len(e.preferred_over) for e in circular) == [1, 1, 1]
    assert compared_pairs(context=None, groups=[choices("rock", "paper")]) == [], "a task without the judge"
    # the same draws as those of the win rates, of a judge that is often wrong
    source = preference(judge=0.4)
    group = choices(*(f"the red dog runs {n}" for n in range(4)))
    noisy = group._replace(request=replace(group.request, task=source.train(3)))
    wins = [len(e.preferred_over) / 3 for e in compared_pairs(context=None, groups=[noisy])]
    assert wins == pytest.approx([s.value for s in rewards_of(win_rate(), noisy)])


def test_a_queue_of_comparisons_keeps_groups_whole_and_drops_the_oldest():
    def after(held: dict, key: str, *names: str):
        group = judged(*names)._replace(key=key)
        return queued(groups=[group], context=None, state=held, compose=compared_pairs(), size=2, take=2)

    out, held = after({"groups": []}, "a", "rock", "paper", "rock")
    assert [e.preferred_over for e in out] == [(), (0, 2), ()] and {e.model_role for e in out} == {"rm"}
    assert [s.learn for s in out[0].segments] == [None, "rm"] and len({e.key for e in out}) == 1
    out, held = after(held, "b", "scissors", "rock")
    # two groups of three and two answers, in either order: each has its own key, and preferences stay within it
    assert [len(g["examples"]) for g in held["groups"]] == [3, 2] and len({e.key for e in out}) == 2
    assert sorted(len(e.preferred_over) for e in out) == [0, 0, 0, 1, 2]
    assert all(out[j].key == e.key for e in out for j in e.preferred_over)
    out, held = after(held, "c", "paper", "paper")
    assert [g["key"] for g in held["groups"]] == ["b/rm", "c/rm"]
    assert sorted(len(e.preferred_over) for e in out) == [0, 0, 0, 1]


@block
def beaten_by(*, answer: str) -> Score:
    """By which chances each word beats an answer."""
    parts = {c: circle(first=c, second=answer) for c in CIRCLE}
    return Score(max(parts.values()), parts)


def test_exploitability_is_what_the_best_answer_wins_above_a_half():
    # against rock, paper, rock: rock wins (1/2 + 0 + 1/2) / 3, paper (1 + 1/2 + 1) / 3 = 5/6, scissors (0 + 1 + 0) / 3
    context = SimpleNamespace(text=lambda leaf: "")
    for names, want in ((("rock", "paper", "rock"), 5 / 6 - 1 / 2), (CIRCLE, 0.0), (("rock", "rock"), 0.5)):
        group = choices(*names)
        task = replace(group.request.task, judges={"pair": circle(), "pair_rivals": beaten_by()})
        group = group._replace(request=replace(group.request, task=task))
        reward = beside_exploitability(reward=win_rate())
        found = asyncio.run(score(reward, [group], context))["reward"].values()  # type: ignore[arg-type]
        assert [s.parts["exploitability"] for s in found] == pytest.approx([want] * len(names))
        assert [s.value for s in found] == [s.value for s in rewards_of(win_rate(), group)]
    (first, _) = rewards_of(beside_exploitability(reward=win_rate()), judged("rock", "paper"))
    assert "exploitability" not in first.parts, "a task whose judge names no rivals"


def test_an_answer_is_paid_the_scalar_after_its_last_token(letters):
    group, context, engine = answered_group(["ab", "c"], "7", letters, lambda text: [0.0])

    async def scalars(model_role, prompt, tokens, want=()):
        assert (model_role, want) == ("rm", ("scalar_after",))
        return {"scalar_after": np.array([9.0] * (len(tokens) - 1) + [float(len(tokens))])}

    engine.score = scalars
    found = asyncio.run(score(reward_model(), [group], context, 5.0))["reward"]
    lengths = [int(e.tree.action_mask.sum()) for e in group.episodes]
    assert [s.value for s in found.values()] == lengths
    last = [int(context.path(at).ids[-1]) for at in found]
    ended = replace(context, tokenizer=SimpleNamespace(eos_token_id=last[0]))  # as if the first had ended by itself
    found = asyncio.run(score(reward_model(eos=False), [group], ended, 5.0))["reward"]
    assert [s.value for s in found.values()] == [n - (token == last[0]) for n, token in zip(lengths, last, strict=True)]
    method = of("iterated_rm")
    assert [u.params for u in method.stage.updates] == [("policy",), ("rm",)]
    assert method.stage.updates[1].terms[0].fn.name == "bradley_terry"
