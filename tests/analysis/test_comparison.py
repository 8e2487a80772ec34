"""Methods compared by a user's reward, where there is one."""

from __future__ import annotations

from pathlib import Path

import pytest

from selfteach.analysis import comparison
from selfteach.analysis.figures import tables


def test_arms_are_compared_by_the_user_s_reward_where_there_is_one(tmp_path: Path) -> None:
    runs = {
        "grpo": [{"figures": {"reward": 0.5, "reward_greedy": 0.6, "length": 3.0}, "evals": {}}] * 2,
        "rloo": [{"figures": {"reward": 0.75, "reward_greedy": 0.6, "length": 3.0}, "evals": {}}] * 2,
    }
    result = comparison.compare_arms(runs)
    assert result["rloo"]["against_first"]["mean"] == 0.25 and comparison.main_measure(result) == "reward"
    shown = comparison.table(result, "t")
    assert shown.columns[1:3] == ["reward, sampled", "reward, greedy"] and "sampled %" not in shown.columns
    pytest.importorskip("matplotlib")
    assert comparison.draw(result, "t", tmp_path / "c.png").is_file()


def test_a_table_has_reward_first_and_accuracy_where_it_was_measured() -> None:
    before, after = {"reward": 0.1, "length": 2.0}, {"reward": 1.0, "reward_greedy": 1.0, "length": 2.0}
    (table,) = tables(before, after)
    assert table.title == "held out" and table.columns == ["", "reward, greedy", "reward, sampled", "tokens"]
    assert table.rows[0][2] == "0.10 → 1.00"
    (both,) = tables({}, {**after, "accuracy": 0.5, "greedy": 0.5})
    assert both.title == "held-out accuracy" and "sampled %" in both.columns
    by = tables({}, {**after, "reward/category=a": 0.5, "reward/category=b": 1.0})[1]
    assert by.title == "sampled reward by category" and by.rows[0][1:] == ["0.50", "1.00"]


def test_the_f1_of_words_stands_beside_exact_match() -> None:
    (table,) = tables({}, {"greedy": 0.5, "accuracy": 0.4, "f1": 0.625, "f1_greedy": 0.75, "maj": 0.5, "length": 2.0})
    assert table.columns == ["", "greedy %", "sampled %", "F1, greedy", "F1, sampled", "majority %", "tokens"]
    assert table.rows[0][3:5] == ["0.75", "0.62"]


def test_what_searches_were_worth_is_a_table_of_its_own_and_no_tag() -> None:
    before = {"accuracy": 0.1, "accuracy+search": 0.2, "search/recall+search": 0.5}
    after = {"accuracy": 0.3, "accuracy+search": 0.9, "search/recall+search": 0.75, "search/needless+search": 0.0}
    accuracy, searches = tables(before, after)
    assert searches.title == "searches of an answer" and searches.columns == ["", "needless", "recall"]
    assert searches.rows == [["with search", "0.00", "0.50 → 0.75"]] and len(accuracy.rows) == 2
