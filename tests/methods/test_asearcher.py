"""ASearcher by hand: which version of a question is asked, what an episode is worth, and what a step learns from."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from support.agents import played, scored
from support.battery import Study, of
from support.episodes import full_text
from support.models import mini
from support.templates import TOKENIZERS, user

from selfteach.core import RolloutGroup, RolloutRequest, Task, TaskSource
from selfteach.core.random_keys import generator
from selfteach.core.scoring import score
from selfteach.credit.advantages import center
from selfteach.credit.composers import per_trajectory
from selfteach.curriculum.select import first_task_index
from selfteach.loop.step_context import EpisodeLimits
from selfteach.methods.asearcher import center_episodes, edited_questions
from selfteach.rollout.search import SUMMARISE, search_agent

ASK, RIGHT = "<search>home of Ann</search>", "<answer> Ulm</answer>"
VERSIONS = 3
SOURCE = TaskSource("edited", train=lambda i: Task(str(i), "", ("Ulm",)), test=(), task_options={"edits": VERSIONS - 1})
FIRST = first_task_index(0) * VERSIONS


def select(rounds, state=0, source=SOURCE, n=3, **args):
    part = edited_questions(**args)
    return part(n=n, rollouts=4, finished_rounds=rounds, source=source, seed=0, state=state)


def answered(request, *answers):
    """The finished group of a request, whose episodes gave these answers."""
    episodes = [type("Episode", (), {"answer": a})() for a in answers]
    return RolloutGroup(request, episodes, {}, request.task.id)


def at(requests):
    """(question, version) of each request."""
    return [divmod(int(r.task.id) - FIRST, VERSIONS) for r in requests]


def test_a_question_is_edited_on_until_nobody_knows_it():
    drawn = [int(generator(0, "edits", i).integers(VERSIONS)) for i in range(20)]
    first, state = select([], n=20, checks=5)
    assert at(first) == list(enumerate(drawn)) and set(drawn) == {0, 1, 2}  # at some number of edits, drawn
    assert all((r.n, r.program) == (5, "closed") for r in first) and state == 0
    simple = next(r for r in first if at([r])[0][1] == 0)
    hard = next(r for r in first if at([r])[0][1] == 2)
    other = next(r for r in first if r not in (simple, hard))
    rounds = [[answered(simple, "Po", "Ulm"), answered(hard, "Ulm"), answered(other, "Po", None)]]
    second, _ = select(rounds)
    assert at(second) == [(at([simple])[0][0], 1)]  # the hard one has no further version
    rounds.append([answered(second[0], "Ulm")])
    third, _ = select(rounds)
    assert at(third) == [(at([simple])[0][0], 2)]
    rounds.append([answered(third[0], "Po")])
    asked, state = select(rounds)
    assert sorted(at(asked)) == sorted([at(third)[0], at([hard])[0], at([other])[0]]) and state == 3
    assert all((r.n, r.program) == (4, "main") for r in asked)
    assert select([*rounds, [RolloutGroup(asked[0], [], {}, "m")]], state) == ([], 3)


def test_without_checks_a_version_is_asked_as_drawn_and_without_synthesis_the_first():
    drawn, state = select([], checks=0)
    assert at(drawn) == [(i, int(generator(0, "edits", i).integers(VERSIONS))) for i in range(3)] and state == 3
    seeds, state = select([], state=2, synthesis=False)
    assert at(seeds) == [(2, 0), (3, 0), (4, 0)] and state == 5 and seeds[0].program == "main"
    plain = TaskSource("plain", train=SOURCE.train, test=())  # a task that edits nothing
    assert [int(r.task.id) for r in select([], source=plain, checks=0)[0]] == [
        first_task_index(0) + i for i in range(3)
    ]


@pytest.mark.parametrize(
    "replies,value",
    [
        ([ASK, RIGHT], 1.0),
        ([ASK, "<answer> the Ulm lake</answer>"], 2 / 3),  # of two words one is right
        ([ASK, "<think>so." + RIGHT], 0.0),  # a thought left open
    ],
)
def test_an_answer_is_worth_its_f1_where_every_turn_is_well_formed(tags, replies, value):
    stage = of("asearcher", turns=3).stage
    assert scored(stage.reward[0], stage.programs["main"], replies, tags).value == pytest.approx(value)


@pytest.mark.parametrize(
    "turns,replies,answer",
    [
        (2, [ASK, RIGHT], "Ulm"),  # the answer is a turn as well
        (2, [ASK, ASK], None),  # and none follows the last
        (3, ["<think>so.</think>"], None),
    ],
)
def test_no_turn_for_the_answer_follows_the_last(tags, turns, replies, answer):
    stage = of("asearcher", turns=turns).stage
    _, group = played(stage.programs["main"], replies, tags)
    assert group.episodes[0].answer == answer
    assert scored(stage.reward[0], stage.programs["main"], replies, tags).value == (1.0 if answer else 0.0)


def test_rewards_are_centred_by_group_and_whitened_over_the_batch():
    _, drop, centred, whitened = of("asearcher").stage.credit
    reward, group = np.array([1.0, 0.0, 0.5, 0.0, 1.0, 1.0]), np.array([0, 0, 1, 1, 2, 2])
    assert list(drop(reward=reward, group=group)["keep"].values) == [1, 1, 1, 1, 0, 0]  # the last group learns nothing
    adv = centred(reward=reward[:4], group=group[:4])["adv"].values
    assert list(adv) == [0.5, -0.5, 0.25, -0.25]
    # no group is divided by its own deviation: the second stays half as large as the first
    std = np.sqrt((2 * 0.25 + 2 * 0.0625) / 3)
    scaled = whitened(adv=adv, batch=np.zeros(4, int))["adv"].values
    assert scaled == pytest.approx([0.5 / std, -0.5 / std, 0.25 / std, -0.25 / std])


def test_hyper_parameters_reach_selection_program_and_loss():
    stage = of("asearcher", turns=5, checks=3, clip=0.3, weight_cap=4.0, minibatches=2).stage
    assert of("asearcher", turns=5, tested=9).decode["main"].args["turns"] == 8
    assert stage.programs["main"].args["turns"] == 4 and stage.select.args["checks"] == 3
    (update,) = stage.updates
    assert update.minibatches == 2 and update.terms[0].fn.args == {"low": 0.3, "high": 0.3, "cap": 4.0}
    assert [stage.reward[0].name, stage.credit[2].name] == [
        "formed_f1",
        "center",
    ]  # one context, unless it is asked for
    summing = of("asearcher", summarise=600).stage
    assert summing.programs["main"].args["summarise"] == 600
    assert [summing.reward[0].name, summing.credit[2].name] == ["over_episode", "center_episodes"]
    assert stage.staleness == 4 and set(of("asearcher", synthesis=False).stage.programs) == {"main"}


# ---- contexts that are summed up

CHAIN = Task("t", "question: what is the mayor of the home of Ann?\n", ("Bob",))
FOUND = {"home of Ann": "the home of Ann is Ulm.", "mayor of Ulm": "the mayor of Ulm is Bob."}
REPORT = "<report> the home of Ann is Ulm.</report>"
TURNS = ["<think>a.</think>" + ASK, REPORT, "<search>mayor of Ulm</search>"]
AGAIN, BOB = "<report> the mayor of Ulm is Bob.</report>", "<answer> Bob</answer>"


def summed_up(tags, replies, summarise=20, task=CHAIN, limits=None, **args):
    """The stage, context and group of an episode whose contexts are summed up beyond 20 tokens: after every search."""
    stage = of("asearcher", summarise=summarise, **args).stage
    context, group = played(
        stage.programs["main"],
        replies,
        tags,
        FOUND.__getitem__,
        RolloutRequest(task, key="t"),
        limits=limits or EpisodeLimits(),
    )
    group.scores.update(asyncio.run(score(stage.reward[0], [group], context)))
    return stage, context, group


def learned(example, tree, tags):
    """The text of the tokens that an example teaches."""
    out = []
    for s in (s for s in example.segments if s.learn):
        begin = tree.begin[s.source.node]
        rows = slice(begin + s.start, tree.stop(s.source.node) if s.stop is None else begin + s.stop)
        out += tree.id[rows][tree.action_mask[rows]].tolist()
    return tags.decode(out)


def test_a_context_that_is_too_long_goes_on_from_the_question_and_its_summary(tags):
    _, context, group = summed_up(tags, [*TURNS, AGAIN, BOB])
    (episode,) = group.episodes
    first, second, third = (full_text(episode, tags, n) for n in range(3))
    found = "<information>the home of Ann is Ulm.</information>"
    assert first == CHAIN.prompt + TURNS[0] + found + SUMMARISE + REPORT  # the summary is sampled at its end
    assert second.startswith(f"{CHAIN.prompt}{REPORT}<search>mayor of Ulm</search>")  # the old result is gone
    assert third == CHAIN.prompt + AGAIN + BOB and episode.answer == "Bob"
    assert episode.cost["calls"] == 2 and episode.cost["turns"] == 5
    prompts = [tags.decode(context.path(t.leaf).ids[: context.path(t.leaf).prompt]) for t in episode.trajectories]
    assert prompts == [CHAIN.prompt, CHAIN.prompt + REPORT, CHAIN.prompt + AGAIN]  # of which nothing is learned
    assert [episode.tree.number(t.leaf.node, "round") for t in episode.trajectories] == [1, 2, 3]
    assert {episode.tree.number(t.leaf.node, "rounds") for t in episode.trajectories} == {3}


def test_a_context_within_the_bound_stays_whole(tags):
    replies = [*TURNS[::2], BOB]
    _, _, group = summed_up(tags, replies, summarise=1000)
    _, plain = played(search_agent(turns=32), replies, tags, FOUND.__getitem__, RolloutRequest(CHAIN, key="t"))
    assert [full_text(g.episodes[0], tags) for g in (group, plain)] == [full_text(group.episodes[0], tags)] * 2
    assert len(group.episodes[0].trajectories) == len(plain.episodes[0].trajectories) == 1
    assert not plain.episodes[0].tree.notes  # without the part nothing is noted


@pytest.mark.parametrize(
    ("replies", "value", "why"),
    [
        ([*TURNS, AGAIN, BOB], 1.0, ""),
        ([*TURNS, AGAIN, "<answer> Bob Ulm</answer>"], 2 / 3, ""),  # of two words one is right
        (["<think>a." + ASK, *TURNS[1:], AGAIN, BOB], 0.0, "think is not closed"),  # in a context that is left behind
        ([*TURNS, AGAIN.removesuffix("</report>"), BOB], 0.0, "report is not closed"),
    ],
)
def test_every_context_is_learned_with_the_outcome_of_the_whole_episode(tags, replies, value, why):
    stage, _, group = summed_up(tags, replies)
    scores = [group.scores["reward"][t.leaf] for t in group.episodes[0].trajectories]
    assert [s.value for s in scores] == [pytest.approx(value)] * 3
    assert [s.why for s in scores] == ["", "", why]
    assert scores[-1].parts["searches"] == 2.0 and not scores[0].parts  # of the episode, told once
    examples = stage.credit[0](groups=[group])
    assert len(examples) == 3 and {e.key for e in examples} == {"t"}
    assert [e.given["reward"][1] for e in examples] == [pytest.approx(value)] * 3
    assert [learned(e, group.episodes[0].tree, tags) for e in examples] == [
        replies[0] + replies[1],
        replies[2] + replies[3],
        replies[4],
    ]


def test_an_episode_of_several_contexts_counts_once_in_the_mean_of_its_group():
    # episodes of 3, 1 and 1 contexts with rewards 1, 0 and 0.5: mean 0.5, where that of the contexts is 0.7
    reward, episode, one = np.array([1.0, 0.0, 1.0, 1.0, 0.5]), np.array([0, 1, 0, 0, 2]), np.zeros(5, int)
    adv = center_episodes(reward=reward, episode=episode, group=one)["adv"].values
    assert adv == pytest.approx([0.5, -0.5, 0.5, 0.5, 0.0])
    single = center_episodes(reward=reward, episode=np.arange(5), group=one)["adv"].values
    assert single == pytest.approx(center(reward=reward, group=one)["adv"].values)
    third, episode = np.full(3, 1 / 3), np.array([0, 0, 1])
    assert list(center_episodes(reward=third, episode=episode, group=one[:3])["adv"].values) == [0] * 3


def test_a_step_learns_every_context_with_what_its_episode_is_better_or_worse_by(tags):
    def replies(text, key):  # the episode drawn at one key searches twice, the other answers at once
        lasting = longer.setdefault(text, key) == key if text == CHAIN.prompt else True
        if text.endswith(SUMMARISE):
            return AGAIN if "Bob" in text else REPORT
        return BOB if AGAIN in text else TURNS[2] if REPORT in text else TURNS[0] if lasting else "<answer> Al</answer>"

    longer = {}
    stage = of("asearcher", summarise=20).stage
    request = RolloutRequest(CHAIN, 2, key="t")
    context, group = played(stage.programs["main"], replies, tags, FOUND.__getitem__, request)
    group.scores.update(asyncio.run(score(stage.reward[0], [group], context)))
    assert sorted(len(e.trajectories) for e in group.episodes) == [1, 3]
    study = Study(of("asearcher", summarise=20), [group], model=mini(len(tags), max_length=512))
    # R - mean over episodes: 1/2 for the three contexts of the right one, -1/2 for the other; then whitened by token
    adv, seq = study.batch.get("adv"), study.batch.get("seq", "token")
    (wrong,) = [e.id for e in group.episodes if len(e.trajectories) == 1]
    assert len(study.batch.names) == 4
    raw = np.where([study.batch.names[n].startswith(wrong + ":") for n in seq], -0.5, 0.5)
    assert adv == pytest.approx((raw - raw.mean()) / raw.std(ddof=1), rel=1e-4)
    assert all(np.isfinite(g.numpy()).all() for g in study.gradient.values())


def test_a_turn_costs_no_more_however_late_it_is(tags):
    def replies(text, key):
        return REPORT if text.endswith(SUMMARISE) else TURNS[0]

    def lengths(summarise):
        limits = EpisodeLimits(turns=200, tokens=10**6)
        stage = of("asearcher", summarise=summarise, turns=51).stage
        context, group = played(
            stage.programs["main"],
            replies,
            tags,
            FOUND.__getitem__,
            RolloutRequest(CHAIN, key="t"),
            limits=limits,
            length=10**6,
        )
        assert group.episodes[0].cost["calls"] == 50, group.episodes[0].why
        return [len(tags.encode(c[1])) for c in context.engine.calls if not c[1].endswith(SUMMARISE)]

    bounded, whole = lengths(120), lengths(0)
    assert len(bounded) == len(whole) == 51
    reply = len(tags.encode(TURNS[0] + "<information>the home of Ann is Ulm.</information>"))
    assert max(bounded) <= 120 and max(bounded[-10:]) <= max(bounded[:10])
    assert whole[-1] == pytest.approx(whole[0] + 50 * reply, rel=0.02) and whole[-1] > 10 * max(bounded)


def test_a_summary_for_which_the_limits_leave_nothing_ends_the_episode(tags):
    _, _, group = summed_up(tags, TURNS, limits=EpisodeLimits(turns=1))
    (episode,) = group.episodes
    assert episode.status == "limit" and episode.answer is None and not episode.why
    assert [t.status for t in episode.trajectories] == ["limit"]
    assert full_text(episode, tags).endswith("</information>" + SUMMARISE)
    assert [s.value for s in group.scores["reward"].values()] == [0.0]


def test_a_summary_that_takes_the_last_turn_is_learned_and_the_context_after_it_dropped(tags):
    _, _, group = summed_up(tags, TURNS, limits=EpisodeLimits(turns=2))
    (episode,) = group.episodes
    assert episode.status == "limit" and episode.answer is None and not episode.why
    assert full_text(episode, tags).endswith(SUMMARISE + REPORT) and len(episode.trajectories) == 1
    assert [s.value for s in group.scores["reward"].values()] == [0.0] and len(per_trajectory(groups=[group])) == 1


def test_a_summary_cut_by_the_limit_of_tokens_is_one_and_the_episode_ends_there(tags):
    spent = len(tags.encode(TURNS[0])) + 3  # three tokens are left for the summary
    _, _, group = summed_up(tags, TURNS, limits=EpisodeLimits(tokens=spent))
    (episode,) = group.episodes
    assert episode.status == "limit" and episode.cost["tokens"] == spent
    assert [t.status for t in episode.trajectories] == ["length"] and episode.answer is None


def test_a_summary_in_a_conversation_stands_in_the_last_message_after_the_question():
    replies, ask = [ASK, REPORT, BOB], RolloutRequest(Task("t", [user("who?")], ("Bob",)), key="t")
    context, group = played(search_agent(summarise=1), replies, TOKENIZERS["chatml"], request=ask)
    assert f"user\nwho?\n{REPORT}\n<|im_start|>assistant" in context.engine.calls[-1][1]
    assert group.episodes[0].answer == "Bob"


def test_a_summary_without_tags_is_what_was_said_and_says_none_of_the_agent_s(tags):
    _, _, group = summed_up(tags, [ASK, "it is Ulm. <search>mayor</search>", BOB])
    assert full_text(group.episodes[0], tags) == f"{CHAIN.prompt}<report> it is Ulm. mayor</report>{BOB}"
