"""What a handler sees: how long is left, and what a change says of itself."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client import world
from forewarn import clock
from forewarn.client import watch
from forewarn.client.event import OVER, Appeared, Event, Gone, Misuse, Started, Trouble, Updated
from forewarn.vocabulary import EventStatus, EventType

EVENT = Event(
    event_id=world.EVENT_ID,
    status=EventStatus.SCHEDULED,
    event_type=EventType.REBOOT,
    resource_type="VirtualMachine",
    resources=("web-0",),
    not_before=datetime(2026, 1, 1, 12, 15, tzinfo=UTC),
)


def due_in(seconds: float) -> Event:
    return msgspec.structs.replace(EVENT, starts_by=clock.monotonic() + seconds)


def test_notice_runs_out_on_the_monotonic_clock() -> None:
    left = due_in(10_000).notice_left
    assert left is not None
    assert timedelta(seconds=9_000) < left <= timedelta(seconds=10_000)
    assert due_in(-5).notice_left == timedelta(0)
    assert EVENT.notice_left is None


def test_notice_only_ever_shrinks() -> None:
    event = due_in(100)
    looked = [event.notice_left or timedelta(0) for _ in range(1000)]
    assert looked == sorted(looked, reverse=True)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (Appeared(EVENT), "appeared"),
        (Started(EVENT), "started"),
        (Updated(EVENT, EVENT), "updated"),
        (Gone(EVENT), "gone"),
    ],
)
def test_a_change_is_of_one_kind(change: Appeared, kind: str) -> None:
    flags = {name: getattr(change, name) for name in ("appeared", "started", "updated", "gone")}
    assert change.kind == kind
    assert [name for name, is_so in flags.items() if is_so] == [kind]


def test_an_event_is_started_when_its_status_says_so() -> None:
    assert not EVENT.started
    assert msgspec.structs.replace(EVENT, status="Started").started


def test_trouble_is_over_when_its_reason_says_so() -> None:
    assert Trouble(reason=OVER, message="").over
    assert not Trouble(reason="cut", message="").over


def written() -> str:
    both = world.document(world.listed(), world.listed("B", EventStatus="Started"))
    run = world.Run(world.one_by_one(both))
    run.turn()
    run.watcher.take()
    run.watcher.take()
    return run.watcher.since


@given(st.integers(0, len(written()) - 1), st.sampled_from('{}[]",:0aAnullgone '))
def test_a_state_that_was_damaged_is_a_state_or_the_callers_mistake(at: int, sign: str) -> None:
    whole = written()
    damaged = whole[:at] + sign + whole[at + 1 :]
    try:
        run = world.Run(world.one_by_one(world.document()), since=damaged)
    except Misuse:
        return
    assert all(change.event.event_id for change in run.ask())


def test_what_a_state_holds_is_read_back_as_it_was() -> None:
    known = watch.read_state(written(), world.at())["B"]
    assert known.event.status is EventStatus.STARTED
    assert known.event.event_type is EventType.REBOOT
    assert (known.told, known.handled, known.started) == (True, False, False)
