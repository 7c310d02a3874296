"""A table on a terminal: no word is broken or lost, and a column that is left out is named."""

from datetime import datetime

import pytest

from forewarn.cli import output

GUID = "C1BF8322-4CBF-4FC4-9C45-B40CF3106D0E"
AT = "2026-11-21 07:40:53Z"
HISTORY = {
    "REF": ["12.1", "12.2"],
    "TYPE": ["Reboot", "Redeploy"],
    "NOTICE": ["15m", "10m"],
    "WAITED": ["14m 30s", "-"],
    "OUTCOME": ["-", "cancelled by ann: not today"],
}
EVENTS = {
    "REF": ["1.1"],
    "TYPE": ["Reboot"],
    "STATUS": ["Scheduled, waits for 12.1"],
    "DOMAIN": ["web/0"],
    "MACHINES": ["web-0, web-1, web-2 and 4 more"],
    "NOTICE LEFT": ["14m 58s"],
    "NOT BEFORE": [AT],
    "APPROVED BY": ["operator ann"],
    "SHOWN TO": ["0 of 1"],
}
PLAN = {
    "REF": ["1.1"],
    "TYPE": ["Reboot"],
    "STATUS": ["Scheduled"],
    "DOMAIN": ["web/0"],
    "MACHINES": ["web-0"],
    "NOT BEFORE": [AT],
    "NOTICE": ["15m"],
    "EVENT": [GUID],
}
ALERTS = {
    "KIND": ["not-approved"],
    "ABOUT": ["12.1"],
    "SINCE": [AT],
    "WHAT": [
        "starts within two minutes, and web-0 has not approved \N{CJK UNIFIED IDEOGRAPH-6771}"
    ],
}
TABLES = [HISTORY, EVENTS, PLAN, ALERTS]


def drawn(
    cells: dict[str, list[str]],
    width: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> tuple[str, str]:
    monkeypatch.setenv("COLUMNS", str(width))
    output._draw(list(cells), list(zip(*cells.values(), strict=True)))
    shown = capsys.readouterr()
    return shown.out, shown.err


@pytest.mark.parametrize("cells", TABLES, ids=["history", "events", "plan", "alerts"])
def test_every_word_of_every_shown_column_is_there_at_any_width(
    cells: dict[str, list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for width in range(60, 121):
        out, err = drawn(cells, width, monkeypatch, capsys)
        assert max(map(len, out.splitlines())) <= width
        hidden = [heading for heading in cells if heading in err]
        words = [
            word
            for heading, column in cells.items()
            if heading not in hidden
            for text in (heading, *column)
            for word in text.split()
        ]
        assert sorted(out.replace("─", " ").split()) == sorted(words), width


def test_a_table_that_fits_is_shown_in_a_line_for_each_row() -> None:
    natural = {heading: max(map(len, (heading, *column))) for heading, column in HISTORY.items()}
    assert output.layout(HISTORY, sum(natural.values()) + 2 * 4) == natural


def test_a_narrow_terminal_does_without_the_least_important_columns() -> None:
    least = 4 + 8 + 6 + 6 + 9 + 2 * 4
    assert list(output.layout(HISTORY, least)) == list(HISTORY)
    assert list(output.layout(HISTORY, least - 1)) == ["REF", "TYPE", "NOTICE", "OUTCOME"]
    assert list(output.layout(HISTORY, least - 9)) == ["REF", "TYPE", "OUTCOME"]


def test_the_first_column_is_always_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, err = drawn({"EVENT": [GUID], "TYPE": ["-"]}, 20, monkeypatch, capsys)
    assert "".join(out.split()).endswith(GUID)
    assert "TYPE" in err


def test_a_long_name_is_broken_and_leaves_room_for_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, err = drawn({"REF": ["1.1"], "HOST": ["h" * 60], "BY": ["ann"]}, 60, monkeypatch, capsys)
    assert out.count("h") == 60
    assert "ann" in out
    assert err == ""


def test_what_a_table_or_a_list_shows_holds_no_orders_to_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = "eastus\x1b]0;title\x07\r\x9b2J"
    output.pairs([("location", said), ("tags", {"role": said})])
    output.table([said], {"NAME": str})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert all(line.isprintable() and "eastus" in line for line in (lines[0], lines[1], lines[3]))


def test_a_cell_has_the_whole_time_unless_it_is_told_what_day_it_is() -> None:
    at = datetime.fromisoformat("2026-11-22T14:05:59Z")
    columns = {"AT": lambda moment: moment}
    assert output.cells([at], columns) == [("2026-11-22 14:05:59Z",)]
    assert output.cells([at], columns, at) == [("14:05",)]
