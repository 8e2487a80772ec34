"""CHORD and KDRL by hand: an expert's tokens weighed one by one, a teacher's log-probabilities, and where each of them is heard."""

from __future__ import annotations

import doctest
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import said_group
from test_battery import Study, groups_of, same, same_gradient, with_weigh
from test_loop import advance, equal, loop_of, weights_of
from test_objective import f64, slope

from selfteach.core import BadValue, Method, Source, Task, Update, registry
from selfteach.core.part import first_state
from selfteach.core.protocols import History
from selfteach.credit import mark_wrong, marks
from selfteach.curriculum.select import experts, start, with_experts
from selfteach.loop.books import summary
from selfteach.objective import kl, kl_where, likelihood, nll, uncertain_nll


def of(name: str, **knobs: Any) -> Method:
    return registry.methods.get(name)(**knobs)


@pytest.mark.parametrize("module", [likelihood, marks])
def test_the_examples_in_the_docstrings_are_true(module):
    found = doctest.testmod(module)
    assert found.attempted and not found.failed


# ---- which demonstrations are an expert's

STYLED = (("terse", ""), ("verbose", "arithmetic"), ("verbose", ""), ("terse", ""), ("verbose", ""), ("terse", "arithmetic"))


def shown(styles: bool = True, slips: bool = True) -> Source:
    """Demonstrations that go round STYLED, for ever."""

    def demo(i: int) -> Task:
        style, slip = STYLED[i % len(STYLED)]
        tags = ({"style": style} if styles else {}) | ({"slip": slip} if slips else {})
        return Task(f"demo/{i}", "q", "a", ("text",), tags)

    return Source("shown", lambda i: Task(f"train/{i}", "q"), (), demo)


def numbers(found: Any) -> list[int]:
    return [int(r.task.id.split("/")[1]) for r in found if r.task.id.startswith("demo")]


def test_an_expert_makes_no_slip_and_keeps_to_a_style():
    part = experts(style="verbose", pool=3)
    found, state = part(n=4, back=[], source=shown(), state=first_state(part))
    assert numbers(found) == [2, 4, 8, 2] and all(r.n == 1 and r.program == "main" for r in found)  # three of them, then round again
    found, state = part(n=3, back=[], source=shown(), state=state)
    assert numbers(found) == [4, 8, 2] and state["seen"] == 9
    assert part(n=3, back=[[]], source=shown(), state=state) == ([], state)


def test_a_task_without_styles_has_experts_all_the_same():
    part = experts(style="verbose")
    assert numbers(part(n=3, back=[], source=shown(styles=False), state=first_state(part))[0]) == [0, 2, 3]
    assert numbers(part(n=3, back=[], source=shown(styles=False, slips=False), state=first_state(part))[0]) == [0, 1, 2]
    assert numbers(experts()(n=3, back=[], source=shown(), state=first_state(part))[0]) == [0, 2, 3]


def test_a_task_without_an_expert_is_refused():
    state = first_state(experts())
    with pytest.raises(BadValue, match="no demonstrations"):
        experts()(n=1, back=[], source=replace(shown(), demos=None), state=state)
    wrong = replace(shown(), demos=lambda i: Task(f"demo/{i}", "q", tags={"slip": "arithmetic"}))
    with pytest.raises(BadValue, match=r"only 0 of \d+ demonstrations are an expert's"):
        experts()(n=1, back=[], source=wrong, state=state)


def test_experts_stand_beside_the_tasks_that_are_asked():
    part = with_experts(batch=2)
    found, state = part(n=2, rollouts=4, back=[], source=shown(), seed=3, state=first_state(part))
    assert [(r.task.id, r.n, r.program) for r in found] == [
        (f"train/{start(3)}", 4, "main"),
        (f"train/{start(3) + 1}", 4, "main"),
        ("demo/0", 1, "expert"),
        ("demo/2", 1, "expert"),
    ]
    found, _ = part(n=1, rollouts=4, back=[], source=shown(), seed=3, state=state)
    assert [r.task.id for r in found] == [f"train/{start(3) + 2}", "demo/3", "demo/4"]


# ---- CHORD


def test_phi_weighs_a_token_by_how_unsure_the_policy_is_and_has_no_gradient_of_its_own():
    p = [0.5, 0.9, 0.01, 1.0]
    lp = f64(*np.log(p))
    # p (1 - p): 0.25, 0.09, 0.0099, 0; the gradient of -phi logp in logp is -phi, and no more than that
    assert uncertain_nll(logp=lp).tolist() == pytest.approx([-w * np.log(q) for w, q in zip((0.25, 0.09, 0.0099, 0.0), p, strict=True)])
    live = lp.clone().requires_grad_()
    uncertain_nll(logp=live).sum().backward()
    assert live.grad is not None and live.grad.tolist() == pytest.approx([-0.25, -0.09, -0.0099, 0.0])
    assert slope(lambda x: nll(logp=x), lp).tolist() == pytest.approx([-1.0] * 4)


def test_chord_without_an_expert_is_grpo():
    same(of("chord", mu=0.0), of("grpo"))
    half = Study(of("chord", mu=0.5), groups_of())
    for name, g in Study(of("grpo"), groups_of()).gradient.items():
        assert torch.allclose(g * 0.5, half.gradient[name], atol=1e-14)  # (1 - mu) of it


def coefficients(method: Method, step: int) -> list[float]:
    (update,) = method.stage.updates
    return [float(t.coef if isinstance(t.coef, float) else t.coef(history=History(step=step))) for t in update.terms]


def test_mu_falls_along_half_a_cosine_and_the_two_weights_make_one():
    method = of("chord_mu", decay=4)
    # 0.05 + 0.85 (1 + cos(pi s / 4)) / 2: at s = 2 the middle, 0.475
    assert [coefficients(method, s)[1] for s in (0, 2, 4, 9)] == pytest.approx([0.9, 0.475, 0.05, 0.05])
    assert all(sum(coefficients(method, s)) == pytest.approx(1.0) for s in range(6))
    assert coefficients(of("chord"), 0) == coefficients(of("chord"), 99) == [0.9, 0.1]


def small(name: str, **knobs: Any) -> Method:
    return of(name, groups=2, rollouts=3, **knobs).but(reward=(registry.blocks.get("spread")(),))


def test_both_streams_are_in_one_step_and_figures_are_those_of_the_rollouts(letters):
    loop = loop_of(small("chord", batch=2), letters)
    first = weights_of(loop)
    (metrics,) = advance(loop)
    assert not equal(first, weights_of(loop))
    assert metrics["groups"] == 2 and metrics["episodes"] == 6 and metrics["groups/mixed"] == 1.0
    # the expert's `ab` and the end, twice, beside what was sampled
    assert metrics["tokens/learned"] == metrics["tokens/sampled"] == round(metrics["length"] * 6) + 2 * 3
    assert any("uncertain_nll" in k for k in metrics)


def test_figures_of_a_step_that_only_reads_are_its_own():
    group = said_group([(5, 5)], [1.0])
    assert summary([group])["reward"] == 1.0
    spoke = said_group([(5, 5)], [0.0], "s")
    spoke.episodes[0].cost["turns"] = 1
    assert summary([group, spoke])["reward"] == 0.0 and summary([group, spoke])["groups"] == 1


# ---- KDRL


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
    assert kl_where(logp=lp, ref_logp=ref, where=torch.ones(3)).tolist() == kl(logp=lp, ref_logp=ref, kind="k2").tolist()


def test_k2_on_samples_has_the_gradient_of_the_reverse_kl_and_k3_has_not():
    """Over a distribution of three tokens, exactly: E_pi of the loss's gradient, samples held fixed, against d KL(pi || teacher)."""
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
    same(of("kdrl", beta=0.0, floor=0.0), with_weigh(of("grpo"), "token_mean"))


def test_kdrl_without_the_reward_is_the_teachers_pull_alone():
    (update,) = of("kdrl").stage.updates
    assert of("kdrl", reward=False).stage.updates[0].terms[0].coef == 0.0
    alone = of("kdrl", reward=False)
    apart = alone.but(updates=(Update(("policy",), update.terms[1:]),))
    same_gradient(Study(alone, groups_of()), Study(apart, groups_of()), 1e-12)


def test_masks_change_what_is_taught():
    plain, masked = Study(of("kdrl", beta=1.0), groups_of()), Study(of("kdrl", beta=1.0, mask="seq"), groups_of())
    with pytest.raises(AssertionError):
        same_gradient(plain, masked)


def test_the_coefficient_falls_from_the_end_of_school():
    method = of("kdrl", lessons=10)
    at = [coefficients(method, s)[1] for s in (0, 10, 11, 50, 90, 200)]
    assert at == pytest.approx([5e-3, 5e-3, 4.95e-3, 3e-3, 1e-3, 1e-3])  # 5e-5 a step
    assert coefficients(of("kdrl", teacher="a/path"), 1)[1] == pytest.approx(4.95e-3)


def test_a_teacher_is_taught_first_and_stands_still_while_the_student_learns(letters):
    loop = loop_of(small("kdrl", lessons=2, batch=3), letters)
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
