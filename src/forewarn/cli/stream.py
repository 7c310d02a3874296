"""The service's news as the commands read it: connected again by itself, nothing twice or left out.

`EventParser` reads text/event-stream as its standard says, `events` keeps the connection.
"""

import codecs
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Final

from forewarn.cli.exits import ExitStatus, Failed
from forewarn.cli.operator import OperatorClient

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


def events(
    service: OperatorClient,
    *,
    since: str = "",
    types: tuple[str, ...] = (),
    trouble: Callable[[str], None] = lambda _: None,
    pause: Callable[[float], object] = _NEVER.wait,
) -> Generator[StreamEvent, None, None]:
    """Yield events without end; the first of each connection is OPEN.

    Args:
        service: Whose news is read.
        since: The id to go on after; `""` for what happens from now on.
        types: The types of news; empty for all.
        trouble: Called once with why there is no stream any more, until there is one again.
        pause: Waits so many seconds.

    Raises:
        Failed: The service cannot be reached at the start, or refuses.
    """
    last_id, seconds, connected = since, FIRST_PAUSE_SECONDS, False
    while True:
        parser = EventParser(last_id)
        why = "the service ended the stream"
        is_open = False
        try:
            pieces = service.stream("/v1/stream", SILENCE_SECONDS, last_id, types=types)
            for piece in pieces:
                if not is_open and piece:
                    is_open = connected = True
                    seconds = FIRST_PAUSE_SECONDS
                    yield StreamEvent(OPEN, "{}", last_id)
                for event in parser.feed(piece):
                    last_id = event.id
                    yield event
                last_id = parser.last_id
        except Failed as failed:
            if failed.status not in PASSING or not connected:
                raise
            why = failed.message
        if is_open:
            trouble(why)
        pause(seconds)
        seconds = min(2 * seconds, LONGEST_PAUSE_SECONDS)
