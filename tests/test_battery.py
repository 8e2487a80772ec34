"""The battery that a method joins by being registered: a short real run, the invariances of its step, what each of its
hyper-parameters does, what a step does to the expected reward of a small bandit, and a fingerprint of its columns.

Nothing here names a method. A check that a method is not meant to pass is left out by what its registration says.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import exact_bandit, fingerprints, sensitivity
from support.battery import Study, forked, groups_of, same_gradient, study_of, variants
from support.short_run import short_job

from selfteach import api
from selfteach.configuration import RunConfig
from selfteach.core import Block, Method, RolloutGroup, from_json, registry, to_json
from selfteach.core.quantity import parse
from selfteach.core.regime import home_of
from selfteach.loop.dependencies import blocks_in
from selfteach.loop.log import Rollouts, read_events
from selfteach.model import files

ALL = [name for name, entry in registry.methods.items() if entry.build.__module__.startswith("selfteach.")]
FROM_REWARDS = [n for n in ALL if not registry.methods.get(n)().stage.data]


# ---- a short real run


# Sorted by the tasks of their claims, so that each task is made once.
@pytest.mark.parametrize("name", sorted(ALL, key=lambda n: home_of(registry.methods.get(n)).task))
def test_a_short_real_run(name: str, tmp_path: Path, small_start: Callable[..., Path]):
    run_config = short_job(name, small_start)
    run = api.train(run_config, tmp_path / "run")
    assert run.done and run.figures["steps"] == 2

    steps = [e for e in read_events(run.folder / "log") if e["event"] == "step"]
    assert len(steps) == 2
    learning = {s.name for s in run_config.method.stages if s.updates}
    assert any(e["stage"] in learning for e in steps), "it only measured"
    several = any(sum("groups" in p.needs for p in s.credit) > 1 for s in run_config.method.stages)
    for e in steps:
        if e["stage"] in learning:
            stored = Rollouts(run.folder / "log" / "rollouts" / f"{e['step']:06d}.npz").arrays
            check_step(e, stored, several)
        else:  # a stage that only measures
            assert e["tokens/sampled"] > 0 and e["tokens/learned"] == 0

    before = files.read_tensors(Path(run_config.model) / "model.safetensors")
    after = files.read_tensors(run.model / "model.safetensors")
    assert any(not torch.equal(before[n], after[n]) for n in before) and all(
        torch.isfinite(t).all() for t in after.values()
    )

    saved = RunConfig.from_json(json.loads((run.folder / "config.json").read_text()))
    assert saved.method == run_config.method and saved == run_config
    assert str(saved.method) == str(run_config.method) and "update" in str(run_config.method)


def check_step(metrics: dict[str, Any], stored: dict[str, np.ndarray], several: bool) -> None:
    """Every sampled token is learned or dropped, every number is finite, something was learned. `several`: composers
    share tokens.
    """
    dropped = sum(v for k, v in metrics.items() if k.startswith("dropped/"))
    assert metrics["tokens/learned"] > 0 and metrics["tokens/sampled"] == metrics["tokens/learned"] + dropped
    more = stored["learned/length"].sum() - metrics["tokens/learned"]  # what a composer gave besides: a token an answer
    assert more >= 0 and (several or more <= len(stored["learned/length"]))
    assert metrics["tokens/sampled"] <= stored["action_mask"].sum()
    unknown = [k for k, v in metrics.items() if v is None]
    assert not unknown, f"not finite: {unknown}"
    assert any(k.endswith("loss") for k in metrics)
    assert any(k.endswith("grad_norm") and v > 0 for k, v in metrics.items())


# ---- invariances of one step on hand-made groups


@pytest.fixture(
    scope="class",
    params=[pytest.param(m, id=m.name + ("+beta" if m.args else "")) for n in FROM_REWARDS for m in variants(n)],
)
def method(request: pytest.FixtureRequest) -> Method:
    return request.param


@pytest.fixture(scope="class")
def study(method: Method) -> Study:
    return study_of(method.name, method.args)


class TestInvariances:
    def test_order_of_groups_and_of_episodes_names_and_micro_batches_of_a_few_sequences(
        self, method: Method, study: Study
    ):
        renamed = groups_of(("g2", "g0", "g1"), rename="zz")
        turned = [RolloutGroup(g.request, g.episodes[::-1], g.scores, g.key) for g in renamed]
        other = Study(method, turned, tokens=90)
        same_gradient(study, other)
        a, b = study.columns(), {(k[0].replace("zz", ""), k[1]): v for k, v in other.columns().items()}
        assert a.keys() == b.keys() and all(np.allclose(v, b[k], atol=1e-12) for k, v in a.items())

    def test_observations_change_no_advantage_and_no_weight(self, method: Method, study: Study):
        if any("critic_value" in p.columns for s in method.stages for p in s.credit):
            pytest.skip("a critic reads what was observed, and may")
        plain, other = study.columns(), Study(method, groups_of(observed=1), passes=False).columns()
        assert plain.keys() == other.keys()
        # what a forward pass measures (of a reference, of a view) depends on the context: there only weights compare
        assigners = [p for s in method.stages for p in (*s.credit, *(a for u in s.updates for a in u.assign))]
        skip = any(parse(c, method.models, ("blind",)) for p in assigners for c in p.columns)
        assert all(np.allclose(v[skip:], other[k][skip:], atol=1e-12) for k, v in plain.items())

    def test_a_shared_trunk_stored_once_or_twice_and_larger_micro_batches(self, method: Method):
        same_gradient(Study(method, forked(True)), Study(method, forked(False), tokens=30))

    def test_every_token_is_accounted_for(self, study: Study):
        assert study.sampled == sum(int(e.tree.action_mask.sum()) for g in groups_of() for e in g.episodes)
        drawn = np.isfinite(study.batch.get("old_logp")).sum()  # not what a composer gave to be learned besides
        assert study.sampled == drawn + sum(study.dropped.values())

    def test_a_constant_added_to_all_rewards_changes_nothing_where_rewards_are_centred(
        self, method: Method, study: Study
    ):
        if not {"center", "norm", "whiten"} & {p.name for s in method.stages for p in s.credit}:
            pytest.skip("its advantages are not centred over the batch")
        a, b = study.columns(), Study(method, groups_of(shift=3.0), passes=False).columns()
        terms = [t for s in method.stages for u in s.updates for t in u.terms]
        absolute = any(t.loss_weights and "reward" in t.loss_weights.needs for t in terms)  # what counts as right
        last = 1 if absolute else None
        assert all(np.allclose(v[:last], b[k][:last], atol=1e-9) for k, v in a.items())


def test_the_hand_made_groups_are_what_they_say():
    once, twice = forked(True), forked(False)
    assert sum(len(e.tree) for g in once for e in g.episodes) < sum(len(e.tree) for g in twice for e in g.episodes)
    assert {len({s.value for s in g.scores["reward"].values()}) for g in groups_of()} == {4}
    plain, other = groups_of(), groups_of(observed=2)
    assert any(
        len(a.tree) < len(b.tree)
        for g, h in zip(plain, other, strict=True)
        for a, b in zip(g.episodes, h.episodes, strict=True)
    )


# ---- hyper-parameters


@pytest.mark.parametrize("name", ALL)
def test_each_hyper_parameter_changes_something(name: str):
    entry = registry.methods.get(name)
    idle = [k for k in entry.hyper_parameters if not sensitivity.matters(entry, k)]
    assert not idle, f"nothing changes with {', '.join(idle)} (of a program, reward or curriculum: no test sets it)"


@pytest.mark.parametrize("name", ALL)
def test_configurations_stay_equal_through_json(name: str):
    entry = registry.methods.get(name)
    for hyper_parameter, p in entry.hyper_parameters.items():
        made = sensitivity.build(entry, **{hyper_parameter: sensitivity.alternatives(p)[0]})
        if isinstance(made, Method):
            assert from_json(json.loads(json.dumps(to_json(made)))) == made != entry()


@pytest.mark.parametrize("name", ALL)
def test_a_number_stands_once(name: str):
    """The default of a block in a method's file is what the method gives it, or has under the same name."""
    file = registry.methods.get(name).build.__module__
    methods = [e for e in map(registry.methods.get, ALL) if e.build.__module__ == file]
    named = dict[str, list[Any]]()
    for n, p in [row for e in methods for row in e.hyper_parameters.items()]:
        named.setdefault(n, []).append(p.default)
    given = dict[tuple[str, str], list[Any]]()
    own = [Block(fn) for _, b in registry.blocks.items() if (fn := inspect.unwrap(b)).__module__ == file]
    for block in [*own, *(b for b in blocks_in([e() for e in methods]) if b.fn.__module__ == file)]:
        for n, default in Block(block.fn).hyper_parameters.items():
            values = given.setdefault((block.name, n), [default])
            values += [block.hyper_parameters[n]] if n in block.args or n not in named else []
    for (block, n), (default, *values) in given.items():
        values += [v for v in named.get(n, ()) if v]  # at 0 the block is left out
        if values and all(isinstance(v, bool | int | float) for v in (default, *values)):
            assert default in values, f"{block} has {n}={default}, and {name} gives it {values[0]}"


# ---- the expected reward


@pytest.mark.parametrize("name", FROM_REWARDS)
def test_a_step_raises_the_expected_reward_of_a_small_bandit(name: str):
    entry = registry.methods.get(name)
    true, flipped, shuffled = exact_bandit.gains(entry())
    if entry.ignores_reward:
        assert true == flipped == shuffled, f"it is said to ignore its reward ({entry.ignores_reward}), and does not"
    else:
        assert true > 0, f"the expected reward changes by {true:.2g}"
        assert flipped < 0, f"with 1 - reward the expected reward changes by {flipped:.2g}"
        assert abs(shuffled) < true / 2, f"with rewards dealt out evenly it changes by {shuffled:.2g}, not {true:.2g}"


# ---- fingerprints


def test_fingerprints_are_of_the_methods_that_there_are():
    assert sorted(fingerprints.stored()) == ALL, "run make fingerprints, and see in the diff what it changes"


@pytest.mark.parametrize("name", ALL)
def test_columns_and_gradient_are_as_recorded(name: str):
    want, got = fingerprints.stored().get(name, {}), fingerprints.fingerprint(study_of(name))
    assert got.keys() == want.keys()
    for figure, values in got.items():
        message = f"{name}: {figure} has changed; if it was meant to, make fingerprints and say why"
        assert values == pytest.approx(want[figure], rel=1e-5, abs=1e-9), message
