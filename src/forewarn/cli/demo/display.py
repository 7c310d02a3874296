"""How the demo is shown: a table that is repainted on a terminal, lines in a pipe."""

import sys
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import typer

from forewarn.cli import operations, output, times
from forewarn.cli.demo import cast
from forewarn.cli.demo.stage import Row, Stage
from forewarn.vocabulary import EventStatus

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

TOLD_LINES: Final = 6
"""The lines of the story below the table: with them all fits a terminal of 24 lines."""

BAR: Final = 8
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
    """Repaints a table.

    Args:
        console: Where to; None for the terminal that stdout is.
    """

    def __init__(self, console: "Console | None" = None) -> None:
        from rich.console import Console
        from rich.live import Live

        self._told: deque[str] = deque(maxlen=TOLD_LINES)
        self._console = console or Console(highlight=False)
        self._live = Live(console=self._console, auto_refresh=False)
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
        self._live.update(Group(title, "", self._table(stage), "", told, hint), refresh=True)

    def close(self) -> None:
        """Leave the last picture standing and give the cursor back."""
        self._live.stop()

    def _table(self, stage: Stage) -> "Table":
        from rich.box import SIMPLE_HEAD
        from rich.table import Table

        width = self._console.width
        columns = [column for column in COLUMNS if width >= column.from_width]
        table = Table(box=SIMPLE_HEAD, show_edge=False, header_style="bold", padding=0)
        for column in columns:
            table.add_column(column.heading, no_wrap=True, overflow="ellipsis", width=column.width)
        for row in stage.rows.values():
            table.add_row(*(column.cell(row) for column in columns))
        return table


class Column(NamedTuple):
    """A column of the table."""

    heading: str
    width: int
    from_width: int
    """The narrowest terminal that has room for it."""
    cell: "Callable[[Row], Text]"


def _machine(row: Row) -> "Text":
    return _text(row.guest.machine, "dim strike" if row.gone else "bold")


def _domain(row: Row) -> "Text":
    return _text(f"{row.guest.scope}/{row.guest.domain}", "dim" if row.gone else "")


def _role(row: Row) -> "Text":
    return _text(row.guest.shown, "dim" if row.gone or row.stopped else "")


def _pid(row: Row) -> "Text":
    if row.gone:
        return _text("deleted", "dim")
    if row.stopped:
        return _text("stopped", "bold red")
    return _text(str(row.process.pid), "dim")


def _event(row: Row) -> "Text":
    return _text(row.operation.event_type if row.operation else "")


def _status(row: Row) -> "Text":
    if row.operation is None:
        return _text("")
    status = "waits" if row.operation.waits_for else str(row.operation.status)
    return _text(status, output.STYLES.get(status, "yellow"))


def _notice_bar(row: Row) -> "Text":
    """Return the notice left as a bar; nothing once the event has started."""
    operation = row.operation
    text = _text("")
    if operation is None or operation.status is not EventStatus.SCHEDULED:
        return text
    whole = operations.notice_seconds(operation) or 1
    full = min(BAR, round(BAR * (operation.notice_left_seconds or 0) / whole))
    return text.append("━" * full, "yellow").append("╌" * (BAR - full), "dim")


def _notice(row: Row) -> "Text":
    operation = row.operation
    if operation is None or operation.status is not EventStatus.SCHEDULED:
        return _text("")
    return _text(times.shown_span(operation.notice_left_seconds), "yellow")


def _approver(row: Row) -> "Text":
    """Return who approved the event of this machine: the others of its operation have their own."""
    events = row.operation.events if row.operation else ()
    words = [e.approval for e in events if row.guest.machine in e.machines and e.approval]
    return _text(", ".join(map(operations.approver, words)), "green")


def _says(row: Row) -> "Text":
    return _text(row.says, "italic")


def _text(text: str, style: str = "") -> "Text":
    from rich.text import Text

    return Text(text, style)


COLUMNS: Final = (
    Column("MACHINE", 14, 0, _machine),
    Column("DOMAIN", 9, 0, _domain),
    Column("ITS GUEST", 17, 100, _role),
    Column("PID", 7, 0, _pid),
    Column("EVENT", 8, 0, _event),
    Column("STATUS", 9, 0, _status),
    Column("NOTICE", BAR, 110, _notice_bar),
    Column("LEFT", 7, 0, _notice),
    Column("APPROVED BY", 13, 0, _approver),
    Column("THE GUEST SAYS", 18, 119, _says),
)
"""From left to right; all of them fit 119 characters, and those that matter most fit 80."""
