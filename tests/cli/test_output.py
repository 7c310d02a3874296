"""A table on a narrow terminal: no word is broken, and what is left out is named."""

import pytest

from forewarn.cli import output

CELLS = {
    "REF": ["12.1", "12.2"],
    "TYPE": ["Reboot", "Redeploy"],
    "NOTICE": ["15m", "10m"],
    "WAITED": ["14m 30s", "-"],
    "OUTCOME": ["-", "cancelled by ann: not today"],
}


def test_a_table_that_fits_is_shown_whole() -> None:
    assert output.hide(CELLS, 80) == []
    assert output.hide(CELLS, 6 + 10 + 8 + 8 + 11 + 1) == []


def test_a_narrow_terminal_does_without_the_least_important_columns() -> None:
    assert output.hide(CELLS, 6 + 10 + 8 + 8 + 11) == ["WAITED"]
    assert output.hide(CELLS, 6 + 10 + 11 + 1) == ["WAITED", "NOTICE"]


def test_the_first_column_is_always_shown() -> None:
    assert output.hide({"EVENT": ["C1BF8322-4CBF-4FC4-9C45-B40CF3106D0E"], "TYPE": ["-"]}, 20) == []


def test_the_words_of_a_drawn_table_are_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "36")
    output._draw(list(CELLS), list(zip(*CELLS.values(), strict=True)))
    shown = capsys.readouterr()
    for word in ("12.1", "Redeploy", "cancelled", "today"):
        assert word in shown.out
    assert "WAITED" not in shown.out
    assert "WAITED" in shown.err
