"""R1-Searcher++ by hand: the group's reward, advantages over the batch, rollouts rewritten to be remembered."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from support.agents import ANN, ULM, played
from support.battery import of
from support.episodes import scripted_context

from selfteach.core import RolloutGroup, RolloutRequest, Score, TaskSource
from selfteach.core.scoring import score
from selfteach.core.task import Ref
from selfteach.loop.episode import play
from selfteach.methods.r1_searcher_pp import contains_gold, norm_of_answers, recalled, remember, then_remembered

THINK, ASK, RIGHT, WRONG = "<think>t</think>", "<search>q</search>", "<answer> Ulm</answer>", "<answer>x</answer>"


def rewards(tags, *texts: list[str], known: bool | None = None, **args) -> list[Score]:
    """The rewards of a group of episodes with these replies."""
    stage, said = of("r1_searcher_pp", **args).stage, dict.fromkeys(map(str, range(len(texts))), 0)

    def reply(text: str, rng_key: int) -> str:
        number = text[0]
        said[number] += 1
        return texts[int(number)][said[number] - 1]

    context = scripted_context(stage.programs["main"], reply, tags, tools={"search": lambda query: ULM})
    tasks = [replace(ANN, prompt=f"{i}: ", tags={} if known is None else {"known": known}) for i in range(len(texts))]
    groups = asyncio.run(play(context, [RolloutRequest(t, key="k") for t in tasks]))
    group = RolloutGroup(RolloutRequest(tasks[0]), [g.episodes[0] for g in groups], {}, "k")
    return list(asyncio.run(score(stage.reward[0], [group], context))["reward"].values())


def test_the_fewest_searches_are_paid_where_right_answers_disagree(tags):
    texts = [[THINK + RIGHT], [THINK + ASK, RIGHT], [THINK + ASK, ASK, RIGHT], [THINK + WRONG], [RIGHT]]
    # right after 0, 1, 2 and 0 searches: variance 11/16, twice that 1.375
    assert [s.value for s in rewards(tags, *texts)] == pytest.approx([1 + 1.375, 1, 1, 0, 1 + 1.375])
    assert [s.value for s in rewards(tags, *texts, eta=0.5)] == pytest.approx([1.5, 1, 1, 0, 1.5])
    assert [s.value for s in rewards(tags, *texts, eta=0.0)] == [1, 1, 1, 0, 1]
    alike = [[THINK + ASK, RIGHT], [THINK + ASK, RIGHT]]
    assert [s.value for s in rewards(tags, *alike)] == [1, 1]  # nothing to disagree about


def test_a_wrong_form_costs_and_what_was_not_held_is_counted(tags):
    (got,) = rewards(tags, ["<think>t" + RIGHT], known=False)
    assert got.value == 1 - 2.0 and got.parts["recalled_unknown"] == 1.0 and got.parts["searches_unknown"] == 0.0
    (got,) = rewards(tags, ["<think>t" + RIGHT], known=True, penalty=0.5, turns=2, beta=0.0)
    assert got.value == 0.5 and "recalled_unknown" not in got.parts


def test_right_is_to_contain_a_gold_answer():
    assert contains_gold("in Ulm", ANN) and not contains_gold("Ulmer", ANN)
    assert (
        not contains_gold("Ulm and so on", ANN, most=3) and not contains_gold("", ANN) and not contains_gold(None, ANN)
    )
    new = replace(ANN, answer=("New Ulm", "Neu"))
    assert contains_gold("it is the New Ulm", new) and contains_gold("Neu", new)
    assert not contains_gold("Ulm, the new", new) and not contains_gold("New old Ulm", new)  # its words, but not it


def test_a_document_of_its_own_is_a_fault_and_one_of_the_engine_is_none(tags):
    own = THINK + f"<information>{ULM}</information>"
    assert [s.value for s in rewards(tags, [own + RIGHT], [THINK + WRONG])] == [1 - 2.0, 0]
    assert [s.value for s in rewards(tags, [THINK + ASK, RIGHT], [THINK + RIGHT], eta=0.0)] == [1, 1]


def test_settings_are_the_papers():
    stage = of("r1_searcher_pp").stage
    assert stage.programs["main"].args["turns"] == 8 and stage.updates[0].terms[1].coef == 1e-4


def test_advantages_are_over_the_batch_without_what_is_imitated():
    adv = norm_of_answers(reward=[2, 0, 1, 9], role=["policy"] * 3 + ["memory"], batch=[0] * 4, eps=0.0)["adv"].values
    assert adv == pytest.approx([1, -1, 0, 0])  # mean 1, standard deviation 1
    same = norm_of_answers(reward=[1, 1], role=["policy"] * 2, batch=[0, 0])["adv"].values
    assert same == pytest.approx([0, 0]) and np.isnan(
        norm_of_answers(reward=[np.nan, 1], role=["policy"] * 2, batch=[0, 0])["adv"].values[0]
    )


def test_right_rollouts_that_searched_are_remembered():
    def scored(answer: float, form: float, searches: float) -> Score:
        return Score(1.0, {"answer": answer, "format": form, "searches": searches})

    leaves = {
        Ref(f"e{i}", 0): s for i, s in enumerate([scored(1, 1, 1), scored(0, 1, 1), scored(1, 0, 1), scored(1, 1, 0)])
    }
    group = RolloutGroup(RolloutRequest(ANN), [], {"reward": leaves}, "g")
    source = TaskSource("t", lambda i: ANN, ())
    given = {"n": 2, "rollouts": 3, "source": source, "seed": 0, "state": 0}
    first, state = then_remembered(finished_rounds=[], **given)
    assert [(r.n, r.program) for r in first] == [(3, "main")] * 2 and state == 2
    second, _ = then_remembered(finished_rounds=[[group]], **given)
    assert [(r.program, r.help["output"], r.cause) for r in second] == [("memory", Ref("e0", 0), "g")]
    assert then_remembered(finished_rounds=[[group], []], **given)[0] == []


def test_what_was_found_is_recalled_and_taught(tags):
    replies = ["<decision> search</decision><think>t</think><search>home of Ann</search>", RIGHT]
    programs = of("r1_searcher_pp", mu=0.1).stage.programs
    context, group = played(programs["main"], replies, tags)
    again = replace(context, programs={"memory": remember(opening="I know: ")})
    leaf = group.episodes[0].trajectories[0].leaf
    request = RolloutRequest(ANN, program="memory", key="m", help={"output": leaf})
    (episode,) = asyncio.run(play(again, [request], round_=1))[0].episodes
    want = f"<decision> memory</decision><think>I know: {ULM}</think>{RIGHT}"
    assert episode.answer == want == recalled(replies[0] + f"<information>{ULM}</information>" + RIGHT, "I know: ")
    assert [(t.learn, t.role) for t in episode.trajectories] == [("memory", "memory")]


def test_memories_can_be_left_out():
    terms = of("r1_searcher_pp", beta=0.0).stage.updates[0].terms
    assert [(t.fn.name, t.on, t.coef) for t in terms] == [("clipped_ratio", ("main",), 1.0), ("nll", ("memory",), 0.1)]
    without = of("r1_searcher_pp", mu=0.0, beta=0.0).stage
    assert list(without.programs) == ["main"] and len(without.updates[0].terms) == 1
