"""Methods that choose tasks, budgets and hints: bandits, knapsacks, predictions, and help that answers to ability."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import mini, said_group, table_of
from hypothesis import given, settings
from hypothesis import strategies as st

from selfteach.core import BadValue, Group, History, Request, Score, Source, Task, gather, registry
from selfteach.credit.baseline import norm
from selfteach.credit.compose import each
from selfteach.credit.prompts import first_rows, group_mean
from selfteach.curriculum.arms import credited, frontier_arms, softmax
from selfteach.curriculum.budget import allocate, budgeted_pool, chance_mixed, worth
from selfteach.curriculum.hints import guidance, hint_failures, prefix, responsive_hints
from selfteach.curriculum.predicted import nearest_predicted
from selfteach.curriculum.response import Curve, fit
from selfteach.curriculum.select import pool
from selfteach.loop import assemble
from selfteach.loop.books import remember, summary
from selfteach.loop.episode import play
from selfteach.model.transformer import causal
from selfteach.model.zoo import Start
from selfteach.objective.policy import clipped_ratio
from selfteach.objective.value import success_loss
from selfteach.rollout.single import single


class Ear(dict[str, float]):
    """Hears what a block tells."""

    def __call__(self, **values: float) -> None:
        self.update(values)


def source(steps: Sequence[str] = ("<think> 1 + 1 = 2.", " 2 + 1 = 3.", " 3 + 4 = 7.", "</think><answer> 7</answer>")) -> Source:
    """Endless tasks of three difficulties in turn."""

    def make(i: int) -> Task:
        return Task(f"t{i}", f"q{i}?", ("7",), tags={"difficulty": i % 3, "steps": tuple(steps), "solution": "".join(steps)})

    return Source("made", make, ())


def asked(part: Any, back: list[list[Group]], state: Any, where: Source | None = None, n: int = 2, rollouts: int = 4, **more: Any) -> Any:
    """(requests, state, told) of one call of a select."""
    ear = Ear()
    given: dict[str, Any] = {"n": n, "rollouts": rollouts, "back": back, "source": where or source(), "seed": 0, "state": state, "tell": ear}
    given |= {"history": History(), "step": 0, **more}
    requests, state = part(**{k: v for k, v in given.items() if k in part.needs})
    return requests, state, ear


def answered(request: Request, rewards: Sequence[float | None], key: str | None = None, answer: Any = None) -> Group:
    """What comes back of a request."""
    group = said_group([(5 + i,) for i in range(len(rewards))], rewards, key=key or request.key or request.task.id)
    for episode in group.episodes:
        episode.answer = answer
    return group._replace(request=replace(request, key=group.key))


# ---- a bandit over kinds of tasks


def test_an_arm_is_worth_the_mean_advantage_that_it_brought():
    history = History(tasks={"t1": {"adv": 0.6}, "t2": {"adv": 0.2}, "t3": {"seen": 0.0}})
    # a: 0.25 * (0.6 + 0.2) / 2 + 0.75 * 0.8 = 0.7; nothing is known of b's only task; c was not asked
    q = credited({"a": 0.8, "b": 0.3, "c": 0.1}, {"t1": "a", "t2": "a", "t3": "b"}, history, 0.25)
    assert q == pytest.approx({"a": 0.7, "b": 0.3, "c": 0.1})


def test_softmax_by_hand():
    assert softmax([0.0, np.log(3)], 1.0) == pytest.approx([0.25, 0.75])
    assert softmax([0.0, np.log(3)], 0.5) == pytest.approx([0.1, 0.9])  # 3^2 = 9
    assert softmax([1000.0, 0.0], 1.0) == pytest.approx([1.0, 0.0])


def test_the_arm_that_taught_most_is_asked_most():
    part = frontier_arms(by="difficulty", temperature=0.05)
    first, state, told = asked(part, [], {"q": {}, "next": {}, "asked": {}}, n=60)
    assert [told[f"p/{arm}"] for arm in "012"] == pytest.approx([1 / 3] * 3) and {r.task.tags["difficulty"] for r in first} == {0, 1, 2}
    # arm 1 brought advantages of 0.8, the others none: Q = 0.5 * 0.8 = 0.4, p = e^8 / (e^8 + 2) = 0.99933
    history = History(tasks={r.task.id: {"adv": 0.8 if r.task.tags["difficulty"] == 1 else 0.0} for r in first})
    then, after, told = asked(part, [], state, n=60, history=history, step=1)
    assert after["q"] == pytest.approx({"0": 0.0, "1": 0.4, "2": 0.0}) and told["p/1"] == pytest.approx(0.99933, abs=1e-5)
    assert sum(r.task.tags["difficulty"] == 1 for r in then) >= 58
    ids = [r.task.id for r in (*first, *then)]
    assert len(set(ids)) == len(ids), "a task came twice"
    assert asked(part, [[answered(first[0], [1.0])]], state)[0] == []
    with pytest.raises(BadValue, match="has no tag 'hops'"):
        asked(frontier_arms(by="hops"), [], {"q": {}, "next": {}, "asked": {}})


# ---- a knapsack of rollouts


def test_worth_by_hand():
    # p = 1/2, n = 2: 1 - 1/4 - 1/4 = 1/2, times 1/2 * 1/4
    assert (chance_mixed(2, 0.5), worth(2, 0.5)) == (0.5, 0.0625)
    assert chance_mixed(1, 0.3) == pytest.approx(0.0) and worth(8, 0.0) == worth(8, 1.0) == 0.0
    fine = np.linspace(0.01, 0.99, 99)
    assert fine[np.argmax([worth(10**4, p) for p in fine])] == pytest.approx(1 / 3, abs=0.01)


@given(
    st.lists(st.sampled_from([0.0, 0.05, 0.125, 0.25, 0.5, 0.75, 0.9, 1.0]), min_size=1, max_size=4),
    st.integers(1, 2),
    st.integers(3, 7),
    st.integers(0, 14),
)
@settings(max_examples=60, deadline=None)
def test_the_shares_are_the_best_of_all(rates, low, high, more):
    total = min(low * len(rates) + more, high * len(rates))
    found = allocate(rates, total, low, high, enough=1.0)
    value = lambda ns: sum(worth(n, p) for n, p in zip(ns, rates, strict=True))  # noqa: E731
    every = (ns for ns in itertools.product(range(low, high + 1), repeat=len(rates)) if sum(ns) == total)
    assert sum(found) == total and all(low <= n <= high for n in found)
    assert value(found) == pytest.approx(max(map(value, every)), abs=1e-12)


def test_what_is_left_goes_to_what_was_never_solved():
    # 1 - 2 * 2^-n is .5, .75, .875, .9375 for n = 2 to 5: p = 1/2 is saturated at 5; of 12 - 6, three are left for p = 0
    assert allocate([0.5, 1.0, 0.0], 12, low=2, high=8, enough=0.9) == [5, 2, 5]
    # nothing unsolved: what is left goes on by worth, and to the solved only when all else is full
    assert allocate([0.5, 1.0], 12, low=2, high=8, enough=0.9) == [8, 4]
    assert allocate([0.0, 0.0], 7, low=2, high=8) == [4, 3]


def test_the_pool_shares_out_exactly_what_a_uniform_one_would_spend():
    part = budgeted_pool(size=6, low=2, high=64)
    first, state, told = asked(part, [], 0, n=4, rollouts=8)
    assert [r.n for r in first] == [8] * 4 and told == {"most": 8, "unsolved": 0, "solved": 0}
    rates = dict(zip([r.task.id for r in first], [0.0, 1.0, 0.5, 0.125], strict=True))
    history = History(tasks={t: {"reward": p} for t, p in rates.items()})
    again, _, told = asked(part, [], 0, n=4, rollouts=8, history=history)
    shares = {rates[r.task.id]: r.n for r in again}
    assert sum(shares.values()) == 32 and shares[1.0] == 2 and shares[0.125] > shares[0.5] and told["unsolved"] == told["solved"] == 1
    later, _, _ = asked(part, [], state, n=4, rollouts=8, history=history)
    assert sum(r.n for r in later) == 32 and all(r.n == 8 for r in later if r.task.id not in rates)


def test_equal_bounds_are_grpo_on_a_pool():
    history = History(tasks={f"t{i}": {"reward": (i % 5) / 4} for i in range(10**4)})
    mine, _, _ = asked(budgeted_pool(size=9, low=8, high=8), [], 5, n=6, rollouts=8, history=history)
    plain, _, _ = asked(pool(size=9), [], 5, n=6, rollouts=8)
    assert mine == plain
    method, parent = registry.methods.get("knapsack")(), registry.methods.get("grpo")()
    assert {place for place, _, _ in method.diff(parent)} == {"select"}


# ---- prompts by prediction


def test_the_prompts_nearest_to_a_coin_flip_are_asked():
    part = nearest_predicted(candidates=2)
    first, state, _ = asked(part, [], {"next": 0, "predicted": {}}, n=2)
    assert [(r.program, r.n) for r in first] == [("predict", 1)] * 4 and state["next"] == 4
    back = [answered(r, [None], answer=p) for r, p in zip(first, (0.9, 0.45, 0.1, 0.6), strict=True)]
    then, state, told = asked(part, [back], state, n=2)
    assert [r.task.id for r in then] == [first[1].task.id, first[3].task.id] and [r.n for r in then] == [4, 4]
    assert told["predicted"] == pytest.approx(0.525) and "off" not in told
    assert asked(part, [back, back], state)[0] == []
    # the step after: predictions 0.45 and 0.6 against 0.25 and 1.0 are off by (0.2 + 0.4) / 2
    history = History(tasks={then[0].task.id: {"reward": 0.25}, then[1].task.id: {"reward": 1.0}})
    told = asked(part, [back], state, n=2, history=history)[2]
    assert told["off"] == pytest.approx(0.3)
    back[2].episodes[0].answer = None
    with pytest.raises(BadValue, match="gave no number for task"):
        asked(part, [back], state, n=2)


def test_the_value_model_learns_a_prompt_s_success_at_its_last_token():
    groups = [said_group([(5, 6), (7,)], [1.0, 0.0], key="a"), said_group([(8,), (9, 9, 9)], [1.0, 1.0], key="b")]
    batch = gather(each()(groups=groups), {e.id: e.tree for g in groups for e in g.episodes}.__getitem__)
    target = group_mean(reward=batch.get("reward", "seq"), group=batch.get("group", "seq"))["target"].values
    assert target.tolist() == [0.5, 0.5, 1.0, 1.0]
    rows = first_rows(seq=batch.get("seq"))
    assert rows.tolist() == [True, False, True, True, True, False, False]
    assert (batch.take(rows).get("pos") == 3).all(), "a row that does not stand right behind the prompt of three tokens"
    # sigmoid(log 3) = 3/4: (3/4 - 1/2)^2
    assert float(success_loss(critic_value=torch.log(torch.tensor(3.0)), target=torch.tensor(0.5))) == pytest.approx(0.0625)
    value = registry.methods.get("pcl")().stage.updates[0]
    assert value.params == ("critic",) and str(value.where) == "first_rows()"


def test_what_is_predicted_is_what_the_critic_learns(letters):
    """The number asked in the first round is the sigmoid of the value that the update reads, under the weights of that moment."""
    method = registry.methods.get("pcl")(groups=2, rollouts=2, candidates=2, critic_lr=0.05)
    loop = assemble.loop(method, source(), Start(mini(264), letters, False, {}), assemble.Settings(steps=9, max_tokens=3))
    found = []
    for _ in range(2):
        asyncio.run(loop.advance())
        table = loop._table(method.stage)
        groups = asyncio.run(loop._collect(method.stage, table))
        said = {g.request.task.id: g.episodes[0].answer for g in groups if g.request.program == "predict"}
        batch, _, _ = loop._compose(method.stage, table, groups)
        loop.learner.forward(batch, ["critic_value"])
        rows = first_rows(seq=batch.get("seq"))
        value = batch.get("critic_value")[rows]
        assert [said[t] for t in batch.get("task")[rows]] == pytest.approx(1 / (1 + np.exp(-value)), abs=1e-5)
        assert len(said) == 4 and summary(groups)["groups"] == 2 and summary(groups)["episodes"] == 4
        found.append(value.mean())
    assert found[0] != found[1], "it learned nothing"


# ---- hints after failure


def test_guidance_never_gives_the_answer_away():
    where = source()
    # neither the answer nor the step that makes it
    assert guidance(where.train(0)) == " 1 + 1 = 2. 2 + 1 = 3.\n" and guidance(where.train(0), 1) == " 1 + 1 = 2.\n"
    long = source(("<think> 1 + 6 = 7.", " 7 - 2 = 5.", " 5 + 1 = 6.", " 6 + 1 = 7.", "</think><answer> 7</answer>"))
    assert guidance(long.train(0)) == "", "the first step already says 7"
    later = source(("<think> 1 + 1 = 2.", " 2 + 5 = 7.", " 7 - 1 = 6.", " 6 + 1 = 7.", "</think><answer> 7</answer>")).train(0)
    assert guidance(later) == " 1 + 1 = 2.\n" and guidance(replace(later, tags={})) == ""
    for name, knobs in (("chain_sum", {"terms": (2, 5)}), ("strings", {}), ("countdown", {})):
        made = registry.tasks.get(name)(**knobs)
        hints = [(guidance(made.train(i)), made.train(i)) for i in range(20)]
        assert any(h for h, _ in hints)
        assert not [t.id for h, t in hints for gold in t.answer if f" {gold}." in h or f" {gold} " in h or f"= {gold}" in h.split(".")[-1]]


def test_only_what_failed_altogether_is_asked_again_with_a_hint():
    part = hint_failures()
    first, state, _ = asked(part, [], 0, n=3)
    assert all(not r.help for r in first) and state == 3
    back = [answered(r, rewards) for r, rewards in zip(first, ([0.0, 0.0], [0.0, 1.0], [0.0, 0.0]), strict=True)]
    then, state, told = asked(part, [back], state, n=3)
    assert [(r.task.id, r.key, r.n) for r in then] == [(first[i].task.id, back[i].key, 4) for i in (0, 2)]
    assert {r.help["hint"] for r in then} == {" 1 + 1 = 2. 2 + 1 = 3.\n"} and told == {"guided": 2 / 3, "failed": 2 / 3}
    done, _, told = asked(part, [back, [answered(then[0], [1.0, 0.0]), answered(then[1], [0.0, 0.0])]], state, n=3)
    assert done == [] and told == {"opened": 0.25}


def test_failed_and_guided_answers_are_one_group():
    plain = said_group([(5,)] * 4, [0.0] * 4, key="k")
    guided = said_group([(6,)] * 4, [1.0, 0.0, 0.0, 0.0], key="k")
    episodes = [replace_id(e, f"g{i}") for i, e in enumerate(guided.episodes)]
    scores = dict(zip([e.trajectories[0].leaf for e in episodes], guided.scores["reward"].values(), strict=True))
    both = [plain, guided._replace(episodes=episodes, scores={"reward": scores})]
    batch = gather(each()(groups=both), {e.id: e.tree for g in both for e in g.episodes}.__getitem__)
    adv = norm(eps=0.0)(reward=batch.get("reward", "seq"), group=batch.get("group", "seq"))["adv"].values
    # mean 1/8, variance (7/64 + 49/64) / 7 = 1/8: 7/8 and -1/8 over sqrt(1/8); without the hint all eight would be 0
    assert adv == pytest.approx([-0.35355] * 4 + [2.47487] + [-0.35355] * 3, abs=1e-5)
    assert summary(both)["groups/mixed"] == 1.0 and summary(both)["groups"] == 1 and summary([plain])["groups/mixed"] == 0.0
    alone = [said_group([(5,)] * 2, [1.0, 1.0], key="two"), said_group([(5,)] * 6, [1.0] * 5 + [0.0], key="six")]
    assert (summary(alone)["groups/mixed"], summary(alone)["episodes/mixed"]) == (1 / 2, 6 / 8)


def replace_id(episode: Any, name: str) -> Any:
    """The episode under another name."""
    closed = [replace(t, leaf=t.leaf._replace(episode=name)) for t in episode.trajectories]
    return replace(episode, id=name, trajectories=closed)


def test_the_ratio_is_plain_over_guided(letters):
    """numerator: the policy without the hint, by a forward pass of its own; denominator: what drew the answer."""
    request = Request(Task("t", "q?"), 2, help={"hint": "HINT"})
    table = table_of(single(stop=()), ["xyz"], letters, logp=-2.0)
    (group,) = asyncio.run(play(table, [request]))
    group.scores["reward"] = {e.trajectories[0].leaf: Score(float(i)) for i, e in enumerate(group.episodes)}
    method = registry.methods.get("guide")()
    loop = assemble.loop(method, registry.tasks.get("bandit")(), Start(mini(264), letters, False, {}), assemble.Settings(steps=1, max_tokens=5))
    batch, _, _ = loop._compose(method.stage, table, [group])
    assert (batch.get("moved", "seq") == 1).all() and loop._gap(batch) == {}, "drawn elsewhere is not the sampler's fault"
    loop.learner.forward(batch, ["logp"])
    text = torch.tensor(letters.encode("q?xyz").tolist() + [letters.end])
    model = mini(264)
    with torch.no_grad():
        plain = model.logits(model(text[None], causal))[0].log_softmax(-1)
    expected = [float(plain[i - 1, text[i]]) for i in range(2, len(text))]
    assert batch.get("logp")[: len(expected)] == pytest.approx(expected, abs=1e-5) and (batch.get("old_logp") == -2.0).all()
    free = method.stage.updates[0].terms[0].fn
    assert free == clipped_ratio(low=0.2, high=0.2)
    assert registry.methods.get("guide")(corrected=False).stage.updates[0].terms[0].fn == free.reading(old_logp="prox_logp")


# ---- hints that answer to ability


def test_the_inverse_of_a_curve_by_hand():
    assert Curve(8.0, 0.5, 0.0).inverse(0.5) == 0.5
    # c = 0.2: (0.5 - 0.2) / 0.8 = 3/8, log(3/5) / 8 = -0.06385
    assert Curve(8.0, 0.5, 0.2).inverse(0.5) == pytest.approx(0.43615, abs=1e-5)
    assert Curve(8.0, 0.5, 0.2)(0.43615) == pytest.approx(0.5, abs=1e-5) and Curve(8.0, 0.5, 0.5).inverse(0.5) == -np.inf


@pytest.mark.parametrize("truth", [Curve(10.0, 0.3, 0.0), Curve(6.0, 0.7, 0.1), Curve(20.0, 0.55, 0.25)])
def test_the_fit_finds_the_curve_behind_many_answers(truth):
    points = [(rate, truth(rate), 50) for rate in np.linspace(0.0, 1.0, 11)]
    assert fit(points).inverse(0.5) == pytest.approx(truth.inverse(0.5), abs=0.02)


def test_few_points_say_more_or_less_help():
    nothing_right, all_right = fit([(0.2, 0.0, 4)]).inverse(0.5), fit([(0.2, 1.0, 4)]).inverse(0.5)
    assert nothing_right > 0.4 and all_right < 0.1
    assert fit([(0.2, 0.0, 4), (0.6, 1.0, 4)]).inverse(0.5) == pytest.approx(0.4, abs=0.05)


def test_a_prefix_is_cut_between_words():
    text = "<think> 1 + 1 = 2. 2 + 5 = 7.</think><answer> 7</answer>"
    assert prefix(text, 0.0) == "" and prefix(text, 0.5) == "<think> 1 + 1 = 2." and prefix(text, 1.0) == text.removesuffix(" 7</answer>")


def visits(able: Callable[[float], float], rounds: int, steps: int, **knobs: Any) -> tuple[list[list[float]], list[Ear]]:
    """Rates shown and numbers told in visits to the one task of a pool, of somebody who answers right with the chance able(rate)."""
    part, state, out, ears = responsive_hints(rounds=rounds, size=1, **knobs), {"next": 0, "rates": {}}, [], []
    for _ in range(steps):
        back: list[list[Group]] = []
        while True:
            requests, state, ear = asked(part, back, state, n=1, rollouts=8)
            if not requests:
                break
            (r,) = requests
            right = round(able(r.help["rate"]) * r.n)
            back.append([answered(r, [1.0] * right + [0.0] * (r.n - right), key="k")])
        assert sum(g.request.n for (g,) in back) == 8 and all(g.request.key == "k" for (g,) in back[1:])
        out.append([g.request.help["rate"] for (g,) in back])
        ears.append(ear)
    return out, ears


def test_rounds_come_to_the_hint_that_half_of_the_answers_need():
    rates, told = visits(Curve(12.0, 0.6, 0.0), rounds=4, steps=3)
    assert rates[0][0] == 0.0 and len(rates[0]) == 4
    assert abs(rates[0][-1] - 0.6) < 0.2 and all(abs(r - 0.6) < 0.25 for r in rates[-1]), rates
    assert rates[1][0] > 0.3, "a visit begins where the last one ended"
    assert told[0]["hint"] == pytest.approx(np.mean(rates[0])) and told[0]["ends"] == pytest.approx(rates[0][-1])
    assert visits(lambda rate: 1.0, rounds=4, steps=1)[0] == [[0.0] * 4], "the able get no hint"
    assert visits(lambda rate: 0.0, rounds=8, steps=2)[0][-1][-1] <= 0.95
    assert visits(lambda rate: 1.0, rounds=4, steps=2, fixed=0.5)[0] == [[0.5], [0.5]]


def test_a_hint_may_begin_the_answer(letters):
    table = table_of(single(), ["12</answer>"], letters)
    (group,) = asyncio.run(play(table, [Request(Task("t", "q?"), 1, help={"hint": "<answer> "})]))
    assert group.episodes[0].answer == "12"


def test_a_select_tells_numbers_and_the_step_logs_them(letters):
    method = registry.methods.get("knapsack")(groups=2, rollouts=4, size=2)
    loop = assemble.loop(method, registry.tasks.get("bandit")(), Start(mini(264), letters, False, {}), assemble.Settings(steps=2, max_tokens=3))
    metrics, groups, _ = asyncio.run(loop.advance())
    assert metrics["select/most"] == 4 and [len(g.episodes) for g in groups] == [4, 4]
    assert loop.state.history.scalars["select/most"] == [4.0]


def test_demonstrations_with_hints_are_the_others_asked_otherwise():
    for name, knobs in (("chain_sum", {"terms": (2, 5)}), ("strings", {"depth": (1, 3)})):
        plain, hinted = registry.tasks.get(name)(**knobs), registry.tasks.get(name)(**knobs, hinted=0.5)
        pairs = [(plain.demos(i), hinted.demos(i)) for i in range(30)]
        assert all(a.data == b.data and b.prompt in (a.prompt, a.prompt + guidance(a)) for a, b in pairs)
        assert 0.1 < np.mean([a.prompt != b.prompt for a, b in pairs]) < 0.5


def test_tasks_that_were_only_looked_at_are_not_in_the_books(letters):
    looked = said_group([(5,)], [None], key="a")
    looked.episodes[0].trajectories[0] = replace(looked.episodes[0].trajectories[0], learn=None)
    history = History()
    remember(history, 0, [looked, said_group([(5,)], [1.0], key="b")], gather([], {}.__getitem__), {})
    assert set(history.tasks) == {"b"}
