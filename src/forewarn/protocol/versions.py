"""The document that a guest reads, as frozen values, and the part of it that each version shows."""

from datetime import datetime
from typing import Final

import msgspec

from forewarn.vocabulary import RESOURCE_TYPE, EventSource, EventStatus, EventType

UNKNOWN_DURATION: Final = -1
"""DurationInSeconds where it is unknown or does not apply (protocol.md section 4)."""


class ScheduledEvent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
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
        """Refuse values that no guest may see."""
        moment = self.not_before
        if (
            not self.status.visible
            or (moment is None) != (self.status is EventStatus.STARTED)
            or (moment is not None and (moment.tzinfo is None or moment.microsecond))
        ):
            raise ValueError(f"guests never see such an event: {self}")

    @property
    def resource_type(self) -> str:
        """The only resource type."""
        return RESOURCE_TYPE


class EventsDocument(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The document that every machine of a scope reads."""

    incarnation: int
    """0 for a scope that never had an event; moves with every change of the events."""
    events: tuple[ScheduledEvent, ...] = ()
    """In the order of the document: by publication, then by EventId."""
    cloud_service: bool = False
    """True if the machines are role instances, whose names the preview does not change."""


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """One api-version of scheduled events: its content and its form (section 2)."""

    name: str
    """As in a request, such as `2020-07-01`."""
    fields: tuple[str, ...]
    """The attributes of `ScheduledEvent` that it shows, in their order."""
    event_types: frozenset[EventType]
    """The types that it shows; its document leaves out other events."""
    prefixed_names: bool = False
    """True if `_` stands before the names of machines outside cloud services."""
    iso_dates: bool = False
    """True if NotBefore is written as `2016-09-19T18:29:47Z` instead of RFC 1123 [O]."""
    header_required_on_post: bool = True
    """True if a POST needs `Metadata: true` whatever the settings say (section 3, rule 1)."""


_FIELDS: Final = ("event_id", "status", "event_type", "resource_type", "resources", "not_before")
_TYPES: Final = frozenset({EventType.FREEZE, EventType.REBOOT, EventType.REDEPLOY})
_ALL_TYPES: Final = frozenset(EventType)

VERSIONS: Final = (
    Version(
        name="2017-03-01",
        fields=_FIELDS,
        event_types=_TYPES,
        prefixed_names=True,
        iso_dates=True,
        header_required_on_post=False,
    ),
    Version(name="2017-08-01", fields=_FIELDS, event_types=_TYPES),
    Version(name="2017-11-01", fields=_FIELDS, event_types=_TYPES | {EventType.PREEMPT}),
    Version(name="2019-01-01", fields=_FIELDS, event_types=_ALL_TYPES),
    Version(name="2019-04-01", fields=(*_FIELDS, "description"), event_types=_ALL_TYPES),
    Version(name="2019-08-01", fields=(*_FIELDS, "description", "source"), event_types=_ALL_TYPES),
    Version(
        name="2020-07-01",
        fields=(*_FIELDS, "description", "source", "duration_seconds"),
        event_types=_ALL_TYPES,
    ),
)
"""Every version of scheduled events, the oldest first."""

VERSION_BY_NAME: Final[dict[str, Version]] = {version.name: version for version in VERSIONS}
NEWEST_VERSION: Final = VERSIONS[-1]
