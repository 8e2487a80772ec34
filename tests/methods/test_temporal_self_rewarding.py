"""Temporal Self-Rewarding by hand: which answers make a pair, who samples and who judges, and what follows what."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from support.battery import of
from support.episodes import scripted_context

from selfteach.core import RolloutGroup, RolloutRequest, Task, block
from selfteach.core.scoring import score
from selfteach.credit.composers import preference_pairs
from selfteach.loop.episode import play
from selfteach.methods.temporal_self_rewarding import Judged, judged_pair, pair_of, pair_scores
from selfteach.rollout.judging import JUDGE

ROLES = ("policy", "first", "present", "future")


@block
def is_ninety(*, answer: Any, task: Task) -> bool:
    """A judge of the truth."""
    return answer == "90" == task.answer[0]


TASK = Task("t", "Q", ("90",), judges={"adequacy": is_ninety()})


def of_scores(role: str, *scores: float) -> list[Judged]:
    return [Judged(None, f"{role}{s}", s, role) for s in scores]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("present", "first", "future", "chosen", "rejected"),
    [
        ((0.4, 0.6), (), (), "present0.6", "present0.4"),  # Self-Rewarding
        ((0.4, 0.6), (0.2, 0.9), (), "present0.6", "first0.2"),  # the worst of the past is worse
        ((0.4, 0.6), (0.4, 0.9), (), "present0.6", "present0.4"),  # the past is no worse, and what is good in it unused
        ((0.4, 0.6), (0.2,), (0.8, 0.1), "future0.8", "first0.2"),  # the future is better; its worst is nobody's
        ((0.4, 0.6), (0.2,), (0.6,), "present0.6", "first0.2"),  # and where it is not, it is left
        ((math.nan, 0.4, 0.6, math.nan), (math.nan,), (math.nan,), "present0.6", "present0.4"),  # unread: left out
        ((math.nan, 0.6), (math.nan, 0.2), (math.nan, 0.8), "future0.8", "first0.2"),
    ],
)
def test_which_answers_make_a_pair(present: Any, first: Any, future: Any, chosen: str, rejected: str):
    found = pair_of(of_scores("present", *present), of_scores("first", *first), of_scores("future", *future))
    assert found is not None and [j.answer for j in found] == [chosen, rejected]


def played(tokenizer: Any, said: dict[str, list[str]], **how: Any) -> tuple[RolloutGroup, set[tuple[str, float]], Any]:
    """The episode of one question, where each model gives its answers in turn and a judge says the number that it
    reads; and who judged, at which temperature.
    """
    left = {role: iter(answers) for role, answers in said.items()}

    def reply(text: str, key: object) -> str:
        if JUDGE in text:
            number = text.removeprefix(TASK.prompt).partition("\n")[0].strip()
            return f"<answer> {number if number.isdigit() else 'what?'}</answer>"
        answer = next(left[next(role for role, _, _, its_key in context.engine.calls if its_key == key)])
        return f"<answer> {answer}</answer>" if answer else "none"

    context = scripted_context(judged_pair(samples=2, **how), reply, tokenizer, model_roles=ROLES)
    (group,) = asyncio.run(play(context, [RolloutRequest(TASK, 1)]))
    group.scores.update(asyncio.run(score(pair_scores(), [group], context)))
    judges = {(role, sampling.temperature) for role, text, sampling, _ in context.engine.calls if JUDGE in text}
    return group, judges, context


def told(group: RolloutGroup) -> dict[str, tuple[float | None, dict[str, float]]]:
    """Score and parts of the pair, by role."""
    (episode,) = group.episodes
    found = {t.role: group.scores["reward"].get(t.leaf) for t in episode.trajectories}
    return {role: (s.value, dict(s.parts)) for role, s in found.items() if s is not None}


def test_a_pair_of_past_and_future_is_learned_and_nothing_else(tags):
    said = {"present": ["50", "70"], "first": ["80", "20"], "future": ["90", "10"]}
    group, judges, context = played(tags, said, future=True)
    assert judges == {("present", 0.0)}, "the present model judges all, greedily"
    (episode,) = group.episodes
    learned = [(t.role, context.text(t.leaf)) for t in episode.trajectories if t.learn is not None]
    assert learned == [("chosen", "<answer> 90</answer>"), ("rejected", "<answer> 20</answer>")]
    assert [t.role for t in episode.trajectories].count("candidate") == 4
    found = told(group)
    assert found["chosen"] == (
        0.9,
        pytest.approx({"gap": 0.7, "paired": 1, "from_past": 1, "from_future": 1} | {"chosen_right": 1}),
    )
    assert found["rejected"] == (0.2, {"rejected_right": 0.0})
    first, second = preference_pairs(groups=[group])
    assert (
        first.preferred_over == (1,)
        and second.preferred_over == ()
        and {first.model_role, second.model_role} == {"policy"}
    )


def test_by_itself_the_present_makes_both_and_no_difference_teaches_nothing(tags):
    group, _, _ = played(tags, {"present": ["70", "50"]}, past=False)
    assert told(group)["chosen"][1]["from_past"] == 0.0 and told(group)["rejected"][0] == 0.5
    group, _, _ = played(tags, {"present": ["70", "70"], "first": ["70", "90"]})
    assert preference_pairs(groups=[group]) == []
    assert told(group)["chosen"][1]["gap"] == told(group)["chosen"][1]["paired"] == 0.0
    # what stands in no tags is worth nothing
    group, _, _ = played(tags, {"present": ["70", ""], "first": ["80", "90"]})
    assert told(group)["rejected"][0] == 0.0


def test_an_answer_that_is_judged_by_no_number_is_in_no_pair(tags):
    # 0 for what the judge cannot say would make x the rejected one, over the 50
    group, _, context = played(tags, {"present": ["70", "x"], "first": ["x", "50"], "future": ["x", "x"]}, future=True)
    learned = {t.role: context.text(t.leaf) for t in group.episodes[0].learned}
    assert learned == {"chosen": "<answer> 70</answer>", "rejected": "<answer> 50</answer>"}
    assert told(group)["chosen"][1]["gap"] == pytest.approx(0.2) and len(preference_pairs(groups=[group])) == 2
    # one alone that can be read: nothing to compare it with
    group, _, _ = played(tags, {"present": ["x", "70"]}, past=False)
    assert [t.role for t in group.episodes[0].learned] == ["chosen"] and preference_pairs(groups=[group]) == []
    # none of the present model's: no pair, whatever the others have
    group, _, _ = played(tags, {"present": ["x", "x"], "first": ["20", "30"], "future": ["90", "x"]}, future=True)
    (episode,) = group.episodes
    assert (episode.status, episode.answer, episode.learned, told(group)) == ("done", None, [], {})
    assert [t.role for t in episode.trajectories].count("candidate") == 6


def test_a_round_is_two_runs_from_the_same_policy():
    past, ahead = of("temporal_self_rewarding").stages
    assert past.enter == {"present": "policy"} and ahead.enter == {"future": "policy", "policy": "present"}
    assert past.reset == ahead.reset == ("policy",) and of("temporal_self_rewarding", rounds=3).repeat == 3
    assert [s.programs["main"].args.get("future", False) for s in (past, ahead)] == [False, True]
    plain = of("temporal_self_rewarding", past=False, future=False)
    assert (
        len(plain.stages) == 1 and "future" not in plain.models and plain.stage.programs["main"].args["past"] is False
    )
    said = of("temporal_self_rewarding", instruction="How good?").stages
    assert [s.programs["main"].args["instruction"] for s in said] == ["How good?"] * 2
    (term,) = past.updates[0].terms
    assert term.fn.reads == {"ref_logp": "present_logp"}, "the reference is the present policy, not the first"
