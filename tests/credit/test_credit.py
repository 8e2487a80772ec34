"""Credit by value: hand-worked numbers, slow versions against fast ones, extremes, the formulas of other libraries, and
the composers.
"""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfteach import credit
from selfteach.core import (
    BadValue,
    Column,
    Episode,
    Ref,
    RolloutGroup,
    RolloutRequest,
    Sampling,
    Score,
    Task,
    Trajectory,
    Tree,
    collate,
    from_json,
    to_json,
)
from selfteach.core.registry import blocks
from selfteach.credit import (
    center,
    drop_zero_variance_groups,
    gae,
    gae_shaped,
    kl_in_reward,
    kl_per_token,
    moving_baseline,
    norm,
    overlong,
    per_trajectory,
    preference_pairs,
    replay,
    whiten,
)
from selfteach.credit import segments as seg
from selfteach.credit.composers import of_another_model
from selfteach.loop.token_accounting import account

quick = settings(max_examples=40, deadline=None, derandomize=True)
WINNER = np.array([1.0, 0, 0, 0])
ONE = np.zeros(4, int)


def adv(columns):
    return columns["adv"].values


@st.composite
def ragged(draw, most=12):
    """(x, index): rewards that often tie, in groups of any size and order."""
    rows = draw(st.integers(1, most))
    x = draw(st.lists(st.sampled_from([0.0, 0.1, 0.9, 1.0, -2.5]), min_size=rows, max_size=rows))
    index = draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows))
    return np.array(x), np.unique(index, return_inverse=True)[1]


# ---- segments


@quick
@given(ragged(), st.integers(0, 1))
def test_segments_equal_loops(case, ddof):
    x, index = case
    n = seg.count(index)
    for g in range(n):
        own = [v for v, i in zip(x, index, strict=True) if i == g]
        m = math.fsum(own) / len(own)
        assert np.isclose(seg.total(x, index, n)[g], math.fsum(own))
        assert np.isclose(seg.mean(x, index, n)[g], m)
        want = math.sqrt(math.fsum((v - m) ** 2 for v in own) / (len(own) - ddof)) if len(own) > ddof else math.nan
        assert np.isclose(seg.std(x, index, n, ddof)[g], want, equal_nan=True)
        assert seg.same(x, index, n)[g] == (len(set(own)) == 1)
        assert seg.last(index, n)[g] == max(i for i, j in enumerate(index) if j == g)


def test_segments_of_nothing_and_unknown():
    assert seg.count([]) == 0
    assert np.isnan(seg.mean([1.0], [1], 2)[0])  # an empty segment has no mean
    x, index = [1.0, np.nan, 2.0], [0, 0, 1]
    for f in (seg.total, seg.mean, seg.least, seg.greatest):
        assert np.isnan(f(x, index, 2)[0]) and f(x, index, 2)[1] == 2.0
    assert not seg.same(x, index, 2)[0]


# ---- one name, seven formulas (STYLE.md 2.2)

LIBRARIES = [
    # library, its formula in our parts, A of the winner of (1, 0, 0, 0), A of a group of one with reward 1.
    # mean 1/4; deviations 3/4, -1/4 x 3; sum of squares 3/4: std 1/2 over n-1, sqrt(3)/4 = 0.4330 over n.
    ("TRL", norm(eps=1e-4), 0.75 / 0.5001, 0.0),
    ("verl, SkyRL", norm(eps=1e-6, singleton="raw"), 0.75 / 0.500001, 1.0),
    ("OpenRLHF group_norm", norm(eps=1e-9), 0.75 / (0.5 + 1e-9), 0.0),
    ("TitanRL std", norm(ddof=0, eps=1e-6), 0.75 / (math.sqrt(3) / 4 + 1e-6), 0.0),
    ("TitanRL default, prime-rl, Dr. GRPO", center(), 0.75, 0.0),
]


@pytest.mark.parametrize("name,part,winner,alone", LIBRARIES, ids=[row[0] for row in LIBRARIES])
def test_library_variants(name, part, winner, alone):
    got = adv(part(reward=WINNER, group=ONE))
    assert got[0] == pytest.approx(winner, abs=1e-9)
    assert got[1:] == pytest.approx([-winner / 3] * 3)
    assert adv(part(reward=np.ones(1), group=np.zeros(1, int)))[0] == alone


def test_library_variant_figures_of_the_table():
    got = [adv(part(reward=WINNER, group=ONE))[0] for _, part, _, _ in LIBRARIES]
    assert np.round(got, 6).tolist() == [1.4997, 1.499997, 1.5, 1.732047, 0.75]


def test_areal_depends_on_the_rest_of_the_batch():
    def areal(reward, group):
        a = adv(norm(eps=1e-5)(reward=reward, group=group))
        return adv(whiten(adv=a, batch=np.zeros(len(a), int), eps=1e-5))

    alone = areal(WINNER, ONE)[0]
    among = areal(np.append(WINNER, np.ones(4)), np.repeat([0, 1], 4))[
        0
    ]  # a second group, all equal: zeros that shrink the deviation
    assert alone != pytest.approx(among, rel=0.1)
    assert areal(np.ones(1), np.zeros(1, int))[0] == 0.0


# ---- centre, scale, norm


@quick
@given(ragged())
def test_leave_one_out_equals_loops_and_a_multiple_of_centred(case):
    r, g = case
    got = adv(center(reward=r, group=g, by="leave_one_out"))
    centred = adv(center(reward=r, group=g))
    for i in range(len(r)):
        others = [r[j] for j in range(len(r)) if g[j] == g[i] and j != i]
        n = len(others) + 1
        assert got[i] == pytest.approx(r[i] - math.fsum(others) / len(others) if others else 0.0, abs=1e-12)
        assert got[i] == pytest.approx(n / max(n - 1, 1) * centred[i], abs=1e-12)


@quick
@given(ragged(), st.sampled_from(["group", "batch", "none"]), st.integers(0, 1))
def test_norm_equals_loops(case, by, ddof):
    r, g = case
    got = adv(norm(reward=r, group=g, by=by, ddof=ddof, eps=0.25))
    for i in range(len(r)):
        rows = np.array([r[j] for j in range(len(r)) if by == "batch" or g[j] == g[i]])
        if by == "none":
            assert got[i] == r[i]
        elif len(set(rows)) == 1:
            assert got[i] == 0
        else:
            assert got[i] == pytest.approx((r[i] - rows.mean()) / (rows.std(ddof=ddof) + 0.25), abs=1e-12)


@quick
@given(ragged(), st.floats(-5, 5), st.floats(0.1, 10))
def test_shift_and_scale_of_rewards(case, shift, times):
    r, g = case
    for by in ("group", "leave_one_out", "batch"):
        assert np.allclose(
            adv(center(reward=r + shift, group=g, by=by)), adv(center(reward=r, group=g, by=by)), atol=1e-9
        )
    assert np.allclose(adv(norm(reward=r * times, group=g, eps=0.0)), adv(norm(reward=r, group=g, eps=0.0)), atol=1e-6)


@quick
@given(ragged(), st.randoms(use_true_random=False))
def test_order_of_samples_does_not_matter(case, random):
    r, g = case
    order = np.array(random.sample(range(len(r)), len(r)))
    assert np.allclose(adv(norm(reward=r[order], group=g[order])), adv(norm(reward=r, group=g))[order], atol=1e-12)


@pytest.mark.parametrize("eps", [0.0, 1e-9, 1e-4])
def test_equal_rewards_give_exact_zeros(eps):
    r = np.full(64, 0.9)
    g = np.zeros(64, int)
    for part in (
        norm(eps=eps),
        norm(eps=eps, by="batch"),
        norm(eps=eps, ddof=0),
        center(),
        center(by="leave_one_out"),
        center(by="batch"),
    ):
        assert (adv(part(reward=r, group=g)) == 0).all(), part


def test_batch_scope():
    # all six: mean 1/2, std over n-1 sqrt(6/4 / 5)
    r, g = np.array([1.0, 1, 1, 0, 0, 0]), np.repeat([0, 1], 3)
    assert adv(center(reward=r, group=g, by="batch")) == pytest.approx([0.5] * 3 + [-0.5] * 3)
    assert adv(norm(reward=r, group=g, by="batch", eps=0.0))[0] == pytest.approx(0.5 / math.sqrt(0.3))
    assert (adv(norm(reward=r, group=g)) == 0).all()
    assert np.array_equal(adv(center(reward=r, group=g, by="none")), r)


def test_unknown_stays_unknown_in_its_group_only():
    r, g = np.array([np.nan, 1.0, 0.0, 1.0, np.nan]), np.array([0, 0, 1, 1, 2])
    for part in (norm(), norm(singleton="raw"), center(), center(by="leave_one_out")):
        got = adv(part(reward=r, group=g))
        assert np.isnan(got).tolist() == [True, True, False, False, True], part
    assert np.isnan(adv(norm(by="batch")(reward=r, group=g))).all()
    assert np.isnan(adv(whiten(adv=r, batch=np.zeros(5, int)))).all()
    assert np.isnan(adv(center(by="none")(reward=r, group=g))).sum() == 2


@pytest.mark.parametrize(
    "part", [center(by="prompt"), norm(by="prompt"), center(singleton="nan"), norm(singleton="nan")]
)
def test_wrong_words_are_refused(part):
    with pytest.raises(BadValue):
        part(reward=WINNER, group=ONE)


def test_whiten_extremes():
    assert adv(whiten(adv=np.array([3.0]), batch=[0])).tolist() == [0.0]
    assert adv(whiten(adv=np.full(3, 0.1), batch=[0] * 3)).tolist() == [0.0] * 3
    kept = adv(whiten(adv=np.array([1.0, 3.0]), batch=[0, 0], shift=False, eps=0.0))  # v = 2
    assert kept == pytest.approx([1 / math.sqrt(2), 3 / math.sqrt(2)])
    assert adv(whiten(adv=[1.0, 3.0], batch=[0, 0], eps=2.0)) == pytest.approx([-0.5, 0.5])  # 1 / sqrt(2 + 2)
    small = adv(whiten(adv=[0.0, 2e-4], batch=[0, 0]))  # v = 2e-8, eps = 1e-8: 1e-4 / sqrt(3e-8)
    assert small == pytest.approx([-1 / math.sqrt(3), 1 / math.sqrt(3)])


def test_moving_baseline_over_three_batches():
    part, state, seen = moving_baseline(), {"mean": 0.0, "batches": 0}, []
    for r in ([1.0, 1.0], [0.0, 1.0], [0.0, 0.0, 0.0]):  # batch means 1, 1/2, 0: baselines 0, 1, 3/4, then 1/2
        columns, state = part(reward=np.array(r), state=state)
        seen.append(adv(columns).tolist())
    assert seen == [[1.0, 1.0], [-1.0, 0.0], [-0.75, -0.75, -0.75]]
    assert state == {"mean": 0.5, "batches": 3}
    assert moving_baseline(reward=np.array([1.0]), state=state, rate=0.1)[1]["mean"] == pytest.approx(0.55)
    assert moving_baseline(reward=np.zeros(0), state=state)[1] == state


# ---- shaping and returns


def test_kl_in_reward_by_hand_and_as_a_sum_of_tokens():
    old, ref, seq = np.array([-1.0, -2.0, -0.5]), np.array([-1.5, -1.0, -0.5]), np.array([0, 0, 1])
    # gaps 1/2, -1 and 0: R = (1 - 0.1 * (-1/2), 2)
    folded = kl_in_reward(reward=np.array([1.0, 2.0]), old_logp=old, ref_logp=ref, seq=seq, beta=0.1)["reward"].values
    assert folded == pytest.approx([1.05, 2.0])
    tokens = kl_per_token(reward=np.array([1.0, 2.0]), old_logp=old, ref_logp=ref, seq=seq, beta=0.1)[
        "token_reward"
    ].values
    assert tokens == pytest.approx([-0.05, 0.1 + 1.0, 2.0])
    assert seg.total(tokens, seq, 2) == pytest.approx(folded)
    # at the price 0.05 that both begin with: 1 + 0.05 / 2; -0.05 / 2, 0.05 + 1
    rows = {"reward": np.array([1.0, 2.0]), "old_logp": old, "ref_logp": ref, "seq": seq}
    assert kl_in_reward(**rows)["reward"].values == pytest.approx([1.025, 2.0])
    assert kl_per_token(**rows)["token_reward"].values == pytest.approx([-0.025, 1.05, 2.0])


@pytest.mark.parametrize("length,price", [(1, 0.0), (12, 0.0), (13, -0.25), (16, -1.0), (17, -1.0), (40, -1.0)])
def test_overlong(length, price):  # limit 16, cache 4: free up to 12, then -1/4 per token
    got = overlong(reward=np.array([1.0]), seq=np.zeros(length, int), limit=16, cache=4, scale=2.0)["reward"].values
    assert got == pytest.approx([1 + 2 * price])


def test_the_last_128_of_512_tokens_are_overlong_unless_told_otherwise():
    for length, price in ((384, 0.0), (416, -0.25), (448, -0.5), (512, -1.0), (513, -1.0)):  # free up to 384
        got = overlong(reward=np.array([2.0]), seq=np.zeros(length, int))["reward"].values
        assert got == pytest.approx([2 + price])


def test_overlong_refuses_a_cache_beyond_its_limit():
    with pytest.raises(BadValue, match="cache"):
        overlong(reward=WINNER, seq=ONE, limit=4, cache=5)


def test_gae_by_hand():
    # V = (1/2, 1/4, 1), r = 2 at the end, gamma = 1/2, lam = 1/2.
    # delta_2 = 2 - 1 = 1; delta_1 = 1/2 * 1 - 1/4 = 1/4; delta_0 = 1/2 * 1/4 - 1/2 = -3/8
    # A_2 = 1; A_1 = 1/4 + 1/4 * 1 = 1/2; A_0 = -3/8 + 1/4 * 1/2 = -1/4
    got = gae(critic_value=np.array([0.5, 0.25, 1.0]), reward=np.array([2.0]), seq=np.zeros(3, int), gamma=0.5, lam=0.5)
    assert adv(got) == pytest.approx([-0.25, 0.5, 1.0])
    assert got["returns"].values == pytest.approx([0.25, 0.75, 2.0])


@quick
@given(st.lists(st.integers(1, 7), min_size=1, max_size=6), st.floats(0, 1), st.floats(0, 1), st.integers(0, 99))
def test_gae_equals_the_recursion(lengths, gamma, lam, seed):
    rng = np.random.default_rng(seed)
    seq = np.repeat(np.arange(len(lengths)), lengths)
    v, r = rng.normal(size=len(seq)), rng.normal(size=len(seq))
    got = gae_shaped(critic_value=v, token_reward=r, seq=seq, gamma=gamma, lam=lam)
    want = np.zeros(len(seq))
    for s in range(len(lengths)):
        later, after = 0.0, 0.0
        for i in np.flatnonzero(seq == s)[::-1]:
            later = r[i] + gamma * after - v[i] + gamma * lam * later
            want[i], after = later, v[i]
    assert np.allclose(adv(got), want, atol=1e-12)
    togo = [sum(r[j] * gamma ** (j - i) for j in range(i, len(seq)) if seq[j] == seq[i]) for i in range(len(seq))]
    assert np.allclose(adv(gae_shaped(critic_value=0 * v, token_reward=r, seq=seq, gamma=gamma, lam=1.0)), togo)
    assert np.allclose(
        gae_shaped(critic_value=v, token_reward=r, seq=seq, gamma=gamma, lam=1.0)["returns"].values, togo
    )


def test_gae_looks_to_the_end_and_mixes_by_0_95_unless_told_otherwise():
    # gamma 1, lam 0.95; V = (1/2, 1/4), r = 2: delta_1 = 2 - 1/4 = 7/4; delta_0 = 1/4 - 1/2; A_0 = -1/4 + 0.95 * 7/4
    rows = {"critic_value": np.array([0.5, 0.25]), "seq": np.zeros(2, int)}
    assert adv(gae(**rows, reward=np.array([2.0]))) == pytest.approx([1.4125, 1.75])
    # the same with 1 more at the first token
    assert adv(gae_shaped(**rows, token_reward=np.array([1.0, 2.0]))) == pytest.approx([2.4125, 1.75])


def test_gae_extremes():
    assert adv(gae(critic_value=np.array([0.25]), reward=np.array([1.0]), seq=np.zeros(1, int))) == pytest.approx(
        [0.75]
    )
    assert len(adv(gae(critic_value=np.zeros(0), reward=np.zeros(0), seq=np.zeros(0, int)))) == 0
    got = adv(gae(critic_value=np.zeros(3), reward=np.array([np.nan, 1.0]), seq=np.array([0, 0, 1])))
    assert np.isnan(got).tolist() == [True, True, False]
    with pytest.raises(BadValue, match="contiguous"):
        gae(critic_value=np.zeros(3), reward=np.zeros(2), seq=np.array([0, 1, 0]))


def test_keep():
    r, g = np.array([1.0, 0, 1, 1, np.nan, 0, 0.1, 0]), np.array([0, 0, 1, 1, 2, 2, 3, 3])
    keep = drop_zero_variance_groups(reward=r, group=g)["keep"]
    assert keep.unit == "seq" and keep.values[:4].tolist() == [1, 1, 0, 0]
    assert np.isnan(keep.values[4:6]).all()  # not known: stays, and training on it raises
    assert drop_zero_variance_groups(reward=r, group=g, low=0.2, high=0.8)["keep"].values[6:].tolist() == [0, 0]


# ---- composers


def search_episode(name="e", n_obs=2, second_span="information", status="stop"):
    """prompt(3) | turn 4 tokens | observation | turn 2 tokens; with the observation marked, and its places."""
    tree = Tree()
    s = Sampling()
    p = tree.add(-1, [1, 2, 3], role="user")
    a = tree.add(p, [4, 5, 6, 7], cut=3, action_mask=True, logp=[-0.4, -0.5, -0.6, -0.7], version=3, sampling=s)
    o = tree.add(a, range(20, 20 + n_obs), cut=4, role="tool", span=second_span)
    b = tree.add(o, [8, 9], cut=n_obs, action_mask=True, logp=[-0.8, -0.9], version=4, sampling=s)
    return Episode(name, tree, [Trajectory(Ref(name, b), "policy", "k", status=status)]), (p, a, o, b)


def group_of(episodes, scores=None, key="k"):
    return RolloutGroup(RolloutRequest(Task("t", "?")), list(episodes), scores or {}, key)


def batch_of(examples, *groups):
    trees = {e.id: e.tree for g in groups for e in g.episodes}
    return collate(examples, trees.__getitem__)


def test_each_takes_the_path_as_it_was():
    e, (_, _, _, b) = search_episode()
    g = group_of([e], {"reward": {Ref("e", b): Score(1.0)}, "format": {Ref("e", b): Score(None)}})
    (example,) = per_trajectory(groups=[g])
    assert (example.name, example.key, example.model_role) == ("e:3", "k", "policy")
    batch = batch_of([example], g)
    assert batch.ids.tolist() == [1, 2, 3, 4, 5, 6, 7, 20, 21, 8, 9]
    assert batch.get("id").tolist() == [4, 5, 6, 7, 8, 9] and batch.loss_streams == ("main",)
    assert np.allclose(batch.get("old_logp"), [-0.4, -0.5, -0.6, -0.7, -0.8, -0.9])
    assert batch.size("step") == 2 and batch.get("reward", "seq").tolist() == [1.0]
    assert np.isnan(batch.get("format", "seq")[0]) and batch.get("truncated", "seq")[0] == 0.0


def test_each_masks_spans_inside_a_turn():
    e, (_, a, _, b) = search_episode(status="length")
    e.tree.mark(a, 1, 3, "information")
    g = group_of([e], {"reward": {Ref("e", b): Score(1.0)}})
    example = per_trajectory(groups=[g], mask=("information",))[0]
    batch = batch_of([example], g)
    assert batch.get("id").tolist() == [4, 7, 8, 9] and batch.size("step") == 2  # a node in pieces is still one step
    assert batch.get("truncated", "seq")[0] == 1.0
    assert account([g], [example]) == {"sampled": 6, "learned": 4, "dropped/masked:information": 2}


def test_each_follows_a_fork_from_the_middle_of_a_turn():
    e, (_, a, _, _) = search_episode()
    vine = e.tree.add(a, [11, 12], cut=2, action_mask=True, logp=[-1, -2], sampling=Sampling())
    e.trajectories.append(Trajectory(Ref("e", vine, 1), "policy", "k"))
    g = group_of([e])
    first, second = per_trajectory(groups=[g])
    batch = batch_of([first, second], g)
    assert batch.get("id")[6:].tolist() == [4, 5, 11]
    assert account([g], [second]) == {"sampled": 8, "learned": 3, "dropped/uncomposed": 4, "dropped/unlearned": 1}
    assert account([g], [first, second]) == {
        "sampled": 8,
        "learned": 7,
        "dropped/unlearned": 1,
    }  # the trunk counts once


def test_each_streams_turns_roles_model():
    e, _ = search_episode()
    g = group_of([e])
    batch = batch_of(per_trajectory(groups=[g], loss_stream=("a1", "a2")), g)
    assert [batch.loss_streams[int(i)] for i in batch.get("loss_stream")] == ["a1"] * 4 + ["a2"] * 2
    last = per_trajectory(groups=[g], turns=1, model_role=None)
    assert batch_of(last, g).get("id").tolist() == [8, 9] and last[0].model_role == "policy"
    assert account([g], last) == {"sampled": 6, "learned": 2, "dropped/context": 4}
    assert [batch_of(per_trajectory(groups=[g], turns=k), g).size("token") for k in (2, 3)] == [6, 6]
    whole = per_trajectory(groups=[g])
    assert (
        account([g], whole + last) == account([g], last + whole) == {"sampled": 6, "learned": 6}
    )  # the best fate wins
    assert per_trajectory(groups=[g], roles=("judge",)) == []
    assert per_trajectory(groups=[g], loss_stream="x")[0].segments[1].learn == "x"


def test_scores_at_leaves_are_per_seq_at_turns_per_step_inside_turns_per_token():
    e, (_, a, o, b) = search_episode()
    g = group_of(
        [e],
        {
            "reward": {Ref("e", b): Score(1.0)},
            "turn": {Ref("e", a): Score(0.5)},
            "line": {Ref("e", a, 2): Score(0.1), Ref("e", b): Score(0.2)},
        },
    )
    batch = batch_of(per_trajectory(groups=[g]), g)
    assert {n: batch.columns[n].unit for n in ("reward", "turn", "line")} == {
        "reward": "seq",
        "turn": "step",
        "line": "token",
    }
    assert np.array_equal(batch.get("turn", "step"), [0.5, np.nan], equal_nan=True)
    assert np.array_equal(batch.get("line"), [np.nan, 0.1, np.nan, np.nan, np.nan, 0.2], equal_nan=True)
    # after an observation: the turn before it. Two on one step: refused.
    g2 = group_of([e], {"turn": {Ref("e", o): Score(0.5)}})
    assert batch_of(per_trajectory(groups=[g2]), g2).get("turn", "step")[0] == 0.5
    with pytest.raises(BadValue, match="two scores"):
        per_trajectory(groups=[group_of([e], {"turn": {Ref("e", o): Score(0.5), Ref("e", a): Score(None)}})])
    # a column that is per step elsewhere stays so in a batch that has leaves only
    g3 = group_of([e], {"reward": {Ref("e", b): Score(1.0)}})
    assert batch_of(per_trajectory(groups=[g3], steps=("reward",)), g3).columns["reward"].unit == "step"
    # an earlier turn that is not learned has no row for its score
    assert np.isnan(batch_of(per_trajectory(groups=[g2], turns=1), g2).get("turn", "step")).all()


def test_the_unit_of_a_score_is_the_same_over_the_batch():
    e1, (_, a, _, b) = search_episode("e1")
    e2, _ = search_episode("e2")
    g1 = group_of([e1], {"reward": {Ref("e1", a): Score(0.5), Ref("e1", b): Score(1.0)}})
    g2 = group_of([e2], {"reward": {Ref("e2", b): Score(0.25)}})
    batch = batch_of(per_trajectory(groups=[g1, g2]), g1, g2)
    assert np.array_equal(batch.get("reward", "step"), [0.5, 1.0, np.nan, 0.25], equal_nan=True)


def test_unscored_and_unlearned_are_left_out_and_counted():
    e1, (_, a, _, b) = search_episode("e1")
    e2, _ = search_episode("e2")
    e2.trajectories = [Trajectory(Ref("e2", b), "judge", "k", learn=None)]
    g = group_of([e1, e2], {"reward": {Ref("e1", b): Score(None, error="timeout")}})
    assert per_trajectory(groups=[g]) == []
    assert account([g], []) == {"sampled": 12, "learned": 0, "dropped/unscored": 6, "dropped/unlearned": 6}
    along = group_of([e1], {"reward": {Ref("e1", a): Score(None), Ref("e1", b): Score(1.0)}})
    assert per_trajectory(groups=[along]) == []
    with pytest.raises(BadValue, match="not in group"):
        per_trajectory(groups=[group_of([e1], {"reward": {Ref("nowhere", b): Score(1.0)}})])


def paid(*rewards, key="k", prefix="e"):
    out, scores = [], {}
    for i, r in enumerate(rewards):
        e, (_, _, _, b) = search_episode(f"{prefix}{i}")
        e.trajectories = [Trajectory(Ref(e.id, b), "policy", key)]
        out.append(e)
        scores[Ref(e.id, b)] = Score(r)
    return group_of(out, {"reward": scores}, key)


def test_pairs():
    g, flat = paid(0.5, 1.0, 0.0, None, 1.0), paid(1.0, 1.0, key="f", prefix="f")
    best = preference_pairs(groups=[g, flat])
    assert [e.name for e in best] == ["e1:3", "e2:3"] and [e.preferred_over for e in best] == [(1,), ()]
    batch = batch_of(best, g, flat)
    assert batch.index["win"].tolist() == [0] and batch.index["lose"].tolist() == [1]
    # 1 > 0.5 twice, 1 > 0 twice, 0.5 > 0 once
    assert sum(len(e.preferred_over) for e in preference_pairs(groups=[g, flat], choose="all")) == 5
    assert sum(len(e.preferred_over) for e in preference_pairs(groups=[g], choose="all", margin=0.5)) == 2
    assert preference_pairs(groups=[g], margin=1.0) == [] and preference_pairs(groups=[]) == []
    assert account([g], best) == {"sampled": 30, "learned": 12, "dropped/uncomposed": 12, "dropped/unscored": 6}
    with pytest.raises(BadValue, match="extreme"):
        preference_pairs(groups=[g], choose="best")


def test_what_another_model_has_sampled_is_not_compared_with_the_learner():
    g = paid(0.5, 1.0)
    alone, pairs = of_another_model(groups=[g]), of_another_model(compose=preference_pairs())(groups=[g])
    assert [e.given["off_context"] for e in (*alone, *pairs)] == [("seq", 1.0)] * 4
    assert [e.preferred_over for e in pairs] == [e.preferred_over for e in preference_pairs(groups=[g])] == [(), (0,)]
    assert "off_context" not in per_trajectory(groups=[g])[0].given


def test_replay_brings_groups_back_whole_under_their_own_key():
    first, flat, second = paid(1.0, 0.0, 0.0), paid(1.0, 1.0, key="f", prefix="f"), paid(1.0, 0.0, prefix="g")
    part = replay(size=2, take=1)
    out, state = part(groups=[first, flat], state={"groups": []})
    assert out == [] and len(state["groups"]) == 1  # the flat group teaches nothing
    assert to_json({"n": len(state["groups"])}) and all(
        isinstance(s, list) for e in state["groups"][0]["examples"] for s in e["segments"]
    )
    fresh = per_trajectory(groups=[second])
    out, state = part(groups=[second], state=state)
    assert [e.name for e in out] == ["e0:3", "e1:3", "e2:3"] and len(state["groups"]) == 1
    batch = batch_of(fresh + out, second, first)
    old = adv(norm(reward=np.array([1.0, 0, 0]), group=np.zeros(3, int)))
    now = adv(norm(reward=batch.get("reward", "seq"), group=batch.get("group", "seq")))
    assert np.allclose(now[2:], old)  # whole, and not mixed with fresh siblings of the same key
    assert account([second], fresh + out) == {
        "sampled": 12,
        "learned": 12,
    }  # what was sampled in an earlier step is not counted again


def test_replay_order_and_size():
    state = {"groups": []}
    for i in range(4):
        _, state = replay(groups=[paid(1.0, 0.0, prefix=f"s{i}-")], state=state, size=3, take=0)
    keys = [g["key"] for g in state["groups"]]
    assert keys == [f"k@s{i}-0:3" for i in (1, 2, 3)]
    oldest, rest = replay(groups=[], state=state, size=3, take=2)
    assert [e.key for e in oldest] == [keys[0]] * 2 + [keys[1]] * 2 and [g["key"] for g in rest["groups"]] == keys[2:]
    newest, rest = replay(groups=[], state=state, size=3, take=1, order="newest", again=True)
    assert newest[0].key == keys[2] and [g["key"] for g in rest["groups"]] == keys


def test_replay_draws_at_random_without_repeats_and_anew_with_every_new_group():
    state, drawn = {"groups": []}, list[list[str]]()
    for i in range(24):
        out, state = replay(
            groups=[paid(1.0, 0.0, prefix=f"s{i}-")], state=state, size=8, take=3, order="random", again=True
        )
        drawn.append(list(dict.fromkeys(e.key for e in out)))
    assert all(len(keys) == 3 for keys in drawn[3:]) and len(state["groups"]) == 8
    ages = {i - 1 - int(k.split("@s")[1].split("-")[0]) for i, keys in enumerate(drawn) for k in keys if i > 8}
    assert ages == set(range(8))  # of all ages that the buffer holds
    assert [e.key for e in out[::2]] == drawn[-1]
    left = replay(groups=[], state=state, size=8, take=3, order="random")[1]["groups"]
    assert len(left) == 5


@quick
@given(st.integers(0, 10_000))
def test_every_sampled_token_is_accounted_for(seed):
    rng = np.random.default_rng(seed)
    groups = []
    for k in range(2):
        episodes, scores = [], {}
        for j in range(3):
            tree, name = Tree(), f"{k}.{j}"
            tree.add(-1, [1, 2])
            for _ in range(rng.integers(1, 6)):
                parent = int(rng.integers(len(tree.parent)))
                cut = int(rng.integers(1, tree.size(parent) + 1))
                node = tree.add(
                    parent, rng.integers(0, 9, rng.integers(1, 5)), cut=cut, action_mask=bool(rng.random() < 0.7)
                )
                tree.mark(node, 0, int(rng.integers(0, 3)), "think")
            leaves = rng.choice(len(tree.parent), size=min(2, len(tree.parent)), replace=False)
            t = [
                Trajectory(Ref(name, int(n)), "policy", f"k{k}", learn="main" if rng.random() < 0.8 else None)
                for n in leaves
            ]
            scores |= {x.leaf: Score([0.0, 1.0, None][rng.integers(3)]) for x in t}
            episodes.append(Episode(name, tree, t))
        groups.append(group_of(episodes, {"reward": scores}, f"k{k}"))
    sampled = sum(int(e.tree.action_mask.sum()) for g in groups for e in g.episodes)
    for examples in (
        per_trajectory(groups=groups),
        per_trajectory(groups=groups, mask=("think",)),
        per_trajectory(groups=groups, turns=1),
        preference_pairs(groups=groups),
    ):
        later = {"keep_informative": [examples[0].name]} if examples else {}
        for got in (account(groups, examples), account(groups, examples, later)):
            assert (
                got["sampled"] == sampled == got["learned"] + sum(n for r, n in got.items() if r.startswith("dropped/"))
            )
    # distinct tokens, counted the slow way
    learned = {
        (s.source.episode, e_tree(groups, s).begin[s.source.node] + i)
        for x in per_trajectory(groups=groups)
        for s in x.segments
        if s.learn
        for i in range(s.start, s.stop)
        if e_tree(groups, s).action_mask[e_tree(groups, s).begin[s.source.node] + i]
    }
    assert account(groups, per_trajectory(groups=groups))["learned"] == len(learned)


def e_tree(groups, segment):
    return next(e.tree for g in groups for e in g.episodes if e.id == segment.source.episode)


def test_examples_dropped_later_are_counted_under_their_reason():
    g = paid(1.0, 0.0)
    got = account([g], per_trajectory(groups=[g]), {"keep_informative": ["e1:3"]})
    assert got == {"sampled": 12, "learned": 6, "dropped/keep_informative": 6}


@pytest.mark.parametrize("n_obs", [0, 1, 7])
def test_gae_and_whitening_do_not_see_observations(n_obs):
    e, (_, _, _, b) = search_episode(n_obs=n_obs)
    g = group_of([e], {"reward": {Ref("e", b): Score(1.0)}})
    batch = batch_of(per_trajectory(groups=[g]), g)
    batch.put("critic_value", "token", np.linspace(0, 1, batch.size("token")))
    part = gae()
    got = part(**{n: batch.get(n, u) for n, u in part.columns.items()})
    want = gae(critic_value=np.linspace(0, 1, 6), reward=np.ones(1), seq=np.zeros(6, int))
    assert np.array_equal(adv(got), adv(want))


# ---- the room's rules


def test_blocks_are_registered_and_go_to_json():
    for name in (
        "per_trajectory",
        "preference_pairs",
        "replay",
        "center",
        "norm",
        "whiten",
        "moving_baseline",
        "kl_in_reward",
        "kl_per_token",
        "gae",
        "gae_shaped",
        "overlong",
        "drop_zero_variance_groups",
    ):
        part = blocks.get(name)()
        assert from_json(to_json(part)) == part and part.doc
    part = replay(take=3, mask=("information",))
    assert from_json(to_json(part)) == part


def test_units_are_read_from_signatures():
    assert gae().columns == {"critic_value": "token", "reward": "seq", "seq": "token"}
    assert norm().columns == {"reward": "seq", "group": "seq"}
    assert isinstance(norm(reward=WINNER, group=ONE)["adv"], Column)


@pytest.mark.parametrize("room", ["credit", "objective"])
def test_functions_only(room):
    files = sorted((Path(credit.__file__).parents[1] / room).glob("*.py"))
    assert files
    for file in files:
        text = file.read_text()
        assert not re.search(r"^class |loss\.mean\(|torch\.mean|\)\.mean\(|\bopen\(|\bprint\(", text, re.M), file
        assert len(text.splitlines()) <= 300 and not re.search(r"np\.random|torch\.manual_seed", text), file
        assert room == "objective" or "torch" not in re.sub(r'"""[\s\S]*?"""', "", text), file


def test_the_bounds_of_an_accuracy_filter_may_pass():
    given = {"reward": [1.0, 0, 0, 0, 0], "group": [0] * 5}
    assert drop_zero_variance_groups(**given, low=0.2, high=0.8)["keep"].values.max() == 0
    assert drop_zero_variance_groups(**given, low=0.2, high=0.8, closed=True)["keep"].values.min() == 1
    given = {"reward": [1.0, 1, 1, 1, 0], "group": [0] * 5}
    assert drop_zero_variance_groups(**given, low=0.2, high=0.8)["keep"].values.max() == 0
    assert drop_zero_variance_groups(**given, low=0.2, high=0.8, closed=True)["keep"].values.min() == 1
    for low, high in ((0.81, 0.9), (0.2, 0.79)):  # beyond a bound is beyond it
        assert drop_zero_variance_groups(**given, low=low, high=high, closed=True)["keep"].values.max() == 0


def test_a_buffer_holds_64_groups_and_gives_back_8():
    state: dict[str, Any] = {"groups": []}
    groups = [paid(1.0, 0.0, key=f"k{i}", prefix=f"s{i}-") for i in range(65)]
    out, state = replay(groups=groups, state=state)
    assert out == [] and len(state["groups"]) == 64  # the newest
    assert [g["key"] for g in state["groups"]][:1] == ["k1@s1-0:3"]
    out, rest = replay(groups=[], state=state)
    assert [e.key for e in out[::2]] == [g["key"] for g in state["groups"][:8]] and len(rest["groups"]) == 56
    # asked for more than there is: all of it, once
    few = {"groups": state["groups"][:3]}
    for order in ("oldest", "newest"):
        out, rest = replay(groups=[], state=few, take=5, order=order)
        assert len(out) == 6 and rest["groups"] == []
    assert replay(groups=groups[:1], state={"groups": []}, size=0)[1] == {"groups": []}
    assert replay(groups=[paid(1.0)], state={"groups": []})[1] == {"groups": []}  # a group of one is equal to itself
    flat = paid(1.0, 1.0)
    assert len(replay(groups=[flat], state={"groups": []}, drop_zero_variance=False)[1]["groups"]) == 1
