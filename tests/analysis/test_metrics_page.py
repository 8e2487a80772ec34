"""docs/metrics.md is what the code says."""

from __future__ import annotations

from pathlib import Path

from selfteach.analysis.metrics_page import metrics_page
from selfteach.loop.metrics import FIGURES, METRICS, meaning_of

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_the_page_is_up_to_date():
    assert PAGE.read_text() == metrics_page(), "make format writes it"


def test_the_page_has_a_row_for_each_name():
    rows = [line.split("`")[1] for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert {*METRICS, *FIGURES} <= set(rows) and {"value_right", "clip_fraction"} <= set(rows)
    assert all(line.count(" | ") in (2, 3) for line in PAGE.read_text().splitlines() if line.startswith("| `"))


def test_every_name_says_what_it_means():
    rows = [line.split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert not [row[0] for row in rows if not row[1].strip()], "@logged has a third argument for it"


def test_the_most_literal_pattern_gives_the_meaning():
    assert meaning_of("policy/clip_fraction") != meaning_of("policy/odds_right") == METRICS["<group>/<name>"].meaning
    assert meaning_of("policy/2/loss/kl") == METRICS["<group>/loss/<term>"].meaning
    assert meaning_of("pass@64", FIGURES) and meaning_of("accuracy/hops=2", FIGURES) and not meaning_of("x", FIGURES)
