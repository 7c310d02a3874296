"""What a command prints: tables on a terminal, aligned text in a pipe, JSON with `--json`.

Results go to stdout, everything else to stderr.
"""

import json
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

import typer

from forewarn import times

if TYPE_CHECKING:
    from rich.table import Table

    from forewarn.server.operator import schemas

Row = TypeVar("Row")


def document(tree: object) -> None:
    """Print one JSON document, indented for people."""
    typer.echo(json.dumps(tree, indent=2, ensure_ascii=False))


def say(line: str) -> None:
    """Print one line of a result."""
    typer.echo(line)


def note(text: str) -> None:
    """Print something that is not a result, on stderr."""
    typer.echo(text, err=True)


def table(
    rows: Iterable[Row], columns: Mapping[str, Callable[[Row], object]], *, empty: str = ""
) -> None:
    """Print a table: each heading with the function that returns its value of a row.

    If there is no row, print `empty` on stderr.
    """
    on_terminal = sys.stdout.isatty()
    filled = cells(rows, columns, _now() if on_terminal else None)
    if not filled:
        if empty:
            note(empty)
    elif on_terminal:
        _draw(tuple(columns), filled)
    else:
        say(aligned([tuple(columns), *filled]))


def _now() -> datetime:
    from forewarn.clock import SystemClock

    return SystemClock().now()


def cells(
    rows: Iterable[Row],
    columns: Mapping[str, Callable[[Row], object]],
    now: datetime | None = None,
) -> list[tuple[str, ...]]:
    """Return the cells of each row, with short times where it is told what day it is."""
    return [tuple(shown(value(row), now) for value in columns.values()) for row in rows]


def pairs(rows: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one a line."""
    say(aligned([(f"{name}:", shown(value)) for name, value in rows]))


def shown(value: object, now: datetime | None = None) -> str:
    """Return a value as a cell has it; `-` for None and `""`."""
    if value is None or value == "":
        return "-"
    if isinstance(value, timedelta):
        return times.shown_span(value.total_seconds())
    if isinstance(value, datetime):
        return times.shown(value) if now is None else times.brief(value, now)
    return printable(str(value))


def printable(text: str) -> str:
    """Return a text without control characters: a server's words may hold escapes."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as lines with aligned columns, two spaces apart."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def listed(names: Sequence[str], count: int | None = None, most: int = 6) -> str:
    """Return the first names in one line, and how many more of `count` there are."""
    total = len(names) if count is None else count
    spelled = ", ".join(names[:most])
    return spelled if total <= most else f"{spelled} and {total - most} more"


def names(some: "schemas.Names", most: int = 6) -> str:
    """Return names in one line, and how many more there are; `""` for none."""
    return listed(some.names, some.count, most)


def _draw(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console

    terminal = shutil.get_terminal_size().columns
    picture = drawn(columns, rows, terminal)
    Console(width=terminal).print(picture)
    fits = {column.header for column in picture.columns}
    if hidden := [heading for heading in columns if heading not in fits]:
        note(f"Not shown on this narrow terminal: {', '.join(hidden)}.")


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
    for heading, width in widths.items():
        table.add_column(heading, overflow="fold", width=width)
    for row in zip(*(cells[heading] for heading in widths), strict=True):
        table.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in row))
    return table


def layout(cells: Mapping[str, Sequence[str]], terminal: int) -> dict[str, int]:
    """Return the columns to show, with their widths; all words of the cells fit.

    The least important columns are left out until every other has room for its longest word. What
    room is left goes first to the columns that need the least of it to have a line for each cell.
    """
    first, *others = cells
    least = {heading: _longest_word(heading, column) for heading, column in cells.items()}
    least[first] = min(least[first], terminal)
    for heading in (*HIDDEN_FIRST, *reversed(others)):
        if _total(least) <= terminal:
            break
        if heading in others:
            least.pop(heading, None)
    spare = terminal - _total(least)
    wanted = {
        heading: max(map(_cells, (heading, *cells[heading]))) - width
        for heading, width in least.items()
    }
    widths = dict(least)
    for heading in sorted(wanted, key=wanted.__getitem__):
        more = max(0, min(wanted[heading], spare))
        widths[heading] += more
        spare -= more
    return widths


def _total(widths: Mapping[str, int]) -> int:
    return sum(widths.values()) + 2 * (len(widths) - 1)  # rich draws two spaces between columns


def _longest_word(heading: str, cells: Sequence[str]) -> int:
    words = (word for text in (heading, *cells) for word in text.split())
    return min(max(map(_cells, words)), MAX_WORD)


def _cells(text: str) -> int:
    """Return how many columns of a terminal a text takes: an ideograph takes two."""
    from rich.cells import cell_len

    return cell_len(text)


MAX_WORD = 40
"""The longest word that is not broken: an event's id fits, and a host's long name does not push
every other column off the terminal."""

HIDDEN_FIRST = (
    *("EVENT", "KIND", "WAITED", "NOTICE", "TOOK", "FROM", "SOURCE", "STEERED BY", "SHOWN TO"),
    *("DOMAIN", "LISTENER", "NOTICE LEFT"),
)
"""The columns that a narrow terminal does without, in this order; then the last ones of the table,
and never its first."""

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
