"""ProRL by hand: its loss, when a stage is over, and what begins anew then."""

from __future__ import annotations

import numpy as np
import pytest
from support.battery import of, same
from support.by_hand import token_gradient
from support.episodes import single_turn_group
from support.loops import advance, loop_of

from selfteach.core import History
from selfteach.methods.prorl import stalled

NEW = {"began": 0, "ended": 0}


def history(rewards: list[float], kl: float = 0.0) -> History:
    return History(step=len(rewards), scalars={"reward/mean": rewards, "policy/loss/kl": [kl] * len(rewards)})


def test_the_loss_is_a_clip_with_a_higher_upper_bound_and_a_pull_to_the_reference():
    group = single_turn_group([(5, 5), (6,)], [1.0, 0.0])
    a = 0.5 / np.sqrt(0.5)  # advantages +-a, of two answers
    live = [-1 + np.log(1.35), -1 + np.log(1.45), -1.0]  # ratios 1.35 (below 1.4: not clipped), 1.45 (clipped), 1
    pull = 0.1 * (np.array(live) + 2.0) / 3  # beta (logp - ref_logp), the mean over three tokens
    got = token_gradient(of("prorl", beta=0.1), [group], live, ref_logp=np.full(3, -2.0))
    assert got == pytest.approx(np.array([-1.35 * a / 3, 0.0, a / 3]) + pull, rel=1e-5)


def test_a_stage_is_over_where_the_reward_has_not_risen_or_the_policy_is_far():
    flat, rising = [0.2, 0.2, 0.205, 0.205], [0.2, 0.2, 0.3, 0.3]
    given = {"window": 2, "gain": 0.01, "state": NEW}
    assert not stalled(history=history(rising), **given)[0]
    assert stalled(history=history(flat), **given) == (True, {"began": 4, "ended": 1})
    assert stalled(history=history(rising, kl=0.6), **given, far=0.5)[0]
    assert not stalled(history=history(rising, kl=0.6), **given, far=0.7)[0]
    assert not stalled(history=history(flat[:3]), **given)[0], "two windows at least"
    later = {**given, "state": {"began": 4, "ended": 1}}
    assert not stalled(history=history(rising + flat[:3]), **later)[0], "two windows since it began"
    assert stalled(history=history(rising + flat), **later) == (True, {"began": 8, "ended": 2})
    assert not stalled(history=history(rising + flat), **later, most=1)[0], "no more resets are left"


def test_a_reset_makes_the_policy_its_own_reference_and_drops_the_moments(letters):
    made = of("prorl", groups=4, rollouts=4, minibatches=1, window=1, gain=9.0, resets=2, rounds=1)
    program = of("bandit_reinforce", paid="spread").stage
    made = made.replace(programs=program.programs, reward=program.reward)
    loop = loop_of(made, letters)
    seen = list[tuple[int, float]]()
    for _ in range(8):
        advance(loop, 1)
        taken = max(float(t) for n, t in loop.learner.optimisers.tensors().items() if n.endswith("|step"))
        distance = sum(
            float((p - loop.learner.weights("ref")[n]).abs().sum()) for n, p in loop.learner.weights("policy").items()
        )
        seen.append((int(taken), distance))
    # two windows of one step each, twice; then on to the end
    assert [taken for taken, _ in seen] == [1, 2, 1, 2, 1, 2, 3, 4]
    assert seen[2][1] < seen[1][1] and seen[4][1] < seen[3][1], "the reference is where the stage began"


def test_without_resets_it_is_one_stage_and_without_a_penalty_it_needs_no_reference():
    plain = of("prorl", resets=0, beta=0.0)
    assert plain.repeat == 1 and plain.stage.until is None and not plain.stage.reset
    assert not of("prorl", beta=0.0).stage.enter and not of("prorl", moments=False).stage.reset
    same(of("prorl", resets=0, beta=0.0, high=0.28, temperature=1.0), of("dapo", limit=10_000, cache=1))
