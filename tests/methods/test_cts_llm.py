"""CTS-LLM by hand: what the planner passes in silence, what it asks, and that it says texts of the graph alone."""

from __future__ import annotations

import asyncio
import json

import pytest
from support.battery import of
from support.episodes import scripted_context

from selfteach.cli import main
from selfteach.core import BadValue, RolloutRequest, Task
from selfteach.core.scoring import score
from selfteach.loop.episode import play
from selfteach.loop.method_on_task import for_task
from selfteach.methods.cts_llm import plan_dialog
from selfteach.methods.grpo import grpo
from selfteach.reward.payoff import episode_return
from selfteach.tasks.dialog_graph import dialog_graph
from selfteach.tools import dialog_graph as tools
from selfteach.tools.dialog_graph import WORDS, DialogEnv, built
from selfteach.tools.environment import environment

#   start ─ note ─ travel ─ train ─ cost ─ how many days? ─ short, long
#         │                       └ form
#         │               └ hotel ─ cost
#         └ note ─ money ─ loan ─ form
GRAPH = built(
    {
        "travel": {"train": {"cost": True, "form": False}, "hotel": {"cost": False}},
        "money": {"loan": {"form": False}},
    }
)


def goal(label: str, end: str = "") -> int:
    """The answer of a label; of one that varies with the days that of an end."""
    (found,) = [i for i in GRAPH.below(0) if GRAPH.nodes[i].label == label and end in GRAPH.nodes[i].text]
    return found


def understanding(text: str) -> str:
    """A model that knows what words mean: the label whose words are those that the user said last."""
    lines = text.strip().split("\n")
    said = [w for w in next(x for x in reversed(lines) if x.startswith("user ")).split()[1:] if not w.isdigit()]
    for label in lines[-1].removesuffix(" ?").split(", "):
        words = label.split()
        if len(said) == len(words) and all(s in (w, *WORDS[w]) for s, w in zip(said, words, strict=True)):
            return f"{label}\n"
    return "none\n"


@pytest.fixture
def talk(tags, monkeypatch):
    """Plays a conversation on GRAPH with a user who says the second word for everything, a topic or (area=True) an
    area where he is vague, and gives the days at once or not: (episode, texts that were said, score).
    """

    def play_one(at, user="specific", area=False, days=False, model=understanding, **args):
        said = []
        monkeypatch.setattr(tools, "graph_of", lambda *_: GRAPH)
        monkeypatch.setattr(tools, "said_by_user", lambda label, draw: " ".join(WORDS[w][0] for w in label.split()))

        class Told(DialogEnv):
            def reset(self, task):
                first = super().reset(task)
                words = self.heard.split()
                if user == "vague":
                    path = [self.graph.nodes[n].label for n in self.dialog.path()]
                    words = ["user", WORDS[path[2 if area else 3]][0]]
                else:
                    words = [w for w in words if not w.isdigit()] + [str(self.dialog.days)] * days
                self.heard = " ".join(words)
                return "\n".join([self.heard, first.partition("\n")[2]])

            def step(self, text):
                before = self.graph.nodes[self.at]
                if not text.startswith("skip"):
                    said.append(before.label or ("note" if self.at else "start"))
                return super().step(text)

        about = {"world": 0, "graph": 0, "topics": 3, "edits": 0, "price": 0.04, "seed": 7, "user": user, "goal": at}
        task = Task("t", "play dialog_graph.\n", ("success",), tags={**about, "environment": "dialog_graph"})
        context = scripted_context(
            plan_dialog(**args),
            lambda text, n: model(text),
            tags,
            tools={"environment": environment(make=Told, name="dialog_graph")()},
        )
        (group,) = asyncio.run(play(context, [RolloutRequest(task, key="t")]))
        found = asyncio.run(score(episode_return(), [group], context))["reward"]
        (episode,) = group.episodes
        return episode, said, next(iter(found.values()), None)

    return play_one


@pytest.mark.parametrize(
    "at,args,said",
    [
        (goal("loan form"), {}, ["loan form"]),  # one goal: every path agrees
        (goal("loan form"), {"prune": False}, ["start", "note", "money", "loan", "loan form"]),
        # the two answers part at the days, which are asked for
        (goal("train cost", "short"), {}, ["train cost", "train cost"]),
        (goal("train cost", "long"), {}, ["train cost", "train cost"]),
        (goal("train cost", "long"), {"days": True}, ["train cost"]),  # unless they were said
        # who means an area is guided: its note, then which topic; one aspect needs no question
        (goal("hotel cost"), {"user": "vague", "area": True}, ["note", "travel", "hotel cost"]),
        (goal("train form"), {"user": "vague", "area": True}, ["note", "travel", "train", "train form"]),
        (goal("hotel cost"), {"user": "vague"}, ["note", "hotel cost"]),
        (goal("train form"), {"user": "vague"}, ["note", "train", "train form"]),
        (goal("loan form"), {"selector": "retriever"}, ["loan form"]),
        # of two shared words and one the two win, whatever the model; of nothing meant the start is said
        (goal("loan form"), {"model": lambda text: "none\n"}, ["start", "note", "loan form"]),
    ],
)
def test_where_paths_agree_nothing_is_said_and_where_they_part_the_text_is(talk, at, args, said):
    episode, heard, end = talk(at, **args)
    assert heard == said and episode.answer == "success"
    assert episode.cost["search/said"] == len(said) and episode.cost["search/invented"] == 0
    if end is not None:
        assert end.value == pytest.approx(1 - 0.04 * len(said)) and end.parts["success"] == 1.0


def test_a_model_that_means_the_wrong_answer_leads_there(talk):
    episode, heard, end = talk(goal("loan form"), model=lambda text: "train form, nothing of it\n")
    assert heard == ["train form"] and episode.answer == "failure" and end.value == pytest.approx(-0.04)


def test_only_the_nearest_labels_are_asked_about(talk, tags):
    asked = []

    def model(text):
        asked.append(text.strip().split("\n")[-1])
        return understanding(text)

    talk(goal("train form"), model=model, top=2)
    # train and form: 2 of `train form`; 1 of `train`, `train cost` and `loan form`, of which the shortest is first
    assert asked == ["train form, train ?"]
    asked.clear()
    talk(goal("train form"), model=model, top=0)
    assert asked == ["train form, train, train cost, loan form ?"]


def test_the_planner_ends_after_so_many_actions(talk):
    episode, heard, _ = talk(goal("loan form"), prune=False, turns=3)
    assert episode.answer == "failure" and len(heard) <= 3


def test_a_program_that_plays_by_the_tasks_own_tool_is_kept():
    source = dialog_graph(n_test=3)
    planned = for_task(of("cts_llm", prune=False, top=3, selector="retriever", turns=5), source, episode_return())
    args = {"selector": "retriever", "top": 3, "prune": False, "turns": 5}
    assert planned.stage.programs["main"] == plan_dialog(**args) == planned.decode["main"]
    assert for_task(grpo(), source, episode_return()).stage.programs["main"].name == "act"
    with pytest.raises(BadValue, match="its program search_agent is its own"):
        for_task(of("search_r1"), source, episode_return())


def test_an_evaluation_tells_graphs_and_users_apart_counts_what_was_said_and_draws_it(tmp_path, small_start, capsys):
    model = small_start("dialog_graph", {"n_test": 6})
    words = ["eval", "cts_llm", "--model", str(model), "--set", "n_test=6", "--tasks", "6", "--k", "0"]
    words += ["--decoder-samples", "1", "--picture", str(tmp_path / "calls.png"), "--json"]
    assert main(words) == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    shown = {"accuracy/split=seen", "accuracy/split=edited", "accuracy/split=unseen", "accuracy/user=vague"}
    assert shown <= figures.keys() and figures["search/said"] >= 1 and figures["search/invented"] == 0
    assert (tmp_path / "calls.png").stat().st_size > 10_000
