"""The loop: the same run twice, stages, staleness, replay, deliveries, refusals; and that it learns where there is
something to learn.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.episodes import scripted_context, single_turn_group
from support.loops import advance, bandit, equal, loop_of, source, weights_of
from support.models import mini

from selfteach.configuration import plan
from selfteach.core import (
    BadValue,
    Block,
    Column,
    EngineMismatch,
    Method,
    NotFinite,
    NoTrainingData,
    Score,
    Term,
    UnknownName,
    Update,
    block,
    registry,
    stateful,
)
from selfteach.core.method import ModelRole, WeightSpec
from selfteach.core.task import RolloutRequest, Sampling, Task
from selfteach.credit.advantages import norm
from selfteach.credit.composers import per_trajectory
from selfteach.credit.keep import drop_zero_variance_groups
from selfteach.credit.replay import replay
from selfteach.curriculum.select import first_task_index, refill, uniform
from selfteach.loop import assemble, method_on_task
from selfteach.loop.admission import admit
from selfteach.loop.evaluate import evaluate, pass_at
from selfteach.loop.log import RolloutArchive, Rollouts, pack
from selfteach.loop.method_on_task import needed
from selfteach.loop.metrics import meaning_of
from selfteach.loop.minibatches import split_minibatches
from selfteach.loop.run import MAX_ROUNDS, Loop
from selfteach.loop.safety import SafetyLimits
from selfteach.methods.grpo import grpo
from selfteach.methods.sft import sft
from selfteach.model import files
from selfteach.model.catalog import StartModel


def with_stage(loop: Loop, **change: Any) -> Loop:
    loop.method = loop.method.replace(**change)
    return loop


# ---- the same bits


def test_the_same_run_twice_gives_the_same_weights_whatever_shares_a_batch(letters):
    runs = []
    for slots, micro in ((64, 4096), (64, 4096), (8, 4096), (3, 4096)):
        loop = loop_of(bandit(), letters, slots=slots, micro_tokens=micro)
        runs.append((advance(loop, 3), weights_of(loop)))
    (metrics, first), *others = runs
    assert not equal(first, mini(264).named_tensors()), "nothing was learned"
    for logged, again in others:
        assert equal(first, again)
        assert [m["reward/mean"] for m in logged] == [m["reward/mean"] for m in metrics]


def test_another_seed_is_another_run(letters):
    a, b = loop_of(bandit(), letters), loop_of(bandit(), letters, seed=1)
    advance(a), advance(b)
    assert not equal(weights_of(a), weights_of(b))


# ---- what is learned


def test_reward_goes_up(letters):
    """Half of all tokens are even at the start. 25 steps of REINFORCE bring most of the sampled ones there."""
    loop = loop_of(bandit(groups=4, rollouts=8), letters, lr=0.02)
    logged = advance(loop, 25)
    rewards = [m["reward/mean"] for m in logged]
    assert np.mean(rewards[:3]) < 0.65 and np.mean(rewards[-3:]) > 0.85
    assert all(m["policy/logprob_mismatch_max"] < 1e-3 for m in logged)
    assert all(m["tokens/sampled"] == m["tokens/learned"] for m in logged)
    assert not [name for m in logged for name in m if meaning_of(name) is None], "a metric that loop/metrics.py lacks"
    assert logged[0]["tokens_per_s"] == pytest.approx(logged[0]["tokens/sampled"] / logged[0]["time/rollout_s"])


def test_rewards_that_are_all_alike_teach_exactly_nothing(letters):
    loop = loop_of(bandit(paid="alike"), letters)
    before = weights_of(loop)
    logged = advance(loop, 3)
    assert equal(before, weights_of(loop)) and all(m["reward/mean"] == 0.5 and "policy/loss" not in m for m in logged)


def test_rewards_that_mean_nothing_teach_nothing_that_counts(letters):
    loop = loop_of(bandit(groups=4, rollouts=8), letters, lr=0.02)
    evens: list[float] = []

    def shuffled(*, path: Any) -> float:
        ids = path.ids[path.prompt :]
        evens.append(float((ids % 2 == 0).mean()))
        return float(int(ids.sum()) * 2654435761 % 97) / 97  # says nothing of the parity

    logged = advance(with_stage(loop, reward=(Block(shuffled),)), 25)
    assert len(logged) == 25 and abs(np.mean(evens[-96:]) - np.mean(evens[:96])) < 0.2


# ---- stages


def test_stages_follow_each_other_and_each_gets_its_own_number_of_groups(letters):
    first = grpo(groups=6, rollouts=2).replace(reward=bandit(paid="spread").stage.reward, until=2, name="wide").stage
    last = replace(first, groups=2, until=None, name="narrow")
    loop = loop_of(Method((first, last)), letters, steps=5)
    logged = advance(loop, 5)
    assert [(m["stage"], m["rollout/groups"]) for m in logged] == [("wide", 6)] * 2 + [("narrow", 2)] * 3
    assert loop.done and loop.state.step == 5


def test_a_method_may_read_data_first_and_sample_then(letters):
    taught = replace(sft(batch=3).stage, until=2, name="read")
    loop = loop_of(Method((taught, replace(bandit(paid="spread").stage, name="speak"))), letters, steps=4)
    logged = advance(loop, 4)
    assert [m["stage"] for m in logged] == ["read", "read", "speak", "speak"]
    assert (
        "reward/mean" not in logged[0] and logged[0]["tokens/sampled"] > 0 and math.isfinite(logged[2]["reward/mean"])
    )
    assert logged[2]["policy/logprob_mismatch_max"] < 1e-3, "the engine samples with the weights that were read"


def test_a_stage_may_begin_with_a_new_optimiser(letters):
    method = bandit(paid="spread").replace(until=2, reset=("policy",))
    loop = loop_of(replace(method, repeat=2), letters, steps=4)
    steps = list[float]()
    for _ in range(4):
        advance(loop, 1)
        steps.append(float(next(t for n, t in loop.learner.optimisers.tensors().items() if n.endswith("|step"))))
    assert steps == [1, 2, 1, 2]
    with pytest.raises(BadValue, match="no weight group is called 'polcy'"):
        needed(grpo().replace(reset=("polcy",)))


def test_a_stage_begins_by_copying_and_a_group_may_follow(letters):
    loop = loop_of(bandit(paid="spread"), letters)
    stage = replace(loop.method.stage, enter={"old": "policy"})
    pulled = replace(
        stage.updates[0],
        terms=(*stage.updates[0].terms, Term(registry.blocks.get("kl")().reading(ref_logp="old_logp"))),
    )
    method = replace(
        loop.method,
        stages=(replace(stage, updates=(pulled,)),),
        weights={"policy": WeightSpec(), "old": WeightSpec(), "mean": WeightSpec(follow="policy", rate=0.5)},
        models={"policy": ModelRole(("policy",)), "elder": ModelRole(("mean",))},
    )
    program = method.stage.programs["main"]
    method = method.replace(programs={"main": program, "elders": program.replace(model_role="elder")})
    loop = loop_of(method, letters)
    begin = weights_of(loop)
    advance(loop, 1)
    now, mean = weights_of(loop), loop.learner.weights("mean")
    assert all(torch.allclose(mean[n], (begin[n] + now[n]) / 2, atol=1e-7) for n in begin)
    assert loop.engine is not None and loop.engine.fingerprint("mean") == files.fingerprint(mean)


# ---- staleness and rounds


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.integers(0, 4),
    st.integers(1, 5),
    st.lists(st.sampled_from(["start", "finish", "learn"]), max_size=120),
    st.randoms(use_true_random=False),
)
def test_nothing_is_learned_from_more_than_so_many_versions_late(staleness, batch, moves, random):
    """Any schedule: groups start when admitted, finish in any order, and are learned from in the order they began."""
    version, began, finished = 0, list[int](), set[int]()  # `began`: version under which each group began
    for move in moves:
        running = [g for g in range(len(began)) if g not in finished]
        if move == "start":
            room = admit(staleness, version, batch, len(finished), len(running))
            began += [version] * room
            assert room >= 0 and len(began) == (staleness + version + 1) * batch, (
                "as many as the bound allows, and no more"
            )
        elif move == "finish" and running:
            finished.add(random.choice(running))
        elif move == "learn":
            used = range(version * batch, (version + 1) * batch)
            if finished.issuperset(used):
                assert all(version - began[g] <= staleness for g in used), (version, [began[g] for g in used])
                version += 1


def number(task: str) -> int:
    return int(task.split("/")[1])


def test_refill_asks_until_enough_groups_differ(letters):
    calls: dict[str, int] = {}

    def sometimes(*, task: Any, text: str) -> float:
        calls[task.id] = calls.get(task.id, 0) + 1
        return (
            float(calls[task.id] % 2) if (number(task.id) - first_task_index(0)) % 3 == 0 else 1.0
        )  # every third question is worth asking

    loop = loop_of(
        bandit(groups=2, rollouts=2).replace(
            select=refill(rounds=4), credit=(per_trajectory(), drop_zero_variance_groups(), norm())
        ),
        letters,
    )
    _, groups, batch = asyncio.run(with_stage(loop, reward=(Block(sometimes),)).advance())
    # questions 0 1 | 2 | 3: of 0 and 1 one differs; 2 does not; 3 does
    assert [number(g.request.task.id) - first_task_index(0) for g in groups] == [0, 1, 2, 3]
    assert batch is not None and batch.size("group") == 2
    assert loop.state.blocks["main/select"] == 4


def test_a_select_that_never_has_enough_is_stopped(letters):
    def greedy(*, n: int, finished_rounds: Any, source: Any) -> list[RolloutRequest]:
        return [RolloutRequest(source.train(0), 1)]

    loop = with_stage(loop_of(bandit(), letters), select=Block(greedy))
    with pytest.raises(NoTrainingData, match=f"asked for {MAX_ROUNDS} rounds"):
        asyncio.run(loop.advance())


def test_a_run_that_can_learn_nothing_stops_and_says_why(letters):
    loop = loop_of(
        bandit(paid="alike").replace(credit=(per_trajectory(), drop_zero_variance_groups(), norm())), letters
    )
    loop.safety_limits = SafetyLimits(starved=3)
    with pytest.raises(
        NoTrainingData, match=r"3 steps in a row taught nothing \(last: drop_zero_variance_groups \d+\)"
    ):
        advance(loop, 9)


def test_equal_rewards_that_no_block_drops_teach_nothing_either(letters):
    loop = loop_of(bandit(paid="alike").replace(credit=(per_trajectory(), norm())), letters)
    loop.safety_limits = SafetyLimits(starved=3)
    before = weights_of(loop)
    with pytest.raises(NoTrainingData, match=r"3 steps in a row taught nothing \(last: the gradient was zero\)"):
        advance(loop, 9)
    assert equal(before, weights_of(loop))


def test_a_run_that_has_nothing_more_to_learn_goes_on_and_says_so_once(letters):
    loop = loop_of(bandit(), letters)
    loop.safety_limits = SafetyLimits(starved=2)
    heard: list[str] = []
    loop.warn = heard.append
    advance(loop)
    assert loop.state.learned and not loop.state.starved
    solved = bandit(paid="alike").replace(credit=(per_trajectory(), norm()))
    loop.method = solved
    advance(loop, 5)
    assert loop.state.starved == 5 and [h.split(" (")[0] for h in heard] == ["2 steps in a row taught nothing"]


def test_a_budget_of_tokens_ends_the_run(letters):
    loop = loop_of(bandit(), letters)
    loop.budget = 100
    steps = 0
    while not loop.done:
        advance(loop)
        steps += 1
    assert loop.state.tokens >= 100 > loop.state.tokens - 80 and steps == 2  # 16 answers of at most 5 tokens a step


# ---- minibatches, epochs, memory


def test_minibatches_are_dealt_anew_each_epoch_and_hold_every_row_once():
    groups = [single_turn_group([(4 + g, 5), (6,), (7, 8, 9)], [0, 1, 2], key=f"k{g}") for g in range(4)]
    from selfteach.core import collate

    trees = {e.id: e.tree for g in groups for e in g.episodes}
    batch = collate(per_trajectory()(groups=groups), trees.__getitem__)
    update = Update(("policy",), (Term(registry.blocks.get("clipped_ratio")()),), minibatches=3)
    parts = split_minibatches(batch, update, ("a", 0))
    assert sorted(n for p in parts for n in p.names) == sorted(batch.names) and [p.size("seq") for p in parts] == [
        4,
        4,
        4,
    ]
    assert (
        [p.names for p in split_minibatches(batch, update, ("a", 0))]
        == [p.names for p in parts]
        != [p.names for p in split_minibatches(batch, update, ("a", 1))]
    )
    whole = replace(update, terms=(Term(registry.blocks.get("dpo")()),))
    for part in split_minibatches(batch, whole, ("a", 0)):  # a term over pairs keeps groups whole
        assert all(sum(f"/{key}/" in n for n in part.names) in (0, 3) for key in ("k0", "k1", "k2", "k3"))


def test_each_epoch_of_each_step_deals_anew(letters):
    (update,) = bandit().stage.updates
    loop = loop_of(bandit(paid="spread").replace(updates=(replace(update, epochs=2, minibatches=2),)), letters)
    backward, seen = loop.learner.backward, []

    def listening(batch: Any, update: Update) -> Any:
        seen.append([n.removeprefix(f"train/{loop.state.step}/") for n in batch.names])
        return backward(batch, update)

    loop.learner.backward = listening
    advance(loop, 2)
    assert len(seen) == 2 * 2 * 2 and len({tuple(sorted(n)) for n in seen}) == 8


def test_a_stateful_block_gets_its_state(letters):
    def counted(*, reward: Any, state: int) -> Any:
        return {"adv": Column("token", np.full(seen["rows"], float(state)))}, state + 1

    counted.initial_state = lambda: 5  # type: ignore[attr-defined]
    seen = {"rows": 0}

    def rows(*, id: Any) -> Any:
        seen["rows"] = len(id)
        return {}

    loop = with_stage(loop_of(bandit(), letters), credit=(per_trajectory(), Block(rows), Block(counted)))
    advance(loop, 3)
    assert loop.state.blocks["main/credit.2"] == 8 and loop.state.blocks["main/select"] == 12


def test_a_stateful_reward_gets_its_state_and_waits_for_the_whole_step(letters):
    @stateful(int)
    def counted(*, groups: Any, state: int) -> Any:
        leaves = [t.leaf for g in groups for e in g.episodes for t in e.trajectories]
        return {"reward": {at: Score(float(state + n)) for n, at in enumerate(leaves)}}, state + len(leaves)

    loop = with_stage(loop_of(bandit(groups=2, rollouts=3), letters), reward=(Block(counted),))
    first, second = advance(loop, 2)
    assert loop.state.blocks["main/reward.0"] == 12
    assert (first["reward/mean"], second["reward/mean"]) == (2.5, 8.5)  # the means of 0..5 and of 6..11


def test_a_reward_of_single_groups_cannot_be_stateful(letters):
    @stateful(int)
    def early(*, group: Any, state: int) -> Any:
        return {}, state

    with pytest.raises(BadValue, match="reward early is stateful, so it must name `groups`"):
        loop_of(bandit().replace(reward=(Block(early),)), letters)


def test_what_was_rolled_out_is_read_back_as_it_was(letters, tmp_path: Path):
    loop = loop_of(bandit(), letters)
    with_stage(loop, sampling=Sampling(temperature=0.7, record=("entropy",)))
    metrics, groups, batch = asyncio.run(loop.advance())
    groups[0].episodes[0].answer = {"an": [object()]}  # whatever a program returns
    groups[0].episodes[1].tree.notes[0] = {"visits": 2.0}
    groups[0].episodes[2].tree.origin[1] = groups[0].episodes[0].trajectories[0].leaf
    file = tmp_path / "rollouts" / "000000.npz"
    file.parent.mkdir()
    file.write_bytes(pack(groups, batch))
    read = Rollouts(file)
    assert list(read) == [e.id for g in groups for e in g.episodes]
    for e in (e for g in groups for e in g.episodes):
        tree = read.tree(e.id)
        for name in ("id", "action_mask", "logp", "version", "span"):
            assert np.array_equal(getattr(tree, name), getattr(e.tree, name), equal_nan=name == "logp"), name
        for name in ("parent", "cut", "begin", "by", "sampling", "spans", "roles", "samplings", "origin", "notes"):
            assert getattr(tree, name) == getattr(e.tree, name), name
        assert np.array_equal(tree.recorded["entropy"], e.tree.recorded["entropy"][: len(e.tree)], equal_nan=True)
        tree.add(0, [1, 2])  # and it can be gone on with
        assert tree.id[-2:].tolist() == [1, 2]
    assert read.arrays["learned/length"].sum() == metrics["tokens/learned"] and read.metadata["learned"] == list(
        batch.names
    )
    scores = [s for g in read.metadata["groups"] for s in g["scores"]]
    assert np.mean([s["value"] for s in scores]) == pytest.approx(metrics["reward/mean"])


def test_replay_learns_again_from_what_the_log_holds(letters, tmp_path: Path):
    from selfteach.loop.session import Session

    method = bandit(paid="spread").replace(credit=(per_trajectory(), replay(take=2), norm()))
    made = assemble.loop(
        method,
        source(),
        StartModel(mini(264), letters, False, {}),
        assemble.RunSettings(max_tokens=5),
        find=RolloutArchive(tmp_path / "log").tree,
    )
    session = Session(made, registry.blocks.get("exact_match")(), tmp_path)
    session.open()
    sizes = []

    async def go() -> None:
        for step in range(3):
            _, groups, batch = await made.advance()
            session.log.rollouts(step, groups, batch)
            fresh = sum(e.tree.action_mask.sum() for g in groups for e in g.episodes)
            sizes.append((batch.size("group"), batch.size("token") - fresh, batch))

    asyncio.run(go())
    assert [s[0] for s in sizes] == [4, 6, 6] and sizes[0][1] == 0 and sizes[1][1] > 0
    again = sizes[1][2]
    old = [n for n in again.names if n.startswith("train/0/")]
    assert len(old) == 8 and np.isfinite(again.get("old_logp")).all()
    at = again.names.index(old[0])
    first = sizes[0][2]
    was = first.take_sequences(np.array([first.names.index(old[0])]))
    assert np.array_equal(again.take_sequences(np.array([at])).get("old_logp"), was.get("old_logp"))


@pytest.mark.parametrize(("long", "told"), [(-1.0, [(1, 4), (2, 4), (3, 4), (4, 4)]), (1e9, [])])
def test_where_a_step_learns_long_the_observer_hears_how_far_it_is(letters, monkeypatch, long, told):
    from selfteach.loop import session

    monkeypatch.setattr(session, "LONG", long)
    (update,) = bandit(paid="spread").stage.updates
    made = loop_of(bandit(paid="spread").replace(updates=(replace(update, minibatches=4),)), letters, steps=1)
    heard: list[Any] = []
    run = session.Session(made, registry.blocks.get("exact_match")(), None, observer=heard.append)
    run.open()
    asyncio.run(run.run())
    assert [(e["done"], e["total"]) for e in heard if e["event"] == "learning"] == told


# ---- a sampler with other weights


@block
def louder(*, weights: Any, step: int, by: float = 3.0) -> dict[str, Any]:
    """The final norm scaled up, in every second step."""
    return {"model.norm.weight": by * weights["model.norm.weight"]} if step % 2 else {}


def test_rollouts_are_sampled_with_a_stages_own_weights_and_evaluations_are_not(letters):
    loop = with_stage(loop_of(bandit(paid="spread"), letters), sampler=louder())
    seen = list[bool]()
    generate = loop.engine.generate

    async def looked(*given: Any) -> Any:
        seen.append(torch.equal(loop.engine.models["policy"].model.norm.weight, weights_of(loop)["model.norm.weight"]))
        return await generate(*given)

    loop.engine.generate = looked
    logged = advance(loop, 2)
    half = len(seen) // 2
    assert all(seen[:half]) and not any(seen[half:])
    assert loop.engine.fingerprint("policy") == loop.learner.fingerprint("policy"), "what an evaluation samples"
    # counted, and above the bound at which a run stops
    assert logged[0]["policy/logprob_mismatch_mean"] < 1e-3 < 0.1 < logged[1]["policy/logprob_mismatch_mean"]


def test_a_sampler_of_other_weights_is_refused_where_it_cannot_be(letters):
    with pytest.raises(BadValue, match="set sync to 1, not 2"):
        bandit().replace(sampler=louder(), sync=2)
    with pytest.raises(BadValue, match=r"louder changes what the engine samples with.*--staleness 0"):
        method_on_task.check_run_ahead(bandit().replace(sampler=louder()), 1, False)
    loop = with_stage(loop_of(bandit(), letters), sampler=misnamed())
    with pytest.raises(UnknownName, match=r"no weight of the sampler is called 'model\.norm'"):
        advance(loop)


@block
def misnamed(*, weights: Any) -> dict[str, Any]:
    """A weight that there is none of."""
    return {"model.norm": weights["model.norm.weight"]}


# ---- proofs and refusals


def test_a_delivery_that_arrives_broken_is_detected(letters):
    loop = loop_of(bandit(), letters)
    load = loop.engine.load

    def broken(group, weights, version):
        return load(group, {n: w + (1e-6 if "norm" in n else 0) for n, w in weights.items()}, version)

    loop.engine.load = broken
    with pytest.raises(
        EngineMismatch, match=r"weights 'policy', version 1: the engine holds .*, the learner .*; the delivery failed"
    ):
        advance(loop)


def test_a_delivery_that_never_arrives_is_detected(letters):
    loop = loop_of(bandit(), letters)
    loop.engine.load = lambda group, weights, version: loop.engine.fingerprint(group)
    with pytest.raises(EngineMismatch, match="delivery failed"):
        advance(loop)


def test_a_sampler_that_drew_from_something_else_is_detected(letters):
    loop = loop_of(bandit(), letters)
    generate = loop.engine.generate

    async def off(*args):
        done = await generate(*args)
        return done._replace(logp=done.logp - 0.2)

    loop.engine.generate = off
    before = weights_of(loop)
    with pytest.raises(EngineMismatch, match=r"differ by 0\.2 nats a token on average \(bound 0\.1\)"):
        advance(loop)
    assert equal(before, weights_of(loop))


def test_a_few_answers_that_are_off_do_not_stop_a_run(letters):
    loop = loop_of(bandit(), letters)
    measure, sizes = loop.learner.logprob_mismatch, []

    def off(batch):
        sizes.append(batch.size("seq"))
        return {**measure(batch), "mean": 0.2 if len(sizes) == 1 else 0.02}

    loop.learner.logprob_mismatch = off
    (metrics,) = advance(loop)
    assert sizes[0] < sizes[1] and metrics["policy/logprob_mismatch_mean"] == 0.02, "that of all answers"


def test_a_loss_that_is_not_finite_is_refused_and_named(letters):
    loop = loop_of(bandit(), letters)
    with_stage(loop, credit=(per_trajectory(), Block(seq_assigner)))
    before = weights_of(loop)
    with pytest.raises(NotFinite, match=r"train/0/0/0/3:\d"):
        advance(loop)
    assert equal(before, weights_of(loop)), "weights moved"


def seq_assigner(*, reward: Any) -> Any:
    """The fourth sequence is worth infinitely much."""
    del reward
    return {"adv": Column("seq", np.where(np.arange(16) == 3, np.inf, 1.0))}


def test_an_advantage_that_is_unknown_is_left_out_and_counted(letters):
    def holes(*, reward: Any) -> Any:
        return {"adv": Column("seq", np.where(np.arange(16) < 4, np.nan, 1.0 * (np.arange(16) % 2)))}

    loop = with_stage(loop_of(bandit(), letters), credit=(per_trajectory(), Block(holes)))
    (logged,) = advance(loop)
    assert (
        logged["dropped/no advantage"] > 0
        and logged["tokens/sampled"] == logged["tokens/learned"] + logged["dropped/no advantage"]
    )


def test_single_tokens_that_are_left_out_are_counted(letters):
    def every_third(*, id: Any) -> Any:
        return {"adv": Column("token", np.where(np.arange(len(id)) % 3 == 0, np.nan, 1.0))}

    (logged,) = advance(with_stage(loop_of(bandit(), letters), credit=(per_trajectory(), Block(every_third))))
    assert logged["dropped/rows"] == -(-logged["tokens/sampled"] // 3)
    assert logged["tokens/learned"] == logged["policy/rows"] == logged["tokens/sampled"] - logged["dropped/rows"]


@pytest.mark.parametrize(
    "method,task,says",
    [
        ("sft", "nodemos", "it learns from demonstrations, and this task has none"),
        ("rest_mcts", "nodemos", "it learns from demonstrations, and this task has none"),
        ("search_r1", "bandit", "its program names 'search', and there is no such tool or model here"),
    ],
)
def test_a_method_that_cannot_run_on_a_task_is_refused_before_any_work(method, task, says):
    where = source() if task == "bandit" else replace(source(), demos=None)
    with pytest.raises(BadValue, match=says):
        method_on_task.check(registry.methods.get(method)(), where)


def test_only_what_is_read_is_built(letters):
    assert set(needed(grpo()).weights) == {"policy"} and set(needed(grpo(beta=0.1)).weights) == {
        "policy",
        "ref",
    }
    with pytest.raises(BadValue, match=r"no weight group is called 'polcy'"):
        needed(grpo().replace(updates=(replace(grpo().stage.updates[0], params=("polcy",)),)))
    loop = loop_of(grpo(beta=0.1), letters)
    assert set(loop.learner.groups.specs) == {"policy", "ref"} and list(loop.engine.models) == [
        "policy"
    ]  # the reference never speaks


def test_plans_refuse_what_nobody_reads():
    for change, says in [
        ({"step": 3}, "called 'step'; did you mean steps"),
        ({"rolouts": 3}, "did you mean rollouts"),
        ({"warm_step": 3}, "did you mean warm_steps"),
    ]:
        with pytest.raises(LookupError, match=says):
            plan("grpo", "chain_sum", **change)
    with pytest.raises(LookupError, match=r"no option of task chain_sum is called 'term'; did you mean terms"):
        plan("grpo", "chain_sum", {"term": (2, 2)})


def test_the_majority_and_the_distinct_count_answers_that_are_the_same_once(tags):
    """7, 8, 7.0, 8, "7 ": three sevens against two eights, whose spelling alone has a vote more than each seven's."""
    replies = iter(["7", "8", "7.0", "8", "7 "])
    context = scripted_context(
        registry.blocks.get("single")(), lambda text, rng_key: f"<answer>{next(replies)}</answer>", tags
    )
    judge = registry.blocks.get("exact_match")()
    result = asyncio.run(evaluate(context, [Task("one", "one", "7")], judge, k=5))
    assert result.right == [3]
    assert result.majority == 1.0 and result.distinct == 1.0


def test_measuring_counts_what_was_right_by_hand(tags):
    """Three questions, four samples each: aaab | bbaa | fails. Right is a."""
    replies = {"one": "aaab", "two": "bbaa"}
    played: dict[str, int] = {}

    def reply(text: str, rng_key: int) -> str:
        played[text] = played.get(text, 0) + 1
        return f"<answer>{replies[text][played[text] - 1]}</answer>"

    context = scripted_context(registry.blocks.get("single")(), reply, tags)
    asked = [Task(name, name, "a", tags={"hops": hops}) for name, hops in (("one", 1), ("two", 2), ("three", 2))]
    result = asyncio.run(evaluate(context, asked, registry.blocks.get("exact_match")(), k=4, wave=2))
    # an episode that fails has no answer: that is unknown, neither right nor wrong
    assert result.right == [3, 2, 0] and result.scored == [4, 4, 0] and (result.failed, result.unscored) == (4, 0)
    assert result.accuracy == pytest.approx((3 / 4 + 2 / 4) / 2)
    assert result.pass_at(2) == pytest.approx(
        (1 + 5 / 6) / 2
    )  # of 6 pairs: 3 of one a and b hold a right one, all 6; 5
    assert result.by("hops") == {"1": 0.75, "2": 0.5}
    assert result.majority == pytest.approx(1 / 2)  # aaab: a; bbaa: b came first
    assert result.distinct == 1  # a and a: what is said twice counts once
    figures = result.figures(ks=(1, 4, 8))
    assert figures["pass@1"] == pytest.approx(result.accuracy) and figures["pass@4"] == 1 and "pass@8" not in figures
    assert figures["length"] == pytest.approx(
        (4 + 4) * 3 / 12
    )  # three tokens and no end: the stop ends it; the failed have none
    assert figures["length_right"] == 3 and figures["length_wrong"] == 3


def test_pass_at_k_is_the_share_of_draws_with_a_right_one():
    from itertools import combinations

    for n, c, k in [(4, 1, 2), (5, 2, 3), (6, 0, 2), (3, 3, 1), (5, 3, 3)]:
        right = [1] * c + [0] * (n - c)
        draws = list(combinations(right, k))
        assert pass_at(k, n, c) == pytest.approx(sum(max(d) for d in draws) / len(draws))


def test_uniform_goes_on_where_it_stopped():
    where, seen = source(), []
    for before, back in ((5, []), (7, []), (7, [[]])):
        requests, state = uniform()(n=2, rollouts=3, finished_rounds=back, source=where, state=before, seed=0)
        seen += [number(r.task.id) for r in requests]
        assert state == before + 2 * (not back) and {r.n for r in requests} <= {3}
    assert np.diff(seen).tolist() == [1, 1, 1]
    (first, *_), _ = uniform()(n=2, rollouts=3, finished_rounds=[], source=where, state=5, seed=1)
    assert abs(number(first.task.id) - seen[0]) > 1000, "another seed asks other questions"


def test_nats_are_the_mean_surprise_of_what_was_drawn(letters):
    loop = loop_of(bandit(paid="spread"), letters)
    (logged,) = advance(loop)
    groups, _ = loop.current_step
    logp = np.concatenate([e.tree.logp[e.tree.action_mask] for g in groups for e in g.episodes]).astype(np.float64)
    assert logged["policy/entropy_estimate"] == pytest.approx(-logp.mean()) and logged[
        "policy/entropy_estimate"
    ] == pytest.approx(math.log(264), abs=0.1)
