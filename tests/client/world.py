"""A server as the client's deciders meet it: without sockets, on a clock of its own."""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from forewarn.client import session
from forewarn.client.discovery import EndpointAddress
from forewarn.client.event import Change, Event
from forewarn.client.watch import EventFilter, Watcher
from forewarn.protocol.message import Reply

START = datetime(2026, 1, 1, 12, tzinfo=UTC)
ORIGIN = 1000.0
EVENT_ID = "C1BF8322-4CBF-4FC4-9C45-B40CF3106D0E"
NAME = "web-0"
CUT = session.FailedAnswer(reason="cut", message="cut off")
REFUSED = session.FailedAnswer(reason="no-connection", message="no connection")

EVERYTHING = EventFilter()


def listed(event_id: str = EVENT_ID, **facts: Any) -> dict[str, Any]:
    """An event as a server writes it; what is given as None is left out."""
    written = {
        "EventId": event_id,
        "EventStatus": "Scheduled",
        "EventType": "Reboot",
        "ResourceType": "VirtualMachine",
        "Resources": [NAME],
        "NotBefore": "Thu, 01 Jan 2026 12:15:00 GMT",
        "Description": "",
        "EventSource": "User",
        "DurationInSeconds": -1,
    }
    if facts.get("EventStatus") == "Started":
        written["NotBefore"] = ""
    return {key: value for key, value in (written | facts).items() if value is not None}


def document(*events: dict[str, Any], incarnation: int | None = 1, **headers: str) -> Reply:
    body = {"DocumentIncarnation": incarnation, "Events": list(events)}
    return reply(200, body, **headers)


def reply(status: int, body: Any = b"", **headers: str) -> Reply:
    content = body if isinstance(body, bytes) else msgspec.json.encode(body)
    named = ((name.replace("_", "-").encode(), value.encode()) for name, value in headers.items())
    return Reply(status, content, tuple(named))


def at(seconds: float = 0.0, slept: float = 0.0) -> session.ClockReading:
    return session.ClockReading(START + timedelta(seconds=seconds + slept), ORIGIN + seconds)


Answers = Callable[[session.Question, bool], Reply | session.FailedAnswer]
"""What a server says to a question, and whether it came on the connection of the one before."""


class Run:
    """A watch played against a server: who carries out what the decider wants.

    Args:
        answers: The server.
        since: The state to go on from.
        wishes: Which events are told; None for whole documents.
        name: The machine's name; None to have it asked for.
        seconds: When it begins.
    """

    def __init__(
        self,
        answers: Answers,
        *,
        since: str | None = None,
        wishes: EventFilter | None = EVERYTHING,
        name: str | None = NAME,
        seconds: float = 0.0,
        pace: session.Pace | None = None,
        chance: float = 0.5,
        endpoints: Sequence[EndpointAddress] = (EndpointAddress("169.254.169.254"),),
    ) -> None:
        self.answers = answers
        self.seconds = seconds
        self.chance = chance
        self.session = session.Session(pace or session.Pace(), endpoints, name)
        self.watcher = Watcher(self.session, wishes, since, at(seconds))
        self.slept = 0.0
        """For how long the monotonic clock stood still."""
        self.asked: list[tuple[float, session.Question]] = []
        self.troubles: list[str] = []
        self.messages: list[str] = []
        self._connected = False

    def turn(self) -> None:
        """Let the decider take one step."""
        self.watcher.step(self._do, at(self.seconds, self.slept))
        while self.watcher.troubles:
            trouble = self.watcher.troubles.popleft()
            self.troubles.append(trouble.reason)
            self.messages.append(trouble.message)

    def _do(self, wanted: session.Question | session.Pause) -> session.Attempt:
        if isinstance(wanted, session.Pause):
            assert wanted.seconds > 0
            self.seconds += wanted.seconds
            return session.Attempt(None, at(self.seconds, self.slept), self.chance)
        self.asked.append((self.seconds, wanted))
        held = bool(wanted.held) and self._connected
        outcome = self.answers(wanted, held)
        self._connected = isinstance(outcome, Reply)
        return session.Attempt(outcome, at(self.seconds, self.slept), self.chance, held)

    @property
    def listed(self) -> tuple[Event, ...]:
        """What the watch takes to be listed, told or not."""
        return tuple(known.event for known in self.watcher._known.values())

    def take(self) -> list[Change]:
        return list(iter(self.watcher.take, None))

    def ask(self) -> list[Change]:
        """Let the watch ask for the document, twice to confirm an end; return what it tells."""
        told = self.look()
        return told + self.look() if self.watcher._held_back is not None else told

    def look(self) -> list[Change]:
        """Let the watch ask for the document once, and return what it tells then."""
        self.take()
        count = len(self.asked)
        while len(self.asked) == count or b"name" in self.asked[-1][1].target.encode():
            self.turn()
        return self.take()


def kinds(changes: list[Change]) -> list[str]:
    return [change.kind for change in changes]


def one_by_one(*outcomes: Reply | session.FailedAnswer) -> Answers:
    """A server that says these in turn, and the last one for ever."""
    left: Iterator[Reply | session.FailedAnswer] = iter(outcomes)
    last = outcomes[-1]
    return lambda _ask, _held: next(left, last)
