"""The values of a document, and the descriptions that clients match on."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from forewarn.protocol import document
from forewarn.protocol.document import Document, Event
from forewarn.vocabulary import EventSource, EventStatus, EventType
from protocol import cases
from protocol.cases import FREEZE, PLATFORM, PREEMPT, REBOOT, REDEPLOY, TERMINATE, USER

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
    with pytest.raises(ValueError, match=rf"^event E is {status.value}: guests see no such event$"):
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


@pytest.mark.parametrize(
    ("event_type", "source", "text"),
    [
        (FREEZE, PLATFORM, "Host server is undergoing maintenance."),
        (REBOOT, USER, cases.asked_for("restarted")),
        (REDEPLOY, USER, cases.asked_for("redeployed")),
        (REDEPLOY, PLATFORM, "Virtual machine has encountered a failure."),
        (PREEMPT, PLATFORM, ""),
        (PREEMPT, USER, ""),
        (FREEZE, USER, cases.asked_for("paused")),
        (REBOOT, PLATFORM, "Host server is undergoing maintenance."),
        (TERMINATE, USER, cases.asked_for("deleted")),
        (TERMINATE, PLATFORM, "Virtual machine is going to be deleted."),
    ],
)
def test_an_event_is_described_by_the_text_that_clients_know(
    event_type: EventType, source: EventSource, text: str
) -> None:
    assert document.default_description(event_type, source) == text


def test_a_live_migration_has_its_own_description() -> None:
    said = document.default_description(FREEZE, PLATFORM, live_migration=True)
    assert said == cases.LIVE_MIGRATION


def test_every_type_from_every_source_has_a_description() -> None:
    every = {(event_type, source) for event_type in EventType for source in EventSource}
    assert set(document.DEFAULT_DESCRIPTIONS) == every
