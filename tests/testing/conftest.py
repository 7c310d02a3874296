"""An emulator whose clock stands, and what a machine asks of it."""

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
import requests

import patience
from forewarn.testing import EmulatedMachine, Emulator

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    with Emulator(beginning=NOON) as started:
        yield started


@pytest.fixture
def web(emulator: Emulator) -> EmulatedMachine:
    return emulator.machine("web-0")


def get(machine: EmulatedMachine | Emulator, **headers: str) -> requests.Response:
    return requests.get(
        f"{machine.endpoint}/metadata/scheduledevents?api-version=2020-07-01",
        headers={"Metadata": "true", **headers},
        timeout=patience.SECONDS,
    )
