"""The learner against plain autograd on an explicit, unpadded loop in float64; against itself over every split; and its
refusals.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from support.learners import (
    BOTH,
    CAST,
    SHAPE,
    UPDATES,
    WEIGHTS,
    collect,
    examples,
    gradient,
    learn_masked,
    learn_nll,
    learn_pg,
    learn_ratio,
    learn_sqrt,
    learner,
    loss_weights,
    made,
    model,
)

from selfteach.core import (
    BadCheckpoint,
    BadValue,
    Example,
    ModelRole,
    NotFinite,
    Segment,
    Term,
    UnknownName,
    Update,
    WeightSpec,
    collate,
)
from selfteach.core.batch import Batch
from selfteach.kernels import fast_paths
from selfteach.learner import LearnerSettings, LocalLearner, learning_rate
from selfteach.learner.microbatch import flat_layout, plan_micro_batches, texts_of
from selfteach.learner.param_groups import ParamGroups
from selfteach.model.attention import causal_attention
from selfteach.objective.policy import clipped_ratio

# ---- the reference


def column_by_hand(run: LocalLearner, batch: Batch, name: str) -> torch.Tensor:
    """A column by a forward over each whole sequence alone, with every logit made. f64[N]."""
    out = []
    for row, place in enumerate(batch.place):
        s = int(batch.get("seq")[row])
        ids, at = batch.ids[batch.start[s] : batch.start[s + 1]], int(place - batch.start[s])
        if name.endswith("_told"):
            first = int(batch.place[np.flatnonzero(batch.get("seq") == s)[0]] - batch.start[s])
            prefix = batch.prefixes["told"][s]
            assert prefix is not None
            ids, at = np.concatenate([prefix, ids[first:]]), at - first + len(prefix)
        trunk = run.groups.trunk("ref" if name == "ref_logp" else "rm" if name.startswith("rm_") else "policy")
        hidden = trunk(torch.tensor(ids, dtype=torch.int64)[None], causal_attention)[0]
        lp = trunk.logits(hidden).log_softmax(-1)
        if name == "critic_value":
            out.append(run.groups["value_head"].heads["value"](hidden[at - 1])[0])
        elif name == "rm_scalar_after":
            out.append(run.groups["rm"].heads["scalar"](hidden[at])[0])
        elif name == "entropy":
            out.append(-(lp[at - 1].exp() * lp[at - 1]).sum())
        else:
            out.append(lp[at - 1, int(ids[at])])
    return torch.stack(out)


def gradient_by_hand(run: LocalLearner, batch: Batch, update: Update) -> dict[str, torch.Tensor]:
    with run.groups.trainable(update.params):
        total = torch.zeros((), dtype=torch.float64)
        for number, term in enumerate(update.terms):
            rows = batch.on(term.on)
            part = batch.take(rows)
            given = {}
            for need, unit in term.fn.needs.items():
                column = term.fn.reads.get(need, need)
                if column in part:
                    given[need] = torch.from_numpy(np.asarray(part.get(column, unit)))
                else:
                    given[need] = column_by_hand(run, batch, column)[torch.from_numpy(rows)]
            loss = term.fn(**given)
            w = torch.from_numpy(part.columns[f"w{number}"].values)
            if isinstance(loss, tuple):
                loss, kept = loss
                share = w * kept
                w = share * (w.sum() / share.sum() if term.denominator == "kept" else 1)
            total = total + term.coef * (w * loss).sum()  # type: ignore[operator]
        total.backward()
    return collect(run, update) | {"loss": total.detach()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor], atol: float = 1e-10) -> None:
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-9, atol=atol, msg=lambda m, n=name: f"{n}: {m}")
    assert any(v.abs().max() > 1e-3 for n, v in a.items() if n != "loss")


@pytest.mark.parametrize("name", UPDATES)
def test_gradient_equals_plain_autograd(name: str):
    update = UPDATES[name]
    batch = loss_weights(made(), update)
    run = learner()
    want = gradient_by_hand(run, batch, update)
    for tokens in (1, 25, 4096):  # each sequence alone; a few together, through pairs and groups; all at once
        run.tokens = tokens
        same(gradient(run, batch, update), want)


def test_splits_cover_one_and_two_passes():
    batch = made()
    assert (
        plan_micro_batches(batch, 4096, "pair")
        and plan_micro_batches(batch, 1, "pair") is None
        and plan_micro_batches(batch, 4096, "batch")
        and plan_micro_batches(batch, 25, "batch") is None
    )
    for tokens in (1, 25, 4096):
        pieces = plan_micro_batches(batch, tokens)
        assert pieces is not None and sorted(np.concatenate(pieces).tolist()) == list(range(batch.size("seq")))
    assert len(plan_micro_batches(batch, 1) or []) == batch.size("seq")


def test_pairs_stay_together():
    batch = made()
    pieces = plan_micro_batches(batch, 40, "pair")
    assert pieces is not None and len(pieces) > 1
    home = {int(s): n for n, piece in enumerate(pieces) for s in piece}
    assert all(
        home[w] == home[z] for w, z in zip(batch.index["win"].tolist(), batch.index["lose"].tolist(), strict=True)
    )


def test_order_of_examples_does_not_matter():
    update = Update("policy", (Term(learn_ratio(), BOTH),))
    batches = []
    for order in (range(9), [4, 8, 0, 3, 7, 1, 6, 2, 5]):
        parts = examples()
        batch = made(
            [Example(p.segments, p.model_role, p.key, p.name, p.views, p.given) for p in (parts[i] for i in order)]
        )
        batch.put("w0", "token", 0.1 + 0.05 * np.cos(np.asarray(batch.get("old_logp"))))
        batches.append(batch)
    run = learner(tokens=30)
    same(gradient(run, batches[0], update), gradient(run, batches[1], update))


def test_unlearned_tokens_add_no_rows():
    parts = examples()
    longer = [
        Example(
            (Segment((1, 2, 3), None), *p.segments, Segment((4, 5), None)), p.model_role, p.key, p.name, given=p.given
        )
        for p in parts
    ]
    a, b = collate(parts, lambda _: None), collate(longer, lambda _: None)  # type: ignore[arg-type,return-value]
    assert a.size("token") == b.size("token")
    trailing = [
        Example((*p.segments, Segment((4, 5), None)), p.model_role, p.key, p.name, given=p.given) for p in parts
    ]
    c = collate(trailing, lambda _: None)  # type: ignore[arg-type,return-value]
    run = learner()
    for batch in (a, c):
        run.forward(batch, ["logp"])
    assert (
        np.abs(a.get("logp") - c.get("logp")).max() < 1e-12
    )  # what stands behind the last learned token changes nothing


def test_forward_columns():
    batch = made()
    run = learner(tokens=30)
    run.forward(
        batch,
        ["logp", "prox_logp", "ref_logp", "critic_value", "rm_scalar_after", "entropy", "logp_told", "last_hidden"],
    )
    for name in ("logp", "ref_logp", "critic_value", "rm_scalar_after", "entropy", "logp_told"):
        np.testing.assert_allclose(batch.get(name), column_by_hand(run, batch, name).detach().numpy(), atol=1e-12)
    assert (batch.get("prox_logp") == batch.get("logp")).all() and batch.get("last_hidden").shape == (
        batch.size("token"),
        SHAPE.width,
    )
    layers, seen = run.trunk("policy").model.layers, list[torch.Tensor]()
    handle = layers[0].register_forward_hook(lambda layer, given, out: seen.append(out.detach()[0]))
    text = batch.ids[batch.start[4] : batch.start[5]].astype(np.int64)
    run.trunk("policy")(torch.from_numpy(text[None]), causal_attention)
    handle.remove()
    run.forward(batch, ["residuals"])  # in several micro-batches, of which some share a prompt
    assert batch.get("residuals").shape == (batch.size("token"), SHAPE.layers, SHAPE.width)
    own = np.flatnonzero(batch.get("seq") == 4)
    right = seen[0][batch.place[own] - batch.start[4] - 1].numpy()
    np.testing.assert_allclose(batch.get("residuals")[own, 0], right, atol=1e-6)
    cut = batch.take(
        np.arange(batch.size("token")) % 3 > 0
    )  # a filter may drop a sequence's first learned row: contexts stay what they were
    before = {n: cut.get(n).copy() for n in ("logp", "logp_told")}
    run.forward(cut, ["logp", "logp_told"])
    for n, values in before.items():
        np.testing.assert_allclose(cut.get(n), values, atol=1e-12)


def test_models_of_their_own_and_missing_heads():
    parts = [
        Example(p.segments, "rm" if i % 2 else "policy", p.key, p.name, given=p.given) for i, p in enumerate(examples())
    ]
    batch = made(parts)
    run = learner()
    run.forward(batch, ["scalar_after"])
    mine = np.array([m == "rm" for m in batch.model_role])[batch.get("seq")]
    assert np.isfinite(batch.get("scalar_after")[mine]).all() and np.isnan(batch.get("scalar_after")[~mine]).all()
    update = Update("policy", (Term(learn_nll(), BOTH),))
    with pytest.raises(BadValue, match="model rm has no vocab head"):
        run.backward(loss_weights(batch, update), update)
    with pytest.raises(BadValue, match="no model of this batch has the head"):
        run.forward(batch, ["value"])
    with pytest.raises(UnknownName):
        run.forward(batch, ["returns"])


def test_temperature_is_replayed_or_refused():
    batch = made()
    run = learner()
    batch.put("temperature", "token", np.full(batch.size("token"), 0.5))
    run.forward(batch, ["logp", "raw_logp"])
    hot = batch.get("logp").copy()
    batch.put("temperature", "token", np.ones(batch.size("token")))
    run.forward(batch, ["logp"])
    assert np.abs(hot - batch.get("logp")).max() > 0.1
    np.testing.assert_allclose(batch.get("logp"), batch.get("raw_logp"), atol=1e-12)
    temperature = np.ones(batch.size("token"))
    temperature[-1] = np.nan
    batch.put("temperature", "token", temperature)
    with pytest.raises(BadValue, match=r"sample g2/2.*logp cannot be computed again.*top_p=1"):
        run.forward(batch, ["logp"])
    run.forward(batch, ["critic_value", "raw_logp"])  # these do not ask how the tokens were drawn
    assert run.logprob_mismatch(batch)["rows"] == batch.size("token") - 1


def test_unknown_is_refused():
    update = Update("policy", (Term(learn_ratio()), Term(learn_pg().reading(adv="returns"), "sft")))
    batch = loss_weights(made(), update)
    old = batch.get("old_logp").copy()
    off = np.flatnonzero(batch.on(("sft",)))[:3]
    old[off] = np.nan
    batch.put("old_logp", "token", old)
    run = learner()
    name = batch.names[batch.get("seq")[off[0]]]
    with pytest.raises(BadValue, match=rf"old_logp unknown on 3 trained tokens of stream \('sft',\), first: {name}"):
        run.backward(batch, update)
    only = Update("policy", (Term(learn_ratio()),))
    run.backward(batch, only)  # the rows that it reads are known
    collect(run, only)
    adv = batch.columns["adv"].values.copy()
    adv[4] = np.nan
    batch.put("adv", "seq", adv)
    with pytest.raises(BadValue, match=r"adv unknown on 1 sequences of stream .*first: g1/1"):
        run.backward(batch, only)


def test_other_refusals():
    run = learner()
    batch = made()
    with pytest.raises(BadValue, match="weights w0 must be per token; the column is not there"):
        run.backward(batch, Update("policy", (Term(learn_nll()),)))
    with pytest.raises(BadValue, match="none of its terms reads a column that depends on these weights"):
        run.backward(loss_weights(batch, UPDATES["token"]), Update("value_head", (Term(learn_ratio(), BOTH),)))
    with pytest.raises(UnknownName, match="weight group"):
        run.backward(batch, Update("polcy", (Term(learn_nll()),)))
    with pytest.raises(BadValue, match="no column 'returnz'"):
        run.backward(
            loss_weights(batch, UPDATES["planned"]),
            Update("policy", (Term(learn_masked().reading(adv="returnz"), BOTH),)),
        )
    with pytest.raises(BadValue, match=r"does not return \(l, kept\)"):
        run.backward(
            loss_weights(batch, UPDATES["token"]), Update("policy", (Term(learn_ratio(), BOTH, denominator="kept"),))
        )
    with pytest.raises(BadValue, match="does not fit the model's context"):
        run.forward(made([Example((Segment((1,) * 60, None), Segment((2,) * 9, "main")), "policy", "g")]), ["logp"])
    with pytest.raises(BadValue, match="exactly one group with a trunk"):
        ParamGroups(WEIGHTS, {"x": ModelRole(("policy", "ref"))}, model())
    with pytest.raises(BadValue, match="decay: must be one of constant, linear, cosine, not 'up'"):
        LearnerSettings(decay="up")  # pyright: ignore[reportArgumentType]
    with pytest.raises(BadValue, match="lr: must be above 0, not 0"):
        LearnerSettings(lr=0)
    with pytest.raises(BadValue, match="micro_tokens: must be at least 1, not 0"):
        LearnerSettings(micro_tokens=0)


def test_not_finite_leaves_everything_alone():
    run = learner()
    update = Update("policy", (Term(learn_pg().reading(adv="returns"), BOTH),))
    batch = loss_weights(made(), update)
    run.backward(batch, update)
    run.step(update, 1e-2)
    before, moments = copy.deepcopy(run.weights("policy")), {k: v.clone() for k, v in run.optimisers.tensors().items()}
    old = batch.get("old_logp").copy()
    old[5] = -1e6  # exp(logp - old_logp) is infinite
    batch.put("old_logp", "token", old)
    run.backward(batch, update)
    with pytest.raises(
        NotFinite, match=rf"sample {batch.names[batch.get('seq')[5]]}.*weights and optimiser are as they were"
    ):
        run.step(update, 1e-2)
    assert all(
        torch.equal(p, before[n]) and run.groups["policy"].named_parameters()[n].grad is None
        for n, p in run.weights("policy").items()
    )
    assert all(torch.equal(v, moments[k]) for k, v in run.optimisers.tensors().items())
    bad = Update("policy", (Term(learn_sqrt(), BOTH),))  # a finite loss of infinite slope
    run.backward(loss_weights(batch, bad), bad)
    with pytest.raises(NotFinite, match="derivative of the loss by logp"):
        run.step(bad, 1e-2)
    old[5] = -2.0
    batch.put("old_logp", "token", old)
    run.backward(loss_weights(batch, update), update)
    assert np.isfinite(run.step(update, 1e-2)["grad_norm"])


def test_save_and_load_go_on_bit_for_bit(tmp_path):
    update = UPDATES["value, shared trunk"]
    batch = loss_weights(made(), update)
    one = learner(weight_decay=0.1)
    for _ in range(2):
        one.backward(batch, update)
        one.step(update, 1e-2)
    one.copy("ref", "policy", 0.5)
    one.save(tmp_path, skip=("policy",))
    assert {f.name for f in tmp_path.iterdir()} == {
        "ref.safetensors",
        "value_head.safetensors",
        "optimiser.safetensors",
        "learner.json",
    }
    two = LocalLearner(WEIGHTS, CAST, model(), 0, one.settings)
    two.put("policy", one.weights("policy"))
    two.load(tmp_path, skip=("policy",))
    written = {f.name: f.read_bytes() for f in tmp_path.iterdir()}
    for run in (one, two):
        run.backward(batch, update)
        run.step(update, 1e-2)
    for group in ("policy", "value_head", "ref"):
        assert one.fingerprint(group) == two.fingerprint(group)
        assert all(torch.equal(p, two.weights(group)[n]) for n, p in one.weights(group).items())
    assert {f.name: f.read_bytes() for f in tmp_path.iterdir()} == written  # which are mapped while they are read
    with pytest.raises(BadCheckpoint, match=r"learner\.json: missing"):
        two.load(tmp_path / "nowhere")
    (tmp_path / "value_head.safetensors").write_bytes(b"cut")
    with pytest.raises(BadCheckpoint, match=r"value_head\.safetensors: cut short"):
        LocalLearner(WEIGHTS, CAST, model(), 0).load(tmp_path)
    with pytest.raises(BadCheckpoint, match="does not have"):
        LocalLearner({"policy": WeightSpec()}, {"policy": ModelRole()}, model(), 0).load(tmp_path)


def test_an_optimiser_that_is_reset_steps_as_a_new_one():
    update = UPDATES["value, shared trunk"]
    batch = loss_weights(made(), update)
    one = learner()
    one.backward(batch, update)
    one.step(update, 1e-2)
    two = learner()
    for group in ("policy", "value_head"):
        two.put(group, one.weights(group))
    one.reset_optimisers(["ref"])
    assert one.optimisers.tensors(), "the optimiser of other groups is left alone"
    one.reset_optimisers(["policy"])
    assert not one.optimisers.tensors()
    for run in (one, two):
        run.backward(batch, update)
        run.step(update, 1e-2)
    for group in ("policy", "value_head"):
        assert one.fingerprint(group) == two.fingerprint(group)
    with pytest.raises(UnknownName, match="polcy"):
        one.reset_optimisers(["polcy"])


def test_copies_and_averages():
    run = learner()
    policy, ref = copy.deepcopy(run.weights("policy")), copy.deepcopy(run.weights("ref"))
    run.copy("ref", "policy", 0.25)
    name = "model.layers.0.mlp.up_proj.weight"
    torch.testing.assert_close(run.weights("ref")[name], ref[name] + 0.25 * (policy[name] - ref[name]))
    run.copy("ref", "policy")
    assert run.fingerprint("ref") == run.fingerprint("policy")
    head = run.weights("rm")["scalar_head.weight"].clone()
    run.copy("rm", "policy")  # heads that only one has are left alone
    assert torch.equal(run.weights("rm")["scalar_head.weight"], head) and torch.equal(
        run.weights("rm")[name], policy[name]
    )
    with pytest.raises(BadValue, match="nothing in common"):
        run.copy("value_head", "policy")
    again = LocalLearner({**WEIGHTS, "twin": WeightSpec("policy")}, CAST, model(), 0)
    assert again.fingerprint("twin") == again.fingerprint("policy")
    assert float(again.weights("value_head")["value_head.weight"].abs().sum()) == 0  # a fresh critic says 0
    with pytest.raises(BadValue, match="circle"):
        LocalLearner({"a": WeightSpec("b"), "b": WeightSpec("a")}, {"a": ModelRole(("a",))}, model())


def test_finite_differences():
    run = learner()
    update = UPDATES["sequence"]
    batch = loss_weights(made(), update)
    found = gradient(run, batch, update)
    for name in (
        "model.layers.0.self_attn.k_proj.weight",
        "model.layers.1.mlp.down_proj.weight",
        "model.embed_tokens.weight",
        "model.norm.weight",
    ):
        p = run.weights("policy")[name].reshape(-1)
        for i in (0, p.numel() // 2):
            losses = []
            for sign in (1, -1):
                p[i] += sign * 1e-5
                losses.append(run.backward(batch, update)["loss"])
                p[i] -= sign * 1e-5
            collect(run, update)
            assert (losses[0] - losses[1]) / 2e-5 == pytest.approx(
                float(found[f"policy/{name}"].reshape(-1)[i]), rel=1e-5, abs=1e-8
            )


def test_steps_are_the_same_bits_and_lower_the_loss():
    update = Update("policy", (Term(learn_nll(), BOTH),))
    ends = []
    for _ in range(2):
        run = learner(start=model(double=False), tokens=60)
        batch = loss_weights(made(), update)
        losses = []
        for _ in range(5):
            losses.append(run.backward(batch, update)["loss"])
            metrics = run.step(update, 1e-2)
        assert losses[-1] < losses[0] and metrics["lr"] == 1e-2
        ends.append(run.weights("policy"))
    assert all(torch.equal(ends[0][n], ends[1][n]) for n in ends[0])


def test_float32_and_bf16_are_close():
    update = UPDATES["value, shared trunk"]
    batch = loss_weights(made(), update)
    double = gradient(learner(), batch, update)
    single = gradient(learner(start=model(double=False)), batch, update)
    rough = gradient(learner(start=model(double=False), dtype="bfloat16"), batch, update)
    away = lambda a, n: float((double[n] - a[n]).norm() / double[n].norm())  # noqa: E731
    assert all(away(single, n) < 1e-5 and away(rough, n) < 0.05 for n in double)
    assert any(away(rough, n) > 1e-4 for n in double)


def test_the_precision_of_matmuls_is_restored():
    before = torch.backends.mkldnn.matmul.fp32_precision  # type: ignore[attr-defined]
    x = torch.linspace(-1, 1, 24).view(4, 6).requires_grad_(True)
    with fast_paths.fast_paths():
        (fast_paths.default_matmul(lambda a: a @ a.T, x) ** 2).sum().backward()
    assert torch.backends.mkldnn.matmul.fp32_precision == before  # type: ignore[attr-defined]
    y = x.detach().clone().requires_grad_(True)
    ((y @ y.T) ** 2).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


def test_shared_contexts_are_laid_out_once():
    batch = made()
    texts = texts_of(batch, np.arange(batch.size("token")))
    lay = flat_layout(texts, "cpu")
    assert lay.ids.shape[1] < sum(len(t) for t in texts.ids)  # though filled up to the grid
    flat, at = lay.ids[0].numpy(), lay.positions[0].numpy()
    assert (flat[lay.before.numpy()] == batch.ids[batch.place - 1]).all() and (
        at[lay.before.numpy()] == batch.get("pos") - 1
    ).all()


def test_mismatch_and_metrics():
    run = learner()
    batch = made()
    run.forward(batch, ["logp"])
    batch.put("old_logp", "token", batch.get("logp") + 0.25)
    mismatch = run.logprob_mismatch(batch)
    assert (
        mismatch["max"] == pytest.approx(0.25)
        and mismatch["mean"] == pytest.approx(0.25)
        and mismatch["rows"] == batch.size("token")
    )
    update = Update("policy", (Term(learn_ratio()), Term(learn_nll(), "sft"), Term(learn_nll(), "main", coef=2.0)))
    metrics = run.backward(loss_weights(batch, update), update)
    assert metrics.keys() == {
        "loss",
        "loss/learn_ratio",
        "loss/learn_nll/sft",
        "loss/learn_nll/main",
        "approx_kl",
        "ratio_max",
        "advantage_abs",
        "rows",
    }
    batch.put("adv", "token", np.where(np.arange(batch.size("token")) % 2, -3.0, 1.0))
    clipped = Update("policy", (Term(clipped_ratio()),))
    found = run.backward(loss_weights(batch, clipped), clipped)
    assert found["advantage_abs"] == pytest.approx(2.0, abs=0.1)
    assert found["clip_fraction"] > 0 and "clipped_prob" not in found, "every ratio is below 1: no mean of nothing"
    assert metrics["loss"] == pytest.approx(sum(v for n, v in metrics.items() if n.startswith("loss/")))
    assert metrics["ratio_max"] == pytest.approx(np.exp(-0.25)) and metrics["approx_kl"] == pytest.approx(
        np.exp(-0.25) - 1 + 0.25
    )


def test_rate():
    assert [learning_rate(LearnerSettings(lr=1.0, warmup=4), s) for s in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    linear, cosine = (LearnerSettings(lr=1.0, warmup=2, decay=d, steps=12) for d in ("linear", "cosine"))
    assert [learning_rate(linear, s) for s in (2, 7, 12, 20)] == [1.0, 0.5, 0.0, 0.0]
    assert learning_rate(cosine, 7) == pytest.approx(0.5) and learning_rate(cosine, 12) == pytest.approx(0)
