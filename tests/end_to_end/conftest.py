"""Folders whose paths are short enough for a unix socket, and an endpoint of the test's own."""

import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from end_to_end.agents import Endpoint


@pytest.fixture
def folder() -> Generator[Path]:
    """A folder of this test's own."""
    with tempfile.TemporaryDirectory(prefix="fw-") as made:
        yield Path(made)


@pytest.fixture(scope="module")
def shared_folder() -> Generator[Path]:
    """A folder of this module's own."""
    with tempfile.TemporaryDirectory(prefix="fw-") as made:
        yield Path(made)


@pytest.fixture
def cloud() -> Generator[Endpoint]:
    """An endpoint whose document is the test's."""
    with Endpoint() as server:
        yield server
