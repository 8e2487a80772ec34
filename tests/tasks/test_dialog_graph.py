"""Dialogue graphs, their users, what an agent may do on them, and that each question has one place."""

from __future__ import annotations

import pytest

from selfteach.core import BadValue, Task
from selfteach.core.dialog_graph import SAY
from selfteach.tasks.dialog_graph import SPLITS, dialog_graph
from selfteach.tools.dialog_graph import WORDS, DialogEnv, built, draw_plan, edited_plan, graph_of


def test_no_word_stands_for_two_things():
    every = [w for word, more in WORDS.items() for w in (word, *more)]
    assert len(set(every)) == len(every) == 60


@pytest.mark.parametrize("edits", [0, 3])
def test_what_a_user_seeks_has_one_place_in_every_graph(edits):
    for number in range(30):
        graph = graph_of(0, number, 8, edits)
        labels = [label for label in graph.labels if label]
        assert all(len(graph.labelled(label)) == 1 for label in labels)
        ends = [(graph.nodes[a].label, graph.nodes[a].text) for a in graph.below(0)]
        assert len(set(ends)) == len(ends) >= 16
    with pytest.raises(ValueError, match="twice"):
        built({"travel": {"train": {"cost": False}}, "money": {"train": {"form": False}}})


def test_an_edit_moves_a_topic_or_replaces_it():
    plan = draw_plan(0, 0, 8)

    def area_of(p):
        return {topic: area for area, topics in p.items() for topic in topics}

    before, moved, both = area_of(plan), area_of(edited_plan(plan, 0, 1)), area_of(edited_plan(plan, 0, 2))
    assert before.keys() == moved.keys() and sum(before[t] != moved[t] for t in before) == 1
    assert len(moved.keys() - both.keys()) == len(both.keys() - moved.keys()) == 1 and len(both) == 8


def begun(user="specific", at="loan form", seed=4):
    graph = graph_of(0, 0, 8, 0)
    answers = [a for a in graph.below(0) if graph.nodes[a].label.split()[0] in at]
    env = DialogEnv()
    goal = answers[0] if answers else graph.below(0)[0]
    about = {"world": 0, "graph": 0, "topics": 8, "edits": 0, "price": 0.1, "seed": seed, "user": user, "goal": goal}
    env.reset(Task("t", "", tags=about))
    return env


def test_a_walk_to_the_goal_and_what_is_counted():
    env = begun()
    assert env.step("hello") == ("user unsure", -0.1, False) and env.notes()["search/invented"] == 1.0
    assert env.step("skip nowhere") == ("no", 0.0, False) and env.notes() == {"executable": 0.0}
    rewards = []
    for _ in range(8):
        said = SAY if env.graph.nodes[env.at].kind == "answer" else f"skip {env.right_edge()}"
        _, reward, done = env.step(said)
        rewards.append(reward)
        if done:
            break
    assert done and rewards[-1] == pytest.approx(0.9) and not any(rewards[:-1])
    assert env.success(rewards) and env.notes()["search/said"] == 1.0


def test_a_wrong_answer_ends_the_conversation_without_success():
    env = begun()
    env.at = next(a for a in env.graph.below(0) if a != env.dialog.goal)
    assert env.step(SAY) == ("bye", -0.1, True) and not env.success([-0.1])


def test_a_users_words_are_of_his_path():
    for seed in range(30):
        env = begun("vague" if seed % 2 else "specific", seed=seed)
        path = [env.graph.nodes[n].label for n in env.dialog.path()]
        said = [w for w in env.heard.split()[1:] if not w.isdigit()]
        meant = [label for label in path if label and len(label.split()) == len(said)]
        assert any(all(w in (p, *WORDS[p]) for w, p in zip(said, m.split(), strict=True)) for m in meant)
        assert len(said) == (1 if seed % 2 else 2)


def test_the_test_has_the_graph_of_training_it_edited_and_others_that_nothing_else_has():
    source = dialog_graph(n_test=30)
    by_split = {s: [t for t in source.test if t.tags["split"] == s] for s in SPLITS}
    assert [len(v) for v in by_split.values()] == [10, 10, 10]
    assert {t.tags["graph"] for t in by_split["seen"] + by_split["edited"]} == {0}
    assert {t.tags["edits"] for t in by_split["edited"]} == {4} and {t.tags["edits"] for t in by_split["seen"]} == {0}
    unseen = {t.tags["graph"] for t in by_split["unseen"]}
    demos = [t.tags for t in map(source.demos, range(50))]
    shown = {source.train(i).tags["graph"] for i in range(50)} | {t["graph"] for t in demos if t["kind"] == "demo"}
    assert 10 < sum(t["kind"] == "practice" for t in demos) < 40
    practised = {source.practice(i).tags["graph"] for i in range(50)}
    assert len(unseen) == 10 and shown == {0} and not unseen & practised and 0 not in practised


def test_ways_go_as_they_are_named():
    asker = dialog_graph(ways=(1.0, 0.0, 0.0, 0.0), change=0.0, practised=0.0, n_test=3)
    skipper = dialog_graph(ways=(0.0, 1.0, 0.0, 0.0), change=0.0, practised=0.0, n_test=3)
    for source in (asker, skipper):
        assert all(source.demos(i).tags["success"] for i in range(40))

    def asked(source, user):
        items = [source.demos(i) for i in range(60)]
        return [sum(p == "say\n" for p in t.data) for t in items if t.tags["user"] == user]

    assert set(asked(skipper, "specific")) <= {1, 2} and min(asked(asker, "specific")) >= 5
    assert min(asked(skipper, "vague")) >= 3
    assert any(
        p == "hello\n" for i in range(10) for p in dialog_graph(ways=(0.0, 0.0, 0.0, 1.0), practised=0.0).demos(i).data
    )


def test_practice_asks_which_label_is_meant_and_then_which_edge():
    none = 0
    for i in range(60):
        item = dialog_graph(n_test=3).practice(i)
        heard, asked = item.prompt.split("\n")[:2]
        first, then, edge = item.data
        labels, said = asked.removesuffix(" ?").split(", "), [w for w in heard.split()[1:] if not w.isdigit()]
        if first == "none\n":
            none += 1
            assert not [x for x in labels if fits(x, said)]
        else:
            assert [x for x in labels if fits(x, said)] == [first.strip()]
        reply, edges = then.split("\n")[:2]
        assert edge.strip() in edges.removesuffix(" ?").split(", ") and fits(edge.strip(), reply.split()[1:])
    assert 2 <= none <= 20


def fits(label, said):
    """Whether the words of a label are those that were said."""
    words = label.split()
    return len(words) == len(said) and all(s in (w, *WORDS[w]) for s, w in zip(said, words, strict=True))


@pytest.mark.parametrize(
    "options,why",
    [({"topics": 4}, "topics"), ({"ways": (1.0,)}, "ways"), ({"edits": 0}, "edits"), ({"vague": 2.0}, "vague")],
)
def test_options_out_of_range_are_refused(options, why):
    with pytest.raises(BadValue, match=why):
        dialog_graph(**options)
