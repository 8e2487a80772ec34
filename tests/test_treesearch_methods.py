"""Tree search: values of lines by hand, how a search walks, what is learned from its tree."""

from __future__ import annotations

import asyncio
import math
from typing import ClassVar

import numpy as np
import pytest
import torch
from conftest import table_of

from selfteach.core import Score, Task, gather, registry
from selfteach.core.scoring import score
from selfteach.core.task import Request
from selfteach.credit.compose import each
from selfteach.credit.searched import inferred_values, line_values, right_only
from selfteach.engine.scripted import ScriptedEngine
from selfteach.loop.episode import play
from selfteach.objective.value import success_loss
from selfteach.reward.answer import answered
from selfteach.rollout.lines import Line, best_of, line_search


def test_values_of_lines_by_hand():
    """Root, a, b right, c wrong below a; d wrong below the root, e wrong below d; f, which never ended.

    m: b 1, a 2, root 3. a: 0 + 1/2. b: 1/2 + 1/2 * 1. c takes a's 2: 1/2 - 1/2 * 1/2. d takes the root's 3: max(0, -1/3). e the same.
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


def test_urgency_is_uct_and_backing_up_is_the_mean_by_visits():
    root = Line(None)
    a, b = Line(None, root, 1, 0.9), Line(None, root, 1, 0.2)
    root.below = [a, b]
    assert a.urgency(0.7) > b.urgency(0.7) and math.isinf(b.urgency(0.7)[0])
    a.back_up(), a.back_up(), b.back_up()
    assert (root.visits, a.visits, b.visits) == (3, 2, 1)
    assert root.value == pytest.approx((2 * 0.9 + 0.2) / 3)
    assert a.urgency(0.7)[0] == pytest.approx(0.9 + 0.7 * math.sqrt(2 * math.log(3) / 2))


class Judged(ScriptedEngine):
    """Writes lines from a table of what may follow; its judge likes every `2`."""

    NEXT: ClassVar = {"": ["<think> 1 + 1 = 2.", "<think> 1 + 1 = 3."], "2.": ["</think><answer> 2</answer>"], "3.": ["</think><answer> 3</answer>"]}

    def __init__(self, tokenizer):
        super().__init__(self.reply, tokenizer)
        self.turn = 0

    def reply(self, text, address):
        self.turn += 1
        options = next(v for k, v in sorted(self.NEXT.items(), reverse=True) if text.endswith(k))
        return options[self.turn % len(options)]

    async def score(self, member, context, tokens, want=("logp",)):
        assert member == "vm" and want == ("scalar_after",)
        good = self.tokenizer.decode(tokens).count("2")
        return {"scalar_after": np.full(len(tokens), 2.0 * good - 1.0, np.float32)}


TASK = Task("t", "compute: 1 + 1 =\n", ("2",))


class Endless(Judged):
    """The wrong way goes on and on."""

    NEXT: ClassVar = Judged.NEXT | {"3.": [" 3 + 0 = 3."]}


def searched(program, tokenizer, n=1, engine=Judged):
    table = table_of(program, [], tokenizer, members=("policy", "vm"))
    table.engine = engine(tokenizer)
    groups = asyncio.run(play(table, [Request(TASK, n)]))
    groups[0].scores.update(asyncio.run(score(answered(), groups, table)))
    assert {e.status for e in groups[0].episodes} == {"done"}, groups[0].episodes[0].why
    return table, groups


def test_a_search_finds_the_answer_that_the_judge_likes_and_stops_there(tags):
    table, groups = searched(line_search(ahead=1), tags, engine=Endless)
    (episode,) = groups[0].episodes
    assert episode.answer == "2"
    kept, _ = searched(line_search(ahead=1, whole=True), tags, engine=Endless)
    assert len(kept.trees[episode.id]) > len(table.trees[episode.id]), "for a tree to learn from it goes on"


def test_a_search_keeps_to_its_tokens_as_does_best_of(tags):
    for program, most in ((line_search(tokens=60, whole=True, rounds=99), 260), (best_of(tokens=60, n=99), 100)):
        _, groups = searched(program, tags)
        spent = groups[0].episodes[0].cost["tokens"]
        assert 60 <= spent <= most
    assert searched(best_of(n=4), tags)[1][0].episodes[0].cost["turns"] == 4


def test_the_tree_teaches_every_line_once_and_the_policy_what_was_right(tags):
    table, groups = searched(line_search(ahead=1, whole=True), tags)
    (episode,) = groups[0].episodes
    values = line_values(groups=groups)
    told = {}
    for example in values:
        leaf = example.parts[-1].source
        told[tags.decode(episode.tree.id[episode.tree.places(leaf.node)])[len(TASK.prompt) :]] = example.given["target"][1]
    # The right way has two lines: 1/2 and 1. The wrong one falls from the root's m = 2: max(0, -1/2), and again.
    right, wrong = "<think> 1 + 1 = 2.", "<think> 1 + 1 = 3."
    assert told == pytest.approx({right: 0.5, f"{right}</think><answer> 2</answer>": 1.0, wrong: 0.0, f"{wrong}</think><answer> 3</answer>": 0.0})
    examples = [*each()(groups=groups), *values]
    batch = gather(examples, table.tree)
    assert (batch.lengths()[[n.count(":value") > 0 for n in batch.names]] == 1).all(), "a line's last token is its row"
    kept = right_only(reward=batch.get("reward", "seq"))
    by = dict(zip(batch.names, zip(kept["keep"].values, kept["adv"].values, strict=True), strict=True))
    assert sorted(by.values()) == [(0.0, 0.0), *[(1.0, 0.0)] * 4, (1.0, 1.0)]


def test_the_value_model_is_fitted_by_squares():
    # sigmoid(0) = 1/2: (1/2 - 1)^2, (1/2 - 1/4)^2
    assert success_loss(critic_value=torch.zeros(2), target=torch.tensor([1.0, 0.25])).tolist() == pytest.approx([0.25, 0.0625])


def test_each_answer_is_judged_by_its_own_text():
    assert answered(text="<answer> 2</answer>", task=TASK).value == 1.0
    assert answered(text="no end", task=TASK).value == 0.0 and isinstance(answered(text="", task=TASK), Score)


def test_the_value_model_is_a_member_with_a_scalar_head_alone():
    made = registry.methods.get("rest_mcts")()
    assert made.cast["vm"].heads == ("scalar",) and {u.params for u in made.stage.updates} == {("vm",), ("policy",)}
