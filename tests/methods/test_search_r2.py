"""Search-R2 by hand: an episode is read, cut where it went wrong first, and gone on with; both roles learn."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from support.agents import played
from support.battery import of

from selfteach.core import Ref, RolloutRequest, Task
from selfteach.core.scoring import score
from selfteach.core.search_record import Search
from selfteach.methods.search_r2 import first_wrong, supporting

HOME, MAYOR, NOISE = "the home of Ann is Ulm.", "the mayor of Ulm is Bob.", "the river of Cid is Po."
FOUND = {"home of Ann": HOME, "mayor of Ulm": MAYOR}
TASK = Task("t", "question: what is the mayor of the home of Ann?\n", ("Bob",), tags={"chain": (HOME, MAYOR)})
FIRST, THEN, ASTRAY = (f"<search>{q}</search>" for q in ("home of Ann", "mayor of Ulm", "mayor of Ann"))
BOB, PO = "<answer> Bob</answer>", "<answer> Po</answer>"
YES, NO = "<judge> Yes</judge>", "<judge> No</judge>"


def episode(tags, replies, **args):
    """(stage, context, group, its scores) of an episode in which actor and refiner say this."""
    stage = of("search_r2", turns=3, **args).stage
    engine = lambda query: FOUND.get(query, NOISE)  # noqa: E731
    context, group = played(stage.programs["main"], replies, tags, engine, RolloutRequest(TASK, key="t"))
    group.scores.update(asyncio.run(score(stage.reward[0], [group], context)))
    return stage, context, group, group.scores["reward"]


def texts(context, group):
    """Role -> what was said and told, of its trajectories."""
    out: dict[str, list[str]] = {}
    for t in group.episodes[0].trajectories:
        out.setdefault(t.role, []).append(context.whole_text(t.leaf).removeprefix(TASK.prompt))
    return out


def told(text):
    return f"<information>{text}</information>"


def test_the_episode_is_cut_before_the_step_that_is_named_and_the_rest_is_done_anew(tags):
    replies = [FIRST, ASTRAY, PO, NO, "<cut> 2</cut>", THEN, BOB]
    _, context, group, _ = episode(tags, replies)
    assert group.episodes[0].answer == "Bob"
    said = texts(context, group)
    assert said["policy"] == [FIRST + told(HOME) + THEN + told(MAYOR) + BOB]
    draft = FIRST + told(HOME) + ASTRAY + told(NOISE) + PO
    assert said["draft"] == [draft] and said["refiner"] == [NO + "<cut> 2</cut>"]
    (refiner,) = [context.path(t.leaf) for t in group.episodes[0].trajectories if t.role == "refiner"]
    assert context.tokenizer.decode(refiner.ids[: refiner.prompt]) == TASK.prompt + draft  # all that was done


@pytest.mark.parametrize(
    "verdict",
    [[YES], [NO, "<cut> 4</cut>"], [NO, "<cut> 0</cut>"], [NO, "<cut> two</cut>"], ["hm"], [NO, ""]],
)
def test_what_names_no_step_accepts(tags, verdict):
    _, context, group, _ = episode(tags, [FIRST, ASTRAY, PO, *verdict])
    assert group.episodes[0].answer == "Po" and "draft" not in texts(context, group)


def test_the_answer_is_a_step_too(tags):
    read = "<think>1 yes, 2 yes, 3 no.</think>" + NO  # it may think before it says
    _, context, group, scores = episode(tags, [FIRST, THEN, PO, read, "<cut> 3</cut>", BOB])
    assert group.episodes[0].answer == "Bob"
    assert texts(context, group)["policy"] == [FIRST + told(HOME) + THEN + told(MAYOR) + BOB]
    # three steps, of which the third went wrong first
    assert [s.parts for s in scores.values() if "judged" in s.parts] == [{"judged": 1, "found": 1, "first": 0}]


@pytest.mark.parametrize("trim,kept", [("refiner", FIRST + told(HOME)), ("first", "")])
def test_rejection_begins_at_the_beginning_instead(tags, trim, kept):
    _, context, group, _ = episode(tags, [FIRST, ASTRAY, PO, NO, "<cut> 2</cut>", BOB], trim=trim)
    assert texts(context, group)["policy"] == [kept + BOB]


def test_a_random_cut_is_at_some_step(tags):
    assert of("search_r2", trim="random").stage.programs["main"].args["trim"] == "random"
    _, context, group, _ = episode(tags, [FIRST, ASTRAY, PO, NO, "<cut> 2</cut>", BOB], trim="random")
    begins = ["", FIRST + told(HOME), FIRST + told(HOME) + ASTRAY + told(NOISE)]
    assert texts(context, group)["policy"][0].removesuffix(BOB) in begins


def test_as_many_revisions_as_are_allowed(tags):
    replies = [PO, NO, "<cut> 1</cut>", FIRST, PO, NO, "<cut> 2</cut>", BOB]
    _, context, group, scores = episode(tags, replies, revisions=2)
    assert texts(context, group)["policy"] == [FIRST + told(HOME) + BOB]
    assert len(texts(context, group)["draft"]) == 2 and len(scores) == 3
    _, context, group, _ = episode(tags, [PO], revisions=0)
    assert set(texts(context, group)) == {"policy"}
    _, context, group, _ = episode(tags, ["-"] * 4)  # no answer: it is not read
    assert set(texts(context, group)) == {"policy"}


@pytest.mark.parametrize(
    "replies,density,value,parts",
    [
        # one of two searches found evidence for the answer, which is right: 1 + 0.5
        ([ASTRAY, FIRST, BOB, YES], 1.0, 1.5, {"answer": 1, "density": 0.5, "searches": 2, "revised": 0, "drafted": 1}),
        ([ASTRAY, FIRST, BOB, YES], 0.2, 1.1, {"answer": 1, "density": 0.5, "searches": 2, "revised": 0, "drafted": 1}),
        # evidence for a wrong answer is worth nothing
        ([FIRST, PO, YES], 1.0, 0.0, {"answer": 0, "density": 1, "searches": 1, "revised": 0, "drafted": 0}),
        # what was cut off does not count: of the last version one search, which found evidence
        (
            [FIRST, ASTRAY, PO, NO, "<cut> 2</cut>", BOB],
            1.0,
            2.0,
            {"answer": 1, "density": 1, "searches": 1, "revised": 1, "drafted": 0},
        ),
    ],
)
def test_evidence_counts_where_the_answer_is_right(tags, replies, density, value, parts):
    _, _, group, scores = episode(tags, replies, density=density)
    assert [s.value for s in scores.values()] == pytest.approx([value] * len(scores))  # of the verdict too
    (last,) = [t for t in group.episodes[0].trajectories if t.role == "policy"]
    assert scores[last.leaf].parts == parts


def test_a_verdict_is_learned_and_a_draft_is_not(tags):
    def learned(**args):
        stage, context, group, _ = episode(tags, [FIRST, ASTRAY, PO, NO, "<cut> 2</cut>", THEN, BOB], **args)
        examples = stage.credit[0](groups=[group])
        tree = group.episodes[0].tree
        ids = [[tree.id[tree.begin[s.source[1]] :][s.start : s.stop] for s in e.segments if s.learn] for e in examples]
        return stage, group, examples, ["".join(context.tokenizer.decode(run) for run in runs) for runs in ids]

    assert sorted(learned()[-1]) == sorted([NO + "<cut> 2</cut>", FIRST + THEN + BOB])
    assert learned(joint=False)[-1] == [FIRST + THEN + BOB]
    stage, _, examples, _ = learned()
    right, wrong = [float(e.given["reward"][1]) for e in examples], [0.0, 0.0]  # and an episode that is wrong
    adv = stage.credit[1](reward=[*right, *wrong], group=np.zeros(4, int))["adv"].values
    assert adv == pytest.approx([0.866, 0.866, -0.866, -0.866], abs=1e-3)  # 2, 2, 0, 0: 1 / sqrt(4 / 3)


def test_where_an_episode_went_wrong_first():
    def searches(*found):
        return [Search("", "", text, Ref("e", 0)) for text in found]

    assert first_wrong(searches(HOME, MAYOR), BOB, TASK) == 0
    assert first_wrong(searches(NOISE), BOB, TASK) == 0  # right all the same
    assert [first_wrong(searches(*f), PO, TASK) for f in ((), (NOISE,), (HOME, NOISE), (HOME, MAYOR))] == [1, 1, 2, 3]
    assert first_wrong(searches(MAYOR, HOME), PO, TASK) == 1  # not in this order
    assert first_wrong(searches(HOME, MAYOR, NOISE), PO, TASK) == 3  # one more than there is to find
    assert supporting(searches(HOME, f"{MAYOR} {NOISE}"), TASK) == 1.0
    assert supporting(searches(HOME, HOME, NOISE, f"{HOME} {MAYOR}"), TASK) == 0.5  # what was found before is not new
    assert supporting([], TASK) == 0.0


def test_hyper_parameters_reach_actor_refiner_and_reward():
    stage = of("search_r2", turns=6, revisions=2, trim="first", joint=False, density=0.5).stage
    assert stage.programs["main"].args == {"turns": 6, "revisions": 2, "trim": "first", "joint": False}
    assert stage.reward[0].args == {"density": 0.5}
