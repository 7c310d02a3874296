"""Tables on a terminal and their rows: a row has a line, and a column left out is named."""

import contextlib
import importlib
import io
import json
import operator
import re
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from cli.tree import every_command
from forewarn.cli import fleet, maintenance, operator_client, output
from forewarn.cli.command import RequestCommand
from forewarn.cli.output import AnswerTable

Capture = pytest.CaptureFixture[str]
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


def drawn(
    cells: dict[str, list[str]],
    width: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> tuple[str, str]:
    monkeypatch.setenv("COLUMNS", str(width))
    output._draw(list(cells), list(zip(*cells.values(), strict=True)))
    shown = capsys.readouterr()
    return shown.out, shown.err


@pytest.mark.parametrize("cells", [HISTORY, EVENTS, ALERTS], ids=["history", "events", "alerts"])
def test_a_row_has_a_line_at_any_width_and_what_is_left_out_is_named(
    cells: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    for width in range(20, 161, 3):
        out, err = drawn(cells, width, monkeypatch, capsys)
        lines = out.splitlines()
        assert max(map(len, lines)) <= width
        hidden = [heading for heading in cells if heading in err]
        assert next(iter(cells)) not in hidden
        for heading in cells:
            assert (heading in lines[0]) is (heading not in hidden), width
        if "WHAT" in cells:
            assert width < 40 or set(ALERTS["WHAT"][0].split()) <= set(out.split())
        else:
            assert len(lines) == 2 + len(cells["REF"])
            assert GUID in out or "EVENT" not in cells or "EVENT" in hidden


def test_a_narrow_terminal_cuts_first_and_then_does_without_the_least_important_columns() -> None:
    least = 4 + 8 + 6 + 7 + output.LEAST + 2 * 4
    assert list(output.layout(HISTORY, least)) == list(HISTORY)
    assert list(output.layout(HISTORY, least - 1)) == ["REF", "TYPE", "NOTICE", "OUTCOME"]
    assert list(output.layout(HISTORY, least - 10)) == ["REF", "TYPE", "OUTCOME"]


def test_columns_without_a_value_go_first_and_status_notice_and_machines_last() -> None:
    cells = {**EVENTS, "APPROVED BY": ["-"]}
    all_of_it = sum(max(len(each), len(cells[each][0])) for each in cells) + 2 * (len(cells) - 1)
    assert list(output.layout(cells, all_of_it)) == list(cells)
    assert cells.keys() - output.layout(cells, all_of_it - 1).keys() == {"APPROVED BY"}
    assert list(output.layout(cells, 50))[-2:] == ["MACHINES", "NOTICE LEFT"]
    ended = {"REF": ["1.1"], "MACHINES": ["a"], "STATUS": ["Failed"], "OUTCOME": ["b" * 16]}
    assert list(output.layout(ended, 32)) == ["REF", "MACHINES", "STATUS"]


def test_what_maintenance_waits_for_is_shown_whole_in_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    cells = {
        "NUMBER": ["1"],
        "TYPE": ["Reboot"],
        "STATUS": ["running"],
        "TARGETS": ["web"],
        "UNITS": ["2 waiting"],
        "REQUESTED BY": ["root"],
        "AT": ["12:24Z"],
        "DETAIL": ["web/0 cannot go now: held by root since 12:24Z: scope web (the backup runs)"],
    }
    out, err = drawn(cells, 80, monkeypatch, capsys)
    assert set(cells["DETAIL"][0].split()) <= set(out.split())
    assert "REQUESTED BY" in err


def test_names_are_cut_where_they_do_not_differ(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    for names in (
        [f"batch-workers-of-the-analytics-team_{n}" for n in range(10, 20)],
        [f"hv{n}.rack1.dc1.of-the-company.example.net" for n in range(10, 20)],
    ):
        out, _ = drawn({"MACHINE": names, "HOST": ["h"] * 10}, 30, monkeypatch, capsys)
        rows = [line.split()[0] for line in out.splitlines()[2:]]
        assert len(set(rows)) == 10
        assert all("\N{HORIZONTAL ELLIPSIS}" in row and len(row) <= 24 for row in rows)


def test_up_to_three_names_are_spelled_and_more_are_counted_as_what_they_are() -> None:
    column = maintenance.LIST.columns["TARGETS"]
    assert callable(column)
    for kind, noun in (("machines", "machines"), ("scope", "scopes"), ("mixed", "targets")):
        assert column(SimpleNamespace(target=kind, targets=["h"] * 5)) == f"5 {noun}"
    names = [f"web-{n}" for n in range(60)]
    assert output.counted(names[:3]) == "web-0, web-1, web-2"
    assert output.counted(names) == "60 machines"
    assert output.counted(names[:3], "hosts", 12) == "12 hosts"


def test_what_a_table_or_a_list_shows_holds_no_orders_to_a_terminal(
    capsys: Capture,
) -> None:
    said = "eastus\x1b]0;title\x07\r\x9b2J"
    output.pairs([("location", said), ("tags", {"role": said})])
    output.table([said], {"NAME": str})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert all(line.isprintable() and "eastus" in line for line in (lines[0], lines[1], lines[3]))
    shown = output.shown("succeeded on none\nweb-0: \x1b[31mexit status 1")
    assert shown == "succeeded on none; web-0: \N{REPLACEMENT CHARACTER}[31mexit status 1"


def test_a_cell_has_the_whole_time_unless_it_is_told_what_day_it_is() -> None:
    at = datetime.fromisoformat("2026-11-22T14:05:59Z")
    columns = {"AT": lambda moment: moment}
    assert output.cells([at], columns) == [("2026-11-22 14:05:59Z",)]
    assert output.cells([at], columns, at) == [("14:05Z",)]


def test_a_table_in_a_pipe_is_whole_whatever_the_width_of_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    rows = [dict(zip(HISTORY, row, strict=True)) for row in zip(*HISTORY.values(), strict=True)]
    output.table(rows, {heading: operator.itemgetter(heading) for heading in HISTORY})
    shown = capsys.readouterr()
    assert set(HISTORY) <= set(shown.out.splitlines()[0].split())
    assert all(column[0] in shown.out for column in HISTORY.values())
    assert shown.err == ""


API = Path(__file__).parents[2] / "docs" / "reference" / "api.md"


ROWS = {path: each for path, each in every_command().items() if isinstance(each, RequestCommand)}
SHOWN = [row.show for row in ROWS.values() if isinstance(row.show, AnswerTable)]
SHOWN += [fleet.MACHINES, fleet.SCOPES, fleet.LOST]


def type_of(shape: str) -> Any:
    module, name = shape.split(".")
    return getattr(importlib.import_module(f"{operator_client.SCHEMAS}.{module}"), name)


@pytest.mark.parametrize("path", ROWS)
def test_a_row_is_a_request_of_the_api_and_shows_a_type_of_it(path: str) -> None:
    row = ROWS[path]
    headings = re.findall(r"(?m)^### `(\w+) (\S+)`", API.read_text(encoding="utf-8"))
    known = {(method, re.sub(r"{\w+}", "{}", place)) for method, place in headings}
    assert (row.method, re.sub(r"{\w+}", "{}", row.path)) in known
    typed = {param.name for param in row.params}
    assert set(re.findall(r"{(\w+)}", row.path)) <= typed
    answer = type_of(operator_client.shape_of(row.show))
    if row.paged:
        assert {row.paged, "next"} <= {field.name for field in structs.fields(answer)}


@pytest.mark.parametrize("table", SHOWN, ids=lambda table: table.place)
def test_a_column_that_is_named_is_a_field_of_the_list(table: AnswerTable) -> None:
    fields = {field.name: field for field in structs.fields(type_of(table.shape))}
    (entry, *_) = fields[table.place.rpartition(".")[2]].type.__args__
    named = {column for column in table.columns.values() if isinstance(column, str)}
    assert named <= set(entry.__struct_fields__)


def test_a_program_reads_what_is_printed_whatever_the_locale() -> None:
    written, host = io.BytesIO(), "räck \N{GRINNING FACE}"
    with contextlib.redirect_stdout(io.TextIOWrapper(written, encoding="latin-1")) as stdout:
        output.open_streams()
        output.document({"host": host})
        stdout.flush()
    assert json.loads(written.getvalue()) == {"host": host}
