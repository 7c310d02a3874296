"""The table of versions, against the table of section 2."""

import pytest

from forewarn.protocol.instance import INSTANCE_VERSIONS
from forewarn.protocol.versions import (
    NEWEST_VERSION,
    VERSION_BY_NAME,
    VERSIONS,
    ScheduledEvent,
    Version,
)
from forewarn.vocabulary import EventType
from protocol import cases

EARLY = {EventType.FREEZE, EventType.REBOOT, EventType.REDEPLOY}
TABLE = [
    ("2017-03-01", 6, EARLY),
    ("2017-08-01", 6, EARLY),
    ("2017-11-01", 6, EARLY | {EventType.PREEMPT}),
    ("2019-01-01", 6, set(EventType)),
    ("2019-04-01", 7, set(EventType)),
    ("2019-08-01", 8, set(EventType)),
    ("2020-07-01", 9, set(EventType)),
]
FIELDS = (
    *("event_id", "status", "event_type", "resource_type", "resources", "not_before"),
    *("description", "source", "duration_seconds"),
)


def test_the_versions_are_those_of_section_2_the_oldest_first() -> None:
    assert [version.name for version in VERSIONS] == [name for name, _, _ in TABLE]
    assert NEWEST_VERSION.name == "2020-07-01"
    assert set(VERSION_BY_NAME) == {name for name, _, _ in TABLE}


@pytest.mark.parametrize(("name", "count", "types"), TABLE)
def test_a_version_shows_its_fields_and_types_and_no_later_ones(
    name: str, count: int, types: set[EventType]
) -> None:
    version = VERSION_BY_NAME[name]
    assert version.name == name
    assert version.fields == FIELDS[:count]
    assert version.event_types == types


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
def test_only_the_preview_has_the_previews_ways(version: Version) -> None:
    preview = version.name == "2017-03-01"
    assert version.prefixed_names is preview
    assert version.iso_dates is preview
    assert version.header_required_on_post is not preview


def test_every_field_of_the_table_is_an_events_own() -> None:
    for field in FIELDS:
        assert hasattr(cases.SECTION_4_EVENT, field)
    assert set(ScheduledEvent.__struct_fields__) == set(FIELDS) - {"resource_type"}


def test_the_instance_service_has_its_own_versions_in_order() -> None:
    listed = INSTANCE_VERSIONS
    assert len(listed) == 35
    assert list(listed) == sorted(set(listed))
    assert "2020-07-01" not in listed
