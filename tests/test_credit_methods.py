"""Methods of credit along the way: hand-worked numbers of their blocks, and what is left when the idea is switched off."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import numpy as np
import pytest
import torch
from conftest import mini, table_of
from test_battery import groups_of, of, same, start

from selfteach.core import BadValue, Ref, Request, Sampling, Task, Term, Update, gather
from selfteach.core.scoring import score
from selfteach.core.text import cuts
from selfteach.credit.baseline import leave_one_out
from selfteach.credit.compose import each
from selfteach.credit.keep import keep_informative
from selfteach.credit.prefix import add_branch_values, prefix_values
from selfteach.credit.process import center_by_turn, implicit_process, step_values
from selfteach.engine.builtin import BuiltinEngine
from selfteach.learner.local import LocalLearner
from selfteach.learner.settings import Settings as LearnerSettings
from selfteach.loop.assemble import needed
from selfteach.loop.episode import play
from selfteach.loop.run import Loop
from selfteach.loop.table import Limits, Table
from selfteach.model.transformer import causal
from selfteach.objective.likelihood import nll
from selfteach.objective.outcome import outcome_cross_entropy
from selfteach.reward.answer import normalise
from selfteach.reward.attempts import progress
from selfteach.reward.vines import vine_values
from selfteach.rollout.attempts import two_attempts
from selfteach.rollout.vines import SENTENCES, vines

NAN = float("nan")


def played(table: Any, task: Task, n: int = 1) -> Any:
    return asyncio.run(play(table, [Request(task, n, key="k")]))[0]


def scored(part: Any, group: Any, table: Any) -> Any:
    return asyncio.run(score(part, [group], table))


# ---- the prefix tree


def test_values_of_prefixes_by_hand():
    # Group 0: ab e (1), ab c e (0), d e (1), group 1: ab e (1). V(a) = V(ab) = 1/2, V(abe) = 1, V(abc..) = 0, V(d..) = 1; apart, all 1.
    a, b, c, d, e = 5, 6, 7, 8, 9
    texts = [(a, b, e), (a, b, c, e), (d, e), (a, b, e)]
    seq = np.repeat(np.arange(4), [len(t) for t in texts])
    found = prefix_values(np.concatenate(texts), seq, np.array([0, 0, 0, 1]), np.array([1.0, 0.0, 1.0, 1.0]))
    assert found.tolist() == [0.5, 0.5, 1, 0.5, 0.5, 0, 0, 1, 1, 1, 1, 1]
    # The temporal difference: from the mean 2/3 to 1/2 at a: -1/6; +-1/2 where e and c part; 2/3 to 1 at d: 1/3. std over n - 1: sqrt(1/3).
    adv = np.array([1 / 3, -2 / 3, 1 / 3, 0.0]) * math.sqrt(3)
    got = add_branch_values(
        adv=adv, reward=[1.0, 0.0, 1.0, 1.0], id=np.concatenate(texts), seq=seq, group=np.array([0, 0, 0, 1]), eps=0.0
    )["adv"].values  # fmt: skip
    change = [-1 / 6, 0, 1 / 2, -1 / 6, 0, -1 / 2, 0, 1 / 3, 0, 0, 0, 0]
    assert got == pytest.approx(adv[seq] + math.sqrt(3) * np.array(change))


def test_an_answer_that_ends_where_another_goes_on_is_part_of_both():
    # x (1) is cut off; x y (0): V(x) = 1/2 for both, and y brings it to 0.
    assert prefix_values([1, 1, 2], [0, 1, 1], np.array([0, 0]), [1.0, 0.0]).tolist() == [0.5, 0.5, 0.0]


def test_groups_without_a_difference_or_a_verdict():
    given = {"id": [1, 2, 1, 3], "seq": [0, 0, 1, 1], "group": np.array([0, 0])}
    assert (add_branch_values(adv=[0.0, 0.0], reward=[0.9, 0.9], **given)["adv"].values == 0).all()
    assert np.isnan(add_branch_values(adv=[NAN, NAN], reward=[1.0, NAN], **given)["adv"].values).all()
    assert add_branch_values(adv=[0.0], reward=[1.0], id=[1], seq=[0], group=np.array([0]))["adv"].values.tolist() == [0.0]
    with pytest.raises(BadValue, match="in order"):
        prefix_values([1, 2], [1, 0], np.array([0, 0]), [1.0, 0.0])


def test_differences_along_a_path_sum_to_reward_minus_mean():
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 7, 24)
    seq, group = np.repeat(np.arange(24), lengths), np.arange(24) % 3
    reward, ids = rng.integers(0, 2, 24).astype(float), rng.integers(0, 2, lengths.sum())
    after = prefix_values(ids, seq, group, reward)
    for i in range(24):  # a plain trie
        rows = np.flatnonzero(seq == i)
        for t, row in enumerate(rows):
            mates = [j for j in range(24) if group[j] == group[i] and list(ids[seq == j][: t + 1]) == list(ids[rows[: t + 1]])]
            assert after[row] == pytest.approx(np.mean(reward[mates]))


def test_tempo_without_the_difference_is_grpo():
    same(of("tempo", rate=0.0), of("grpo"))
    with pytest.raises(AssertionError):
        same(of("tempo"), of("grpo"))


# ---- implicit process rewards


def test_process_and_outcome_have_their_own_baselines():
    # beta 1/2. r of sibling 0: 1, 3 (mean 2); of sibling 1: 4; of sibling 2: 0, 0. Others' means: (4 + 0)/2 = 2, (2 + 0)/2 = 1, (2 + 4)/2 = 3.
    # To go: (1-2) + (3-2) = 0, 1;  4 - 1 = 3;  (0-3) + (0-3) = -6, -3.  Outcome 1, 0, 0: 1 - 0 = 1, 0 - 1/2, 0 - 1/2.
    given: dict[str, Any] = {"prm_logp": [2.0, 6.0, 8.0, 1.0, 1.0], "ref_logp": [0.0, 0.0, 0.0, 1.0, 1.0]}
    given |= {"seq": [0, 0, 1, 2, 2], "group": [0, 0, 0], "reward": [1.0, 0.0, 0.0], "beta": 0.5}
    assert implicit_process(**given)["adv"].values == pytest.approx([1, 2, 2.5, -6.5, -3.5])
    assert implicit_process(**given, process=0.0)["adv"].values == pytest.approx([1, 1, -0.5, -0.5, -0.5])
    assert implicit_process(**given, outcome=0.0, gamma=0.0)["adv"].values == pytest.approx([-1, 1, 3, -3, -3])
    alone = {**given, "group": [0, 1, 2]}
    assert (implicit_process(**alone)["adv"].values == 0).all()
    assert leave_one_out(np.array([3.0, 1.0, 7.0]), np.array([0, 0, 1])).tolist() == [2, -2, 0]


def test_cross_entropy_of_a_log_ratio_by_hand():
    # beta 1/2: S = 1/2 (1 + 3) = 2 and -1/2. -log sigmoid(2) = log(1 + e^-2); -log(1 - sigmoid(-1/2)) = log(1 + e^-1/2).
    # d l / d logp = beta (sigmoid(S) - R).
    logp = torch.tensor([1.0, 3.0, -1.0], dtype=torch.float64, requires_grad=True)
    l = outcome_cross_entropy(prm_logp=logp, ref_logp=torch.zeros(3), reward=torch.tensor([1.0, 0.0]), seq=torch.tensor([0, 0, 1]), beta=0.5)
    assert l.tolist() == pytest.approx([math.log1p(math.exp(-2)), math.log1p(math.exp(-0.5))])
    l.sum().backward()
    up, down = 0.5 * (1 / (1 + math.exp(-2)) - 1), 0.5 / (1 + math.exp(0.5))
    assert logp.grad is not None and logp.grad.tolist() == pytest.approx([up, up, down])


def test_the_bounds_of_an_accuracy_filter_may_pass():
    given = {"reward": [1.0, 0, 0, 0, 0], "group": [0] * 5}
    assert keep_informative(**given, low=0.2, high=0.8)["keep"].values.max() == 0
    assert keep_informative(**given, low=0.2, high=0.8, closed=True)["keep"].values.min() == 1


def test_the_reward_model_moves_before_it_pays():
    method = needed(of("prime"))
    learner = LocalLearner(method.weights, method.cast, start(), 0, LearnerSettings())
    loop = Loop(method, None, None, learner, None, {}, lambda step: 1e-3, 1)  # type: ignore[arg-type]
    table = Table(None, None, tuple(method.cast), {}, None, {}, limits=Limits())  # type: ignore[arg-type]
    groups = groups_of()
    table.trees.update({e.id: e.tree for g in groups for e in g.episodes})
    batch, _, _ = loop._compose(method.stage, table, groups)
    loop._learn(method.stage, batch)
    paid = batch.get("prm_logp") - batch.get("ref_logp")
    assert np.abs(paid).max() > 1e-4  # before its first step they are one model
    del batch.columns["prm_logp"]
    learner.forward(batch, ["prm_logp"])
    assert np.allclose(batch.get("prm_logp") - batch.get("ref_logp"), paid, atol=1e-12)
    right, seq = batch.get("reward", "seq"), batch.get("seq")
    sums = np.bincount(seq, weights=paid)
    assert np.corrcoef(sums, right)[0, 1] > 0.3  # and what it pays for goes with the outcome


# ---- attempts


def test_a_gain_is_paid_to_the_second_attempt(tags):
    def reply(text: str, address: int) -> str:
        return "<answer>7</answer>" if "error" in text else "<answer>5</answer>"

    for gold, want, gain in (("7", [0.0, 1 + 10 * (1 - 0)], 1), ("5", [1.0, 0 + 10 * (0 - 1)], -1), ("9", [0.0, 0.0], 0)):
        table = table_of(two_attempts(), reply, tags)
        group = played(table, Task("t", "Q: ", gold))
        (episode,) = group.episodes
        found = scored(progress(), group, table)["reward"]
        nodes = [n for n, _ in episode.tree.path(episode.trajectories[0].leaf.node) if episode.tree.sampling[n] >= 0]
        assert episode.answer == "7" and [found[at].value for at in sorted(found)] == want and [at.node for at in sorted(found)] == nodes
        assert scored(progress(first=0.0, alpha=0.0), group, table)["reward"][Ref(episode.id, nodes[0])].value == 0.0
        leaf = found[episode.trajectories[0].leaf]
        assert (leaf.parts["gain"], leaf.parts["fixed"], leaf.parts["broken"]) == (gain, gain == 1, gain == -1)
        (example,) = each(stream=("first", "second"), steps=("reward",))(groups=[group._replace(scores={"reward": found})])
        assert [s.learn for s in example.parts if s.learn] == ["first", "second"] and example.given["reward"][1].tolist() == want


def test_turns_are_compared_with_turns_of_their_number():
    # Siblings with 2, 2 and 1 turns. First turns 0, 1, 1: 0 - 1, 1 - 1/2, 1 - 1/2. Second turns 11, -9: 20, -20.
    given = {"reward": [0.0, 11.0, 1.0, -9.0, 1.0], "seq": [0, 0, 1, 1, 2], "group": [0] * 5}
    assert center_by_turn(**given)["adv"].values.tolist() == [-1, 20, 0.5, -20, 0.5]
    # gamma 1: first turns are worth 11, -8, 1: 11 + 3.5, -8 - 6, 1 - 1.5
    assert center_by_turn(**given, gamma=1.0)["adv"].values == pytest.approx([14.5, 20, -14, -20, -0.5])


def test_the_first_stage_pins_the_first_attempt_only():
    one, two = of("score").stages
    pulled = [(t.on, t.coef) for t in one.updates[0].terms if t.fn.name == "kl"]
    assert pulled == [(("first", "second"), 0.01), (("first",), 0.1)] and [t.on for t in two.updates[0].terms][1:] == [("first", "second")]
    assert [s.reward[0].args for s in (one, two)] == [{"first": 0.0, "alpha": 0.0}, {"alpha": 10.0}]
    assert len(of("score", prepare=False).stages) == 1


# ---- influence


def influence_by_hand(learner: LocalLearner, batch: Any) -> np.ndarray:
    """The double sum, with the whole [N, V] at once."""
    model = learner.groups["policy"].trunk
    hidden = torch.from_numpy(batch.get("last_hidden"))
    probs = (model.logits(hidden) / torch.from_numpy(batch.get("temperature"))[:, None]).softmax(-1)
    g = torch.nn.functional.one_hot(torch.from_numpy(batch.ids[batch.place].astype(np.int64)), probs.shape[1]) - probs
    both = (g @ g.T) * (hidden @ hidden.T)
    seq, group, reward = batch.get("seq"), batch.get("group"), batch.get("reward")
    means = {k: np.mean(batch.get("reward", "seq")[batch.get("group", "seq") == k]) for k in set(group.tolist())}
    right = reward > np.array([means[k] for k in group.tolist()])
    assert 0 < right.sum() < len(right) and len(seq) == len(both)
    pairs = torch.from_numpy(right[:, None] & (group[:, None] == group[None, :]))
    return (both * pairs).sum(0).detach().numpy()


@pytest.mark.parametrize("rows,tokens", [(64, 4096), (1, 30)])
def test_influence_is_the_double_sum_of_products(rows, tokens, monkeypatch):
    monkeypatch.setattr("selfteach.learner.tied.chunk_rows", lambda vocabulary: rows)
    method = needed(of("thr"))
    learner = LocalLearner(method.weights, method.cast, start(), 0, LearnerSettings(tokens=tokens))
    groups = groups_of()
    trees = {e.id: e.tree for g in groups for e in g.episodes}
    batch = gather(each()(groups=groups), trees.__getitem__)
    heat = np.where(np.arange(batch.size("token")) % 2, 0.7, 1.0)
    batch.put("temperature", "token", heat)
    learner.forward(batch, ["influence", "last_hidden", "logp"])
    assert batch.get("influence") == pytest.approx(influence_by_hand(learner, batch), abs=1e-10)


def test_influence_foretells_how_likely_right_answers_become():
    """Moving the output layer along the gradient of one token's logp changes the right answers' logp by its influence, to first order."""
    method = needed(of("thr"))
    learner = LocalLearner(method.weights, method.cast, start(), 0, LearnerSettings())
    groups = groups_of(("g0",))
    batch = gather(each()(groups=groups), {e.id: e.tree for g in groups for e in g.episodes}.__getitem__)
    learner.forward(batch, ["influence", "last_hidden"])
    model = learner.groups["policy"].trunk
    assert model is not None
    hidden, ids = torch.from_numpy(batch.get("last_hidden")), torch.from_numpy(batch.get("id").astype(np.int64))
    weight, reward = model.lm_head.weight.detach().clone().requires_grad_(), batch.get("reward")
    right = torch.from_numpy(reward > batch.get("reward", "seq").mean())

    def logp(w: torch.Tensor) -> torch.Tensor:
        return (hidden @ w.T).log_softmax(-1).gather(-1, ids[:, None])[:, 0]

    for token in (0, 3, 7):
        (slope,) = torch.autograd.grad(logp(weight)[token], weight)
        with torch.no_grad():
            change = (logp(weight + 1e-5 * slope) - logp(weight - 1e-5 * slope))[right].sum() / 2e-5
        assert float(change) == pytest.approx(float(batch.get("influence")[token]), rel=1e-5)


def test_a_quantity_of_a_group_has_no_gradient():
    method = of("thr").but(credit=(each(),))
    learner = LocalLearner(method.weights, needed(of("thr")).cast, start(), 0, LearnerSettings())
    groups = groups_of()
    batch = gather(each()(groups=groups), {e.id: e.tree for g in groups for e in g.episodes}.__getitem__)
    update = Update(("policy",), (Term(nll().reading(logp="influence")),))
    batch.put("w0", "token", np.ones(batch.size("token")))
    with pytest.raises(BadValue, match="looks at a whole group and has no gradient"):
        learner.backward(batch, update)


def test_thr_without_threshold_and_p_is_grpo():
    same(of("thr", p=0.0, threshold=False), of("grpo"))
    with pytest.raises(AssertionError):
        same(of("thr", p=0.2, threshold=False), of("grpo"))


# ---- vines


def test_steps_are_paid_by_the_change_in_value():
    # Two sequences: 1/4 -> 1/2 (after two tokens) -> 1 (after one more) -> 1 at the end; the other has no step inside: 3/4 -> 0.
    at = [NAN, 0.5, 1.0, NAN, NAN, NAN]
    given = {"reward": [1.0, 0.0], "start_value": [0.25, 0.75], "seq": [0, 0, 0, 0, 1, 1]}
    assert step_values(**given, step_value=at)["adv"].values.tolist() == [0.25, 0.25, 0.5, 0, -0.75, -0.75]
    assert step_values(**given, step_value=[NAN] * 6)["adv"].values.tolist() == [0.75] * 4 + [-0.75] * 2  # nothing inside: one step
    unknown = step_values(reward=[1.0, 0.0], start_value=[NAN, 0.75], step_value=at, seq=given["seq"])["adv"].values
    assert np.isnan(unknown[:2]).all() and unknown[2:].tolist() == [0.5, 0, -0.75, -0.75]


def test_cuts_fall_between_tokens():
    assert cuts([b"a.", b" b", b". c", b"<x>"], SENTENCES) == [1, 3]  # the second mark stands in the token with c, which is of the step before
    assert cuts([b"3.14", b"\n\n", b"d."], SENTENCES) == [2]
    assert cuts([b"", b"a. ", b""], SENTENCES) == [2] and cuts([], SENTENCES) == []
    assert cuts([b"so ", b"wai", b"t, x", b" but"], r"wait|but", before=True) == [1, 3]


def test_vines_grow_from_the_ends_of_steps_and_are_never_learned(letters):
    # The answer says `1. 2. A`; a vine from the prompt or after `1.` fails half of the time, from after `2.` never.
    seen: dict[str, int] = {}

    def reply(text: str, address: int) -> str:
        seen[text] = seen.get(text, 0) + 1
        if text == "Q:" and seen[text] == 1:
            return "1. 2. <answer>7</answer>"
        right = text.endswith("2.") or seen[text] % 2 == 0
        return f" <answer>{7 if right else 5}</answer>"

    table = table_of(vines(k=4), reply, letters)
    group = played(table, Task("t", "Q:", "7"))
    (episode,) = group.episodes
    assert seen == {"Q:": 5, "Q:1.": 4, "Q:1. 2.": 4} and episode.answer == "7"
    assert [(t.learn, t.role) for t in episode.trajectories] == [("main", "policy")] + [(None, "vine")] * 12
    found = scored(vine_values(), group, table)
    leaf = episode.trajectories[0].leaf
    assert {at.offset: s.value for at, s in found["step_value"].items()} == {2: 0.5, 5: 1.0} and all(
        at.node == leaf.node for at in found["step_value"]
    )
    assert found["start_value"][leaf].value == 0.5 and {at: s.value for at, s in found["reward"].items()} == {leaf: 1.0}

    group = group._replace(scores=found)
    (example,) = each(tokens=("step_value",))(groups=[group])
    batch = gather([example], table.tree)
    adv = step_values(**{n: batch.get(n, u) for n, u in step_values().needs.items()})["adv"].values
    assert adv[:2].tolist() == [0, 0] and adv[2:5].tolist() == [0.5] * 3 and (adv[5:] == 0).all()
    assert each(tokens=("step_value",))(groups=[group._replace(scores={"reward": found["reward"]})])[0].given["step_value"][0] == "token"


def test_few_places_stand_for_many(letters):
    table = table_of(vines(k=1, most=2), lambda text, _: "1. 2. 3. 4. 5. 6. 7. 8. 9." if text == "Q:" else "x", letters)
    (episode,) = played(table, Task("t", "Q:", "7")).episodes
    assert sorted(episode.tree.cut[t.leaf.node] for t in episode.trajectories[2:]) == [8, 20]  # after 3. and 7. of 8 places


def test_vines_estimate_the_exact_value_of_a_state(letters):
    """A model of one token a turn: of all that it can say, counted, against 2000 vines (a standard error of at most 0.011)."""
    folder_model = mini(264)
    engine = BuiltinEngine({"policy": folder_model}, {"policy": "policy"}, letters, slots=64, length=64)
    table = Table(engine, letters, ("policy",), {}, Sampling(max_tokens=1), {"main": vines(k=2000)}, limits=Limits(turns=10**4, tokens=10**4))
    group = played(table, Task("t", "Q:", tuple("bcdefghijklmnop")))
    found = scored(vine_values(), group, table)
    ids = torch.from_numpy(letters.render("Q:").astype(np.int64))
    with torch.no_grad():
        probs = folder_model.logits(folder_model(ids[None], causal))[0, -1].softmax(-1)
    said = [letters.decode([i]) for i in range(264)]
    exact = sum(float(probs[i]) for i, s in enumerate(said) if normalise(s) in set("bcdefghijklmnop"))
    (value,) = [s.value for s in found["start_value"].values()]
    assert abs(value - exact) < 4 * math.sqrt(exact * (1 - exact) / 2000) and 0.05 < exact < 0.95
