"""What the slots share: memory by name, late deliveries, late batches, contexts without a hint, books by task, words as
columns.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.episodes import scripted_context, single_turn_group
from support.loops import advance, bandit, equal, loop_of, source, weights_of
from support.runs import run_config_of, same_run

from selfteach import api
from selfteach.core import BadValue, Column, Score, Seq, block, registry, stateful
from selfteach.core.collate import collate
from selfteach.core.task import RolloutRequest, Task
from selfteach.credit.composers import per_trajectory
from selfteach.credit.replay import delayed
from selfteach.curriculum.select import first_task_index, pool, pool_tasks
from selfteach.loop.episode import play
from selfteach.loop.log import RunLog
from selfteach.rollout.single import single
from selfteach.run_cache import logged_summaries


@block
@stateful(lambda: 0, shared="counter")
def counts_up(*, reward: Seq, state: int) -> tuple[dict[str, Column], int]:
    """Advantage: how often the shared counter has been read."""
    return {"adv": Column("seq", np.full(len(reward), float(state)))}, state + 1


def test_blocks_that_share_a_name_share_one_memory(letters):
    method = bandit()
    loop = loop_of(method.replace(credit=(*method.stage.credit, counts_up(), counts_up())), letters)
    advance(loop, 2)
    assert loop.state.blocks["shared/counter"] == 4  # two places, two steps
    assert not any(place.startswith("main/credit") and "counts" in place for place in loop.state.blocks)


def test_late_deliveries_leave_the_sampler_behind_by_less_than_sync(letters):
    loop = loop_of(bandit().replace(sync=3), letters, steps=7)
    held, first = [], weights_of(loop)
    for _ in range(7):
        advance(loop)
        engine = {n: p.clone() for n, p in loop.engine.models["policy"].named_tensors().items()}  # type: ignore[union-attr]
        held.append((equal(engine, first), equal(engine, weights_of(loop)), loop.settled))
    # 1, 2: still the first weights; 3: delivered; 4, 5: late again; 6: delivered; 7: the last step settles whatever is
    # due
    assert [h[1] for h in held] == [False, False, True, False, False, True, True]
    assert [h[2] for h in held] == [h[1] for h in held] and held[0][0] and held[1][0]


def test_stale_tokens_are_marked_by_their_version_and_not_held_against_the_sampler(letters):
    loop = loop_of(bandit().replace(sync=2), letters)
    metrics = advance(loop, 2)
    assert "policy/logprob_mismatch_mean" in metrics[0] and "policy/logprob_mismatch_mean" not in metrics[1]


def test_a_run_with_late_deliveries_resumes_to_the_same_bits(mini_folder: Path, tmp_path: Path):
    run_config = run_config_of(
        mini_folder,
        registry.methods.get("bandit_reinforce")(groups=4, rollouts=4).replace(sync=4),
        steps=10,
        eval_every=0,
    )
    assert api.train(run_config, tmp_path / "whole").done
    kept = [p.name for p in sorted((tmp_path / "whole" / "checkpoints").iterdir())]
    assert kept == ["000008", "000010"], "a checkpoint is written only where learner and sampler agree"
    out = tmp_path / "again"

    def interrupt(event: Any) -> None:
        if event["event"] == "step" and event["step"] == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        api.train(run_config, out, interrupt)
    assert api.train(run_config, out, resume=True).done
    same_run(tmp_path / "whole", out)


def test_sync_below_one_is_refused():
    with pytest.raises(BadValue, match="sync must be at least 1"):
        bandit().replace(sync=0)


def test_a_delayed_batch_is_exactly_so_many_updates_old():
    part, state = delayed(updates=2), {"batches": []}
    found = []
    for step in range(4):
        group = single_turn_group([(5, 6), (7,)], [1.0, 0.0], key=f"k{step}")
        made, state = part(groups=[group], state=state)
        found.append([e.key for e in made])
    assert found == [[], [], ["k0@late"] * 2, ["k1@late"] * 2]


def test_what_was_drawn_with_a_hint_is_learned_without_it(letters):
    context = scripted_context(single(stop=()), ["xyz"], letters)
    request = RolloutRequest(Task("t", "q?"), 1, help={"hint": "HINT"})
    (group,) = asyncio.run(play(context, [request]))
    group.scores["reward"] = {group.episodes[0].trajectories[0].leaf: Score(1.0)}
    seen = collate(per_trajectory()(groups=[group]), context.tree)
    blind = collate(per_trajectory(without=("hint",))(groups=[group]), context.tree)
    assert letters.decode(seen.ids).startswith("q?HINTxyz") and letters.decode(blind.ids).startswith("q?xyz")
    assert (blind.get("id") == seen.get("id")).all() and (blind.get("old_logp") == seen.get("old_logp")).all()


def test_task_category_and_role_are_columns_of_words(letters):
    group = single_turn_group([(5, 6), (7,)], [1.0, 0.0])
    group = group._replace(request=replace(group.request, task=Task("a", "p", tags={"category": "hard"})))
    batch = collate(per_trajectory()(groups=[group]), {e.id: e.tree for e in group.episodes}.__getitem__)
    assert batch.get("task", "seq").tolist() == ["a", "a"] and batch.get("category", "seq").tolist() == ["hard", "hard"]
    assert batch.take_sequences(np.array([1])).get("role").tolist() == ["policy"]


def test_a_pool_is_walked_in_epochs_each_in_its_own_order():
    where = source()
    ids = [[t.id for t in pool_tasks(where, 0, e * 6, 6, 6)] for e in range(3)]
    assert all(sorted(x) == sorted(ids[0]) and len(set(x)) == 6 for x in ids) and len({tuple(x) for x in ids}) > 1
    asked, state = pool(size=6)(n=4, rollouts=2, finished_rounds=[], source=where, seed=0, state=4)
    assert [r.task.id for r in asked] == ids[0][4:] + ids[1][:2] and state == 8
    held = {t.id for t in pool_tasks(where, 0, 0, 99, 10_000, held_out=True)}
    assert held <= {t.id for t in where.test}


def test_the_books_say_by_task_what_its_last_visit_was_like(letters):
    loop = loop_of(bandit(), letters)
    advance(loop, 1)
    seen = list(loop.state.history.tasks.values())
    assert all({"seen", "mean", "last", "reward", "adv"} <= s.keys() for s in seen)
    assert any(s["adv"] > 0 for s in seen) and all(s["reward"] == pytest.approx(s["mean"]) for s in seen)


def test_figures_of_the_steps_for_claims(tmp_path: Path):
    log = RunLog(tmp_path / "log")
    for step, reward in enumerate([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]):
        log.event("step", step=step, reward=reward, kl=float(step % 2), doubled=2.0 ** (step % 2), less=-reward)
    found = logged_summaries(tmp_path)
    # quarters of two steps: (1 + 2) / 2, (7 + 8) / 2; all: 36 / 8
    assert [found[f"{cut}:reward"] for cut in ("first", "early", "late", "mean", "sum")] == [1.0, 1.5, 7.5, 4.5, 36.0]
    # half of the steps 0 and half 1: mean and standard deviation 1/2; 1 and 2: mean 3/2, and a factor of 2 each time
    assert found["spread:kl"] == 1.0 and found["spread:doubled"] == pytest.approx(1 / 3)
    assert found["jitter:doubled"] == pytest.approx(math.log(2))
    assert not {"jitter:kl", "spread:less", "jitter:less"} & found.keys()


def test_a_batch_is_delayed_by_sixteen_updates_unless_told_otherwise():
    part, state, found = delayed(), {"batches": []}, []
    for step in range(18):
        made, state = part(groups=[single_turn_group([(5,)], [1.0], key=f"k{step}")], state=state)
        found.append([e.key for e in made])
    assert found == [[]] * 16 + [["k0@late"], ["k1@late"]]


def test_a_pool_has_128_tasks_unless_told_otherwise():
    where = source()
    give = {"rollouts": 2, "finished_rounds": [], "source": where, "seed": 0}
    asked, state = pool()(n=130, state=0, **give)
    ids = [r.task.id for r in asked]
    assert state == 130 and len(set(ids[:128])) == 128 and set(ids[128:]) < set(ids[:128])
    assert pool()(n=1, state=5, **{**give, "finished_rounds": [[]]}) == ([], 5)
    with_labels = [r.task.id for r in pool(size=3, held_out=False)(n=3, state=0, **give)[0]]
    assert sorted(with_labels) == sorted(where.train(first_task_index(0) + i).id for i in range(3))
    assert sorted(with_labels) == sorted(r.task.id for r in pool(size=3)(n=3, state=0, **give)[0])
