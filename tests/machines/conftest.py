"""Machines are made only where there is all that they need; what is missing fails by its name."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from machines import image


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
