"""Machines are made only where there is all that they need; what is missing fails by its name."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from machines import image
from machines.site import Site


@pytest.fixture(scope="session", autouse=True)
def _nothing_is_missing() -> None:
    missing = image.missing()
    if missing:
        pytest.exit(missing, returncode=1)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder of this module's own, whose path is short enough for a unix socket."""
    with tempfile.TemporaryDirectory(prefix="fw-") as made:
        yield Path(made)


@pytest.fixture(scope="module")
def site(folder: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    """A machine whose agent has the RULES of the module."""
    made = Site(folder, request.module.RULES)
    try:
        made.machine.run("systemctl", "enable", "--now", "forewarn-agent")
        made.machine.run("sync")
        yield made
    finally:
        made.close()
