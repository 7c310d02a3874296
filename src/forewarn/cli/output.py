"""The output of commands: tables on a terminal, aligned text elsewhere, JSON with `--json`.

Results go to stdout, everything else to stderr.
"""

import contextlib
import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

import click

from forewarn import times
from forewarn.cli.exits import ExitStatus, Failed

if TYPE_CHECKING:
    from rich.table import Table

    from forewarn.server.operator import maintenance_schemas, schemas

Row = TypeVar("Row")
Column = str | Callable[[Row], object]
"""A cell's source: the name of an attribute of the row, or a function of the row."""


def on_terminal() -> bool:
    """Tell whether stdout is a terminal that can be drawn on.

    Elsewhere, as with kubectl and gh, nothing is cut or left out, whatever COLUMNS says.
    """
    return sys.stdout.isatty() and os.environ.get("TERM", "") not in {"", "dumb"}


def document(tree: object) -> None:
    """Print one JSON document, indented for people."""
    say(json.dumps(tree, indent=2, ensure_ascii=False))


def say(line: str) -> None:
    """Print one line of a result; Failed if stdout cannot be written."""
    try:
        click.echo(line)
    except BrokenPipeError:
        raise
    except OSError as error:
        message = f"cannot write to stdout: {error.strerror or error}"
        raise Failed(ExitStatus.INTERNAL, message) from error


def note(text: str) -> None:
    """Print something that is not a result, on stderr, if that can be written without a wait."""
    from forewarn import logs

    with contextlib.suppress(OSError):
        if logs.takes(sys.stderr):
            click.echo(text, err=True)


def open_streams() -> None:
    """Make sure that all three standard streams are open, and that output can print any text.

    One that was closed before the start (`>&-`) would be the number of the next file that is
    opened; it leads nowhere instead, in the programs that are run too.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None and os.open(os.devnull, os.O_RDWR) == number:
            os.set_inheritable(number, True)  # noqa: FBT003 - the name says it
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() != "utf-8":
            # Programs and files take UTF-8, and a terminal does not have every letter.
            is_piped = stream is sys.stdout and not stream.isatty()
            encoding = "utf-8" if is_piped else None
            stream.reconfigure(encoding=encoding, errors="backslashreplace")


def close_streams() -> None:
    """Drop what could not be written: Python would report it again at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@dataclass(frozen=True)
class AnswerTable:
    """A list of the API as a table."""

    place: str
    """Module, type and field of the list, such as `schemas.HoldList.holds`."""
    columns: Mapping[str, Column[Any]]
    empty: str

    @property
    def shape(self) -> str:
        """The type of the answer, with its module."""
        return self.place.rpartition(".")[0]

    def __call__(self, found: object) -> None:
        """Print it."""
        rows = getattr(found, self.place.rpartition(".")[2])
        table(rows, self.columns, empty=self.empty)


def table(rows: Iterable[Row], columns: Mapping[str, Column[Row]], *, empty: str = "") -> list[str]:
    """Print a table: each heading with how its cells come of the rows.

    A column whose heading begins with `?` is left out if all of its cells are empty. If there is no
    row, print `empty` on stderr. Return the headings that had no room.
    """
    filled = cells(rows, columns, _now() if on_terminal() else None)
    if not filled:
        if empty:
            note(empty)
        return []
    kept = [
        n
        for n, heading in enumerate(columns)
        if heading[0] != "?" or any(row[n] != "-" for row in filled)
    ]
    headings = [heading.lstrip("?") for heading in columns]
    shown = [[row[n] for n in kept] for row in (headings, *filled)]
    if on_terminal():
        return _draw(shown[0], shown[1:])
    say(aligned(shown))
    return []


def _now() -> datetime:
    from forewarn.clock import SystemClock

    return SystemClock().now()


def cells(
    rows: Iterable[Row], columns: Mapping[str, Column[Row]], now: datetime | None = None
) -> list[tuple[str, ...]]:
    """Return the cells of each row, with short times if `now` tells the day."""
    values = [attrgetter(each) if isinstance(each, str) else each for each in columns.values()]
    return [tuple(shown(value(row), now) for value in values) for row in rows]


def pairs(rows: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one a line; a name that begins with `?` only with a value."""
    told = [(name, value) for name, value in rows if value or not name.startswith("?")]
    say(aligned([(f"{name.lstrip('?')}:", shown(value)) for name, value in told]))


def shown(value: object, now: datetime | None = None) -> str:
    """Return a value as a cell has it; `-` for None and `""`."""
    if value is None or value == "":
        return "-"
    if isinstance(value, timedelta):
        return times.shown_span(value.total_seconds())
    if isinstance(value, datetime):
        return times.shown(value) if now is None else times.brief(value, now)
    return printable(str(value))


def status(
    one: "schemas.HostView | maintenance_schemas.MaintenanceView | maintenance_schemas.UnitView",
) -> str:
    """Return the status of a thing and the words beside it, for a line of text."""
    told = one.status_detail
    goes_on = told.startswith(("by ", "in ", "since "))  # such as "paused by ann"
    return f"{one.status} {told}" if goes_on else f"{one.status}: {told}".removesuffix(": ")


def printable(text: str) -> str:
    """Return a text as one line, without control characters: a server's words may hold escapes."""
    return "".join(each if each.isprintable() else "\ufffd" for each in text.replace("\n", "; "))


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as lines with aligned columns, two spaces apart."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def listed(names: Sequence[str], count: int | None = None, most: int = 6) -> str:
    """Return the first names in one line, and how many more of `count` there are."""
    total = len(names) if count is None else count
    spelled = ", ".join(names[:most])
    return spelled if total <= most else f"{spelled} and {total - most} more"


def counted(names: Sequence[str], what: str = "machines", count: int | None = None) -> str:
    """Return names for a cell: up to three of them, else how many they are."""
    total = len(names) if count is None else count
    return f"{total} {what}" if total > MAX_NAMED else ", ".join(names)


def names(some: "schemas.Names", most: int = 6) -> str:
    """Return names in one line, and how many more there are; `""` for none."""
    return listed(some.names, some.count, most)


def _draw(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    from rich.console import Console

    terminal = shutil.get_terminal_size().columns
    picture = drawn(columns, rows, terminal)
    Console(width=terminal).print(picture)
    fits = {column.header for column in picture.columns}
    told = (any(row[n] != "-" for row in rows) for n in range(len(columns)))
    hidden = [each for each, tells in zip(columns, told, strict=True) if tells and each not in fits]
    if hidden:
        note(f"Not shown on this narrow terminal: {', '.join(hidden)}.")
    return hidden


def drawn(columns: Sequence[str], rows: Sequence[Sequence[str]], terminal: int) -> "Table":
    """Return a table for a terminal of so many characters, with the columns that fit."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    cells = {heading: [row[n] for row in rows] for n, heading in enumerate(columns)}
    widths = layout(cells, terminal)
    table = Table(
        box=SIMPLE_HEAD, header_style="bold", pad_edge=False, show_edge=False, padding=(0, 1, 0, 0)
    )
    shown = {heading: _fitted(heading, cells[heading], width) for heading, width in widths.items()}
    for heading, width in widths.items():
        table.add_column(heading, overflow="fold", width=width)
    whole = zip(*(cells[heading] for heading in widths), strict=True)
    for row, words in zip(zip(*shown.values(), strict=True), whole, strict=True):
        table.add_row(
            *(Text(cell, style=STYLES.get(word, "")) for cell, word in zip(row, words, strict=True))
        )
    return table


def layout(cells: Mapping[str, Sequence[str]], terminal: int) -> dict[str, int]:
    """Return the columns to show, with their widths; each row has one line.

    Columns without a value are left out before a cell is cut. Then the least important ones are,
    until every other has room for its heading and for LEAST characters, or for all of its cells.
    What room is left goes first to the columns that need the least of it.
    """
    first, *others = cells
    natural = {heading: max(map(_cells, (heading, *each))) for heading, each in cells.items()}
    least = {
        heading: width if heading in UNCUT else min(width, max(_cells(heading), LEAST))
        for heading, width in natural.items()
    }
    least[first] = min(natural[first], terminal, max(least[first], LEAST_OF_FIRST))
    shown = dict(least)
    empty = [heading for heading in reversed(others) if set(cells[heading]) == {"-"}]
    for heading in empty:
        if _total({each: natural[each] for each in shown}) > terminal:
            del shown[heading]
    hidden: list[str] = []
    less = [heading for heading in reversed(others) if heading not in HIDDEN_LAST]
    for heading in dict.fromkeys((*HIDDEN_FIRST, *less, *HIDDEN_LAST)):
        if _total(shown) <= terminal:
            break
        if heading in others and heading in shown:
            hidden.append(heading)
            del shown[heading]
    for heading in reversed(hidden):  # a narrow one may fit in the place of a wide one
        if _total({**shown, heading: least[heading]}) <= terminal:
            shown[heading] = least[heading]
    widths = {heading: shown[heading] for heading in cells if heading in shown}
    spare = terminal - _total(widths)
    for heading in sorted(widths, key=lambda heading: natural[heading] - widths[heading]):
        more = max(0, min(natural[heading] - widths[heading], spare))
        widths[heading] += more
        spare -= more
    return widths


def _total(widths: Mapping[str, int]) -> int:
    return sum(widths.values()) + 2 * (len(widths) - 1)  # rich draws two spaces between columns


def _fitted(heading: str, cells: Sequence[str], width: int) -> Sequence[str]:
    """Return cells of at most this width: cut where they still differ most, at the end if they may.

    A scale set's machines differ in their last characters, hosts of one domain in their first.
    """
    if heading in FOLDED or all(_cells(cell) <= width for cell in cells):
        return cells
    ways = ([_cut(cell, width, tail) for cell in cells] for tail in (0, width // 4, width // 2))
    return max(ways, key=lambda cut: len(set(cut)))


def _cut(text: str, width: int, tail: int) -> str:
    from rich.cells import set_cell_size

    if _cells(text) <= width:
        return text
    end = set_cell_size(text[::-1], tail)[::-1] if tail else ""
    return set_cell_size(text, width - 1 - tail) + "\N{HORIZONTAL ELLIPSIS}" + end


def _cells(text: str) -> int:
    """Return how many columns of a terminal a text takes: an ideograph takes two."""
    from rich.cells import cell_len

    return cell_len(text)


MAX_NAMED = 3
"""The most names in a cell; more are counted."""

LEAST = 16
"""To so many characters a cell is cut before a column is left out."""

LEAST_OF_FIRST = 24
"""Those of the first column, which says what a row is about."""

UNCUT = frozenset({"EVENT"})
"""Columns that are never cut: people copy an event's id."""

FOLDED = frozenset({"WHAT", "DETAIL"})
"""Columns that may take several lines: the message of an alert, what a unit waits for."""

HIDDEN_FIRST = (
    *("EVENT", "KIND", "FROM", "SOURCE", "SHOWN TO", "ADDRESS", "LISTENER", "WAITED", "NOTICE"),
    *("DOMAIN", "TOOK", "HOST", "REQUESTED BY"),
)
"""The columns that a narrow terminal does without, in this order, after those without a value; then
the last ones of the table, and never its first."""

HIDDEN_LAST = ("DETAIL", "OUTCOME", "STATUS", "NOTICE LEFT", "MACHINES", "WHAT")
"""The columns that stay the longest."""

STYLES = {
    "Queued": "dim yellow",
    "Scheduled": "yellow",
    "Started": "bold cyan",
    "Returning": "cyan",
    "Completed": "green",
    "Failed": "bold red",
    "Canceled": "dim",
}
"""The colours of a status, in every table."""
