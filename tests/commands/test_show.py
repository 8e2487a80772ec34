"""Tables on stdout: what of them stays whole in a pipe and on a narrow terminal."""

from __future__ import annotations

import pytest

from selfteach.analysis.figures import ReportTable
from selfteach.commands.show import print_tables

NAMES = ["a_method_with_a_long_name", "another"]
HEADS = ["", *(f"measure {n}" for n in range(11)), "tokens"]
TABLE = ReportTable("many columns", HEADS, [[n, *["12.5 [10.0, 15.0]"] * 11, "250000"] for n in NAMES])


def test_in_a_pipe_every_row_is_one_line(capsys):
    print_tables([TABLE])
    rows = [line for line in capsys.readouterr().out.splitlines() if line.strip().startswith(tuple(NAMES))]
    assert [row.split()[0] for row in rows] == NAMES
    assert all(row.count("12.5 [10.0, 15.0]") == 11 and row.rstrip().endswith("250000") for row in rows)


def test_on_a_narrow_terminal_names_and_numbers_stay_whole(capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "130")
    print_tables([TABLE._replace(columns=[*HEADS[:7], HEADS[-1]], rows=[[*row[:7], row[-1]] for row in TABLE.rows])])
    out = capsys.readouterr().out
    assert "12.5 [10.0," in out and "12.5 [10.0, 15.0]" not in out  # intervals are folded
    assert all(name in out for name in NAMES) and out.count("250000") == 2
