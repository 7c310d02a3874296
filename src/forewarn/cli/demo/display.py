"""How the demo is shown: a table that is repainted on a terminal, lines in a pipe."""

import sys
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

import typer

from forewarn.cli import operations, output, times
from forewarn.cli.demo import cast
from forewarn.cli.demo.stage import Row, Stage
from forewarn.vocabulary import EventStatus

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

TOLD_LINES: Final = 6
"""The lines of the story below the table: with them all fits a terminal of 24 lines."""

BAR: Final = 10
"""The characters of the bar of notice left."""


class Display(Protocol):
    """Shows the stage."""

    def tell(self, line: str) -> None:
        """Tell a line of the story."""
        ...

    def paint(self, stage: Stage) -> None:
        """Show the stage as it is now."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was found."""
        ...


def chosen(*, quiet: bool) -> Display:
    """Return a table on a terminal, and lines in a pipe.

    Args:
        quiet: Whether stdout is kept for a document: then lines go to stderr.
    """
    if not quiet and sys.stdout.isatty():
        return Painted()
    return Lines(to_errors=quiet)


class Lines:
    """Tells each change as a line.

    Args:
        to_errors: Whether to stderr, not stdout.
    """

    def __init__(self, *, to_errors: bool) -> None:
        self._to_errors = to_errors
        self._now = ""

    def tell(self, line: str) -> None:
        """Print the line, with the service's time once that is known."""
        typer.echo(f"{self._now}{line}", err=self._to_errors)

    def paint(self, stage: Stage) -> None:
        """Learn the time."""
        self._now = f"{times.hour(stage.now)} "

    def close(self) -> None:
        """There is nothing to leave."""


class Painted:
    """Repaints a table."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._told: deque[str] = deque(maxlen=TOLD_LINES)
        self._live = Live(
            console=Console(highlight=False), auto_refresh=False, vertical_overflow="crop"
        )
        self._now = ""
        self._live.start()

    def tell(self, line: str) -> None:
        """Add the line to those below the table."""
        self._told.append(f"{self._now}{line}")

    def paint(self, stage: Stage) -> None:
        """Repaint everything."""
        from rich.console import Group
        from rich.text import Text

        self._now = f"{times.hour(stage.now)} "
        title = Text.assemble(
            ("Forewarn", "bold"),
            f"   {times.shown(stage.now)}   ",
            (f"15 minutes last {15 * 60 // cast.SCALE} seconds here", "dim"),
        )
        told = Text("\n".join([*self._told, *[""] * (TOLD_LINES - len(self._told))]))
        told.no_wrap, told.overflow = True, "ellipsis"
        told.highlight_regex(r"(?m)^\S+ >.*$", "bold")
        hint = Text("Stop a guest (kill its pid): its event then waits for NotBefore.", "dim")
        self._live.update(Group(title, self._table(stage), told, hint), refresh=True)

    def close(self) -> None:
        """Leave the last picture standing and give the cursor back."""
        self._live.stop()

    def _table(self, stage: Stage) -> "Table":
        from rich.box import SIMPLE_HEAD
        from rich.table import Table

        table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False, expand=True)
        for heading, ratio in (
            ("MACHINE", 14),
            ("DOMAIN", 8),
            ("ITS GUEST", 22),
            ("PID", 7),
            ("EVENT", 8),
            ("STATUS", 10),
            ("NOTICE LEFT", 19),
            ("APPROVED BY", 14),
            ("THE GUEST SAYS", 26),
        ):
            table.add_column(heading, no_wrap=True, overflow="ellipsis", ratio=ratio)
        for row in stage.rows.values():
            table.add_row(*_cells(row))
        return table


def _cells(row: Row) -> "list[Text]":
    from rich.text import Text

    guest, operation = row.guest, row.operation
    style = "dim" if row.gone else ""
    pid = "deleted" if row.gone else "stopped" if row.stopped else str(row.process.pid)
    cells = [
        Text(guest.machine, style or "bold"),
        Text(f"{guest.scope}/{guest.domain}", style),
        Text(guest.shown, style),
        Text(pid, "bold red" if row.stopped else "dim"),
    ]
    if operation is None:
        cells += [Text(""), Text(""), Text(""), Text("")]
    else:
        status = "waits" if operation.waits_for else str(operation.status)
        cells += [
            Text(operation.event_type),
            Text(status, output.STYLES.get(status, "yellow")),
            _notice(row),
            Text("" if (by := operations.approvers(operation)) == "-" else by, "green"),
        ]
    cells.append(Text(row.says, style or "italic"))
    return cells


def _notice(row: Row) -> "Text":
    """Return the notice left as a bar and in figures."""
    from rich.text import Text

    operation = row.operation
    if operation is None or operation.status is not EventStatus.SCHEDULED:
        return Text("")
    left = operation.notice_left_seconds or 0
    whole = (operation.not_before - operation.announced_at).total_seconds()
    full = min(BAR, round(BAR * left / whole)) if whole else 0
    return Text.assemble(
        ("━" * full, "yellow"), ("╌" * (BAR - full), "dim"), f" {times.shown_span(left)}"
    )
