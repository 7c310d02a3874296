"""A running service on an in-memory store, at noon, and a client of its unix socket."""

import logging
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import structlog

from forewarn.cli import main
from forewarn.clock import ManualClock
from forewarn.server.settings import MaintenanceSettings, UnitCheck
from forewarn.store.sqlite import InMemoryStore
from server.running import NOON, Cli, Client, Running, fleet, settings_in


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOON)


@pytest.fixture
def store() -> InMemoryStore:
    return InMemoryStore()


@pytest.fixture
def service(tmp_path: Path, clock: ManualClock, store: InMemoryStore) -> Iterator[Running]:
    """A service on TCP too, of several names, with a check that passes once there is a file."""
    check = UnitCheck(name="file", program=("test", "-e", str(tmp_path / "good")))
    wanted = msgspec.structs.replace(
        settings_in(tmp_path, listen="127.0.0.1:0", hosts=["ops.example", "https://proxy.example"]),
        maintenance=MaintenanceSettings(check=(check,)),
    )
    with Running(wanted, store, clock) as running:
        yield running


@pytest.fixture
def client(service: Running) -> Client:
    applied = service.client().ask("PUT", "/v1/fleet", fleet())
    assert applied.status == 200, applied.body
    return service.client()


@pytest.fixture
def cli(service: Running, client: Client, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run a command in this process; return its exit status and what it printed."""
    del client  # it applied the fleet
    # What the service logs in this process would stand between the lines of a command.
    quiet = structlog.make_filtering_bound_logger(logging.CRITICAL)
    structlog.configure(wrapper_class=quiet)

    def run(*argv: str) -> tuple[int, str, str]:
        socket = service.settings.operator.socket
        capsys.readouterr()  # what the service logged before
        status = main.execute([*argv, "--operator", socket])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run
