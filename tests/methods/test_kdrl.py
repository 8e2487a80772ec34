"""KDRL: the teacher's log-probabilities, where their KL is taken, and who learns when."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.battery import Study, groups_of, of, same, same_gradient, with_weigh
from support.loops import advance, equal, loop_of
from support.tensors import f64, slope

from selfteach.core import BadValue, Method, Update, registry
from selfteach.core.contexts import History
from selfteach.methods.kdrl import kl_where, mark_wrong
from selfteach.objective.kl import kl


def test_where_the_teacher_is_heard():
    reward, group = [1.0, 0.0, 0.0, 0.0, np.nan], [0, 0, 1, 1, 2]
    assert mark_wrong(reward=reward[:4], group=group[:4])["where"].values.tolist() == [0, 1, 1, 1]
    assert mark_wrong(reward=reward[:4], group=group[:4], by="group")["where"].values.tolist() == [0, 0, 1, 1]
    assert np.isnan(mark_wrong(reward=reward, group=group)["where"].values).tolist() == [False] * 4 + [True]
    with pytest.raises(BadValue, match="seq or group"):
        mark_wrong(reward=[1.0], group=[0], by="token")


def test_a_mask_leaves_out_rows_and_nothing_else():
    lp, ref, where = f64(-1.0, -2.0, -0.5), f64(-1.5, -1.0, -0.5), f64(1.0, 0.0, 1.0)
    assert kl_where(logp=lp, ref_logp=ref, where=where).tolist() == pytest.approx([0.125, 0.0, 0.0])
    assert slope(lambda x: kl_where(logp=x, ref_logp=ref, where=where), lp).tolist() == pytest.approx([0.5, 0.0, 0.0])
    assert (
        kl_where(logp=lp, ref_logp=ref, where=torch.ones(3)).tolist() == kl(logp=lp, ref_logp=ref, kind="k2").tolist()
    )


def test_k2_on_samples_has_the_gradient_of_the_reverse_kl_and_k3_has_not():
    """Over a distribution of three tokens, exactly: E_pi of the loss's gradient, samples held fixed, against d KL(pi ||
    teacher).
    """
    scores, teacher = f64(0.3, -0.2, 0.8), f64(0.1, 0.6, 0.3).log()

    def expected(kind: str) -> torch.Tensor:
        live = scores.clone().requires_grad_()
        logp = live.log_softmax(0)
        (logp.detach().exp() * kl(logp=logp, ref_logp=teacher, kind=kind)).sum().backward()
        assert live.grad is not None
        return live.grad

    live = scores.clone().requires_grad_()
    logp = live.log_softmax(0)
    (logp.exp() * (logp - teacher)).sum().backward()
    assert live.grad is not None and torch.allclose(expected("k2"), live.grad, atol=1e-12)
    assert not torch.allclose(expected("k3"), live.grad, atol=1e-2)


def test_kdrl_without_a_teacher_is_grpo_with_a_token_mean():
    same(of("kdrl", beta=0.0, beta_min=0.0), with_weigh(of("grpo"), "token_mean"))


def test_kdrl_without_the_reward_is_the_teachers_pull_alone():
    (update,) = of("kdrl").stage.updates
    assert of("kdrl", rewarded=False).stage.updates[0].terms[0].coef == 0.0
    alone = of("kdrl", rewarded=False)
    apart = alone.replace(updates=(Update(("policy",), update.terms[1:]),))
    same_gradient(Study(alone, groups_of()), Study(apart, groups_of()), 1e-12)


def test_masks_change_what_is_taught():
    plain, masked = Study(of("kdrl", beta=1.0), groups_of()), Study(of("kdrl", beta=1.0, mask="seq"), groups_of())
    with pytest.raises(AssertionError):
        same_gradient(plain, masked)


def coefficients(method: Method, step: int) -> list[float]:
    (update,) = method.stage.updates
    return [float(t.coef if isinstance(t.coef, float) else t.coef(history=History(step=step))) for t in update.terms]


def test_the_coefficient_falls_from_the_end_of_school():
    method = of("kdrl", teacher_steps=10)
    at = [coefficients(method, s)[1] for s in (0, 10, 11, 50, 90, 200)]
    assert at == pytest.approx([5e-3, 5e-3, 4.95e-3, 3e-3, 1e-3, 1e-3])  # 5e-5 a step
    assert coefficients(of("kdrl", teacher="a/path"), 1)[1] == pytest.approx(4.95e-3)


def test_a_teacher_is_taught_first_and_stands_still_while_the_student_learns(letters):
    loop = loop_of(
        of("kdrl", groups=2, rollouts=3, teacher_steps=2, batch=3).replace(reward=(registry.blocks.get("spread")(),)),
        letters,
    )
    kept = lambda name: {n: p.clone() for n, p in loop.learner.weights(name).items()}  # noqa: E731
    student, teacher = kept("policy"), kept("teacher")
    advance(loop, 2)
    assert equal(student, kept("policy")) and not equal(teacher, kept("teacher"))
    teacher = kept("teacher")
    (metrics,) = advance(loop)
    assert metrics["stage"] == "main" and not equal(student, kept("policy")) and equal(teacher, kept("teacher"))


def test_a_teacher_from_a_path_needs_no_school():
    method = of("kdrl", teacher="a/path")
    assert len(method.stages) == 1 and method.weights["teacher"].source == "a/path"


def test_the_teacher_is_measured_beside_the_student():
    for method in (of("kdrl"), of("kdrl", teacher="a/path")):
        assert method.decode["teacher"].args["model_role"] == "teacher"


def test_it_is_the_student_who_is_measured_while_its_teacher_learns():
    method = of("kdrl")
    assert [str(method.eval_program(stage)) for stage in method.stages] == ["single()"] * 2
    # where nothing is ever sampled, a decode program is what there is
    assert of("dpo").eval_program(of("dpo").stage) == of("dpo").decode["answer"]
