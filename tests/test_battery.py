"""The battery that a method joins by being registered: one smoke run, invariances of its gradient, and reductions between methods.

Nothing here names a method where it is tested for what all must do.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import mini

from selfteach import api
from selfteach.core import Batch, Episode, Group, Method, Part, Ref, Request, Sampling, Score, Task, Trajectory, Tree, from_json, registry, to_json
from selfteach.core.errors import SelfteachError
from selfteach.core.scoring import whole_step
from selfteach.learner.local import LocalLearner
from selfteach.learner.settings import Settings as LearnerSettings
from selfteach.loop.assemble import check, needed
from selfteach.loop.log import Rollouts, read_events
from selfteach.loop.run import Loop, without_silent
from selfteach.loop.table import Limits, Table
from selfteach.loop.weighing import weights
from selfteach.model import files
from selfteach.model.quantities import parse
from selfteach.model.transformer import causal
from selfteach.reward.combine import weighted

ALL = list(registry.methods)


TAUGHT = [n for n in ALL if not registry.methods.get(n)().stage.data]  # those that learn from rewards

# ---- one smoke run each

SMALL = {  # options that make a task small; a claim's task without an entry runs as it is
    "chain_sum": {"terms": (2, 2), "style": "terse", "n_test": 8},
    "factworld": {"entities": 60, "relations": 4, "hops": (1, 2), "n_test": 8},
    "countdown": {"numbers": (2, 2), "tries": 0, "n_test": 8},
    "strings": {"depth": (1, 2), "n_test": 8},
    "preference": {"n_test": 8},
    "games": {"n_test": 8},
}
STAND_IN = {"atlas": "factworld"}  # the same generator over a small world


def task_of(name: str) -> tuple[str, dict[str, Any]]:
    """The task of a method's claim, or the first that it can run on; small."""
    entry = registry.methods.get(name)
    for task in [entry.claim.task] if entry.claim else ["chain_sum", "factworld"]:
        task = STAND_IN.get(task, task)
        try:
            check(entry(), api.source_of(task, SMALL.get(task, {})))
            return task, SMALL.get(task, {})
        except SelfteachError:
            continue
    raise AssertionError(f"{name} runs on no task here")


def varied(method: Method) -> Method:
    """The method with its rewards made different from one answer to the next, so that a group carries a gradient."""
    spread = registry.blocks.get("spread")
    stages = []
    for stage in method.stages:
        if stage.reward and not any(whole_step(r) for r in stage.reward):
            stage = replace(stage, reward=(weighted(parts=(*((1.0, r) for r in stage.reward), (1.0, spread()))),))
        elif stage.reward:  # which cannot be part of another: what it is made of is changed, and what it gave where an assigner reads it
            inner = [{k: weighted(parts=((1.0, v), (1.0, spread()))) for k, v in r.args.items() if isinstance(v, Part)} for r in stage.reward]
            stage = replace(stage, reward=tuple(r.but(**given) for r, given in zip(stage.reward, inner, strict=True)))
            first = next((i for i, p in enumerate(stage.credit) if "reward" in p.columns), None)
            if first is not None:
                stage = replace(stage, credit=(*stage.credit[:first], registry.blocks.get("spread_out")(), *stage.credit[first:]))
        stages.append(stage)
    return replace(method, stages=tuple(stages))


@pytest.mark.parametrize("name", ALL)
def test_a_short_real_run(name: str, tmp_path: Path):
    task, knobs = task_of(name)
    entry = registry.methods.get(name)
    small = {
        k: v for k, v in {"groups": 3, "rollouts": 3, "batch": 6, "tasks": 3, "lessons": 1}.items() if k in entry.knobs and entry.knobs[k].default > 1
    }
    job = api.plan(name, task, knobs, small, model="tiny-s", steps=2, max_tokens=20, eval_every=0, warm_steps=4, warm_batch=8, checkpoint_every=1)
    job = replace(job, method=varied(job.method), survey=api.Survey(tasks=2, deep=1, k=2, ways=1), settings=replace(job.settings, keep=9))
    run = api.train(job, tmp_path / "run")
    assert run.done and run.figures["steps"] == 2

    steps = [e for e in read_events(run.folder / "log") if e["event"] == "step"]
    assert len(steps) == 2
    learning = {s.name for s in job.method.stages if s.updates}
    assert any(e["stage"] in learning for e in steps), "it only measured"
    for e in steps:
        if e["stage"] not in learning:  # a stage that only measures
            assert e["tokens/sampled"] > 0 and e["tokens/learned"] == 0
            continue
        assert e["tokens/learned"] > 0 and e["tokens/sampled"] == e["tokens/learned"] + sum(v for k, v in e.items() if k.startswith("dropped/"))
        stored = Rollouts(run.folder / "log" / "rollouts" / f"{e['step']:06d}.npz").arrays
        several = any(sum("groups" in p.needs for p in s.credit) > 1 for s in job.method.stages)  # a token of several examples counts once
        more = stored["learned/length"].sum() - e["tokens/learned"]  # what a composer gave to be learned besides, a token an answer at most
        assert more >= 0 and (several or more <= len(stored["learned/length"])) and e["tokens/sampled"] <= stored["chosen"].sum()
        unknown = [k for k, v in e.items() if v is None]
        assert not unknown, f"not finite: {unknown}"
        assert any(k.endswith("loss") for k in e) and any(k.endswith("grad_norm") and v > 0 for k, v in e.items())

    before = files.read_tensors(run.folder / "checkpoints" / "000000" / "model.safetensors")
    after = files.read_tensors(run.model / "model.safetensors")
    assert any(not torch.equal(before[n], after[n]) for n in before) and all(torch.isfinite(t).all() for t in after.values())

    saved = api.Job.from_json(json.loads((run.folder / "config.json").read_text()))
    assert saved.method == job.method and saved == job
    assert str(saved.method) == str(job.method) and "update" in str(job.method)


# ---- synthetic groups: every registered credit and objective on the same hand-made episodes

VOCAB = 24
BESIDE = ("start_value", "step_value", "necessary", "thinking")
KEYS = ("g0", "g1", "g2")


def tree_of(rng: np.random.Generator, observed: int = 0) -> tuple[Tree, int]:
    """A prompt and one to three turns; `observed` tokens that nobody chose stand after each but the last."""
    tree = Tree()
    node = tree.add(-1, rng.integers(0, VOCAB, 3))
    turns = int(rng.integers(1, 4))
    for turn in range(turns):
        size = int(rng.integers(2, 5))
        ids, logp = rng.integers(0, VOCAB, size), -3.2 + 0.3 * rng.standard_normal(size)
        node = tree.add(node, ids, chosen=True, logp=logp, version=0, sampling=Sampling())
        if turn < turns - 1 and observed:
            node = tree.add(node, np.full(observed, 1), span="information")
    return tree, node


def groups_of(keys: Sequence[str] = KEYS, size: int = 4, observed: int = 0, shift: float = 0.0, rename: str = "") -> list[Group]:
    """Three groups of four episodes whose rewards differ; every episode depends on its own key and number alone."""
    out = []
    for key in keys:
        episodes, scores = [], {}
        for i in range(size):
            rng = np.random.default_rng([KEYS.index(key), i])
            tree, leaf = tree_of(rng, observed)
            at = Ref(f"train/0/0/{rename}{key}/{i}", leaf)
            episodes.append(Episode(at.episode, tree, [Trajectory(at, "policy", rename + key)]))
            scores[at] = Score((KEYS.index(key) * 0.25 + i * 0.5) % 1.75 + shift)
        out.append(Group(Request(Task(rename + key, "p"), size, key=rename + key), episodes, beside(scores), rename + key))
    return out


def beside(rewards: dict[Ref, Score]) -> dict[str, dict[Ref, Score]]:
    """The rewards, and what some programs and rewards score besides: numbers by the episode and the reward, in names that only they use."""
    of = {at: float((s.value or 0.0) * 4 % 3) for at, s in rewards.items()}
    return {"reward": rewards} | {name: {at: Score(v / 4 + n) for at, v in of.items()} for n, name in enumerate(BESIDE)}


@cache
def start() -> torch.nn.Module:
    return mini(VOCAB, width=16, head_dim=8, hidden=24).double()


class Reserved:
    """What a composer may ask of a tokenizer: how a text begins, and an id that stands in none."""

    end, spare = 0, VOCAB - 1

    @staticmethod
    def blank(prompt: Any) -> np.ndarray:
        return np.zeros(1, np.int32)


class Study:
    """What a method makes of some groups: the batch with its advantages, the weights of every term, and the gradient."""

    def __init__(self, method: Method, groups: list[Group], tokens: int = 4096):
        method = needed(method)
        learner = LocalLearner(method.weights, method.cast, start(), 0, LearnerSettings(tokens=tokens))
        for name in method.weights:  # a reference that is somewhere else, a critic that says something
            if name != "policy":
                gen = torch.Generator().manual_seed(len(name))
                for p in learner.weights(name).values():
                    p.add_(0.05 * torch.randn(p.shape, generator=gen, dtype=p.dtype))
        stage = next(s for s in method.stages if s.updates and not s.data)
        loop = Loop(method, None, None, learner, None, {}, lambda step: 1.0, 1)  # type: ignore[arg-type]
        table = Table(None, Reserved, tuple(method.cast), {}, Sampling(), {}, limits=Limits())  # type: ignore[arg-type]
        table.trees.update({e.id: e.tree for g in groups for e in g.episodes})
        for earlier in method.stages[: method.stages.index(stage)]:
            if not earlier.updates:
                loop._compose(earlier, table, groups)
        self.batch: Batch
        self.batch, self.dropped, self.sampled = loop._compose(stage, table, groups)
        self.weights: list[np.ndarray] = []
        self.gradient: dict[str, torch.Tensor] = {}
        for update in stage.updates:
            ready = self.batch
            loop._fill(ready, update.assign)
            for part in update.assign:
                ready = loop._assign("assign", part, ready, {})
            prox = sorted({c for t in update.terms for c in t.fn.columns if c.startswith("prox_")})
            if prox:
                learner.forward(ready, prox)
            for t, term in enumerate(update.terms):
                ready.put(f"w{t}", term.fn.unit, weights(ready, term))
                self.weights.append(ready.get(f"w{t}", term.fn.unit))
            coefs = replace(update, terms=tuple(replace(t, coef=loop._knob(t.coef)) for t in update.terms))
            learner.backward(without_silent(ready, coefs), coefs)
            for group in update.params:
                for n, p in learner.groups[group].names().items():
                    if p.grad is not None:
                        self.gradient[f"{group}/{n}"] = p.grad.clone()
                        p.grad = None

    def columns(self) -> dict[tuple[str, int], tuple[float, ...]]:
        """By sequence and number of its learned token: advantage, and weight in every term that has one per token."""
        out = {}
        seq, seen = self.batch.get("seq"), dict[int, int]()
        rows = [
            self.batch.get("adv" if "adv" in self.batch else "reward"),
            *(w if len(w) == len(seq) else w[seq] for w in self.weights if len(w) in (len(seq), self.batch.size("seq"))),
        ]
        for i, s in enumerate(seq.tolist()):
            n = seen[s] = seen.get(s, -1) + 1
            key = self.batch.names[s].rsplit(":", 1)[0]  # the episode: its leaf's number moves with what is inserted
            out[key, n] = tuple(float(r[i]) for r in rows)
        return out


def same_gradient(a: Study, b: Study, tol: float = 1e-9) -> None:
    assert a.gradient and a.gradient.keys() == b.gradient.keys()
    size = max(float(g.abs().max()) for g in a.gradient.values())
    assert size > 1e-6, "no gradient at all"
    for name, g in a.gradient.items():
        assert float((g - b.gradient[name]).abs().max()) <= tol * max(1.0, size), name


def variants(name: str) -> list[Method]:
    """A method as it is, and with a pull to the reference where it has that knob, which brings in the other terms."""
    entry = registry.methods.get(name)
    made = [entry()]
    if "beta" in entry.knobs and not entry.knobs["beta"].default:
        made.append(entry(beta=0.1))
    return made


CASES = [pytest.param(m, id=m.name + ("+beta" if m.args else "")) for n in TAUGHT for m in variants(n)]


@pytest.mark.parametrize("method", CASES)
class TestInvariances:
    def test_micro_batches(self, method):
        whole = Study(method, groups_of())
        for tokens in (1, 17, 40):
            same_gradient(whole, Study(method, groups_of(), tokens))

    def test_order_of_groups_and_of_episodes(self, method):
        one, other = groups_of(), groups_of(("g2", "g0", "g1"))
        other = [Group(g.request, g.episodes[::-1], g.scores, g.key) for g in other]
        a, b = Study(method, one), Study(method, other)
        same_gradient(a, b)
        assert a.columns().keys() == b.columns().keys()
        assert all(np.allclose(v, b.columns()[k], atol=1e-12) for k, v in a.columns().items())

    def test_names_mean_nothing(self, method):
        same_gradient(Study(method, groups_of()), Study(method, groups_of(rename="zz")))

    @pytest.mark.parametrize("k", [1, 5])
    def test_observations_change_no_advantage_and_no_weight(self, method, k):
        if any("critic_value" in p.columns for s in method.stages for p in s.credit):
            pytest.skip("a critic reads what was observed, and may")
        plain, told = Study(method, groups_of()).columns(), Study(method, groups_of(observed=k)).columns()
        assert plain.keys() == told.keys()
        for row, values in plain.items():
            have = told[row]
            # what a forward pass measures (of a reference, of a view) depends on the context, so there only the weights are compared
            assigners = [p for s in method.stages for p in (*s.credit, *(a for u in s.updates for a in u.assign))]
            skip = any(parse(c, method.cast, ("blind",)) for p in assigners for c in p.columns)
            assert np.allclose(values[skip:], have[skip:], atol=1e-12), row

    def test_a_trunk_stored_once_is_the_trunk_stored_twice(self, method):
        same_gradient(Study(method, forked(True)), Study(method, forked(False)))

    def test_every_token_is_accounted_for(self, method):
        study = Study(method, groups_of())
        assert study.sampled == sum(int(e.tree.chosen.sum()) for g in groups_of() for e in g.episodes)
        drawn = np.isfinite(study.batch.get("old_logp")).sum()  # not what a composer gave to be learned besides
        assert study.sampled == drawn + sum(study.dropped.values())

    def test_a_constant_added_to_all_rewards_changes_nothing_where_rewards_are_centred(self, method):
        names = [p.name for s in method.stages for p in s.credit]
        if not {"center", "norm", "whiten"} & set(names):
            pytest.skip("its advantages are not centred over the batch")
        a, b = Study(method, groups_of()).columns(), Study(method, groups_of(shift=3.0)).columns()
        absolute = any(t.weigh and "reward" in t.weigh.needs for s in method.stages for u in s.updates for t in u.terms)  # what counts as right
        assert all(np.allclose(v[: 1 if absolute else None], b[k][: 1 if absolute else None], atol=1e-9) for k, v in a.items())


def forked(share: bool) -> list[Group]:
    """Two groups of two episodes with two branches each behind a common turn, which stands in the tree once or once per branch."""
    out = []
    for key in ("g0", "g1"):
        episodes, scores = [], {}
        for i in range(2):
            tree, rng = Tree(), np.random.default_rng([7, KEYS.index(key), i])
            prompt, first = rng.integers(0, VOCAB, 3), rng.integers(0, VOCAB, 3)
            logp = -3.2 + 0.3 * rng.standard_normal(3)
            closed, trunk = [], None
            for branch in range(2):
                if trunk is None or not share:
                    trunk = tree.add(tree.add(-1, prompt), first, chosen=True, logp=logp, version=0, sampling=Sampling())
                own = np.random.default_rng([8, KEYS.index(key), i, branch])
                leaf = tree.add(
                    trunk, own.integers(0, VOCAB, 2 + branch), chosen=True, logp=np.full(2 + branch, -3.0), version=0, sampling=Sampling()
                )
                at = Ref(f"train/0/0/{key}/{i}", leaf)
                closed.append(Trajectory(at, "policy", key))
                scores[at] = Score((i + 2 * branch) / 4)
            episodes.append(Episode(f"train/0/0/{key}/{i}", tree, closed))
        out.append(Group(Request(Task(key, "p"), 2, key=key), episodes, beside(scores), key))
    return out


def test_the_synthetic_groups_are_what_they_say():
    once, twice = forked(True), forked(False)
    assert sum(len(e.tree) for g in once for e in g.episodes) < sum(len(e.tree) for g in twice for e in g.episodes)
    assert {len({s.value for s in g.scores["reward"].values()}) for g in groups_of()} == {4}
    plain, told = groups_of(), groups_of(observed=2)
    assert any(len(a.tree) < len(b.tree) for g, h in zip(plain, told, strict=True) for a, b in zip(g.episodes, h.episodes, strict=True))


def test_a_gradient_is_by_finite_differences_what_it_should_be():
    """The whole way from groups to gradient, once, against the loss itself: -sum_i A_i sum_t logp_t / S for REINFORCE with centred rewards."""
    method = registry.methods.get("rloo")(groups=3, rollouts=4)
    study, groups = Study(method, groups_of()), groups_of()
    model = copy.deepcopy(start())

    def loss() -> float:
        total = 0.0
        for g in groups:
            rewards = [s.value for s in g.scores["reward"].values()]
            for i, e in enumerate(g.episodes):
                adv = rewards[i] - (sum(rewards) - rewards[i]) / 3
                ids = torch.tensor(e.tree.id[e.tree.places(e.trajectories[0].leaf.node)].astype(np.int64))
                with torch.no_grad():
                    hidden = model(ids[None], causal)
                    logp = model.logits(hidden)[0].log_softmax(-1)
                chosen = np.flatnonzero(e.tree.chosen)
                total -= adv * sum(float(logp[t - 1, ids[t]]) for t in chosen) / 12
        return total

    name, p = next((n, p) for n, p in model.names().items() if "q_proj" in n)
    for place in ((0, 0), (3, 5)):
        ends = []
        for step in (1e-5, -2e-5):
            with torch.no_grad():
                p[place] += step
            ends.append(loss())
        with torch.no_grad():
            p[place] += 1e-5
        slope = (ends[0] - ends[1]) / 2e-5
        assert float(study.gradient[f"policy/{name}"][place]) == pytest.approx(slope, rel=1e-4, abs=1e-8)


# ---- reductions


def of(name: str, **knobs: Any) -> Method:
    return registry.methods.get(name)(**knobs)


def with_weigh(method: Method, name: str, **knobs: Any) -> Method:
    (update,) = method.stage.updates
    return method.but(updates=(replace(update, terms=tuple(replace(t, weigh=registry.blocks.get(name)(**knobs)) for t in update.terms)),))


def same(a: Method, b: Method, tol: float = 0.0) -> None:
    same_gradient(Study(a, groups_of()), Study(b, groups_of()), tol)


def test_dapo_with_equal_clips_and_no_overlong_is_grpo_with_a_token_mean():
    same(of("dapo", low=0.2, high=0.2, limit=10_000), with_weigh(of("grpo"), "token_mean"))


def test_ssrl_with_all_of_it_switched_off_is_grpo():
    same(of("ssrl", format=0.0, mask=False, beta=0.0), of("grpo"))
    differ = {place for place, _, _ in of("ssrl", format=0.0, mask=False, beta=0.0).diff(of("grpo", groups=48, rollouts=5))}
    assert differ == {"program.main", "reward.0", "credit.0", "decode.self", "decode.search", "decode.entropy_guided"}


def test_dr_grpo_is_grpo_centred_over_a_constant_length():
    center = registry.blocks.get("center")(by="group")
    same(of("dr_grpo", limit=64), with_weigh(of("grpo").but(credit=(of("grpo").stage.credit[0], center)), "constant_length", limit=64))


def test_search_r1_without_a_call_is_grpo_with_a_token_mean():
    same(of("search_r1", beta=0.0), with_weigh(of("grpo"), "token_mean"))


def test_answer_only_is_grpo_with_another_program():
    same(of("answer_only", beta=0.0), of("grpo"))
    assert {row[0] for row in of("answer_only", beta=0.0).diff(of("grpo", groups=48, rollouts=5))} == {"program.main"}


def test_rloo_is_n_over_n_minus_one_of_centred_rewards():
    plain = of("rloo").but(credit=(of("rloo").stage.credit[0], registry.blocks.get("center")(by="group")))
    a, b = Study(of("rloo"), groups_of()), Study(plain, groups_of())
    for name, g in a.gradient.items():
        assert torch.allclose(g, b.gradient[name] * 4 / 3, atol=1e-12)  # groups of four


def test_cispo_without_a_bound_is_the_importance_weighted_policy_gradient():
    """At ratios inside all bounds, -sg(r) A logp and -min(r A, clip(r) A) have one gradient: r A grad logp."""
    same(of("cispo", high=1e9), with_weigh(of("grpo", clip=1e9), "token_mean"), 1e-12)


def test_a_mask_takes_what_it_names_out_of_every_term():
    study = {}
    for mask in (True, False):
        groups = groups_of()
        for g in groups:
            for e in g.episodes:
                for node in range(1, len(e.tree.parent)):
                    e.tree.mark(node, 0, 1, "information")  # the first token of every turn
        study[mask] = Study(of("ssrl", mask=mask), groups)
    turns = sum(len(e.tree.parent) - 1 for g in groups_of() for e in g.episodes)
    assert study[False].batch.size("token") - study[True].batch.size("token") == turns == study[True].dropped["dropped/masked:information"]
    assert set(study[True].batch.get("seq")) == set(study[False].batch.get("seq"))
    with pytest.raises(AssertionError):
        same_gradient(study[True], study[False])


def test_configurations_of_methods_stay_equal_through_json():
    for name in ALL:
        entry = registry.methods.get(name)
        for knob, p in entry.knobs.items():
            if isinstance(p.default, int) and not isinstance(p.default, bool) and p.default > 1:
                made = entry(**{knob: p.default + 1})
                assert from_json(json.loads(json.dumps(to_json(made)))) == made != entry(), f"{name}: {knob} changes nothing"
