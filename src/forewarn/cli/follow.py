"""`forewarn follow`, `--wait` and `watch` of maintenances and hosts: news, as it comes.

`EventParser` reads text/event-stream as its standard says, `pieces` keeps the connection: it
connects again by itself, and nothing is there twice or left out. `wait` is how every command waits:
it looks at what it waits for whenever there is news, and ends with one of two statuses.
"""

import codecs
import contextlib
import itertools
import json
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from forewarn import clock, times
from forewarn.cli import output
from forewarn.cli.command import asking
from forewarn.cli.exits import ExitStatus, Failed
from forewarn.cli.operator_client import PASSING, OperatorClient
from forewarn.cli.options import TYPES, option

LOOK_SECONDS: Final = 0.5
"""The shortest time between two looks."""

RESTS: Final = 4
"""The pause after a look, in times of its length: those who wait for a maintenance of ten thousand
operations leave the service the most of its time."""

GAPS: Final = {
    "trimmed": "older news has been deleted",
    "unknown": "the service has no news with this number: starting with what happens now",
    "lost": "the database has lost its last changes",
}
"""The meaning of each gap."""

# The service's news.

SILENCE_SECONDS: Final = 45.0
"""The longest silence: three of the service's signs of life."""

FIRST_PAUSE_SECONDS: Final = 0.5
LONGEST_PAUSE_SECONDS: Final = 10.0
"""The pauses before connecting again, doubled each time."""

MAX_EVENT: Final = 16 * 1024 * 1024
"""The most characters of one event; an item of news has a few thousand."""

_NEVER: Final = threading.Event()

OPEN: Final = "open"
"""The name of the event for a new connection: all that happens from here on follows it."""


@dataclass(frozen=True)
class StreamEvent:
    """One event: a gap, or an item of news."""

    name: str
    data: str
    id: str
    """The id of the place to go on from."""


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
    waits: bool = False,
) -> Generator[list[StreamEvent], None, None]:
    """Yield the events that come together, without end; none in a sign of life.

    The first of each connection is OPEN.

    They begin after the id `since`, or now where that is `""`; without types all come. `trouble` is
    called once with why there is no stream, until there is one again. With `waits` the service has
    answered before, and may be away at the start, too; and an account that has no stream left gets
    an empty piece at each try, so that it may look meanwhile.

    Raises:
        Failed: The service cannot be reached at the start, or refuses.
    """
    last_id, seconds, connected, is_told = since, FIRST_PAUSE_SECONDS, waits, not waits
    while True:
        parser = EventParser(last_id)
        why = "the service ended the stream"
        is_open = False
        try:
            for piece in service.stream("/v1/stream", SILENCE_SECONDS, last_id, types=types):
                found = list(parser.feed(piece))
                if not is_open and piece:
                    is_open, connected, is_told = True, True, False
                    seconds = FIRST_PAUSE_SECONDS
                    found.insert(0, StreamEvent(OPEN, "{}", last_id))
                yield found
                last_id = parser.last_id
        except Failed as failed:
            if waits and "most" in failed.facts:  # the fact of a limit
                yield []
                is_told = True
            elif failed.status not in PASSING or not connected:
                raise
            why = failed.message
        if not is_told:
            trouble(why)
            is_told = True
        pause(seconds)
        seconds = min(2 * seconds, LONGEST_PAUSE_SECONDS)


def events(service: OperatorClient, **how: Any) -> Iterator[StreamEvent]:  # noqa: ANN401 - pieces
    """Yield the events of `pieces` one by one."""
    return itertools.chain.from_iterable(pieces(service, **how))


# The command.


@asking(
    option("--since ID", "Begin after the item of news with this number, such as 120-0."), TYPES
)
def follow(service: OperatorClient, since: str | None, types: tuple[str, ...]) -> None:
    """Show what happens to maintenance, until Ctrl-C.

    Each item of news is one line. When the service restarts it connects again by itself, and
    misses nothing.
    """
    for event in events(service, since=since or "", types=types, trouble=note):
        if event.name != OPEN:
            output.say(_object(event) if service.as_json else line(event))


def note(why: str) -> None:
    """Say on stderr why the stream was cut."""
    output.note(f"Disconnected, reconnecting: {output.printable(why)}")


def _object(event: StreamEvent) -> str:
    """Return an event as one line of JSON; a gap has the type `gap`."""
    found = json.loads(event.data)
    if event.name == "gap":
        found = {"type": "gap", "id": event.id, **found}
    return json.dumps(found, ensure_ascii=False)


# One line for each item.

TYPE_WIDTH: Final = len("maintenance.scheduled")
"""Few types are longer: the subjects of the others stand in a column."""


def line(event: StreamEvent) -> str:
    """Return an event as a line for people."""
    found = json.loads(event.data)
    if event.name == "gap":
        meaning = GAPS.get(found["reason"], found["reason"])
        return output.printable(f"gap after {found['after']}: {meaning}")
    at = times.shown(datetime.fromisoformat(found["at"]))
    more = "; ".join(facts(found["data"]))
    kind = found["type"]
    subject = found["subject"].removeprefix(f"{kind.partition('.')[0]} ")
    told = "  ".join([at, f"{kind:<{TYPE_WIDTH}}", f"{subject:<4}", more])
    return output.printable(told.rstrip())


def facts(data: dict[str, Any]) -> Iterator[str]:
    """Yield the facts of an item that a line has room for."""
    what = str(data.get("event_type", ""))
    if data.get("machines"):
        machines = output.counted(data["machines"], count=data.get("machine_count"))
        what = f"{what} of {machines}" if what else machines
    if what:
        yield what
    if data.get("status") == "Scheduled":
        yield f"not before {times.shown(datetime.fromisoformat(data['not_before']))}"
    for counts in ("units", "operations"):
        if counts in data:
            yield ", ".join(f"{count} {name}" for name, count in data[counts].items())
    if "approver" in data or ("by" in data and "status" not in data):
        yield f"{'approved ' * ('approver' in data)}by {data['by']}"
    if "count" in data:
        yield str(data["count"])
    waits = data.get("status") not in {"Scheduled", "Started"} and data.get("status_detail")
    if why := data.get("reason") or waits:
        yield str(why)


# --wait and watch: until something is over, or needs an operator.


class Progress(NamedTuple):
    """The progress of something that a command waits for."""

    is_over: bool
    why: str
    """The trouble that an operator has to see to; `""` if all is well."""
    document: Callable[[], object]
    """Return the document that `--json` prints at the end."""
    facts: Mapping[str, str] = {}
    """The lines to print when they change, by their subjects."""


def wait(
    service: OperatorClient,
    look: Callable[[], Progress],
    *,
    types: tuple[str, ...],
    shown_by: str,
    first: Callable[[], object] = lambda: None,
) -> None:
    """Print each change until it is over (OK) or needs an operator (Failed, ALERTS).

    The service may restart meanwhile. With --json only the end is printed.

    `look` returns the progress now, and `types` are those of the news after which it may be
    further. `shown_by` is the command that shows it later, for a user who interrupts; `first`
    prints the request as it was accepted.
    """
    try:
        if not service.as_json:
            first()
        with _spinner():
            progress = _at_its_end(service, look, types)
    except (KeyboardInterrupt, Failed):
        output.note(f"Only the waiting has ended: see '{shown_by}'")
        raise
    if service.as_json:
        output.document(progress.document())
    if progress.why:
        raise Failed(ExitStatus.ALERTS, output.printable(progress.why))


def _at_its_end(
    service: OperatorClient, look: Callable[[], Progress], types: tuple[str, ...]
) -> Progress:
    known: dict[str, str] = {}
    with closing(pieces(service, types=types, trouble=note, waits=True)) as found:
        for _ in found:  # after a sign of life, too: times pass without news
            began = clock.monotonic()
            try:
                progress = look()
            except Failed as failed:
                if failed.status not in PASSING:
                    raise
                continue
            for what, now in progress.facts.items():
                if known.get(what) != now and not service.as_json:
                    output.say(output.printable(f"{what}  {now}"))
            known |= progress.facts
            if progress.is_over or progress.why:
                return progress
            _NEVER.wait(max(LOOK_SECONDS, RESTS * (clock.monotonic() - began)))
    raise AssertionError  # the pieces have no end


def _spinner() -> contextlib.AbstractContextManager[object]:
    if not output.on_terminal():
        return contextlib.nullcontext()
    from rich.console import Console

    return Console().status("waiting")
