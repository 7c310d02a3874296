"""The published api-versions as one table (protocol.md section 2)."""

from typing import Final

import msgspec

from forewarn.vocabulary import EventType


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """One api-version of scheduled events: what it shows and how it writes it."""

    name: str
    """As in a request, such as `2020-07-01`."""
    fields: tuple[str, ...]
    """The attributes of `document.Event` that it shows, in their order."""
    event_types: frozenset[EventType]
    """The types that it shows; its document leaves out other events."""
    prefixed_names: bool = False
    """Whether `_` stands before the names of machines outside cloud services."""
    iso_dates: bool = False
    """Whether NotBefore is written as `2016-09-19T18:29:47Z` instead of RFC 1123 [O]."""
    header_required_on_post: bool = True
    """Whether a POST needs `Metadata: true` whatever the settings say (section 3, rule 1)."""


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

BY_NAME: Final[dict[str, Version]] = {version.name: version for version in VERSIONS}
NEWEST: Final = VERSIONS[-1]

INSTANCE_VERSIONS: Final[tuple[str, ...]] = (
    *("2017-03-01", "2017-04-02", "2017-08-01", "2017-10-01", "2017-12-01"),
    *("2018-02-01", "2018-04-02", "2018-10-01"),
    *("2019-02-01", "2019-03-11", "2019-04-30", "2019-06-01", "2019-06-04", "2019-08-01"),
    *("2019-08-15", "2019-11-01"),
    *("2020-06-01", "2020-07-15", "2020-09-01", "2020-10-01", "2020-12-01"),
    *("2021-01-01", "2021-02-01", "2021-03-01", "2021-05-01", "2021-08-01", "2021-10-01"),
    *("2021-11-01", "2021-11-15", "2021-12-13"),
    *("2023-07-01", "2023-11-15"),
    *("2024-03-15", "2024-07-17"),
    "2025-04-07",
)
"""The instance service's own list, the oldest first (protocol.md section 1)."""
