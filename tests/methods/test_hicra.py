"""HICRA by hand: phrases that are strategic, the tokens inside them, and what credit these get."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.battery import of, same
from support.episodes import scripted_context, single_turn_group

from selfteach.core import BadValue, Term, Update
from selfteach.credit.advantages import center
from selfteach.credit.composers import per_trajectory
from selfteach.methods.hicra import (
    amplify_planning,
    matched,
    per_trajectory_planned,
    random_grams,
    strategic_grams,
    words_of,
)
from selfteach.objective.loss_weights import sequence_mean
from selfteach.objective.policy import clipped_ratio
from selfteach.rollout.single import single


def test_planning_tokens_get_more_credit_and_less_blame():
    got = amplify_planning(adv=[2.0, -2.0, 0.0], planning=[1, 0, 1, 0, 1], seq=[0, 0, 1, 1, 2], alpha=0.25)
    assert got["adv"].values.tolist() == [2.5, 2.0, -1.5, -2.0, 0.0]


def solution(plan: str, steps: int) -> tuple[str, ...]:
    return (*plan.split(), *(["a", "+", "b", "=", "c", "."] * steps), "so", "it", "is")


def test_strategic_grams_are_frequent_and_not_repeated():
    # Five share one plan and six one end, a seventh has a plan of its own; the steps stand in all, and several times.
    solutions = [solution("let us try", 3) for _ in range(5)] + [solution("we give up", 2), solution("or not x", 2)]
    # of six phrases that more than one has, once each: three of the end (seven have them), three of the plan (five)
    found = strategic_grams(solutions, sizes=(3,), share=0.6)
    assert ("so", "it", "is") in found and ("let", "us", "try") in found
    assert ("a", "+", "b") not in found and ("we", "give", "up") not in found  # repeated; of one solution alone
    # ceil(0.05 n) = 1 cluster: of the end, which all seven have
    (only,) = strategic_grams(solutions, sizes=(3,), share=0.05)
    assert only in {(".", "so", "it"), ("=", "c", "."), ("so", "it", "is"), ("c", ".", "so")}
    assert ("a", "+", "b") in strategic_grams(solutions, sizes=(3,), share=1.0, repeats=10.0)
    assert strategic_grams([], sizes=(3,)) == {}


def test_similar_phrases_are_one_cluster_and_are_kept_together():
    # "we now try it" and "now try it we" share all words (cosine 1): as one cluster five solutions have it, more than
    # the four with the other phrase
    solutions = [
        tuple(s.split()) for s in ["we now try it"] * 3 + ["now try it we"] * 2 + ["quite another way here"] * 4
    ]
    found = strategic_grams(solutions, sizes=(4,), share=0.5)
    assert set(found) == {("we", "now", "try", "it"), ("now", "try", "it", "we")}
    assert len(set(found.values())) == 1
    assert set(strategic_grams(solutions, sizes=(4,), share=0.3, similar=1.1)) == {("quite", "another", "way", "here")}


def test_a_phrase_has_no_number():
    said = [("first", "add", "#", "and", "then", "#.")] * 2
    assert set(strategic_grams(said, share=1.0)) == {("first", "add"), ("and", "then")}


def test_random_grams_are_as_many_of_whatever_several_solutions_have():
    text = [("p", "#", "p", "#", "r", "s")] * 3 + [("q",)]
    got = random_grams(text, (2,), 2)
    assert sorted(got.values()) == [0, 1] and set(got) <= {("p", "#"), ("#", "p"), ("#", "r"), ("r", "s")}
    assert set(random_grams(text, (2,), 9)) == {("p", "#"), ("#", "p"), ("#", "r"), ("r", "s")}
    assert random_grams([("p", "#")], (2,), 9) == {}


def test_a_token_belongs_to_a_word_if_any_of_its_bytes_does(letters):
    """The letters' tokenizer has a token a byte: `go 17 up` after the prompt, of which 17 counts as #."""
    group = single_turn_group([tuple(letters.encode("go 17 up"))], [1.0], prompt=tuple(letters.encode("Q:")))
    context = context_of(letters, group)
    words = words_of(context, group.episodes[0].trajectories[0].leaf)
    assert [(w, rows.tolist()) for w, rows in words] == [("go", [0, 1]), ("#", [3, 4]), ("up", [6, 7])]
    assert matched(words, {("#", "up"): 5, ("go", "up"): 6}) == ([3, 4, 6, 7], {3: 5})
    # of two that begin at one place the longer says what is said there
    assert matched(words, {("go", "#", "up"): 7, ("go", "#"): 8}) == ([0, 1, 3, 4, 6, 7], {0: 7})


def context_of(letters: Any, group: Any) -> Any:
    context = scripted_context(single(), lambda *_: "x", letters)
    context.trees.update({e.id: e.tree for e in group.episodes})
    return context


def test_grams_are_mined_from_the_right_answers_of_the_run(letters):
    texts = ["try it now 1", "try it now 2", "give it up 3"]
    group = single_turn_group([tuple(letters.encode(t)) for t in texts], [1.0, 1.0, 0.0])
    context = context_of(letters, group)
    made, state = per_trajectory_planned(groups=[group], context=context, state={"solutions": []}, share=1.0)
    assert state == {"solutions": ["try it now #"] * 2}
    said = [1, 1, 1, 0, 1, 1, 0, 1, 1, 1, 0, 0]  # `try it now`, without the spaces and the number
    assert [e.given["planning"][1].tolist() for e in made] == [said, said, [0.0] * 12]
    _, later = per_trajectory_planned(groups=[group], context=context, state=state, corpus=3)
    assert later == {"solutions": ["try it now #"] * 3}
    with pytest.raises(BadValue, match="grams must be strategic or random"):
        per_trajectory_planned(groups=[group], context=context, state=state, grams="other")


def test_the_entropy_of_plans_is_that_of_which_phrases_are_said(letters):
    # of five plans three are the one and two the other: H = 3/5 log 5/3 + 2/5 log 5/2
    texts = ["try it 1", "try it 2", "try it 3", "give up 4", "give up 5", "no 6"]
    group = single_turn_group([tuple(letters.encode(t)) for t in texts], [1.0] * 5 + [0.0])
    made, _ = per_trajectory_planned(
        groups=[group], context=context_of(letters, group), state={"solutions": []}, share=1.0
    )
    surprise = np.concatenate([e.given["surprise"][1] for e in made])
    said = surprise[surprise >= 0]
    assert said.round(3).tolist() == [0.511, 0.511, 0.511, 0.916, 0.916]
    assert said.mean() == pytest.approx(0.673, abs=5e-4)


def test_without_alpha_it_is_grpo_without_a_deviation_and_with_a_higher_clip():
    grpo = of("grpo")
    ratio = Term(clipped_ratio(low=0.2, high=0.28), loss_weights=sequence_mean())
    centred = grpo.replace(credit=(per_trajectory(), center()), updates=(Update(("policy",), (ratio,)),))
    same(of("hicra", alpha=0.0), centred)
    with pytest.raises(AssertionError):
        same(of("hicra", alpha=0.0), grpo)
