"""What recipes are run with: a short folder, the service, and the switch of its machines."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from end_to_end.conftest import cloud, folder
from end_to_end.running import Running
from recipes.power import Power

__all__ = ["cloud", "folder"]


@pytest.fixture
def switch(folder: Path) -> Iterator[Power]:
    made = Power(folder)
    yield made
    made.close()


@pytest.fixture
def service(folder: Path, switch: Power) -> Iterator[Running]:
    """A service that carries maintenance out by the switch."""
    with Running(folder, connector=switch.settings) as made:
        yield made
