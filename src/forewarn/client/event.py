"""The values that a handler gets: events, documents, changes, troubles, errors, the machine."""

import os
from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import ClassVar, Final

import msgspec

from forewarn import clock
from forewarn.protocol.versions import UNKNOWN_DURATION
from forewarn.vocabulary import EventStatus

VARIABLE_PREFIX: Final = "FOREWARN_"

MAX_VARIABLE: Final = 64 * 1024
"""The longest variable of a program, in bytes; the kernel refuses 128 KiB. Longer values are in the
JSON."""

OVER: Final = "over"
"""The reason of the report that a trouble is over."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One event as last seen (protocol.md section 4)."""

    event_id: str
    """As the server wrote it; ids compare without regard to case."""
    status: str
    """`EventStatus.SCHEDULED` or `STARTED`; another text where the server shows one."""
    event_type: str
    """An `EventType`; another text for a type that this release does not know."""
    resource_type: str
    resources: tuple[str, ...]
    """The affected machines' names as written; the oldest version puts `_` before them."""
    not_before: datetime | None
    """In UTC; None once Started."""
    description: str = ""
    source: str | None = None
    """An `EventSource`; None where the server's version does not show it."""
    duration_seconds: int = UNKNOWN_DURATION
    """The expected interruption; 0 none, -1 unknown, or not shown by the server's version."""
    concerns_me: bool | None = None
    """True if this machine is among the resources; None where its name is not known."""
    starts_by: float | None = None
    """NotBefore on this machine's monotonic clock, in seconds; None without one."""

    @property
    def started(self) -> bool:
        """True if it was Started when it was last seen."""
        return self.status == EventStatus.STARTED

    @property
    def notice_left(self) -> timedelta | None:
        """Time until NotBefore, never negative; None once Started.

        It runs on the monotonic clock from the moment at which the event was read, so a wall clock
        that is set meanwhile neither lengthens nor shortens it. Time for which the machine was
        paused is subtracted as soon as the server has answered again.
        """
        if self.starts_by is None:
            return None
        return timedelta(seconds=max(0.0, self.starts_by - clock.monotonic()))


def facts(event: Event) -> dict[str, str]:
    """Return an event as texts, by the names that programs and templates know."""
    return {
        "event_id": event.event_id,
        "event_type": str(event.event_type),
        "event_status": str(event.status),
        "event_source": str(event.source or ""),
        "description": event.description,
        "resources": ",".join(event.resources),
        "not_before": "" if event.not_before is None else event.not_before.isoformat(),
        "duration_seconds": str(event.duration_seconds),
    }


def environment(texts: Mapping[str, str]) -> dict[str, str]:
    """Return texts as variables of a program, without those that are too long for the kernel."""
    return {
        # UTF-8 whatever the locale: one of ISO 8859-1 has no letter for many a description.
        VARIABLE_PREFIX + name.upper(): os.fsdecode(text.replace("\0", "").encode())
        for name, text in texts.items()
        if len(text.encode()) <= MAX_VARIABLE
    }


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """The endpoint's document at one moment."""

    incarnation: int | None
    """Compare it as different, never as greater; None where the server sent none."""
    events: tuple[Event, ...]
    """In the server's order; those of `documents` in the order of their appearance."""


class MachineIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """This machine's names and place; `""` where the server leaves one out."""

    name: str
    """Letter for letter the string in an event's resources; the host name may differ."""
    vm_id: str = ""
    """Its own for its whole life."""
    resource_id: str = ""
    subscription_id: str = ""
    resource_group: str = ""
    scale_set: str = ""
    location: str = ""
    zone: str = ""


class Change(msgspec.Struct, frozen=True):
    """One thing that happened to one event; exactly one of the four flags is true."""

    event: Event
    kind: ClassVar[str] = ""
    appeared: ClassVar[bool] = False
    started: ClassVar[bool] = False
    updated: ClassVar[bool] = False
    gone: ClassVar[bool] = False

    @property
    def last(self) -> bool:
        """True if an event is gone and no other that was reported is left: resume work now."""
        return False


class Appeared(Change, frozen=True):
    """The event is listed for the first time, or again after it was gone; it may be Started."""

    kind: ClassVar[str] = "appeared"
    appeared: ClassVar[bool] = True


class Started(Change, frozen=True):
    """The event has started."""

    kind: ClassVar[str] = "started"
    started: ClassVar[bool] = True


class Updated(Change, frozen=True):
    """Something else in the event has changed, such as a later NotBefore."""

    before: Event
    """The event before the change."""
    kind: ClassVar[str] = "updated"
    updated: ClassVar[bool] = True


class Gone(Change, frozen=True):
    """Two documents in a row do not list the event; `event` is as last seen.

    The protocol does not show whether it was cancelled or is over.
    """

    last: bool = True
    """True if no other event that was reported is left."""
    kind: ClassVar[str] = "gone"
    gone: ClassVar[bool] = True


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """The reason for no good answer, an unsaved state or a wrong name; once for each change."""

    reason: str
    """A word to compare, such as `no-connection`, `no-answer`, `cut`, `status-503`, `no-document`;
    `over` once the endpoint answers again. `not-saved` if the file of `since` cannot be written,
    and `saved` once it can; `misnamed` if the endpoint has another name for this machine than the
    caller gave, and `named` once it has not."""
    message: str
    """For people: the fault, and the likely cause if there is one."""

    @property
    def over(self) -> bool:
        """True if the endpoint answers again."""
        return self.reason == OVER


class ClientError(Exception):
    """The base of the client's errors; the text says what is wrong and what to do."""


class Unreachable(ClientError):  # noqa: N818 - named for what is the matter
    """The server's fault: no connection, no answer in time, or one that was cut off."""


class BadAnswer(ClientError):  # noqa: N818 - named for what is the matter
    """The server's fault: its answer is not a document, a name or a confirmation."""


class Misuse(ClientError):  # noqa: N818 - named for what is the matter
    """The caller's fault: an invalid argument, or a client that is closed."""


class RequestRefused(ClientError):  # noqa: N818 - named for what is the matter
    """The server refuses the request (400, 401 or 403): sending it again would not help.

    Args:
        message: The refused request, and the likely cause if there is one.
        status: The answer's status.
        text: The server's own words; `""` for none.
    """

    def __init__(self, message: str, *, status: int, text: str) -> None:
        super().__init__(message)
        self.status = status
        self.text = text

    def __reduce__(self) -> tuple[object, ...]:
        """Return its pickle: a pool's process raises it in its parent."""
        return partial(type(self), status=self.status, text=self.text), self.args
