"""Terms by value and by gradient, their reductions to each other, weightings against padded matrices, and schedules."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tensors import columns, f64, slope

from selfteach.core import BadValue, Batch, Example, History, Segment, Term, collate, from_json, to_json
from selfteach.core.blocks import measures
from selfteach.core.registry import blocks
from selfteach.loop.loss_weights import loss_weights
from selfteach.objective import (
    advantage_regression,
    after,
    before,
    clipped_importance,
    clipped_ratio,
    clipped_value_loss,
    constant_length,
    cosine,
    dpo,
    entropy_bonus,
    every,
    kl,
    linear,
    nll,
    policy_gradient,
    prompt_mean,
    seq_mean,
    seq_sum,
    sequence_mean,
    sequence_ratio,
    sequence_sum,
    success_loss,
    token_mean,
    value_loss,
    weighted_nll,
)
from selfteach.objective.loss_weights import class_balanced

quick = settings(max_examples=40, deadline=None, derandomize=True)


def textbook(log_ratio, adv, low, high, dual=None):
    r = torch.exp(log_ratio)
    surrogate = torch.minimum(r * adv, r.clamp(1 - low, 1 + high) * adv)
    return -(surrogate if dual is None else torch.where(adv < 0, torch.maximum(surrogate, dual * adv), surrogate))


# ---- values


def test_clipped_ratio_by_hand():
    # A = 1: r 1/2, 1.1, 2 -> 1/2, 1.1, 1.2. A = -2: r 1/2, 1.1, 4 -> 0.8, 1.1, 4; with dual 3: 3.
    lp, a = torch.log(f64(0.5, 1.1, 2, 0.5, 1.1, 4)), f64(1, 1, 1, -2, -2, -2)
    zero = torch.zeros_like(lp)
    assert clipped_ratio(logp=lp, old_logp=zero, adv=a).tolist() == pytest.approx([-0.5, -1.1, -1.2, 1.6, 2.2, 8.0])
    assert clipped_ratio(logp=lp, old_logp=zero, adv=a, dual=3.0).tolist() == pytest.approx(
        [-0.5, -1.1, -1.2, 1.6, 2.2, 6.0]
    )
    assert clipped_ratio(logp=lp, old_logp=zero, adv=a, high=0.28)[2].item() == -1.28


def test_the_share_that_a_clip_acts_on_counts_what_has_an_advantage():
    # Bounds 0.8 and 1.2. A = 1: r 1/2 free, 2 clipped. A = -2: r 1/2 clipped, 4 free, and beyond a dual clip at 3.
    lp, a = torch.log(f64(0.5, 2, 0.5, 4, 9)), f64(1, 1, -2, -2, 0)
    rows = {"logp": lp, "old_logp": torch.zeros_like(lp), "adv": a}
    assert measures(clipped_ratio(), rows)["clip_fraction"].tolist() == [False, True, True, False]
    assert measures(clipped_ratio(dual=3.0), rows)["clip_fraction"].tolist() == [False, True, True, True]
    # A weight is bounded on whichever side the advantage is: by 1 to 5, or by 1/2 to 5.
    assert measures(clipped_importance(), rows)["clip_fraction"].tolist() == [False] * 4
    assert measures(clipped_importance(low=0.4, high=1.0), rows)["clip_fraction"].tolist() == [True, False, True, True]
    # Sequences by their geometric means: sqrt(1/2 * 2) = 1 is free; 6 with A = 1 is clipped; the last has no advantage.
    seqs = {"logp": lp, "old_logp": torch.zeros_like(lp), "adv": f64(1, 1, 0), "seq": torch.tensor([0, 0, 2, 1, 1])}
    assert measures(sequence_ratio(), seqs)["clip_fraction"].tolist() == [False, True]
    assert measures(nll(), {"logp": lp}) == {}


def test_which_tokens_the_upper_clip_stops_and_what_rare_ones_gain():
    # Sampled at 0.1, 0.1, 0.5, 0.15: the first (ratio 2) and third (1.5) are above 1.2, A > 0; the last has A < 0.
    p, a = f64(0.1, 0.1, 0.5, 0.15), f64(1, 1, 2, -1)
    rows = {"logp": torch.log(p * f64(2, 1.1, 1.5, 2)), "old_logp": torch.log(p), "adv": a}
    told = measures(clipped_ratio(), rows)
    assert told["clipped_prob"].tolist() == pytest.approx([0.1, 0.5])
    assert measures(clipped_ratio(high=0.6), rows)["clipped_prob"].tolist() == pytest.approx([0.1])
    assert told["rare_growth"].tolist() == pytest.approx([math.log(2), math.log(1.1)])
    assert measures(clipped_importance(), rows)["rare_growth"].tolist() == told["rare_growth"].tolist()


@quick
@given(
    st.integers(0, 999),
    st.sampled_from([(0.2, 0.2), (0.2, 0.28), (1.0, 4.0), (0.5, math.inf)]),
    st.sampled_from([None, 3.0]),
)
def test_clipped_ratio_equals_the_textbook_in_value_and_gradient(seed, clip, dual):
    lp, old, _, _ = columns(seed, [9], spread=1.0)
    a = torch.tensor(np.random.default_rng(seed).normal(size=9))
    ours = lambda x: clipped_ratio(logp=x, old_logp=old, adv=a, low=clip[0], high=clip[1], dual=dual)  # noqa: E731
    slow = lambda x: textbook(x - old, a, *clip, dual)  # noqa: E731
    assert torch.allclose(ours(lp), slow(lp), atol=1e-12)
    assert torch.allclose(slope(ours, lp), slope(slow, lp), atol=1e-12)


def test_sequence_ratio_by_hand():
    # one sequence of two tokens, gaps log 4 and 0: s = sqrt(4) = 2, clipped to 1.5 for A = 1 and not for A = -1.
    gap, seq = f64(math.log(4), 0), torch.tensor([0, 0])
    for a, want in ((1.0, -1.5), (-1.0, 2.0)):
        got = sequence_ratio(
            logp=gap, old_logp=torch.zeros(2, dtype=torch.float64), adv=f64(a), seq=seq, high=0.5, low=0.5
        )
        assert got.tolist() == pytest.approx([want])


def test_a_sequence_is_clipped_within_a_few_ten_thousandths_unless_told_otherwise():
    # two tokens of equal gaps: s = 1.0005 > 1 + 4e-4 and 0.9995 < 1 - 3e-4; 1.00035 and 0.99975 are within
    seq, zero = torch.tensor([0, 0]), torch.zeros(2, dtype=torch.float64)
    for s, a, want in (
        (1.0005, 1, -1.0004),
        (1.00035, 1, -1.00035),
        (0.9995, -1, 0.9997),
        (0.99975, -1, 0.99975),
        (1.0005, -1, 1.0005),
        (0.9995, 1, -0.9995),
    ):
        gap = f64(math.log(s), math.log(s))
        got = sequence_ratio(logp=gap, old_logp=zero, adv=f64(a), seq=seq)
        assert got.tolist() == pytest.approx([want], abs=1e-12)


def test_loss_weights_that_need_a_number_have_one():
    length = np.array([1, 3])
    assert constant_length(length=length) == pytest.approx([1 / 1024] * 2)  # two sequences of at most 512
    # right from 1/2 on: one of three right. 1 / (2 * 1 * 1), 1 / (2 * 2 * len)
    got = class_balanced(reward=np.array([0.5, 0.49, 0.0]), length=np.array([1, 1, 2]))
    assert got == pytest.approx([1 / 2, 1 / 4, 1 / 8])


def test_clipped_importance_by_hand():
    # r = 2 and 10 against a cap of 5: the weight is 2 and 5, the loss -w A logp, the gradient -w A.
    lp, old, a = f64(-1, -1), f64(-1 - math.log(2), -1 - math.log(10)), f64(0.5, 0.5)
    assert clipped_importance(logp=lp, old_logp=old, adv=a).tolist() == pytest.approx([1.0, 2.5])
    assert slope(lambda x: clipped_importance(logp=x, old_logp=old, adv=a), lp).tolist() == pytest.approx([-1.0, -2.5])
    floor = clipped_importance(logp=f64(-3), old_logp=f64(0), adv=f64(1), low=0.5)  # r = e^-3 is lifted to 1/2
    assert floor.item() == pytest.approx(1.5)


@pytest.mark.parametrize(
    "kind,value,gradient", [("k1", 0.5, 1.0), ("k2", 0.125, 0.5), ("k3", math.exp(-0.5) - 0.5, 1 - math.exp(-0.5))]
)
def test_kl_kinds_by_hand(kind, value, gradient):  # d = 1/2
    ref = f64(-1.5)
    assert kl(logp=f64(-1), ref_logp=ref, kind=kind).item() == pytest.approx(value)
    assert slope(lambda x: kl(logp=x, ref_logp=ref, kind=kind), f64(-1)).item() == pytest.approx(gradient)
    for other, its in (
        ("k1", 1.0),
        ("k2", 0.5),
        ("k3", 1 - math.exp(-0.5)),
    ):  # the value of one, the gradient of another
        assert kl(logp=f64(-1), ref_logp=ref, kind=kind, grad=other).item() == pytest.approx(value)
        assert slope(lambda x, g=other: kl(logp=x, ref_logp=ref, kind=kind, grad=g), f64(-1)).item() == pytest.approx(
            its
        )


def test_value_losses_by_hand():
    v, old, r = f64(1.0, 0.1, 2.0), f64(0.0, 0.0, 0.0), f64(1.0, 1.0, 3.0)
    assert value_loss(critic_value=v, returns=r).tolist() == pytest.approx([0.0, 0.81, 1.0])
    # held to 0.2, 0.1, 0.2: 0.64 > 0, 0.81, 7.84 > 1
    clipped = lambda x, clip: clipped_value_loss(critic_value=x, prox_critic_value=old, returns=r, clip=clip)  # noqa: E731
    assert clipped(v, 0.2).tolist() == pytest.approx([0.64, 0.81, 7.84])
    assert slope(lambda x: clipped(x, 0.2), v).tolist() == pytest.approx([0.0, -1.8, 0.0])
    assert torch.equal(clipped(v, math.inf), value_loss(critic_value=v, returns=r))
    # the bound is around the old value: 0.9 is within 0.2 of 1 and stays, 2 is held to 1.2; 0 to 0.8, which is nearer
    # to 1, so that its own error counts
    got = clipped_value_loss(critic_value=f64(0.9, 2, 0), prox_critic_value=f64(1, 1, 1), returns=f64(0, 3, 1))
    assert got.tolist() == pytest.approx([0.81, 3.24, 1.0])


def test_plain_ones():
    assert nll(logp=f64(-2)).item() == 2.0 and entropy_bonus(entropy=f64(0.7)).item() == -0.7
    assert weighted_nll(logp=f64(-2, -2), adv=f64(0.5, -3)).tolist() == [1.0, 0.0]


def test_dpo_by_hand():
    # h = (1, -1): margin 2, beta 1/2: -log sigmoid(1) = log(1 + 1/e)
    lp, ref, seq = f64(-1, -1, -3), f64(-1.5, -1.5, -2), torch.tensor([0, 0, 1])
    got = dpo(logp=lp, ref_logp=ref, seq=seq, win=torch.tensor([0, 1]), lose=torch.tensor([1, 0]), beta=0.5)
    assert got.tolist() == pytest.approx([math.log(1 + math.exp(-1)), math.log(1 + math.e)])
    far = dpo(logp=lp * 1e5, ref_logp=ref, seq=seq, win=torch.tensor([1]), lose=torch.tensor([0]), beta=1.0)
    assert torch.isfinite(far).all()
    # beta 0.1 unless told otherwise: -log sigmoid(0.2)
    got = dpo(logp=lp, ref_logp=ref, seq=seq, win=torch.tensor([0]), lose=torch.tensor([1]))
    assert got.tolist() == pytest.approx([math.log(1 + math.exp(-0.2))])


# ---- gradients against finite differences


@pytest.mark.parametrize(
    "part",
    [
        policy_gradient(),
        clipped_ratio(low=0.1, high=0.3),
        clipped_ratio(dual=1.3),
        sequence_ratio(low=0.2, high=0.2),
        kl(kind="k1"),
        kl(kind="k2"),
        kl(kind="k3"),
        nll(),
        weighted_nll(),
        dpo(beta=0.7),
    ],
    ids=str,
)
@pytest.mark.parametrize("lengths", [[1], [3, 1, 4, 2]])
def test_gradients_against_finite_differences(part, lengths):
    lp, old, a, seq = columns(3, lengths)
    token_adv = a if part.columns.get("adv") == "seq" else a[seq]
    last = torch.tensor([len(lengths) - 1])
    rest = {"old_logp": old, "ref_logp": old, "adv": token_adv, "seq": seq, "win": torch.tensor([0]), "lose": last}
    rest = {n: v for n, v in rest.items() if n in part.needs}
    assert torch.autograd.gradcheck(lambda x: part(logp=x, **rest), (lp.requires_grad_(),))


def test_value_gradients_against_finite_differences():
    v, old, r = (torch.tensor(x) for x in np.random.default_rng(0).normal(size=(3, 7)))
    assert torch.autograd.gradcheck(
        lambda x: clipped_value_loss(critic_value=x, prox_critic_value=old, returns=r), (v.requires_grad_(),)
    )
    assert torch.autograd.gradcheck(lambda x: value_loss(critic_value=x, returns=r), (v,))


# ---- segments


@quick
@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.integers(0, 99))
def test_segments_equal_loops(lengths, seed):
    x, _, _, seq = columns(seed, lengths)
    order = torch.tensor(np.random.default_rng(seed).permutation(len(x)))
    want = [sum(v.item() for v, s in zip(x, seq, strict=True) if s == k) for k in range(len(lengths))]
    assert seq_sum(x[order], seq[order]).tolist() == pytest.approx(want)
    assert seq_mean(x[order], seq[order]).tolist() == pytest.approx([w / n for w, n in zip(want, lengths, strict=True)])
    assert torch.autograd.gradcheck(lambda y: seq_mean(y, seq), (x.requires_grad_(),))


def test_segments_of_nothing():
    none = torch.zeros(0)
    assert seq_sum(none, none.long()).shape == (0,) and seq_sum(none, none.long(), 2).tolist() == [0, 0]


# ---- extremes


def test_huge_ratios_have_no_nan_gradient_where_the_clip_holds():
    lp, old = f64(0, 0, 0), f64(-800, -800, -800)
    for fn, a in ((clipped_ratio, f64(1, 0, 2)), (clipped_importance, f64(1, 0, -2))):
        grad = slope(lambda x, fn=fn, a=a: fn(logp=x, old_logp=old, adv=a), lp)
        assert torch.isfinite(grad).all(), fn
    assert slope(lambda x: clipped_ratio(logp=x, old_logp=old, adv=f64(1, 1, 1)), lp).tolist() == [0, 0, 0]
    held = slope(lambda x: clipped_ratio(logp=x, old_logp=old, adv=f64(-1, -1, -1), dual=3.0), lp)
    assert held.tolist() == [0, 0, 0]
    # not clipped, and not hidden either: the loss is infinite, and the loop refuses it
    assert torch.isinf(clipped_ratio(logp=lp, old_logp=old, adv=f64(-1, -1, -1))).all()
    seq = torch.tensor([0, 0, 0])
    assert torch.isfinite(slope(lambda x: sequence_ratio(logp=x, old_logp=old, adv=f64(1), seq=seq), lp)).all()


@pytest.mark.parametrize("fn", [policy_gradient, clipped_ratio, clipped_importance, weighted_nll])
@pytest.mark.parametrize("name", ["logp", "old_logp", "adv"])
def test_unknown_comes_through(fn, name):
    given = {"logp": f64(-1, -1), "old_logp": f64(-1, -1), "adv": f64(1, -1)}
    given = {n: v for n, v in given.items() if n in fn().needs}
    if name in given:
        given[name] = torch.full((2,), math.nan, dtype=torch.float64)
        assert torch.isnan(fn(**given)).all()
    ok = torch.zeros(2, dtype=torch.float64)
    assert torch.isnan(kl(logp=ok, ref_logp=f64(math.nan, 0))).tolist() == [True, False]
    got = sequence_ratio(logp=f64(math.nan, 0), old_logp=ok, adv=f64(1, 1), seq=torch.tensor([0, 1]))
    assert torch.isnan(got).tolist() == [True, False]


def test_wrong_words_are_refused():
    with pytest.raises(BadValue, match="k1, k2 or k3"):
        kl(logp=f64(0), ref_logp=f64(0), kind="k4")
    with pytest.raises(BadValue, match="dual"):
        clipped_ratio(logp=f64(0), old_logp=f64(0), adv=f64(0), dual=1.0)


def test_float32_stays_float32():
    x = torch.zeros(2)
    seq = torch.tensor([0, 1])
    assert clipped_ratio(logp=x, old_logp=x, adv=x).dtype == kl(logp=x, ref_logp=x).dtype == torch.float32
    assert sequence_ratio(logp=x, old_logp=x, adv=x, seq=seq).dtype == torch.float32


# ---- reductions


@quick
@given(st.integers(0, 999))
def test_reductions(seed):
    lp, old, a, seq = columns(seed, [1] * 6)
    equal = torch.equal
    # DAPO with equal clips is PPO's clip
    assert equal(
        clipped_ratio(logp=lp, old_logp=old, adv=a, low=0.2, high=0.2), clipped_ratio(logp=lp, old_logp=old, adv=a)
    )
    # GSPO on one-token answers is PPO's clip, in value and gradient
    ppo = lambda x: clipped_ratio(logp=x, old_logp=old, adv=a)  # noqa: E731
    gspo = lambda x: sequence_ratio(logp=x, old_logp=old, adv=a, seq=seq, low=0.2, high=0.2)  # noqa: E731
    assert equal(ppo(lp), gspo(lp)) and equal(slope(ppo, lp), slope(gspo, lp))
    # CISPO that clips nothing has the gradient of the importance-weighted policy gradient, -r A grad logp
    cispo = slope(lambda x: clipped_importance(logp=x, old_logp=old, adv=a, high=math.inf), lp)
    surrogate = slope(lambda x: clipped_ratio(logp=x, old_logp=old, adv=a, low=1.0, high=math.inf), lp)
    assert torch.allclose(cispo, -torch.exp(lp - old) * a, atol=1e-12) and torch.allclose(cispo, surrogate, atol=1e-12)
    # ratio 1: every one of them has REINFORCE's gradient
    plain = slope(lambda x: policy_gradient(logp=x, adv=a), old)
    for fn in (clipped_ratio, clipped_importance):
        assert torch.allclose(slope(lambda x, fn=fn: fn(logp=x, old_logp=old, adv=a), old), plain, atol=1e-12)
    assert torch.allclose(slope(lambda x: sequence_ratio(logp=x, old_logp=old, adv=a, seq=seq), old), plain, atol=1e-12)
    # at the reference: DPO is log 2, and every KL 0
    pair = torch.tensor([0]), torch.tensor([3])
    assert dpo(logp=old, ref_logp=old, seq=seq, win=pair[0], lose=pair[1]).item() == pytest.approx(math.log(2))
    assert all((kl(logp=old, ref_logp=old, kind=k) == 0).all() for k in ("k1", "k2", "k3"))
    # self-imitation where A > 0
    assert equal(weighted_nll(logp=lp, adv=a.abs()), policy_gradient(logp=lp, adv=a.abs()))


def test_a_trunk_that_both_sides_share_cancels_in_dpo():
    trunk = f64(-1, -2, grad=True)
    own = f64(-0.5, -0.7)
    lp = torch.cat([trunk, own[:1], trunk, own[1:]])
    dpo(
        logp=lp,
        ref_logp=lp.detach() - 0.3,
        seq=torch.tensor([0, 0, 0, 1, 1, 1]),
        win=torch.tensor([0]),
        lose=torch.tensor([1]),
    ).sum().backward()
    assert trunk.grad.tolist() == [0.0, 0.0]


# ---- weightings


def batch_of(lengths, keys, loss_streams=None, preferred_over=()) -> Batch:
    """Sequences of given ids: a prompt token and `length` learned ones, of which the stream may change in between."""
    out = []
    for i, (n, key) in enumerate(zip(lengths, keys, strict=True)):
        parts = [Segment((1,), None)]
        for loss_stream, share in loss_streams[i] if loss_streams else [("main", n)]:
            parts.append(Segment(tuple(range(share)), loss_stream))
        out.append(
            Example(tuple(parts), "policy", key, str(i), preferred_over=tuple(b for a, b in preferred_over if a == i))
        )
    return collate(out, {}.__getitem__)


def padded(lengths, keys, mode, limit=7):
    """The [S, L] definition of each mode as the papers write it, applied to l[s, t] = 10 s + t."""
    rows = [[10 * s + t for t in range(n)] for s, n in enumerate(lengths)]
    if mode == "token_mean":
        return sum(map(sum, rows)) / sum(lengths)
    if mode == "sequence_mean":
        return sum(sum(r) / len(r) for r in rows) / len(rows)
    if mode == "sequence_sum":
        return sum(map(sum, rows)) / len(rows)
    if mode == "constant_length":
        return sum(sum(r) / limit for r in rows) / len(rows)
    groups = [[v for r, k in zip(rows, keys, strict=True) if k == key for v in r] for key in sorted(set(keys))]
    return sum(sum(g) / len(g) for g in groups) / len(groups)


@quick
@given(st.lists(st.tuples(st.integers(1, 6), st.sampled_from("abc")), min_size=1, max_size=6), st.integers(0, 99))
def test_weights_equal_the_padded_definitions_under_any_split(rows, seed):
    lengths, keys = zip(*rows, strict=True)
    batch = batch_of(lengths, keys)
    seq = batch.get("seq")
    l = np.concatenate([10.0 * s + np.arange(n) for s, n in enumerate(lengths)])
    cut = np.random.default_rng(seed).integers(0, 3, len(lengths))[seq]
    for part in (token_mean(), sequence_mean(), sequence_sum(), constant_length(limit=7), prompt_mean()):
        w = loss_weights(batch, Term(policy_gradient(), loss_weights=part))
        assert (w * l).sum() == pytest.approx(padded(lengths, keys, part.name))
        assert sum((w * l)[cut == k].sum() for k in range(3)) == pytest.approx((w * l).sum())
        # a sequence weighs what its tokens weigh, and so do steps and groups
        by_seq = loss_weights(batch, Term(sequence_ratio(), loss_weights=part))
        assert by_seq == pytest.approx(np.bincount(seq, weights=w))
    assert loss_weights(batch, Term(sequence_ratio())) == pytest.approx(
        loss_weights(batch, Term(sequence_ratio(), loss_weights=sequence_mean()))
    )
    assert loss_weights(batch, Term(policy_gradient())) == pytest.approx(
        loss_weights(batch, Term(policy_gradient(), loss_weights=token_mean()))
    )


# STYLE.md 2.3: three sequences of 10 tokens with loss 1, one of 1000 with loss -1
def test_verls_sign_flip_does_not_happen():
    batch = batch_of([10, 10, 10, 1000], "abcd")
    w = loss_weights(batch, Term(policy_gradient()))
    l = np.where(batch.get("seq") == 3, -1.0, 1.0)
    assert (w * l).sum() == pytest.approx((30 - 1000) / 1030)


def test_only_rows_on_the_streams_count():
    # sequence 0: 2 tokens main and 2 sft; 1: 3 main; 2: 4 sft only; groups a, a, b
    loss_streams = [[("main", 2), ("sft", 2)], [("main", 3)], [("sft", 4)]]
    batch = batch_of([4, 3, 4], "aab", loss_streams, preferred_over=[(0, 1), (0, 2)])
    on = batch.on(("main",))
    main = lambda part=None, fn=policy_gradient: loss_weights(batch, Term(fn(), loss_weights=part))  # noqa: E731
    assert main()[on] == pytest.approx([1 / 5] * 5) and (main()[~on] == 0).all()
    assert main(sequence_mean())[on] == pytest.approx([1 / 4] * 2 + [1 / 6] * 3)
    assert main(prompt_mean())[on] == pytest.approx([1 / 5] * 5)  # one group is on the stream
    assert main(fn=sequence_ratio) == pytest.approx([1 / 2, 1 / 2, 0])
    assert main(token_mean(), sequence_ratio) == pytest.approx([2 / 5, 3 / 5, 0])
    assert main(fn=dpo) == pytest.approx([1.0, 0.0])  # the second pair's loser is not there
    first_off = batch_of(
        [4, 2, 2, 1], "baac", [[("sft", 4)], [("main", 2)], [("main", 2)], [("main", 1)]]
    )  # group b is not there
    assert loss_weights(first_off, Term(nll(), loss_weights=prompt_mean()))[4:] == pytest.approx([1 / 8] * 4 + [1 / 2])
    both = loss_weights(batch, Term(policy_gradient(), on=("main", "sft")))
    assert both == pytest.approx(np.full(11, 1 / 11))
    assert (loss_weights(batch, Term(policy_gradient(), on="nobody")) == 0).all()
    assert (loss_weights(batch, Term(policy_gradient(), on="nobody", loss_weights=token_mean())) == 0).all()
    with pytest.raises(BadValue, match="pair"):
        main(token_mean(), dpo)


def test_weights_of_steps_and_groups():
    from selfteach.core import Grp, Step
    from selfteach.core.blocks import Block

    def per_step(*, logp: Step) -> Step:
        return logp

    def per_group(*, logp, group: Grp) -> Grp:
        return logp

    batch = batch_of([4, 3, 4], "aab", [[("x", 1), ("x", 3)], [("x", 3)], [("x", 4)]])  # two steps in the first
    term = lambda fn, part=None: Term(Block(fn), on="x", loss_weights=part)  # noqa: E731
    assert loss_weights(batch, term(per_step)) == pytest.approx([1 / 4] * 4)
    assert loss_weights(batch, term(per_step, token_mean())) == pytest.approx([1 / 11, 3 / 11, 3 / 11, 4 / 11])
    assert loss_weights(batch, term(per_group)) == pytest.approx([1 / 2] * 2)
    assert loss_weights(batch, term(per_group, token_mean())) == pytest.approx([7 / 11, 4 / 11])


def test_a_weighting_may_read_other_columns():
    from selfteach.core import Seq
    from selfteach.core.blocks import Block

    def balanced(*, length: Seq, reward: Seq) -> Seq:
        right = (reward == 1).sum()
        return np.where(reward == 1, 1 / right, 1 / (len(reward) - right)) / length / 2

    batch = batch_of([1, 2, 1, 2], "aaaa")
    batch.put("reward", "seq", np.array([1.0, 0, 0, 0]))
    w = loss_weights(batch, Term(sequence_ratio(), loss_weights=Block(balanced)))
    assert w == pytest.approx([1 / 2, 1 / 6, 1 / 6, 1 / 6])


# ---- schedules, and the room's rules


def test_schedules():
    at = lambda part, step: part(history=History(step=step))  # noqa: E731
    ramp = linear(start=0.0, stop=2.0, steps=10, after=5)
    assert [at(ramp, s) for s in (0, 5, 10, 15, 99)] == [0.0, 0.0, 1.0, 2.0, 2.0]
    wave = cosine(start=1.0, stop=0.1, steps=8)
    assert [at(wave, s) for s in (0, 4, 8)] == pytest.approx([1.0, 0.55, 0.1])
    assert [at(after(step=3), s) for s in (2, 3)] == [False, True] == [not at(before(step=3), s) for s in (2, 3)]
    assert [s for s in range(7) if at(every(steps=3), s)] == [0, 3, 6]
    # as they are: from 1 to 0 over a hundred steps, the cosine at a quarter 1/2 (1 + cos 45 degrees); from step 0 on;
    # never; every other step
    assert [at(linear(), s) for s in (0, 1, 50, 100)] == [1.0, 0.99, 0.5, 0.0]
    assert [at(cosine(), s) for s in (0, 25, 50, 100)] == pytest.approx([1.0, 0.5 + math.sqrt(0.125), 0.5, 0.0])
    assert at(after(), 0) and not at(before(), 0) and [s for s in range(4) if at(every(), s)] == [0, 2]
    with pytest.raises(BadValue, match="steps"):
        at(linear(steps=0), 1)


def test_blocks_are_registered_and_say_their_units():
    units = {
        "policy_gradient": "token",
        "clipped_ratio": "token",
        "sequence_ratio": "seq",
        "clipped_importance": "token",
        "kl": "token",
        "entropy_bonus": "token",
        "nll": "token",
        "weighted_nll": "token",
        "value_loss": "token",
        "clipped_value_loss": "token",
        "dpo": "pair",
        "token_mean": "seq",
        "sequence_mean": "seq",
        "sequence_sum": "seq",
        "constant_length": "seq",
        "prompt_mean": "seq",
    }
    for name, unit in units.items():
        part = blocks.get(name)()
        assert part.unit == unit and part.doc and from_json(to_json(part)) == part, name
    for name in ("linear", "cosine", "after", "before", "every"):
        assert list(blocks.get(name)().needs) == ["history"]
    assert sequence_ratio().scope == "seq" and dpo().scope == "pair" and clipped_ratio().scope == "token"
    assert dpo().reading(ref_logp="old_logp").columns == {
        "logp": "token",
        "old_logp": "token",
        "seq": "token",
        "win": "pair",
        "lose": "pair",
    }


def test_no_two_weightings_agree_by_accident():
    batch = batch_of([1, 2, 5], "aab")
    parts = (token_mean(), sequence_mean(), sequence_sum(), constant_length(limit=9), prompt_mean())
    every_w = [loss_weights(batch, Term(nll(), loss_weights=p)) for p in parts]
    assert not any(np.allclose(a, b) for a, b in itertools.combinations(every_w, 2))


def test_the_regression_is_zero_at_the_closed_form():
    draw = np.random.default_rng(0)
    ref, reward, beta = torch.tensor(draw.normal(size=5)).log_softmax(0), torch.tensor(draw.normal(size=5)), 0.4
    value = beta * torch.logsumexp(ref + reward / beta, 0)
    best = (ref + reward / beta).log_softmax(0)
    loss = lambda lp: advantage_regression(logp=lp, ref_logp=ref, adv=reward - value, seq=torch.arange(5), beta=beta)  # noqa: E731
    assert loss(best).max() < 1e-24 and loss(ref).max() > 0.1


def test_advantage_regression_by_hand():
    # beta 0.1: 0.1 (1 + 2) - 0.5 = -0.2, and 0.1 * -1 + 1 = 0.9; slopes 2 beta (...) on every token
    lp, seq = f64(-1, -1, -3), torch.tensor([0, 0, 1])
    loss = lambda x: advantage_regression(logp=x, ref_logp=f64(-2, -3, -2), adv=f64(0.5, -1.0), seq=seq, beta=0.1)  # noqa: E731
    assert loss(lp).tolist() == pytest.approx([0.04, 0.81])
    assert slope(loss, lp).tolist() == pytest.approx([-0.04, -0.04, 0.18])
    # beta 1/1000 unless told otherwise: (0.003 - 0.5)^2, (1 - 0.001)^2
    plain = advantage_regression(logp=lp, ref_logp=f64(-2, -3, -2), adv=f64(0.5, -1.0), seq=seq)
    assert plain.tolist() == pytest.approx([0.247009, 0.998001])


def test_the_value_model_is_fitted_by_squares():
    # sigmoid(0) = 1/2: (1/2 - 1)^2, (1/2 - 1/4)^2
    assert success_loss(critic_value=torch.zeros(2), target=torch.tensor([1.0, 0.25])).tolist() == pytest.approx(
        [0.25, 0.0625]
    )
