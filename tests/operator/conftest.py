"""A running service on an in-memory store, at noon, and a client of its unix socket."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from forewarn.clock import ManualClock
from forewarn.store.sqlite import InMemoryStore
from server.running import NOON, Client, Running, fleet, settings_in


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOON)


@pytest.fixture
def service(tmp_path: Path, clock: ManualClock) -> Iterator[Running]:
    with Running(settings_in(tmp_path), InMemoryStore(), clock) as running:
        yield running


@pytest.fixture
def client(service: Running) -> Client:
    applied = service.client().ask("PUT", "/v1/fleet", fleet())
    assert applied.status == 200, applied.body
    return service.client()


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of a service that whatever is refused leaves as it was."""
    folder = tmp_path_factory.mktemp("service")
    with Running(settings_in(folder), InMemoryStore(), ManualClock(NOON)) as running:
        assert running.client().ask("PUT", "/v1/fleet", fleet()).status == 200
        yield running.client()
