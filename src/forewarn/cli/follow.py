"""`forewarn follow`, `--wait` and `watch` of rollouts and hosts: what happens, as it happens.

`EventParser` reads text/event-stream as its standard says, `pieces` keeps the connection: it
connects again by itself, and nothing is there twice or left out. `wait` is how every command waits:
it looks at what it waits for whenever there is news, and ends with one of two statuses.
"""

import codecs
import contextlib
import itertools
import json
import shutil
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

from forewarn import times
from forewarn.cli import output
from forewarn.cli.exits import ExitStatus, Failed
from forewarn.cli.operator_client import OperatorClient, asks
from forewarn.cli.options import flag, option

if TYPE_CHECKING:
    from rich.console import RenderableType

    from forewarn.server.operator import rollout_schemas, schemas

LOOK_SECONDS: Final = 0.5
"""The shortest time between two looks."""

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
    "trimmed": "older news has been deleted",
    "unknown": "the service has no news with this number: starting with what happens now",
    "lost": "the database has lost its last changes",
}
"""What each gap means."""

# The service's news.

SILENCE_SECONDS: Final = 45.0
"""How long nothing may come: three of the service's signs of life."""

FIRST_PAUSE_SECONDS: Final = 0.5
LONGEST_PAUSE_SECONDS: Final = 10.0
"""How long to wait before connecting again, doubled each time."""

MAX_EVENT: Final = 16 * 1024 * 1024
"""The most characters of one event; an item of news has a few thousand."""

PASSING: Final = frozenset({ExitStatus.UNREACHABLE, ExitStatus.UNAVAILABLE})
"""The failures after which it connects again: the service restarts, or its database is away."""

_NEVER: Final = threading.Event()

OPEN: Final = "open"
"""The name of the event that tells of a new connection: what happens from here on is told."""


@dataclass(frozen=True)
class StreamEvent:
    """One event: a gap, or an item of news."""

    name: str
    data: str
    id: str
    """What to go on after."""


class EventParser:
    """Takes a stream in pieces, and gives its events."""

    def __init__(self, last_id: str = "") -> None:
        self.last_id = last_id
        """The id of the last event, or of the last place that was told without one."""
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._left = ""
        self._name = ""
        self._data: list[str] = []
        self._id = last_id

    def feed(self, piece: bytes) -> Iterator[StreamEvent]:
        """Yield the events that end in this piece."""
        self._left += self._decode(piece)
        *lines, self._left = self._left.split("\n")
        if len(self._left) > MAX_EVENT:
            message = f"the stream has a line of more than {MAX_EVENT} characters"
            raise Failed(ExitStatus.UNREACHABLE, message)
        for line in lines:
            if line:
                self._field(line)
                continue
            self.last_id = self._id
            if self._data:
                yield StreamEvent(self._name or "message", "\n".join(self._data), self.last_id)
            self._name, self._data = "", []

    def _field(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._name = value
        elif name == "data":
            self._data.append(value)
        elif name == "id":
            self._id = value


def pieces(
    service: OperatorClient,
    *,
    since: str = "",
    types: tuple[str, ...] = (),
    trouble: Callable[[str], None] = lambda _: None,
    pause: Callable[[float], object] = _NEVER.wait,
) -> Generator[list[StreamEvent], None, None]:
    """Yield the events that come together, without end; none in a sign of life.

    The first of each connection is OPEN.

    They begin after the id `since`, or now where that is `""`; without types all come. `trouble` is
    called once with why the stream ended, until there is one again.

    Raises:
        Failed: The service cannot be reached at the start, or refuses.
    """
    last_id, seconds, connected = since, FIRST_PAUSE_SECONDS, False
    while True:
        parser = EventParser(last_id)
        why = "the service ended the stream"
        is_open = False
        try:
            for piece in service.stream("/v1/stream", SILENCE_SECONDS, last_id, types=types):
                found = list(parser.feed(piece))
                if not is_open and piece:
                    is_open = connected = True
                    seconds = FIRST_PAUSE_SECONDS
                    found.insert(0, StreamEvent(OPEN, "{}", last_id))
                yield found
                last_id = parser.last_id
        except Failed as failed:
            if failed.status not in PASSING or not connected:
                raise
            why = failed.message
        if is_open:
            trouble(why)
        pause(seconds)
        seconds = min(2 * seconds, LONGEST_PAUSE_SECONDS)


def events(service: OperatorClient, **how: Any) -> Iterator[StreamEvent]:  # noqa: ANN401 - pieces
    """Yield the events of `pieces` one by one."""
    return itertools.chain.from_iterable(pieces(service, **how))


# The command.

SinceOption = Annotated[
    str, option("--since", "ID", "Begin after the item of news with this number, such as 120-0.")
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

    On a terminal it also shows what is under way. When the service restarts it connects again by
    itself, and misses nothing. With --json each item of news is one line.
    """
    chosen = tuple(types or ())
    if output.on_terminal() and not service.as_json:
        _show_live(service, since, chosen)
        return
    for event in events(service, since=since, types=chosen, trouble=note):
        if event.name != OPEN:
            output.say(_object(event) if service.as_json else line(event, shown_at=times.shown))


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

    found = events(service, since=since, types=types, trouble=trouble)
    looker.start()
    try:
        with Live(board, refresh_per_second=4, screen=False, vertical_overflow="crop"):
            for event in found:
                board.trouble = ""
                if event.name != OPEN:
                    board.lines.append(line(event, shown_at=times.hour))
                looker.news.set()
    finally:
        looker.stop.set()
        looker.news.set()


# --wait and watch: until something is over, or needs an operator.

WaitOption = Annotated[
    bool,
    flag("--wait", "Show what changes until it is over, or needs an operator: exit status 11."),
]


class Progress(NamedTuple):
    """How far something is that a command waits for."""

    is_over: bool
    why: str
    """What an operator has to know, or to do: not all is well. `""` if all is."""
    document: Callable[[], object]
    """Return what `--json` prints at the end."""
    facts: Mapping[str, str] = {}
    """What is printed when it changes, by what it is about."""


def wait(
    service: OperatorClient,
    look: Callable[[], Progress],
    *,
    types: tuple[str, ...],
    shown_by: str,
    take: Callable[[StreamEvent], bool] = lambda _: True,
) -> None:
    """Print what changes until it is over (OK) or needs an operator (Failed, ALERTS).

    The service may restart meanwhile. With --json only the end is printed.

    `look` returns how far it is now, and `types` are those of the news after which it may be
    further; `take` takes an item, and tells whether to look after it. `shown_by` is the command
    that shows it, for whoever waits no longer.
    """
    try:
        with _spinner():
            progress = _at_its_end(service, look, types, take)
    except KeyboardInterrupt:
        output.note(f"Only the waiting has ended: see '{shown_by}'")
        raise
    if service.as_json:
        output.document(progress.document())
    if progress.why:
        raise Failed(ExitStatus.ALERTS, output.printable(progress.why))


def _at_its_end(
    service: OperatorClient,
    look: Callable[[], Progress],
    types: tuple[str, ...],
    take: Callable[[StreamEvent], bool],
) -> Progress:
    known: dict[str, str] = {}
    unknown = True
    with closing(pieces(service, types=types, trouble=note)) as found:
        for piece in found:
            # What a connection that was lost did not bring comes behind OPEN.
            decisive = [
                unknown if event.name == OPEN else event.name == "gap" or take(event)
                for event in piece
            ]
            # After a sign of life, too: times pass without news, and a look may have failed.
            if decisive and not any(decisive):
                continue
            try:
                progress = look()
            except Failed as failed:
                if failed.status not in PASSING:
                    raise
                unknown = True
                continue
            unknown = False
            for what, now in progress.facts.items():
                if known.get(what) != now and not service.as_json:
                    output.say(output.printable(f"{what}  {now}"))
            known |= progress.facts
            if progress.is_over or progress.why:
                return progress
            _NEVER.wait(LOOK_SECONDS)
    raise AssertionError  # the pieces have no end


def _spinner() -> contextlib.AbstractContextManager[object]:
    if not output.on_terminal():
        return contextlib.nullcontext()
    from rich.console import Console

    return Console().status("waiting")
