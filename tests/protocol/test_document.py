"""The values of a document, and the descriptions that clients match on."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from forewarn.protocol.document import Document, Event
from forewarn.vocabulary import EventStatus, EventType
from protocol import cases

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


def event(status: EventStatus, not_before: datetime | None) -> Event:
    return Event(
        event_id="E",
        status=status,
        event_type=EventType.FREEZE,
        resources=("web-0",),
        not_before=not_before,
    )


def test_an_event_says_nothing_more_than_it_was_given() -> None:
    plain = event(EventStatus.SCHEDULED, MOMENT)
    assert (plain.description, plain.source, plain.duration_seconds) == ("", None, -1)
    assert plain.resource_type == "VirtualMachine"


def test_a_document_is_empty_and_of_no_cloud_service_by_default() -> None:
    assert Document(incarnation=0) == Document(incarnation=0, events=(), cloud_service=False)


@pytest.mark.parametrize(
    "status", [EventStatus.COMPLETED, EventStatus.FAILED, EventStatus.CANCELED]
)
def test_what_is_over_is_never_an_event_of_a_document(status: EventStatus) -> None:
    with pytest.raises(
        ValueError, match=rf"^event E is {status.value}: guests never see such an event$"
    ):
        event(status, None)


def test_a_scheduled_event_has_not_before_and_a_started_one_has_none() -> None:
    assert event(EventStatus.SCHEDULED, MOMENT).not_before == MOMENT
    assert event(EventStatus.STARTED, None).not_before is None
    wanted = "a Scheduled event has one, a Started one has none$"
    with pytest.raises(ValueError, match=r"^event E is Scheduled with NotBefore None: " + wanted):
        event(EventStatus.SCHEDULED, None)
    with pytest.raises(ValueError, match=r"^event E is Started with NotBefore 2026.*: " + wanted):
        event(EventStatus.STARTED, MOMENT)


@pytest.mark.parametrize(
    "moment", [MOMENT.replace(tzinfo=None), MOMENT + timedelta(microseconds=1)]
)
def test_not_before_is_aware_and_in_whole_seconds(moment: datetime) -> None:
    with pytest.raises(ValueError, match=r"must be aware and in whole seconds$"):
        event(EventStatus.SCHEDULED, moment)


def test_a_document_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        cases.SECTION_4.incarnation = 3  # type: ignore[misc]  # that is what the test tries
    assert msgspec.structs.replace(cases.SECTION_4, incarnation=3).incarnation == 3
