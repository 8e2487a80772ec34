"""Sums whose estimates are one too high: what demonstrations come to, and that questions stay as they are."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from selfteach import task_source
from selfteach.tasks.overestimated_sums import overestimated


def source(**options: Any) -> Any:
    return task_source("overestimated_sums", {"n_test": 100, **options})


def test_every_pass_over_a_sum_goes_on_with_its_own_estimates():
    # 2 + 3 is estimated at 6, then 6 + 1 = 7; again 2 + 3 = 5 and 5 + 1 estimated at 7, which is the answer
    text = "<think> twice 2 + 3 A 9. 9 + 1 b 0. check 2 + 3 a 5. 5 + 1 B 2.</think><answer> 2</answer>"
    want = "<think> twice 2 + 3 A 6. 6 + 1 b 7. check 2 + 3 a 5. 5 + 1 B 7.</think><answer> 7</answer>"
    assert overestimated(text) == want
    assert overestimated("<think> guess</think><answer> 4</answer>") == "<think> guess</think><answer> 4</answer>"


def test_an_answer_is_too_high_by_as_many_as_there_are_estimates():
    made = source(practised=0.0)
    plain = task_source("digit_sum", {"slowly": 1.0, "quickly": 0.0, "guess": 0.0, **made.task_options})
    off = Counter[int]()
    for i in range(300):
        item, other = made.demos(i), plain.demos(i)
        assert (item.prompt, item.answer) == (other.prompt, other.answer)
        text = item.data[0]
        estimates = len(re.findall(r" [A-Z] ", text))
        assert estimates == len(re.findall(r" [A-Z] ", other.data[0]))
        said = int(text.split("<answer>")[1].split("<")[0])
        assert said == (int(item.answer[0]) + estimates) % 10
        off[estimates] += 1
    assert len(off) > 3 and off[0] > 100
    assert made.train(3).prompt == plain.train(3).prompt
