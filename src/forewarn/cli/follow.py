"""`forewarn follow`: what happens to maintenance, as it happens."""

import contextlib
import json
import os
import shutil
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

from forewarn import times
from forewarn.cli import output, stream
from forewarn.cli.exits import Failed
from forewarn.cli.operator import OperatorClient, asks
from forewarn.cli.options import option
from forewarn.cli.stream import StreamEvent

if TYPE_CHECKING:
    from rich.console import RenderableType

    from forewarn.server.operator import rollout_schemas, schemas

LOOK_SECONDS: Final = 0.5
"""The shortest time between two looks at what is under way."""

LATEST_SECONDS: Final = 10.0
"""The longest: times pass without news."""

MAX_LINES: Final = 200
"""Lines of news that are kept for the terminal."""

MAX_ROLLOUTS: Final = 3
"""Rollouts that are shown."""

LEAST_BAR: Final = 5
"""The fewest characters that a bar of progress is drawn in."""

BAR: Final = "\N{BOX DRAWINGS HEAVY HORIZONTAL}"

GAPS: Final = {
    "trimmed": "what happened before is not kept any more",
    "unknown": "the service has no such number: this is what happens from now on",
    "lost": "the database has lost its last changes",
}
"""What each gap means."""

SinceOption = Annotated[
    str,
    option("--since", "ID", "Begin after the item of news with this number, such as 120-0."),
]
TypesOption = Annotated[
    list[str] | None,
    option(
        "--type",
        "TYPE",
        "Only news of this type, such as operation.failed, or of a kind, such as rollout. "
        "Repeatable.",
    ),
]


@asks
def follow(*, since: SinceOption = "", types: TypesOption = None, service: OperatorClient) -> None:
    """Show what happens to maintenance, until Ctrl-C.

    On a terminal it shows what is under way, too. It connects again by itself when the service
    restarts, and misses nothing.
    """
    chosen = tuple(types or ())
    if is_live() and not service.as_json:
        _show_live(service, since, chosen)
        return
    for event in stream.events(service, since=since, types=chosen, trouble=note):
        if event.name != stream.OPEN:
            output.say(_object(event) if service.as_json else line(event, shown_at=times.shown))


def is_live() -> bool:
    """Tell whether stdout is a terminal that can be drawn on."""
    return sys.stdout.isatty() and os.environ.get("TERM") not in {None, "", "dumb"}


def note(why: str) -> None:
    """Say on stderr why there is no news for now."""
    output.note(f"No news for now, connecting again: {output.printable(why)}")


def _object(event: StreamEvent) -> str:
    """Return an event as one line of JSON; a gap has the type `gap`."""
    found = json.loads(event.data)
    if event.name == "gap":
        found = {"type": "gap", "id": event.id, **found}
    return json.dumps(found, ensure_ascii=False)


# One line for each item.

TYPE_WIDTH: Final = len("maintenance.scheduled")
"""Few types are longer: the subjects of the others stand in a column."""


def line(event: StreamEvent, shown_at: Callable[[datetime], str]) -> str:
    """Return an event as a line for people."""
    found = json.loads(event.data)
    if event.name == "gap":
        meaning = GAPS.get(found["reason"], found["reason"])
        return output.printable(f"gap after {found['after']}: {meaning}")
    at = shown_at(datetime.fromisoformat(found["at"]))
    more = "; ".join(facts(found["data"], shown_at))
    kind = found["type"]
    subject = found["subject"].removeprefix(f"{kind.partition('.')[0]} ")
    told = "  ".join([at, f"{kind:<{TYPE_WIDTH}}", f"{subject:<4}", more])
    return output.printable(told.rstrip())


def facts(data: dict[str, Any], shown_at: Callable[[datetime], str]) -> Iterator[str]:
    """Yield the facts of an item that a line has room for."""
    what = str(data.get("event_type", ""))
    if data.get("machines"):
        machines = output.counted(data["machines"], count=data.get("machine_count"))
        what = f"{what} of {machines}" if what else machines
    if what:
        yield what
    if data.get("status") == "Scheduled":
        yield f"not before {shown_at(datetime.fromisoformat(data['not_before']))}"
    for counts in ("units", "operations"):
        if counts in data:
            yield ", ".join(f"{count} {name}" for name, count in data[counts].items())
    if "approver" in data or ("by" in data and "status" not in data):
        yield f"{'approved ' * ('approver' in data)}by {data['by']}"
    if "count" in data:
        yield str(data["count"])
    if data.get("reason"):
        yield str(data["reason"])


# What is under way, as the terminal shows it.


class Board:
    """What the terminal shows; two threads use it."""

    def __init__(self) -> None:
        self.events: list[schemas.LiveEvent] = []
        self.rollouts: list[rollout_schemas.RolloutDetail] = []
        self.trouble = ""
        self.lines: deque[str] = deque(maxlen=MAX_LINES)

    def __rich__(self) -> "RenderableType":
        """Draw it for the terminal as it is now."""
        size = shutil.get_terminal_size()
        return self.drawn(size.columns, size.lines)

    def drawn(self, columns: int, lines: int) -> "RenderableType":
        """Draw it for so many columns and lines."""
        from rich.console import Group
        from rich.text import Text

        parts: list[RenderableType] = [_bar(detail, columns) for detail in self.rollouts]
        room = lines - len(parts) - 3
        most = max(1, room // 2 - 3)
        if self.events:
            parts.append(_table(self.events[:most], columns))
            left = len(self.events) - most
            if left > 0:
                more = _fitting(f"and {left} more: see 'forewarn events'", columns)
                parts.append(Text(more, style="dim", no_wrap=True))
            room -= min(len(self.events), most) + 2 + (left > 0)
        else:
            parts.append(Text("No event is pending.", style="dim"))
            room -= 1
        parts.append(Text("\N{BOX DRAWINGS LIGHT HORIZONTAL}" * columns, style="dim"))
        latest = list(self.lines)[-max(1, room) :]
        parts += [Text(_fitting(each, columns), no_wrap=True) for each in latest]
        if self.trouble:
            parts.append(Text(_fitting(self.trouble, columns), style="bold red", no_wrap=True))
        return Group(*parts)


def _fitting(text: str, columns: int) -> str:
    return text if len(text) <= columns else text[: columns - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _bar(detail: "rollout_schemas.RolloutDetail", columns: int) -> "RenderableType":
    from rich.text import Text

    rollout = detail.rollout
    units = rollout.units
    over = units.done + units.failed + units.skipped
    total = max(1, over + units.running + units.waiting)
    failed = f", {units.failed} failed" if units.failed else ""
    end = detail.forecast.latest_end if detail.forecast is not None else None
    until = f", over by {times.hour(end)}" if end is not None else ""
    left = f"rollout {rollout.number} {rollout.state} "
    right = f" {over} of {total}{failed}, wave {rollout.wave} of {rollout.waves}{until}"
    room = columns - len(left) - len(right)
    if room < LEAST_BAR:
        return Text(_fitting(left + right, columns), no_wrap=True)
    filled = room * over // total
    style = "red" if units.failed else "green"
    bar = Text(BAR * filled, style=style), Text(BAR * (room - filled), style="dim")
    return Text.assemble(left, *bar, right, no_wrap=True)


def _table(events: "list[schemas.LiveEvent]", columns: int) -> "RenderableType":
    headings: dict[str, Callable[[schemas.LiveEvent], object]] = {
        "REF": lambda event: event.operation,
        "TYPE": lambda event: event.event_type,
        "STATUS": lambda event: event.status,
        "SCOPE": lambda event: event.scope,
        "MACHINES": lambda event: output.counted(event.machines),
        "NOT BEFORE": lambda event: event.not_before,
    }
    return output.drawn(tuple(headings), output.cells(events, headings), columns)


class _Looker(threading.Thread):
    """Looks at what is under way when there is news of it, and not too often."""

    def __init__(self, service: OperatorClient, board: Board) -> None:
        super().__init__(name="forewarn-look", daemon=True)
        self._service = service
        self._board = board
        self.news = threading.Event()
        self.stop = threading.Event()

    def run(self) -> None:
        """Look, until `stop`."""
        while not self.stop.is_set():
            self.news.clear()
            with contextlib.suppress(Failed):  # the stream says what is the matter
                self._look()
            self.stop.wait(LOOK_SECONDS)
            self.news.wait(LATEST_SECONDS)

    def _look(self) -> None:
        from forewarn.server.operator import rollout_schemas, schemas

        get = self._service.get
        self._board.events = list(get("/v1/events").read(schemas.EventList).events)
        page = get("/v1/rollouts", limit=100).read(rollout_schemas.RolloutPage)
        running = [one.number for one in page.rollouts if one.state not in {"done", "stopped"}]
        self._board.rollouts = [
            get(f"/v1/rollouts/{number}").read(rollout_schemas.RolloutDetail)
            for number in running[:MAX_ROLLOUTS]
        ]


def _show_live(service: OperatorClient, since: str, types: tuple[str, ...]) -> None:
    from rich.live import Live

    board = Board()
    looker = _Looker(service, board)

    def trouble(why: str) -> None:
        board.trouble = f"No news for now, connecting again: {output.printable(why)}"

    found = stream.events(service, since=since, types=types, trouble=trouble)
    looker.start()
    try:
        with Live(board, refresh_per_second=4, screen=False, vertical_overflow="crop"):
            for event in found:
                board.trouble = ""
                if event.name != stream.OPEN:
                    board.lines.append(line(event, shown_at=times.hour))
                looker.news.set()
    finally:
        looker.stop.set()
        looker.news.set()
