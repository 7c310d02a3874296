"""A handler that takes its client as an argument, and its tests, which need no service."""

import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Protocol

import forewarn


class Notices(Protocol):
    """What the handler needs of a forewarn.Client."""

    def watch(self, *, mine: bool, since: str) -> Iterable[forewarn.Change]: ...

    def approve(self, *events: forewarn.Event) -> None: ...


class Service(Protocol):
    def drain(self) -> bool: ...

    def undrain(self) -> None: ...


def handle(client: Notices, service: Service) -> None:
    """The handler: put yours in a module of its own."""
    for change in client.watch(mine=True, since="handler.state"):
        event = change.event
        if change.appeared and not event.started:
            if service.drain():
                client.approve(event)
        elif change.last:
            service.undrain()


class FakeClient:
    """A client that reports given changes, and records approvals."""

    def __init__(self, *changes: forewarn.Change) -> None:
        self.changes = changes
        self.approved: list[str] = []

    def watch(self, *, mine: bool, since: str) -> Iterable[forewarn.Change]:
        return [each for each in self.changes if not mine or each.event.concerns_me is not False]

    def approve(self, *events: forewarn.Event) -> None:
        self.approved += [event.event_id for event in events]


class FakeService:
    def __init__(self, *, drains: bool = True) -> None:
        self.drains = drains
        self.did: list[str] = []

    def drain(self) -> bool:
        self.did.append("drain")
        return self.drains

    def undrain(self) -> None:
        self.did.append("undrain")


def reboot(event_id: str, notice_seconds: float = 900.0) -> forewarn.Event:
    return forewarn.Event(
        event_id=event_id,
        status="Scheduled",
        event_type="Reboot",
        resource_type="VirtualMachine",
        resources=("web-0",),
        not_before=datetime.now(UTC) + timedelta(seconds=notice_seconds),
        description="",
        source="Platform",
        duration_seconds=-1,
        concerns_me=True,
        starts_by=time.monotonic() + notice_seconds,  # notice_left counts from this
    )


def test_it_drains_approves_and_comes_back() -> None:
    client = FakeClient(forewarn.Appeared(reboot("E1")), forewarn.Gone(reboot("E1")))
    service = FakeService()
    handle(client, service)
    assert service.did == ["drain", "undrain"]
    assert client.approved == ["E1"]


def test_a_drain_that_fails_is_not_approved() -> None:
    client = FakeClient(forewarn.Appeared(reboot("E1")))
    handle(client, FakeService(drains=False))
    assert client.approved == []


def test_of_two_events_the_last_brings_it_back() -> None:
    appeared = [forewarn.Appeared(reboot("E1")), forewarn.Appeared(reboot("E2"))]
    service = FakeService()
    handle(FakeClient(*appeared, forewarn.Gone(reboot("E1"), last=False)), service)
    assert service.did == ["drain", "drain"]


def test_what_an_earlier_process_drained_is_undone() -> None:
    service = FakeService()
    handle(FakeClient(forewarn.Started(reboot("E1")), forewarn.Gone(reboot("E1"))), service)
    assert service.did == ["undrain"]
