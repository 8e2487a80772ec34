"""Qwen2.5-Math by hand: the reward model's loss, what is imitated, questions in reach, RL's reward, the best of several
answers.
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import torch
from support.battery import of
from support.by_hand import token_gradient
from support.episodes import scripted_context, single_turn_group

from selfteach.core import (
    BadValue,
    Episode,
    Ref,
    RolloutGroup,
    RolloutRequest,
    Score,
    Task,
    TaskSource,
    Trajectory,
    Tree,
)
from selfteach.core.blocks import measures
from selfteach.loop.episode import play
from selfteach.methods.qwen_math import (
    best_right,
    combined,
    count_right,
    first_right,
    has_label,
    label_or_vote,
    labelled_tasks,
    listwise,
    rm_best,
    within_reach,
)
from selfteach.reward.answer import exact_match

SOURCE = TaskSource("t", lambda i: Task(f"q{i}", f"question {i}", ("1",)), ())


def test_the_reward_models_loss_is_the_mean_over_pairs_of_right_and_wrong():
    scores = torch.tensor([1.0, 3.0, 0.0, 9.0, 7.0])
    rows = {"scalar_after": scores, "seq": torch.arange(5), "group": torch.tensor([0, 0, 0, 0, 1])}
    rows |= {"reward": torch.tensor([1.0, 1.0, 0.0, 0.0, 1.0])}
    gaps = np.array([1.0 - 0.0, 1.0 - 9.0, 3.0 - 0.0, 3.0 - 9.0])  # two right, two wrong; the other group has no pair
    assert listwise(**rows).tolist() == pytest.approx([np.log1p(np.exp(-gaps)).mean(), 0.0], rel=1e-5)
    assert measures(listwise(), rows)["reward_accuracy"].tolist() == [True, False, True, False]


def test_the_reward_model_learns_from_mixed_groups_alone():
    judge = of("qwen_math").stages[0]
    groups = [
        single_turn_group([(5, 5), (6,)], [1.0, 0.0], "a"),
        single_turn_group([(7,), (8,)], [1.0, 1.0], "b"),
    ]
    made = of("qwen_math").replace(**{n: getattr(judge, n) for n in ("credit", "updates")})
    got = token_gradient(made, groups, [9.0, 0.0, 0.0], name="scalar_after")  # of a text's last token alone
    assert got == pytest.approx([0.0, -0.5, 0.5])  # sigmoid(0 - 0)
    assert judge.enter == {"rm": "policy"} and judge.reset == ("rm",), "begun anew from the policy in every round"


def test_what_the_reward_model_likes_most_among_right_answers_is_imitated():
    rows: dict[str, Any] = {"seq": [0, 0, 1, 2, 3, 4], "group": [0, 0, 0, 0, 1]}
    got = best_right(reward=[1.0, 1.0, 1.0, 0.0, 0.0], rm_scalar_after=[8.0, 1.0, 2.0, 3.0, 9.0, 9.0], **rows, best=2)
    assert got["keep"].values.tolist() == [0.0, 1.0, 1.0, 0.0, 0.0]  # 1 of the first, at its end; wrong ones never
    plain = first_right(reward=[1.0, 1.0, 1.0, 0.0, 0.0], group=rows["group"], best=2)
    assert plain["keep"].values.tolist() == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert [s.credit[1].name for s in of("qwen_math", ranked=False).stages if s.name[:7] == "imitate"] == [
        "first_right"
    ] * 2


def answered(task: Task, *answers: str) -> RolloutGroup:
    episodes, scores = [], {}
    for n, answer in enumerate(answers):
        tree = Tree()
        at = Ref(f"{task.id}/{n}", tree.add(-1, (1, 2), action_mask=True, logp=np.zeros(2), version=0))
        episodes.append(Episode(at.episode, tree, [Trajectory(at, "policy", task.id)], answer=answer))
        scores[at] = Score(float(answer == task.answer[0]))
    request = RolloutRequest(task, len(answers), key=task.id, help={"number": int(task.id[1:])})
    return RolloutGroup(request, episodes, {"reward": scores}, task.id)


def test_without_a_label_the_majority_is_right():
    context: Any = None
    known, unknown = (
        next(t for i in range(99) if has_label(t := SOURCE.train(i), 0.5) is yes) for yes in (True, False)
    )

    def paid(task: Task, unlabelled: float) -> list[float | None]:
        reward = label_or_vote(judge=exact_match(), unlabelled=unlabelled)
        group = answered(task, "2", "1", "2")  # the label is 1, the vote 2
        found = asyncio.run(reward(group=group, context=context, deadline=9.0))["reward"]
        return [found[e.trajectories[0].leaf].value for e in group.episodes]

    assert paid(known, 0.5) == paid(unknown, 0.0) == [0.0, 1.0, 0.0]
    assert paid(unknown, 0.5) == paid(known, 1.0) == [1.0, 0.0, 1.0]
    shares = [np.mean([has_label(SOURCE.train(i), share) for i in range(2000)]) for share in (0.0, 0.25, 1.0)]
    assert shares == pytest.approx([1.0, 0.75, 0.0], abs=0.03)


def test_the_reward_model_and_rl_are_on_questions_with_a_label():
    asked, state = labelled_tasks(n=5, rollouts=6, finished_rounds=[], source=SOURCE, seed=0, state=0, unlabelled=0.5)
    more, _ = labelled_tasks(n=5, rollouts=6, finished_rounds=[], source=SOURCE, seed=0, state=state, unlabelled=0.5)
    assert all(has_label(r.task, 0.5) and r.task == SOURCE.train(r.help["number"]) for r in [*asked, *more])
    assert len({r.task.id for r in [*asked, *more]}) == 10 and {r.n for r in asked} == {6}
    assert labelled_tasks(n=5, rollouts=6, finished_rounds=[[]], source=SOURCE, seed=0, state=3) == ([], 3)
    with pytest.raises(BadValue, match="of 1000 questions none has a label; give a smaller unlabelled"):
        labelled_tasks(n=5, rollouts=6, finished_rounds=[], source=SOURCE, seed=0, state=0, unlabelled=1.0)
    used = [(s.name, s.select.name, str(s.reward[0])) for s in of("qwen_math", unlabelled=0.4).stages]
    assert used[1:] == [
        ("imitate_1", "uniform", "label_or_vote(judge=exact_match(), unlabelled=0.4)"),
        ("judge_2", "labelled_tasks", "exact_match()"),
        ("imitate_2", "uniform", "label_or_vote(judge=exact_match(), unlabelled=0.4)"),
        ("probe", "labelled_tasks", "exact_match()"),
        ("main", "within_reach", "exact_match()"),
    ]


def test_rl_is_on_questions_that_are_neither_too_easy_nor_too_hard():
    rights = {"q3": "1110", "q4": "1000", "q5": "0000", "q6": "1111", "q8": "1100"}
    groups = [answered(SOURCE.train(int(name[1:])), *answers) for name, answers in rights.items()]
    examples, state = count_right(groups=groups, state={"right": {}, "asked": 0})
    assert not examples and state["right"] == {"3": 3, "4": 1, "5": 0, "6": 4, "8": 2}
    logged = dict[str, float]()

    def ask(n: int, state: Any, **bounds: int) -> tuple[list[str], Any]:
        more: dict[str, Any] = {"rollouts": 8, "finished_rounds": [], "source": SOURCE, "seed": 0}
        out, after = within_reach(n=n, **more, log_metrics=logged.update, state=state, **bounds)
        return [r.task.id for r in out], after

    first, after = ask(2, state, low=2, high=3)
    again, _ = ask(2, after, low=2, high=3)
    assert sorted(first) == sorted(again) == ["q3", "q8"] and logged["within_reach"] == 2 / 5
    assert sorted(ask(3, state, low=1, high=3)[0]) == ["q3", "q4", "q8"]
    assert sorted(ask(5, state, low=9, high=9)[0]) == sorted(rights), "where none is within reach, all"
    assert [s.name for s in of("qwen_math", tried=0, rounds=1).stages] == ["judge_1", "imitate_1", "main"]
    assert of("qwen_math", tried=0).stage.select.name == "labelled_tasks"
    probe = of("qwen_math", tried=7, questions=9).stages[-2]
    assert (probe.rollouts, probe.groups, probe.until) == (7, 9, 1)


def test_every_right_answer_is_worth_more_than_every_wrong_one():
    rows: dict[str, Any] = {"rm_scalar_after": [-50.0, 2.0, 50.0, 2.0], "seq": [0, 1, 2, 3]}
    got = combined(reward=[1.0, 1.0, 0.0, 0.0], **rows, alpha=0.5)["reward"].values
    liked = 1 / (1 + np.exp(-1.0))  # sigmoid(0.5 * 2)
    assert got == pytest.approx([0.0, liked, 0.0, liked - 1], abs=1e-9)
    alone = combined(reward=[1.0, 1.0, 0.0, 0.0], **rows, alpha=0.5, paid="model")["reward"].values
    assert alone == pytest.approx([0.0, liked, 1.0, liked], abs=1e-9)  # the best is a wrong one
    assert [p.name for p in of("qwen_math", paid="rule").stage.credit] == ["per_trajectory", "norm"]


def test_the_stages_are_rounds_of_judging_and_imitating_and_then_rl():
    made = of("qwen_math", rounds=2, judge_steps=3, imitate_steps=1)
    stages = [("judge_1", 3), ("imitate_1", 1), ("judge_2", 3), ("imitate_2", 1), ("probe", 1), ("main", None)]
    assert [(s.name, s.until) for s in made.stages] == stages
    assert made.stage.enter == {"ref": "policy"} and of("qwen_math", beta=0.0).stage.enter == {}
    assert [s.name for s in of("qwen_math", rounds=1, imitate_steps=0).stages] == ["judge_1", "probe", "main"]
    assert [s.rollouts for s in of("qwen_math", answers=5).stages] == [5, 8, 5, 8, 8, 8]


def test_the_best_of_several_answers_is_the_one_that_is_liked_most(letters: Any):
    texts = ["<answer>a</answer>", "<answer>bb</answer>", "<answer>c</answer>"]
    context = scripted_context(rm_best(k=3), texts, letters, model_roles=("policy", "rm"))
    engine = context.engine
    liked = {"a": 0.1, "bb": 0.7, "c": 0.3}

    async def score(model_role: str, before: Any, tokens: Any, want: Any) -> Any:
        assert model_role == "rm"
        text = letters.decode(tokens).removeprefix("<answer>").removesuffix("</answer>")
        return {"scalar_after": np.array([9.0] * (len(tokens) - 1) + [liked[text]])}

    engine.score = score
    (group,) = asyncio.run(play(context, [RolloutRequest(Task("t", "say"))]))
    assert group.episodes[0].status != "error", group.episodes[0].why
    assert group.episodes[0].answer == "bb"
