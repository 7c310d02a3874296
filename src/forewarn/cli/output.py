"""What a command prints: tables on a terminal, aligned text in a pipe, JSON with `--json`.

Results go to stdout, everything else to stderr.
"""

import json
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import typer

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
    rows: Iterable[Row], columns: Mapping[str, Callable[[Row], str]], *, empty: str = ""
) -> None:
    """Print a table.

    Args:
        rows: Its rows.
        columns: The headings, each with the function that returns its cell of a row.
        empty: Printed on stderr if there is no row.
    """
    filled = [tuple(cell(row) for cell in columns.values()) for row in rows]
    headings = tuple(columns)
    if not filled:
        if empty:
            note(empty)
    elif sys.stdout.isatty():
        _draw(headings, filled)
    else:
        for line in aligned([headings, *filled]):
            typer.echo(line)


def pairs(rows: Iterable[tuple[str, str]]) -> None:
    """Print names and values, one a line."""
    for line in aligned([(f"{name}:", value) for name, value in rows]):
        typer.echo(line)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines with aligned columns, two spaces apart."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def listed(names: Sequence[str], count: int | None = None, most: int = 6) -> str:
    """Return names in one line, and how many more there are.

    Args:
        names: The first of them, or all.
        count: How many there are; None for `len(names)`.
        most: How many to name.
    """
    total = len(names) if count is None else count
    spelled = ", ".join(names[:most])
    return spelled if total <= most else f"{spelled} and {total - most} more"


def _draw(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    width = shutil.get_terminal_size().columns
    cells = dict(zip(columns, zip(*rows, strict=True), strict=True))
    hidden = hide(cells, width)
    drawn = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    shown = {heading: column for heading, column in cells.items() if heading not in hidden}
    for heading, column in shown.items():
        drawn.add_column(heading, overflow="fold", min_width=_longest_word(heading, column))
    for row in zip(*shown.values(), strict=True):
        drawn.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in row))
    Console(width=width).print(drawn)
    if hidden:
        note(f"Not shown on this narrow terminal: {', '.join(hidden)}.")


def hide(cells: Mapping[str, Sequence[str]], width: int) -> list[str]:
    """Return the columns to leave out so that no word of the others is broken.

    Args:
        cells: The cells of each column, by its heading.
        width: The columns of the terminal.
    """
    _first, *others = cells
    needed = {heading: _longest_word(heading, column) + 2 for heading, column in cells.items()}
    hidden: list[str] = []
    for heading in HIDDEN_FIRST:
        if sum(needed.values()) + 1 <= width:  # as rich draws SIMPLE_HEAD
            break
        if heading in others:
            del needed[heading]
            hidden.append(heading)
    return hidden


def _longest_word(heading: str, cells: Sequence[str]) -> int:
    return max(len(word) for text in (heading, *cells) for word in text.split() or [""])


HIDDEN_FIRST = (
    *("EVENT", "KIND", "WAITED", "NOTICE", "TOOK", "FROM", "SOURCE", "STEERED BY", "SHOWN TO"),
    *("DOMAIN", "LISTENER"),
)
"""The columns that a narrow terminal does without, in this order; never the first of a table."""

STYLES = {
    "Scheduled": "yellow",
    "Started": "bold cyan",
    "Completed": "green",
    "Failed": "bold red",
    "Canceled": "dim",
}
"""The colours of a status, in every table."""
