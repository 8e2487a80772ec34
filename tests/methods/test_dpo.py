"""DPO: the loss and its metrics by hand-worked numbers, what a pair becomes, and how a policy moves."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.by_hand import token_gradient
from support.episodes import scripted_context

from selfteach import api, plan
from selfteach.core import BadValue, Block, RolloutGroup, RolloutRequest, Task
from selfteach.core.blocks import measures
from selfteach.loop.episode import play
from selfteach.methods import dpo, preferred_ft, rlhf
from selfteach.methods.dpo import chosen_over_rejected, read_pair
from selfteach.model.tokenizer import Tokenizer
from selfteach.objective import preference

# Two pairs; sequence 0 of two tokens beats 1, 2 beats 3.
SEQ = torch.tensor([0, 0, 1, 2, 3])
LOGP = torch.tensor([-1.0, -1.0, -3.0, -2.0, -1.0], dtype=torch.float64)
REF = torch.tensor([-1.5, -1.5, -2.0, -1.0, -2.0], dtype=torch.float64)
PAIRS: dict[str, Any] = {"seq": SEQ, "win": torch.tensor([0, 2]), "lose": torch.tensor([1, 3])}


def test_the_loss_by_hand():
    # log-ratios: sequence 0: 0.5 + 0.5 = 1, 1: -1, 2: -1, 3: 1. Margins 2 and -2, times beta = 0.5: 1 and -1.
    # -log sigmoid(1) = log(1 + e^-1) = 0.31326, -log sigmoid(-1) = log(1 + e) = 1.31326
    loss = preference.dpo(logp=LOGP, ref_logp=REF, **PAIRS, beta=0.5)
    assert loss.tolist() == pytest.approx([0.31326, 1.31326], abs=1e-5)
    # a tenth of the preferences wrong: 0.9 * 0.31326 + 0.1 * 1.31326 = 0.41326, and 0.9 * 1.31326 + 0.1 * 0.31326
    smooth = preference.dpo(logp=LOGP, ref_logp=REF, **PAIRS, beta=0.5, label_smoothing=0.1)
    assert smooth.tolist() == pytest.approx([0.41326, 1.21326], abs=1e-5)


@pytest.mark.parametrize(("beta", "smoothing"), [(0.1, 0.0), (0.5, 0.2), (2.0, 0.5)])
def test_the_loss_is_that_of_trl(beta: float, smoothing: float):
    """DPOTrainer with loss_type "sigmoid", on sums of log-probabilities of each answer; TRL smooths labels so
    in its `aot` losses.
    """
    chosen, rejected = torch.tensor([-2.0, -2.0]), torch.tensor([-3.0, -1.0])
    ref_chosen, ref_rejected = torch.tensor([-3.0, -1.0]), torch.tensor([-2.0, -2.0])
    logits = (chosen - rejected) - (ref_chosen - ref_rejected)
    sigmoid = torch.nn.functional.logsigmoid
    theirs = -sigmoid(beta * logits) * (1 - smoothing) - sigmoid(-beta * logits) * smoothing
    ours = preference.dpo(logp=LOGP, ref_logp=REF, **PAIRS, beta=beta, label_smoothing=smoothing)
    assert ours.tolist() == pytest.approx(theirs.tolist())


def test_its_gradient_pushes_each_token_by_how_wrong_the_pair_is():
    # d l / d logp = -beta sigmoid(-m) for tokens of the chosen answer, + for the rejected: eq. 7's gradient.
    # beta 0.5, m 1 and -1: sigmoid(-1) = 0.26894, sigmoid(1) = 0.73106
    logp = LOGP.clone().requires_grad_(True)
    preference.dpo(logp=logp, ref_logp=REF, **PAIRS, beta=0.5).sum().backward()
    assert logp.grad is not None
    assert logp.grad.tolist() == pytest.approx([-0.13447, -0.13447, 0.13447, -0.36553, 0.36553], abs=1e-5)


def test_its_metrics_by_hand():
    found = measures(preference.dpo(beta=0.5), {"logp": LOGP, "ref_logp": REF, **PAIRS})
    assert {n: v.tolist() for n, v in found.items()} == {
        "reward_chosen": [0.5, -0.5],
        "reward_rejected": [-0.5, 0.5],
        "reward_margin": [1.0, -1.0],
        "reward_accuracy": [True, False],
    }


def test_a_pair_is_two_answers_to_one_prompt_and_their_tokens_alone_are_learned(letters: Tokenizer):
    context = scripted_context(read_pair(), [], letters)
    asked = [Task("a", "q1: ", data=("yes", "no")), Task("b", "q2: ", data=("ja", "nein"))]
    groups = asyncio.run(play(context, [RolloutRequest(t, 1, key=t.id) for t in asked]))
    examples = chosen_over_rejected(groups=groups)
    assert [e.preferred_over for e in examples] == [(1,), (), (3,), ()]
    for group, want in zip(groups, (("yes", "no"), ("ja", "nein")), strict=True):
        (episode,) = group.episodes
        assert episode.answer == want[0]
        learned = []
        for trajectory in episode.trajectories:
            places = episode.tree.places(trajectory.leaf.node, trajectory.leaf.offset)
            own = episode.tree.id[places][episode.tree.action_mask[places]]
            assert int(own[-1]) == letters.eos_token_id
            learned.append(letters.decode(own[:-1]))
        assert tuple(learned) == want


def pair_groups(program: Block, letters: Tokenizer) -> list[RolloutGroup]:
    """A pair of answers of two tokens and of one."""
    context = scripted_context(program, [], letters, model_roles=("policy", "rm"))
    return asyncio.run(play(context, [RolloutRequest(Task("a", "q: ", data=("ab", "c")), 1, key="a")]))


def test_preferred_ft_learns_what_was_chosen_alone(letters: Tokenizer):
    stage = preferred_ft().stage
    groups = pair_groups(stage.programs["main"], letters)
    (example,) = stage.credit[0](groups=groups)
    assert example.labels["role"] == "chosen"
    # three tokens, `a`, `b` and EOS, in the mean
    assert token_gradient(preferred_ft(), groups, [-1.0] * 3) == pytest.approx([-1 / 3] * 3)


def test_the_reward_model_of_rlhf_learns_from_pairs_and_then_pays(letters: Tokenizer):
    first, second = rlhf(pairs=64, rm_minibatches=4).stages
    assert (first.until, first.groups, first.updates[0].minibatches, first.updates[0].params) == (1, 64, 4, ("rm",))
    groups = pair_groups(first.programs["main"], letters)
    chosen, rejected = first.credit[0](groups=groups)
    assert chosen.model_role == rejected.model_role == "rm" and chosen.preferred_over == (1,)
    # R is read after `b` and after `c`, with no EOS behind: 1 and -1, a margin of 2, whose gradient is -sigmoid(-2)
    scalars = [9.0, 1.0, -1.0]
    got = token_gradient(replace(rlhf(), stages=(first,)), groups, scalars, name="scalar_after")
    assert got == pytest.approx([0, -0.1192, 0.1192], abs=1e-4)
    assert [b.name for b in second.reward] == ["reward_model"]
    pair = {"seq": torch.tensor([0, 0, 1]), "win": torch.tensor([0]), "lose": torch.tensor([1])}
    for last, right in ((1.0, True), (-2.0, False)):
        given = {"scalar_after": torch.tensor([9.0, last, -1.0]), **pair}
        assert measures(preference.bradley_terry(), given)["pair_accuracy"].tolist() == [right]


ROWS = [{"prompt": f"say {n}: ", "chosen": "yes please", "rejected": "no never"} for n in range(20)]
SMALL = {"warm_steps": 2, "threads": 1, "eval_every": 0, "final_eval_tasks": 2, "final_eval_k": 0, "lr": 3e-3}


def test_a_policy_moves_to_what_is_chosen(tmp_path: Path):
    """The first loss is log 2, for the policy is the reference; then the margin grows."""
    run = api.train(dpo(batch=4), model="tiny-s", train=ROWS, steps=8, out=tmp_path / "run", progress=False, **SMALL)
    first, last = run.metrics[0], run.metrics[-1]
    assert first["policy/loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert first["policy/reward_margin"] == pytest.approx(0, abs=1e-5)
    assert last["policy/loss"] < 0.6 and last["policy/reward_margin"] > 0.2 and last["policy/reward_accuracy"] == 1
    assert last["policy/reward_chosen"] > last["policy/reward_rejected"]


def test_what_has_no_pairs_is_refused_before_work(tmp_path: Path):
    with pytest.raises(BadValue, match=r"learns from preference pairs \(columns prompt, chosen, rejected\), and this"):
        api.train(dpo(), model="tiny-s", train=[{"prompt": f"{n}", "completion": "a"} for n in range(9)], out=tmp_path)
    with pytest.raises(BadValue, match="learns from preference pairs"):
        api.train(dpo(), model="tiny-s", task="chain_sum", out=tmp_path)
    assert plan("dpo").task == "preference"
