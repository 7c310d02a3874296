"""The document that a guest reads, as frozen values."""

from datetime import datetime
from typing import Final

import msgspec

from forewarn.vocabulary import RESOURCE_TYPE, EventSource, EventStatus, EventType

UNKNOWN_DURATION: Final = -1
"""DurationInSeconds where it is unknown or does not apply (protocol.md section 4)."""


class Event(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One event as the newest version shows it; older ones show less of it."""

    event_id: str
    """An upper-case GUID."""
    status: EventStatus
    event_type: EventType
    resources: tuple[str, ...]
    """The affected machines' names, without the preview's `_`; the order is the document's."""
    not_before: datetime | None
    """In whole seconds, aware; None once Started, which is written `""`."""
    description: str = ""
    source: EventSource
    duration_seconds: int = UNKNOWN_DURATION
    """The expected interruption; 0 none, -1 unknown or not applicable."""

    def __post_init__(self) -> None:
        """Refuse what no guest may see."""
        moment = self.not_before
        if (
            not self.status.visible
            or (moment is None) != (self.status is EventStatus.STARTED)
            or (moment is not None and (moment.tzinfo is None or moment.microsecond))
        ):
            raise ValueError(f"guests never see such an event: {self}")

    @property
    def resource_type(self) -> str:
        """The only resource type there is."""
        return RESOURCE_TYPE


class Document(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The document that every machine of a scope reads."""

    incarnation: int
    """0 for a scope that never had an event; moves with every change of the events."""
    events: tuple[Event, ...] = ()
    """In the order of the document: by publication, then by EventId."""
    cloud_service: bool = False
    """Whether the machines are role instances, whose names the preview does not change."""
