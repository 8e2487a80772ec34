"""Self-certainty by hand: distances from uniform, votes by rank, and the answer that is returned."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import numpy as np
import pytest
import torch
from support.answers import answered_group, paid
from support.battery import of
from support.episodes import scripted_context

from selfteach.core import RolloutRequest, Task
from selfteach.engine.scripted import ScriptedEngine
from selfteach.loop.episode import play
from selfteach.methods.self_certainty import borda_votes, certainty, certainty_vote
from selfteach.model import quantities
from selfteach.reward.answer import exact_match


def test_certainty_is_the_distance_from_uniform():
    # over two tokens of 1/2 and 1/2 it is 0; of 1/4 and 3/4: -(log 1/4 + log 3/4) / 2 - log 2
    logprobs = torch.log(torch.tensor([[0.5, 0.5], [0.25, 0.75]], dtype=torch.float64))
    got = quantities.compute("self_certainty_at", {"logprobs": logprobs})
    assert got.tolist() == pytest.approx([0.0, -(math.log(0.25) + math.log(0.75)) / 2 - math.log(2)])


def test_votes_are_by_rank():
    assert borda_votes([0.3, 0.9, 0.5, 0.9], 1.0) == [1, 4, 2, 3]  # of equals the earlier first
    assert borda_votes([0.3, 0.9, 0.5], 0.0) == [1, 1, 1]
    assert borda_votes([0.3, 0.9], 3.0) == [1, 8]


# four samples: 5 twice and hardly certain, 7 once and certain, 8 once and in between
SAID = ["<answer>5</answer>", "<answer>7</answer>", "<answer>8</answer>", "<answer>5</answer>"]
CERTAIN = {"5": 0.1, "7": 0.9, "8": 0.5, "4": 0.05}


def chosen(letters: Any, monkeypatch: Any, said: list[str] = SAID, **how: Any) -> tuple[str, list[str | None]]:
    replies = iter(said)

    async def score(self: Any, model_role: str, context: Any, tokens: Any, want: Any) -> dict[str, np.ndarray]:
        text = letters.decode(tokens)
        return {n: np.full(len(tokens), next(c for a, c in CERTAIN.items() if a in text)) for n in want}

    monkeypatch.setattr(ScriptedEngine, "score", score)
    context = scripted_context(certainty_vote(k=4, **how), lambda text, key: next(replies), letters)
    (group,) = asyncio.run(play(context, [RolloutRequest(Task("t", "Q:", "7"), 1, key="k")]))
    (episode,) = group.episodes
    assert episode.status == "done", episode.why
    return episode.answer, [t.learn for t in episode.trajectories]


def test_the_answer_by_each_way(letters, monkeypatch):
    assert chosen(letters, monkeypatch, by="vote") == ("5", ["main", None, None, None])
    assert chosen(letters, monkeypatch, by="best") == ("7", [None, "main", None, None])
    # ranks 3, 1, 2, 4: at power 1 the votes are 2 + 1 for 5, 4 for 7; at power 1/2 2.41 against 2
    assert chosen(letters, monkeypatch, by="borda", power=1.0)[0] == "7"
    assert chosen(letters, monkeypatch, by="borda", power=0.5)[0] == "5"
    assert chosen(letters, monkeypatch, by="borda", power=0.0)[0] == "5"


def test_a_sample_without_an_answer_has_a_rank_and_no_vote(letters, monkeypatch):
    five, eight = "<answer>5</answer>", "<answer>8</answer>"
    # the most certain says 7 in no tags: it would have 4 votes of 10 and be the best
    untagged = ["7", five, eight, five]
    assert chosen(letters, monkeypatch, untagged, by="best") == ("8", [None, None, "main", None])
    assert chosen(letters, monkeypatch, untagged, by="borda", power=3.0) == ("8", [None, None, "main", None])
    # two of them would have the majority
    assert chosen(letters, monkeypatch, ["7", "7", eight, "7"], by="vote") == ("8", [None, None, "main", None])
    # the least certain says 4 in no tags: its rank is used up, so that 8 has 4^1.2 = 5.28, less than 3^1.2 + 2^1.2 =
    # 6.03 of the 5s; were it not, 8 would have 3^1.2 = 3.74, more than 2^1.2 + 1 = 3.30
    assert chosen(letters, monkeypatch, ["4", five, eight, five], by="borda", power=1.2)[0] == "5"
    # empty tags hold no answer either, and the trajectory that is scored is one with the answer in tags
    assert chosen(letters, monkeypatch, ["7<answer></answer>", eight, five, five], by="best")[0] == "8"
    assert chosen(letters, monkeypatch, ["5", five, "5", five], by="vote") == ("5", [None, "main", None, None])


def test_where_no_sample_has_an_answer_the_most_certain_says_it(letters, monkeypatch):
    none = ["5", "8", "7", "5"]
    assert chosen(letters, monkeypatch, none, by="best") == ("7", [None, None, "main", None])
    assert chosen(letters, monkeypatch, none, by="borda", power=0.0) == ("7", [None, None, "main", None])
    assert chosen(letters, monkeypatch, none, by="vote") == ("5", ["main", None, None, None])


def test_a_reward_that_is_the_judges_and_one_that_is_certainty(letters):
    texts = ["<answer>7</answer>", "<answer>5</answer>", "<answer>8</answer>"]
    say = lambda text: np.linspace(0.1, 0.3, 18)  # noqa: E731
    group, context, engine = answered_group(texts, "7", letters, say)
    judged = paid(certainty(judge=exact_match()), group, context=context)
    assert [s.value for s in judged] == [1, 0, 0]
    assert [s.parts["certainty"] for s in judged] == pytest.approx([0.2] * 3)  # the mean over 18 letters
    assert judged[0].parts["auc"] == judged[0].parts["auc_perplexity"] == 0.5  # all are equally certain
    assert engine.asked == [("q?", t) for t in texts] and group.episodes[0].cost["scored"] == 18
    own = paid(certainty(metric_judge=exact_match()), group, context=context)
    assert [s.value for s in own] == pytest.approx([0.2] * 3) and own[0].parts["auc"] == 0.5
    assert "auc" not in paid(certainty(), group, context=context)[0].parts


def test_certain_and_right_is_above_certain_and_wrong(letters):
    group, context, engine = answered_group(["<answer>7</answer>", "<answer>5</answer>"], "7", letters, None)

    async def score(model_role: str, context: Any, tokens: Any, want: Any) -> dict[str, np.ndarray]:
        right = "7" in letters.decode(tokens)
        of = {"self_certainty_at": 0.9 if right else 0.2, "raw_logp": -2.0 if right else -1.0}
        return {n: np.full(len(tokens), of[n]) for n in want}

    engine.score = score  # type: ignore[method-assign]
    first, second = paid(certainty(judge=exact_match()), group, context=context)
    assert (first.parts["auc"], first.parts["auc_perplexity"]) == (1.0, 0.0)
    assert (first.parts["certainty"], second.parts["certainty"]) == pytest.approx((0.9, 0.2))


def test_the_method_is_grpo_and_its_ways_of_decoding():
    method = of("self_certainty", k=3, power=1.5, beta=0.1)
    assert method.stage.updates == of("grpo", beta=0.1).stage.updates
    assert str(method.decode["borda"]) == "certainty_vote(k=3, by='borda', power=1.5)"
    assert "metric_judge" in str(of("self_certainty", intrinsic=True).stage.reward[0])
