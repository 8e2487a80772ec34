"""A learner over a small model, batches for it, and updates of every scope."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from selfteach.core import (
    Example,
    ModelRole,
    Pair,
    Segment,
    Seq,
    Term,
    Update,
    WeightSpec,
    block,
    collate,
)
from selfteach.core.batch import Batch
from selfteach.learner import LearnerSettings, LocalLearner
from selfteach.model.transformer import Config, Transformer

VOCAB = 13
SHAPE = Config(vocab=VOCAB, width=16, layers=2, heads=4, kv_heads=2, head_dim=4, hidden=24, max_length=64)
CAST = {
    "policy": ModelRole(("policy",)),
    "ref": ModelRole(("ref",)),
    "critic": ModelRole(("policy", "value_head"), ("value",)),
    "rm": ModelRole(("rm",), ("scalar",)),
}
WEIGHTS = {"policy": WeightSpec(), "ref": WeightSpec(), "value_head": WeightSpec("new:head"), "rm": WeightSpec()}


@block
def learn_ratio(*, logp, old_logp, adv: Seq, seq, low=0.2, high=0.2):
    r = (logp - old_logp).exp()
    a = adv[seq]
    return -torch.minimum(r * a, r.clamp(1 - low, 1 + high) * a)


@block
def learn_pg(*, logp, old_logp, adv):
    return -(logp - old_logp).exp() * adv


@block
def learn_nll(*, logp):
    return -logp


@block
def learn_kl(*, logp, ref_logp):
    return (ref_logp - logp).exp() - 1 - (ref_logp - logp)


@block
def learn_entropy_bonus(*, logp, entropy):
    return -entropy * (1 + 0 * logp)


@block
def learn_sequence(*, logp, old_logp, adv: Seq, seq) -> Seq:
    n = torch.zeros_like(adv).index_add(0, seq, torch.ones_like(logp))
    s = torch.zeros_like(adv).index_add(0, seq, logp - old_logp) / n
    return -s.exp() * adv


@block
def learn_dpo(*, logp, ref_logp, seq, win, lose, beta=0.5) -> Pair:
    h = torch.zeros(int(seq.max()) + 1, dtype=logp.dtype).index_add(0, seq, logp - ref_logp)
    return -F.logsigmoid(beta * (h[win] - h[lose]))


@block
def learn_by_group(*, logp, old_logp, group):
    n = int(group.max()) + 1
    total = torch.zeros(n, dtype=logp.dtype).index_add(0, group, (logp - old_logp).exp())
    return total[group] ** 2 * logp


@block
def learn_masked(*, logp, old_logp, adv):
    r = (logp - old_logp).exp()
    return -r * adv, (r - 1).abs() < 0.3


@block
def learn_value(*, critic_value, returns):
    return (critic_value - returns) ** 2


@block
def learn_scalar(*, rm_scalar_after, seq, win, lose) -> Pair:
    h = torch.zeros(int(seq.max()) + 1, dtype=rm_scalar_after.dtype).index_add(0, seq, rm_scalar_after)
    return -F.logsigmoid(h[win] - h[lose])


@block
def learn_told(*, logp_told, logp):
    return (logp_told - logp) ** 2


@block
def learn_sqrt(*, logp):
    return (logp + 1e30).clamp(max=0) + (logp - logp.detach()).sqrt()


def model(seed: int = 0, double: bool = True) -> Transformer:
    m = Transformer(SHAPE).initialise(seed)
    with torch.no_grad():
        for p in m.parameters():
            p.add_(torch.from_numpy(np.random.default_rng(p.numel() + seed).normal(0, 0.15, tuple(p.shape))).float())
    return m.double() if double else m


def learner(tokens: int = 4096, start: Transformer | None = None, **settings: Any) -> LocalLearner:
    out = LocalLearner(WEIGHTS, CAST, start or model(), 0, LearnerSettings(micro_tokens=tokens, **settings))
    other = model(5)
    out.put("ref", {n: p.to(out.weights("ref")[n].dtype) for n, p in other.named_tensors().items()})
    with torch.no_grad():
        for name in ("value_head", "rm"):
            for n, p in out.weights(name).items():
                if "_head" in n:
                    p.copy_(torch.linspace(-1, 1, p.numel()).view(p.shape))
    return out


def examples(seed: int = 0, groups: int = 3, size: int = 3) -> list[Example]:
    """Groups with a common prompt, two turns in some with an observation between, two streams, pairs, a view."""
    rng = np.random.default_rng(seed)
    draw = lambda a, z: tuple(int(i) for i in rng.integers(0, VOCAB, rng.integers(a, z)))  # noqa: E731
    out: list[Example] = []
    for g in range(groups):
        prompt = draw(3, 7)
        for k in range(size):
            parts = [Segment(prompt, None), Segment(draw(1, 6), "main")]
            if (g + k) % 2:
                parts += [Segment(draw(1, 4), None), Segment(draw(1, 5), "sft" if k else "main")]
            if k == 2:
                parts += [Segment(draw(1, 3), None)]
            preferred_over = (len(out) + 1,) if k == 0 else ()
            given = {"adv": ("seq", [float(rng.normal())])}
            out.append(
                Example(tuple(parts), "policy", f"g{g}", f"g{g}/{k}", {"told": draw(2, 9)}, given, preferred_over)
            )  # type: ignore[arg-type]
    return out


def made(parts: list[Example] | None = None) -> Batch:
    batch = collate(parts or examples(), lambda _: None)  # type: ignore[arg-type,return-value]
    # Columns that depend on the sequence and place alone, so that another order of the examples gives the same ones.
    own = np.array([sum(map(ord, batch.names[s])) for s in batch.get("seq")]) + 0.7 * np.asarray(batch.get("pos"))
    batch.put("old_logp", "token", -2.3 + np.sin(own))
    batch.put("returns", "token", np.cos(3 * own))
    return batch


def loss_weights(batch: Batch, update: Update) -> Batch:
    """Uneven weights per row of each term's unit, 0 off its streams."""
    for number, term in enumerate(update.terms):
        n = batch.size(term.fn.unit)
        w = 0.1 + 0.05 * np.cos(np.arange(n) * 1.3)
        if term.fn.unit == "token":
            w = w * batch.on(term.on)
        batch.put(f"w{number}", term.fn.unit, w)
    return batch


def collect(run: LocalLearner, update: Update) -> dict[str, torch.Tensor]:
    """The gradient so far, by name; cleared."""
    out = {}
    for group in update.params:
        for name, p in run.groups[group].named_parameters().items():
            if p.grad is not None:
                out[f"{group}/{name}"], p.grad = p.grad, None
    return out


def gradient(run: LocalLearner, batch: Batch, update: Update) -> dict[str, torch.Tensor]:
    metrics = run.backward(batch, update)
    return collect(run, update) | {"loss": torch.tensor(metrics["loss"], dtype=torch.float64)}


BOTH = ("main", "sft")
UPDATES = {
    "token": Update("policy", (Term(learn_ratio(), BOTH),)),
    "token, one stream": Update("policy", (Term(learn_ratio()),)),
    "sequence": Update("policy", (Term(learn_sequence(), BOTH),)),
    "pair": Update("policy", (Term(learn_dpo(), BOTH),)),
    "group": Update("policy", (Term(learn_by_group(), BOTH, coef=0.1),)),
    "planned": Update("policy", (Term(learn_masked().reading(adv="returns"), BOTH),)),
    "kept": Update("policy", (Term(learn_masked().reading(adv="returns"), BOTH, denominator="kept"),)),
    "two streams": Update("policy", (Term(learn_ratio()), Term(learn_nll(), "sft", coef=0.3))),
    "with a constant": Update(
        "policy", (Term(learn_pg().reading(adv="returns"), BOTH), Term(learn_kl(), BOTH, coef=0.5))
    ),
    "entropy": Update("policy", (Term(learn_entropy_bonus(), BOTH),)),
    "value, shared trunk": Update(
        ("policy", "value_head"), (Term(learn_ratio(), BOTH), Term(learn_value(), BOTH, coef=0.5))
    ),
    "value, head alone": Update(("value_head",), (Term(learn_value(), BOTH),)),
    "reward model": Update(("rm",), (Term(learn_scalar(), BOTH),)),
    "view": Update("policy", (Term(learn_told(), BOTH),)),
    "pairs and tokens": Update("policy", (Term(learn_dpo(), BOTH), Term(learn_nll(), BOTH, coef=0.1))),
}
