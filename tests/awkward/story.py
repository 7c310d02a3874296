"""What every awkward server tells, however it tells it: two events from first sight to their end.

The story goes on by what its reader has been served and has approved, never by a clock, so that
it is the same whatever goes wrong on the way. A judge knows what a client must have seen.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

MACHINE = "web-0"
"""The machine that asks."""

OURS = "C1BF8322-4CBF-4FC4-9C45-B40CF3106D0E"
"""The event that concerns it, and waits for its approval."""

OTHERS = "0A5B3F0E-5E8C-4E0B-9F0B-1E3C2D4A5B6C"
"""The event that concerns another machine, and starts by itself."""

LINGERS = 2
"""How often each step is served in full: a change that is told twice would show."""


@dataclass(frozen=True)
class Step:
    """One content of the document."""

    events: tuple[tuple[str, str], ...]
    """EventIds and their statuses."""
    until_approved: bool = False


STEPS = (
    Step(()),
    Step(((OURS, "Scheduled"),), until_approved=True),
    Step(((OURS, "Started"),)),
    Step(((OURS, "Started"), (OTHERS, "Scheduled"))),
    Step(((OTHERS, "Scheduled"),)),
    Step(((OTHERS, "Started"),)),
    Step(()),
)

TOLD = (
    ("appeared", OURS, "Scheduled"),
    ("started", OURS, "Started"),
    ("appeared", OTHERS, "Scheduled"),
    ("gone", OURS, "Started"),
    ("started", OTHERS, "Started"),
    ("gone", OTHERS, "Started"),
)
"""The changes that a client must have seen, in order: kind, EventId, the status last seen."""

TYPES = {OURS: "Reboot", OTHERS: "Freeze"}
RESOURCES = {OURS: [MACHINE, "web-1"], OTHERS: ["web-1"]}
FIELDS_SINCE = {
    "Description": "2019-04-01",
    "EventSource": "2019-08-01",
    "DurationInSeconds": "2020-07-01",
}
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MONTHS = (
    *("Jan", "Feb", "Mar", "Apr", "May", "Jun"),
    *("Jul", "Aug", "Sep", "Oct", "Nov", "Dec"),
)


@dataclass
class Story:
    """How far the story has gone. It survives a server's death."""

    origin: datetime
    """The time of day at which it began."""
    step: int = 0
    served: int = 0
    """How often the present step has been served in full."""
    turn: int = 0
    """How often the present step has been asked for."""
    posts: int = 0
    approved: list[str] = field(default_factory=list)

    @property
    def over(self) -> bool:
        return self.step == len(STEPS) - 1

    def asked(self) -> int:
        """Count a GET; return which of the present step it is, from 1."""
        self.turn += 1
        return self.turn

    def was_served(self) -> None:
        """Count an answer that told the present step in full."""
        self.served += 1
        if self.served >= LINGERS and not STEPS[self.step].until_approved and not self.over:
            self._go_on()

    def approve(self, event_ids: list[str]) -> list[str]:
        """Approve events; return those that were not approved before."""
        new = [each.upper() for each in event_ids if each.upper() not in self.approved]
        self.approved += new
        if STEPS[self.step].until_approved and OURS in self.approved:
            self._go_on()
        return new

    def _go_on(self) -> None:
        self.step += 1
        self.served = self.turn = 0

    def not_before(self) -> datetime:
        return self.origin + timedelta(minutes=15)

    def document(self, version: str = "2020-07-01", incarnation: int | None = None) -> Any:
        """Return the present step as a document of this version."""
        return {
            "DocumentIncarnation": self.step + 1 if incarnation is None else incarnation,
            "Events": [
                self._event(event_id, status, version)
                for event_id, status in STEPS[self.step].events
            ],
        }

    def _event(self, event_id: str, status: str, version: str) -> dict[str, Any]:
        event = {
            "EventId": event_id,
            "EventStatus": status,
            "EventType": TYPES[event_id],
            "ResourceType": "VirtualMachine",
            "Resources": RESOURCES[event_id],
            "NotBefore": "" if status == "Started" else http_date(self.not_before()),
            "Description": "Host server is undergoing maintenance.",
            "EventSource": "Platform",
            "DurationInSeconds": 9,
        }
        return {k: v for k, v in event.items() if FIELDS_SINCE.get(k, "") <= version}


def http_date(moment: datetime, days: tuple[str, ...] = DAYS) -> str:
    at = moment.astimezone(UTC)
    day = f"{days[at.weekday()]}, {at.day:02} {MONTHS[at.month - 1]}"
    return f"{day} {at.year} {at:%H:%M:%S} GMT"
