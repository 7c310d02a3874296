"""How a round is shown while it is played: a table on a terminal, lines in a pipe."""

import sys
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

import typer

from forewarn import clock
from forewarn.cli.pool.results import State
from forewarn.cli.pool.world import Seen, World

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

TOLD_LINES: Final = 8
"""The lines of the story below the table: with them all fits a terminal of 24 lines."""

COUNT_EVERY: Final = 5.0
"""Seconds between two lines that tell the count, where there is no table that shows it."""

STYLES: Final = {
    State.SERVING: "green",
    State.LEAVING: "yellow",
    State.DOWN: "bold red",
    State.RETURNING: "cyan",
}
HEADINGS: Final = ("MACHINE", "DOMAIN", "PID", "STATE", "BALANCER", "ITS AGENT")


class Display(Protocol):
    """Shows a round."""

    def tell(self, line: str) -> None:
        """Tell a line of the story."""
        ...

    def paint(self, world: World) -> None:
        """Show everything as it is now."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was found."""
        ...


def chosen(title: str, *, quiet: bool) -> Display:
    """Return a table on a terminal, and lines in a pipe.

    Args:
        title: What is played.
        quiet: Whether stdout is kept for a document: then lines go to stderr.
    """
    if not quiet and sys.stdout.isatty():
        return Painted(title)
    return Lines(title, to_errors=quiet)


class Lines:
    """Tells each change as a line, and the count now and then.

    Args:
        title: What is played.
        to_errors: Whether to stderr, not stdout.
    """

    def __init__(self, title: str, *, to_errors: bool) -> None:
        self._to_errors = to_errors
        self._now = ""
        self._counted_at = 0.0
        self._say(title)

    def tell(self, line: str) -> None:
        """Print the line, with the seconds since the first request."""
        self._say(f"{self._now}{line}")

    def paint(self, world: World) -> None:
        """Learn the time, and print the count when it is due."""
        if world.began is None:
            return
        now = world.since(clock.monotonic())
        self._now = f"{now:5.1f} s  "
        if now >= self._counted_at + COUNT_EVERY:
            self._counted_at = now
            self.tell(f"  {counted(world)}")

    def close(self) -> None:
        """There is nothing to leave."""

    def _say(self, line: str) -> None:
        typer.echo(line, err=self._to_errors)


class Painted:
    """Repaints a table.

    Args:
        title: What is played.
        console: Where to; None for the terminal that stdout is.
    """

    def __init__(self, title: str, console: "Console | None" = None) -> None:
        from rich.console import Console
        from rich.live import Live

        self._title = title
        self._told: deque[str] = deque(maxlen=TOLD_LINES)
        self._now = ""
        self._live = Live(console=console or Console(highlight=False), auto_refresh=False)
        self._live.start()

    def tell(self, line: str) -> None:
        """Add the line to those below the table."""
        self._told.append(f"{self._now}{line}")

    def paint(self, world: World) -> None:
        """Repaint everything."""
        from rich.console import Group
        from rich.text import Text

        if world.began is not None:
            self._now = f"{world.since(clock.monotonic()):5.1f} s  "
        failed = "bold red" if world.failures else "bold green"
        count = Text.assemble((self._title, "bold"), "   ", (counted(world), failed))
        told = Text("\n".join([*self._told, *[""] * (TOLD_LINES - len(self._told))]))
        told.no_wrap, told.overflow = True, "ellipsis"
        told.highlight_regex(r"(?m)^\S+ s  >.*$", "bold")
        self._live.update(Group(count, "", self._table(world), "", told), refresh=True)

    def close(self) -> None:
        """Leave the last picture standing and give the cursor back."""
        self._live.stop()

    def _table(self, world: World) -> "Table":
        from rich.box import SIMPLE_HEAD
        from rich.table import Table

        table = Table(box=SIMPLE_HEAD, show_edge=False, header_style="bold", padding=(0, 2, 0, 0))
        for heading in HEADINGS:
            table.add_column(heading, no_wrap=True, min_width=9)
        for seen in world.seen.values():
            table.add_row(*_cells(seen))
        return table


def counted(world: World) -> str:
    """Return the client's count in words."""
    answered, failed = sum(world.answered.values()), len(world.failures)
    return f"{world.rate:.0f} requests/s   {answered:,} answered   {failed:,} failed"


def _cells(seen: Seen) -> "list[Text]":
    from rich.text import Text

    machine = seen.machine
    style = STYLES[seen.state] if seen.state else ""
    return [
        Text(machine.name, "bold"),
        Text(str(machine.update_domain)),
        Text(str(machine.boots[-1]) if seen.on else "", "dim"),
        Text(str(seen.state or ""), style),
        Text(seen.balancer),
        Text(seen.agent),
    ]
