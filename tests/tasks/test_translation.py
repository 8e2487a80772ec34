"""Translation between two made languages: what is right, what each way gets wrong, and what a judgement sees of it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from selfteach import task_source
from selfteach.core import BadValue, Task
from selfteach.reward.answer import exact_match
from selfteach.reward.overlap import word_f1
from selfteach.rollout.judging import JUDGE, REFINE, score_of
from selfteach.tasks.translation import LEXICON, TRANSLATION, WAYS, adequacy, judgement, translated


def source(**options: Any) -> Any:
    return task_source("translation", {"n_test": 100, **options})


def way(name: str) -> dict[str, float]:
    return {**dict.fromkeys(WAYS, 0.0), name: 1.0, "practised": 0.0, "judged": 0.0}


def answer_of(item: Task) -> str:
    return item.data[0].rsplit("<answer> ", 1)[-1].removesuffix("</answer>")


def test_there_and_back_is_the_same_and_no_sentence_is_tested_in_either_direction():
    made = source()
    assert len(TRANSLATION) == 2 * sum(map(len, LEXICON.values())) == 40
    train = [made.train(i) for i in range(300)]
    assert 0.4 < sum(t.tags["language"] == "first" for t in train) / 300 < 0.6
    sentences = [tuple(t.prompt.removeprefix("translate: ").removesuffix(" =\n").split()) for t in train]
    for words, item in zip(sentences, train, strict=True):
        assert translated(translated(words)) == words and item.answer == (" ".join(translated(words)),)
        assert exact_match(answer=item.answer[0], task=item).value == 1.0
    tested = {t.prompt for t in made.test} | {f"translate: {t.answer[0]} =\n" for t in made.test}
    assert not tested & {t.prompt for t in train}


@pytest.mark.parametrize(("name", "right", "words"), [("slowly", 1.0, 1.0), ("literally", 0.2, 1.0)])
def test_what_is_right_about_a_way(name: str, right: float, words: float):
    made = source(**way(name))
    for item in map(made.demos, range(50)):
        # kept in order, only the fourth word of five is at its place, or more where words are said twice
        assert adequacy()(answer=answer_of(item), task=item) >= right
        assert word_f1(answer=answer_of(item), task=item).value == words
    assert all((made.demos(i).data[0].startswith(f"<think> {name}")) for i in range(50))


def test_what_judgements_overlook():
    made = source(**way("loosely"))
    wrong = 0
    for item in map(made.demos, range(100)):
        said, wanted = tuple(answer_of(item).split()), tuple(item.answer[0].split())
        worth = adequacy()(answer=answer_of(item), task=item)
        wrong += worth < 1.0
        assert score_of(judgement(said, wanted, "adjective")) == 1.0
        assert score_of(judgement(said, wanted, "")) == pytest.approx(worth)
        assert judgement(said, wanted, "").count("-") == round(5 * (1 - worth))
    assert wrong > 80, "an adjective is right once in six"
    assert score_of(judgement(("miro",), ("miro", "veto"), "")) == 0.0


def test_demonstrations_judge_as_often_as_they_are_told():
    for judged in (0.0, 0.5, 1.0):
        made = source(judged=judged)
        shares = [JUDGE in made.demos(i).prompt for i in range(300)]
        assert abs(sum(shares) / 300 - judged) < 0.1
    items = [source().practice(i) for i in range(100)]
    assert all(JUDGE in t.prompt or re.search(r"<think> (slowly|loosely|literally)$", t.prompt) for t in items)
    scores = [score_of(t.data[0]) for t in items if JUDGE in t.prompt]
    assert {0.0, 1.0} < set(scores), "good and bad translations are judged"
    refined = [source(judged=0.0, refined=1.0, overlooked=False).demos(i) for i in range(60)]
    for item in refined:
        asked, before, after = item.prompt.partition(f"\n{JUDGE}\n")
        feedback, _, last = after.partition(f"\n{REFINE}")
        said = tuple(asked.rpartition("\n")[2].split())
        assert before and last == "\n" and feedback == judgement(said, tuple(item.answer[0].split()), "")
    right = [answer_of(item) == item.answer[0] for item in refined]
    assert 0.4 < sum(right) / 60 < 0.8, "mostly slowly"
    with pytest.raises(BadValue, match="judged and refined must be 1 at most"):
        source(judged=0.6, refined=0.6)
    with pytest.raises(BadValue, match="must sum to 1"):
        source(slowly=0.9)
    with pytest.raises(BadValue, match="translation: judged must be a share"):
        source(judged=2.0)
