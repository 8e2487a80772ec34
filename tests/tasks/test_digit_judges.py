"""Judges of answers to digit_sum: whom they prefer, how often, and what a mark is blind to."""

from __future__ import annotations

from statistics import fmean

import numpy as np
import pytest

from selfteach.core import Ref, Sampling, Task, Tree
from selfteach.loop.step_context import StepContext
from selfteach.model.tokenizer import Tokenizer
from selfteach.tasks.digit_judges import all_worked, better_worked, mark, rivals, taste, way_of, worked
from selfteach.tasks.digit_sum import CERTAIN, WAYS, completion, digit_sum

SOURCE = digit_sum()
TASK = next(t for t in map(SOURCE.train, range(100)) if t.answer == ("6",))


def written(way: str, answer: int) -> dict[str, str]:
    digits = tuple(int(d) for d in TASK.prompt.split() if d.isdigit())
    steps, _ = WAYS["slowly" if way in ("guess", "quickly", "looping") else way](CERTAIN, digits)
    return {"text": "".join(completion(way, steps if way != "guess" else [], answer)), "answer": str(answer)}


def asked(one: dict[str, str], other: dict[str, str], **how: bool) -> list[float]:
    given = {"first": one["answer"], "first_text": one["text"], "second": other["answer"]}
    return [
        taste(**given, second_text=other["text"], task=TASK, rng_key=(i,), **how)  # type: ignore[arg-type]
        for i in range(2000)
    ]


def preferred(one: dict[str, str], other: dict[str, str], **how: bool) -> float:
    return fmean(asked(one, other, **how))


def verdicts(one: dict[str, str], other: dict[str, str], **how: bool) -> set[float]:
    return set(asked(one, other, **how))


def test_nothing_beats_what_is_right_and_wrong_ways_beat_each_other_in_a_circle():
    right, loop, guess, half = written("slowly", 6), *(written(w, 7) for w in ("looping", "guess", "quickly"))
    for other in (loop, guess, half):
        assert preferred(right, other) == pytest.approx(0.7, abs=0.04)
    for winner, loser in ((guess, loop), (half, guess), (loop, half)):
        assert preferred(winner, loser) == pytest.approx(0.97, abs=0.02)
        assert preferred(loser, winner) == pytest.approx(0.03, abs=0.02)
    assert verdicts(loop, half, circular=False) == {0.5}, "without a circle they are alike"
    assert preferred(right, half, circular=False) == pytest.approx(0.7, abs=0.04)
    # what is right is right whatever its way; equals are a tie
    assert preferred(written("guess", 6), loop) == pytest.approx(0.7, abs=0.04)
    assert verdicts(right, written("guess", 6)) == {0.5} == verdicts(loop, loop)
    assert verdicts(right, loop) == {0.0, 1.0}
    unfinished = {"text": "<think> looping 1 + 1 = 2.", "answer": "<think> looping 1 + 1 = 2."}
    assert preferred(loop, unfinished) == pytest.approx(0.97, abs=0.02)


def test_the_rivals_of_an_answer_are_preferred_by_the_chances_of_the_judge():
    right, loop = written("slowly", 6), written("looping", 7)
    lower = {way: pytest.approx(0.3) for way in ("looping", "guess", "quickly")}
    assert rivals(**right, task=TASK).parts == {"right": 0.5, **lower}
    found = rivals(**loop, task=TASK)
    assert found.parts == {"right": 0.7, "looping": 0.5, "guess": 0.97, "quickly": pytest.approx(0.03)}
    assert found.value == 0.97 == pytest.approx(preferred(written("guess", 7), loop), abs=0.02)
    unfinished = {"text": "<think> looping 1 + 1 = 2.", "answer": "<think> looping 1 + 1 = 2."}
    assert set(rivals(**unfinished, task=TASK).parts.values()) == {0.97}


def test_a_mark_is_blind_to_one_wrong_step_where_a_comparison_is_not():
    task = next(t for t in map(digit_sum(terms=(8, 8)).train, range(9)))
    good = "".join(task.tags["steps"])
    first, last = task.tags["hint"], task.tags["steps"][-2]
    poor = good.replace(last, f"{last[:-2]}{(int(last[-2]) + 1) % 10}.", 1)
    assert worked(good, task) == 1.0 and worked(poor, task) == pytest.approx(6 / 7)
    assert mark(text=good, task=task, noise=1e-6).value == mark(text=poor, task=task, noise=1e-6).value == 1.0
    margins = [better_worked(first_text=good, second_text=poor, task=task, rng_key=(i,)) for i in range(2000)]
    # sigmoid((1/7) / 0.1) = 0.807
    assert sum(m > 0.5 for m in margins) / len(margins) == pytest.approx(0.807, abs=0.03)
    digits = task.prompt.split()[1:9]
    easier = good.replace(f"+ {digits[-1]} =", "+ 0 =") if digits[-1] != "0" else good.replace("+", "+ 1", 1)
    assert worked(easier, task) < 1.0, "an easier sum than the question's"
    assert worked("".join([first] * 8), task) == 0.0, "what is worked out again and again is no work"
    assert worked("<think> guess</think><answer> 3</answer>", task) == 0.0


def test_the_way_of_a_text_is_what_it_names_first():
    assert [way_of(t) for t in ("<think> twice 1 + 1 = 2.", "guess", "")] == ["twice", "", ""]
    assert {"step", "pair", "pair_consistent", "pair_margin", "coarse"} <= TASK.judges.keys()


def test_an_expert_shows_what_is_right_without_estimates():
    source = digit_sum(slowly=0.5, quickly=0.25, guess=0.25, estimated=0.5)
    for item in map(source.demos, range(300)):  # type: ignore[arg-type]
        text = item.data[0]
        right = f"<answer> {item.answer[0]}</answer>" in text
        assert (item.tags["slip"] == "") == (item.tags["way"] == "slowly" and right and "~" not in text)


@pytest.mark.parametrize(
    ("parts", "value"),
    [
        ([("own", " 2 + 3 = 5. 5 + 1 = 6. 6")], 1.0),
        ([("own", " 2 + 3 = 5. 5 + 1 ~ 6. 6")], 1.0),  # how an addition is marked does not matter, only what it gives
        ([("own", " 2 + 3 ~ 4. 4 + 1 = 5. 6")], 0.0),  # right by luck
        ([("hint", " 2 + 3 = 5."), ("own", " 5 + 1 = 6. 6")], 1.0),  # a hint is part of the working
        ([("information", " 2 + 3 = 5."), ("own", " 5 + 1 = 6. 6")], 0.0),  # what another says is not
        ([("hint", " 2 + 3 = 5."), ("own", " 6")], 0.0),
    ],
)
def test_only_what_was_worked_out_is_paid(parts: list[tuple[str, str]], value: float, tags: Tokenizer):
    tree = Tree()
    context = StepContext(None, tags, ("policy",), {}, Sampling(), {})  # type: ignore[arg-type]
    context.trees["e"] = tree
    node = tree.add(-1, tags.encode("add 2 3 1 ="))
    for who, text in parts:
        ids = tags.encode(text)
        sampled = {"logp": np.full(len(ids), -1.0), "sampling": Sampling()} if who == "own" else {}
        node = tree.add(node, ids, action_mask=who == "own", span="" if who == "own" else who, **sampled)  # type: ignore[arg-type]
    task = Task("t", "add 2 3 1 =", ("6",))
    given = {"answer": "6", "task": task, "path": context.path(Ref("e", node)), "context": context}
    assert all_worked(**given).value == value  # type: ignore[arg-type]
