"""What a command prints: tables on a terminal, aligned text in a pipe, JSON where it is asked for.

Results go to stdout, everything else to stderr.
"""

import json
import shutil
import sys
from collections.abc import Iterable, Sequence

import typer


def document(tree: object) -> None:
    """Print one JSON document, indented for people's eyes."""
    typer.echo(json.dumps(tree, indent=2, ensure_ascii=False))


def say(line: str) -> None:
    """Print one line of a result."""
    typer.echo(line)


def note(text: str) -> None:
    """Say something that is no result, on stderr."""
    typer.echo(text, err=True)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, empty: str) -> None:
    """Print a table.

    Args:
        columns: The headings.
        rows: One text for each column.
        empty: What is said on stderr where there is no row.
    """
    filled = [tuple(row) for row in rows]
    if not filled:
        note(empty)
    elif sys.stdout.isatty():
        _drawn(columns, filled)
    else:
        for line in aligned([tuple(columns), *filled]):
            typer.echo(line)


def pairs(rows: Iterable[tuple[str, str]]) -> None:
    """Print names and values, one a line."""
    for line in aligned([(f"{name}:", value) for name, value in rows]):
        typer.echo(line)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines whose columns begin below one another, two spaces apart."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def listed(names: Sequence[str], count: int | None = None, most: int = 6) -> str:
    """Return names in a row, and how many more there are.

    Args:
        names: The first of them, or all.
        count: How many there are; None for as many as are named.
        most: How many are spelled out.
    """
    total = len(names) if count is None else count
    spelled = ", ".join(names[:most])
    return spelled if total <= most else f"{spelled} and {total - most} more"


def _drawn(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    width = shutil.get_terminal_size().columns
    drawn = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    wrapped = WRAPPED if _fits(columns, rows, width) else frozenset(columns)
    for column in columns:
        drawn.add_column(column, no_wrap=column not in wrapped, overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in row))
    Console(width=width).print(drawn)


def _fits(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> bool:
    """Tell whether a table is narrow enough with nothing but the WRAPPED columns wrapped."""
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    least = [
        min(size, WRAPPED_LEAST) if column in WRAPPED else size
        for column, size in zip(columns, widths, strict=True)
    ]
    return sum(least) + 2 * len(least) <= width


WRAPPED = frozenset({"MACHINES", "TARGETS", "DESCRIPTION", "OUTCOME", "STARTED BECAUSE"})
"""Columns of words, which are wrapped before any other is."""

WRAPPED_LEAST = 12
"""The characters that are left to them at least."""

STYLES = {
    "Scheduled": "yellow",
    "Started": "bold cyan",
    "Completed": "green",
    "Failed": "bold red",
    "Canceled": "dim",
}
"""How the words of a status are coloured wherever they stand in a table."""
