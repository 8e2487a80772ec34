"""DeepResearcher by hand: a web that is not to be relied on, what is read of it, and what an episode is worth."""

from __future__ import annotations

import asyncio

import pytest
from support.agents import ANN, ULM, played, scored
from support.battery import of

from selfteach.core import BadValue, Document, RolloutGroup, RolloutRequest, Task, TaskSource
from selfteach.core.scoring import score
from selfteach.core.tool_calls import ToolText
from selfteach.methods.deep_researcher import NOTHING, Page, not_by_heart, passages, read_page, web, web_research
from selfteach.rollout.search import closed_book
from selfteach.tasks.factworld import factworld
from selfteach.tools.pages import NO_ANSWER
from selfteach.tools.search import search

GUILD, RIVER, BONN = "the guild of Ann is Smiths.", "the river of Ulm is Po.", "the home of Ann is Bonn."
THINK, ULM_IT_IS = "<think>so.</think>", "<answer> Ulm</answer>"
RIGHT, WRONG = THINK + ULM_IT_IS, THINK + "<answer> Po</answer>"
ASK, AGAIN = f"{THINK}<search>home of Ann</search>", f"{THINK}<search>Ann home</search>"
TASK = Task("t", ANN.prompt, ("Ulm",), tags={"chain": (ULM,)})
DOCUMENTS = (("Ann", GUILD), ("Ann", ULM), ("Ulm", RIVER), ("Bob", "the home of Bob is Ulm."))


def source(**more):
    corpus = tuple(Document(*d) for d in DOCUMENTS)
    tools = {"search": search(top=1, noise=0.9)}
    return TaskSource("small", train=lambda i: ANN, test=(ANN,), corpus=lambda: corpus, tools=tools, **more)


@pytest.mark.parametrize(
    "segments,patience,note",
    [
        ([GUILD, ULM, BONN], 2, ULM),  # one of two words, then both, where reading stops
        ([GUILD, RIVER], 2, GUILD),  # the nearest so far
        ([RIVER, RIVER, ULM], 2, ""),  # two segments that have neither word: the page is given up
        ([RIVER, RIVER, ULM], 3, ULM),
        ([f"{RIVER} {GUILD}", RIVER, ULM], 2, ULM),  # what is useful makes up for what is not
        ([], 2, ""),
    ],
)
def test_a_page_is_read_until_it_says_what_was_asked_or_nothing_to_the_point(segments, patience, note):
    assert read_page("home of Ann", segments, patience=patience) == note


def test_only_what_is_nearer_than_the_last_note_is_new():
    assert read_page("home of Ann", [GUILD, BONN], note=ULM) == ULM
    assert read_page("home of Ann", [GUILD], note="the mentor of Ann is Cid.") == "the mentor of Ann is Cid."
    assert read_page("home of Ann", [GUILD], relevance=0.6) == ""


def test_a_page_is_what_documents_say_of_one_thing_a_sentence_to_a_segment():
    found = web(irrelevant=0.0, broken=0.0, adverts=0, results=1)(source=source())
    assert found("home of Ann") == [Page("Ann", (GUILD, ULM))]
    (page,) = web(irrelevant=0.0, broken=0.0, adverts=2, results=1)(source=source())("home of Ann")
    other = {RIVER, "the home of Bob is Ulm."}
    for segment, own in zip(page.segments, (GUILD, ULM), strict=True):
        *before, last = [s.strip() + "." for s in segment.split(".") if s.strip()]
        assert last == own and len(before) == 2 and other.issuperset(before)


def test_a_web_is_wrong_as_often_as_it_is_said_and_always_in_the_same_way():
    world = factworld(entities=100, relations=4, n_test=20)
    queries = [task.tags["keywords"][0][0] for task in (world.train(i) for i in range(150))]
    right = {q: web(irrelevant=0.0, broken=0.0, results=1)(source=world)(q)[0] for q in queries}
    find = web(irrelevant=0.4, broken=0.0, results=1)(source=world)
    other = sum(find(q)[0].title != right[q].title for q in right) / len(right)
    assert 0.25 < other < 0.5 and [find(q) for q in right] == [find(q) for q in right]
    closed = web(irrelevant=0.0, broken=0.3, results=1)(source=world)
    assert 0.15 < sum(not closed(q)[0].segments for q in right) / len(right) < 0.45
    plain = passages()(source=world)
    assert all(t.tags["chain"][0] == plain(t.tags["keywords"][0][0]) for t in (world.train(i) for i in range(40)))
    with pytest.raises(BadValue, match="has no documents"):
        web()(source=TaskSource("none", train=lambda i: ANN, test=()))


@pytest.mark.parametrize(
    "reader,pages,told",
    [
        ("segments", [Page("Ulm", (RIVER,)), Page("Ann", (GUILD, ULM))], ULM),
        ("segments", [Page("Ann", ()), Page("Ulm", (RIVER,))], NOTHING),
        ("pages", [Page("Ulm", (RIVER,)), Page("Ann", (GUILD, ULM))], f"{RIVER} {GUILD} {ULM}"),
        ("pages", [Page("Ann", ())], NOTHING),
    ],
)
def test_the_agent_is_told_a_note_or_all_that_the_pages_say(tags, reader, pages, told):
    program = of("deep_researcher", reader=reader).stage.programs["main"]
    context, group = played(program, [ASK, RIGHT], tags, engine=lambda query: pages, tool="web")
    assert f"<information>{told}</information>" in context.whole_text(group.episodes[0].trajectories[0].leaf)
    assert program.args["answerer"] == web_research(reader=reader)


def test_an_engine_that_did_not_answer_is_said_and_counted(tags):
    silent = ToolText(NO_ANSWER, {"search/failed": 1.0})
    program = of("deep_researcher").stage.programs["main"]
    context, group = played(program, [ASK, RIGHT], tags, engine=lambda query: silent, tool="web")
    (episode,) = group.episodes
    assert f"<information>{NO_ANSWER}</information>" in context.whole_text(episode.trajectories[0].leaf)
    assert episode.answer == "Ulm" and episode.cost["search/failed"] == 1


def episode(tags, replies, engine=lambda query: [Page("Ann", (ULM,))], **args):
    stage = of("deep_researcher", **args).stage
    return scored(stage.reward[0], stage.programs["main"], replies, tags, TASK, engine=engine, tool="web")


@pytest.mark.parametrize(
    "replies,value",
    [
        ([ASK, RIGHT], 1.0),
        ([ASK, THINK + "<answer> the Ulm lake</answer>"], 2 / 3),  # of two words one is right
        ([ASK, WRONG], 0.0),
        ([RIGHT], 1.0),  # form asks for no search
        (["<think>so." + ULM_IT_IS], -1.0),  # a thought left open
        ([ULM_IT_IS], -1.0),  # no thought at all
        ([ASK, ULM_IT_IS], -1.0),  # none in the second turn
        (["<search>home of Ann</search>", RIGHT], -1.0),  # none in the first
        ([ASK, "hm"], -1.0),  # neither a query nor an answer: the end
    ],
)
def test_an_answer_is_worth_its_f1_and_a_wrong_form_less_than_any(tags, replies, value):
    assert episode(tags, replies).value == pytest.approx(value)


def test_what_failed_and_what_came_after(tags):
    def engine(query):
        return [Page("Ann", (ULM,))] if query == "Ann home" else [Page("Ulm", (RIVER,))]

    # in vain, then six words that say it: 2 + 6 words in two searches
    parts = episode(tags, [ASK, AGAIN, RIGHT], engine, penalty=2.0).parts
    assert parts == {"answer": 1, "format": 1, "searches": 2, "told": 4.0, "vain": 0.5, "again": 1.0}
    assert episode(tags, [ASK, WRONG], engine).parts["again"] == 0.0
    assert "again" not in episode(tags, [AGAIN, RIGHT], engine).parts
    assert episode(tags, [ULM_IT_IS], penalty=2.0).value == -2.0


def closed(task, *answers):
    """A finished group of closed-book episodes with these answers."""
    episodes = [type("Episode", (), {"answer": a})() for a in answers]
    return RolloutGroup(RolloutRequest(task, len(answers), "closed"), episodes, {}, task.id)


def test_what_is_known_by_heart_is_not_asked():
    tasks = [Task(str(i), "", ("Ulm",)) for i in range(9)]
    given = {"n": 2, "rollouts": 4, "source": TaskSource("s", train=lambda i: tasks[i % 9], test=()), "seed": 0}
    select = not_by_heart(checks=3, rounds=2)
    first, state = select(**given, finished_rounds=[], state=0)
    assert [(r.n, r.program) for r in first] == [(3, "closed")] * 2 and state == 2
    one, two = (r.task for r in first)
    rounds = [[closed(one, "Po", "Ulm", None), closed(two, "Po", None, "Rom")]]
    more, state = select(**given, finished_rounds=rounds, state=state)
    assert len(more) == 1 and more[0].program == "closed" and state == 3  # one is known, so one is missing
    rounds.append([closed(more[0].task, "Ulm")])
    asked, state = select(**given, finished_rounds=rounds, state=state)  # as many rounds as there may be
    assert [(r.task, r.n, r.program) for r in asked] == [(two, 4, "main")] and state == 3
    rounds.append([RolloutGroup(asked[0], [], {}, "m")])
    assert select(**given, finished_rounds=rounds, state=state) == ([], 3)
    known = [[closed(one, "Ulm")], [closed(two, "Ulm")]]
    assert [r.task for r in select(**given, finished_rounds=known, state=2)[0]] == [two]  # rather than none


def test_a_closed_book_answer_is_begun_and_not_learned(tags):
    context, group = played(closed_book(prefix="<think>so.</think><answer>", max_tokens=9), [" Ulm</answer>"], tags)
    (episode,) = group.episodes
    assert episode.answer == "Ulm" and [t.learn for t in episode.trajectories] == [None]
    assert RIGHT in context.whole_text(episode.trajectories[0].leaf)
    assert asyncio.run(score(of("deep_researcher").stage.reward[0], [group], context))["reward"] == {}
    _, group = played(closed_book(), ["Ulm " * 40], tags)
    assert group.episodes[0].cost["tokens"] == 16 and group.episodes[0].answer is None


def test_hyper_parameters_reach_web_selection_and_reward():
    made = of("deep_researcher", turns=5, irrelevant=0.2, broken=0.3, adverts=2, checks=7, penalty=2.0)
    assert made.tools["web"].args == {"irrelevant": 0.2, "broken": 0.3, "adverts": 2}
    assert made.stage.select.args["checks"] == 7 and made.stage.reward[0].args == {"penalty": 2.0}
    assert made.stage.programs["main"].args["turns"] == 5 and set(made.stage.programs) == {"main", "closed"}
    clean = of("deep_researcher", live=False, checks=0)
    assert clean.stage.programs["main"] == clean.decode["passages"] and clean.stage.select.name == "uniform"
    assert clean.decode["main"] == of("deep_researcher").stage.programs["main"]
