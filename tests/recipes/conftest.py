"""What recipes are run with: a short folder, the service, and the switch of its machines."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from end_to_end.agents import Endpoint
from end_to_end.running import Running
from recipes.power import Power, power


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of this test's own, whose path is short enough for a unix socket."""
    with tempfile.TemporaryDirectory(prefix="fw-") as made:
        yield Path(made)


@pytest.fixture
def switch(folder: Path) -> Iterator[Power]:
    with power(folder) as made:
        yield made


@pytest.fixture
def service(folder: Path, switch: Power) -> Iterator[Running]:
    """A service that carries maintenance out by the switch."""
    with Running(folder, connector=switch.settings) as made:
        yield made


@pytest.fixture
def cloud() -> Iterator[Endpoint]:
    """An endpoint whose document is the test's."""
    with Endpoint() as server:
        yield server
