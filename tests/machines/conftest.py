"""Machines are made only where there is all that they need; what is missing fails by its name."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from end_to_end.conftest import shared_folder
from machines import image
from machines.site import Site

__all__ = ["shared_folder"]


@pytest.fixture(scope="session", autouse=True)
def _nothing_is_missing() -> None:
    missing = image.missing()
    if missing:
        pytest.exit(missing, returncode=1)


@pytest.fixture(scope="module")
def site(shared_folder: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    """A machine whose agent has the RULES of the module."""
    made = Site(shared_folder, request.module.RULES)
    try:
        made.machine.run("systemctl", "enable", "--now", "forewarn-agent")
        made.machine.run("sync")
        yield made
    finally:
        made.close()
