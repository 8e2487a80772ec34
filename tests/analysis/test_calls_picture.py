"""The picture of accuracy against calls: what it groups, and where there is nothing to draw."""

from __future__ import annotations

import pytest

from selfteach.analysis import calls_picture
from selfteach.analysis.calls_picture import call_groups, draw_calls
from selfteach.core import BadValue

OWN = {"accuracy": 0.6, "stderr": 0.1, "calls": 1.2}
OWN |= {"accuracy/calls=0": 0.5, "share/calls=0": 0.4, "accuracy/calls=2": 0.7, "share/calls=2": 0.6}
OTHER = {"accuracy+search": 0.9, "stderr+search": 0.1, "calls+search": 10.0}
OTHER |= {"accuracy/calls=10+search": 0.9, "share/calls=10+search": 1.0}


def test_answers_are_grouped_by_program_and_number_of_calls():
    assert call_groups({**OWN, **OTHER}) == [(0, 0.4, 0.5), (2, 0.6, 0.7)]
    assert call_groups({**OWN, **OTHER}, "search") == [(10, 1.0, 0.9)] and call_groups(OWN, "search") == []


def test_the_picture(tmp_path):
    pytest.importorskip("matplotlib", reason="needs the extra selfteach[plot]")
    file = draw_calls({**OWN, **OTHER}, "a run", tmp_path / "deep" / "calls.png")
    assert file.read_bytes().startswith(b"\x89PNG") and file.stat().st_size > 10_000


def test_one_program_has_one_panel_with_the_mean_of_all_its_answers(tmp_path, monkeypatch):
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="needs the extra selfteach[plot]")
    figures = []
    monkeypatch.setattr(calls_picture, "save_figure", lambda figure, file: figures.append(figure))
    draw_calls(OWN, "a run", tmp_path / "calls.png")
    draw_calls({**OWN, **OTHER}, "a run", tmp_path / "calls.png")
    alone, both = figures
    (panel,) = alone.axes
    (point,) = [line for line in panel.lines if line.get_marker() == "D"]
    assert (list(point.get_xdata()), list(point.get_ydata())) == ([1.2], [60.0])  # all answers, between the dots
    assert [text.get_text() for text in panel.get_legend().get_texts()] == ["all answers, with one standard error"]
    assert alone.get_figwidth() < both.get_figwidth() and len(both.axes) == 2
    low, high = both.axes[1].get_xlim()
    assert (low, high) == (-0.5, 11.0)  # from no call on, the most being 10
    pyplot.close("all")


UNASKED = {"accuracy": 0.5, "calls": 0.0, "accuracy/calls=0": 0.5, "share/calls=0": 1.0}


@pytest.mark.parametrize("figures", [{}, UNASKED])
def test_without_calls_there_is_nothing_to_draw(figures, tmp_path):
    with pytest.raises(BadValue, match="nothing was called"):
        draw_calls(figures, "a run", tmp_path / "calls.png")
