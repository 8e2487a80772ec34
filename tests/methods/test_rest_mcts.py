"""ReST-MCTS*: inferred values of lines by hand, selection and expansion of a search, what is learned from its tree."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
from support.answers import answered_group
from support.episodes import scripted_context

from selfteach.core import RolloutRequest, Task, block, collate, registry
from selfteach.core.scoring import score
from selfteach.credit.composers import per_trajectory
from selfteach.credit.keep import right_only
from selfteach.engine.scripted import ScriptedEngine
from selfteach.loop.episode import play
from selfteach.loop.step_context import EpisodeLimits
from selfteach.methods.rest_mcts import (
    Line,
    answered,
    best_of,
    inferred_values,
    line_search,
    line_values,
    with_slips,
)
from selfteach.rollout.slips import altered


def test_values_of_lines_by_hand():
    """Root, a, b right, c wrong below a; d wrong below the root, e wrong below d; f, which never ended.

    m: b 1, a 2, root 3. a: 0 + 1/2. b: 1/2 + 1/2 * 1. c takes a's 2: 1/2 - 1/2 * 1/2. d takes the root's 3: max(0,
    -1/3). e the same.
    """
    v = inferred_values([-1, 0, 1, 1, 0, 4, 1], [None, None, True, False, None, False, None])
    assert v[:6] == pytest.approx([0, 0.5, 1.0, 0.25, 0.0, 0.0]) and np.isnan(v[6])


def test_a_path_to_a_right_answer_rises_evenly_and_the_shortest_way_counts():
    # Steps of a single path of 4: 1/4, 1/2, 3/4, 1. m = 4, 3, 2, 1: 1/4; + 3/4 / 3; + 1/2 / 2; + 1/4.
    assert inferred_values([-1, 0, 1, 2, 3], [None] * 4 + [True]) == pytest.approx([0, 0.25, 0.5, 0.75, 1.0])
    # A second, shorter way below the first line: it has m = 2, so is worth 1/2, and the longer way goes on from there.
    v = inferred_values([-1, 0, 1, 2, 1], [None, None, None, True, True])
    assert v == pytest.approx([0, 0.5, 0.75, 1.0, 1.0])
    assert np.isnan(inferred_values([-1, 0], [None, False])).all(), "nothing is known where nothing was right"


def test_selection_is_by_uct_and_backup_is_the_visit_weighted_mean():
    root = Line(None)
    a, b = Line(None, root, 1, 0.9), Line(None, root, 1, 0.2)
    root.below = [a, b]
    assert (a.uct(0.7), b.uct(0.7)) == pytest.approx((1.9, 1.2))  # unvisited: V + 1
    a.back_up()
    assert a.uct(0.7) == 0.9 < b.uct(0.7), "ln 1 = 0"
    a.back_up()
    # 0.9 + 0.7 sqrt(2 ln 2 / 2) = 1.483: the better line is once more before the one without a visit
    assert a.uct(0.7) == pytest.approx(0.9 + 0.7 * math.sqrt(math.log(2))) and a.uct(0.7) > b.uct(0.7) + 0.28
    b.back_up()
    assert (root.visits, a.visits, b.visits) == (3, 2, 1)
    assert root.value == pytest.approx((2 * 0.9 + 0.2) / 3)
    assert a.uct(0.7) == pytest.approx(0.9 + 0.7 * math.sqrt(2 * math.log(3) / 2))


class Scripted(ScriptedEngine):
    """Writes lines from a context of continuations; its value model gives a higher value to each `2`."""

    NEXT: ClassVar = {
        "": ["<think> 1 + 1 = 2.", "<think> 1 + 1 = 3."],
        "2.": ["</think><answer> 2</answer>"],
        "3.": ["</think><answer> 3</answer>"],
    }

    def __init__(self, tokenizer):
        super().__init__(self.reply, tokenizer)
        self.turn = 0

    def reply(self, text, rng_key):
        self.turn += 1
        options = next(v for k, v in sorted(self.NEXT.items(), reverse=True) if text.endswith(k))
        return options[self.turn % len(options)]

    async def score(self, model_role, context, tokens, want=("logp",)):
        assert model_role == "vm" and want == ("scalar_after",)
        good = self.tokenizer.decode(tokens).count("2")
        scalar = np.full(len(tokens), 99.0, np.float32)
        scalar[-1] = 2.0 * good - 1.0  # the value after the last token is read
        return {"scalar_after": scalar}


TASK = Task("t", "compute: 1 + 1 =\n", ("2",))


class Flat(Scripted):
    """Its value model says nothing."""

    async def score(self, model_role, context, tokens, want=("logp",)):
        return {"scalar_after": np.zeros(len(tokens), np.float32)}


class Endless(Scripted):
    """The wrong line can be continued without end."""

    NEXT: ClassVar = Scripted.NEXT | {"3.": [" 3 + 0 = 3."]}


def searched(program, tokenizer, n=1, engine=Scripted, task=TASK):
    context = scripted_context(program, [], tokenizer, model_roles=("policy", "vm"))
    context.engine = engine(tokenizer)
    groups = asyncio.run(play(context, [RolloutRequest(task, n)]))
    groups[0].scores.update(asyncio.run(score(answered(), groups, context)))
    assert {e.status for e in groups[0].episodes} == {"done"}, groups[0].episodes[0].why
    return context, groups


class Three(Scripted):
    """Three first lines with two, one and no `2`, that is of value 0.953, 0.731 and 0.269; then lines without any."""

    NEXT: ClassVar = {"": ["2 2.", "2.", "3."], ".": [" 0."]}

    def reply(self, text, rng_key):
        self.turn += 1
        return " 0." if text != TASK.prompt else self.NEXT[""][self.turn % 3]


def test_a_visited_line_of_a_large_value_is_expanded_before_an_unvisited_one_of_a_small(tags):
    """The root gives the best line its visit, then 0.731 + 1 is the largest. Third: the best has 0.953 + 0.7 sqrt(2 ln
    2) = 1.777, the second 1.556, the unvisited one 0.269 + 1.
    """
    for exploration, visits in ((0.7, {"2 2.": 2, "2.": 1, "3.": 0}), (0.2, {"2 2.": 1, "2.": 1, "3.": 1})):
        program = line_search(expansions=3, lookahead=0, tokens=0, exploration=exploration, finish=False)
        _, groups = searched(program, tags, engine=Three)
        tree = groups[0].episodes[0].tree
        texts = {n: tags.decode(tree.id[tree.places(n)])[len(TASK.prompt) :] for n in tree.notes}
        assert {t: tree.number(n, "visits") for n, t in texts.items() if t.count(".") == 1} == visits


def test_a_search_stops_at_an_answer_of_a_high_value(tags):
    context, groups = searched(line_search(lookahead=1, stop_early=True, expansions=8, tokens=0), tags, engine=Endless)
    (episode,) = groups[0].episodes
    assert episode.answer == "2"
    whole, _ = searched(line_search(lookahead=1, expansions=8, tokens=0), tags, engine=Endless)
    assert len(whole.trees[episode.id]) > len(context.trees[episode.id]), "without early stopping the tree is larger"


def test_an_expansion_samples_as_many_lines_as_branch(tags):
    for branch in (1, 4):
        _, groups = searched(line_search(expansions=1, lookahead=0, branch=branch), tags)
        # where no line ends the answer the policy goes on from the best one, which is one more turn
        assert groups[0].episodes[0].cost["turns"] == branch + 1


def test_search_and_best_of_keep_to_their_token_budget(tags):
    for program, most in (
        (line_search(tokens=60, stop_early=False, expansions=99), 260),
        (best_of(tokens=60, n=99), 100),
    ):
        _, groups = searched(program, tags)
        sampled = groups[0].episodes[0].cost["tokens"]
        assert 60 <= sampled <= most
    assert searched(best_of(n=4), tags)[1][0].episodes[0].cost["turns"] == 4


def test_a_limit_of_the_episode_ends_a_search_with_what_it_found(tags):
    answers: dict[str, list[str | None]] = {"line_search": [], "best_of": []}
    for turns in range(1, 24):
        for program in (line_search(stop_early=False, expansions=99, max_depth=99), best_of(n=99)):
            context = scripted_context(
                program, [], tags, model_roles=("policy", "vm"), limits=EpisodeLimits(turns=turns)
            )
            context.engine = Endless(tags)
            (group,) = asyncio.run(play(context, [RolloutRequest(TASK, 1)]))
            (episode,) = group.episodes
            assert (episode.status, episode.why) == ("limit", "")
            answers[program.name].append(episode.answer)
    assert answers["line_search"][0] is None and answers["line_search"][-1] == "2"


def test_every_line_is_a_value_target_once_and_the_policy_imitates_right_answers(tags):
    context, groups = searched(line_search(lookahead=1, stop_early=False), tags)
    (episode,) = groups[0].episodes
    values = line_values(groups=groups)
    targets = {}
    for example in values:
        leaf = example.segments[-1].source
        targets[tags.decode(episode.tree.id[episode.tree.places(leaf.node)])[len(TASK.prompt) :]] = example.given[
            "target"
        ][1]
    # The right way has two lines: 1/2 and 1. The wrong one falls from the root's m = 2: max(0, -1/2), and again.
    right, wrong = "<think> 1 + 1 = 2.", "<think> 1 + 1 = 3."
    assert targets == pytest.approx(
        {right: 0.5, f"{right}</think><answer> 2</answer>": 1.0, wrong: 0.0, f"{wrong}</think><answer> 3</answer>": 0.0}
    )
    examples = [*per_trajectory()(groups=groups), *values]
    batch = collate(examples, context.tree)
    for example, row in zip(values, range(len(groups[0].episodes[0].trajectories), len(examples)), strict=True):
        leaf = example.segments[-1].source
        whole = episode.tree.id[episode.tree.places(leaf.node)]
        assert batch.ids[batch.start[row] : batch.start[row + 1]].tolist() == whole.tolist(), (
            "the example holds all text before the line"
        )
    assert (batch.lengths()[[n.count(":value") > 0 for n in batch.names]] == 1).all(), "a line's last token is its row"
    kept = right_only(reward=batch.get("reward", "seq"))
    by = dict(zip(batch.names, zip(kept["keep"].values, kept["adv"].values, strict=True), strict=True))
    assert sorted(by.values()) == [(0.0, 0.0), *[(1.0, 0.0)] * 4, (1.0, 1.0)]


def test_each_answer_is_judged_by_its_own_text(letters):
    group, context, _ = answered_group(["<answer> 2</answer>", "no end", ""], "2", letters, lambda text: [0.0])
    found = asyncio.run(score(answered(), [group], context))["reward"]
    assert [found[e.trajectories[-1].leaf].value for e in group.episodes] == [1.0, 0.0, 0.0]


@block
def first_sum_is_two(*, step: str) -> bool | None:
    """Whether a line says that 1 + 1 is 2; None where it says nothing of it."""
    return ("1 + 1 = 2" in step) if "1 + 1" in step else None


def test_how_well_the_value_model_ranks_lines_that_begin_in_one_place_is_logged(tags):
    judged = replace(TASK, judges={"step": first_sum_is_two()})
    # Scripted values a 2 above a 3; the answers' own lines are no steps
    for engine, want in ((Scripted, 1.0), (Flat, 0.5)):
        _, groups = searched(line_search(lookahead=1, stop_early=False), tags, engine=engine, task=judged)
        parts = [s.parts for s in groups[0].scores["reward"].values()]
        assert {p["step_auc"] for p in parts} == {want}
    _, groups = searched(line_search(lookahead=1, stop_early=False), tags)
    assert not any("step_auc" in s.parts for s in groups[0].scores["reward"].values()), "no judge of steps"


def test_the_value_model_is_a_model_role_with_a_scalar_head_alone():
    made = registry.methods.get("rest_mcts")()
    assert made.models["vm"].heads == ("scalar",) and {u.params for u in made.stage.updates} == {("vm",), ("policy",)}


def test_of_answers_of_one_value_the_first_is_the_best_of_eight(tags):
    replies = [f"<answer>{n}</answer>" for n in range(1, 9)]  # a scripted engine gives all the same value
    table = scripted_context(best_of(n=8), replies, tags, model_roles=("policy", "vm"))
    (episode,) = asyncio.run(play(table, [RolloutRequest(TASK, 1)]))[0].episodes
    assert (episode.why, episode.answer, episode.cost["turns"]) == ("", "1", 8)
    for tokens, turns in ((0, 8), (1, 1)):
        table = scripted_context(best_of(n=8, tokens=tokens), replies, tags, model_roles=("policy", "vm"))
        (episode,) = asyncio.run(play(table, [RolloutRequest(TASK, 1)]))[0].episodes
        assert episode.cost["turns"] == turns


def test_an_expansion_has_three_lines_and_three_more_in_simulation(tags):
    # no line ends the answer: one expansion samples 3 lines, 3 in simulation below the best of them, and the end
    table = scripted_context(line_search(expansions=1), [" 1 + 1 = 2."], tags, model_roles=("policy", "vm"))
    (episode,) = asyncio.run(play(table, [RolloutRequest(TASK, 1)]))[0].episodes
    assert episode.why == "" and episode.cost["turns"] == 3 + 3 + 1
    table = scripted_context(line_search(expansions=8, tokens=0), [" 1 + 1 = 2."], tags, model_roles=("policy", "vm"))
    (episode,) = asyncio.run(play(table, [RolloutRequest(TASK, 1)]))[0].episodes
    assert episode.why == "" and episode.cost["turns"] == 8 * 6 + 1


class Short(Scripted):
    """A line of two tokens, then the answer."""

    NEXT: ClassVar = {"": ["2."], "2.": ["<answer>2</answer>"]}


def test_a_line_of_two_tokens_is_learned_at_its_second(tags):
    table, groups = searched(line_search(expansions=2, branch=1, lookahead=0, stop_early=False), tags, engine=Short)
    first, last = line_values(groups=groups)
    assert [x.given["target"][1] for x in (first, last)] == [0.5, 1.0]  # two lines to a right answer
    batch = collate([first, last], table.tree)
    texts = [tags.decode(batch.ids[a:z]) for a, z in zip(batch.start, batch.start[1:], strict=False)]
    assert texts[0] == f"{TASK.prompt}2." and texts[1].startswith(f"{TASK.prompt}2.<answer>2</answer>")
    assert batch.lengths().tolist() == [1, 1]


class Valued(Short):
    """Of an answer the value is 3/4, of what comes before it 1/4."""

    async def score(self, model_role, context, tokens, want=("logp",)):
        text = self.tokenizer.decode(context) + self.tokenizer.decode(tokens)
        return {"scalar_after": np.full(len(tokens), math.log(3) * (1 if "<answer>" in text else -1))}


def test_the_value_of_a_line_is_mixed_with_that_of_its_simulation(tags):
    for more, value in (({}, 0.5), ({"lookahead_weight": 0.2}, 0.35), ({"lookahead": 0}, 0.25)):
        _, groups = searched(line_search(expansions=1, branch=1, **more), tags, engine=Valued)
        (found,) = groups[0].episodes[0].tree.notes.values()
        assert found["value"] == pytest.approx(value) and found["visits"] == 1  # 1/4 and 3/4, by halves


def test_a_search_that_ends_no_answer_goes_on_from_its_best_line(tags):
    # one expansion gives " 1 + 1 = 2." and " 1 + 1 = 3."; the value model prefers the 2
    _, groups = searched(line_search(expansions=1, lookahead=0), tags)
    (episode,) = groups[0].episodes
    assert episode.answer == "2" and len(episode.trajectories) == 1
    assert [s.value for s in groups[0].scores["reward"].values()] == [1.0]


def test_in_training_a_search_that_ends_no_answer_teaches_nothing(tags):
    _, groups = searched(line_search(expansions=1, lookahead=0, finish=False), tags)
    (episode,) = groups[0].episodes
    assert (episode.answer, episode.trajectories, episode.cost["turns"]) == (None, [], 3)
    assert per_trajectory()(groups=groups) == line_values(groups=groups) == []
    # answers that ended are closed all the same
    _, (group,) = searched(line_search(lookahead=1, finish=False), tags)
    assert group.episodes[0].answer == "2" and len(group.episodes[0].trajectories) == 2
    method = registry.methods.get("rest_mcts")()
    main, mcts = method.stage.programs["main"], method.decode["mcts"]
    assert (main.hyper_parameters["finish"], mcts.hyper_parameters["finish"]) == (False, True)
    assert main.replace(finish=True) == mcts.replace(finish=True), "they differ in nothing else"


def test_the_first_values_are_those_of_right_lines_and_of_slips_beside_them(tags):
    """Three lines to a right answer: 1/3, 2/3, 1; m is 4 at the root, then 3 and 2. A slip beside each takes the m
    of what is above it: max(0, 0 - 1/4), 1/3 - 2/3 / 3, 2/3 - 1/3 / 2.
    """
    task = Task("d", "compute: 1 + 1 + 2 =\n", ("4",), (" 1 + 1 = 2. 2 + 2 = 4.<answer> 4</answer>",))
    context = scripted_context(with_slips(), [], tags)
    groups = asyncio.run(play(context, [RolloutRequest(task, 1)]))
    (episode,) = groups[0].episodes
    assert episode.why == ""
    found = {}
    for example in line_values(groups=groups):
        leaf = example.segments[-1].source
        text = tags.decode(episode.tree.id[episode.tree.places(leaf.node)])[len(task.prompt) :]
        found[text] = example.given["target"][1]
    right = {t: v for t, v in found.items() if (task.data[0]).startswith(t)}
    assert right == pytest.approx({" 1 + 1 = 2.": 1 / 3, " 1 + 1 = 2. 2 + 2 = 4.": 2 / 3, task.data[0]: 1.0})
    wrong = sorted(v for t, v in found.items() if t not in right)
    assert wrong == pytest.approx([0.0, 1 / 3 - 2 / 9, 2 / 3 - 1 / 6])
    lines = {line for t in found if t not in right for line in [t.split(".")[-2 if t.endswith(".") else -1]]}
    assert not lines & {" 1 + 1 = 2", " 2 + 2 = 4", "<answer> 4</answer>"}


def test_one_slip_is_gone_on_from_and_all_that_follows_it_is_worth_less(tags):
    """The slip beside the first of three lines: max(0, 0 - 1/4), and what is said after it stays there, to its end."""
    data = (" 1 + 1 = 2. 2 + 2 = 4.<answer> 4</answer>",)

    def reply(text: str, key: int) -> str:
        return "<answer> 5</answer>" if text.endswith("5.") else " 3 + 2 = 5."

    context = scripted_context(with_slips(), reply, tags)
    requests = [RolloutRequest(Task(f"d{n}", "compute: 1 + 1 + 2 =\n", ("4",), data), 1) for n in range(20)]
    found = list[dict[str, float]]()
    for group in asyncio.run(play(context, requests)):
        tree, prompt = group.episodes[0].tree, len(group.request.task.prompt)
        found.append(
            {
                tags.decode(tree.id[tree.places(e.segments[-1].source.node)])[prompt:]: e.given["target"][1]
                for e in line_values(groups=[group])
            }
        )
    values = max(found, key=len)  # of an episode in which the first line was drawn
    assert len(values) == 8, "three right lines, three slips, and two lines after the first of these"
    followed = {text: value for text, value in values.items() if " 3 + 2 = 5." in text}
    assert len(followed) == 2 and set(followed.values()) == {0.0}


def test_a_wrong_line_differs_in_its_conclusion():
    draw = np.random.default_rng(0)
    for line in (" 3 + 4 = 7.", "<answer> 12</answer>", " 1 - 1 = 0."):
        wrong = altered(line, draw)
        assert wrong is not None and wrong != line and len(wrong.split()) == len(line.split())
    assert altered(" rotate : a b c.", draw) == " rotate : a c b."
    assert altered(" a a.", draw) is None and altered("</think>", draw) is None


def test_the_value_model_is_trained_before_the_first_search_and_both_ways_have_one_budget():
    first, main = registry.methods.get("rest_mcts")().stages
    assert [u.params for u in first.updates] == [("vm",)] and first.updates[0].minibatches == 60
    assert len(registry.methods.get("rest_mcts")(value_warmup=0).stages) == 1
    searching = main.programs["main"].hyper_parameters
    whole = registry.methods.get("rest_mcts")(by_search=False).stage.programs["main"].hyper_parameters
    assert searching["tokens"] == whole["tokens"] == 320
    assert searching["expansions"] >= 320 and whole["n"] >= 320  # nothing but tokens bounds either
    assert not searching["stop_early"]
