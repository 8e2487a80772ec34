"""SSR-Zero by hand: who judges what, what a score is worth, and what is logged of the judge."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.battery import of
from support.episodes import full_text, scripted_context

from selfteach.core import BadValue, Block, RolloutRequest, Score, Task
from selfteach.core.scoring import score
from selfteach.loop.episode import play
from selfteach.methods.ssr_zero import agreement, answer_and_judge, own_score
from selfteach.reward.overlap import word_f1
from selfteach.rollout.judging import JUDGE
from selfteach.tasks.translation import adequacy

TASK = Task("t", "translate: old cat =\n", ("miro veto",), judges={"adequacy": adequacy()})


def judged(tokenizer: Any, scores: dict[str, str], program: Block | None = None, **reward: Any) -> dict[str, Score]:
    """The reward of each answer, where the judge says these scores of them."""
    answers = iter(scores)

    def reply(text: str, key: object) -> str:
        del key
        if JUDGE not in text:
            return f"<answer> {answer}</answer>" if (answer := next(answers)) != "?" else "?"
        asked = text.removeprefix(TASK.prompt).partition("\n")[0].strip()
        return f"<think>so so</think><answer> {scores[asked]}</answer>"

    context = scripted_context(program or answer_and_judge(), reply, tokenizer)
    (group,) = asyncio.run(play(context, [RolloutRequest(TASK, len(scores))]))
    found = asyncio.run(score(own_score(**reward), [group], context))["reward"]
    return {e.answer: found[t.leaf] for e in group.episodes for t in e.trajectories if t.learn is not None}


def test_an_answer_is_worth_the_score_that_the_policy_gives_it(tags):
    found = judged(tags, {"miro veto": "70", "miro lisa": "100", "lisa lisa": "none", "?": "100"})
    assert {a: s.value for a, s in found.items()} == {"miro veto": 0.7, "miro lisa": 1.0, "lisa lisa": 0.0, "?": 0.0}
    # the truth is told beside it: two, one, none of two words. Of three pairs the first is the wrong way round.
    assert [found[a].parts["adequacy"] for a in ("miro veto", "miro lisa", "lisa lisa")] == [1.0, 0.5, 0.0]
    assert found["miro lisa"].parts["inflation"] == 0.5 and found["miro veto"].parts["agreement"] == 2 / 3
    assert found["miro veto"].parts["judged"] == 1.0
    assert found["lisa lisa"].parts["judged"] == 0.0 and "score" not in found["?"].parts


def test_a_metric_beside_it_has_its_share():
    assert agreement([(0.5, 0.5), (0.7, 0.5)]) is None and agreement([(0.5, 0.5), (0.7, 0.6)]) == 1.0
    with pytest.raises(BadValue, match="own_score: a share of no metric"):
        asyncio.run(own_score(share=0.5)(group=None, context=None, deadline=1.0))


def test_half_of_the_metric(tags):
    # the words of "veto miro" are all right and at wrong places: metric 1, score 0
    found = judged(tags, {"veto miro": "0", "miro veto": "100"}, metric=word_f1(), share=0.5)
    assert found["veto miro"].value == 0.5 and found["miro veto"].value == 1.0
    assert found["veto miro"].parts["metric"] == 1.0 and found["veto miro"].parts["adequacy"] == 0.0


def test_the_judge_reads_question_and_answer_greedily_and_is_not_learned(tags):
    replies = iter(["<answer> miro</answer>", "<answer> 50</answer>"])
    context = scripted_context(answer_and_judge(), lambda *_: next(replies), tags)
    (group,) = asyncio.run(play(context, [RolloutRequest(TASK, 1)]))
    (episode,) = group.episodes
    judge, answer = episode.trajectories
    assert (judge.learn, judge.role, answer.learn) == (None, "judge", "main")
    assert full_text(episode, tags, 0) == f"{TASK.prompt}miro\n{JUDGE}\n<answer> 50</answer>"
    tree = episode.tree
    used = [tree.samplings[tree.sampling[t.leaf.node]].temperature for t in (judge, answer)]
    assert used == [0.0, 1.0]


def test_who_judges_and_what_it_sees(tags):
    (asked, told) = (
        of("ssr_zero", instruction="How good?", temperature=0.5).stage.programs["main"].args[n]
        for n in ("instruction", "temperature")
    )
    assert (asked, told) == ("How good?", 0.5)
    assert of("ssr_zero", judge="start").stage.programs["main"].args["model_role"] == "ref"
    assert of("ssr_zero", share=1.0).stage.programs["main"].name == "single"
    seen: list[str] = []
    blind = answer_and_judge(sees_question=False)
    context = scripted_context(blind, lambda text, key: seen.append(text) or "<answer> 5</answer>", tags)
    asyncio.run(play(context, [RolloutRequest(TASK, 1)]))
    assert seen == [TASK.prompt, f"5\n{JUDGE}\n"]
