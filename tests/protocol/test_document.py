"""The values of a document, and the descriptions that clients match on."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from forewarn.protocol.versions import EventsDocument, ScheduledEvent
from forewarn.vocabulary import EventSource, EventStatus, EventType
from protocol import cases

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


def event(status: EventStatus, not_before: datetime | None) -> ScheduledEvent:
    return ScheduledEvent(
        event_id="E",
        status=status,
        event_type=EventType.FREEZE,
        resources=("web-0",),
        not_before=not_before,
        source=EventSource.PLATFORM,
    )


def test_an_event_says_nothing_more_than_it_was_given() -> None:
    plain = event(EventStatus.SCHEDULED, MOMENT)
    assert (plain.description, plain.duration_seconds) == ("", -1)
    assert plain.resource_type == "VirtualMachine"


def test_a_document_is_empty_and_of_no_cloud_service_by_default() -> None:
    assert EventsDocument(incarnation=0) == EventsDocument(
        incarnation=0, events=(), cloud_service=False
    )


@pytest.mark.parametrize(
    ("status", "not_before"),
    [
        (EventStatus.COMPLETED, None),
        (EventStatus.FAILED, MOMENT),
        (EventStatus.CANCELED, MOMENT),
        (EventStatus.SCHEDULED, None),
        (EventStatus.STARTED, MOMENT),
        (EventStatus.SCHEDULED, MOMENT.replace(tzinfo=None)),
        (EventStatus.SCHEDULED, MOMENT + timedelta(microseconds=1)),
    ],
)
def test_what_no_guest_may_see_is_never_an_event_of_a_document(
    status: EventStatus, not_before: datetime | None
) -> None:
    with pytest.raises(ValueError, match=r"ScheduledEvent\(event_id='E', "):
        event(status, not_before)


def test_a_scheduled_event_has_not_before_and_a_started_one_has_none() -> None:
    assert event(EventStatus.SCHEDULED, MOMENT).not_before == MOMENT
    assert event(EventStatus.STARTED, None).not_before is None


def test_a_document_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        cases.SECTION_4.incarnation = 3  # type: ignore[misc]  # that is what the test tries
    assert msgspec.structs.replace(cases.SECTION_4, incarnation=3).incarnation == 3
