"""HierSearch by hand: whom a planner reaches, what of their episodes it is told, and what each level is paid for."""

from __future__ import annotations

import asyncio

import pytest
from support.battery import of
from support.episodes import scripted_context

from selfteach.core import RolloutRequest, Task
from selfteach.core.scoring import score
from selfteach.loop.episode import play
from selfteach.methods.hier_search import NOTHING, Evidence, refined_evidence

HOME, STALE = "the home of Ann is Ulm.", "the home of Ann is Po."
ANN = Task("t", "question: what is the home of Ann?\n", ("Ulm",))
THINK, FIND = "<think>hastily: the home.</think>", "<search>herald: home of Ann</search>"
ULM, PO = (f"<think>so it is {e}.</think><answer> {e}</answer>" for e in ("Ulm", "Po"))
ROLES = ("policy", "local", "web")


def ask(name):
    return f"{THINK}<search>{name}: home of Ann</search>"


def episode(tags, replies, stage=-1, **args):
    """(score, group, context, queries of the stores) of an episode of the planner (stage -1) or a source's agent."""
    asked: list[str] = []

    def experts(query):
        asked.append(query)
        return HOME if query.startswith("scribe") else STALE

    stage = of("hier_search", **args).stages[stage]
    context = scripted_context(
        stage.programs["main"], replies, tags, tools={"experts": experts}, model_roles=ROLES, length=2048
    )
    group = asyncio.run(play(context, [RolloutRequest(ANN, key="t")]))[0]
    (end,) = asyncio.run(score(stage.reward[0], [group], context))["reward"].values()
    return end, group, context, asked


def told(group, context):
    """What the planner was told."""
    (own,) = [t for t in group.episodes[0].trajectories if t.learn is not None]
    return context.whole_text(own.leaf).partition("<information>")[2].partition("</information>")[0]


@pytest.mark.parametrize(
    "name,below,args,text,stores",
    [
        ("scribe", [THINK + FIND, ULM], {}, f"scribe: {HOME}", ["scribe: home of Ann"]),  # whatever name its query has
        ("herald", [THINK + FIND, PO], {}, f"herald: {STALE}", ["herald: home of Ann"]),
        (
            "sage",
            [THINK + FIND, ULM, THINK + FIND, PO],
            {},
            f"scribe: {HOME} herald: {STALE}",  # each piece with its source
            ["scribe: home of Ann", "herald: home of Ann"],
        ),
        ("parrot", [], {}, "there is no such agent; ask one of scribe, herald, sage, as in scribe: query.", []),
        ("sage", [], {"both": False}, "there is no such agent; ask one of scribe, herald, as in scribe: query.", []),
        # an agent that made its answer up has no evidence
        ("scribe", [PO], {}, NOTHING, []),
        (
            "scribe",
            [THINK + FIND, PO],
            {},
            f"scribe: {HOME}",
            ["scribe: home of Ann"],
        ),  # what it found, not what it said
        # without the refiner all of its episode: thought, document, thought, conclusion
        ("scribe", [PO], {"refine": False}, f"scribe: so it is Po. scribe: {STALE}", []),
        (
            "scribe",
            [THINK + FIND, PO],
            {"refine": False},
            f"scribe: hastily: the home. scribe: {HOME} scribe: so it is Po. scribe: {STALE}",
            ["scribe: home of Ann"],
        ),
    ],
)
def test_a_planner_is_told_what_the_agents_found(tags, name, below, args, text, stores):
    _, group, context, asked = episode(tags, [ask(name), *below, ULM], **args)
    assert told(group, context) == text and asked == stores
    roles = {"scribe": ["local"], "herald": ["web"], "sage": ["local", "web"], "parrot": []}[name]
    roles = roles if args.get("both", True) else []
    learned = {t.role: t.learn for t in group.episodes[0].trajectories}
    assert learned == {"policy": "main", **dict.fromkeys(roles)}  # the agents are frozen
    starts = [context.text(t.leaf) for t in group.episodes[0].trajectories if t.learn is None]
    assert len(starts) == len(roles)


@pytest.mark.parametrize(
    "replies,args,value,copied",
    [
        ([ask("scribe"), THINK + FIND, ULM, ULM], {}, 1.0, 0.0),
        ([ask("scribe"), PO, PO], {}, 0.1 / 3, 1.0),  # one of three tools; what the agent made up
        ([ask("scribe"), PO, PO], {"usage": 0.3}, 0.1, 1.0),
        ([ask("scribe"), PO, PO], {"both": False}, 0.1 / 2, 1.0),  # one of two
        ([ask("scribe"), THINK + FIND, ULM, PO], {}, 0.1 / 3, 0.0),  # wrong by itself
        ([ask("herald"), THINK + FIND, PO, PO], {}, 0.1 / 3, 0.0),  # wrong by what was found
        ([ask("scribe"), PO, "<think>" + ULM], {}, 0.0, 0.0),  # a tag that is not closed
        (["<answer> Ulm</answer>"], {}, 0.0, 0.0),  # no thought
        ([ULM], {}, 1.0, 0.0),
    ],
)
def test_a_planner_is_paid_for_the_answer_else_a_little_for_its_tools(tags, replies, args, value, copied):
    end, *_ = episode(tags, replies, **args)
    assert end.value == pytest.approx(value) and end.parts["copied"] == copied


def test_queries_without_an_agent_are_counted(tags):
    end, *_ = episode(tags, [ask("parrot"), ask("scribe"), THINK + FIND, ULM, ULM])
    assert end.parts["invalid"] == 0.5 and end.parts["searches"] == 2.0


@pytest.mark.parametrize("stage,role,store", [(0, "local", "scribe"), (1, "web", "herald")])
def test_each_source_has_an_agent_that_learns_first_and_from_its_own_store(tags, stage, role, store):
    made = of("hier_search", low_steps=7)
    assert made.stages[stage].until == 7 and made.stages[stage].updates[0].params == (role,)
    end, group, _, asked = episode(tags, [THINK + FIND, ULM], stage=stage)
    assert asked == [f"{store}: home of Ann"] and end.value == 1.0
    assert [(t.role, t.learn) for t in group.episodes[0].trajectories] == [(role, "main")]
    assert episode(tags, [THINK + FIND, "<think>so.</think><answer> x</answer>"], stage=stage)[0].value == 0.1
    assert episode(tags, ["<think>so.</think><answer> x</answer>"], stage=stage)[0].value == 0.0


def test_stages_are_hyper_parameters():
    assert [s.name for s in of("hier_search").stages] == ["local", "web", "planner"]
    assert [s.name for s in of("hier_search", low_steps=0).stages] == ["planner"]
    flat = of("hier_search", flat=True)
    assert len(flat.stages) == 1 and flat.stage.programs["main"].args["answerer"] == "experts"


SEA, RIVER, SEAT = "the sea of Cid is Um.", "the river of Bob is Po.", "the seat of Eve is Ro."
FOUND = [[SEA, HOME], [RIVER, SEAT]]  # of two searches


def kept(thoughts, conclusion="", found=FOUND, others=(), share=0.3):
    own = Evidence(thoughts, found, conclusion)
    return refined_evidence(own, [own, *others], share)


def test_the_refiner_keeps_what_is_near_to_the_thought_that_follows():
    # of four documents round(1.2) = 1 by the thoughts, of the other three round(0.9) = 1 by the conclusion (the first)
    assert kept(["look.", "so her home is Ulm.", "so."]) == [SEA, HOME]
    # the thought before does not count: of the sea was only thought before it was found
    assert kept(["the sea of Cid is Um.", "so her home is Ulm.", "so."], "Eve Ro") == [HOME, SEAT]
    # nor that after another search, where the home was not found
    assert kept(["look.", "so.", "so the river is Po, and her home is Ulm."], "Cid") == [SEA, RIVER]


def test_the_rest_is_kept_by_what_all_agents_concluded():
    thoughts = ["look.", "so the home of Ann is Ulm.", "so."]
    assert kept(thoughts, "Po") == [HOME, RIVER]
    assert kept(thoughts, "", others=[Evidence(["so."], [], "seat of Eve Ro")]) == [HOME, SEAT]
    assert kept(thoughts, "Po", others=[Evidence(["so."], [], "seat of Eve Ro")]) == [HOME, SEAT]  # as one text


@pytest.mark.parametrize(
    "share,told",
    [
        (0.1, [HOME]),  # at least one by the thoughts: round(0.4) and round(0.3) are none
        (0.3, [HOME, RIVER]),  # round(1.2) + round(0.9)
        (0.5, [HOME, RIVER, SEAT]),  # 2 by the thoughts, and of the other 2 one
        (1.0, [SEA, HOME, RIVER, SEAT]),
    ],
)
def test_a_share_is_of_all_that_an_agent_found(share, told):
    thoughts = ["look.", "so the home of Ann is Ulm.", "so the seat is Ro."]
    assert kept(thoughts, "Po", share=share) == told
    # of two searches that found one document each, a share of each would keep both
    assert kept(thoughts, "Po", [[HOME], [RIVER]]) == [HOME]
    assert kept(["look.", "so."], "", [[SEA]]) == [SEA]  # one alone is kept
    assert kept(["look.", "so her home is Ulm.", "so."], "", [[SEA, HOME], [HOME]]) == [
        HOME
    ]  # found twice, it counts once


def test_an_agent_that_looks_twice_is_refined_over_both_searches(tags):
    found = iter((STALE, HOME))
    context = scripted_context(
        of("hier_search").stages[-1].programs["main"],
        [ask("scribe"), THINK + FIND, "<think>once more.</think>" + FIND, ULM, ULM],
        tags,
        tools={"experts": lambda query: next(found)},
        model_roles=ROLES,
        length=2048,
    )
    group = asyncio.run(play(context, [RolloutRequest(ANN, key="t")]))[0]
    assert told(group, context) == f"scribe: {HOME}"  # which its last thought has


def test_hyper_parameters_reach_planner_and_reward():
    planner = of("hier_search", turns=5, refine=False, share=0.4, usage=0.2).stages[-1]
    assert planner.programs["main"].args["answerer"].args == {"turns": 5, "refine": False, "share": 0.4, "both": True}
    assert planner.programs["main"].args["turns"] == 5 and planner.reward[0].args == {"usage": 0.2, "both": True}
